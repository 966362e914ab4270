"""Parts of files that lie elsewhere, kept on this machine's disk: bounded, shared by all processes, each part with a hash.

A part is a file of its own: the content, and 16 bytes of BLAKE2 at its end. One that is damaged counts as absent. Where all of them take
more than they may, those that were used least recently go. Any number of processes read and write at once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from triptych.core.files import sweep, temporary_path
from triptych.core.locks import Held, Lock

_DIGEST = 16  # bytes
_LEFT_FREE = 2**28  # bytes of a disk
_KEPT = 7 / 8  # of what may be taken is left where some had to go
_LOOKS = 64  # so many times while a cache is filled, each process looks how full it is
_WAIT = 0.05  # seconds
_MOST_SOUND = 2**17  # names, of 130 bytes each; 20 GB have 76,000 blocks


class BlockCache:
    """The parts in a folder, by names such as OBJECT/12."""

    def __init__(self, folder: Path, *, most: int) -> None:
        """`most`: bytes that all parts may take; each process may exceed it by 1/64, for it does not always look."""
        self._folder, self._most = folder, most
        self._unseen = most  # bytes written since the last look: the first part is followed by one
        self._sound = set[str]()
        "Parts whose hash this process has looked at."

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        """A part, or `length` bytes of it from `start` on; None where it is not there, or damaged."""
        try:
            descriptor = os.open(self._folder / name, os.O_RDONLY)
        except OSError:
            self._sound.discard(name)
            return None
        try:
            with suppress(OSError):  # of another user, who shares the cache: by its age it may go earlier
                os.utime(descriptor)
            size = os.fstat(descriptor).st_size - _DIGEST
            end = size if length is None else start + length
            if name in self._sound and 0 <= start <= end <= size:
                found = os.pread(descriptor, end - start, start)
                return found if len(found) == end - start else None
            whole = os.pread(descriptor, size + _DIGEST, 0)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        content = whole[:-_DIGEST]
        if len(whole) < _DIGEST or _digest(content) != whole[-_DIGEST:] or end > len(content):
            self.drop(name)
            return None
        if len(self._sound) >= _MOST_SOUND:  # of data that are far larger than the cache they would fill the memory
            self._sound.clear()
        self._sound.add(name)
        return content[start:end]

    def holds(self, name: str) -> bool:
        """Whether a part is there; it may still be damaged."""
        return (self._folder / name).exists()

    def put(self, name: str, content: bytes) -> None:
        """Keeps a part; where the disk cannot take it, it is not kept."""
        place = self._folder / name
        temporary: Path | None = None
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(place.parent).free < _LEFT_FREE + len(content):
                return
            temporary = temporary_path(place)
            temporary.write_bytes(content + _digest(content))
            os.replace(temporary, place)  # not synced: its hash tells whether it is whole
        except OSError:
            if temporary is not None:
                temporary.unlink(missing_ok=True)
            return
        self._unseen += len(content)
        if self._unseen > self._most / _LOOKS:
            self._unseen = 0
            self.trim()

    def drop(self, name: str) -> None:
        """Forgets a part."""
        self._sound.discard(name)
        with suppress(OSError):
            (self._folder / name).unlink(missing_ok=True)

    def trim(self) -> None:
        """Removes the parts that were used least recently, where all of them take more than they may. One process does it at a time."""
        with suppress(Held, OSError), Lock(self._folder / ".trim"):
            parts: list[tuple[int, int, str]] = []
            folders = [entry.path for entry in os.scandir(self._folder) if entry.is_dir(follow_symlinks=False)]
            for folder in folders:
                sweep(Path(folder))
                for entry in os.scandir(folder):
                    with suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        parts.append((status.st_mtime_ns, status.st_size, entry.path))
            total = sum(size for _, size, _ in parts)
            if total <= self._most:
                return
            for _, size, path in sorted(parts):
                if total <= _KEPT * self._most:
                    break
                with suppress(OSError):
                    os.unlink(path)
                total -= size
            for folder in folders:
                with suppress(OSError):  # there are parts in it
                    os.rmdir(folder)

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Within it no other process of those that share the cache is within one of that name: what one fetches, the next one finds."""
        lock: Lock | None = None
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            while lock is None:
                try:
                    lock = Lock(self._folder / f".{name}.lock")
                except Held:
                    time.sleep(_WAIT)
        try:
            yield
        finally:
            if lock is not None:
                lock.release(remove=True)


class BlockMemory:
    """Parts as of a `BlockCache`, in the memory of one process; any number of its threads may use it."""

    def __init__(self, most: int) -> None:
        """`most`: bytes that all parts may take."""
        self._most, self._total = most, 0
        self._parts: OrderedDict[str, bytes] = OrderedDict()
        self._one = threading.Lock()

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        """A part, or `length` bytes of it from `start` on; None where it is not there."""
        with self._one:
            content = self._parts.get(name)
            if content is None:
                return None
            self._parts.move_to_end(name)
        end = len(content) if length is None else start + length
        return content[start:end] if end <= len(content) else None

    def holds(self, name: str) -> bool:
        """Whether a part is there."""
        return name in self._parts

    def put(self, name: str, content: bytes) -> None:
        """Keeps a part; those that were used least recently go."""
        with self._one:
            self._total += len(content) - len(self._parts.pop(name, b""))
            self._parts[name] = content
            while self._total > self._most:
                self._total -= len(self._parts.popitem(last=False)[1])

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Nothing is shared, so nobody is waited for."""
        yield


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST).digest()
