"""Reading .npz and .npy files that may be damaged or hostile.

What an array's header says is known before anything of it is unpacked, and no more is unpacked than that.
"""

from __future__ import annotations

import io
import math
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from triptych.core.errors import one_line
from triptych.core.reading import open_regular

_MOST_HEADER = 10_000  # bytes; NumPy's own limit, which it looks at after it has read the header
_DAMAGE = (ValueError, TypeError, LookupError, OverflowError, RuntimeError, EOFError, SyntaxError)
_DAMAGE += (tokenize.TokenError, zipfile.BadZipFile, zlib.error)
"""NumPy and zipfile raise many types: a zip that is encrypted is a RuntimeError, one of a strange method a NotImplementedError."""


class DamagedArchive(Exception):
    """A file is no .npz or .npy of plain arrays; the message says why, in one line."""


@dataclass(frozen=True)
class Header:
    """What an array says of itself."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def bytes(self) -> int:
        """Of its values."""
        return math.prod(self.shape) * self.dtype.itemsize


class Npz:
    """The arrays of an open .npz."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        self.names = list(self._members)

    def header(self, name: str) -> Header:
        """What an array says of itself; nothing more of it is unpacked."""
        member = self._members[name]
        with self._archive.open(member.filename) as content:
            header = _header(content, name)
        if header.bytes > member.file_size:
            raise ValueError(f"{name} of shape {list(header.shape)} is cut short")
        return header

    def array(self, name: str) -> np.ndarray:
        """An array, as large as its header says."""
        self.header(name)
        with self._archive.open(self._members[name].filename) as content:
            return np.lib.format.read_array(content, allow_pickle=False)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The file. Within it damage is a DamagedArchive."""
    try:
        with open(open_regular(path), "rb") as file:
            yield file
    except _DAMAGE as error:
        of_header = isinstance(error, tokenize.TokenError | SyntaxError)
        raise DamagedArchive("the header of an array is damaged" if of_header else one_line(error)) from error


@contextmanager
def open_npz(path: Path) -> Iterator[Npz]:
    """The arrays of an .npz; nothing in it is unpickled. Within it damage is a DamagedArchive, else OSError or MemoryError."""
    with _opened(path) as file, zipfile.ZipFile(file) as archive:
        yield Npz(archive)


def read_npz(path: Path, *, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, np.ndarray]:
    """The wanted arrays of an .npz, by name. Raises DamagedArchive, OSError where it cannot be read, and MemoryError."""
    with open_npz(path) as file:
        names = [name for name in file.names if wanted(name)]
        for name in names:
            file.header(name)  # all of them before one is read
        return {name: file.array(name) for name in names}


def map_npy(path: Path) -> np.ndarray:
    """The array of an .npy, mapped into memory as it is read. Raises DamagedArchive, and OSError where it cannot be read."""
    with _opened(path) as file:
        _header(file, path.name)
        return np.lib.format.open_memmap(path, mode="r")


def _header(content: IO[bytes], name: str) -> Header:
    """The header of an array, from its start; `name` is for messages."""
    version = np.lib.format.read_magic(content)
    width, read = (2, np.lib.format.read_array_header_1_0) if version == (1, 0) else (4, np.lib.format.read_array_header_2_0)
    length = content.read(width)
    if int.from_bytes(length, "little") > _MOST_HEADER:
        raise ValueError(f"the header of {name} has more than {_MOST_HEADER:,} bytes")
    shape, _, dtype = read(io.BytesIO(length + content.read(int.from_bytes(length, "little"))))
    if any(side < 0 for side in shape):
        raise ValueError(f"{name} cannot have the shape {list(shape)}")
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects")
    return Header(shape, dtype)
