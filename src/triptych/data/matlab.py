"""Arrays of structures in files of MATLAB (level 5: versions 5 to 7), as far as ImageNet's development kit has them: `read_structs`.

A file is a header of 128 bytes and elements: a tag with a kind and a number of bytes, then these, up to a multiple of 8; four bytes or
fewer may stand in the tag itself. An element may be the zlib stream of another one. A matrix is an element whose parts are its class, its
shape, its name, and then: one with the values of numbers or text, or for structures the length of the names of their fields, these names,
and a matrix for each field of each structure. From "MAT-File Format" (The MathWorks). Fields that are not asked for are passed over.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from triptych.core.errors import DataError
from triptych.core.files import explain
from triptych.core.reading import read_regular

_MOST_BYTES = 2**26  # of a file, and of what a zlib stream unpacks to; ImageNet's file has half a megabyte
_MOST_STRUCTS = 10**6
_HEADER, _LITTLE_ENDIAN = 128, b"IM"
_MATRIX, _COMPRESSED = 14, 15
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""Kinds of elements with numbers, as NumPy calls them."""
_TEXTS = {1: "latin-1", 2: "latin-1", 4: "utf-16-le", 16: "utf-8", 17: "utf-16-le"}
"""Kinds of elements with text, and its encoding."""
_STRUCT, _CHAR, _NUMERIC = 2, 4, range(6, 16)
"""Classes of matrices."""


class _Damaged(Exception):
    """Not such a file."""


Element = tuple[int, bytes]
"""Its kind, and its bytes."""
Cell = str | float | None
"""Text, a number, or something else."""


def read_structs(path: Path, name: str, fields: Sequence[str]) -> list[tuple[Cell, ...]]:
    """Of each structure of the variable `name` its `fields`. Raises DataError for a file without them."""
    try:
        content = read_regular(path, most=_MOST_BYTES)
        return _structs(content, name, fields)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({explain(error)})") from error
    except (_Damaged, struct.error, zlib.error, UnicodeDecodeError) as error:
        wanted = f"expected a variable {name} with the fields {' and '.join(fields)}"
        raise DataError(f"{path}: not read as a file of MATLAB, version 5 to 7 ({error}); {wanted}") from error


def _structs(content: bytes, name: str, fields: Sequence[str]) -> list[tuple[Cell, ...]]:
    if content[_HEADER - 2 : _HEADER] != _LITTLE_ENDIAN:
        raise _Damaged("it has another header")
    for element in _elements(content[_HEADER:]):
        kind, matrix = element if element[0] != _COMPRESSED else _next(_elements(_unpacked(element[1])))
        if kind == _MATRIX:
            parts = _elements(matrix)
            of, shape, called = _head(parts)
            if called == name and of == _STRUCT:
                return list(_rows(parts, int(np.prod(shape.astype(object))), fields))
    raise _Damaged("no such variable")


def _elements(content: bytes) -> Iterator[Element]:
    """Those that stand one after the other."""
    at = 0
    while at + 8 <= len(content):
        kind, size = struct.unpack_from("<II", content, at)
        start, after = at + 8, at + 8 + size + (0 if kind == _COMPRESSED else -size % 8)
        if kind >> 16:  # size and kind in half a word each, and then the bytes
            kind, size, start, after = kind & 0xFFFF, kind >> 16, at + 4, at + 8
        if start + size > min(after, len(content)):
            raise _Damaged("it is cut short")
        yield kind, content[start : start + size]
        at = after


def _head(parts: Iterator[Element]) -> tuple[int, np.ndarray, str]:
    """Class, shape and name of a matrix, the first of its parts."""
    (_, flags), (_, shape), (_, name) = (_next(parts) for _ in range(3))
    if len(flags) != 8 or not shape or len(shape) % 4:
        raise _Damaged("a matrix has no class or shape")
    return struct.unpack("<II", flags)[0] & 0xFF, np.frombuffer(shape, "<i4"), name.decode("latin-1")


def _rows(parts: Iterator[Element], count: int, fields: Sequence[str]) -> Iterator[tuple[Cell, ...]]:
    (_, length), (_, together) = _next(parts), _next(parts)
    (longest,) = struct.unpack("<i", length)
    if not 0 < longest <= len(together) or not 0 <= count <= _MOST_STRUCTS:
        raise _Damaged("structures without fields, or too many")
    names = [together[at : at + longest].split(b"\0")[0].decode("latin-1") for at in range(0, len(together), longest)]
    if not set(fields) <= set(names):
        raise _Damaged(f"its fields are {', '.join(names)}")
    for _ in range(count):
        row = {name: _next(parts) for name in names}
        yield tuple(_cell(*row[name]) for name in fields)


def _cell(kind: int, content: bytes) -> Cell:
    """The text or the number of a matrix; None for more numbers, or none, and for what is neither."""
    if kind != _MATRIX:
        raise _Damaged("a field is no matrix")
    parts = _elements(content)
    of, _, _ = _head(parts)
    if of != _CHAR and of not in _NUMERIC:
        return None
    kind, values = next(parts, (0, b""))
    if of == _CHAR:
        return values.decode(_TEXTS[kind]) if kind in _TEXTS else None
    dtype = _NUMBERS.get(kind)
    if dtype is None or len(values) != np.dtype(dtype).itemsize:
        return None
    return float(np.frombuffer(values, f"<{dtype}")[0])


def _next(parts: Iterator[Element]) -> Element:
    found = next(parts, None)
    if found is None:
        raise _Damaged("it is cut short")
    return found


def _unpacked(stream: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    found = unpacking.decompress(stream, _MOST_BYTES)
    if not unpacking.eof:
        raise _Damaged("a part of it is cut short, or too large")
    return found
