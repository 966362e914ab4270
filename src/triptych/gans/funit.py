"""FUNIT: Few-Shot Unsupervised Image-to-Image Translation (Liu et al. 2019, arXiv 1905.01723).

The pose of a content image x in the class of one or a few style images y_1 ... y_k, whose styles are averaged:

    T(x, y) = G(E_c(x), mean of E_s(y_i))

The discriminator D knows the classes of the training images; the generator is told none, so that it translates to classes that it has
never seen. With a the class of x and b that of the style images, the generator minimises

    w_adv / 2 (L_adv(D_b(T(x, y))) + L_adv(D_a(T(x, x)))) + w_fm FM(T(x, y), y_1) + w_rec |T(x, x) - x|

with FM the distance of D's features, averaged over their places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import ClassVar, NamedTuple, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from triptych.core.batch import IMAGES, STYLE, STYLE_LABELS, Batch, DataSpec
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.core.rng import Rng
from triptych.core.translation import Example
from triptych.gans.autoencoder import AutoEncoder, ContentEncoder, Decoder, StyleEncoder, StyleLayers, doubled, halved
from triptych.gans.discriminators import Scores
from triptych.gans.layers import BlockOptions, ConvBlock, ResBlock, Stack
from triptych.gans.losses import feature_matching, l1
from triptych.gans.model import Contest, GANConfig
from triptych.gans.norms import AdaptiveNorm, Norm, NormKind
from triptych.gans.translation_base import GeneratorConfig, Styles, TranslationGAN, check_sides
from triptych.gans.weight_norms import WeightNorm
from triptych.nn.enlarging import padded


@config
class FUNITGeneratorConfig(GeneratorConfig):
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
        styled = self.num_res_blocks + self.num_downsamples_content
        self.require(styled > 0, "num_res_blocks", "1 or more without num_downsamples_content: the style enters there")

    def shrunk(self) -> Self:
        depths = {"num_res_blocks": 1, "num_downsamples_content": 1, "num_downsamples_style": 2}
        return replace(self, num_filters=4, style_dims=8, mlp_filters=16, **depths)

    @property
    def stride(self) -> int:
        return 2**self.num_downsamples_content

    @property
    def least_sides(self) -> dict[str, int]:
        """The fewest pixels along a side, by the setting that decides it: reflecting borders need them.

        4 for the first convolution, 7x7; 3 of the content for the decoder's first, 5x5; 2 before each step of the style encoder.
        """
        return {"num_downsamples_content": max(4, 3 * self.stride), "num_downsamples_style": max(4, 2**self.num_downsamples_style)}

    @property
    def least_size(self) -> int:
        return -(-max(self.least_sides.values()) // self.stride) * self.stride

    def translator(self, *, image_channels: int) -> FUNITTranslator:
        """The network with fresh weights."""
        return FUNITTranslator(self, image_channels=image_channels)


class FUNITOutput(NamedTuple):
    """The content image in the style's class, and in its own."""

    images_trans: Tensor
    images_recon: Tensor | None
    content: Tensor
    "Of the content image."


class FUNITDecoder(Decoder):
    """Its doublings are residual blocks."""

    def doubling(self, ins: int, outs: int, options: BlockOptions) -> list[nn.Module]:
        """Of one step."""
        return [ResBlock(ins, outs, 5, shortcut_nonlinearity=True, options=options, enlarges=True)]


class FUNITTranslator(AutoEncoder):
    """The auto-encoder of all classes."""

    def __init__(self, config: FUNITGeneratorConfig, *, image_channels: int) -> None:
        options = BlockOptions(nonlinearity="relu", weight_norm=config.weight_norm, padding_mode="reflect")
        widths, blocks = doubled(config.num_filters, steps=config.num_downsamples_content), config.num_res_blocks
        sizes = {"num_filters": config.num_filters, "num_downsamples": config.num_downsamples_style, "style_dims": config.style_dims}
        style_encoder = StyleEncoder(image_channels, **sizes, options=options)
        plain = replace(options, norm=Norm(config.content_norm))
        encoder = ContentEncoder(image_channels, widths=widths, num_res_blocks=blocks, order="CNACNA", options=plain)
        adaptive = AdaptiveNorm(Norm(config.decoder_norm, affine=False), cond_channels=config.mlp_filters)
        options, ascending = replace(options, norm=adaptive), halved(widths[-1], steps=config.num_downsamples_content)
        decoder = FUNITDecoder(image_channels, widths=ascending, num_res_blocks=blocks, order="CNACNA", options=options, output="tanh")
        mlp = StyleLayers([config.style_dims] + [config.mlp_filters] * config.mlp_layers)
        super().__init__(encoder, decoder, style_encoder=style_encoder, mlp=mlp)


