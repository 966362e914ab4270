"""TFRecord files for tests, written byte by byte."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np


def crc(data: bytes) -> int:
    """The masked CRC-32C, one bit at a time."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    register ^= 0xFFFFFFFF
    return ((register >> 15 | register << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(data: bytes) -> bytes:
    length = len(data).to_bytes(8, "little")
    return length + crc(length).to_bytes(4, "little") + data + crc(data).to_bytes(4, "little")


def varint(value: int) -> bytes:
    value %= 1 << 64
    groups = [value >> shift & 0x7F for shift in range(0, max(1, value.bit_length()), 7)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def of_ints(*values: int, packed: bool = True) -> bytes:
    numbers = field(1, b"".join(map(varint, values))) if packed else b"".join(varint(1 << 3) + varint(value) for value in values)
    return field(3, numbers)


def of_bytes(data: bytes) -> bytes:
    return field(1, field(1, data))


def example(features: dict[str, bytes]) -> bytes:
    """A tf.train.Example with its features in this order."""
    return field(1, b"".join(field(1, field(1, name.encode()) + field(2, feature)) for name, feature in features.items()))


def features_of(pixels: np.ndarray, *, label: int = 0, packed: bool = True) -> dict[str, bytes]:
    shape, number = (of_ints(*values, packed=packed) for values in (pixels.shape, [label]))
    return {"shape": shape, "data": of_bytes(pixels.tobytes()), "label": number}


def write_shards(folder: Path, images: Iterable[np.ndarray], *, bits: int, labels: Iterable[int] | None = None, shards: int = 2) -> Path:
    """The images in turn over the shards of the split that the folder is named after."""
    images = list(images)
    written = [b""] * shards
    for k, (pixels, label) in enumerate(zip(images, labels or [0] * len(images), strict=True)):
        written[k * shards // len(images)] += record(example(features_of(pixels, label=label)))
    folder.mkdir(parents=True, exist_ok=True)
    for k, data in enumerate(written):
        shard(folder, bits=bits, number=k, count=shards).write_bytes(data)
    return folder


def shard(folder: Path, *, bits: int = 3, number: int = 0, count: int = 1) -> Path:
    """Where openai/glow keeps a shard."""
    return folder / f"{folder.name}-r{bits:02d}-s-{number:04d}-of-{count:04d}.tfrecords"
