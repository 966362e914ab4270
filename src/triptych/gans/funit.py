"""FUNIT: Few-Shot Unsupervised Image-to-Image Translation (Liu et al. 2019, arXiv 1905.01723).

The pose of a content image in the class of one or a few style images. With k style images of a class, their styles are averaged.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from triptych.core.config import Config, config
from triptych.gans.autoencoder import ContentEncoder, StyleEncoder, StyleLayers, doubled, halved, output_block
from triptych.gans.layers import BlockOptions, ResBlock, Stack, UpResBlock
from triptych.gans.norms import AdaptiveNorm, Norm, NormKind
from triptych.gans.weight_norms import WeightNorm


@config
class FUNITGeneratorConfig(Config):
    """Encoders of content and style, and the decoder."""

    kind_name: ClassVar = "funit"

    num_filters: int = 64
    "Channels of the first convolution; they double at each step down."
    num_res_blocks: int = 2
    "Residual blocks of the content encoder, and of the decoder."
    num_downsamples_content: int = 4
    "Steps of the content encoder that halve the size."
    num_downsamples_style: int = 5
    "Steps of the style encoder that halve the size."
    style_dims: int = 64
    "Numbers of a style."
    mlp_filters: int = 256
    "Width of the layers between a style and the norms."
    mlp_layers: int = 2
    "Number of those layers."
    content_norm: NormKind = "instance"
    "Norm of the content encoder."
    decoder_norm: NormKind = "instance"
    "The norm, without gain and offset of its own, that a style modulates in the decoder."
    weight_norm: WeightNorm = "none"
    "Norm of the weights."

    def validate(self) -> None:
        for name in ("num_filters", "style_dims", "mlp_filters", "mlp_layers"):
            self.require(getattr(self, name) >= 1, name, "a positive whole number")
        for name in ("num_res_blocks", "num_downsamples_content", "num_downsamples_style"):
            self.require(getattr(self, name) >= 0, name, "0 or more")

    @property
    def stride(self) -> int:
        """The sides of content images are multiples of it."""
        return 2**self.num_downsamples_content

    @property
    def least_sides(self) -> dict[str, int]:
        """The fewest pixels along a side, by the setting that decides it: reflecting borders need them.

        4 for the first convolution, 7x7; 3 of the content for the decoder's first, 5x5; 2 before each step of the style encoder.
        """
        return {"num_downsamples_content": max(4, 3 * self.stride), "num_downsamples_style": max(4, 2**self.num_downsamples_style)}


class FUNITOutput(NamedTuple):
    """The content image in the style's class, and in its own."""

    images_trans: Tensor
    images_recon: Tensor | None


class FUNITDecoder(nn.Module):
    """Residual blocks, then residual blocks that double the size, all with adaptive norms: keys decoder.{i}."""

    def __init__(self, image_channels: int, *, widths: list[int], num_res_blocks: int, options: BlockOptions) -> None:
        super().__init__()
        blocks = [ResBlock(widths[0], widths[0], options=options) for _ in range(num_res_blocks)]
        ups = [UpResBlock(ins, outs, 5, shortcut_nonlinearity=True, options=options) for ins, outs in pairwise(widths)]
        self.decoder = Stack([*blocks, *ups, output_block(widths[-1], image_channels, options=options, output="tanh")])

    def forward(self, content: Tensor, style: Tensor) -> Tensor:
        """The images (b, c, h, w) in [-1, 1]; `style`: the vector (b, mlp_filters) that the norms take."""
        return self.decoder(content, style)


class FUNITTranslator(nn.Module):
    """Keys style_encoder.*, content_encoder.*, decoder.*, mlp.*."""

    def __init__(self, config: FUNITGeneratorConfig, *, image_channels: int) -> None:
        super().__init__()
        options = BlockOptions(nonlinearity="relu", weight_norm=config.weight_norm, padding_mode="reflect")
        widths = doubled(config.num_filters, steps=config.num_downsamples_content)
        self.style_encoder = StyleEncoder(
            image_channels,
            num_filters=config.num_filters,
            num_downsamples=config.num_downsamples_style,
            style_dims=config.style_dims,
            options=options,
        )
        self.content_encoder = ContentEncoder(
            image_channels,
            widths=widths,
            num_res_blocks=config.num_res_blocks,
            order="CNACNA",
            options=replace(options, norm=Norm(config.content_norm)),
        )
        adaptive = AdaptiveNorm(Norm(config.decoder_norm, affine=False), cond_channels=config.mlp_filters)
        self.decoder = FUNITDecoder(
            image_channels,
            widths=halved(widths[-1], steps=config.num_downsamples_content),
            num_res_blocks=config.num_res_blocks,
            options=replace(options, norm=adaptive),
        )
        self.mlp = StyleLayers([config.style_dims] + [config.mlp_filters] * config.mlp_layers)

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The content, and the style (b, style_dims, 1, 1), of images (b, c, h, w)."""
        return self.content_encoder(images), self.style_encoder(images)

    def decode(self, content: Tensor, style: Tensor) -> Tensor:
        """The images of a content in a style (b, style_dims, 1, 1) or (b, style_dims)."""
        return self.decoder(content, self.mlp(style))


class FUNITGenerator(nn.Module):
    """Keys generator.*."""

    def __init__(self, config: FUNITGeneratorConfig, *, image_channels: int = 3) -> None:
        super().__init__()
        self.generator = self._translator(config, image_channels=image_channels)

    def _translator(self, config: FUNITGeneratorConfig, *, image_channels: int) -> FUNITTranslator:
        return FUNITTranslator(config, image_channels=image_channels)

    def forward(self, *, images_content: Tensor, images_style: Tensor, reconstruct: bool = True) -> FUNITOutput:
        """The content images (b, c, h, w), sides multiples of 2^num_downsamples_content, in the classes of the style images.

        `images_style`: (b, c, h, w), or (b, k, c, h, w) whose k styles are averaged. `reconstruct`: also in their own style.
        """
        network = self.generator
        content = network.content_encoder(images_content)
        trans = network.decode(content, self.style(images_style))
        recon = network.decode(content, network.style_encoder(images_content)) if reconstruct else None
        return FUNITOutput(trans, recon)

    def style(self, images: Tensor) -> Tensor:
        """The style (b, style_dims, 1, 1) of images (b, c, h, w), or the mean of those of (b, k, c, h, w)."""
        if images.ndim == 4:
            return self.generator.style_encoder(images)
        return self.generator.style_encoder(images.flatten(0, 1)).unflatten(0, images.shape[:2]).mean(1)
