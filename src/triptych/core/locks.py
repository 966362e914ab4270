"""A lock on a file: one process at a time. The system releases it when the process dies, however it dies."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import warnings
from pathlib import Path
from typing import IO
from weakref import WeakSet

from triptych.core.files import explain

_open: WeakSet[IO[bytes]] = WeakSet()


class Held(Exception):
    """Another process has the lock; the message says which."""


class Lock:
    """The lock on a file, until `release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        """Takes the lock; makes the file where there is none. Raises Held when another process has it, OSError where it cannot be made."""
        self._path = path
        self._file = _taken(path)
        _open.add(self._file)
        self._holder = f"process {os.getpid()} on {socket.gethostname()}\n".encode()
        try:
            self._file.truncate(0)
            self._file.write(self._holder)
        except OSError:  # the disk is full
            self.release(remove=True)
            raise

    def release(self, *, remove: bool = False) -> None:
        """Lets another process take it. `remove`: the file is no longer needed."""
        if remove and not self._file.closed:
            self._path.unlink(missing_ok=True)  # while it is held: who has it open meanwhile sees that it is gone, and makes another
        self._file.close()

    def is_lost(self) -> bool:
        """Whether another process has made a file of its own in the place of this one, as where the folder was removed and made anew.

        Neither alone says so: some file systems number a file anew, and without locks others write into this one.
        """
        try:
            return not (self._file.closed or _is_at(self._file, self._path) or self._path.read_bytes() == self._holder)
        except OSError:  # it is gone, or cannot be looked at now
            return False

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def _taken(path: Path) -> IO[bytes]:
    while True:
        file = path.open("ab+", buffering=0)
        if not _flock(file):
            file.seek(0)
            holder = file.read().decode(errors="replace").strip() or "unknown"
            file.close()
            raise Held(holder)
        if _is_at(file, path):
            return file
        file.close()  # its holder removed it between the opening and the locking


def _flock(file: IO[bytes]) -> bool:
    """False when another process holds the lock. A file system without locks is warned of."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        warnings.warn(f"{file.name} cannot be locked ({explain(error)}): see that only one command writes there", stacklevel=5)
    return True


def _is_at(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _close_all() -> None:
    for file in list(_open):
        file.close()


# A forked worker would share the lock, and keep it when its parent is killed.
os.register_at_fork(after_in_child=_close_all)
