"""The true flow from each frame of a clip to the frame before, in files of NumPy."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from triptych.core.errors import DataError, nearest
from triptych.core.reading import read_regular
from triptych.data.cut import Cut
from triptych.data.files import MOST_BYTES, listed
from triptych.data.transforms import Size


class FlowFiles:
    """The true flow of frames, in files of NumPy."""

    def __init__(self, place: Path, keys: Sequence[str], *, clips: Sequence[np.ndarray], folder: str) -> None:
        """Raises DataError where one is missing; the first frame of a clip has no frame before it, and needs none."""
        self.name, self._place, self._keys = folder, place, keys
        if not place.is_dir():
            raise DataError(f"{place.parent}: holds no folder {folder} (data.flow){nearest(folder, listed(place.parent))}")
        self._firsts = {int(clip[0]) for clip in clips}
        missing = [key for k, key in enumerate(keys) if k not in self._firsts and not (place / f"{key}.npy").is_file()]
        if missing:
            more = f" (nor {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise DataError(f"{place}: has no file {missing[0]}.npy{more}; add it, or leave data.flow out")

    def read(self, k: int, cut: Cut, size: Size, crop: np.ndarray | None) -> np.ndarray:
        """The flow of frame k, cut as its image of this width and height: float32 (2, h, w), in pixels of the cut one. Raises DataError."""
        path = self._place / f"{self._keys[k]}.npy"
        steps = cut.fit(size, crop)
        if k in self._firsts:
            return np.full((2, steps.height, steps.width), np.nan, dtype=np.float32)
        try:
            flow = np.load(io.BytesIO(read_regular(path, most=MOST_BYTES)), allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path}: cannot be read as an array of NumPy ({error}); write it by numpy.save") from error
        if flow.shape != (size[1], size[0], 2) or flow.dtype.kind != "f":
            wanted = f"floats of shape ({size[1]}, {size[0]}, 2), height and width of its frame"
            raise DataError(f"{path}: {flow.dtype} of shape {flow.shape}, expected {wanted}")
        factors = steps.resized[0] / size[0], steps.resized[1] / size[1]
        return np.stack([cut.numbers(flow[..., axis].astype(np.float32) * np.float32(factors[axis]), crop) for axis in (0, 1)])
