"""Where the bytes of image files come from: a folder, or a tar or zip archive read in place.

An archive is indexed once, when it is opened; its members are then read by their offset through one file descriptor, which
loader processes inherit. A compressed tar has no offsets to read from, so its images are unpacked once into an unnamed
temporary file (which the system removes by itself), never into memory.

What is read may be hostile: only regular files are opened, and nothing is unpacked beyond the size that its own header states.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import tarfile
import tempfile
import time
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from triptych.core.errors import DataError, one_line
from triptych.core.reading import open_regular, read_regular
from triptych.data.folder_index import Listing, keep, kept, status_of
from triptych.data.naming import Classes

LABELS_FILE = "dataset.json"
"""What the file of labels is called that may lie beside images, or above them."""
PACK_FILE = "triptych-pack.json"
"""What the file in a zip is called that says of which images it is a pack."""
KINDS = "AVIF, BMP, GIF, JPEG, JPEG 2000, PNG, PNM, TIFF and WebP files"
"""What is looked for, in words."""
_EXTENSIONS = frozenset(
    (".avif", ".bmp", ".gif", ".jfif", ".jp2", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp")
)
_MOST_ENDINGS = 6
_TABLE_BYTES = 2**20, 2**13
"""Most bytes of a file of labels, and how many more for each image: what a stranger's unpacks to could fill the memory."""
_COPY_BYTES = 2**20
_LABELS = (".cls", ".json")
"""Endings of files with the class of the image beside them; where there are both, the first counts."""
_LABEL_BYTES = 2**16
MOST_BYTES = 2**28
"""Of an encoded image: 256 MiB. A photograph has about 10 MB."""
_LOCAL_HEADER = 30  # bytes of a zip member's own header before its name
_ENCRYPTED = 1
_COMPRESSED: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
"""What opens a compressed file, by its first bytes."""
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, OverflowError, RecursionError)
"""What damaged archives raise."""


class Names:
    """Many strings in two arrays: a list of them would be copied page by page into every loader process."""

    def __init__(self, names: Iterable[str]) -> None:
        encoded = [os.fsencode(name) for name in names]
        self.bytes = b"".join(encoded)
        self.ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        "Where each of them ends in `bytes`: int64 (n,)."

    @classmethod
    def joined(cls, joined: bytes, ends: np.ndarray) -> Names:
        """Those that are written one after the other, and end there. Raises ValueError for ends that are none."""
        names = cls(())
        steps = np.diff(ends, prepend=0)
        if ends.ndim != 1 or ends.dtype != np.int64 or (steps < 0).any() or (ends[-1] if len(ends) else 0) != len(joined):
            raise ValueError("names that do not end where they should")
        names.bytes, names.ends = joined, ends
        return names

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, k: int) -> str:
        return os.fsdecode(self.bytes[self.ends[k - 1] if k else 0 : self.ends[k]])

    def __iter__(self) -> Iterator[str]:
        return (self[k] for k in range(len(self)))


