"""MUNIT: Multimodal Unsupervised Image-to-Image Translation (Huang et al. 2018, arXiv 1804.04732).

An image is a content, which both domains share, and a style of its domain; the decoder's norms take the style (AdaIN). E gives the
content, S the style, G an image of both. A translation has the content of one image and a style s_b of the other domain: an encoded one,
or one drawn from N(0, I). The generator minimises the terms of UNIT and, summed over both directions (Eq. 2 and 3),

    ab = G_b(E_a(a), s_b),    w_content |E_b(ab) - E_a(a)| + w_style |S_b(ab) - s_b|

The other terms here are not in the paper and have weight 0 unless they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, Self

import torch
from jaxtyping import Float
from torch import Tensor

from triptych.core.batch import Batch, DataSpec
from triptych.core.config import config
from triptych.core.rng import Rng
from triptych.gans.augmentation import augmented
from triptych.gans.autoencoder import AutoEncoder, ContentEncoder, Decoder, StyleEncoder, StyleLayers, doubled, halved
from triptych.gans.discriminators import Scores
from triptych.gans.layers import BlockOptions, BlockOrder
from triptych.gans.losses import gaussian_kl, sample_mean
from triptych.gans.model import Contest
from triptych.gans.norms import AdaptiveNorm, Norm, NormKind
from triptych.gans.translation_base import GeneratorConfig, Styles
from triptych.gans.unpaired_base import BothDomains, DirectionConfig, Translations, UnpairedConfig, UnpairedGAN, distance
from triptych.gans.weight_norms import WeightNorm
from triptych.nn.precision import widened


@config
class MUNITGeneratorConfig(GeneratorConfig):
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
        styled = self.num_res_blocks + self.num_downsamples_content
        self.require(styled > 0, "num_res_blocks", "1 or more without num_downsamples_content: the style enters there")

    def shrunk(self) -> Self:
        depths = {"num_res_blocks": 1, "num_downsamples_content": 1, "num_downsamples_style": 2}
        return replace(self, num_filters=4, max_num_filters=8, style_dims=8, mlp_filters=16, **depths)

    @property
    def stride(self) -> int:
        return 2**self.num_downsamples_content

    @property
    def least_size(self) -> int:
        """The fewest pixels along a side: 4 for the reflecting border of the first convolution, 2 along a side of the content and
        before each step of the style encoder, after the last one too where its norm needs them."""
        last = 2 if self.style_norm == "instance" else 1
        return max(4, 2 * self.stride, last * 2**self.num_downsamples_style)


class MUNITGenerator(BothDomains):
    """Two auto-encoders with styles."""

    def __init__(self, config: MUNITGeneratorConfig, *, image_channels: int = 3) -> None:
        super().__init__(lambda: _autoencoder(config, image_channels))
        self.style_dims = config.style_dims


def _autoencoder(config: MUNITGeneratorConfig, image_channels: int) -> AutoEncoder:
    order: BlockOrder = "NACNAC" if config.pre_activation else "CNACNA"
    options = BlockOptions(nonlinearity="relu", weight_norm=config.weight_norm, padding_mode="reflect")
    widths = doubled(config.num_filters, steps=config.num_downsamples_content, most=config.max_num_filters)
    blocks, styled = config.num_res_blocks, replace(options, norm=Norm(config.style_norm))
    sizes = {"num_filters": config.num_filters, "num_downsamples": config.num_downsamples_style, "style_dims": config.style_dims}
    style_encoder = StyleEncoder(image_channels, **sizes, options=styled)
    plain = replace(options, norm=Norm(config.content_norm))
    encoder = ContentEncoder(image_channels, widths=widths, num_res_blocks=blocks, order=order, options=plain)
    adaptive = AdaptiveNorm(Norm(config.decoder_norm, affine=False), cond_channels=config.mlp_filters)
    options, ascending = replace(options, norm=adaptive), halved(widths[-1], steps=config.num_downsamples_content)
    decoder = Decoder(image_channels, widths=ascending, num_res_blocks=blocks, order=order, options=options, output=config.output)
    mlp = StyleLayers([config.style_dims] + [config.mlp_filters] * config.mlp_layers)
    return AutoEncoder(encoder, decoder, style_encoder=style_encoder, mlp=mlp)


@config
class MUNITTranslationConfig(DirectionConfig):
    """Which way images are translated, and how much random styles vary."""

    temperature: float = 1.0
    "Factor of random styles: below 1 they are more alike, at 0 all one. The styles of style images are taken as they are."

    def validate(self) -> None:
        self.require(0 <= self.temperature < float("inf"), "temperature", "0 or a positive number")


@config
class MUNITConfig(UnpairedConfig):
    """MUNIT."""

    kind_name: ClassVar = "munit"
    terms: ClassVar = UnpairedConfig.terms | {
        term: f"{term}_weight" for term in ("content_recon", "style_recon", "kl", "style_recon_within", "content_recon_within")
    }

    generator: MUNITGeneratorConfig = MUNITGeneratorConfig()
    "The two auto-encoders."
    content_recon_weight: float = 1.0
    "Weight of the distance between an image's content and its translation's."
    style_recon_weight: float = 1.0
    "Weight of the distance between the style that a translation was given and the one that it shows."
    kl_weight: float = 0.0
    "Weight of the divergence of N(style, 1) from N(0, 1), of the images' own styles."
    style_recon_within_weight: float = 0.0
    "Weight of the distance between an image's style and its reconstruction's."
    content_recon_within_weight: float = 0.0
    "Weight of the distance between an image's content and its reconstruction's."
    consistency_weight: float = 0.0
    "Weight, in the discriminators' loss, of what mirroring and shifting a real image changes in their features."
    gan_recon: bool = False
    "Whether reconstructions too are to pass for real: the mean of their loss and the translations'."
    random_style: bool = True
    "Whether translations have styles from N(0, 1) in training; else that of the other domain's image beside them."
    translation: MUNITTranslationConfig = MUNITTranslationConfig()
    "Default settings of `triptych translate`; the grids during training go both ways."

    def validate(self) -> None:
        self.require(0 <= self.consistency_weight < float("inf"), "consistency_weight", "0 or a positive number")

    @property
    def partial(self) -> bool:
        """Whether some of the generator's parameters have no part in its loss: those of the style encoders, or all others."""
        used = {term for term, weight in self.weights.items() if weight > 0}
        of_styles = {"image_recon", "cycle_recon", "style_recon", "kl", "style_recon_within", "content_recon_within"}
        if self.gan_recon or not self.random_style:
            of_styles |= {"adversarial_a"}
        if not self.random_style:
            of_styles |= {"perceptual", "content_recon"}
        return used == {"kl"} or not used & of_styles

    def build(self, spec: DataSpec) -> MUNIT:
        """The model with fresh weights; raises ConfigError for data without a second domain, and for sizes that do not fit."""
        self.check(spec, steps="num_downsamples_content")
        return MUNIT(self, spec)


