"""imaginaire's unprojections as maps of points: a PNG for each frame, as `data.points` of clips are read.

A file is a pickle of {"w1024xh512": [row, column, point, row, column, point, ...], ...}, with a list for each of several sizes. It is read
by the reader of pickles that runs nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from triptych.core.errors import CheckpointError, DataError
from triptych.data.files import walked
from triptych.interop.nvidia.pickles import Expected, read_pickle

ENDING = ".pkl"
MOST_POINTS = 2**24 - 1
"""Numbers that a map of points can have beside 0, which is none."""

_EXPECTED = Expected("unprojection file", "those that imaginaire reads (.pkl)")


def unprojection_files(source: Path) -> list[str]:
    """SOURCE/CLIP/FRAME.pkl as CLIP/FRAME, in order. Raises DataError where there are none."""
    if not source.is_dir():
        raise DataError(f"{source}: no folder; name that of the unprojection files (.pkl)")
    names = sorted(Path(folder, entry.name) for folder, _, entries in walked(source) for entry in entries if entry.name.endswith(ENDING))
    if not names:
        raise DataError(f"{source}: holds no unprojection files (.pkl)")
    return [name.with_suffix("").as_posix() for name in names]


def point_map(path: Path, *, size: tuple[int, int]) -> np.ndarray:
    """The map of points of a file, as it is stored: uint8 (height, width, 3), the number's lowest byte first. See `read_unprojection`."""
    points = read_unprojection(path, size=size)
    return np.stack([points & 255, points >> 8 & 255, points >> 16], axis=-1).astype(np.uint8)


def read_unprojection(path: Path, *, size: tuple[int, int]) -> np.ndarray:
    """The number of the point that each pixel shows, from 1 on, 0 for none: int64 (height, width). Of several the last one counts.

    Nothing in the file is run. Raises DataError, with the file's name, for what is no unprojection, or has no table of this size.
    """
    height, width = size
    try:
        tables = read_pickle(path, expected=_EXPECTED)
    except CheckpointError as error:
        raise DataError(str(error)) from error
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
