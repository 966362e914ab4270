"""Resampling of feature maps."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def enlarged(x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c 2*h 2*w"]:
    """Every pixel as a square of four."""
    with torch.autocast(x.device.type, enabled=False):  # which would make it float32
        return F.interpolate(x, scale_factor=2.0, mode="nearest")


def halved(x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h//2 w//2"]:
    """The mean of every square of four pixels."""
    return F.avg_pool2d(x, 2)


def resized(
    x: Float[Tensor, "b c _ _"], size: tuple[int, ...] | torch.Size, *, mode: Literal["nearest", "bilinear"]
) -> Float[Tensor, "b c h w"]:
    """x at a size (h, w), in its own precision."""
    if tuple(x.shape[2:]) == tuple(size):
        return x
    with torch.autocast(x.device.type, enabled=False):  # which would make it float32
        return F.interpolate(x, size=tuple(size), mode=mode, align_corners=False if mode == "bilinear" else None)
