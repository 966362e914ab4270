"""Images in a tar or zip, read in place.

An archive is indexed once, when it is opened; its members are then read by their offset through one file descriptor, which
loader processes inherit. A compressed tar has no offsets to read from, so its images are unpacked once into an unnamed
temporary file (which the system removes by itself), never into memory.

What is read may be hostile: nothing is unpacked beyond the size that its own header states.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from triptych.core.errors import DataError, one_line
from triptych.core.reading import open_regular
from triptych.data.files import MOST_BYTES, PACK_FILE, Files, chosen, ending, is_table

_COPY_BYTES = 2**20
_LABELS = (".cls", ".json")
"""Endings of files with the class of the image beside them; where there are both, the first counts."""
_LABEL_BYTES = 2**16
_LOCAL_HEADER = 30  # bytes of a zip member's own header before its name
_ENCRYPTED = 1
_COMPRESSED: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
"""What opens a compressed file, by its first bytes."""
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, OverflowError, RecursionError)
"""What damaged archives raise."""


@dataclass(frozen=True, slots=True)
class Member:
    """Where a file of an archive lies."""

    name: str
    offset: int
    length: int
    "Bytes that it takes in the archive."
    size: int
    "Bytes that it has, unpacked."
    deflated: bool = False


class Archive(Files):
    """The image files of an archive."""

    def __init__(
        self,
        place: Path,
        file: IO[bytes],
        members: list[Member],
        passed_over: Counter[str] | None = None,
        *,
        beside: Mapping[str, Member] | None = None,
    ) -> None:
        """`beside`: the files with classes of images, by the paths of these up to the first dot of the name.

        Raises DataError for a member that is larger than an image, or lies outside of `file`.
        """
        members = sorted(members, key=lambda member: member.name.split("/"))
        self._tables = {member.name: member for member in members if is_table(member.name) or member.name == PACK_FILE}
        images = [member for member in members if member.name not in self._tables]
        super().__init__(place, [member.name for member in images], passed_over=passed_over, tables=filter(is_table, self._tables))
        self._file = file
        labels = dict(beside or {})
        self._labels = _Labels([labels.get(_stem(member.name)) for member in images])
        for stem in labels.keys() - {_stem(member.name) for member in images}:
            self.passed_over[ending(labels[stem].name)] += 1
        end = os.fstat(file.fileno()).st_size
        for member in (*members, *(beside or {}).values()):
            if max(member.length, member.size) > MOST_BYTES:
                raise DataError(f"{place}/{member.name}: larger than {MOST_BYTES:,} bytes; leave it out of the archive")
            if member.offset + member.length > end:
                raise DataError(f"{place}: the archive is cut short; copy or make it again")
        # An array, for it is read by every loader process: a list would be copied page by page.
        self._places = np.array([(member.offset, member.length, member.size, member.deflated) for member in images], dtype=np.int64)

    def read(self, k: int) -> bytes:
        return self._unpacked(self.describe(k), *self._places[k].tolist())

    def table(self, name: str) -> bytes:
        member = self._tables[name]
        if member.size > self.most_of_a_table:
            raise DataError(f"{self.place}/{name}: larger than {self.most_of_a_table:,} bytes; leave it out of the archive")
        return self._unpacked(f"{self.place}/{name}", member.offset, member.length, member.size, member.deflated)

    @property
    def labelled(self) -> bool:
        return self._labels.any

    def label(self, k: int) -> tuple[str, bytes] | None:
        found = self._labels.of(k)
        if found is None:
            return None
        suffix, offset, size = found
        name = f"{self.place / _stem(self.names[k])}{suffix}"
        return name, self._unpacked(name, offset, size, size, False)

    def release(self) -> None:
        """Closes the archive, which is opened again when it is read. Not of a compressed tar, whose images lie in no other file."""
        if self._file.closed:
            return
        status = os.fstat(self._file.fileno())
        if os.path.samestat(status, os.stat(self.place)):
            self._status = status
            self._file.close()

    def _descriptor(self) -> int:
        if self._file.closed:
            file = open(open_regular(self.place), "rb")  # noqa: SIM115 (likewise)
            now, then = os.fstat(file.fileno()), self._status
            if (now.st_size, now.st_mtime_ns, now.st_ino) != (then.st_size, then.st_mtime_ns, then.st_ino):
                file.close()
                raise DataError(f"{self.place}: changed while it was in use; start again")
            self._file = file
        return self._file.fileno()

    def packed(self) -> bytes | None:
        return self.table(PACK_FILE) if PACK_FILE in self._tables else None

    def _unpacked(self, name: str, offset: int, length: int, size: int, deflated: bool) -> bytes:
        data = os.pread(self._descriptor(), length, offset)
        if deflated:
            try:
                # One byte more than there should be shows that there is more, without unpacking it.
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
            except zlib.error:
                data = b""
        if len(data) != size:
            raise DataError(f"{name}: damaged in the archive; make the archive again")
        return data


class _Labels:
    """Where the files with the classes of images lie, in an array, which loader processes need not copy."""

    def __init__(self, members: Sequence[Member | None]) -> None:
        self.any = any(member is not None for member in members)
        places = [(0, 0, -1) if each is None else (each.offset, each.size, _LABELS.index(ending(each.name))) for each in members]
        self._places = np.array(places if self.any else [], dtype=np.int64).reshape(-1, 3)

    def of(self, k: int) -> tuple[str, int, int] | None:
        """Ending, offset and bytes; None where an image has none."""
        if not self.any or self._places[k, 2] < 0:
            return None
        offset, size, kind = self._places[k].tolist()
        return _LABELS[kind], offset, size


def _stem(name: str) -> str:
    """A path up to the first dot of its name: what belongs together has one."""
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{last.partition('.')[0]}"


class _TarStream(io.RawIOBase):
    """A tar, unpacked as it is read. Raises ReadError where its headers between two members take more than `left` bytes."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self.left = _COPY_BYTES
        self.last = b""

    def read(self, size: int = -1) -> bytes:
        self.left -= size
        if size < 0 or self.left < 0:
            raise tarfile.ReadError(f"headers of more than {_COPY_BYTES:,} bytes")
        self.last = self._source.read(size)
        return self.last

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._source.seek(offset, whence)

    def tell(self) -> int:
        return self._source.tell()


