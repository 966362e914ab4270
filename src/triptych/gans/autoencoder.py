"""The parts of UNIT, MUNIT and FUNIT: encoders of content and of style, the decoder, and the layers that make a style its parameters."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

from triptych.gans.layers import PLAIN, BlockOptions, BlockOrder, ConvBlock, LinearBlock, Nonlinearity, ResBlock, Stack, Upsample
from triptych.gans.norms import NO_NORM

WIDENED_STYLE_STEPS = 2
"""Steps of a style encoder that double the width; the following keep it."""


def doubled(first: int, *, steps: int, most: int | None = None) -> list[int]:
    """first, 2 first, 4 first, ... of `steps` doublings, none above `most`."""
    return [first * 2**step if most is None else min(first * 2**step, most) for step in range(steps + 1)]


def halved(first: int, *, steps: int) -> list[int]:
    """first, first / 2, first / 4, ... of `steps` halvings."""
    return [max(1, first // 2**step) for step in range(steps + 1)]


class ContentEncoder(nn.Module):
    """Images to feature maps, 2^num_downsamples times smaller: keys model.{i}."""

    def __init__(self, image_channels: int, *, widths: list[int], num_res_blocks: int, order: BlockOrder, options: BlockOptions) -> None:
        super().__init__()
        first = ConvBlock(image_channels, widths[0], 7, options=options)
        downs = [ConvBlock(ins, outs, 4, stride=2, options=options) for ins, outs in pairwise(widths)]
        blocks = [ResBlock(widths[-1], widths[-1], order=order, options=options) for _ in range(num_res_blocks)]
        self.model = Stack([first, *downs, *blocks])

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d _ _"]:
        """The content of images: (b, widths[-1], h / 2^n, w / 2^n)."""
        return self.model(images)


class StyleEncoder(nn.Module):
    """Images to one vector each, whatever their size: keys model.{i}."""

    def __init__(self, image_channels: int, *, num_filters: int, num_downsamples: int, style_dims: int, options: BlockOptions) -> None:
        super().__init__()
        widths = doubled(num_filters, steps=num_downsamples, most=num_filters * 2**WIDENED_STYLE_STEPS)
        first = ConvBlock(image_channels, num_filters, 7, options=options)
        downs = [ConvBlock(ins, outs, 4, stride=2, options=options) for ins, outs in pairwise(widths)]
        self.model = Stack([first, *downs, nn.AdaptiveAvgPool2d(1), nn.Conv2d(widths[-1], style_dims, 1)])

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b style_dims 1 1"]:
        """The style of images."""
        return self.model(images)


class StyleLayers(nn.Module):
    """Linear layers, each with a ReLU: keys model.{i}."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        relu = replace(PLAIN, nonlinearity="relu")
        self.model = Stack([LinearBlock(ins, outs, options=relu) for ins, outs in pairwise(widths)])

    def forward(self, x: Float[Tensor, "b c *1"]) -> Float[Tensor, "b d"]:
        """(b, widths[-1]) of x (b, widths[0]), which may have two more axes, of one pixel."""
        return self.model(x.flatten(1))


class Decoder(nn.Module):
    """Feature maps to images: residual blocks, then nearest doublings with convolutions that halve the width. Keys decoder.{i}."""

    def __init__(
        self, image_channels: int, *, widths: list[int], num_res_blocks: int, order: BlockOrder, options: BlockOptions, output: Nonlinearity
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = [ResBlock(widths[0], widths[0], order=order, options=options) for _ in range(num_res_blocks)]
        for ins, outs in pairwise(widths):
            blocks += [Upsample(), ConvBlock(ins, outs, 5, options=options)]
        self.decoder = Stack([*blocks, output_block(widths[-1], image_channels, options=options, output=output)])

    def forward(self, content: Float[Tensor, "b d _ _"], *style: Float[Tensor, "b _"]) -> Float[Tensor, "b c h w"]:
        """The images; `style`: the vector that the adaptive norms take, where there are any."""
        return self.decoder(content, *style)


def output_block(in_channels: int, image_channels: int, *, options: BlockOptions, output: Nonlinearity) -> ConvBlock:
    """The last convolution, 7x7, with no norm of any kind."""
    return ConvBlock(in_channels, image_channels, 7, options=replace(options, norm=NO_NORM, weight_norm="none", nonlinearity=output))
