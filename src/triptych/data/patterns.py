"""Paths that stand for several files: braces ({000..009}, {a,b}), as webdataset writes shards, and globs (*, ?, [0-9])."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

from triptych.core.address import Place
from triptych.core.errors import DataError

MOST = 100_000
"""Files; data sets have thousands."""
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,9})\.\.(\d{1,9})")
_GLOB = re.compile(r"[*?\[]")


def exists(path: Path) -> bool:
    """Whether a file or folder lies there, or the path is a pattern, whose files `matched` looks for.

    Raises DataError where the system does not say, or does not let this user look for files in the folder.
    """
    try:
        if path.is_dir():
            os.stat(f"{path}/.")
        return path.exists() or is_pattern(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be looked at ({error.strerror})") from error


def is_pattern(path: Path) -> bool:
    """Whether a path stands for several files. One that is there, whatever it is called, stands for itself."""
    return bool(_BRACES.search(str(path)) or _GLOB.search(str(path))) and not path.exists()


def matched(path: Path) -> list[Path] | None:
    """The files of a pattern, each once: braces in their order, what a glob finds in the order of the names; None: the path is none.

    Raises DataError for a file of braces that is not there, a glob that finds none, and braces that are no range or list.
    """
    if not is_pattern(path):
        return None
    found: dict[Path, None] = {}
    for text in itertools.islice(expanded(str(path), path), MOST + 1):
        if _GLOB.search(text) and not Path(text).exists():
            names = sorted(glob.glob(text))
            if not names:
                raise DataError(f"{text}: finds no file")
            found |= dict.fromkeys(map(Path, names))
        elif Path(text).exists():
            found[Path(text)] = None
        else:
            raise DataError(f"{text}: does not exist, but is of {path}")
        if len(found) > MOST:
            raise DataError(f"{path}: stands for more than {MOST:,} files; give their folder")
    return list(found)


def expanded(text: str, whole: Place) -> Iterator[str]:
    """The texts in which something of each pair of braces stands for it. Raises DataError for braces that are no range or list."""
    found = _BRACES.search(text)
    if found is None:
        yield text
        return
    bounds = _RANGE.fullmatch(found[1])
    if bounds is not None:
        first, last = int(bounds[1]), int(bounds[2])
        padded = any(len(bound) > 1 and bound.startswith("0") for bound in bounds.groups())
        width = max(map(len, bounds.groups())) if padded else 0
        parts: Iterator[str] = (f"{k:0{width}d}" for k in range(first, last + 1 if first <= last else last - 1, 1 if first <= last else -1))
    elif "," in found[1]:
        parts = iter(found[1].split(","))
    else:
        raise DataError(f"{whole}: {found[0]} is no range and no list; expected braces such as {{000..009}} or {{a,b}}")
    for part in parts:
        yield from expanded(f"{text[: found.start()]}{part}{text[found.end() :]}", whole)
