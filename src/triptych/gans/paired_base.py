"""What GANs have in common that make images from label maps and learn from pairs of both.

The discriminator D sees an image x and its label map s. With the generated image G(s), the generator minimises

    w_adv L_adv(D(s, G(s))) + w_fm FM + w_p P(G(s), x) + w_1 |G(s) - x|

FM is the distance of D's features of G(s) and of x (pix2pixHD: Wang et al. 2018, arXiv 1711.11585, Eq. 4), P the perceptual loss, and the
L1 distance that of pix2pix (Isola et al. 2017, arXiv 1611.07004, Eq. 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import ClassVar, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from triptych.core.batch import STYLE, Batch, DataSpec, InputSpec
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.core.rng import Rng
from triptych.core.translation import Example
from triptych.gans.label_maps import LabelMaps
from triptych.gans.losses import feature_matching, l1
from triptych.gans.model import Contest, GANConfig
from triptych.gans.perceptual import PerceptualConfig
from triptych.gans.translation_base import PERCEPTUAL, GeneratorConfig, TranslationGAN, check_numbers, check_perceptual, check_sides


@config
class PairedGANConfig(GANConfig):
    """A GAN that learns from pairs."""

    unwritten: ClassVar = GANConfig.unwritten | {"positive_inputs"}
    terms: ClassVar = GANConfig.terms | {"feature_matching": "feature_matching_weight", PERCEPTUAL: "perceptual_weight", "l1": "l1_weight"}

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
    positive_inputs: tuple[str, ...] = ()
    "Those condition images alone, by name, that have values from 0 to 1; all have with positive_conditions."

    def validate(self) -> None:
        total = self.adversarial_weight + self.feature_matching_weight + self.perceptual_weight + self.l1_weight
        self.require(total > 0, "adversarial_weight", "a positive number where all other weights are 0")

    def label_maps(self, inputs: tuple[InputSpec, ...]) -> LabelMaps:
        """What puts such inputs together. Raises ConfigError for data that no images can be made from."""
        return LabelMaps(inputs, positive_conditions=self.positive_conditions, positive=self.positive_inputs)

    def check_sides(self, spec: DataSpec, *, sides: Mapping[str, tuple[object, int, int]]) -> None:
        """Raises ConfigError for images that the networks or the perceptual loss do not take.

        `sides`: for each setting that decides it, what it is, what the sides are multiples of, and the fewest pixels along them.
        """
        for setting, (value, stride, least) in sides.items():
            words = {"given": value, "advice": "give less, or another data.image_size and data.width"}
            check_sides(spec, setting, stride=stride, expected=f"expected sides of multiples of {stride}", **words)
            check_sides(spec, setting, least=least, expected=f"expected sides of at least {least}", **words)
        check_perceptual(spec, weight=self.perceptual_weight, perceptual=self.perceptual)


class Painted(NamedTuple):
    """Label maps, and what was made of them."""

    label: Float[Tensor, "b n h w"]
    "As the discriminator sees them beside images."
    images: Float[Tensor, "b c h w"]
    terms: Mapping[str, Float[Tensor, " b"]] = MappingProxyType({})
    "Of the way to the images, for the generator."


class PairedGAN(TranslationGAN):
    """A GAN whose images are made from label maps."""

    config: PairedGANConfig

    def __init__(
        self,
        config: PairedGANConfig,
        spec: DataSpec,
        generator: nn.Module,
        discriminator: nn.Module,
        *,
        labels: LabelMaps,
        sizes: GeneratorConfig,
        translation: Config,
        partial: bool = False,
    ) -> None:
        perceptual = config.perceptual if config.perceptual_weight > 0 else None
        given = {"sizes": sizes, "translation": translation, "perceptual": perceptual, "partial": partial}
        super().__init__(config, spec, generator, discriminator, **given)
        self.labels, self.sources = labels, spec.inputs

    # Training -----------------------------------------------------------------------------------------------------------

    def contests(self, made: Painted, batch: Batch, rng: Rng) -> list[Contest]:
        """One: real and generated images, each with the label map, which is augmented as its image is."""
        return [self._contest(batch, made.label, made.images, rng)]

    def _contest(self, batch: Batch, label: Tensor, fake: Tensor, rng: Rng) -> Contest:
        return self.contest(batch.images, fake, rng, discriminate=lambda view: partial(self.discriminator, label=view(label, maps=True)))

    def generator_terms(self, made: Painted, batch: Batch, rng: Rng) -> dict[str, Float[Tensor, " b"]]:
        """adversarial, feature_matching, perceptual and l1 as far as they have weight, and what the model adds."""
        return {**made.terms, **self.judged(batch, made.label, made.images, rng)}

    def judged(self, batch: Batch, label: Tensor, fake: Tensor, rng: Rng) -> dict[str, Float[Tensor, " b"]]:
        """The generator's terms of its images: adversarial, feature_matching, perceptual and l1, those that have weight."""
        terms: dict[str, Tensor] = {}
        fooled, matched = self.config.adversarial_weight > 0, self.config.feature_matching_weight > 0
        if fooled or matched:
            verdict = self.verdict(self._contest(batch, label, fake, rng), compare=matched)
            if fooled:
                terms["adversarial"] = verdict.loss
            if matched:
                terms["feature_matching"] = feature_matching(verdict.fake.features, verdict.real.features)
        if self.perceptual is not None:
            terms[PERCEPTUAL] = self.perceptual(fake, batch.images)
        if self.config.l1_weight > 0:
            terms["l1"] = l1(fake, batch.images)
        return terms

    def compared(self, images: Float[Tensor, "b c h w"], real: Float[Tensor, "b c h w"]) -> dict[str, Float[Tensor, " b"]]:
        """How far images are from the real ones: l1, and perceptual where that has its weights."""
        distances = {"l1": l1(images, real)}
        if self.perceptual is not None and self.perceptual.network.loaded:
            distances[PERCEPTUAL] = self.perceptual(images, real)
        return distances

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
        check_numbers(images, STYLE)
        return images
