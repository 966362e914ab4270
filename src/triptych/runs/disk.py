"""What the disk of a run has free, and how fast it writes."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from triptych.core.errors import CheckpointError

_PIECE = 2**20
_MOST_PIECES = 64
SLOW = 1e8
"""Bytes that a slow disk takes in a second: where it refuses to be measured."""


def free_disk(directory: Path) -> int:
    """Bytes that the disk has free on which the directory is, or would be. Raises CheckpointError where that cannot be read."""
    there = _there(directory)
    try:
        return shutil.disk_usage(there).free
    except OSError as error:
        raise CheckpointError(f"{there}: {error.strerror}") from None


def seconds_to_write(directory: Path, size: int) -> float:
    """Seconds that a checkpoint of so many bytes takes: to write it to the disk of the directory, and to hash it.

    The first 64 MiB are measured, with a file without a name, which is gone when this returns, also by a kill. A disk that refuses counts
    as one that takes 100 MB a second.
    """
    piece = os.urandom(_PIECE)  # a disk that compresses gains nothing
    pieces = max(1, min(_MOST_PIECES, size // _PIECE))
    began = time.perf_counter()
    try:
        with tempfile.TemporaryFile(dir=_there(directory)) as file:
            for _ in range(pieces):
                file.write(piece)
                hashlib.sha256(piece)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        return size / SLOW
    return (time.perf_counter() - began) * max(1.0, size / (pieces * _PIECE))


def _there(directory: Path) -> Path:
    """The innermost folder of the directory's path that exists."""
    place = directory.absolute()
    return next(folder for folder in (place, *place.parents) if folder.exists())
