"""Where the bytes of image files come from: a folder, or a tar or zip archive read in place.

An archive is indexed once, when it is opened; its members are then read by their offset through one file descriptor, which
loader processes inherit. A compressed tar has no offsets to read from, so its images are unpacked once into an unnamed
temporary file (which the system removes by itself), never into memory.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np

from triptych.core.errors import DataError

_EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"})
_COPY_BYTES = 2**20
_LOCAL_HEADER = 30  # bytes of a zip member's own header before its name
_ENCRYPTED = 1


class Names:
    """Many strings in two arrays: a list of them would be copied page by page into every loader process."""

    def __init__(self, names: Iterable[str]) -> None:
        encoded = [os.fsencode(name) for name in names]
        self._bytes = b"".join(encoded)
        self._ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, k: int) -> str:
        return os.fsdecode(self._bytes[self._ends[k - 1] if k else 0 : self._ends[k]])


class Files(ABC):
    """Files of one place, in the order of their names."""

    def __init__(self, place: Path, names: list[str]) -> None:
        self.place = place
        self.names = Names(names)

    def describe(self, k: int) -> str:
        """The path of a file, for messages."""
        return str(self.place / self.names[k])

    @abstractmethod
    def read(self, k: int) -> bytes:
        """The bytes of a file. Raises OSError or DataError."""


class Folder(Files):
    """The image files under a folder."""

    def read(self, k: int) -> bytes:
        return (self.place / self.names[k]).read_bytes()


class Archive(Files):
    """The image files of an archive."""

    def __init__(self, place: Path, file: IO[bytes], members: list[tuple[str, int, int, bool]]) -> None:
        """`members`: name, offset and length in `file`, and whether it is deflated there."""
        members = sorted(members, key=lambda member: member[0].split("/"))
        super().__init__(place, [name for name, *_ in members])
        self._file = file
        self._offsets = np.array([offset for _, offset, _, _ in members], dtype=np.int64)
        self._lengths = np.array([length for _, _, length, _ in members], dtype=np.int64)
        self._deflated = np.array([deflated for *_, deflated in members], dtype=bool)

    def read(self, k: int) -> bytes:
        data = os.pread(self._file.fileno(), int(self._lengths[k]), int(self._offsets[k]))
        if not self._deflated[k]:
            return data
        try:
            return zlib.decompress(data, -zlib.MAX_WBITS)
        except zlib.error:
            raise DataError(f"{self.describe(k)}: damaged in the archive; make the archive again") from None


def is_image(name: str) -> bool:
    """Whether a file of this name is taken for an image; hidden files are not."""
    path = PurePosixPath(name)
    return path.suffix.lower() in _EXTENSIONS and not path.name.startswith(".")


def listed(folder: Path) -> list[str]:
    """What lies in a folder, in order. Raises DataError where it is none, or cannot be looked into."""
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror})") from error


def open_folder(root: Path) -> tuple[Folder, list[str]]:
    """The images of a folder and all folders below it, links followed, and its sub-folders that hold none."""
    names, empty, visited = [], [], set()
    for folder, subfolders, files in os.walk(root, followlinks=True, onerror=_unreadable):
        real = os.path.realpath(folder)
        subfolders[:] = [] if real in visited else sorted(name for name in subfolders if not name.startswith("."))
        images = [] if real in visited else [name for name in files if is_image(name)]
        visited.add(real)
        relative = Path(folder).relative_to(root)
        names += [(relative / name).as_posix() for name in images]
        if not images and not subfolders and relative.parts:
            empty.append(relative.as_posix())
    return Folder(root, sorted(names, key=lambda name: name.split("/"))), empty


def _unreadable(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be listed ({error.strerror})")


def open_tar(path: Path) -> Archive:
    """The images of a tar, compressed or not. Raises DataError when it is damaged."""
    try:
        try:
            with tarfile.open(path, "r:") as tar:
                members = [(m.name, m.offset_data, m.size, False) for m in tar if m.isreg() and is_image(m.name)]
            file = path.open("rb")
            if any(offset + length > path.stat().st_size for _, offset, length, _ in members):
                raise DataError(f"{path}: the archive is cut short; copy or make it again")
            return Archive(path, file, members)
        except tarfile.ReadError:
            return _unpacked(path)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(f"{path}: cannot be read as a tar archive ({' '.join(str(error).split())})") from error


def _unpacked(path: Path) -> Archive:
    spool = tempfile.TemporaryFile(prefix="triptych-")  # noqa: SIM115 (the archive keeps it open)
    members = []
    with tarfile.open(path, "r|*") as tar:
        for member in tar:
            source = tar.extractfile(member) if member.isreg() and is_image(member.name) else None
            if source is None:
                continue
            members.append((member.name, spool.tell(), member.size, False))
            while block := source.read(_COPY_BYTES):
                spool.write(block)
    spool.flush()
    return Archive(path, spool, members)


def open_zip(path: Path) -> Archive:
    """The images of a zip, stored or deflated. Raises DataError when it is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir() and is_image(entry.filename)]
        file = path.open("rb")
        return Archive(path, file, [_zip_member(path, file, entry) for entry in entries])
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{path}: cannot be read as a zip archive ({error})") from error


def _zip_member(path: Path, file: IO[bytes], entry: zipfile.ZipInfo) -> tuple[str, int, int, bool]:
    if entry.flag_bits & _ENCRYPTED:
        raise DataError(f"{path}/{entry.filename}: encrypted; make the archive without a password")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{path}/{entry.filename}: compressed by a method other than deflate; make the archive again with deflate")
    header = os.pread(file.fileno(), _LOCAL_HEADER, entry.header_offset)
    if len(header) < _LOCAL_HEADER or header[:4] != b"PK\x03\x04":
        raise DataError(f"{path}: the archive is damaged at {entry.filename}; copy or make it again")
    skipped = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    return entry.filename, entry.header_offset + _LOCAL_HEADER + skipped, entry.compress_size, entry.compress_type == zipfile.ZIP_DEFLATED
