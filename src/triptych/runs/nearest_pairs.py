"""A picture of the images that are nearest to one of the reference: those that may be copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from triptych.core.images import enlarge, grid, save_picture
from triptych.data.transforms import with_channels
from triptych.runs.given.pictures import Pictures
from triptych.runs.model_images import ModelImages

_CELL = 96  # pixels that an image has at least, so that two can be compared


def write_pairs(path: Path, made: Pictures, reference: Pictures, pairs: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows of an image of the reference and the made one beside it, the nearest ones first. `pairs`: their numbers."""
    shown: list[np.ndarray] = []
    channels = max(made.channels, reference.channels)
    for pair in pairs:
        for pictures, number in ((reference, pair["reference"]), (made, pair["made"])):
            image = pictures.shown(number) if isinstance(pictures, ModelImages) else pictures.images([number])[0]
            shown.append(with_channels(image, channels))
    save_picture(enlarge(grid(np.stack(shown), columns=2), max(1, round(_CELL / shown[0].shape[0]))), path)
