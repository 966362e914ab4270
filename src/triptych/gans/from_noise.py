"""What the GANs that make images from noise share: the contest of real images and images of noise, labels, and the slices of a step.

The generator makes an image of z, drawn from N(0, I), and of a class where it is conditional ("Conditional Generative Adversarial Nets",
Mirza and Osindero 2014, https://arxiv.org/abs/1411.1784). Generated images have the labels of the real ones that they stand beside, so
that their classes are as frequent as those of the data.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from triptych.core.batch import Batch, DataSpec, labels_for_model
from triptych.core.config import Config, config
from triptych.core.model import Report, TrainingProgress, Turn
from triptych.core.rng import Rng
from triptych.gans.ada import require_colours
from triptych.gans.augmentation import View
from triptych.gans.init import InitConfig
from triptych.gans.model import GAN, GENERATOR, Contest, Discriminate, GANConfig
from triptych.gans.penalties import PenaltyConfig
from triptych.nn.images import image_shape


@config
class NoiseGANConfig(GANConfig):
    """A GAN that makes images from noise."""

    latent_dims: int = 512
    "Numbers of z, the noise that an image is made of."
    class_conditional: bool = False
    "Learn the images given their class."
    fresh_images: bool = False
    "Whether the generator's steps have real images of their own, which count as images seen; else those of the discriminator's first step."
    augment_alike: bool = False
    "The same changes for a real image and the generated one beside it; else each has its own."
    penalty: PenaltyConfig = PenaltyConfig(at="original")
    "Gradient penalties of the discriminator."
    initial: InitConfig = InitConfig(kind="none", bias="none")
    "Initial weights of both networks; none: those of the papers, which depend on the layer."

    def validate(self) -> None:
        self.require(self.latent_dims >= 1, "latent_dims", "a positive whole number")


class NoiseGAN(GAN):
    """A generator of images from noise and labels, and a discriminator that is called with images and labels."""

    config: NoiseGANConfig
    sampling: Config

    def __init__(
        self, config: NoiseGANConfig, spec: DataSpec, generator: nn.Module, discriminator: nn.Module, *, partial: bool = False
    ) -> None:
        """Takes the networks. `partial`: some losses give some parameters no gradient.

        Raises ConfigError for labels that are not there, and for images that have no colours to change.
        """
        super().__init__(config, generator, discriminator, partial=partial)
        if self.ada is not None:
            require_colours(config.ada, spec.channels)
        self.image_shape = image_shape(spec)
        self.num_classes = spec.num_labels(class_conditional=config.class_conditional)

    @abstractmethod
    def generated(self, labels: Int[Tensor, " b"] | None, rng: Rng) -> Float[Tensor, "b c h w"]:
        """The images of the training, one for each index of `rng`, with gradients. `labels`: exactly when the model is conditional."""

    @abstractmethod
    @torch.no_grad()
    def sample(
        self, rng: Rng, *, labels: Int[Tensor, " b"] | None, settings: Config, report: Report | None = None
    ) -> Float[Tensor, "b c h w"]:
        """One image in [-1, 1] for each index of `rng`. Raises ConfigError for settings or labels that do not fit."""

    # The game -----------------------------------------------------------------------------------------------------------

    @property
    def slices(self) -> int:
        """Of real images in an iteration: with `fresh_images` the generator's steps have some of their own."""
        return super().slices if not self.config.fresh_images else self.config.discriminator_steps + self.config.generator_steps

    def turns(self, progress: TrainingProgress) -> Iterable[Turn]:
        """The phases in turn. With `fresh_images` those of the generator take the slices behind the discriminator's."""
        first = self.config.discriminator_steps if self.config.fresh_images else 0
        for turn in super().turns(progress):
            yield replace(turn, slice=first + turn.slice) if turn.phase.networks == (GENERATOR,) else turn

    def made(self, batch: Batch, rng: Rng) -> Float[Tensor, "b c h w"]:
        """As many images as there are real ones, of the same classes."""
        return self.generated(self.labels_of(batch), rng)

    def contests(self, made: Float[Tensor, "b c h w"], batch: Batch, rng: Rng) -> list[Contest]:
        """Real images against generated ones."""
        return [self._contest(batch, made, rng)]

    def penalised_contests(self, batch: Batch, rng: Rng) -> list[Contest]:
        """The contests; where there is no R2, which looks at generated images, real ones stand for them and none is made."""
        return super().penalised_contests(batch, rng) if self.config.penalty.r2_gamma else [self._contest(batch, batch.images, rng)]

    def _contest(self, batch: Batch, fake: Float[Tensor, "b c h w"], rng: Rng) -> Contest:
        labels = self.labels_of(batch)

        def discriminate(view: View) -> Discriminate:
            return lambda images: self.discriminator(images, labels)

        return self.contest(batch.images, fake, rng, discriminate=discriminate)

    def generator_terms(self, made: Float[Tensor, "b c h w"], batch: Batch, rng: Rng) -> dict[str, Float[Tensor, " b"]]:
        """What the discriminator says of generated images."""
        (contest,) = self.contests(made, batch, rng)
        return {"adversarial": self.verdict(contest).loss}

    # Labels -------------------------------------------------------------------------------------------------------------

    def labels_of(self, batch: Batch) -> Tensor | None:
        """The labels of a batch where the model is conditional, else None."""
        return None if self.num_classes is None else batch.labels

    def checked_labels(self, labels: Tensor | None, count: int) -> Tensor | None:
        """The labels (b,) that samples were asked for; raises ConfigError unless they fit the model."""
        return labels_for_model(labels, count, num_classes=self.num_classes)
