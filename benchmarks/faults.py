"""Faults that are put to the processes of a training, and the places in it where they come.

A process that is to meet a fault is a fork of one that has imported all that a training needs. It says through a pipe when it is at the
place; what happens to it then comes from outside: a signal, a disk that is full, a directory that is gone. Before a write it waits until
that has happened, so that every file operation can be met.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import itertools
import json
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLACES = {
    "a step": "taking a step",
    "a validation": "validating",
    "a grid": "drawing samples",
    "an evaluation": "evaluating samples",
    "a checkpoint": "writing a checkpoint",
}
"""Places that last, by what the training says that it is doing."""
STARTUP, WRITE, IMPORTS = "start-up", "a file operation", "the imports"
KILL, KILL_ALL, KILL_LAUNCHER, RESTART = "SIGKILL", "SIGKILL of all", "SIGKILL of torchrun", "SIGKILL under torchrun"
STOP, SLOW = "SIGSTOP", "SIGSTOP and SIGCONT"
FULL, READ_ONLY, AWAY, GONE = "a full disk", "a read-only directory", "a directory that is renamed", "a directory that is removed"
CLOCK, DAMAGE = "a clock that jumps, SIGKILL", "SIGKILL, a damaged checkpoint"
UNDER_LAUNCHER = (KILL_LAUNCHER, RESTART)
_YEAR = 365 * 86400.0
_JUMPS = (-20 * _YEAR, -3600.0, 3600.0, 10 * _YEAR)


@dataclass(frozen=True)
class Fault:
    """What happens, and where."""

    what: str
    where: str
    visit: int = 1
    "At the how-manieth visit of that place since the start."
    delay: float = 0.0
    "Seconds after it; none before a file operation."
    rank: int = 0
    chance: float = 0.0
    "From 0 to 1, for what else there is to choose."


class Wire:
    """A pipe to whoever watches a process, and one back."""

    def __init__(self) -> None:
        self._told, self._tell = os.pipe()
        self._released, self._release = os.pipe()

    def tell(self) -> None:
        os.write(self._tell, f"{os.getpid():10d}".encode())

    def wait(self) -> None:
        os.read(self._released, 1)

    def told(self, seconds: float) -> int | None:
        """The process that is at its place, if it comes there within so many seconds."""
        return int(os.read(self._told, 10)) if select.select([self._told], [], [], seconds)[0] else None

    def release(self) -> None:
        os.write(self._release, b"1")

    def close(self) -> None:
        for descriptor in (self._told, self._tell, self._released, self._release):
            os.close(descriptor)


# In the process ----------------------------------------------------------------------------------------------------------


def expect(fault: Fault, run: Path, wire: Wire) -> None:
    """Makes this process tell when it is where the fault is to come; before a file operation it waits there."""
    visits = itertools.count(1)

    def here() -> None:
        if next(visits) != fault.visit:
            return
        if fault.what == CLOCK:
            jump_clock(_JUMPS[int(fault.chance * len(_JUMPS))])
        if fault.where == WRITE:
            wire.tell()
            wire.wait()
        else:
            threading.Thread(target=lambda: (time.sleep(fault.delay), wire.tell()), daemon=True).start()

    if fault.where == STARTUP:
        here()
    elif fault.where == WRITE:
        at_writes(run, here)
    else:
        at_works(lambda what: here() if what == PLACES[fault.where] else None)


def at_writes(run: Path, act: Callable[[], None]) -> None:
    """Calls `act` before each operation of this process that changes what is in the run, but for writing into a file that is open."""
    writing, changes = os.O_WRONLY | os.O_RDWR | os.O_CREAT, ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod")

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" and event not in changes:
            return
        if isinstance(arguments[0], str | Path) and str(arguments[0]).startswith(str(run)) and (event != "open" or arguments[2] & writing):
            act()

    sys.addaudithook(look)


def at_works(act: Callable[[str], None]) -> None:
    """Calls `act` with each work that the training begins in this process."""
    from triptych.engine.distributed import World

    doing = World.doing

    def noted(world: World, what: str) -> None:
        doing(world, what)
        act(what)

    World.doing = noted  # type: ignore[method-assign]


def jump_clock(seconds: float) -> None:
    """Makes the clock of this process jump; a monotonic one does not, by what it is."""
    clock = time.time
    time.time = lambda: clock() + seconds


def obey_permissions() -> None:
    """Root may write wherever it likes; from now on this process may not."""
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()  # linux/capability.h
    libc = ctypes.CDLL(None)
    if os.geteuid() == 0 and libc.capget(header, sets) == 0:
        sets[0] &= ~(1 << 1)  # CAP_DAC_OVERRIDE of the effective ones
        libc.capset(header, sets)


class Notes:
    """What a run that nobody breaks passes through."""

    def __init__(self, run: Path, path: Path) -> None:
        """They are written to `path` by `write`."""
        self._path, self._works, self._writes, self._modules = path, list[tuple[str, float]](), 0, set(sys.modules)
        at_writes(run, self._count)
        at_works(lambda what: self._works.append((what, time.monotonic())))
        self._began = time.monotonic()

    def _count(self) -> None:
        self._writes += 1

    def write(self) -> None:
        ends = [*(time for _, time in self._works[1:]), time.monotonic()]
        took = {
            place: [end - begun for (what, begun), end in zip(self._works, ends, strict=True) if what == PLACES[place]] for place in PLACES
        }
        visits = {place: len(seconds) for place, seconds in took.items()} | {STARTUP: 1, WRITE: self._writes}
        seconds = {place: sum(each) / max(len(each), 1) for place, each in took.items()}
        seconds |= {STARTUP: self._works[0][1] - self._began if self._works else 1.0, WRITE: 0.0}
        modules = sorted(set(sys.modules) - self._modules)
        self._path.write_text(json.dumps({"visits": visits, "seconds": seconds, "modules": modules}))


# Outside of it -----------------------------------------------------------------------------------------------------------


def small_disk(folder: Path, mebibytes: int) -> bool:
    """Makes an empty folder a disk of that size, for this process and those that it starts. False where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_namespace, private, recursive = 0x20000, 1 << 18, 1 << 14  # linux/sched.h, linux/mount.h
    if libc.unshare(new_namespace) or libc.mount(b"none", b"/", None, private | recursive, None):
        return False
    return libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, f"size={mebibytes}m".encode()) == 0


def fill(disk: Path, left: int) -> None:
    """Fills a disk, but for about so many bytes; others may be writing to it."""
    with (disk / "filler").open("xb") as file:
        for _ in range(100):
            state = os.statvfs(disk)
            with contextlib.suppress(OSError):  # what was free is taken already
                os.posix_fallocate(file.fileno(), 0, max(state.f_bavail * state.f_frsize - left, 1))
                return


def damage(checkpoint: Path, chance: float) -> None:
    """Damages a checkpoint: a bit of a file is another, or a file is cut short, empty or gone."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    path, how = files[int(chance * len(files))], int(chance * 1000) % 4
    content = bytearray(path.read_bytes())
    if how == 0:
        content[len(content) // 2] ^= 4
    if how == 3:
        path.unlink()
    else:
        path.write_bytes(content if how == 0 else content[: len(content) // 2] if how == 1 else b"")
