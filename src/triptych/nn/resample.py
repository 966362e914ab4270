"""Resampling of feature maps by two."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def enlarged(x: Tensor) -> Tensor:
    """Every pixel of (b, c, h, w) as a square of four: (b, c, 2h, 2w), laid out channels last."""
    b, c, h, w = x.shape
    pixels = x.permute(0, 2, 3, 1)[:, :, None, :, None, :]
    return pixels.expand(b, h, 2, w, 2, c).reshape(b, 2 * h, 2 * w, c).permute(0, 3, 1, 2)


def halved(x: Tensor) -> Tensor:
    """The mean of every square of four pixels of (b, c, h, w): (b, c, h/2, w/2)."""
    return F.avg_pool2d(x, 2)
