"""Reading .npz and .npy files that may be damaged or hostile, and writing .npz that are larger than memory.

What an array's header says is known before anything of it is unpacked, and no more is unpacked than that. An array that is larger than
memory is read a row at a time (`Npz.rows`).
"""

from __future__ import annotations

import io
import math
import os
import tokenize
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, cast

import numpy as np

from triptych.core.address import Address, Place
from triptych.core.errors import one_line
from triptych.core.reading import open_regular
from triptych.core.remote import RemoteFile

_BLOCK = 2**20  # bytes
_ENCRYPTED = 1
_LOCAL_HEADER = 30  # bytes of a zip member's own header before its name
_MOST_EXTRA = 2**10  # bytes beside a member that are fetched with it
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
    columns_first: bool = False
    "Fortran's order: the first index runs fastest."

    @property
    def bytes(self) -> int:
        """Of its values."""
        return math.prod(self.shape) * self.dtype.itemsize


class Npz:
    """The arrays of an open .npz."""

    def __init__(self, archive: zipfile.ZipFile, path: Place, remote: RemoteFile | None = None) -> None:
        """`remote`: the file, where it lies elsewhere."""
        self._archive, self._path, self._remote = archive, path, remote
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
        member = self._members[name]
        if self._remote is not None:
            self._remote.prefetch([(member.header_offset, _LOCAL_HEADER + len(member.filename) + _MOST_EXTRA + member.compress_size)])
        with self._archive.open(member.filename) as content:
            return np.lib.format.read_array(content, allow_pickle=False)

    def is_stored(self, name: str) -> bool:
        """Whether an array is not compressed."""
        return _is_stored(self._members[name])

    def unpack(self, name: str, path: Path) -> None:
        """Writes an array as an .npy, no more of it than its header says. Raises ValueError where it has less or more, or is damaged."""
        header = self.header(name)
        with self._archive.open(self._members[name].filename) as content, path.open("wb") as file:
            _header(content, name)
            described = {"descr": np.lib.format.dtype_to_descr(header.dtype), "shape": header.shape, "fortran_order": header.columns_first}
            np.lib.format.write_array_header_1_0(file, described)
            left = header.bytes
            while left and (block := content.read(min(left, _BLOCK))):
                file.write(block)
                left -= len(block)
            if left or content.read(1):
                raise ValueError(f"{name} of shape {list(header.shape)} is cut short, or followed by something else")

    def mapped(self, name: str) -> np.ndarray | RemoteRows:
        """An array that is not compressed, mapped; all of it is read once, against its checksum. Raises ValueError for another one.

        Of a file that lies elsewhere its rows are read when they are asked for, and not held against that checksum.
        """
        header, member = self.header(name), self._members[name]
        if not _is_stored(member):
            raise ValueError(f"{name} is compressed{' and in Fortran order' * header.columns_first}, and cannot be mapped")
        if not header.bytes:
            return np.empty(header.shape, header.dtype)
        if self._remote is not None:
            if header.columns_first:
                raise ValueError(f"{name} is in Fortran order, and cannot be read in parts")
            return RemoteRows(self._remote, header, self._values(name))
        order = "F" if header.columns_first else "C"
        file, start = self._file, self._start(name)
        return np.memmap(file, header.dtype, "r", start, header.shape, order)  # pyright: ignore[reportCallIssue, reportArgumentType]

    def rows(self, name: str) -> np.ndarray | Rows:
        """An array that stays on the disk, and whose rows are read when they are asked for; in Fortran's order it is mapped."""
        header, member = self.header(name), self._members[name]
        if header.columns_first:
            return local(self.mapped(name))
        start = self._start(name) if _is_stored(member) else None
        assert isinstance(self._path, Path)
        return Rows(self._path, member.filename, header, start, _version_of(self._file))

    @property
    def _file(self) -> IO[bytes]:
        return cast(IO[bytes], self._archive.fp)

    def _start(self, name: str) -> int:
        """Where in the file the values of a stored array begin. All of it is read once, against its checksum."""
        with self._archive.open(self._members[name].filename) as content:
            while content.read(_BLOCK):
                pass
        return self._values(name)

    def _values(self, name: str) -> int:
        """Where in the file they begin, as its headers say."""
        member, file = self._members[name], self._file
        file.seek(member.header_offset)
        local = file.read(_LOCAL_HEADER)
        file.seek(int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little"), io.SEEK_CUR)
        _header(file, name)
        return file.tell()


def _is_stored(member: zipfile.ZipInfo) -> bool:
    return member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & _ENCRYPTED


class RemoteRows:
    """The rows of an array in a file that lies elsewhere, read when they are asked for, by number or numbers as of an array."""

    def __init__(self, file: RemoteFile, header: Header, start: int) -> None:
        """`start`: where the values begin in the file. Raises ValueError where the file ends before them."""
        if start + header.bytes > file.size:
            raise ValueError(f"an array of shape {list(header.shape)} is cut short")
        self.file, self.shape, self.dtype, self._header, self._start = file, header.shape, header.dtype, header, start
        self._row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize

    def reshaped(self, *shape: int) -> RemoteRows:
        """The same values as rows of another shape."""
        return RemoteRows(self.file, replace(self._header, shape=shape), self._start)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return len(self.shape)

    def __getitem__(self, items: int | np.integer | np.ndarray) -> np.ndarray:
        """A row, or the rows of some numbers (b,); writable. Raises RemoteError."""
        numbers = np.atleast_1d(np.asarray(items, dtype=np.int64))
        places = (self._start + numbers * self._row_bytes).tolist()
        if len(places) > 1:
            self.file.prefetch([(place, self._row_bytes) for place in places])
        data = b"".join(self.file.pread(self._row_bytes, place) for place in places)
        rows = np.frombuffer(bytearray(data), self.dtype).reshape(len(places), *self.shape[1:])
        return rows if np.ndim(items) else rows[0]


OnDisk = np.ndarray | RemoteRows
"""An array in memory, mapped, or in a file elsewhere."""


def local(array: OnDisk) -> np.ndarray:
    """An array of a file of this machine."""
    assert isinstance(array, np.ndarray)
    return array


def stays_on_disk(array: OnDisk) -> bool:
    """Whether no more of an array is in memory than is asked for."""
    return not isinstance(array, np.ndarray) or isinstance(array, np.memmap)


def _version_of(file: IO[bytes]) -> tuple[int, ...]:
    """What changes when a file is replaced or written anew."""
    found = os.fstat(file.fileno())
    return found.st_ino, found.st_size, found.st_mtime_ns


class Rows:
    """The rows of an array of an .npz, read when they are asked for; of a compressed one in order: there to go back is to begin again.

    Damage is a DamagedArchive. Rows are read by one thread of one process.
    """

    def __init__(self, path: Path, member: str, header: Header, start: int | None, version: tuple[int, ...]) -> None:
        """`start`: where the values begin in the file; None: they are compressed. `version`: as of `_version_of`."""
        self._version = version
        self.shape, self.dtype = header.shape, header.dtype
        self._path, self._member, self._name, self._start = path, member, member.removesuffix(".npy"), start
        self._row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        self._opened = ExitStack()
        weakref.finalize(self, self._opened.close)
        self._content: IO[bytes] | None = None
        self._next = 0

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, k: int) -> np.ndarray:
        with _damage():
            if self._content is None or (self._start is None and k < self._next):
                self._content, self._next = self._begun(), 0
            if self._start is not None:
                self._content.seek(self._start + k * self._row_bytes)
            while self._start is None and self._next < k:
                self._read(self._content)
            return np.frombuffer(self._read(self._content), self.dtype).reshape(self.shape[1:])

    def _begun(self) -> IO[bytes]:
        self._opened.close()
        file = self._opened.enter_context(os.fdopen(open_regular(self._path), "rb"))
        if _version_of(file) != self._version:
            raise ValueError("it was written anew meanwhile")
        if self._start is not None:
            return file
        content = self._opened.enter_context(self._opened.enter_context(zipfile.ZipFile(file)).open(self._member))
        _header(content, self._name)
        return content

    def _read(self, content: IO[bytes]) -> bytes:
        self._next += 1
        data = content.read(self._row_bytes)
        if len(data) < self._row_bytes:
            raise ValueError(f"{self._name} of shape {list(self.shape)} is cut short")
        return data


