"""Files that are whole or not there, however their writing ends.

A file is written under a temporary name beside its own, ".NAME.tmp-MACHINE-PROCESS-NUMBER", synced and renamed. So two processes that write
the same file never meet, and whoever comes later can tell from the name whether the writer is still alive.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from triptych.core.errors import CheckpointError

_TEMPORARY = re.compile(r"\..*\.tmp-(?P<machine>[0-9a-f]{8})-(?P<process>\d{1,10})-\d+", re.DOTALL)
_DAY = 24 * 3600.0  # seconds; nobody writes into one file for so long
_LONGEST_NAME = 40  # characters of the name that are kept: a whole temporary name may have 255 bytes
_numbers = itertools.count()


PICTURES = (".png", ".jpg", ".jpeg", ".webp")
"""Endings of the pictures that are written."""
OUTPUTS = (*PICTURES, ".npz", "")
"""Endings of what images are written to; that of a folder is empty."""
OUTPUTS_IN_WORDS = "a name that ends with .png, .jpg, .webp or .npz, or a folder"


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`. The file written there is renamed to `path` when the block ends, and removed when the block fails.

    It is on the disk before it gets its name, so it is whole after a power failure too. Its permissions are those of the umask, which some
    libraries ignore. Of two that write the same path at once, the last to end wins. Raises OSError.
    """
    temporary = temporary_path(path)
    with temporary.open("xb") as file:
        mode = os.fstat(file.fileno()).st_mode
    try:
        yield temporary
        if temporary.stat().st_mode != mode:
            temporary.chmod(mode & 0o777)
        sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file in UTF-8, whole or not at all. Raises OSError."""
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def replace_folder(temporary: Path, target: Path, *, aside: Path) -> None:
    """Renames a finished folder to its name. What has that name is first renamed to `aside`, and removed at the end. Raises OSError.

    Where that is a link, the folder takes the place of the link, and what the link leads to stays as it is.
    """
    if os.path.lexists(target):  # a link that leads nowhere is in the way too
        remove(aside)
        os.rename(target, aside)
    try:
        os.rename(temporary, target)
    except OSError:
        if os.path.lexists(aside):
            os.rename(aside, target)
        raise
    sync(target.parent)
    remove(aside)


def sweep(folder: Path) -> None:
    """Removes the temporary files and folders here whose writer is dead. Where that cannot be known, they have to be a day old."""
    try:
        entries = [entry for entry in os.scandir(folder) if entry.name.startswith(".")]
    except OSError:
        return
    for entry in entries:
        match = _TEMPORARY.fullmatch(entry.name)
        if match is not None and _abandoned(Path(entry.path), match["machine"], int(match["process"])):
            remove(Path(entry.path))


def remove(path: Path) -> None:
    """Removes a file or folder if possible."""
    try:
        path.unlink()
    except FileNotFoundError:
        pass
    except OSError:  # a folder: what says so differs between systems
        shutil.rmtree(path, ignore_errors=True)


def temporary_path(path: Path) -> Path:
    """A name beside `path` that nobody else uses, and that `sweep` knows."""
    return path.parent / f".{path.name[:_LONGEST_NAME]}.tmp-{_machine()}-{os.getpid()}-{next(_numbers)}"


def is_alive(process: int) -> bool:
    """Whether a process of this number runs on this machine."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it is another user's
        return True
    return True


def no_option(path: Path) -> str:
    """A path as commands take it for one: not as an option, where it begins with a dash."""
    return f"./{path}" if str(path).startswith("-") else str(path)


_NOT_FOR_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
"""What file systems of networks say that can wait for files alone."""


def sync(path: Path) -> None:
    """Waits until a file, or the list of a folder's entries, is on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_FOR_FOLDERS or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


_FREE = "(free some space and start again)"


def explain(error: Exception) -> str:
    """The reason of a failed read or write in a user's words, without the path."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    full = any(hint in reason for hint in ("No space left", "quota exceeded")) and not reason.endswith(_FREE)
    return f"{reason} {_FREE}" if full else reason


def real_path(path: Path) -> Path:
    """Where a path leads; of links in a circle the last one, where Path.resolve of Python 3.12 raises RuntimeError."""
    return Path(os.path.realpath(path))


@contextmanager
def explained(what: str) -> Iterator[None]:
    """The context in which an OSError becomes a CheckpointError: that one cannot `what` ("write PATH"), and the reason."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"cannot {what}: {explain(error)}") from error


def _abandoned(path: Path, machine: str, process: int) -> bool:
    if machine == _machine():  # no clock is asked: it may jump
        return not is_alive(process)
    try:
        return time.time() - path.stat().st_mtime > _DAY
    except OSError:  # it is gone already
        return False


@cache
def _machine() -> str:
    """Eight letters for where process numbers mean what they mean here: the host; on Linux the container and the boot too."""
    try:
        space = os.readlink("/proc/self/ns/pid") + Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
    except OSError:
        space = ""
    return hashlib.sha256(f"{socket.gethostname()} {space}".encode()).hexdigest()[:8]
