"""The parts of UNIT, MUNIT and FUNIT: encoders of content and of style, the decoder, and the layers that make a style its parameters."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

from triptych.gans.layers import PLAIN, BlockOptions, BlockOrder, ConvBlock, LinearBlock, Nonlinearity, ResBlock, Stack, Wrapped, doubling
from triptych.gans.norms import NO_NORM

WIDENED_STYLE_STEPS = 2
"""Steps of a style encoder that double the width; the following keep it."""


def doubled(first: int, *, steps: int, most: int | None = None) -> list[int]:
    """first, 2 first, 4 first, ... of `steps` doublings, none above `most`."""
    return [first * 2**step if most is None else min(first * 2**step, most) for step in range(steps + 1)]


def halved(first: int, *, steps: int) -> list[int]:
    """first, first / 2, first / 4, ... of `steps` halvings."""
    return [max(1, first // 2**step) for step in range(steps + 1)]


class ContentEncoder(Wrapped):
    """Images (b, c, h, w) to feature maps (b, widths[-1], h / 2^n, w / 2^n) of n halvings: keys model.{i}."""

    def __init__(self, image_channels: int, *, widths: list[int], num_res_blocks: int, order: BlockOrder, options: BlockOptions) -> None:
        first = ConvBlock(image_channels, widths[0], 7, options=options)
        downs = [ConvBlock(ins, outs, 4, stride=2, options=options) for ins, outs in pairwise(widths)]
        blocks = [ResBlock(widths[-1], widths[-1], order=order, options=options) for _ in range(num_res_blocks)]
        super().__init__([first, *downs, *blocks])


class StyleEncoder(Wrapped):
    """Images (b, c, h, w) of any size to styles (b, style_dims, 1, 1): keys model.{i}."""

    def __init__(self, image_channels: int, *, num_filters: int, num_downsamples: int, style_dims: int, options: BlockOptions) -> None:
        widths = doubled(num_filters, steps=num_downsamples, most=num_filters * 2**WIDENED_STYLE_STEPS)
        first = ConvBlock(image_channels, num_filters, 7, options=options)
        downs = [ConvBlock(ins, outs, 4, stride=2, options=options) for ins, outs in pairwise(widths)]
        super().__init__([first, *downs, nn.AdaptiveAvgPool2d(1), nn.Conv2d(widths[-1], style_dims, 1)])


class StyleLayers(Wrapped):
    """Linear layers, each with a ReLU: keys model.{i}."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__(LinearBlock(ins, outs, options=replace(PLAIN, nonlinearity="relu")) for ins, outs in pairwise(widths))

    def forward(self, x: Float[Tensor, "b c *1"]) -> Float[Tensor, "b d"]:
        """(b, widths[-1]) of x (b, widths[0]), which may have two more axes, of one pixel."""
        return super().forward(x.flatten(1))


class Decoder(nn.Module):
    """Feature maps to images: residual blocks, then nearest doublings with convolutions that halve the width. Keys decoder.{i}."""

    def __init__(
        self, image_channels: int, *, widths: list[int], num_res_blocks: int, order: BlockOrder, options: BlockOptions, output: Nonlinearity
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = [ResBlock(widths[0], widths[0], order=order, options=options) for _ in range(num_res_blocks)]
        for ins, outs in pairwise(widths):
            blocks += self.doubling(ins, outs, options)
        self.decoder = Stack([*blocks, output_block(widths[-1], image_channels, options=options, output=output)])

    def doubling(self, ins: int, outs: int, options: BlockOptions) -> list[nn.Module]:
        """The layers that double the size."""
        return doubling(ins, outs, 5, options=options)

    def forward(self, content: Float[Tensor, "b d _ _"], *style: Float[Tensor, "b _"]) -> Float[Tensor, "b c h w"]:
        """The images; `style`: the vector that the adaptive norms take, where there are any."""
        return self.decoder(content, *style)


class AutoEncoder(nn.Module):
    """Images to contents and styles, and back: keys style_encoder.*, content_encoder.*, decoder.*, mlp.*; without styles the middle two."""

    def __init__(
        self,
        content_encoder: ContentEncoder,
        decoder: Decoder,
        *,
        style_encoder: StyleEncoder | None = None,
        mlp: StyleLayers | None = None,
    ) -> None:
        super().__init__()
        self.style_encoder, self.content_encoder, self.decoder, self.mlp = style_encoder, content_encoder, decoder, mlp

    def encode(self, images: Float[Tensor, "b c h w"]) -> tuple[Float[Tensor, "b d _ _"], Float[Tensor, "b style_dims 1 1"] | None]:
        """The content of images, and their style where there are styles."""
        return self.content_encoder(images), None if self.style_encoder is None else self.style_encoder(images)

    def decode(self, content: Float[Tensor, "b d _ _"], style: Float[Tensor, "b style_dims *1"] | None = None) -> Float[Tensor, "b c h w"]:
        """The images of a content in a style."""
        return self.decoder(content) if self.mlp is None else self.decoder(content, self.mlp(style))

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """The images, encoded and decoded."""
        return self.decode(*self.encode(images))


def output_block(in_channels: int, image_channels: int, *, options: BlockOptions, output: Nonlinearity) -> ConvBlock:
    """The last convolution, 7x7, with no norm of any kind."""
    return ConvBlock(in_channels, image_channels, 7, options=replace(options, norm=NO_NORM, weight_norm="none", nonlinearity=output))
