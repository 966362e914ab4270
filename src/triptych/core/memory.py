"""What memory this process takes, and how much the machine still has for it."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

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


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process may still take: what the machine has free, its container's limit and that of the address space leave.

    None where none of them is known.
    """
    bounds = [_named(root / "proc/meminfo").get("MemAvailable"), *_left_in_containers(root), _left_of_addresses(root / "proc")]
    known = [max(0, bound) for bound in bounds if bound is not None]
    return min(known) if known else None


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
