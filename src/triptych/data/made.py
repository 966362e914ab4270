"""What a command wrote into a folder, by a small file beside it: so that the next one replaces that and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from triptych.core.files import write_text
from triptych.core.reading import is_inside, parsed_json

STAMP = ".triptych-translate.json"
"""What the small file is called; samples have it too."""


@dataclass(frozen=True)
class Made:
    """What a stamp says."""

    files: frozenset[str] = frozenset()
    "Paths inside the folder."
    request: str | None = None
    "What was asked for last; None: no stamp can be read."
    overview: str | None = None
    "The file that shows several of the others in one picture, and is none of them."


def mark(out: Path, names: Iterable[str], *, request: str, overview: str | None = None) -> None:
    """Writes down which files of a folder a command makes; see `Made`."""
    said = {"request": request, "files": sorted(names)} | ({} if overview is None else {"overview": overview})
    write_text(out / STAMP, json.dumps(said, indent=0) + "\n")


def made_in(out: Path) -> Made:
    """The files of a folder that commands made, as `mark` wrote them down."""
    try:
        said = parsed_json((out / STAMP).read_text("utf-8"))
        overview = said.get("overview")
        made = Made(frozenset(map(str, said["files"])), str(said["request"]), None if overview is None else str(overview))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return Made()
    return made if all(map(is_inside, made.files)) else Made()  # what is made may be deleted, but nothing elsewhere
