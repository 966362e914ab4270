"""StyleGAN2: images of a style for each resolution (equations in docs/methods/stylegan2.md).

"Analyzing and Improving the Image Quality of StyleGAN", Karras et al. 2020, https://arxiv.org/abs/1912.04958; the settings by resolution
and the conditional networks are those of "Training Generative Adversarial Networks with Limited Data", Karras et al. 2020,
https://arxiv.org/abs/2006.06676.

Different here: the mean path length moves after the step in which it was measured, as the running mean of w does, so that microbatches
and processes change nothing; the images of a group whose deviation is compared are consecutive; whether styles are mixed, and where, is
drawn for each image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from triptych.core.batch import Batch, DataSpec
from triptych.core.config import Config, config, settings_like
from triptych.core.errors import ConfigError
from triptych.core.model import LossTerms, Phase, Report
from triptych.core.rng import Rng
from triptych.gans.from_noise import NoiseGANConfig
from triptych.gans.groups import in_groups
from triptych.gans.losses import AdversarialConfig
from triptych.gans.model import GENERATOR
from triptych.gans.penalties import PenaltyConfig, differentiable
from triptych.gans.style_space import StyleSpace
from triptych.gans.stylegan2_layers import StyleGAN2DiscriminatorConfig, StyleGAN2GeneratorConfig
from triptych.gans.stylegan2_networks import StyleGAN2Discriminator, StyleGAN2Generator
from triptych.nn.gradients import gradient

PATH = "path"
_SIZES = [2**power for power in range(3, 13)]


@config
class PathConfig(Config):
    """Path length regularization: a step in w is to change the image by the same length wherever it is taken."""

    weight: float = 2.0
    "Weight of (length - mean length)^2; 0: none."
    every: int = 4
    "Regularise in every so many iterations only, so many times as strongly."
    shrink: int = 2
    "One image in so many is measured."
    rate: float = 0.01
    "Share of the mean length that one measurement replaces."

    def validate(self) -> None:
        self.require(0 <= self.weight < math.inf, "weight", "0 or a positive number")
        self.require(self.every >= 1, "every", "at least 1")
        self.require(self.shrink >= 1, "shrink", "at least 1")
        self.require(0 < self.rate <= 1, "rate", "above 0 and at most 1")


@config
class StyleGAN2Sampling(Config):
    """Settings of the sampler."""

    truncation: float = 1.0
    "psi: each w becomes w_avg + psi (w - w_avg); below 1 images are better and more alike, 0: all have the mean style."
    truncation_layers: int | None = None
    "How many layers, from the coarsest on, are truncated; None: all."
    noise: Literal["random", "fixed", "none"] = "random"
    "The noise of each pixel: drawn for each image, that which came with the weights, or none."

    def validate(self) -> None:
        self.require(abs(self.truncation) <= 1e6, "truncation", "a number from -1e6 to 1e6")
        self.require(self.truncation_layers is None or self.truncation_layers >= 0, "truncation_layers", "0 or more, or nothing")


@config
class StyleGAN2Config(NoiseGANConfig):
    """StyleGAN2: images of a style for each resolution."""

    kind_name: ClassVar = "stylegan2"
    changeable: ClassVar = frozenset(("sampling",))

    generator: StyleGAN2GeneratorConfig = StyleGAN2GeneratorConfig()
    "The generator."
    discriminator: StyleGAN2DiscriminatorConfig = StyleGAN2DiscriminatorConfig()
    "The discriminator."
    adversarial: AdversarialConfig = AdversarialConfig(kind="non_saturated")
    "The loss on the discriminator's scores."
    penalty: PenaltyConfig = PenaltyConfig(r1_gamma=10.0, every=16, at="original")
    "Gradient penalties of the discriminator."
    path: PathConfig = PathConfig()
    "Path length regularization of the generator."
    style_mixing: float = 0.9
    "Share of the training's images that are made of two styles, one from a random layer on."
    w_avg_rate: float = 0.005
    "Share of the mean of w, which truncation needs, that the w of one step replace."
    sampling: StyleGAN2Sampling = StyleGAN2Sampling()
    "The sampler."

    def validate(self) -> None:
        self.require(0 <= self.style_mixing <= 1, "style_mixing", "0 to 1")
        self.require(0 < self.w_avg_rate <= 1, "w_avg_rate", "above 0 and at most 1")
        drawn = (self.initial.kind, self.initial.bias) == ("none", "none")
        self.require(drawn, "initial", "kind none and bias none: weights are drawn from N(0, 1) and scaled where they are used")

    def shrunk(self) -> Self:
        """Narrow networks, for tests."""
        return replace(self, latent_dims=6, generator=self.generator.shrunk(), discriminator=self.discriminator.shrunk())

    def build(self, spec: DataSpec) -> StyleGAN2:
        """The model. Raises ConfigError for images that are not squares of 8 to 4096 pixels, a power of two."""
        return StyleGAN2(self, spec)


class StyleGAN2(StyleSpace):
    """StyleGAN2. Phases "discriminator", "penalty", "generator" and "path"."""

    config: StyleGAN2Config
    generator: StyleGAN2Generator
    discriminator: StyleGAN2Discriminator
    path_mean: Tensor

    def __init__(self, config: StyleGAN2Config, spec: DataSpec) -> None:
        height, width = spec.height_and_width
        if height != width or height not in _SIZES:
            sizes = f"{', '.join(map(str, _SIZES[:-1]))} or {_SIZES[-1]}"
            raise ConfigError(
                "generator", f"got images of {width}x{height}, expected squares of {sizes} pixels; give another data.image_size"
            )
        shape = {"size": height, "image_channels": spec.channels}
        classes = spec.num_labels(class_conditional=config.class_conditional)
        generator = StyleGAN2Generator(config.generator, z_dims=config.latent_dims, num_classes=classes, **shape)
        super().__init__(config, spec, generator, StyleGAN2Discriminator(config.discriminator, num_classes=classes, **shape))
        self.sampling = config.sampling
        self.group_size = config.discriminator.group_size
        self.register_buffer("path_mean", torch.zeros([]))
        if config.path.weight:
            self.phases = (*self.phases, Phase(PATH, (GENERATOR,), every=config.path.every, partial=True))
            self.group_size = math.lcm(self.group_size, config.path.shrink)
        else:
            self.absent_phases = (*self.absent_phases, PATH)

    # Training -----------------------------------------------------------------------------------------------------------

    def generated(self, labels: Int[Tensor, " b"] | None, rng: Rng) -> Float[Tensor, "b c h w"]:
        """The images of the training, with style mixing and noise."""
        return self.generator(*self._latent(labels, rng), **self._mixing(rng), noise=self.generator.synthesis.drawn_noise(rng))

    def _latent(self, labels: Tensor | None, rng: Rng) -> tuple[Tensor, Tensor | None]:
        return rng.normal("z", self.config.latent_dims), labels

    def _mixing(self, rng: Rng) -> dict[str, Tensor]:
        """The second z of each image and the layer from which on it counts, behind the last one where the image has one style alone."""
        share, layers = self.config.style_mixing, self.generator.synthesis.num_ws
        if not share:
            return {}
        mixed = rng.uniform("mixed") < share
        crossover = torch.where(mixed, 1 + rng.integers("crossover", layers - 1), layers)
        return {"other": rng.normal("other z", self.config.latent_dims), "crossover": crossover}

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        """The terms of the phase. What moves the running means is observed."""
        if phase.name == PATH:
            return self._path_loss(batch, rng)
        terms = super().loss(phase, batch, rng)
        if phase.name == GENERATOR and self.training:
            with torch.no_grad():
                w = self.generator.mapping(*self._latent(self.labels_of(batch), rng))
            terms = replace(terms, observed={**terms.observed, "w": w})
        return terms

    def _path_loss(self, batch: Batch, rng: Rng) -> LossTerms:
        """weight (|J^T y| - a)^2 of one image in `shrink` (Karras et al. 2020, Eq. 4), a the mean length of earlier steps.

        It is there once for all the steps that the generator takes in so many iterations.
        """
        settings = self.config.path
        every = settings.every * self.config.generator_steps
        some = slice(None, None, settings.shrink)
        labels = self.labels_of(batch)
        lengths = self.path_lengths(None if labels is None else labels[some], rng[some])
        errors = (lengths - self.path_mean).square()
        share = len(rng) / len(lengths)  # the loop divides by the number of all images
        loss = torch.zeros(len(rng), dtype=errors.dtype, device=errors.device)
        loss[some] = settings.weight * every * share * errors
        measured = {"path": _spread(errors.detach(), len(rng)), "path_length": _spread(lengths.detach(), len(rng))}
        return LossTerms(loss, measured, observed={"path_length": lengths.detach()})

    def path_lengths(self, labels: Int[Tensor, " b"] | None, rng: Rng) -> Float[Tensor, " b"]:
        """|J^T y| for an image of each index of `rng`, with gradients: J is d image / d w, y noise; its square is the mean over the layers.

        Each number of y is divided by the root of the number of pixels.
        """
        z, labels = self._latent(labels, rng)
        with differentiable():
            ws = self.generator.styles(z, labels, **self._mixing(rng))
            images = self.generator.synthesis(ws, self.generator.synthesis.drawn_noise(rng))
            directions = rng.normal("direction", *self.image_shape) / math.sqrt(math.prod(self.image_shape[1:]))
            product = gradient((images * directions).sum(), ws, create_graph=True)
            return product.square().sum(dim=2).mean(dim=1).sqrt()

    @torch.no_grad()
    def observe(self, phase: Phase, terms: Mapping[str, Tensor]) -> None:
        """Moves the running means of w and of the path length."""
        super().observe(phase, terms)
        if phase.name == GENERATOR:
            self.generator.mapping.w_avg.lerp_(terms["w"].mean(0), self.config.w_avg_rate)
        if phase.name == PATH:
            self.path_mean.lerp_(terms["path_length"].mean(), self.config.path.rate)

    # Sampling -----------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def sample(
        self, rng: Rng, *, labels: Int[Tensor, " b"] | None, settings: Config, report: Report | None = None
    ) -> Float[Tensor, "b c h w"]:
        """One image in [-1, 1] for each index of `rng`, on one device the same to the last bit in every batch.

        Raises ConfigError for labels that do not fit.
        """
        return self.images_of(self.sampled_latents(rng, labels=labels, settings=settings), index=rng.index)

    @torch.no_grad()
    def sampled_latents(self, rng: Rng, *, labels: Int[Tensor, " b"] | None, settings: Config) -> list[Tensor]:
        """The styles of the samples (b, n, w), and their noise (b, 1, h, h) for each layer unless that is the fixed one."""
        settings = settings_like(self.config.sampling, settings)
        synthesis = self.generator.synthesis
        given = [part for part in self._latent(self.checked_labels(labels, len(rng)), rng) if part is not None]

        def styles(z: Tensor, labels: Tensor | None = None) -> list[Tensor]:
            return [self.truncated(self.generator.mapping(z, labels), settings=settings)]

        (ws,) = in_groups(styles, *given, side=synthesis.sides[-1], index=rng.index)
        noise = [] if settings.noise == "fixed" else synthesis.drawn_noise(rng)
        return [ws, *(maps if settings.noise == "random" else maps * 0 for maps in noise)]

    def truncated(self, w: Float[Tensor, "b s"], *, settings: StyleGAN2Sampling) -> Float[Tensor, "b n s"]:
        """w for each layer, truncated in those that the settings name."""
        layers = self.generator.synthesis.num_ws
        cut = layers if settings.truncation_layers is None else min(settings.truncation_layers, layers)
        near = self.generator.mapping.truncated(w, settings.truncation)
        return torch.cat((near[:, None].expand(-1, cut, -1), w[:, None].expand(-1, layers - cut, -1)), dim=1)


def _spread(values: Float[Tensor, " m"], count: int) -> Float[Tensor, " n"]:
    """So many values with the mean of these."""
    return values.mean().expand(count)
