"""MUNIT: Multimodal Unsupervised Image-to-Image Translation (Huang et al. 2018, arXiv 1804.04732).

An image is a content, which both domains share, and a style of its domain; the decoder's norms take the style (AdaIN). A translation
has the content of one image and a style of the other domain: an encoded one, or one drawn from N(0, I).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from triptych.core.config import Config, config
from triptych.gans.autoencoder import ContentEncoder, Decoder, StyleEncoder, StyleLayers, doubled, halved
from triptych.gans.layers import BlockOptions, BlockOrder
from triptych.gans.norms import AdaptiveNorm, Norm, NormKind
from triptych.gans.weight_norms import WeightNorm


@config
class MUNITGeneratorConfig(Config):
    """The two auto-encoders."""

    kind_name: ClassVar = "munit"

    num_filters: int = 64
    "Channels of the first convolution; they double at each step down."
    max_num_filters: int = 256
    "The most channels of a content."
    num_res_blocks: int = 4
    "Residual blocks of the content encoder, and of the decoder."
    num_downsamples_content: int = 2
    "Steps of the content encoder that halve the size."
    num_downsamples_style: int = 4
    "Steps of the style encoder that halve the size."
    style_dims: int = 8
    "Numbers of a style."
    mlp_filters: int = 256
    "Width of the layers between a style and the norms."
    mlp_layers: int = 2
    "Number of those layers."
    content_norm: NormKind = "instance"
    "Norm of the content encoder."
    style_norm: NormKind = "none"
    "Norm of the style encoder."
    decoder_norm: NormKind = "instance"
    "The norm, without gain and offset of its own, that a style modulates in the decoder."
    weight_norm: WeightNorm = "spectral"
    "Norm of the weights."
    pre_activation: bool = True
    "Residual blocks begin with norm and nonlinearity, and do not end with them."
    output: Literal["none", "tanh"] = "none"
    "What the images go through last."

    def validate(self) -> None:
        for name in ("num_filters", "max_num_filters", "style_dims", "mlp_filters", "mlp_layers"):
            self.require(getattr(self, name) >= 1, name, "a positive whole number")
        for name in ("num_res_blocks", "num_downsamples_content", "num_downsamples_style"):
            self.require(getattr(self, name) >= 0, name, "0 or more")

    @property
    def stride(self) -> int:
        """The sides of images are multiples of it."""
        return 2**self.num_downsamples_content

    @property
    def least_size(self) -> int:
        """The fewest pixels along a side: 4 for the reflecting border of the first convolution, 2 along a side of the content and
        before each step of the style encoder, after the last one too where its norm needs them."""
        last = 2 if self.style_norm == "instance" else 1
        return max(4, 2 * self.stride, last * 2**self.num_downsamples_style)


class MUNITOutput(NamedTuple):
    """Images, contents and styles; "ba" is the content of b decoded by a. What was not asked for is None."""

    images_ab: Tensor
    images_ba: Tensor
    content_a: Tensor
    content_b: Tensor
    style_a: Tensor
    style_b: Tensor
    content_ab: Tensor | None = None
    content_ba: Tensor | None = None
    style_ab: Tensor | None = None
    style_ba: Tensor | None = None
    images_aa: Tensor | None = None
    images_bb: Tensor | None = None
    images_aba: Tensor | None = None
    images_bab: Tensor | None = None


class MUNITAutoEncoder(nn.Module):
    """Images of one domain to contents and styles, and back: keys style_encoder.*, content_encoder.*, decoder.*, mlp.*."""

    def __init__(self, config: MUNITGeneratorConfig, *, image_channels: int) -> None:
        super().__init__()
        order: BlockOrder = "NACNAC" if config.pre_activation else "CNACNA"
        options = BlockOptions(nonlinearity="relu", weight_norm=config.weight_norm, padding_mode="reflect")
        widths = doubled(config.num_filters, steps=config.num_downsamples_content, most=config.max_num_filters)
        self.style_encoder = StyleEncoder(
            image_channels,
            num_filters=config.num_filters,
            num_downsamples=config.num_downsamples_style,
            style_dims=config.style_dims,
            options=replace(options, norm=Norm(config.style_norm)),
        )
        self.content_encoder = ContentEncoder(
            image_channels,
            widths=widths,
            num_res_blocks=config.num_res_blocks,
            order=order,
            options=replace(options, norm=Norm(config.content_norm)),
        )
        adaptive = AdaptiveNorm(Norm(config.decoder_norm, affine=False), cond_channels=config.mlp_filters)
        self.decoder = Decoder(
            image_channels,
            widths=halved(widths[-1], steps=config.num_downsamples_content),
            num_res_blocks=config.num_res_blocks,
            order=order,
            options=replace(options, norm=adaptive),
            output=config.output,
        )
        self.mlp = StyleLayers([config.style_dims] + [config.mlp_filters] * config.mlp_layers)

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The content, and the style (b, style_dims, 1, 1), of images (b, c, h, w)."""
        return self.content_encoder(images), self.style_encoder(images)

    def decode(self, content: Tensor, style: Tensor) -> Tensor:
        """The images of a content in a style (b, style_dims, 1, 1) or (b, style_dims)."""
        return self.decoder(content, self.mlp(style))

    def forward(self, images: Tensor) -> Tensor:
        """The images, encoded and decoded."""
        return self.decode(*self.encode(images))


class MUNITGenerator(nn.Module):
    """Both auto-encoders: keys autoencoder_a.*, autoencoder_b.*."""

    def __init__(self, config: MUNITGeneratorConfig, *, image_channels: int = 3) -> None:
        super().__init__()
        self.style_dims = config.style_dims
        self.autoencoder_a = MUNITAutoEncoder(config, image_channels=image_channels)
        self.autoencoder_b = MUNITAutoEncoder(config, image_channels=image_channels)

    def forward(
        self,
        *,
        images_a: Tensor,
        images_b: Tensor,
        random_style_a: Tensor | None = None,
        random_style_b: Tensor | None = None,
        encode_translations: bool = True,
        reconstruct: bool = True,
        cycle: bool = True,
    ) -> MUNITOutput:
        """Translations both ways of images (b, c, h, w), whose sides are multiples of 2^num_downsamples_content.

        `random_style_a`, `random_style_b`: styles (b, style_dims, 1, 1) of the translations to a and to b; None: those of the images.
        `encode_translations`: also the contents and styles of the translations; `reconstruct`: also each image through its own
        auto-encoder; `cycle`: also the translations back, in their own styles.
        """
        a, b = self.autoencoder_a, self.autoencoder_b
        (content_a, style_a), (content_b, style_b) = a.encode(images_a), b.encode(images_b)
        images_ba = a.decode(content_b, style_a if random_style_a is None else random_style_a)
        images_ab = b.decode(content_a, style_b if random_style_b is None else random_style_b)
        out = MUNITOutput(images_ab, images_ba, content_a, content_b, style_a, style_b)
        if encode_translations or cycle:
            (content_ba, style_ba), (content_ab, style_ab) = a.encode(images_ba), b.encode(images_ab)
            out = out._replace(content_ab=content_ab, content_ba=content_ba, style_ab=style_ab, style_ba=style_ba)
            if cycle:
                out = out._replace(images_aba=a.decode(content_ab, style_a), images_bab=b.decode(content_ba, style_b))
        if reconstruct:
            out = out._replace(images_aa=a.decode(content_a, style_a), images_bb=b.decode(content_b, style_b))
        return out
