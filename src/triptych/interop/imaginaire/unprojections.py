"""imaginaire's unprojections as maps of points: a PNG for each frame, as `data.points` of clips are read.

A file is a pickle of {"w1024xh512": [row, column, point, row, column, point, ...], ...}, with a list for each of several sizes. It is read
by the reader of pickles that runs nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from triptych.core.errors import CheckpointError, DataError
from triptych.core.files import whole
from triptych.data.files import walked
from triptych.engine.progress import Watch, unwatched
from triptych.interop.nvidia.pickles import read_pickle

MOST_POINTS = 2**24 - 1
"""Numbers that a map of points can have beside 0, which is none."""


def write_point_maps(source: Path, out: Path, *, size: tuple[int, int] = (512, 1024), progress: Watch = unwatched) -> int:
    """Writes OUT/CLIP/FRAME.png for each SOURCE/CLIP/FRAME.pkl, of the tables of this height and width; returns how many there are.

    Raises DataError naming the file for what is no unprojection, or does not fit.
    """
    if not source.is_dir():
        raise DataError(f"{source}: no folder; name that of the unprojection files (.pkl)")
    names = sorted(Path(folder, entry.name) for folder, _, entries in walked(source) for entry in entries if entry.name.endswith(".pkl"))
    if not names:
        raise DataError(f"{source}: holds no unprojection files (.pkl)")
    for done, name in enumerate(names):
        progress(done, len(names))
        points = read_unprojection(source / name, size=size)
        place = (out / name).with_suffix(".png")
        place.parent.mkdir(parents=True, exist_ok=True)
        with whole(place) as temporary:
            colours = np.stack([points & 255, points >> 8 & 255, points >> 16], axis=-1)
            Image.fromarray(colours.astype(np.uint8)).save(temporary, "PNG")
    progress(len(names), len(names))
    return len(names)


def read_unprojection(path: Path, *, size: tuple[int, int]) -> np.ndarray:
    """The number of the point that each pixel shows, from 1 on, 0 for none: int64 (height, width). Of several the last one counts.

    Nothing in the file is run. Raises DataError, with the file's name, for what is no unprojection, or has no table of this size.
    """
    height, width = size
    try:
        tables = read_pickle(path)
    except CheckpointError as error:
        raise DataError(f"{error}; expected an unprojection file") from error
    name = f"w{width}xh{height}"
    if not isinstance(tables, dict) or not all(isinstance(key, str) for key in tables):
        raise DataError(f"{path}: no unprojection file; expected lists of rows, columns and points, by sizes as {name}")
    if name not in tables:
        raise DataError(f"{path}: has no table {name}, but {', '.join(tables) or 'none'}; choose one of these by --height and --width")
    rows = _rows(path, name, tables[name])
    down, across, point = rows.T
    if len(rows) and (rows.min() < 0 or down.max() >= height or across.max() >= width or point.max() >= MOST_POINTS):
        wanted = f"rows below {height}, columns below {width} and points below {MOST_POINTS:,}, none of them negative"
        raise DataError(f"{path}: {name} has numbers outside of it; expected {wanted}")
    points = np.zeros(size, dtype=np.int64)
    points[down, across] = point + 1  # of a pixel's several points the last one
    return points


def _rows(path: Path, name: str, values: Any) -> np.ndarray:
    """A table (n, 3). Raises DataError for anything else than a list of whole numbers, three by three."""
    values = [] if values is None else values
    if not isinstance(values, list) or len(values) % 3 or not all(type(value) is int and abs(value) < 2**62 for value in values):
        raise DataError(f"{path}: {name} is no list of whole numbers, three for each point: row, column, point")
    return np.array(values, dtype=np.int64).reshape(-1, 3)