class MUNIT(UnpairedGAN):
    """The model of a MUNITConfig."""

    config: MUNITConfig
    generator: MUNITGenerator
    styles: Styles = "optional"
    random_styles = True

    def __init__(self, config: MUNITConfig, spec: DataSpec) -> None:
        super().__init__(config, spec, MUNITGenerator(config.generator, image_channels=spec.channels), partial=config.partial)

    # Training -----------------------------------------------------------------------------------------------------------

    @property
    def draws(self) -> bool:
        """Whether translations have random styles."""
        return self.config.random_style

    def random_styles_of(self, rng: Rng) -> dict[str, Float[Tensor, "b style_dims 1 1"]]:
        """Those of the translations to a and to b, unless they have those of the images; the way back has these in any case."""
        if not self.draws:
            return {}
        dims = self.generator.style_dims
        return {"random_style_a": rng.normal("style_a", dims, 1, 1), "random_style_b": rng.normal("style_b", dims, 1, 1)}

    @property
    def latents_needed(self) -> dict[str, bool]:
        """See `UnpairedGAN`."""
        config = self.config
        within = config.style_recon_within_weight > 0 or config.content_recon_within_weight > 0
        return {
            "encode_translations": config.content_recon_weight > 0 or config.style_recon_weight > 0,
            "reconstruct": within or (config.gan_recon and config.adversarial_weight > 0),
        }

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each of the generator's terms, and of the discriminators' consistency."""
        return self.config.weights | dict.fromkeys(("consistency_a", "consistency_b"), self.config.consistency_weight)

    def adversarial_terms(self, batch: Batch, out: Translations, rng: Rng) -> dict[str, Float[Tensor, " b"]]:
        """Of the translations; with `gan_recon` the mean of theirs and the reconstructions'."""
        terms = super().adversarial_terms(batch, out, rng)
        if not self.config.gan_recon:
            return terms
        assert out.images_aa is not None and out.images_bb is not None
        others = self.fooled(batch, rng, a=out.images_aa, b=out.images_bb)
        return {name: 0.5 * (loss + others[name]) for name, loss in terms.items()}

    def latent_terms(self, out: Translations) -> dict[str, Float[Tensor, " b"]]:
        """The distances of contents and styles, and the divergence of the images' styles.

        Contents of images are fixed targets; so is an image's style within its domain. A style that a translation was given is not: where
        it is that of an image, both are moved.
        """
        own_a, own_b, style_a, style_b = out.style_a, out.style_b, out.given_a, out.given_b
        assert own_a is not None and own_b is not None and style_a is not None and style_b is not None
        content_a, content_b = out.content_a.detach(), out.content_b.detach()
        terms = {
            "content_recon": lambda: distance(out.content_ab, content_a) + distance(out.content_ba, content_b),
            "style_recon": lambda: distance(out.style_ba, style_a) + distance(out.style_ab, style_b),
            "kl": lambda: gaussian_kl(own_a) + gaussian_kl(own_b),
        }
        weights = self.weights
        kept = {name: term() for name, term in terms.items() if weights[name] > 0}
        return kept | self._within_terms(out, weights)

    def _within_terms(self, out: Translations, weights: Mapping[str, float]) -> dict[str, Float[Tensor, " b"]]:
        """Of the styles and contents of reconstructions."""
        wanted = [name for name in ("style_recon_within", "content_recon_within") if weights[name] > 0]
        if not wanted:
            return {}
        assert out.images_aa is not None and out.images_bb is not None and out.style_a is not None and out.style_b is not None
        content_aa, style_aa = self.generator.autoencoder_a.encode(out.images_aa)
        content_bb, style_bb = self.generator.autoencoder_b.encode(out.images_bb)
        terms = {
            "style_recon_within": distance(style_aa, out.style_a.detach()) + distance(style_bb, out.style_b.detach()),
            "content_recon_within": distance(content_aa, out.content_a.detach()) + distance(content_bb, out.content_b.detach()),
        }
        return {name: terms[name] for name in wanted}

    def discriminator_extras(self, contests: list[Contest], rng: Rng) -> dict[str, Float[Tensor, " b"]]:
        """consistency_a and consistency_b: of the features of real images and of the same, mirrored and shifted at random.

        "Consistency Regularization for Generative Adversarial Networks", Zhang et al. 2020, https://arxiv.org/abs/1910.12027.
        """
        if not self.config.consistency_weight:
            return {}
        terms = {}
        for contest in contests:
            name, real = contest.term("consistency"), contest.real
            seen = real.view(real.images)
            terms[name] = feature_distance(real.discriminate(seen), real.discriminate(moved(seen, rng.child(name))))
        return terms

    # Translation --------------------------------------------------------------------------------------------------------

    def code(self, images: Tensor | None, rng: Rng, *, encoder: AutoEncoder, settings: DirectionConfig) -> Tensor:
        """The mean styles (b, style_dims, 1, 1) of the style images, or random ones."""
        if images is None:
            assert isinstance(settings, MUNITTranslationConfig)
            return settings.temperature * rng.normal("style", self.generator.style_dims, 1, 1)
        assert encoder.style_encoder is not None
        return encoder.style_encoder(images.flatten(0, 1)).unflatten(0, images.shape[:2]).mean(1)


def moved(images: Float[Tensor, "b c h w"], rng: Rng) -> Float[Tensor, "b c h w"]:
    """The images, a random half of them mirrored, each shifted by up to an eighth of its sides; zeros move in."""
    mirrored = rng.integers("mirror", 2)[:, None, None, None] == 1
    return augmented(torch.where(mirrored, images.flip(3), images), rng, policy=("translation",))


def feature_distance(x: Scores, y: Scores) -> Float[Tensor, " b"]:
    """The mean squared difference of two batches' features, over channels, then over all layers of all scales.

    Of each channel the mean over its pixels, for what a patch discriminator finds in an image moves with it.
    """
    pairs = [pair for layers in zip(x.features, y.features, strict=True) for pair in zip(*layers, strict=True)]
    return torch.stack([sample_mean((_channel_means(a) - _channel_means(b)).square()) for a, b in pairs]).mean(0)


def _channel_means(features: Tensor) -> Tensor:
    return widened(features).mean((2, 3))