class FUNITGenerator(nn.Module):
    """Keys generator.*."""

    def __init__(self, config: FUNITGeneratorConfig, *, image_channels: int = 3) -> None:
        super().__init__()
        self.generator = config.translator(image_channels=image_channels)

    def forward(
        self,
        *,
        images_content: Float[Tensor, "b c h w"],
        images_style: Float[Tensor, "b *k c _ _"],
        reconstruct: bool = True,
        begun: FUNITOutput | None = None,
    ) -> FUNITOutput:
        """The content images, sides multiples of 2^num_downsamples_content, in the classes of the style images.

        `images_style`: one, or k whose styles are averaged. `reconstruct`: also in their own style. `begun`: what was made without it.
        """
        network, out = self.generator, begun
        if out is None:
            content = network.content_encoder(images_content)
            out = FUNITOutput(network.decode(content, self.style(images_style)), None, content)
        return out._replace(images_recon=network.decode(out.content, self.style(images_content))) if reconstruct else out

    def style(self, images: Float[Tensor, "b *k c h w"]) -> Float[Tensor, "b style_dims 1 1"]:
        """The style of images, or the mean of the styles of k images each."""
        encoder = self.generator.style_encoder
        assert encoder is not None
        return encoder(images) if images.ndim == 4 else encoder(images.flatten(0, 1)).unflatten(0, images.shape[:2]).mean(1)


@config
class FUNITDiscriminatorConfig(Config):
    """Residual networks that judge an image as one of a class."""

    num_filters: int = 64
    "Channels of the first layer; they double from one pair of residual blocks to the next."
    max_num_filters: int = 1024
    "The most channels."
    num_layers: int = 6
    "Pairs of residual blocks; each but the last is followed by a halving of the size."
    weight_norm: WeightNorm = "spectral"
    "Norm of the weights of the convolutions."

    def validate(self) -> None:
        for name in ("num_filters", "max_num_filters", "num_layers"):
            self.require(getattr(self, name) >= 1, name, "a positive whole number")


class FUNITDiscriminator(nn.Module):
    """Patch scores of images as images of a class: keys model.model.{i}.*, model.classifier.*, model.embedder.weight.

    Mescheder et al. 2018 (arXiv 1801.04406), with the projection of Miyato and Koyama 2018 (arXiv 1802.05637).
    """

    def __init__(self, config: FUNITDiscriminatorConfig, *, num_classes: int, image_channels: int = 3) -> None:
        super().__init__()
        self.model = _ClassDiscriminator(config, num_classes=num_classes, image_channels=image_channels)

    def forward(self, images: Float[Tensor, "b c h w"], *, labels: Int[Tensor, " b"]) -> Scores:
        """The scores (b, 1, h', w') of images as images of the classes `labels`, and their mean features (b, d)."""
        return self.model(images, labels)


class _Mirrored(nn.Module):
    """A border of one pixel, reflected."""

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h+2 w+2"]:
        return padded(x, "reflect", rows=1, columns=1)


