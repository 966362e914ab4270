"""Partial convolution (Liu et al. 2018, Image Inpainting for Irregular Holes Using Partial Convolutions, arXiv 1804.07723)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.gans.layers import ConvBlock
from triptych.gans.norms import ConditionalNorm
from triptych.gans.weight_norms import Conv2d, normalised_weight


class PartialConv2d(Conv2d):
    """A convolution of the valid pixels alone, Eq. 1: W (x m) k / sum(m) + bias, k pixels in the window; 0 where none is valid."""

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The convolution alone; see `masked`."""
        return self.masked(input, mask)[0]

    def masked(self, input: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The convolution of (b, c, h, w) and, Eq. 2, the mask (b, 1, h, w) of its pixels: 1 where the window had a valid one.

        `mask`: (b, 1, h, w) of zeros (holes) and ones; None: no holes. Padding with zeros is a hole as well.
        """
        if mask is None:
            mask = input.new_ones(input.shape[0], 1, *input.shape[2:])
        holes = mask.to(input.dtype)
        sums = F.conv2d(self.padded(input * holes), normalised_weight(self), None, self.stride)
        with torch.no_grad(), torch.autocast(input.device.type, enabled=False):
            window = torch.ones(1, 1, *self.kernel_size, dtype=torch.float32, device=input.device)
            count = F.conv2d(self.padded(mask.float()), window, stride=self.stride)
            ratio = (window.numel() / count.clamp(min=1)).to(sums.dtype)
            valid = count.clamp(max=1).to(sums.dtype)
        sums = sums * ratio
        if self.bias is not None:
            sums = sums + self.bias.to(sums.dtype)[:, None, None]
        return sums * valid, valid


class PartialConvBlock(ConvBlock):
    """A `ConvBlock` with a partial convolution."""

    _convolution = PartialConv2d

    def masked(self, x: Tensor, mask: Tensor | None, *conditions: Tensor) -> tuple[Tensor, Tensor]:
        """The block's output and its mask, as `PartialConv2d.masked` gives them."""
        for layer in self.layers.values():
            if isinstance(layer, PartialConv2d):
                x, mask = layer.masked(x, mask)
            else:
                x = layer(x, *conditions) if isinstance(layer, ConditionalNorm) else layer(x)
        assert mask is not None
        return x, mask
