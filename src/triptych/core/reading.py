"""Reading what strangers wrote: paths, files that may be no files, JSON.

A mistake in them is a ValueError or an OSError with a reason of one line, whatever they hold; callers add the name.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

from triptych.core.address import is_address, without_secrets
from triptych.core.errors import DataError

LARGEST_SIDE = 2**16
"""The most pixels along a side of an image."""
MOST_CLASSES = 2**20
"""Of a data set; a label beyond that is no class."""


def user_path(text: str | Path) -> Path:
    """The path that a user wrote, with ~ replaced. Raises DataError where it cannot be one."""
    if is_address(text):
        raise DataError(f"{without_secrets(str(text))}: an address, where a path on this machine is expected; copy what lies there here")
    if "\0" in str(text):
        raise DataError(f"{text}: no path has a zero byte in it")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise DataError(f"{text}: there is no home folder of that user; write the path out") from None


def is_inside(name: str) -> bool:
    """Whether a relative path leads to a place inside its folder."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\0" not in name


def open_regular(path: str | Path) -> int:
    """A descriptor for reading a regular file. Raises OSError for anything else: a pipe would be waited for, a device may have no end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file but a pipe or a device, or a link to one", str(path))


def read_regular(path: str | Path, *, most: int) -> bytes:
    """The bytes of a regular file. Raises OSError for anything else, and for more than `most` bytes."""
    with open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
        return file.read(size)  # no more than that, should it grow meanwhile


def sha256_of(path: str | Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits. Raises OSError."""
    with open(open_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parsed_json(text: str | bytes, *, once: bool = False) -> Any:
    """What a text of JSON says. Raises ValueError with one line, also where it is nested too deeply.

    `once`: also where a name is given twice in one place. JSON itself leaves open what that means; the last one counts.
    """
    try:
        return json.loads(text, object_pairs_hook=_once if once else None)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"{json.dumps(twice)} is given twice")
    return found