class _ClassDiscriminator(nn.Module):
    def __init__(self, config: FUNITDiscriminatorConfig, *, num_classes: int, image_channels: int) -> None:
        super().__init__()
        options = BlockOptions(nonlinearity="leakyrelu", weight_norm=config.weight_norm, padding_mode="reflect")
        plain = BlockOptions(weight_norm=config.weight_norm, padding_mode="reflect")
        widths = doubled(config.num_filters, steps=config.num_layers, most=config.max_num_filters)
        layers: list[nn.Module] = [ConvBlock(image_channels, widths[0], 7, options=plain)]
        for index, (ins, outs) in enumerate(pairwise(widths)):
            layers += [ResBlock(ins, ins, order="NACNAC", options=options), ResBlock(ins, outs, order="NACNAC", options=options)]
            if index < config.num_layers - 1:
                layers += [_Mirrored(), nn.AvgPool2d(3, stride=2)]
        self.model = Stack(layers)
        self.classifier = ConvBlock(widths[-1], 1, 1, order="AC", options=options)
        self.embedder = nn.Embedding(num_classes, widths[-1])

    def forward(self, images: Tensor, labels: Tensor) -> Scores:
        features = self.model(images)
        mean = features.mean((2, 3))
        likeness = (mean * self.embedder(labels)).sum(dim=1)
        return Scores((self.classifier(features) + likeness[:, None, None, None],), ((mean,),))


@config
class FUNITTranslationConfig(Config):
    """Settings of a translation: there are none, content and style images say it all."""


@config
class FUNITConfig(GANConfig):
    """FUNIT, or with its generator COCO-FUNIT."""

    kind_name: ClassVar = "funit"
    terms: ClassVar = GANConfig.terms | {"feature_matching": "feature_matching_weight", "image_recon": "image_recon_weight"}

    generator: FUNITGeneratorConfig = FUNITGeneratorConfig()
    "The generator."
    discriminator: FUNITDiscriminatorConfig = FUNITDiscriminatorConfig()
    "The discriminator."
    feature_matching_weight: float = 1.0
    "Weight of the distance between the discriminator's mean features of a translation and of the style image."
    image_recon_weight: float = 0.1
    "Weight of the distance between a content image and itself in its own style."
    translation: FUNITTranslationConfig = FUNITTranslationConfig()
    "Settings of `triptych translate`."

    def validate(self) -> None:
        wanted = "a positive number where feature_matching_weight and image_recon_weight are 0"
        self.require(any(self.weights.values()), "adversarial_weight", wanted)

    def shrunk(self) -> Self:
        discriminator = replace(self.discriminator, num_filters=4, max_num_filters=8, num_layers=2)
        return replace(self, generator=self.generator.shrunk(), discriminator=discriminator)

    def build(self, spec: DataSpec) -> FUNIT:
        """The model with fresh weights; raises ConfigError for data without style images or classes, and for sizes that do not fit."""
        if spec.num_classes is None or not _style_names(spec):
            wanted = "images by class with style images of other classes: few-shot data, as in the recipe funit-omniglot"
            raise ConfigError("", f"the data has no style images, or no classes of them; this model needs {wanted}")
        generator, steps = self.generator, self.generator.num_downsamples_content
        multiples, advice = f"expected sides that are multiples of {generator.stride}", "give fewer, or another data.image_size"
        setting = "generator.num_downsamples_content"
        check_sides(spec, setting, stride=generator.stride, given=steps, expected=multiples, advice=advice)
        least = {f"generator.{name}": (getattr(generator, name), side) for name, side in generator.least_sides.items()}
        least["discriminator.num_layers"] = (self.discriminator.num_layers, _least_judged(self.discriminator))
        for setting, (given, side) in least.items():
            expected, advice = f"which takes {side} or more along a side", "give fewer, or a larger data.image_size"
            check_sides(spec, setting, least=side, given=given, expected=expected, advice=advice)
        return FUNIT(self, spec)


