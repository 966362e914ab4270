"""What memory this process takes, how much the machine still has for it, and what is said and done where that is not enough."""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from triptych.core.errors import one_line

_WORDS = re.compile(
    "can't allocate memory|std::bad_alloc"  # PyTorch on a CPU
    "|out of memory|STATUS_ALLOC_FAILED"  # on a GPU; cuBLAS and cuDNN
    "|unable to find an engine to execute this computation"  # cuDNN, none of whose ways has the memory that it needs
    "|could not (create|execute) a primitive(?! descriptor)"  # oneDNN, which does not say why: it is want of memory, or images too large
)
_SPARED = 0.1  # of what is there: for what the system and other processes take meanwhile
_ENDLESS = 2**62
"""Limits from here on are how an older kernel writes that there is none."""


def resident_memory(proc: Path = Path("/proc")) -> int:
    """Bytes of this process that lie in memory now; where the system does not say, the most that ever did."""
    return _status(proc).get("VmRSS") or peak_memory(proc)


def peak_memory(proc: Path = Path("/proc")) -> int:
    """The most bytes of this process that have been in memory at once.

    Linux's own figure of the process comes first: that of getrusage begins with what the process that started this one had.
    """
    return _status(proc).get("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def forget_peak(proc: Path = Path("/proc")) -> bool:
    """Makes `peak_memory` begin anew with what lies in memory now; False where the system cannot: then it stays what it was."""
    try:
        (proc / "self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def memory_of_children(proc: Path = Path("/proc")) -> tuple[int, int]:
    """How many processes below this one run, and the bytes that they share with no other; (0, 0) where the system does not say."""
    waiting, count, size = [os.getpid()], 0, 0
    while waiting:
        process = waiting.pop()
        for task in (proc / str(process) / "task").glob("*"):
            waiting += map(int, _text(task / "children").split())
        if process != os.getpid() and (found := _named(proc / str(process) / "smaps_rollup")):
            count, size = count + 1, size + found.get("Private_Clean", 0) + found.get("Private_Dirty", 0)
    return count, size


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process may still take: what the machine has free, its container's limit and that of the address space leave.

    None where none of them is known.
    """
    bounds = [_named(root / "proc/meminfo").get("MemAvailable"), *_left_in_containers(root), _left_of_addresses(root / "proc")]
    known = [max(0, bound) for bound in bounds if bound is not None]
    return min(known) if known else None


def in_bytes(size: float) -> str:
    """A size in memory or on a disk, to three digits."""
    units = ["byte" if size == 1 else "bytes", "KB", "MB", "GB", "TB", "PB"]
    while size >= 999.5 and len(units) > 1:  # which three digits have as 1000
        size, units = size / 1000, units[1:]
    return f"{size:.3g} {units[0]}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory, of the machine or of a GPU, ran out."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _WORDS.search(str(error)) is not None)


def said_of(error: BaseException) -> str:
    """What an error of want of memory says, in one line: its first sentence where it has several (CUDA's ends with pages of figures)."""
    line = one_line(error) if isinstance(error, Exception) else type(error).__name__
    start = line.find("DefaultCPUAllocator")
    return line[max(start, 0) :].partition(". ")[0]


def kills_for_memory(proc: Path = Path("/proc")) -> int:
    """How many processes this machine, since it was started, has killed for want of memory; 0 where it does not say."""
    counts = dict(line.split() for line in _text(proc / "vmstat").splitlines() if len(line.split()) == 2)
    return int(counts.get("oom_kill", 0))


@contextmanager
def limited_to_available(shares: int) -> Iterator[None]:
    """The context in which this process gets an error where it would take more than its share of the memory there is.

    Without it the system lends memory that it does not have, and kills a process when that is used. Where the system does not say how much
    there is, the context does nothing.
    """
    room, used = available_memory(), data_memory()
    if room is None or used is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = used + int((1 - _SPARED) * room / shares)
    resource.setrlimit(resource.RLIMIT_DATA, (min(limit for limit in (most, soft, hard) if limit != resource.RLIM_INFINITY), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def data_memory() -> int | None:
    """Bytes that count against the limit of this process's data (RLIMIT_DATA); None where the system does not say."""
    return _status(Path("/proc")).get("VmData") if sys.platform == "linux" else None


def _left_in_containers(root: Path) -> Iterator[int]:
    """What the limits of the control groups leave, of version 2 in this process's group and all above it, and of version 1."""
    groups = root / "sys/fs/cgroup"
    place = next((line[3:].strip("/") for line in _text(root / "proc/self/cgroup").splitlines() if line.startswith("0::")), "")
    inside = groups / place
    for folder in [inside, *inside.parents] if inside != groups else [groups]:
        if folder.is_relative_to(groups):
            yield from _left_in(folder, "memory.max", "memory.current", "inactive_file")
    yield from _left_in(groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _left_in(folder: Path, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    most, used = _text(folder / limit).strip(), _text(folder / usage).strip()
    if most.isdecimal() and used.isdecimal() and int(most) < _ENDLESS:
        counts = dict(line.split() for line in _text(folder / "memory.stat").splitlines() if len(line.split()) == 2)
        yield int(most) - int(used) + int(counts.get(reclaimable, 0))


def _left_of_addresses(proc: Path) -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit in (resource.RLIM_INFINITY, -1) else limit - _status(proc).get("VmSize", 0)


def _status(proc: Path) -> dict[str, int]:
    return _named(proc / "self/status")


def _named(path: Path) -> dict[str, int]:
    """The lines "Name: 123 kB" of one of Linux's files, in bytes; none where it is not there."""
    words = [line.split() for line in _text(path).splitlines()]
    return {line[0].rstrip(":"): int(line[1]) * 1024 for line in words if len(line) == 3 and line[2] == "kB" and line[1].isdecimal()}


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", errors="replace") if os.path.exists(path) else ""
    except OSError:
        return ""
