"""Convolutions to few channels, such as the three of an image, several pixels at a time.

A CPU computes a vector of output channels at once, 8 of them with AVX2 and 16 with AVX-512; three leave most of it empty. So n pixels that
are side by side become channels: y[o, i, n j + p] = sum over the taps of w[o, ., a, b] x[., i + a, n j + p + b] is a convolution with a
stride of n, whose kernel for p is w moved p pixels to the right. Channels last, the result lies in memory as its pixels do.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from triptych.nn.cpu import takes_other_ways, vectors

_MOST_CHANNELS = 4
_PIXELS = {"AVX2": 2, "AVX512": 4}
_NARROWEST = 5  # taps along a side: the further ones cost a part of what is saved (measured, benchmarks/few_channels.py)
_FEWEST = 2**13  # pixels


def pixels_together(x: Float[Tensor, "b i h w"], weight: Float[Tensor, "o i kh kw"], *, stride: int, padding: int) -> int:
    """The number n of pixels that are computed together; 1 where a plain convolution is as fast."""
    (b, _, *sides), (o, _, *kernel) = x.shape, weight.shape
    height, width = (side + 2 * padding - taps + 1 for side, taps in zip(sides, kernel, strict=True))
    suits = o <= _MOST_CHANNELS and min(kernel) >= _NARROWEST and stride == 1 and b * height * width >= _FEWEST
    if not suits or x.device.type != "cpu" or torch.compiler.is_compiling() or not takes_other_ways():
        return 1
    if not x.is_contiguous(memory_format=torch.channels_last):
        return 1
    count = _PIXELS.get(vectors(), 1)
    return 1 if width % count else count


def convolved_together(
    x: Float[Tensor, "b i h w"], weight: Float[Tensor, "o i kh kw"], bias: Float[Tensor, " o"] | None, *, padding: int, count: int
) -> Float[Tensor, "b o _ _"]:
    """What `F.conv2d` gives, `count` pixels of a row at a time; the width of the result is a multiple of it."""
    moved = torch.stack([F.pad(weight, (place, count - 1 - place)) for place in range(count)]).flatten(0, 1)
    biases = None if bias is None else bias.repeat(count)
    y = F.conv2d(x, moved.contiguous(memory_format=torch.channels_last), biases, stride=(1, count), padding=padding)
    return y.unflatten(1, (count, len(weight))).permute(0, 3, 4, 1, 2).flatten(2, 3).permute(0, 3, 1, 2)
