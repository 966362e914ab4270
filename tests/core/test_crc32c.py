"""CRC-32C against its definition and published check values (RFC 3720, B.4)."""

from __future__ import annotations

import numpy as np
import pytest

from triptych.core.crc32c import crc32c, masked


def by_definition(message: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in message:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("message", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_known_values(message: bytes, crc: int) -> None:
    assert crc32c(message) == crc


def test_every_length() -> None:
    """Lengths on both sides of each way in which a message is cut into pieces."""
    message = np.random.default_rng(0).bytes(5000)
    for length in (*range(70), 255, 256, 257, 1023, 1024, 1025, 4097, 5000):
        assert crc32c(message[:length]) == by_definition(message[:length]), length


def test_long_messages_are_joined_from_pieces() -> None:
    """CRC(a + b) = CRC(a + zeros) ^ CRC(b) ^ CRC(zeros) for parts of the same length: no loop over bytes is needed to check it."""
    values = np.random.default_rng(1).integers(0, 256, (2, 3_000_001), dtype=np.uint8)
    a, b = values
    zeros = np.zeros_like(a)
    parts = crc32c(np.concatenate((a, zeros))) ^ crc32c(np.concatenate((zeros, b))) ^ crc32c(np.concatenate((zeros, zeros)))
    assert crc32c(values) == parts
    assert crc32c(memoryview(a.tobytes())) == crc32c(a)
    assert crc32c(a) != crc32c(a ^ (np.arange(len(a)) == 1_234_567))


def test_masked() -> None:
    """TensorFlow's masking, rotation by 15 bits and a constant; its inverse gives the value back."""
    crc = crc32c(b"foo")
    rotated = (masked(crc) - 0xA282EAD8) % 2**32
    assert ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF == crc
