"""What was found by reading all files of a set, so that it need not be read again: kept in the user's cache while the files are the same.

Files are the same where their paths, sizes, times and numbers on the disk are. The time of the last change of a file's state (ctime) is
among these, which no program can set back. A file that changed a moment ago might change again within one tick of the clock, so nothing
is kept then.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from triptych.core.cache import cache_folder
from triptych.core.files import write_text
from triptych.core.reading import parsed_json, read_regular
from triptych.runs.given.collection import files_at

_FORMAT = 1
_MOMENT = 2 * 10**9  # nanoseconds; the clock of a file system ticks every second at the slowest
_MOST_BYTES = 2**20


def known(path: Path, question: Any, find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `find` finds by reading the files at `path`, or found before. `question`: all that it depends on besides them, and it: JSON.

    What it raises is raised, and not kept. A cache that cannot be read or written does without.
    """
    files = _stamp(path)
    if files is None:
        return find()
    key = hashlib.sha256(json.dumps([_FORMAT, question, files], sort_keys=True).encode()).hexdigest()
    place = cache_folder() / "sets" / f"{key}.json"
    with suppress(OSError, ValueError):
        kept = parsed_json(read_regular(place, most=_MOST_BYTES))
        if isinstance(kept, dict) and kept.get("key") == key and isinstance(kept.get("found"), dict):
            return kept["found"]
    found = json.loads(json.dumps(find()))
    if _stamp(path) == files:  # else they changed while they were read
        with suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            write_text(place, json.dumps({"key": key, "found": found}))
    return found


def _stamp(path: Path) -> str | None:
    """A hash that changes with the files at a path, links followed; None where they changed a moment ago, or cannot be looked at."""
    hashed, newest = hashlib.sha256(), 0
    try:
        for file in files_at(path):
            status = os.stat(file)
            newest = max(newest, status.st_mtime_ns, status.st_ctime_ns)
            numbers = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino)
            hashed.update(os.fsencode(os.path.abspath(file)) + b"\0" + json.dumps(numbers).encode() + b"\n")
    except OSError:
        return None
    return None if newest > time.time_ns() - _MOMENT else hashed.hexdigest()
