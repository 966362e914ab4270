"""8-bit images as values of a continuous density, and back: uniform dequantization.

An 8-bit image v is reduced to n = 2^bits levels, q = floor(v / 2^(8 - bits)), and given noise u in [0, 1) within its levels,

    x = (q + u) / n - 1/2.

With u uniform, the mean of log p(x) - d ln n over u bounds log P(q) of the d values from below (Theis et al. 2016, arXiv 1511.01844).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

_ABOVE_LEVEL = 2.0**-10  # of a level: the conversion of images to 8 bits truncates, and float32 may lie a little below a whole number


@dataclass(frozen=True)
class Dequantization:
    """The way from images to the x of a density, and back; d, the number of values of an image, is `dimensions`."""

    bits: int
    "That are kept of each 8-bit value."
    dimensions: int

    def of_images(self, images: Float[Tensor, "b c h w"], u: Tensor | float, *, dtype: torch.dtype) -> Float[Tensor, "b c h w"]:
        """x of images in [-1, 1]: of the 8-bit values that they were made of. `u`: (b, c, h, w), or a number."""
        return self.of_values(((images + 1) * 127.5).round(), u, dtype=dtype)

    def of_values(self, values: Shaped[Tensor, "b c h w"], u: Tensor | float, *, dtype: torch.dtype) -> Float[Tensor, "b c h w"]:
        """x of 8-bit values; `u` as in `of_images`."""
        u = u.to(dtype) if isinstance(u, Tensor) else u
        level = torch.floor(values.to(dtype) / 2 ** (8 - self.bits))
        return (level + u) / 2**self.bits - 0.5

    def images(self, x: Float[Tensor, "b c h w"], *, hint: str) -> Float[Tensor, "b c h w"]:
        """Images in [-1, 1] of x, as 8-bit values at the lower edge of their level, as openai/glow's.

        What is not finite becomes black, with a warning that ends with `hint`, what may help.
        """
        if not torch.isfinite(x).all():
            bad = int((~torch.isfinite(x)).flatten(1).any(1).sum())
            warnings.warn(f"{bad} of {len(x)} images are not finite; what is not is black ({hint})", stacklevel=3)
            x = x.nan_to_num(nan=-1.0, posinf=-1.0)
        levels = 2**self.bits
        values = torch.floor((x + 0.5) * levels) * (256 / levels)
        return ((values + _ABOVE_LEVEL) / 127.5 - 1).clamp(-1, 1)

    def log_prob(self, log_density: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
        """log P of the quantized images, in nats, from log p(x)."""
        return log_density - self.dimensions * self.bits * math.log(2)

    def bits_per_dim(self, log_density: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
        """-log P in bits for each value of an image, from log p(x) in nats."""
        return self.bits - log_density / (self.dimensions * math.log(2))
