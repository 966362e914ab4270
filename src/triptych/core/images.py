"""Images between tensors and files: 8-bit conversion, grids, pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from triptych.core.files import whole

_JPEG = ("JPEG", {"quality": 95, "subsampling": 0})
_FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    ".png": ("PNG", {}),
    ".jpg": _JPEG,
    ".jpeg": _JPEG,
    ".webp": ("WEBP", {"lossless": True}),
}
"""Pillow's format for each of PICTURES, and how it is written: as near to the pixels as it can be."""


def to_uint8(images: Tensor) -> Tensor:
    """Images in [-1, 1] (b, c, h, w) as uint8 (b, h, w, c) in host memory: clip((x + 1) * 127.5), truncated as guided-diffusion does."""
    return _as_uint8((images.float() + 1) * 127.5)


def nearest_uint8(images: Tensor) -> Tensor:
    """The same (b, h, w, c), rounded: for what was 8-bit before (decoded latents, reduced images); truncation would lower levels by one."""
    return _as_uint8(((images.float() + 1) * 127.5).round_())


def _as_uint8(levels: Tensor) -> Tensor:
    return levels.clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous().cpu()


def grid(images: Tensor | np.ndarray, *, columns: int | None = None, gap: int = 2) -> np.ndarray:
    """uint8 images (b, h, w, c) as one picture, row by row, on white; as square as it can be unless `columns` is given."""
    array = np.asarray(images)
    count, height, width, channels = array.shape
    columns = columns or max(1, int(np.ceil(np.sqrt(count))))
    rows = -(-count // columns)
    sheet = np.full((rows * (height + gap) + gap, columns * (width + gap) + gap, channels), 255, dtype=np.uint8)
    for k, image in enumerate(array):
        top, left = gap + (k // columns) * (height + gap), gap + (k % columns) * (width + gap)
        sheet[top : top + height, left : left + width] = image
    return sheet


def enlarge(picture: np.ndarray, factor: int) -> np.ndarray:
    """The picture (h, w, c) with every pixel as a square of `factor` pixels."""
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)


def save_picture(picture: np.ndarray, path: Path) -> None:
    """Writes a uint8 picture (h, w, 1 or 3) in the format of its ending (see PICTURES), whole or not at all. Raises OSError."""
    name, options = _FORMATS[path.suffix]
    if picture.shape[-1] not in (1, 3):
        raise OSError(f"{name} holds grey or RGB, not {picture.shape[-1]} channels; use .npz")
    image = Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture)
    with whole(path) as temporary:
        try:
            image.save(temporary, format=name, **options)
        except ValueError as error:  # larger than the format can be
            raise OSError(f"{name} cannot hold {image.width}x{image.height} pixels; use .png") from error
