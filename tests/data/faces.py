"""Clips of a face that moves: frames that say where their pixels are, with landmarks, lines and class maps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.data.pairs import as_map, write
from tests.data.pictures import encoded

WIDTH, HEIGHT, CLASSES = 40, 36, 5


def corner(clip: int, t: int) -> tuple[int, int]:
    """The left and upper end of the points."""
    return 14 + 2 * clip + t % 3, 12 + clip + t % 2


def points(clip: int, t: int, *, extent: int) -> list[list[float]]:
    """68 points (x, y) of a face so wide, and two thirds as high."""
    left, top = corner(clip, t)
    across, down = np.random.default_rng([clip, t]).random((2, 68))
    across[:2], down[:2] = (0, 1), (0, 1)
    return [[left + extent * x, top + extent * 2 / 3 * y] for x, y in zip(across.tolist(), down.tolist(), strict=True)]


def frame(clip: int, t: int) -> np.ndarray:
    """(h, w, 3)"""
    pixels = np.zeros((HEIGHT, WIDTH, 3), dtype=np.uint8)
    pixels[..., 0], pixels[..., 1], pixels[..., 2] = np.arange(WIDTH) * 6, np.arange(HEIGHT)[:, None] * 7, 60 * clip + 9 * t
    return pixels


def lines(clip: int, t: int) -> np.ndarray:
    """(h, w), of levels that no cut but the right one shows."""
    return np.random.default_rng([clip, t, 1]).integers(0, 256, (HEIGHT, WIDTH)).astype(np.uint8)


def classes(clip: int, t: int) -> np.ndarray:
    return np.random.default_rng([clip, t, 2]).integers(0, CLASSES, (HEIGHT, WIDTH))


def write_faces(root: Path, lengths: dict[int, int], *, extent: int, openpose: bool = False) -> Path:
    for clip, length in lengths.items():
        for t in range(length):
            name = f"c{clip}/{t}"
            write(root / "images" / f"{name}.png", encoded(frame(clip, t)))
            write(root / "lines" / f"{name}.png", encoded(lines(clip, t)))
            write(root / "labels" / f"{name}.png", as_map(classes(clip, t)))
            found: Any = points(clip, t, extent=extent)
            if openpose:
                values = [value for point in [*found, found[0], found[1]] for value in (*point, 0.9)]
                found = {"people": [{"face_keypoints_2d": values}]}
            write(root / "landmarks" / f"{name}{'_keypoints' if openpose else ''}.json", json.dumps(found).encode())
    return root
