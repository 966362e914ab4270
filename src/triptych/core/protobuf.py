"""Messages of protocol buffers, read without their description: https://protobuf.dev/programming-guides/encoding.

A message is a row of fields, each a number, the kind of its encoding, and a value. All functions raise ValueError or IndexError for bytes
that are no message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
"""The kinds: a number of any length, 8 bytes, bytes after their length (text, a message), 4 bytes."""
_TAG_AND_LENGTH = 20  # bytes of the two longest varints
_LARGEST = (1 << 64) - 1  # of a varint, whose ten bytes could hold more

Fetch = Callable[[int, int], bytes | memoryview]
"""From a start and a count to those bytes of a message, fewer where it ends."""


def in_memory(data: bytes | memoryview) -> Fetch:
    """Fetches from bytes that were read already."""
    return lambda start, count: data[start : start + count]


def varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A number, 0 to 2^64 - 1, and where the next byte is."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value & _LARGEST, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def fields(fetch: Fetch, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, kind, start and end of each field of a message. Values are not fetched."""
    while start < end:
        head = fetch(start, min(_TAG_AND_LENGTH, end - start))
        tag, at = varint(head, 0)
        kind, length = tag & 7, 0
        if kind == DELIMITED:
            length, at = varint(head, at)
        elif kind == VARINT:
            length = varint(head, at)[1] - at
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise ValueError(f"a field of kind {kind}")
        start += at
        if start + length > end:
            raise ValueError("a field beyond the end")
        yield tag >> 3, kind, start, start + length
        start += length


def parts(fetch: Fetch, start: int, end: int, number: int) -> Iterator[tuple[int, int]]:
    """Start and end of each submessage, text or list of that number."""
    return ((first, last) for field, kind, first, last in fields(fetch, start, end) if field == number and kind == DELIMITED)


def values(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a message in memory."""
    for number, kind, start, end in fields(in_memory(data), 0, len(data)):
        value = data[start:end]
        if kind == DELIMITED:
            yield number, value
        else:
            yield number, varint(value, 0)[0] if kind == VARINT else int.from_bytes(value, "little")
