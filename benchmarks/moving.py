"""Moving pictures of clips, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

GAP = 4
"""White pixels between clips, before they are enlarged."""


def save_moving(path: Path, rows: Sequence[Sequence[np.ndarray]], *, scale: int = 2, milliseconds: int = 120, quality: int = 80) -> None:
    """Writes an animated WebP of rows of clips, uint8 (t, h, w, 3), of one length, each pixel `scale` pixels wide and high."""
    sheets = []
    for t in range(len(rows[0][0])):
        lines = []
        for row in rows:
            cells = [np.pad(clip[t], ((0, GAP), (0, GAP), (0, 0)), constant_values=255) for clip in row]
            lines.append(np.concatenate(cells, axis=1))
        sheet = np.concatenate(lines)[:-GAP, :-GAP]
        sheets.append(Image.fromarray(sheet.repeat(scale, 0).repeat(scale, 1)))
    path.parent.mkdir(parents=True, exist_ok=True)
    sheets[0].save(path, save_all=True, append_images=sheets[1:], duration=milliseconds, loop=0, quality=quality, method=6)
