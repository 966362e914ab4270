"""Images looked up between four pixels, with gradients that are added in a fixed order where an exact resume needs that."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Border = Literal["border", "reflection"]


def looked_up(
    images: Float[Tensor, "b c h w"], grid: Float[Tensor, "b i j 2"], *, border: Border, align_corners: bool
) -> Float[Tensor, "b c i j"]:
    """F.grid_sample, bilinear; on a GPU whose sums have a fixed order, where gradients are wanted, by operations that can keep to it."""
    if torch.is_grad_enabled() and (images.requires_grad or grid.requires_grad) and in_order(images):
        return gathered(images, grid, border=border, align_corners=align_corners)
    return F.grid_sample(images, grid, padding_mode=border, align_corners=align_corners)


def in_order(images: Tensor) -> bool:
    """Whether gradients of lookups are to be added in a fixed order, and the library's own operation would not: on a GPU."""
    return images.device.type != "cpu" and torch.are_deterministic_algorithms_enabled()


def gathered(
    images: Float[Tensor, "b c h w"], grid: Float[Tensor, "b i j 2"], *, border: Border, align_corners: bool
) -> Float[Tensor, "b c i j"]:
    """The same by gathering the four pixels, with derivatives of any order."""
    b, c, h, w = images.shape
    across, down = (
        _place(grid[..., axis], side, border=border, align_corners=align_corners) for axis, side in ((0, w), (1, h))
    )  # (b, i, j)
    left, top = across.detach().floor(), down.detach().floor()
    rows = images.permute(0, 2, 3, 1).reshape(b * h * w, c)
    first = torch.arange(b, device=images.device)[:, None, None] * (h * w)
    y = images.new_zeros(())
    for step_down, by_row in ((0, top + 1 - down), (1, down - top)):
        for step_right, by_column in ((0, left + 1 - across), (1, across - left)):
            row, column = (top + step_down).clamp(max=h - 1).long(), (left + step_right).clamp(max=w - 1).long()
            y = y + rows[first + row * w + column] * (by_row * by_column)[..., None]
    return y.permute(0, 3, 1, 2)


def _place(at: Tensor, side: int, *, border: Border, align_corners: bool) -> Tensor:
    """Places in pixels, within the image, of those in -1 to 1; one that was put back from beyond the border has no gradient."""
    pixel = (at + 1) / 2 * (side - 1) if align_corners else ((at + 1) * side - 1) / 2
    if border == "reflection":
        least, span = (0.0, float(side - 1)) if align_corners else (-0.5, float(side))
        if span == 0:
            return 0 * pixel
        beyond = (pixel - least).abs()
        turns = (beyond / span).detach().floor()
        rest = beyond - turns * span
        pixel = torch.where(turns % 2 == 0, rest, span - rest) + least
    within = (pixel > 0) & (pixel < side - 1)
    return torch.where(within, pixel, pixel.detach().clamp(0, side - 1))
