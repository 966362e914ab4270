"""Lists of images that are left out, in files.

JSON: {"format": "triptych-skip-1", "skip": [{"key": "a/b.png", "why": "truncated"}, ...]}. The key of an image is its path inside the
source, the same on every machine: the name of a file below the folder or inside the archive, or the number of an image in an array.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from triptych.core.errors import DataError
from triptych.core.files import explain, write_text
from triptych.core.reading import parsed_json, read_regular, user_path

FORMAT = "triptych-skip-1"
_MOST_BYTES = 2**28  # a million keys have 100 MB


def read_skip(path: str | Path) -> dict[str, str]:
    """Why each image is left out, by its key. Raises DataError for a file that cannot be read, or holds something else."""
    place = user_path(path)
    try:
        document = parsed_json(read_regular(place, most=_MOST_BYTES))
    except OSError as error:
        raise DataError(f"{place}: cannot be read ({explain(error)})") from error
    except ValueError as error:
        raise DataError(f"{place}: not JSON ({error}); give a list of images as triptych data doctor --quarantine writes it") from None
    match document:
        case {"format": str(name), "skip": list(entries)} if name == FORMAT:
            return dict(_entry(entry, place) for entry in entries)
    raise DataError(f'{place}: no list of images to leave out; expected {{"format": "{FORMAT}", "skip": [{{"key": ..., "why": ...}}]}}')


def write_skip(path: str | Path, reasons: Mapping[str, str]) -> None:
    """Writes the keys of images and why each is left out, whole or not at all. Raises DataError."""
    place = user_path(path)
    entries = [{"key": key, "why": why} for key, why in reasons.items()]
    try:
        write_text(place, json.dumps({"format": FORMAT, "skip": entries}, indent=1) + "\n")
    except OSError as error:
        raise DataError(f"{place}: cannot be written ({explain(error)})") from error


def _entry(entry: object, place: Path) -> tuple[str, str]:
    match entry:
        case {"key": str(key), "why": str(why)}:
            return key, why
        case {"key": str(key)}:
            return key, ""
    raise DataError(f'{place}: an entry of its list has no key; expected {{"key": "a/b.png", "why": "truncated"}}')
