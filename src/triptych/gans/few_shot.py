"""FUNIT and COCO-FUNIT in training: images by class, each in the class of other images, of which there may be few.

FUNIT: Liu et al. 2019, https://arxiv.org/abs/1905.01723. COCO-FUNIT: Saito et al. 2020, https://arxiv.org/abs/2007.07431; it differs in
the generator alone (`coco_funit`). The discriminator knows the classes of the training images; the generator is told none, so that it
translates to classes that it has never seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from triptych.core.batch import IMAGES, STYLE, STYLE_LABELS, Batch, DataSpec, InputSpec
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.core.model import Example
from triptych.core.rng import Rng
from triptych.gans.coco_funit import COCOFUNITGenerator, COCOFUNITGeneratorConfig
from triptych.gans.discriminators import FUNITDiscriminator, FUNITDiscriminatorConfig
from triptych.gans.funit import FUNITGenerator, FUNITGeneratorConfig
from triptych.gans.losses import feature_matching, l1
from triptych.gans.model import GAN, Contest, GANConfig


@config
class FUNITTranslationConfig(Config):
    """Settings of a translation: there are none, content and style images say it all."""


@config
class FUNITConfig(GANConfig):
    """FUNIT, or COCO-FUNIT with that generator."""

    kind_name: ClassVar = "funit"

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
        for name in ("feature_matching_weight", "image_recon_weight"):
            self.require(0 <= getattr(self, name) < float("inf"), name, "0 or a positive number")
        self.require(
            self.adversarial_weight + self.feature_matching_weight + self.image_recon_weight > 0,
            "adversarial_weight",
            "a positive number where feature_matching_weight and image_recon_weight are 0",
        )

    def build(self, spec: DataSpec) -> FUNIT:
        """The model with fresh weights; raises ConfigError for data without style images or classes, and for sizes that do not fit."""
        if spec.num_classes is None or not _style_names(spec):
            wanted = "images by class with style images of other classes: few-shot data, as in the recipe funit-omniglot"
            raise ConfigError("", f"the data has no style images, or no classes of them; this model needs {wanted}")
        self._check_sides(spec)
        return FUNIT(self, spec)

    def _check_sides(self, spec: DataSpec) -> None:
        height, width = spec.height_and_width
        generator = self.generator
        if height % generator.stride or width % generator.stride:
            raise ConfigError(
                "generator.num_downsamples_content",
                f"got {generator.num_downsamples_content} for images of {width}x{height} pixels, expected sides that are multiples of "
                f"{generator.stride}; give fewer, or another data.image_size",
            )
        least = {f"generator.{name}": (getattr(generator, name), side) for name, side in generator.least_sides.items()}
        least["discriminator.num_layers"] = (self.discriminator.num_layers, _least_judged(self.discriminator))
        for setting, (given, side) in least.items():
            if min(height, width) < side:
                raise ConfigError(
                    setting,
                    f"got {given} for images of {width}x{height} pixels, which takes {side} or more along a side; give fewer, or a larger "
                    "data.image_size",
                )


class FUNIT(GAN):
    """The model of a FUNITConfig: a Translator."""

    config: FUNITConfig
    generator: FUNITGenerator
    discriminator: FUNITDiscriminator
    styles: Literal["none", "optional", "required"] = "required"
    random_styles = False

    def __init__(self, config: FUNITConfig, spec: DataSpec) -> None:
        assert spec.num_classes is not None
        make = COCOFUNITGenerator if isinstance(config.generator, COCOFUNITGeneratorConfig) else FUNITGenerator
        super().__init__(
            config,
            make(config.generator, image_channels=spec.channels),
            FUNITDiscriminator(config.discriminator, num_classes=spec.num_classes, image_channels=spec.channels),
        )
        self.translation = config.translation
        self.sources = (InputSpec(name=IMAGES, kind="image", channels=spec.channels),)
        self.output_channels = spec.channels
        self.stride = config.generator.stride
        self.least_size = -(-max(config.generator.least_sides.values()) // self.stride) * self.stride
        self._names = _style_names(spec)

    # Training -----------------------------------------------------------------------------------------------------------

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each of the generator's terms."""
        config = self.config
        return {
            "adversarial": config.adversarial_weight,
            "feature_matching": config.feature_matching_weight,
            "image_recon": config.image_recon_weight,
        }

    def contests(self, batch: Batch, rng: Rng) -> list[Contest]:
        """The first style image and the translation, both as images of the style's class.

        The k style images are drawn alike, so the first stands for all, and a step has as many real images as generated ones.
        """
        out = self.generator(images_content=batch.images, images_style=self._style(batch), reconstruct=False)
        return [self._translation(batch, out.images_trans, rng)]

    def generator_terms(self, batch: Batch, rng: Rng) -> dict[str, Tensor]:
        """adversarial: half of the translation as one of the style's class, half of the reconstruction as one of the content's.

        feature_matching: between the translation and the first style image. image_recon: of the content image in its own style.
        """
        weights, terms = self.weights, {}
        fooled, matched, recon = (weights[name] > 0 for name in ("adversarial", "feature_matching", "image_recon"))
        out = self.generator(images_content=batch.images, images_style=self._style(batch), reconstruct=fooled or recon)
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

    def distances(self, batch: Batch, rng: Rng) -> dict[str, Tensor]:
        """image_recon alone: held-out classes are unknown to the discriminator."""
        own = self.generator(images_content=batch.images, images_style=batch.images, reconstruct=False).images_trans
        return {"image_recon": l1(own, batch.images)}

    def _translation(self, batch: Batch, images: Tensor, rng: Rng) -> Contest:
        return self._contest(batch.inputs[self._names[0]], images, labels=batch.inputs[STYLE_LABELS], rng=rng)

    def _contest(self, real: Tensor, fake: Tensor, *, labels: Tensor, rng: Rng) -> Contest:
        """Both as images of the classes `labels` (b,), changed alike, so that no change stands between their features."""
        return Contest("", self.look(real, rng), self.look(fake, rng), partial(self.discriminator, labels=labels))

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
    def translate(self, inputs: Mapping[str, Tensor], rng: Rng, *, settings: Config) -> Tensor:
        """The content images (b, c, h, w) in the class of their k style images (b, k, c, any size), whose styles are averaged.

        Raises ConfigError for what is missing or does not fit.
        """
        images, style = (self._checked(inputs, name) for name in (IMAGES, STYLE))
        height, width = images.shape[2:]
        if height % self.stride or width % self.stride:
            raise ConfigError(IMAGES, f"got {width}x{height} pixels, expected sides that are multiples of {self.stride}")
        if len(style) != len(images):
            raise ConfigError(STYLE, f"got style images for {len(style)} images, expected them for {len(images)}")
        return self.generator(images_content=images, images_style=style, reconstruct=False).images_trans

    def _checked(self, inputs: Mapping[str, Tensor], name: str) -> Tensor:
        given, wanted = inputs.get(name), f"(b, {'k, ' if name == STYLE else ''}{self.output_channels}, h, w)"
        if given is None:
            raise ConfigError(name, f"missing, this model needs images of shape {wanted}")
        axes = 5 if name == STYLE else 4
        if given.ndim != axes or given.shape[-3] != self.output_channels or 0 in given.shape[1:]:
            raise ConfigError(name, f"got images of shape {tuple(given.shape)}, expected {wanted}")
        if min(given.shape[-2:]) < self.least_size:
            height, width = given.shape[-2:]
            raise ConfigError(name, f"got {width}x{height} pixels, expected at least {self.least_size} along a side")
        return given


def _style_names(spec: DataSpec) -> tuple[str, ...]:
    """The names of the style images among the inputs of the data, in order; none where their classes are not told."""
    if STYLE_LABELS not in (entry.name for entry in spec.inputs):
        return ()
    images = (entry.name for entry in spec.inputs if entry.kind == "image")
    return tuple(name for name in images if name == STYLE or name.startswith(f"{STYLE}_"))


def _least_judged(config: FUNITDiscriminatorConfig) -> int:
    """The fewest pixels along a side that the discriminator takes: 4 for its first reflecting border, 2 for those of its last blocks."""
    return max(4, 2 ** (config.num_layers - 1) + 1)
