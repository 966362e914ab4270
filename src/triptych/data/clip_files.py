"""The files of clips: which frames there are, in which order, with which maps.

The frames of a clip are the files of one sub-folder, in the order of their names with numbers as numbers; in a folder without sub-folders
those whose names are alike up to their last "_" (clip_0001.png); or the frames of one video file. Frames of a video have no names but their
places: the frame at the same place of each other type goes with them.

Beside LMDBs all_filenames.json may lie, as imaginaire writes it: the stems of each sequence, in order. A sequence whose name ends in three
characters between underscores, three on each side, is a part of a recording: its keys lack that ending.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from triptych.core.errors import DataError
from triptych.core.reading import parsed_json, read_regular
from triptych.core.wording import counted
from triptych.data.archives import Archive
from triptych.data.files import MOST_BYTES, Files
from triptych.data.pairs import agreed, open_types, stems
from triptych.data.videos import ClipFolder, open_clips

SEQUENCES = "all_filenames.json"
"""The file beside LMDBs that says which frames follow one another."""
_PART = re.compile(r"___.{3}___\Z", re.DOTALL)


@dataclass(frozen=True)
class ClipFiles:
    """The frames at a place, numbered from 0."""

    keys: list[str]
    "Clip and name of each frame."
    files: dict[str, Files]
    "Of each type."
    numbers: dict[str, np.ndarray]
    "Of each type the number of each frame's file."
    clips: dict[str, list[int]]
    "The numbers of the frames of each clip, in order, by its name."
    warning: str = ""
    "What the log says of frames that are in several clips."


def open_clip_files(root: Path, types: Mapping[str, str]) -> ClipFiles:
    """The frames of clips below a folder, with a sub-folder of each type. Raises DataError for what is missing or does not agree.

    `types`: the folder of each type, and what it is, for messages.
    """
    files = open_types(root, types, folder=open_clips)
    by_stem = {name: stems(images) for name, images in files.items()}
    found = by_list(root, files, by_stem)
    if found is not None:
        return found
    keys, files, numbers = agreed(root, files, by_place(root, files, by_stem))
    return ClipFiles(keys, files, numbers, clips_of(keys))


def clips_of(keys: Sequence[str]) -> dict[str, list[int]]:
    """The numbers of the frames of each clip, in order, by the clip's name; of frames by sub-folders and stem.

    A clip is a folder, or what names begin with. Raises DataError where both have one name.
    """
    clips: dict[str, list[int]] = {}
    for k, key in enumerate(keys):
        folder, _, stem = key.rpartition("/")
        clip = folder or stem.rpartition("_")[0]
        others = clips.setdefault(clip, [])
        if others and ("/" in keys[others[0]]) != bool(folder):
            one, other = sorted((keys[others[0]], key))
            raise DataError(f"{one} and {other} would be frames of one clip, {clip}; rename the folder or the files")
        others.append(k)
    return {name: sorted(clips[name], key=lambda k: in_order(keys[k])) for name in sorted(clips, key=in_order)}


def in_order(name: str) -> tuple[list[tuple[str, int]], str]:
    """What sorts names so that their numbers count as numbers: frame 9 before frame 10."""
    return [(text, int(number or -1)) for text, number in re.findall(r"(\D*)(\d{0,18})", name)], name


def by_place(root: Path, files: Mapping[str, object], by_stem: Mapping[str, dict[str, int]]) -> Mapping[str, dict[str, int]]:
    """The number of each file of each type, by a name that is its place in its clip where that is a video of any type.

    Raises DataError where there are not as many of each.
    """
    videos = {clip for images in files.values() if isinstance(images, ClipFolder) for clip in images.videos}
    if not videos:
        return by_stem
    renamed, counts = {}, dict[str, dict[str, int]]()
    for name, numbers in by_stem.items():
        keys = list(numbers)
        clips = clips_of(keys)
        counts[name] = {clip: len(clips.get(clip, ())) for clip in videos}
        placed = {keys[k]: f"{clip}/{t:06d}" for clip in videos & clips.keys() for t, k in enumerate(clips[clip])}
        renamed[name] = {placed.get(key, key): number for key, number in numbers.items()}
    first = next(iter(by_stem))
    for clip in sorted(videos, key=in_order):
        for name, found in counts.items():
            if found[clip] != counts[first][clip]:
                has = counted(found[clip], "frame")
                raise DataError(
                    f"{root / name / clip}: {has}, but {root / first / clip} has {counts[first][clip]}; frames of videos go "
                    "together by their places: give as many of each"
                )
    return renamed


def by_list(root: Path, files: Mapping[str, Files], by_stem: Mapping[str, dict[str, int]]) -> ClipFiles | None:
    """The frames that the list beside LMDBs names; None where there is none. Raises DataError for one that an LMDB lacks."""
    path = root / SEQUENCES
    if not (path.is_file() and all(isinstance(images, Archive) for images in files.values())):
        return None
    keys, clips, stored = list[str](), dict[str, list[int]](), list[str]()
    for sequence, names in _sequences(path).items():
        clips[sequence] = list(range(len(keys), len(keys) + len(names)))
        recording = _PART.sub("", sequence)
        keys += [f"{sequence}/{name}" if sequence else name for name in names]
        stored += [f"{recording}/{name}" if recording else name for name in names]
    for name, numbers in by_stem.items():
        missing = [key for key in stored if key not in numbers]
        if missing:
            more = f" (nor {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise DataError(
                f"{root / name}: has no frame {missing[0]}{more}, which {path} names; make it again with it, or take it out there"
            )
    numbered = {name: np.array([numbers[key] for key in stored], dtype=np.int64) for name, numbers in by_stem.items()}
    return ClipFiles(keys, dict(files), numbered, clips, _shared(path, stored, clips))


def _shared(path: Path, stored: Sequence[str], clips: Mapping[str, Sequence[int]]) -> str:
    """A warning of frames that several sequences name; else nothing. `stored`: the key of each frame."""
    first, others = dict[str, str](), dict[str, str]()
    for name, numbers in clips.items():
        for k in numbers:
            if first.setdefault(stored[k], name) != name:
                others.setdefault(stored[k], name)
    if not others:
        return ""
    frame, other = next(iter(others.items()))
    some = f"{len(others):,} frame{' is' if len(others) == 1 else 's are'} in several sequences ({frame} in {first[frame]} and {other})"
    return f"warning: {path}: {some}: learned with each of them, and where one is held out, its figures flatter"


def _sequences(path: Path) -> dict[str, list[str]]:
    try:
        found: Any = parsed_json(read_regular(path, most=MOST_BYTES))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error}); make it again") from error
    fits = isinstance(found, dict) and all(
        isinstance(names, list) and names and all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
        for names in found.values()
    )
    if not fits or not found:
        raise DataError(f"{path}: expected the stems of each sequence, in order and each once, as {{sequence: [stem, ...]}}")
    return found
