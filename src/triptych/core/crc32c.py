"""CRC-32C (Castagnoli), with which TensorFlow's files guard their contents; fast enough in NumPy to check hundreds of megabytes.

The register of a CRC is a linear function of the message over GF(2): that of two parts is that of the first, moved on by as many zero bytes
as the second has, plus (exclusive or) that of the second. So many equal pieces are taken together, one step for all of them at a time, and
then joined in pairs.
"""

from __future__ import annotations

import functools

import numpy as np

_POLYNOMIAL = 0x82F63B78  # 0x1EDC6F41, the lowest bit first
_MASK_DELTA = 0xA282EAD8
_LONGEST_PIECE = 1024  # in bytes; a power of two


def crc32c(data: bytes | bytearray | memoryview | np.ndarray) -> int:
    """The CRC-32C of bytes, 0 to 2^32 - 1."""
    message = np.frombuffer(data, dtype=np.uint8) if not isinstance(data, np.ndarray) else data.reshape(-1).view(np.uint8)
    piece = 2
    while piece < _LONGEST_PIECE and piece * piece < len(message):
        piece *= 2
    # Zeros before a message leave an empty register empty. It is not empty at the start: its ones are added to the first four bytes.
    count = max(-(-len(message) // piece), -(-4 // piece))
    padded = np.zeros(count * piece, dtype=np.uint8)
    padded[len(padded) - len(message) :] = message
    inverted = padded[len(padded) - len(message) :][:4]
    np.bitwise_xor(inverted, 0xFF, out=inverted)
    registers = _of_pieces(padded.view("<u2").reshape(count, piece // 2))
    while len(registers) > 1:
        if len(registers) % 2:
            registers = np.concatenate((np.zeros(1, dtype=np.uint32), registers))
        registers = _moved(registers[0::2], _zeros(piece)) ^ registers[1::2]
        piece *= 2
    register = int(registers[0])
    if len(message) < 4:  # the ones that were not added to a byte
        register ^= 0xFFFFFFFF >> (8 * len(message))
    return register ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """A CRC-32C as it is stored beside what it guards: rotated, and a constant added, so that CRCs of CRCs are sound."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def _of_pieces(words: np.ndarray) -> np.ndarray:
    """The register of each row of 16-bit words, from an empty one."""
    table, registers = _of_words(), np.zeros(len(words), dtype=np.uint32)
    for column in words.T:
        registers = table[registers.astype(np.uint16) ^ column] ^ (registers >> 16)
    return registers


@functools.cache
def _of_words() -> np.ndarray:
    """The register of each 16-bit word."""
    table = np.arange(1 << 16, dtype=np.uint32)
    for _ in range(16):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table


def _moved(registers: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """The registers after so many zero bytes as the table is for."""
    return zeros[0, registers & 0xFF] ^ zeros[1, (registers >> 8) & 0xFF] ^ zeros[2, (registers >> 16) & 0xFF] ^ zeros[3, registers >> 24]


@functools.cache
def _zeros(count: int) -> np.ndarray:
    """What `count` zero bytes, a power of two, make of a register's first, second, third and fourth byte: (4, 256)."""
    registers = np.arange(256, dtype=np.uint32) << np.arange(0, 32, 8, dtype=np.uint32)[:, None]
    if count == 2:
        return _of_words()[registers & 0xFFFF] ^ (registers >> 16)
    half = _zeros(count // 2)
    return _moved(half, half)
