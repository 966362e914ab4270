"""UNIT: Unsupervised Image-to-Image Translation Networks (Liu et al. 2017, arXiv 1703.00848).

Each domain has an auto-encoder, an encoder E to a content and a decoder G back to images. Translations exchange the contents, and the
generator minimises, summed over both directions,

    ab = G_b(E_a(a)),    L = w_adv L_adv(D_b(ab)) + w_rec |G_a(E_a(a)) - a| + w_cyc |G_a(E_b(ab)) - a| + w_p P(ab, a)

with P a distance in the features of a frozen network. The paper's variational terms are left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal, Self

from triptych.core.batch import DataSpec
from triptych.core.config import config
from triptych.gans.autoencoder import AutoEncoder, ContentEncoder, Decoder, doubled, halved
from triptych.gans.layers import BlockOptions, BlockOrder
from triptych.gans.norms import Norm, NormKind
from triptych.gans.translation_base import GeneratorConfig
from triptych.gans.unpaired_base import BothDomains, UnpairedConfig, UnpairedGAN
from triptych.gans.weight_norms import WeightNorm


@config
class UNITGeneratorConfig(GeneratorConfig):
    """The two auto-encoders."""

    kind_name: ClassVar = "unit"

    num_filters: int = 48
    "Channels of the first convolution; they double at each step down."
    max_num_filters: int = 256
    "The most channels."
    num_res_blocks: int = 4
    "Residual blocks of the encoder, and of the decoder."
    num_downsamples: int = 2
    "Steps that halve the size."
    content_norm: NormKind = "instance"
    "Norm of the encoder."
    decoder_norm: NormKind = "instance"
    "Norm of the decoder."
    weight_norm: WeightNorm = "none"
    "Norm of the weights."
    pre_activation: bool = True
    "Residual blocks begin with norm and nonlinearity, and do not end with them."
    output: Literal["none", "tanh"] = "none"
    "What the images go through last."

    def validate(self) -> None:
        for name in ("num_filters", "max_num_filters"):
            self.require(getattr(self, name) >= 1, name, "a positive whole number")
        for name in ("num_res_blocks", "num_downsamples"):
            self.require(getattr(self, name) >= 0, name, "0 or more")

    def shrunk(self) -> Self:
        return replace(self, num_filters=4, max_num_filters=8, num_res_blocks=1, num_downsamples=1)

    @property
    def stride(self) -> int:
        return 2**self.num_downsamples

    @property
    def least_size(self) -> int:
        """The fewest pixels along a side: 4 for the reflecting border of the first convolution, 2 along a side of the content."""
        return max(4, 2 * self.stride)


class UNITGenerator(BothDomains):
    """Two auto-encoders without styles."""

    def __init__(self, config: UNITGeneratorConfig, *, image_channels: int = 3) -> None:
        super().__init__(lambda: _autoencoder(config, image_channels))


def _autoencoder(config: UNITGeneratorConfig, image_channels: int) -> AutoEncoder:
    options = BlockOptions(norm=Norm(config.content_norm), nonlinearity="relu", weight_norm=config.weight_norm, padding_mode="reflect")
    widths = doubled(config.num_filters, steps=config.num_downsamples, most=config.max_num_filters)
    order: BlockOrder = "NACNAC" if config.pre_activation else "CNACNA"
    blocks, ascending = config.num_res_blocks, halved(widths[-1], steps=config.num_downsamples)
    encoder = ContentEncoder(image_channels, widths=widths, num_res_blocks=blocks, order=order, options=options)
    options = replace(options, norm=Norm(config.decoder_norm))
    decoder = Decoder(image_channels, widths=ascending, num_res_blocks=blocks, order=order, options=options, output=config.output)
    return AutoEncoder(encoder, decoder)


@config
class UNITConfig(UnpairedConfig):
    """UNIT."""

    kind_name: ClassVar = "unit"

    generator: UNITGeneratorConfig = UNITGeneratorConfig()
    "The two auto-encoders."

    def build(self, spec: DataSpec) -> UNIT:
        """The model with fresh weights; raises ConfigError for data without a second domain, and for sizes that do not fit."""
        self.check(spec, steps="num_downsamples")
        return UNIT(self, spec)


class UNIT(UnpairedGAN):
    """The model of a UNITConfig."""

    config: UNITConfig
    generator: UNITGenerator

    def __init__(self, config: UNITConfig, spec: DataSpec) -> None:
        super().__init__(config, spec, UNITGenerator(config.generator, image_channels=spec.channels))

    @property
    def draws(self) -> bool:
        """It does not."""
        return False