@contextmanager
def _damage() -> Iterator[None]:
    """Within it damage is a DamagedArchive."""
    try:
        yield
    except _DAMAGE as error:
        of_header = isinstance(error, tokenize.TokenError | SyntaxError)
        raise DamagedArchive("the header of an array is damaged" if of_header else one_line(error)) from error


@contextmanager
def _opened(path: Place) -> Iterator[tuple[IO[bytes], RemoteFile | None]]:
    """The file, and what it is where it lies elsewhere. Within it damage is a DamagedArchive."""
    if isinstance(path, Address):
        remote = RemoteFile(path)
        with _damage(), remote.alone(), remote.reader() as file:
            yield file, remote
        return
    with _damage(), open(open_regular(path), "rb") as file:
        yield file, None


@contextmanager
def open_npz(path: Place) -> Iterator[Npz]:
    """The arrays of an .npz; nothing in it is unpickled. Within it damage is a DamagedArchive, else OSError, RemoteError or MemoryError."""
    with _opened(path) as (file, remote), zipfile.ZipFile(file) as archive:
        yield Npz(archive, path, remote)


def read_npz(path: Path, *, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, np.ndarray]:
    """The wanted arrays of an .npz, by name. Raises DamagedArchive, OSError where it cannot be read, and MemoryError."""
    with open_npz(path) as file:
        names = [name for name in file.names if wanted(name)]
        for name in names:
            file.header(name)  # all of them before one is read
        return {name: file.array(name) for name in names}


