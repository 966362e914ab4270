"""Messages written by hand, as the encoding's description has them."""

from __future__ import annotations

import pytest

from triptych.core.protobuf import DELIMITED, FIXED32, FIXED64, VARINT, fields, in_memory, parts, values, varint

MESSAGE = bytes.fromhex("089601120774657374696e671d010000002102000000000000001200")
"""1: 150; 2: "testing"; 3: 1 in four bytes; 4: 2 in eight; 2 again: nothing."""


def test_every_kind_of_field() -> None:
    assert list(values(MESSAGE)) == [(1, 150), (2, b"testing"), (3, 1), (4, 2), (2, b"")]
    found = list(fields(in_memory(MESSAGE), 0, len(MESSAGE)))
    assert [kind for _, kind, _, _ in found] == [VARINT, DELIMITED, FIXED32, FIXED64, DELIMITED]
    assert [MESSAGE[start:end] for start, end in parts(in_memory(MESSAGE), 0, len(MESSAGE), 2)] == [b"testing", b""]


def test_the_largest_number() -> None:
    assert varint(b"\xff" * 9 + b"\x01", 0) == ((1 << 64) - 1, 10)
    assert varint(b"\xff" * 9 + b"\x7f", 0)[0] == (1 << 64) - 1  # bits above 64 are dropped


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"\x08" + b"\xff" * 12, "more than 64 bits"), (b"\x12\x05abc", "a field beyond the end"), (b"\x0b", "a field of kind 3")],
)
def test_bytes_that_are_no_message(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(values(data))
    with pytest.raises(IndexError):
        list(values(b"\x08"))