class Files(ABC):
    """Files of one place, in the order of their names."""

    def __init__(
        self, place: Path, names: list[str] | Names, *, passed_over: Counter[str] | None = None, tables: Iterable[str] = ()
    ) -> None:
        """`passed_over`: how many files of each ending lie there beside the images."""
        self.place = place
        self.names = names if isinstance(names, Names) else Names(names)
        self.keys = self.names
        "Their paths inside the source: those of the files that were packed, where these are a pack."
        self.tables = tuple(tables)
        "The files of labels, by their names (see `LABELS_FILE`)."
        self.left_out = frozenset[str]()
        "Names of images that are there and not among these."
        self.passed_over = passed_over or Counter()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the log says of the files: which were passed over."""
        counted = self.passed_over.most_common()
        if not counted:
            return ()
        shown = [f"{count:,} {ending or 'without an ending'}" for ending, count in counted[:_MOST_ENDINGS]]
        rest = sum(count for _, count in counted[_MOST_ENDINGS:])
        shown += [f"{rest:,} others"] if rest else []
        return (f"{self.place}: passed over {sum(self.passed_over.values()):,} files that are no images: {', '.join(shown)}",)

    def describe(self, k: int) -> str:
        """The path of a file, for messages."""
        return str(self.place / self.names[k])

    def key(self, k: int) -> str:
        """The path of a file inside the source, which is the same on every machine."""
        return self.keys[k]

    @abstractmethod
    def read(self, k: int) -> bytes:
        """The bytes of a file. Raises OSError or DataError."""

    @abstractmethod
    def table(self, name: str) -> bytes:
        """The bytes of a file of labels. Raises OSError or DataError."""

    def classes(self) -> Classes | None:
        """The classes that the source itself says; None: it says none. Raises DataError for one that cannot be."""
        return None

    @property
    def labelled(self) -> bool:
        """Whether a file with its class (x.cls, x.json) lies beside an image, as webdataset writes them; see `label`."""
        return False

    def label(self, k: int) -> tuple[str, bytes] | None:
        """The path and the bytes of the file that lies beside an image; None: there is none. Raises OSError or DataError."""
        return None

    def packed(self) -> bytes | None:
        """What a pack says of itself, where these are the files of one. Raises OSError or DataError."""
        return None

    def part(self, numbers: np.ndarray) -> Files:
        """Some of the files, as if the others were not there."""
        return self if len(numbers) == len(self.names) else _Part(self, numbers)

    @property
    def _most_of_a_table(self) -> int:
        least, each = _TABLE_BYTES
        return min(MOST_BYTES, least + each * len(self.names))


class _Part(Files):
    """Some of the files of a place."""

    def __init__(self, files: Files, numbers: np.ndarray) -> None:
        names = [files.names[int(k)] for k in numbers]
        super().__init__(files.place, names, passed_over=files.passed_over, tables=files.tables)
        self.left_out = files.left_out | set(files.names) - set(names)
        self._files, self._numbers = files, numbers

    def describe(self, k: int) -> str:
        return self._files.describe(int(self._numbers[k]))

    def key(self, k: int) -> str:
        return self._files.key(int(self._numbers[k]))

    def read(self, k: int) -> bytes:
        return self._files.read(int(self._numbers[k]))

    def table(self, name: str) -> bytes:
        return self._files.table(name)

    def classes(self) -> Classes | None:
        found = self._files.classes()
        return None if found is None else replace(found, labels=found.labels[self._numbers])

    @property
    def labelled(self) -> bool:
        return self._files.labelled

    def label(self, k: int) -> tuple[str, bytes] | None:
        return self._files.label(int(self._numbers[k]))


class Folder(Files):
    """The image files under a folder."""

    def read(self, k: int) -> bytes:
        return read_regular(self.place / self.names[k], most=MOST_BYTES)

    def table(self, name: str) -> bytes:
        return read_regular(self.place / name, most=self._most_of_a_table)


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
            self.passed_over[_ending(labels[stem].name)] += 1
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
        if member.size > self._most_of_a_table:
            raise DataError(f"{self.place}/{name}: larger than {self._most_of_a_table:,} bytes; leave it out of the archive")
        return self._unpacked(f"{self.place}/{name}", member.offset, member.length, member.size, member.deflated)

    @property
    def labelled(self) -> bool:
        return self._labels.any

    def label(self, k: int) -> tuple[str, bytes] | None:
        found = self._labels.of(k)
        if found is None:
            return None
        ending, offset, size = found
        name = f"{self.place / _stem(self.names[k])}{ending}"
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
        places = [(0, 0, -1) if each is None else (each.offset, each.size, _LABELS.index(_ending(each.name))) for each in members]
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


def _ending(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


def is_image(name: str) -> bool:
    """Whether a file of this name is taken for an image; hidden files are not."""
    path = PurePosixPath(name)
    return path.suffix.lower() in _EXTENSIONS and not path.name.startswith(".")


def is_table(name: str) -> bool:
    """Whether a file of this name is a file of labels."""
    return name.rpartition("/")[2] == LABELS_FILE


def _chosen(name: str, passed_over: Counter[str]) -> bool:
    """Whether a file is taken for an image or for labels; one that is neither that nor hidden is counted by its ending."""
    if is_image(name) or is_table(name):
        return True
    path = PurePosixPath(name)
    if not path.name.startswith("."):
        passed_over[path.suffix.lower()] += 1
    return False


def listed(folder: Path) -> list[str]:
    """What lies in a folder, in order. Raises DataError where it is none, or cannot be looked into."""
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror})") from error


def _holds(question: Callable[[], bool]) -> bool:
    """Whether that is so of an entry of a folder; of a link that leads to itself nothing is."""
    try:
        return question()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise


def walked(
    root: Path, statuses: dict[str, list[int]] | None = None
) -> Iterator[tuple[str, list[os.DirEntry[str]], list[os.DirEntry[str]]]]:
    """A folder and all folders below it, links followed: its path from `root` ("" for that), its folders and its other entries, in order.

    A caller may remove folders from the list, which are then not entered; one that a link leads back to has none. `statuses` gets what
    `status_of` says of each before it is looked into. Raises DataError for one that cannot be looked into.
    """
    visited: set[tuple[int, int]] = set()
    waiting = [""]
    while waiting:
        relative = waiting.pop()
        folder = root / relative
        folders: list[os.DirEntry[str]] = []
        others: list[os.DirEntry[str]] = []
        try:
            status = folder.stat()
            if statuses is not None:
                statuses[relative] = status_of(status)
            if (status.st_dev, status.st_ino) not in visited:
                with os.scandir(folder) as entries:
                    for entry in sorted(entries, key=lambda entry: entry.name):
                        (folders if _holds(entry.is_dir) else others).append(entry)
        except OSError as error:
            raise DataError(f"{folder}: cannot be listed ({error.strerror})") from error
        visited.add((status.st_dev, status.st_ino))
        yield relative, folders, others
        waiting += [f"{relative}/{entry.name}" if relative else entry.name for entry in reversed(folders)]


def open_folder(root: Path) -> tuple[Folder, list[str]]:
    """The images of a folder and all folders below it, links followed, and its sub-folders that hold none.

    The list of a large folder is kept in the user's cache while no folder in it changes. Raises DataError for a pipe or device that is
    named like an image: reading it could wait or go on for ever.
    """
    known = kept(root)
    if known is not None:
        return Folder(root, Names.joined(known.names, known.ends), passed_over=known.passed_over, tables=known.tables), known.empty
    started, statuses, links = time.time_ns(), dict[str, list[int]](), False
    names, empty, tables, passed_over = [], [], [], Counter[str]()
    for relative, folders, others in walked(root, statuses):
        links |= any(entry.is_symlink() for entry in others)
        folders[:] = [entry for entry in folders if not entry.name.startswith(".")]
        chosen = [entry for entry in others if _chosen(entry.name, passed_over)]
        for entry in chosen:
            if not _holds(entry.is_file) and os.path.exists(entry.path):
                raise DataError(f"{entry.path}: not a regular file but a pipe or a device, or a link to one; remove it")
        images = [entry for entry in chosen if not is_table(entry.name)]
        names += [f"{relative}/{entry.name}" if relative else entry.name for entry in images]
        tables += [f"{relative}/{LABELS_FILE}" if relative else LABELS_FILE] if len(images) < len(chosen) else []
        if not images and not folders and relative:
            empty.append(relative)
    files = Folder(root, sorted(names, key=lambda name: name.split("/")), passed_over=passed_over, tables=tables)
    if not links:
        listing = Listing(files.names.bytes, files.names.ends, empty, tables, passed_over)
        keep(root, listing, statuses, started=started)
    return files, empty


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
            if member.isreg() and (label or _chosen(member.name, passed_over)):
                if member.issparse():
                    raise DataError(f"{path}/{member.name}: stored as a sparse file; make the archive again without --sparse")
                found = Member(member.name, member.offset_data if spool is None else spool.tell(), member.size, member.size)
                if not label:
                    yield found
                elif _ending(member.name) == _LABELS[0] or _stem(member.name) not in beside:  # a .cls says no more than the class
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
    return _ending(name) in _LABELS and not is_table(name) and not name.rpartition("/")[2].startswith(".") and member.size <= _LABEL_BYTES


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
        images = [entry for entry in entries if entry.filename == PACK_FILE or _chosen(entry.filename, passed_over)]
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
