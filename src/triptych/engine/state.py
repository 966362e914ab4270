"""state.json of a checkpoint: what has to be in it, and whether it is what was written.

    {"format": 1, "images_seen": 512000, "files": {name: SHA-256}, "log2_loss_scale": {networks: number},
     "best": null or {"score": number, "images": number, "by": what chose it}, "window": {measurement: [sum, number]}, "imported": {...},
     "begun": {average: images}, "statistics": false, "digest": SHA-256 of all the rest}

"files" are in the folder itself or, those that several processes wrote together (format 2), in one folder for each: see parts.py. Versions
that cannot read these say so by the number.

"begun" says at how many images averages by length began that the run did not have from its start, "statistics" that averages have none
of their own, for images could not be read. They, "window" and "imported" may be missing; so may "digest" and "by", which the first
versions did not write.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from triptych.core.errors import CheckpointError
from triptych.core.files import explain, write_text
from triptych.core.reading import parsed_json, read_regular
from triptych.engine.run_directory import REPLACED

FORMAT, DIVIDED = 1, 2
SUFFIX = ".safetensors"
RESERVED = ("format", "images_seen", "files", "digest")
"""Fields that `write_state` sets by itself."""
STATISTICS = "statistics"
_LARGEST = 1 << 26  # bytes
_LOG2_LIMIT = 1000  # 2 to a higher power is no float64


def write_state(path: Path, *, images_seen: int, files: Mapping[str, str], info: Mapping[str, Any]) -> None:
    """Writes a state.json with a digest of its own. Raises OSError, and ValueError for an `info` that would not be read again."""
    clash = [name for name in RESERVED if name in info]
    if clash:
        raise ValueError(f"state.json has its own {', '.join(clash)}")
    written = {"format": _format(files), "images_seen": images_seen, "files": dict(files), **info}
    state = json.loads(json.dumps(written))  # as it will be read
    fault = _fault(state)
    if fault is not None:
        raise ValueError(f"state.json: {fault}")
    write_text(path, json.dumps(state | {"digest": _digest(state)}, indent=1))


class NotNow(CheckpointError):
    """A checkpoint that cannot be read now, or not by this version, and that may be whole."""


class NoneReadable(CheckpointError):
    """A run has checkpoints, and all of them are damaged."""


def read_state(path: Path) -> dict[str, Any]:
    """The fields of a state.json, without its digest. Raises CheckpointError that names the file and the field that is wrong."""
    try:
        state = parsed_json(read_regular(path, most=_LARGEST))
    except (FileNotFoundError, NotADirectoryError):
        missing = f"{path} is missing" if path.parent.is_dir() else f"there is no checkpoint {path.parent}"
        raise CheckpointError(missing) from None
    except OSError as error:
        raise NotNow(f"cannot read {path}: {explain(error)}") from error
    except ValueError:
        raise CheckpointError(f"{path} is damaged: it is not JSON") from None
    if not isinstance(state, dict) or not _is_count(state.get("format")):
        raise CheckpointError(f"{path} is damaged: it has no format number")
    if state["format"] not in (FORMAT, DIVIDED):
        raise NotNow(f"{path} has format {state['format']}, this version of Triptych reads up to {DIVIDED}; update Triptych")
    digest = state.pop("digest", None)
    try:
        fault = _fault(state) or _other_number(state["images_seen"], path.parent.name)
        if fault is None and digest is not None and digest != _digest(state):
            fault = "its content is not what was written"
    except RecursionError:
        fault = "it is nested too deeply"
    if fault is not None:
        raise CheckpointError(f"{path} is damaged: {fault}")
    return state


def _format(files: Mapping[str, str]) -> int:
    return DIVIDED if any("/" in name for name in files) else FORMAT


def _digest(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _other_number(images_seen: int, folder: str) -> str | None:
    """The fault of a state.json that lies in the folder of another checkpoint."""
    number = folder.removeprefix(REPLACED)
    if not re.fullmatch(r"\d{9,}", number) or int(number) == images_seen:
        return None
    return f"images_seen is {_short(images_seen)}, but its folder is that of {int(number)}"


# The fields -----------------------------------------------------------------------------------------------------------


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0  # JSON's true is an int to Python


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_table(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(map(fits, value.values()))


def _is_file(name: str, digest: Any) -> bool:
    path = Path(name)
    inside = len(path.parts) <= 2 and ".." not in path.parts and not path.is_absolute() and str(path) == name and name.endswith(SUFFIX)
    return inside and isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest) is not None


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))


def _is_best(value: Any) -> bool:
    if not isinstance(value, dict):
        return value is None
    return _is_number(value.get("score")) and _is_count(value.get("images")) and isinstance(value.get("by", ""), str)


def _is_origin(value: Any) -> bool:
    averages = value.get("averages") if isinstance(value, dict) else None
    return isinstance(averages, list) and all(isinstance(stem, str) for stem in averages)


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "images_seen": (_is_count, "a whole number, 0 or more"),
    "files": (
        lambda value: isinstance(value, dict) and all(_is_file(*entry) for entry in value.items()),
        "names of files that a checkpoint can have, and their SHA-256",
    ),
    "log2_loss_scale": (
        lambda value: _is_table(value, lambda scale: _is_number(scale) and abs(scale) <= _LOG2_LIMIT),
        f"numbers from -{_LOG2_LIMIT} to {_LOG2_LIMIT}, by name",
    ),
    "best": (_is_best, "null, or a score and the images seen"),
    "window": (lambda value: _is_table(value, _is_pair), "pairs of numbers, by name"),
    "begun": (lambda value: _is_table(value, _is_count), "numbers of images, by name"),
    STATISTICS: (lambda value: isinstance(value, bool), "true or false"),
    "imported": (_is_origin, "where the weights are from, with a list of averages"),
}
_OPTIONAL = ("window", "begun", STATISTICS, "imported")


def _fault(state: Mapping[str, Any]) -> str | None:
    """The fault of the first field that does not fit."""
    for name, (fits, expected) in _FIELDS.items():
        if name in state and not fits(state[name]):
            return f"{name} is {_short(state[name])}, expected {expected}"
        if name not in state and name not in _OPTIONAL:
            return f"{name} is missing"
    return None


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
