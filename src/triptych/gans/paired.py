"""SPADE and pix2pixHD in training: images from label maps, learned from pairs of both.

SPADE: Park et al. 2019, https://arxiv.org/abs/1903.07291. pix2pixHD: Wang et al. 2018, https://arxiv.org/abs/1711.11585. The
discriminator D sees an image x and its label map s. With the generated image G(s), the generator minimises

    L_adv(D(s, G(s))) + w_fm FM + w_p P(G(s), x) + w_1 |G(s) - x| + w_kl KL,

FM the distance of D's features of G(s) and of x (pix2pixHD, Eq. 4), P the perceptual loss, the L1 distance that of pix2pix (Isola et al.
2017, https://arxiv.org/abs/1611.07004, Eq. 3), and KL(q(z | x) || N(0, I)) that of SPADE's style code. The networks are in spade.py and
pix2pixhd.py.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.core.batch import STYLE, Batch, DataSpec
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.core.model import Example
from triptych.core.rng import Rng
from triptych.gans.discriminators import (
    PatchDiscriminatorConfig,
    Pix2PixHDDiscriminator,
    SPADEDiscriminator,
    SPADEDiscriminatorConfig,
    least_side,
)
from triptych.gans.instance_features import Looks, looks_of
from triptych.gans.label_maps import LabelMaps, class_channels
from triptych.gans.losses import feature_matching, gaussian_kl, l1
from triptych.gans.model import GAN, Contest, GANConfig
from triptych.gans.perceptual import PerceptualConfig, PerceptualLoss
from triptych.gans.pix2pixhd import Pix2PixHDGenerator, Pix2PixHDGeneratorConfig
from triptych.gans.spade import SPADEGenerator, SPADEGeneratorConfig
from triptych.nn.collectives import gathered
from triptych.nn.precision import widened

_PERCEPTUAL = "perceptual"


@config
class PairedGANConfig(GANConfig):
    """What SPADE and pix2pixHD have in common."""

    feature_matching_weight: float = 10.0
    "Weight of the distance between the discriminator's features of generated and real images."
    perceptual_weight: float = 10.0
    "Weight of the perceptual loss; 0: there is none, and no file of weights is needed."
    perceptual: PerceptualConfig = PerceptualConfig()
    "The perceptual loss."
    l1_weight: float = 0.0
    "Weight of the mean absolute difference between generated and real images, as in pix2pix."
    positive_conditions: bool = False
    "Condition images have values from 0 to 1 for the networks, not from -1 to 1."

    def validate(self) -> None:
        for name in ("feature_matching_weight", "perceptual_weight", "l1_weight"):
            self.require(0 <= getattr(self, name) < math.inf, name, "0 or a positive number")
        total = self.adversarial_weight + self.feature_matching_weight + self.perceptual_weight + self.l1_weight
        self.require(total > 0, "adversarial_weight", "a positive number where all other weights are 0")

    def check_sides(self, spec: DataSpec, *, sides: Mapping[str, tuple[object, int, int]]) -> None:
        """Raises ConfigError for images that the networks or the perceptual loss do not take.

        `sides`: for each setting that decides it, what it is, what the sides are multiples of, and the fewest pixels along them.
        """
        height, width = spec.height_and_width
        for setting, (given, stride, least) in sides.items():
            wrong = "multiples of" if height % stride or width % stride else "at least" if min(height, width) < least else None
            if wrong is not None:
                number = stride if wrong == "multiples of" else least
                raise ConfigError(
                    setting,
                    f"got {given!r} for images of {width}x{height} pixels, expected sides of {wrong} {number}; give less, or another "
                    "data.image_size and data.width",
                )
        if self.perceptual_weight > 0:
            try:
                self.perceptual.check_size(height, width)
            except ConfigError as error:
                raise error.inside(_PERCEPTUAL) from None


class PairedGAN(GAN):
    """A GAN whose images are made from label maps. A Translator."""

    config: PairedGANConfig
    translation: Config
    styles: Literal["none", "optional", "required"] = "none"
    random_styles = False

    def __init__(
        self, config: PairedGANConfig, spec: DataSpec, *, labels: LabelMaps, generator: nn.Module, discriminator: nn.Module
    ) -> None:
        super().__init__(config, generator, discriminator)
        self.labels, self.sources, self.output_channels = labels, spec.inputs, spec.channels
        self.perceptual = PerceptualLoss(config.perceptual) if config.perceptual_weight > 0 else None
        if self.perceptual is not None:
            self.borrowed = {_PERCEPTUAL: config.perceptual.weights}

    # What a model says --------------------------------------------------------------------------------------------------

    stride: int
    least_size: int

    @abstractmethod
    def made(self, batch: Batch, label: Tensor, rng: Rng) -> tuple[Tensor, dict[str, Tensor]]:
        """In training, the images of label maps (b, label_channels, h, w), and terms (b,) of the way to them."""

    @abstractmethod
    def typical(self, batch: Batch, label: Tensor) -> Tensor:
        """In evaluation mode, the images of label maps with nothing drawn, to be compared with the real ones."""

    # Training -----------------------------------------------------------------------------------------------------------

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each of the generator's terms."""
        config = self.config
        return {
            "adversarial": config.adversarial_weight,
            "feature_matching": config.feature_matching_weight,
            _PERCEPTUAL: config.perceptual_weight,
            "l1": config.l1_weight,
        }

    def contests(self, batch: Batch, rng: Rng) -> list[Contest]:
        """One: real and generated images, each with the label map, all three changed alike."""
        label = self.labels(batch.inputs)
        return [self._contest(batch, label, self.made(batch, label, rng)[0], rng)]

    def _contest(self, batch: Batch, label: Tensor, fake: Tensor, rng: Rng) -> Contest:
        judge = partial(self.discriminator, label=self.look(label, rng, maps=True))
        return Contest("", self.look(batch.images, rng), self.look(fake, rng), judge)

    def generator_terms(self, batch: Batch, rng: Rng) -> dict[str, Tensor]:
        """adversarial, feature_matching, perceptual and l1 as far as they have weight, and what the model adds."""
        label = self.labels(batch.inputs)
        fake, terms = self.made(batch, label, rng)
        fooled, matched = self.config.adversarial_weight > 0, self.config.feature_matching_weight > 0
        if fooled or matched:
            verdict = self.verdict(self._contest(batch, label, fake, rng), compare=matched)
            if fooled:
                terms["adversarial"] = verdict.loss
            if matched:
                terms["feature_matching"] = feature_matching(verdict.fake.features, verdict.real.features)
        if self.perceptual is not None:
            terms[_PERCEPTUAL] = self.perceptual(fake, batch.images)
        if self.config.l1_weight > 0:
            terms["l1"] = l1(fake, batch.images)
        return terms

    def distances(self, batch: Batch, rng: Rng) -> dict[str, Tensor]:
        """l1, and perceptual where that has its weights, between real images and those that are `typical` of their label maps."""
        images = self.typical(batch, self.labels(batch.inputs))
        found = {"l1": l1(images, batch.images)}
        if self.perceptual is not None and self.perceptual.network.loaded:
            found[_PERCEPTUAL] = self.perceptual(images, batch.images)
        return found

    # Translation --------------------------------------------------------------------------------------------------------

    def example(self, batch: Batch, *, settings: Config) -> Example:
        """The label maps and what belongs to them, and the real images."""
        return Example({spec.name: batch.inputs[spec.name] for spec in self.sources}, truth=batch.images)

    def _label(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The label map of a translation. Raises ConfigError for what is missing or does not fit."""
        self.labels.check(inputs, stride=self.stride, least_size=self.least_size)
        return self.labels(inputs)

    def _style(self, inputs: Mapping[str, Tensor], *, count: int) -> Tensor | None:
        """The style images (b, k, c, any size) of a translation, where there are some. Raises ConfigError for what does not fit."""
        images, wanted = inputs.get(STYLE), f"({count}, k, {self.output_channels}, h, w)"
        if images is None:
            return None
        if self.styles == "none":
            raise ConfigError(STYLE, "got style images, but this model takes none")
        if images.ndim != 5 or len(images) != count or images.shape[2] != self.output_channels or 0 in images.shape:
            raise ConfigError(STYLE, f"got images of shape {tuple(images.shape)}, expected {wanted}")
        return images


# SPADE --------------------------------------------------------------------------------------------------------------------


@config
class SPADETranslationConfig(Config):
    """How label maps become images."""

    temperature: float = 1.0
    "Factor of random style codes; 0: always the mean of all styles. Styles that images give are taken as they are."

    def validate(self) -> None:
        self.require(0 <= self.temperature < math.inf, "temperature", "0 or more")


@config
class SPADEConfig(PairedGANConfig):
    """SPADE."""

    kind_name: ClassVar = "spade"
    changeable: ClassVar = frozenset(("translation",))

    generator: SPADEGeneratorConfig = SPADEGeneratorConfig()
    "The generator and its style encoder."
    discriminator: SPADEDiscriminatorConfig = SPADEDiscriminatorConfig()
    "The discriminator."
    kl_weight: float = 0.2
    "Weight of the divergence of the encoded styles from N(0, 1), where there is a style code."
    translation: SPADETranslationConfig = SPADETranslationConfig()
    "Settings of `triptych translate`, and of the grids during training."

    def validate(self) -> None:
        self.require(0 <= self.kl_weight < math.inf, "kl_weight", "0 or a positive number")

    def build(self, spec: DataSpec) -> SPADE:
        """The model with fresh weights; raises ConfigError for data that is not in pairs, and for sizes that do not fit."""
        labels = LabelMaps(spec.inputs, positive_conditions=self.positive_conditions)
        generator, patch = self.generator, self.discriminator.patch
        sides = {
            "generator.resolution": (generator.resolution, generator.stride, generator.least_size),
            "discriminator.patch.num_layers": (patch.num_layers, 1, least_side(patch)),
        }
        self.check_sides(spec, sides=sides)
        return SPADE(self, spec, labels)


class SPADE(PairedGAN):
    """The model of a SPADEConfig."""

    config: SPADEConfig
    generator: SPADEGenerator
    discriminator: SPADEDiscriminator

    def __init__(self, config: SPADEConfig, spec: DataSpec, labels: LabelMaps) -> None:
        channels = {"label_channels": labels.channels, "image_channels": spec.channels}
        generator, discriminator = SPADEGenerator(config.generator, **channels), SPADEDiscriminator(config.discriminator, **channels)
        super().__init__(config, spec, labels=labels, generator=generator, discriminator=discriminator)
        self.translation = config.translation
        self.stride, self.least_size = config.generator.stride, config.generator.least_size
        self.style_dims = config.generator.style_dims
        if self.style_dims is not None:
            self.styles, self.random_styles = "optional", True

    @property
    def weights(self) -> Mapping[str, float]:
        """Those of all that learn from pairs, and the divergence's."""
        return {**super().weights, "kl": self.config.kl_weight}

    def made(self, batch: Batch, label: Tensor, rng: Rng) -> tuple[Tensor, dict[str, Tensor]]:
        """The images in the style of the real ones, drawn from what their encoder says; kl, of that and N(0, I)."""
        if self.style_dims is None:
            return self.generator(label=label).fake_images, {}
        out = self.generator(label=label, images=batch.images, noise=rng.normal("style", self.style_dims))
        assert out.mu is not None
        return out.fake_images, {"kl": gaussian_kl(out.mu, out.logvar)} if self.config.kl_weight > 0 else {}

    def typical(self, batch: Batch, label: Tensor) -> Tensor:
        """The images in the style z = 0, the mean of N(0, I): the encoder would be shown the answer."""
        return self.generator(label=label, z=None if self.style_dims is None else label.new_zeros(len(label), self.style_dims)).fake_images

    @torch.no_grad()
    def translate(self, inputs: Mapping[str, Tensor], rng: Rng, *, settings: Config) -> Tensor:
        """An image (b, c, h, w) in [-1, 1] of each label map, in the mean of the styles that k images have, or in a random one.

        `settings` is a SPADETranslationConfig. Raises ConfigError for what is missing or does not fit.
        """
        if not isinstance(settings, SPADETranslationConfig):
            raise TypeError(f"{type(settings).__name__} are not the settings of SPADE's translation")
        label = self._label(inputs)
        images, z = self._style(inputs, count=len(label)), None
        if images is not None:
            z = self.generator.encode(images.flatten(0, 1))[0].unflatten(0, images.shape[:2]).mean(1)
        elif self.style_dims is not None:
            z = settings.temperature * rng.normal("style", self.style_dims)
        return self.generator(label=label, z=z).fake_images


# pix2pixHD ----------------------------------------------------------------------------------------------------------------


@config
class Pix2PixHDTranslationConfig(Config):
    """Settings of a translation: there are none, the label map says it all, or the look of a photo."""


@config
class Pix2PixHDConfig(PairedGANConfig):
    """pix2pixHD."""

    kind_name: ClassVar = "pix2pixhd"
    changeable: ClassVar = frozenset(("translation",))

    generator: Pix2PixHDGeneratorConfig = Pix2PixHDGeneratorConfig()
    "The global generator, its enhancers and its feature encoder."
    discriminator: PatchDiscriminatorConfig = PatchDiscriminatorConfig(num_layers=3, norm="instance")
    "The discriminator."
    translation: Pix2PixHDTranslationConfig = Pix2PixHDTranslationConfig()
    "Settings of `triptych translate`."

    def build(self, spec: DataSpec) -> Pix2PixHD:
        """The model with fresh weights; raises ConfigError for data that is not in pairs, and for sizes that do not fit."""
        labels = LabelMaps(spec.inputs, positive_conditions=self.positive_conditions)
        generator, encoder = self.generator, self.generator.encoder
        sides: dict[str, tuple[object, int, int]] = {}
        if encoder is not None:
            if labels.instances is None or not labels.classes:
                lacking = "instance maps (data.instances)" if labels.instances is None else "class maps (data.maps)"
                raise ConfigError("generator.encoder", f"got a feature encoder, but the data has no {lacking}; leave it out, or give them")
            down = encoder.num_downsamples
            sides["generator.encoder.num_downsamples"] = (down, 2**down, 2 ** (down + 1))
        sides |= {
            "generator.num_downsamples": (generator.num_downsamples, generator.stride, generator.least_size),
            "discriminator.num_layers": (self.discriminator.num_layers, 1, least_side(self.discriminator)),
        }
        self.check_sides(spec, sides=sides)
        return Pix2PixHD(self, spec, labels)


class Pix2PixHD(PairedGAN):
    """The model of a Pix2PixHDConfig.

    With a feature encoder, what its instances look like comes from the real image in training and validation. A translation has it from
    style images of the same layout; without them from looks of the training images, which `collect` finds and keeps.
    """

    config: Pix2PixHDConfig
    generator: Pix2PixHDGenerator
    discriminator: Pix2PixHDDiscriminator

    def __init__(self, config: Pix2PixHDConfig, spec: DataSpec, labels: LabelMaps) -> None:
        channels = {"label_channels": labels.channels, "image_channels": spec.channels}
        classes = class_channels(labels.classes[0]) if config.generator.encoder is not None else None
        generator = Pix2PixHDGenerator(config.generator, **channels, num_classes=classes)
        discriminator = Pix2PixHDDiscriminator(config.discriminator, **channels)
        super().__init__(config, spec, labels=labels, generator=generator, discriminator=discriminator)
        self.translation = config.translation
        self.stride, self.least_size = config.generator.stride, config.generator.least_size
        self.num_looks = 0 if config.generator.encoder is None else config.generator.encoder.num_clusters
        if self.num_looks:
            self.styles, self.random_styles, self.collects = "optional", True, True

    def renamed(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """With enhancers, the layers of a global generator that was trained alone become those of this one's."""
        tensors = super().renamed(tensors)
        if not self.config.generator.num_enhancers:
            return tensors
        alone, here = "generator.global_model.model.", "generator.global_model."
        return {here + name.removeprefix(alone) if name.startswith(alone) else name: tensor for name, tensor in tensors.items()}

    def made(self, batch: Batch, label: Tensor, rng: Rng) -> tuple[Tensor, dict[str, Tensor]]:
        """The images with the looks of the real ones' instances; no term."""
        return self.typical(batch, label), {}

    def typical(self, batch: Batch, label: Tensor) -> Tensor:
        """The same."""
        return self.generator(label=label, features=self._features(batch.images, batch.inputs) if self.num_looks else None)

    def example(self, batch: Batch, *, settings: Config) -> Example:
        """The label maps and what belongs to them, and the real images; these as style images too where no looks were kept."""
        example = super().example(batch, settings=settings)
        if not self.num_looks or self.generator.encoder.kept_any:
            return example
        return replace(example, inputs={**example.inputs, STYLE: batch.images[:, None]})

    def _features(self, images: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        return self.generator.encoder(images, instances=self.labels.instance_map(inputs))

    @torch.no_grad()
    def collect(self, batches: Iterable[Batch]) -> None:
        """Keeps what the larger instances of each class look like in these images, as cluster centres, for translations without a photo."""
        found = []
        for batch in batches:
            instances = self.labels.instance_map(batch.inputs)
            features = self._features(batch.images, batch.inputs)
            found.append(looks_of(features, instances=instances, label=self.labels.first_classes(batch.inputs)))
        features, classes = (torch.cat(parts) for parts in zip(*found, strict=True))
        everywhere = gathered(widened(features).flatten()).view(-1, features.shape[1])
        self.generator.encoder.keep(Looks(everywhere, gathered(classes)))

    @torch.no_grad()
    def translate(self, inputs: Mapping[str, Tensor], rng: Rng, *, settings: Config) -> Tensor:
        """An image (b, c, h, w) in [-1, 1] of each label map.

        With a feature encoder its instances have the mean of the looks that k style images have in their place, which should show the same
        layout, or each class one of its kept looks, by `rng`. `settings` is a Pix2PixHDTranslationConfig. Raises ConfigError for what is
        missing or does not fit.
        """
        if not isinstance(settings, Pix2PixHDTranslationConfig):
            raise TypeError(f"{type(settings).__name__} are not the settings of pix2pixHD's translation")
        label = self._label(inputs)
        images, features = self._style(inputs, count=len(label)), None
        if images is not None:
            features = self._features_of_styles(images, inputs, size=label.shape[2:])
        elif self.num_looks:
            if not self.generator.encoder.kept_any:
                raise ConfigError(STYLE, "missing: these weights have kept no looks of instances (only averages do); give style images")
            classes = self.labels.first_classes(inputs)
            choices = rng.integers("look", self.num_looks, classes.shape[1])
            features = self.generator.encoder.kept(classes, choices=choices)
        return widened(self.generator(label=label, features=features))

    def _features_of_styles(self, images: Tensor, inputs: Mapping[str, Tensor], *, size: torch.Size) -> Tensor:
        flat, k = images.flatten(0, 1), images.shape[1]
        if flat.shape[2:] != size:
            flat = F.interpolate(flat, size=tuple(size), mode="bilinear", align_corners=False, antialias=True)
        instances = self.labels.instance_map(inputs).repeat_interleave(k, dim=0)
        return self.generator.encoder(flat, instances=instances).unflatten(0, images.shape[:2]).mean(1)