@dataclass(frozen=True)
class Blocks:
    """An array that is never whole in memory: its blocks, one after the other, have its rows."""

    shape: tuple[int, ...]
    dtype: np.dtype
    blocks: Iterable[np.ndarray]


def write_npz(file: IO[bytes], arrays: Mapping[str, np.ndarray | Blocks]) -> None:
    """Writes an .npz of the arrays by name, none of them compressed. Raises ValueError for blocks that do not make up their shape."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                if isinstance(array, Blocks):
                    _write_blocks(member, array)
                else:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)


def _write_blocks(member: IO[bytes], array: Blocks) -> None:
    described = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(member, described)
    written = 0
    for block in array.blocks:
        if block.shape[1:] != array.shape[1:] or block.dtype != array.dtype:
            raise ValueError(f"a block is {block.dtype} of shape {block.shape}, the array {array.dtype} of shape {array.shape}")
        member.write(np.ascontiguousarray(block).data)
        written += len(block)
    if written != array.shape[0]:
        raise ValueError(f"{written} rows of {array.shape[0]}")


def map_npy(path: Place) -> OnDisk:
    """The array of an .npy, mapped into memory as it is read. Raises DamagedArchive, and OSError or RemoteError where it cannot be read."""
    with _opened(path) as (file, remote):
        header = _header(file, path.name)
        if remote is not None and header.columns_first:
            raise ValueError("it is in Fortran order, and cannot be read in parts")
        if remote is not None:
            return RemoteRows(remote, header, file.tell())
        return np.lib.format.open_memmap(str(path), mode="r")


def _header(content: IO[bytes], name: str) -> Header:
    """The header of an array, from its start; `name` is for messages."""
    version = np.lib.format.read_magic(content)
    width, read = (2, np.lib.format.read_array_header_1_0) if version == (1, 0) else (4, np.lib.format.read_array_header_2_0)
    length = content.read(width)
    if int.from_bytes(length, "little") > _MOST_HEADER:
        raise ValueError(f"the header of {name} has more than {_MOST_HEADER:,} bytes")
    shape, columns_first, dtype = read(io.BytesIO(length + content.read(int.from_bytes(length, "little"))))
    if any(side < 0 for side in shape):
        raise ValueError(f"{name} cannot have the shape {list(shape)}")
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects")
    return Header(shape, dtype, columns_first)
