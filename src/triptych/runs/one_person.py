"""Maps of people on whom another person walks in: all but one person taken out, by a map that says who is where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from triptych.core.errors import DataError, nearest
from triptych.data.decode import levels_of, number_map
from triptych.data.files import Files, listed, open_folder
from triptych.data.pairs import stems
from triptych.data.stored import named
from triptych.engine.progress import Watch, unwatched
from triptych.runs.files import check_apart
from triptych.runs.image_folder import save_frames

T = TypeVar("T")


def keep_person(maps: Path, out: Path, *, instances: Path, poses: Path, progress: Watch = unwatched) -> int:
    """Writes OUT/CLIP/FRAME.png for each map, a PNG, black but for one person; returns how many there are.

    `instances`: maps of the number of the person that each pixel shows, from 1 on, 0 for nobody. `poses`: the pictures, or limbs, that
    `draw_folder` draws, of the person to be kept. All three have files of the same names, of one size. Raises DataError naming the file
    for what is missing or does not fit, or is there and no such map.
    """
    for folder in (maps, instances, poses):
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder{nearest(folder.name, listed(folder.parent))}")
        check_apart(out, folder)
    files = [open_folder(folder)[0] for folder in (maps, instances, poses)]
    shown, *beside = (stems(one) for one in files)
    if not shown:
        raise DataError(f"{maps}: holds no maps (.png)")
    for numbers, one in zip(beside, files[1:], strict=True):
        missing = next((stem for stem in shown if stem not in numbers), None)
        if missing is not None:
            raise DataError(f"{one.place}: has no file {missing}.*, which {maps} has; add it, or remove that map")

    def alone(stem: str) -> np.ndarray:
        k = shown[stem]
        levels = _read(files[0], k, _levels)
        who = _read(files[1], beside[0][stem], number_map)
        pose = _read(files[2], beside[1][stem], _levels)
        for other, file, number in ((who, files[1], beside[0][stem]), (pose, files[2], beside[1][stem])):
            if other.shape[:2] != levels.shape[:2]:
                (high, wide), (rows, columns) = other.shape[:2], levels.shape[:2]
                where = file.describe(number)
                raise DataError(f"{where}: {wide}x{high} pixels, but {files[0].describe(k)} has {columns}x{rows}; make them one size")
        return levels * person_of(who, np.any(pose, axis=-1))[..., None]

    save_frames(out, list(shown), alone, progress=progress)
    return len(shown)


def person_of(who: np.ndarray, pose: np.ndarray) -> np.ndarray:
    """Where a person is: uint8 (h, w), 0 or 1. The one on whom most of the pose lies; where it lies on nobody, the largest.

    `who`: the number of the person that each pixel shows, 0 for nobody: int64 (h, w). `pose`: where something of it is drawn: bool (h, w).
    """
    for seen in (who[pose & (who > 0)], who[who > 0]):
        if len(seen):
            people, counts = np.unique(seen, return_counts=True)
            return (who == people[counts.argmax()]).astype(np.uint8)
    return np.zeros(who.shape, dtype=np.uint8)


def _read(files: Files, k: int, opened: Callable[[bytes], T]) -> T:
    """The k-th file. Raises DataError with its name."""
    with named(files, k):
        return opened(files.read(k))


def _levels(value: bytes) -> np.ndarray:
    """The levels of a PNG in colour, as they lie: uint8 (h, w, 3 or 4). Raises ValueError for others."""
    return levels_of(value, "RGB", "RGBA")