def open_tar(path: Path) -> Archive:
    """The images of a tar, compressed or not. Raises DataError when it is damaged."""
    passed_over, beside = Counter[str](), dict[str, Member]()
    try:
        file = open(open_regular(path), "rb")  # noqa: SIM115 (the archive keeps it open)
        first = file.read(6)
        file.seek(0)
        unpack = next((unpack for magic, unpack in _COMPRESSED.items() if first.startswith(magic)), None)
        if unpack is None:
            return Archive(path, file, list(_tar_members(path, file, None, passed_over, beside)), passed_over, beside=beside)
        spool = tempfile.TemporaryFile(prefix="triptych-")  # noqa: SIM115 (likewise)
        with file, unpack(file) as source:
            members = list(_tar_members(path, source, spool, passed_over, beside))
        spool.flush()
        return Archive(path, spool, members, passed_over, beside=beside)
    except _DAMAGE as error:
        raise DataError(f"{path}: cannot be read as a tar archive ({one_line(error)})") from error


def _tar_members(
    path: Path, source: IO[bytes], spool: IO[bytes] | None, passed_over: Counter[str], beside: dict[str, Member]
) -> Iterator[Member]:
    """The images of a tar, where they lie in it, or in `spool`, into which they are copied; what may say their classes: in `beside`."""
    stream = _TarStream(source)
    with tarfile.open(fileobj=stream, mode="r:") as tar:  # type: ignore[arg-type]
        for member in tar:
            label = _is_label(member)
            if member.isreg() and (label or chosen(member.name, passed_over)):
                if member.issparse():
                    raise DataError(f"{path}/{member.name}: stored as a sparse file; make the archive again without --sparse")
                found = Member(member.name, member.offset_data if spool is None else spool.tell(), member.size, member.size)
                if not label:
                    yield found
                elif ending(member.name) == _LABELS[0] or _stem(member.name) not in beside:  # a .cls says no more than the class
                    beside[_stem(member.name)] = found
                if spool is not None:
                    _copy(path, source, member, spool)
            tar.members = []  # it would keep them all  # pyright: ignore[reportAttributeAccessIssue]
            stream.left = _COPY_BYTES
    if stream.last.strip(b"\0"):  # tarfile takes any header that it cannot read for the end
        raise tarfile.ReadError("a damaged header within it")


def _is_label(member: tarfile.TarInfo) -> bool:
    """Whether a file may have the class of the image beside it."""
    name = member.name
    return ending(name) in _LABELS and not is_table(name) and not name.rpartition("/")[2].startswith(".") and member.size <= _LABEL_BYTES


def _copy(path: Path, source: IO[bytes], member: tarfile.TarInfo, spool: IO[bytes]) -> None:
    if member.size > MOST_BYTES:
        raise DataError(f"{path}/{member.name}: larger than {MOST_BYTES:,} bytes; leave it out of the archive")
    source.seek(member.offset_data)
    left = member.size
    while left:
        block = source.read(min(left, _COPY_BYTES))
        if not block:
            raise DataError(f"{path}: the archive is cut short; copy or make it again")
        spool.write(block)
        left -= len(block)


def open_zip(path: Path) -> Archive:
    """The images of a zip, stored or deflated. Raises DataError when it is damaged."""
    try:
        file = open(open_regular(path), "rb")  # noqa: SIM115 (the archive keeps it open)
        entries = [entry for entry in zipfile.ZipFile(file).infolist() if not entry.is_dir()]
        passed_over = Counter[str]()
        images = [entry for entry in entries if entry.filename == PACK_FILE or chosen(entry.filename, passed_over)]
        return Archive(path, file, [_zip_member(path, file, entry) for entry in images], passed_over)
    # NotImplementedError is what a zip of a later version raises.
    except (*_DAMAGE, NotImplementedError) as error:
        raise DataError(f"{path}: cannot be read as a zip archive ({one_line(error)})") from error


def _zip_member(path: Path, file: IO[bytes], entry: zipfile.ZipInfo) -> Member:
    if entry.flag_bits & _ENCRYPTED:
        raise DataError(f"{path}/{entry.filename}: encrypted; make the archive without a password")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{path}/{entry.filename}: compressed by a method other than deflate; make the archive again with deflate")
    header = os.pread(file.fileno(), _LOCAL_HEADER, entry.header_offset)
    if len(header) < _LOCAL_HEADER or header[:4] != b"PK\x03\x04":
        raise DataError(f"{path}: the archive is damaged at {entry.filename}; copy or make it again")
    skipped = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    deflated = entry.compress_type == zipfile.ZIP_DEFLATED
    return Member(entry.filename, entry.header_offset + _LOCAL_HEADER + skipped, entry.compress_size, entry.file_size, deflated)
