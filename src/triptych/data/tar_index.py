"""Where the images of a tar lie: what a pass over all of its headers finds, kept so that the next start need not make it.

Of a tar elsewhere it is kept beside its blocks, of one of this machine in the user's cache. There it holds as long as the file has the
path, the size, the times of its last change (mtime and ctime), the number on the disk and the device that it had before it was read, and
headers of such files lie before some of the images. A file that changed a moment before might change again within one tick of the clock: of
that nothing is kept.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tarfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from triptych.core.block_cache import BlockCache
from triptych.core.cache import cache_folder
from triptych.core.errors import DataError
from triptych.core.reading import parsed_json
from triptych.data.folder_index import MOMENT, status_of

FORMAT = "tar-index-1"
"""Another one where other files are taken for images."""
_LEAST = 1_000  # images; fewer are found at once
_MOST_KEPT = 2**30  # bytes, of all tars; an image takes some 50
_LOOKED_AT = 16


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
    headed: bool = False
    "Whether a header lies at `offset`, and the bytes behind it: of zips elsewhere, whose headers are read with the images."


@dataclass(frozen=True)
class TarIndex:
    """What the headers of a tar say."""

    members: list[Member]
    "The images and files of labels."
    passed_over: Counter[str]
    "How many other files of each ending there are."
    beside: dict[str, Member]
    "The files with classes of images, by the paths of these up to the first dot of the name."

    def written(self) -> bytes:
        """As it is kept."""
        said = {
            "members": [(member.name, member.offset, member.size) for member in self.members],
            "passed_over": self.passed_over,
            "beside": {stem: (member.name, member.offset, member.size) for stem, member in self.beside.items()},
        }
        return json.dumps(said).encode()

    @classmethod
    def read(cls, content: bytes) -> TarIndex:
        """That which was kept."""
        said = parsed_json(content)
        members = [Member(name, offset, size, size) for name, offset, size in said["members"]]
        beside = {stem: Member(name, offset, size, size) for stem, (name, offset, size) in said["beside"].items()}
        return cls(members, Counter(said["passed_over"]), beside)


class LocalIndex:
    """The index of a tar of this machine, in the user's cache."""

    def __init__(self, descriptor: int, path: Path) -> None:
        """`descriptor`: of the file, before it is read."""
        self._descriptor, self._path = descriptor, os.fspath(path.absolute())
        self._begun, self._stamp = time.time_ns(), self._status()

    def found(self) -> TarIndex | None:
        """What was kept; None: nothing, or it is of another file."""
        with suppress(DataError):  # there is no cache
            content = _cache(cache_folder()).get(self._name)
            index = None if content is None else TarIndex.read(content)
            if index is not None and all(map(self._lies_there, index.members[:: len(index.members) // _LOOKED_AT or 1])):
                return index
        return None

    def keep(self, index: TarIndex) -> None:
        """Keeps that of a large tar, unless it has changed meanwhile. A cache that cannot be written does without."""
        settled = self._status() == self._stamp and max(self._stamp[1:3]) <= self._begun - MOMENT
        if len(index.members) >= _LEAST and settled:
            with suppress(DataError):
                _cache(cache_folder()).put(self._name, index.written())

    @property
    def _name(self) -> str:
        return f"{hashlib.sha256(json.dumps([self._path, self._stamp]).encode()).hexdigest()[:32]}/{FORMAT}"

    def _status(self) -> list[int]:
        status = os.fstat(self._descriptor)
        return [status.st_size, *status_of(status)]

    def _lies_there(self, member: Member) -> bool:
        """Whether the header of a file of that size lies before it."""
        header = os.pread(self._descriptor, tarfile.BLOCKSIZE, member.offset - tarfile.BLOCKSIZE)
        try:
            return tarfile.TarInfo.frombuf(header, tarfile.ENCODING, "surrogateescape").size == member.size
        except tarfile.TarError:
            return False


@functools.lru_cache(maxsize=1)
def _cache(folder: Path) -> BlockCache:
    """One for all tars of a process, for it looks through the whole folder at times."""
    return BlockCache(folder / "tars", most=_MOST_KEPT)
