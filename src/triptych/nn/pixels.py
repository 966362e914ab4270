"""Stored images as frozen networks take them: resized, and normalized as their training did.

The resize is part of a network's definition: features of one network after two resizes do not compare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

Resize = Literal["tensorflow", "clean", "bicubic"]


@dataclass(frozen=True)
class Pixels:
    """How a network takes images: square ones of `side` pixels, each channel less `mean` and divided by `deviation`, of values in 0..255.

    `mean` and `deviation` have one number for each channel: grey or RGB.
    """

    side: int
    resize: Resize
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    bgr: bool = False
    "Whether the channels come in the order blue, green, red."

    def prepared(self, images: UInt8[Tensor, "b h w c"], like: Tensor, *, resize: Resize | None = None) -> Float[Tensor, "b _ _ _"]:
        """Images, grey or RGB, as the network takes them, on the device and in the type of `like`; `resize` None: the usual one."""
        x = images.permute(0, 3, 1, 2).to(like)
        if x.shape[1] > len(self.mean):
            x = torch.einsum("bchw,c->bhw", x, torch.tensor(_LUMA).to(x))[:, None]
        if tuple(x.shape[2:]) != (self.side, self.side):
            x = RESIZES[resize or self.resize](x, self.side)
        x = x.expand(-1, len(self.mean), -1, -1)
        x = x.flip(1) if self.bgr else x
        mean, deviation = (torch.tensor(values).to(x)[:, None, None] for values in (self.mean, self.deviation))
        return ((x - mean) / deviation).contiguous(memory_format=torch.channels_last)


_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, of red, green and blue


def _tensorflow(x: Float[Tensor, "b c h w"], side: int) -> Float[Tensor, "b c s s"]:
    """TensorFlow 1's bilinear resize: pixel i of the result is at i·(old size / new size) of x, between two pixels.

    It knows of no half pixels, and no antialiasing.
    """
    for axis in (3, 2):
        size = x.shape[axis]
        # In float32, as there: at some sizes the product lies on the other side of a whole number.
        place = torch.arange(side, dtype=torch.float32, device=x.device) * torch.tensor(size / side, dtype=torch.float32, device=x.device)
        before = place.long().clamp(max=size - 1)
        after = (before + 1).clamp(max=size - 1)
        fraction = (place - before).to(x)
        if axis == 2:
            fraction = fraction[:, None]
        low = x.index_select(axis, before)
        x = low + (x.index_select(axis, after) - low) * fraction
    return x


def _bicubic(x: Float[Tensor, "b c h w"], side: int) -> Float[Tensor, "b c s s"]:
    """Bicubic with antialiasing, which PIL's is too: a cubic of a = -0.5, made wider where x is made smaller. It may leave 0..255."""
    return F.interpolate(x, size=(side, side), mode="bicubic", antialias=True, align_corners=False)


def _clean(x: Float[Tensor, "b c h w"], side: int) -> Float[Tensor, "b c s s"]:
    """What clean-fid does: PIL's bicubic resize of floats, cut off at 0 and 255. Parmar et al. 2022, arXiv 2104.11222."""
    return _bicubic(x, side).clamp(0, 255)


RESIZES: Mapping[Resize, Callable[[Tensor, int], Tensor]] = {"tensorflow": _tensorflow, "clean": _clean, "bicubic": _bicubic}
