"""Images in a tar or zip, read in place.

An archive is indexed once, when it is opened; its members are then read by their offset through one file descriptor, which
loader processes inherit. A compressed tar has no offsets to read from, so its images are unpacked once into an unnamed
temporary file (which the system removes by itself), never into memory.

What is read may be hostile: nothing is unpacked beyond the size that its own header states.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from triptych.core.address import Address, Place
from triptych.core.errors import DataError, one_line
from triptych.core.files import explain
from triptych.core.reading import open_regular
from triptych.core.remote import RemoteFile
from triptych.core.wording import counted
from triptych.data.files import MOST_BYTES, PACK_FILE, Files, chosen, ending, is_table
from triptych.data.tar_index import FORMAT, LocalIndex, Member, TarIndex

_COPY_BYTES = 2**20
_LEFT_FREE = 2**28  # bytes of a disk
_PACK_BYTES = 2**33, 2**20, 2**13
"""Most bytes of what a pack says of itself and of its labels; and how many there may be at first, and more for each image."""
_LABELS = (".cls", ".json")
"""Endings of files with the class of the image beside them; where there are both, the first counts."""
_LABEL_BYTES = 2**16
_LOCAL_HEADER = 30  # bytes of a zip member's own header before its name
_LOCAL_MAGIC = b"PK\x03\x04"
_MOST_LOCAL_HEADER = 2**10  # bytes that are read for one before its length is known; most have fewer
_WINDOW = 2**14, 2**23  # bytes of a tar elsewhere that are read for a header, and at most where headers are near one another
_ENCRYPTED = 1
_COMPRESSED: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
"""What opens a compressed file, by its first bytes."""
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, OverflowError, RecursionError)
"""What damaged archives raise."""


class LocalFile:
    """A file of this machine, read at any place; loader processes inherit it open."""

    def __init__(self, file: IO[bytes], place: Path) -> None:
        """`place`: what messages call it; the file itself may be another one, which has no name."""
        self._file, self._place = file, place
        self.size = os.fstat(file.fileno()).st_size

    def pread(self, length: int, offset: int) -> bytes:
        """`length` bytes from `offset` on, fewer at the end of the file. Raises DataError where it changed since it was released."""
        found = os.pread(self._descriptor(), length, offset)
        while 0 < len(found) < length:  # Linux gives no more than 2 GiB at once
            more = os.pread(self._descriptor(), length - len(found), offset + len(found))
            if not more:
                break
            found += more
        return found

    def release(self) -> None:
        """Closes it until it is read again, unless it is another one than that at `place`, or none is there any more."""
        if self._file.closed:
            return
        status = os.fstat(self._file.fileno())
        with suppress(OSError):
            if os.path.samestat(status, os.stat(self._place)):
                self._status = status
                self._file.close()

    def _descriptor(self) -> int:
        if self._file.closed:
            try:
                file = open(open_regular(self._place), "rb")  # noqa: SIM115 (it is kept open)
            except OSError as error:
                raise self._lost(f"cannot be opened any more ({explain(error)})")  # noqa: B904 (it has a cause of its own)
            now, then = os.fstat(file.fileno()), self._status
            if (now.st_size, now.st_mtime_ns, now.st_ino) != (then.st_size, then.st_mtime_ns, then.st_ino):
                file.close()
                raise self._lost("changed while it was in use")
            self._file = file
        return self._file.fileno()

    def _lost(self, reason: str) -> DataError:
        error = DataError(f"{self._place}: {reason}; start again")
        error.__cause__ = OSError(errno.ESTALE, reason)  # of the machine, not of an image: a training does not do without it (stored.py)
        return error


class Archive(Files):
    """The image files of an archive."""

    def __init__(
        self,
        place: Place,
        file: LocalFile | RemoteFile,
        members: list[Member],
        passed_over: Counter[str] | None = None,
        *,
        beside: Mapping[str, Member] | None = None,
    ) -> None:
        """`beside`: the files with classes of images, by the paths of these up to the first dot of the name.

        Raises DataError for a member that is larger than an image, or lies outside of `file`.
        """
        every, members = len(members), list({member.name: member for member in members}.values())  # the last of a name, as if unpacked
        members.sort(key=lambda member: member.name.split("/"))
        self._tables = {member.name: member for member in members if is_table(member.name) or member.name == PACK_FILE}
        images = [member for member in members if member.name not in self._tables]
        super().__init__(place, [member.name for member in images], passed_over=passed_over, tables=filter(is_table, self._tables))
        earlier = every - len(members)
        if earlier:
            has = "has" if earlier == 1 else "have"
            self.remarks.append(f"{place}: {earlier:,} of its files {has} the name of a later one, which counts alone")
        self._file = file
        self.objects = {str(place): str(file.identity)} if isinstance(file, RemoteFile) else {}
        labels = dict(beside or {})
        stems = [_stem(member.name) for member in images] if labels else []
        self._labels = _Labels([labels.get(stem) for stem in stems])
        for stem in labels.keys() - set(stems):
            self.passed_over[ending(labels[stem].name)] += 1
        end = file.size
        for member in (*members, *(beside or {}).values()):
            most = self.most_of_a_table if PACK_FILE in self._tables and member.name in self._tables else MOST_BYTES
            if max(member.length, member.size) > most:
                raise DataError(f"{place}/{member.name}: larger than {most:,} bytes; leave it out of the archive")
            if member.offset + member.length > end:
                raise DataError(f"{place}: the archive is cut short; copy or make it again")
        # An array, for it is read by every loader process: a list would be copied page by page.
        places = [(member.offset, member.length, member.size, member.deflated, member.headed) for member in images]
        self._places = np.array(places, dtype=np.int64).reshape(-1, 5)

    def describe(self, k: int) -> str:
        return str(self.place / self.names[k].lstrip("/"))  # a path that begins with a slash would take the place of the archive's

    def read(self, k: int) -> bytes:
        return self._unpacked(self.describe(k), *self._places[k].tolist())

    def expect(self, numbers: Sequence[int]) -> None:
        if isinstance(self._file, RemoteFile):
            some = self._places[np.asarray(numbers, dtype=np.int64)]
            lengths = some[:, 1] + some[:, 4] * _MOST_LOCAL_HEADER
            self._file.prefetch(zip(some[:, 0].tolist(), lengths.tolist(), strict=True))

    def table(self, name: str) -> bytes:
        member = self._tables[name]
        if member.size > self.most_of_a_table:
            raise DataError(f"{self.place}/{name}: larger than {self.most_of_a_table:,} bytes; leave it out of the archive")
        return self._unpacked(f"{self.place}/{name}", member.offset, member.length, member.size, member.deflated, member.headed)

    @property
    def most_of_a_table(self) -> int:
        return most_of_a_pack(len(self.names)) if PACK_FILE in self._tables else super().most_of_a_table

    @property
    def labelled(self) -> bool:
        return self._labels.any

    def label(self, k: int) -> tuple[str, bytes] | None:
        found = self._labels.of(k)
        if found is None:
            return None
        suffix, offset, size = found
        name = f"{_stem(self.describe(k))}{suffix}"
        return name, self._unpacked(name, offset, size, size, False)

    def release(self) -> None:
        """Closes the archive, which is opened again when it is read. Not of a compressed tar, whose images lie in no other file."""
        if isinstance(self._file, LocalFile):
            self._file.release()

    def packed(self) -> bytes | None:
        return self.table(PACK_FILE) if PACK_FILE in self._tables else None

    def _unpacked(self, name: str, offset: int, length: int, size: int, deflated: bool, headed: bool = False) -> bytes:
        data = self._behind_header(name, offset, length) if headed else self._file.pread(length, offset)
        if deflated:
            try:
                # One byte more than there should be shows that there is more, without unpacking it.
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
            except zlib.error:
                data = b""
        if len(data) != size:
            raise DataError(f"{name}: damaged in the archive; make the archive again")
        return data

    def _behind_header(self, name: str, offset: int, length: int) -> bytes:
        """The bytes of a member of a zip, behind its own header."""
        found = self._file.pread(_MOST_LOCAL_HEADER + length, offset)
        if found[:4] != _LOCAL_MAGIC or len(found) < _LOCAL_HEADER:
            raise DataError(f"{name}: damaged in the archive; make the archive again")
        start = _behind(found)
        return found[start : start + length] if start + length <= len(found) else self._file.pread(length, offset + start)


def most_of_a_pack(count: int) -> int:
    """Bytes that the tables of a zip of so many images may have, where it is a pack: its names alone may be more than an image has."""
    most, least, each = _PACK_BYTES
    return min(most, least + each * count)


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


class _Windows(io.RawIOBase):
    """A tar elsewhere for who hops from header to header: as much is read as headers take, and more at once where they lie close."""

    def __init__(self, file: RemoteFile) -> None:
        self._file, self._at, self._start, self._data = file, 0, 0, b""
        self._width = _WINDOW[0]

    def read(self, size: int = -1) -> bytes:
        start = self._at - self._start
        if not 0 <= start <= start + size <= len(self._data):
            gap = self._at - self._start - len(self._data)
            self._width = min(2 * self._width, _WINDOW[1]) if 0 <= gap < self._width else _WINDOW[0]
            self._start, self._data = self._at, self._file.fetch(max(size, self._width), self._at)
            start = 0
        found = self._data[start : start + size]
        self._at += len(found)
        return found

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset
        return offset

    def tell(self) -> int:
        return self._at


def _open_remote_tar(path: Address) -> Archive:
    """The images of a tar elsewhere. Its headers are read once on each machine: where the images lie is kept beside its blocks."""
    file = RemoteFile(path)
    with file.alone():
        kept = file.note(FORMAT)
        if kept is not None:
            return _archive(path, file, TarIndex.read(kept))
        if any(file.fetch(6, 0).startswith(magic) for magic in _COMPRESSED):
            raise DataError(f"{path}: a compressed tar cannot be read in parts; store it without compression, or copy it here")
        index = _indexed(path, cast(IO[bytes], _Windows(file)), None)
        file.check()
        file.keep_note(FORMAT, index.written())
        return _archive(path, file, index)


def open_tar(path: Place) -> Archive:
    """The images of a tar, compressed or not. Raises DataError when it is damaged."""
    try:
        return _open_remote_tar(path) if isinstance(path, Address) else _open_local_tar(path)
    except _DAMAGE as error:
        raise _refused(path, "tar", error) from error


def _open_local_tar(path: Path) -> Archive:
    file = open(open_regular(path), "rb")  # noqa: SIM115 (the archive keeps it open)
    first = file.read(6)
    file.seek(0)
    unpack = next((unpack for magic, unpack in _COMPRESSED.items() if first.startswith(magic)), None)
    if unpack is None:
        known = LocalIndex(file.fileno(), path)
        index = known.found()
        if index is None:
            index = _indexed(path, file, None)
            known.keep(index)
        return _archive(path, LocalFile(file, path), index)
    spool = tempfile.TemporaryFile(prefix="triptych-")  # noqa: SIM115 (likewise)
    try:
        with file, unpack(file) as source:
            index = _indexed(path, source, spool)
        spool.flush()
    except BaseException:
        spool.close()
        raise
    return _archive(path, LocalFile(spool, path), index)


def _archive(path: Place, file: LocalFile | RemoteFile, index: TarIndex) -> Archive:
    return Archive(path, file, index.members, index.passed_over, beside=index.beside)


def _indexed(path: Place, source: IO[bytes], spool: IO[bytes] | None) -> TarIndex:
    """What the headers of a tar say; see `_tar_members`."""
    passed_over, beside = Counter[str](), dict[str, Member]()
    return TarIndex(list(_tar_members(path, source, spool, passed_over, beside)), passed_over, beside)


def _tar_members(
    path: Place, source: IO[bytes], spool: IO[bytes] | None, passed_over: Counter[str], beside: dict[str, Member]
) -> Iterator[Member]:
    """The images of a tar, where they lie in it, or in `spool`, into which they are copied; what may say their classes: in `beside`."""
    stream, before, count = _TarStream(source), dict[str, Member](), 0
    with tarfile.open(fileobj=stream, mode="r:") as tar:  # type: ignore[arg-type]
        for member in tar:
            label = _is_label(member)
            if member.isreg() and (label or chosen(member.name, passed_over)):
                if member.issparse():
                    raise DataError(f"{path}/{member.name}: stored as a sparse file; make the archive again without --sparse")
                found = Member(member.name, member.offset_data if spool is None else spool.tell(), member.size, member.size)
                if not label:
                    count += not is_table(member.name)
                    before[member.name] = found
                    yield found
                elif ending(member.name) == _LABELS[0] or _stem(member.name) not in beside:  # a .cls says no more than the class
                    beside[_stem(member.name)] = found
                if spool is not None:
                    _copy(path, source, member, spool)
            elif (member.islnk() or member.issym()) and chosen(member.name, passed_over):
                if member.islnk() and member.linkname in before:  # a file that was written before under another name
                    count += not is_table(member.name)
                    yield replace(before[member.linkname], name=member.name)
                else:
                    passed_over[f"links ({ending(member.name) or 'without an ending'})"] += 1
            tar.members = []  # it would keep them all  # pyright: ignore[reportAttributeAccessIssue]
            stream.left = _COPY_BYTES
    if not stream.last:  # some programs write no such blocks, but a tar that was cut between two files looks the same
        lacks = f"it ends behind {counted(count, 'image')} without the zeros that end a tar"
        raise DataError(f"{path}: the archive is cut short: {lacks}; copy or make it again")
    if stream.last.strip(b"\0"):  # tarfile takes any header that it cannot read for the end
        raise tarfile.ReadError("a damaged header within it")


def _is_label(member: tarfile.TarInfo) -> bool:
    """Whether a file may have the class of the image beside it."""
    name = member.name
    return ending(name) in _LABELS and not is_table(name) and not name.rpartition("/")[2].startswith(".") and member.size <= _LABEL_BYTES


def _copy(path: Place, source: IO[bytes], member: tarfile.TarInfo, spool: IO[bytes]) -> None:
    if member.size > MOST_BYTES:
        raise DataError(f"{path}/{member.name}: larger than {MOST_BYTES:,} bytes; leave it out of the archive")
    folder = tempfile.gettempdir()
    if shutil.disk_usage(folder).free < member.size + _LEFT_FREE:
        remedy = "name a folder with more room in TMPDIR, or store the tar without compression, which is read where it lies"
        raise DataError(f"{path}: unpacked it takes more than {folder} has room for; {remedy}")
    source.seek(member.offset_data)
    left = member.size
    while left:
        block = source.read(min(left, _COPY_BYTES))
        if not block:
            raise DataError(f"{path}: the archive is cut short; copy or make it again")
        spool.write(block)
        left -= len(block)


def open_zip(path: Place) -> Archive:
    """The images of a zip, stored or deflated. Raises DataError when it is damaged."""
    try:
        if isinstance(path, Address):
            file = RemoteFile(path)
            with file.alone(), file.reader() as content:
                entries = zipfile.ZipFile(content).infolist()
        else:
            content = open(open_regular(path), "rb")  # noqa: SIM115 (the archive keeps it open)
            file, entries = LocalFile(content, path), zipfile.ZipFile(content).infolist()
        if not any("/" in entry.filename for entry in entries):  # some programs of Windows write their own separator
            for entry in entries:
                entry.filename = entry.filename.replace("\\", "/")
        passed_over = Counter[str]()
        images = [entry for entry in entries if not entry.is_dir()]
        images = [entry for entry in images if entry.filename == PACK_FILE or chosen(entry.filename, passed_over)]
        return Archive(path, file, [_zip_member(path, file, entry) for entry in images], passed_over)
    # NotImplementedError is what a zip of a later version raises.
    except (*_DAMAGE, NotImplementedError) as error:
        raise _refused(path, "zip", error) from error


def _refused(path: Place, kind: str, error: Exception) -> DataError:
    """What is said of an archive that the system does not give, or that is damaged."""
    if isinstance(error, OSError) and error.strerror:
        return DataError(f"{path}: cannot be read ({explain(error)})")
    return DataError(f"{path}: cannot be read as a {kind} archive ({one_line(error)}); copy or make it again")


def _zip_member(path: Place, file: LocalFile | RemoteFile, entry: zipfile.ZipInfo) -> Member:
    if entry.flag_bits & _ENCRYPTED:
        raise DataError(f"{path}/{entry.filename}: encrypted; make the archive without a password")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{path}/{entry.filename}: compressed by a method other than deflate; make the archive again with deflate")
    deflated = entry.compress_type == zipfile.ZIP_DEFLATED
    if isinstance(file, RemoteFile):
        return Member(entry.filename, entry.header_offset, entry.compress_size, entry.file_size, deflated, headed=True)
    header = file.pread(_LOCAL_HEADER, entry.header_offset)
    if len(header) < _LOCAL_HEADER or header[:4] != _LOCAL_MAGIC:
        raise DataError(f"{path}: the archive is damaged at {entry.filename}; copy or make it again")
    return Member(entry.filename, entry.header_offset + _behind(header), entry.compress_size, entry.file_size, deflated)


def _behind(header: bytes) -> int:
    """Bytes of a zip member's own header: what is fixed, the name, and what else it says."""
    return _LOCAL_HEADER + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
