"""The list of a large folder's images, kept in the user's cache, so that not every process has to walk through it.

The list holds as long as every folder that was looked into has the times of its last change (mtime and ctime), the number on the disk and
the device that it had before it was looked into. An image that is added, removed, renamed or replaced by another file changes these. A
folder that changed a moment before it was looked into might change again within one tick of its clock, and what a link to a file leads to
changes with no folder; of such folders no list is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from triptych.core.cache import cache_folder
from triptych.core.errors import DataError
from triptych.core.files import sweep, whole
from triptych.core.npz import DamagedArchive, read_npz, write_npz
from triptych.core.reading import parsed_json

_FORMAT = 1
MOMENT = 2 * 10**9
"""Nanoseconds; the clock of a file system ticks every second at the slowest."""
_LEAST = 10_000  # images; fewer are found at once


@dataclass(frozen=True)
class Listing:
    """What a walk through a folder finds."""

    names: bytes
    "The paths of the images, one after the other, in order."
    ends: np.ndarray
    "Where each ends: int64 (n,)."
    empty: list[str]
    "Sub-folders without images."
    tables: list[str]
    "Files of labels."
    passed_over: Counter[str]
    "How many other files of each ending there are."


def status_of(status: os.stat_result) -> list[int]:
    """What changes when something is added to a folder, removed or replaced."""
    return [status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


def kept(root: Path) -> Listing | None:
    """The list of a folder that was kept; None where there is none, or a folder changed since."""
    try:
        found = read_npz(_place(root))
        said: Any = parsed_json(found["said"].tobytes())
        if said["format"] != _FORMAT or said["root"] != os.fspath(root.absolute()):
            return None
        if any(status_of(os.stat(root / folder)) != status for folder, status in said["folders"].items()):
            return None
        ends = found["ends"]
        if ends.dtype != np.int64 or ends.ndim != 1 or ends[-1] != len(found["names"]) or (np.diff(ends, prepend=0) < 0).any():
            return None
        return Listing(found["names"].tobytes(), ends, said["empty"], said["tables"], Counter(said["passed_over"]))
    except (OSError, MemoryError, DamagedArchive, DataError, ValueError, KeyError, TypeError, AttributeError):
        return None


def keep(root: Path, listing: Listing, folders: dict[str, list[int]], *, started: int) -> None:
    """Keeps the list of a large folder. `folders`: what `status_of` said of each before it was looked into; `started`: time, in ns.

    A cache that cannot be written does without.
    """
    if len(listing.ends) < _LEAST or max(max(status[:2]) for status in folders.values()) > started - MOMENT:
        return
    said = {
        "format": _FORMAT,
        "root": os.fspath(root.absolute()),
        "folders": folders,
        "empty": listing.empty,
        "tables": listing.tables,
        "passed_over": listing.passed_over,
    }
    arrays = {
        "said": np.frombuffer(json.dumps(said).encode(), dtype=np.uint8),
        "names": np.frombuffer(listing.names, dtype=np.uint8),
        "ends": listing.ends,
    }
    with suppress(OSError, DataError):
        place = _place(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        sweep(place.parent)
        with whole(place) as temporary, temporary.open("wb") as file:
            write_npz(file, arrays)


def _place(root: Path) -> Path:
    return cache_folder() / "folders" / f"{hashlib.sha256(os.fsencode(root.absolute())).hexdigest()}.npz"
