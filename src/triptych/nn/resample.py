"""Resampling of feature maps."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def enlarged(x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c 2*h 2*w"]:
    """Every pixel as a square of four."""
    if x.device.type != "cpu":
        return repeated(x)
    with torch.autocast(x.device.type, enabled=False):  # which would make it float32
        return F.interpolate(x, scale_factor=2.0, mode="nearest")


def repeated(x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c 2*h 2*w"]:
    """The same by repeating, channels last. A GPU adds its gradients fast in a fixed order, and slowly those of F.interpolate."""
    b, c, h, w = x.shape
    rows = x.permute(0, 2, 3, 1)[:, :, None, :, None]
    return rows.expand(b, h, 2, w, 2, c).reshape(b, 2 * h, 2 * w, c).permute(0, 3, 1, 2)


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