class FUNIT(TranslationGAN):
    """The model of a FUNITConfig."""

    config: FUNITConfig
    generator: FUNITGenerator
    discriminator: FUNITDiscriminator
    styles: Styles = "required"

    def __init__(self, config: FUNITConfig, spec: DataSpec) -> None:
        assert spec.num_classes is not None
        super().__init__(
            config,
            spec,
            FUNITGenerator(config.generator, image_channels=spec.channels),
            FUNITDiscriminator(config.discriminator, num_classes=spec.num_classes, image_channels=spec.channels),
            sizes=config.generator,
            translation=config.translation,
        )
        self._names = _style_names(spec)

    # Training -----------------------------------------------------------------------------------------------------------

    @property
    def draws(self) -> bool:
        """It does not."""
        return False

    def made(self, batch: Batch, rng: Rng) -> FUNITOutput:
        """Translations alone."""
        return self.generator(images_content=batch.images, images_style=self._style(batch), reconstruct=False)

    def contests(self, made: FUNITOutput, batch: Batch, rng: Rng) -> list[Contest]:
        """The first style image and the translation, both as images of the style's class.

        The k style images are drawn alike, so the first stands for all, and a step has as many real images as generated ones.
        """
        return [self._translation(batch, made.images_trans, rng)]

    def generator_terms(self, made: FUNITOutput, batch: Batch, rng: Rng) -> dict[str, Float[Tensor, " b"]]:
        """adversarial: half of the translation as one of the style's class, half of the reconstruction as one of the content's.

        feature_matching: between the translation and the first style image. image_recon: of the content image in its own style.
        """
        weights, terms = self.weights, {}
        fooled, matched, recon = (weights[name] > 0 for name in ("adversarial", "feature_matching", "image_recon"))
        out = self.generator(images_content=batch.images, images_style=self._style(batch), reconstruct=fooled or recon, begun=made)
        if fooled or matched:
            translation = self.verdict(self._translation(batch, out.images_trans, rng), compare=matched)
            if fooled:
                assert batch.labels is not None
                reconstruction = self.verdict(self._contest(batch.images, out.images_recon, labels=batch.labels, rng=rng))
                terms["adversarial"] = 0.5 * (translation.loss + reconstruction.loss)
            if matched:
                terms["feature_matching"] = feature_matching(translation.fake.features, translation.real.features)
        if recon:
            terms["image_recon"] = l1(out.images_recon, batch.images)
        return terms

    def distances(self, batch: Batch, rng: Rng) -> dict[str, Float[Tensor, " b"]]:
        """image_recon alone: held-out classes are unknown to the discriminator."""
        reconstruction = self.generator(images_content=batch.images, images_style=batch.images, reconstruct=False).images_trans
        return {"image_recon": l1(reconstruction, batch.images)}

    def _translation(self, batch: Batch, images: Tensor, rng: Rng) -> Contest:
        return self._contest(batch.inputs[self._names[0]], images, labels=batch.inputs[STYLE_LABELS], rng=rng)

    def _contest(self, real: Tensor, fake: Tensor, *, labels: Tensor, rng: Rng) -> Contest:
        """Both as images of the classes `labels` (b,)."""
        return self.contest(real, fake, rng, discriminate=lambda view: partial(self.discriminator, labels=labels))

    def _style(self, batch: Batch) -> Tensor:
        """The style images: (b, c, h, w), or (b, k, c, h, w) of several."""
        if len(self._names) == 1:
            return batch.inputs[self._names[0]]
        return torch.stack([batch.inputs[name] for name in self._names], dim=1)

    # Translation --------------------------------------------------------------------------------------------------------

    def example(self, batch: Batch, *, settings: Config) -> Example:
        """The content images and their style images; there is no ground truth for them."""
        return Example({IMAGES: batch.images, STYLE: torch.stack([batch.inputs[name] for name in self._names], dim=1)})

    @torch.no_grad()
    def translate(self, inputs: Mapping[str, Tensor], rng: Rng, *, settings: Config) -> Float[Tensor, "b c h w"]:
        """The content images (b, c, h, w) in the class of their k style images (b, k, c, any size), whose styles are averaged.

        Raises ConfigError for what is missing or does not fit.
        """
        images, style = self.content_and_style(inputs)
        assert style is not None
        return self.generator(images_content=images, images_style=style, reconstruct=False).images_trans


def _style_names(spec: DataSpec) -> tuple[str, ...]:
    """The names of the style images among the inputs of the data, in order; none where their classes are not told."""
    if STYLE_LABELS not in (entry.name for entry in spec.inputs):
        return ()
    images = (entry.name for entry in spec.inputs if entry.kind == "image")
    return tuple(name for name in images if name == STYLE or name.startswith(f"{STYLE}_"))


def _least_judged(config: FUNITDiscriminatorConfig) -> int:
    """The fewest pixels along a side that the discriminator takes: 4 for its first reflecting border, 2 for those of its last blocks."""
    return max(4, 2 ** (config.num_layers - 1) + 1)
