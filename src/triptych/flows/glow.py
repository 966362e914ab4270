"""Glow: a normalizing flow of images, trained by maximum likelihood.

"Glow: Generative Flow with Invertible 1x1 Convolutions", Kingma and Dhariwal 2018, https://arxiv.org/abs/1807.03039; the layers are in
layers.py, the flow in multiscale.py. Of an image of d values in n = 2^bits levels, dequantization.py makes x. Then

    loss = (d ln n - ln p(x)) / (d ln 2) + w CE(y | z_top) / ln 2,

in bits: the first part bounds the bits that a value costs from above, the second, where there are classes and w > 0, asks the last
latent for the label. What differs from the original program: any number of channels and any size that the levels divide, the order of a
shuffle is saved with the model, log-determinants are computed by slogdet in float64, and the noise of an image depends on the image alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.core.batch import Batch, DataSpec, checked_labels
from triptych.core.config import Config, config, settings_like
from triptych.core.errors import ConfigError
from triptych.core.model import LossTerms, Model, ModelConfig, Phase, Report
from triptych.core.rng import Rng
from triptych.flows.dequantization import Dequantization
from triptych.flows.layers import CouplingName, MixingName, ZeroLinear, full_precision
from triptych.flows.memory import MemoryName
from triptych.flows.multiscale import Encoded, Extent, MultiscaleFlow, StepSettings
from triptych.nn.images import check_drawn, image_shape, square_side
from triptych.nn.precision import without_tf32

MOST_LEVELS = 16
"""Of images of 65,536 pixels, which are larger than any."""


@config
class GlowSamplingConfig(Config):
    """How images are drawn from the model."""

    temperature: tuple[float, ...] = (1.0,)
    "Factor of the latents' standard deviation, at all levels; below 1 images are less varied. Several are taken in turn, image by image."

    def validate(self) -> None:
        self.require(len(self.temperature) > 0, "temperature", "at least one number")
        self.require(all(0 <= value < math.inf for value in self.temperature), "temperature", "0 or more")


@config
class GlowEncodingConfig(Config):
    """How images become latents."""

    dequantization: Literal["center", "uniform"] = "center"
    "Where an image lies within its levels: in their middle, or anywhere, at random."


@config
class GlowLikelihoodConfig(Config):
    """How the likelihood of images is measured."""

    draws: int = 1
    "Draws of the dequantization noise, over which log p is averaged."

    def validate(self) -> None:
        self.require(self.draws >= 1, "draws", "at least 1")


@config
class GlowConfig(ModelConfig):
    """Glow."""

    kind_name: ClassVar = "glow"
    within_bounds: ClassVar = True
    changeable: ClassVar = frozenset(("memory", "sampling", "grid_temperatures"))

    levels: int = 3
    "Scales; the image size has to be a multiple of 2^levels."
    depth: int = 32
    "Steps of flow at each level."
    width: int = 512
    "Channels of the hidden layers of the coupling networks."
    coupling: CouplingName = "affine"
    "What a step does to half of the channels: additive moves them, affine scales them too (higher likelihood)."
    permutation: MixingName = "conv"
    "How a step mixes channels: an invertible 1x1 convolution, the same by its LU factors, a random fixed order, or the reverse order."
    border: Literal["original", "none"] = "original"
    "original: each 3x3 convolution is told where the border is, by one more input channel."
    learn_top: bool = True
    "Learn mean and deviation of the last latent, for each pixel; false: it is N(0, 1), or by class alone."
    class_conditional: bool = False
    "Learn the images given their class: it sets mean and deviation of the last latent."
    class_weight: float = 0.0
    "Weight of predicting the class from the last latent (with class_conditional; 0.01 in the original)."
    bits: int = 8
    "Bits that are kept of each 8-bit value."
    memory: MemoryName = "inversion"
    "Activations kept in training: all; or those at each step's beginning; or none, they are computed back from the end of a level."
    init_images: int = 256
    "First images, from which the scales of all activations are set."
    sampling: GlowSamplingConfig = dataclasses.field(default_factory=GlowSamplingConfig)
    "Default settings of `triptych sample`, and those of the grids during training."
    grid_temperatures: tuple[float, ...] = (0.0, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    "Temperatures at which there are further grids during training, of the same noise."

    def validate(self) -> None:
        self.require(1 <= self.levels <= MOST_LEVELS, "levels", f"1 to {MOST_LEVELS}")
        for name in ("depth", "width"):
            self.require(getattr(self, name) >= 1, name, "at least 1")
        self.require(1 <= self.bits <= 8, "bits", "1 to 8")
        self.require(self.init_images >= 2, "init_images", "at least 2")
        self.require(0 <= self.class_weight < math.inf, "class_weight", "0 or more")
        self.require(all(0 <= value < math.inf for value in self.grid_temperatures), "grid_temperatures", "0 or more")
        self.require(self.class_weight == 0 or self.class_conditional, "class_weight", "0 where class_conditional is false")

    def shrunk(self) -> Self:
        return dataclasses.replace(self, levels=2, depth=2, width=16, init_images=32)

    def build(self, spec: DataSpec) -> Glow:
        """The model with fresh weights; raises ConfigError for sizes that it cannot take, and for missing labels."""
        if square_side(spec, taker="Glow") % 2**self.levels:
            wanted = f"an image size that is a multiple of {2**self.levels}; give fewer, or another data.image_size"
            raise ConfigError("levels", f"got {self.levels} for images of {spec.image_size} pixels, expected {wanted}")
        return Glow(self, spec)


class Glow(Model):
    """The model of a GlowConfig; `network` is its flow, `classifier` the head that predicts classes, where there is one."""

    averaged = ("network",)
    validated = ("likelihood",)
    encoding = GlowEncodingConfig()
    interpolation = "linear"
    latents_hold_class = False
    likelihood = GlowLikelihoodConfig()

    def __init__(self, config: GlowConfig, spec: DataSpec) -> None:
        super().__init__()
        self.config, self.sampling, self.init_images = config, config.sampling, config.init_images
        self.image_shape = image_shape(spec)
        self.dequantization = Dequantization(config.bits, math.prod(self.image_shape))
        self.num_classes = spec.num_labels(class_conditional=config.class_conditional)
        self.network = MultiscaleFlow(
            spec.channels,
            spec.image_size,
            levels=config.levels,
            depth=config.depth,
            settings=StepSettings(config.width, config.coupling, config.permutation, config.border == "original", config.memory),
            learn_top=config.learn_top,
            num_classes=self.num_classes,
        )
        self.classifier: ZeroLinear | None = None
        if config.class_weight > 0:
            assert self.num_classes is not None, "GlowConfig refuses a class_weight without classes"
            self.classifier = ZeroLinear(self.network.latent_shapes[-1][0], self.num_classes)
            self.averaged = ("network", "classifier")
        self.phases = (Phase("likelihood", self.averaged),)
        temperatures = dict.fromkeys(config.grid_temperatures)
        self.grids = {f"temperature-{value:g}": GlowSamplingConfig(temperature=(value,)) for value in temperatures}
        self.saves_memory = config.memory != "autograd"
        self._extent: Extent | None = None

    # Training --------------------------------------------------------------------------------------------------------

    def initialize(self, batch: Batch, rng: Rng) -> None:
        """Sets the actnorms, those inside the coupling networks too, from a batch, in one pass through the flow."""
        self.network.initialize(self._dequantized(batch.images, rng))

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        """Bits per dimension of each sample, and the weighted bits of its class."""
        labels = None if self.num_classes is None else batch.labels
        x = self._dequantized(batch.images, rng)
        encoded: Encoded = self.network(x, labels)
        bits = self.dequantization.bits_per_dim(encoded.log_prob)
        self._extent = encoded.extent.unless_failed(self._extent)
        logged = {"bits_per_dim": bits.detach()}
        if self.classifier is None or labels is None:
            return LossTerms(loss=bits, logged=logged)
        with full_precision(bits):
            logits = self.classifier(encoded.top.mean((2, 3)))
        class_bits = F.cross_entropy(logits, labels, reduction="none") / math.log(2)
        logged |= {"class_bits": class_bits.detach(), "class_error": (logits.argmax(1) != labels).float()}
        return LossTerms(loss=bits + self.config.class_weight * class_bits, logged=logged)

    def fault(self) -> str | None:
        """The layer that made a loss not finite."""
        fault = None if self._extent is None else self._extent.fault()
        return fault and f"{fault}; a longer --optim.warmup-images or --model.permutation conv-lu may help too"

    # Likelihood ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def log_prob(self, batch: Batch, rng: Rng, *, settings: Config | None = None) -> Tensor:
        """log P of each image of the batch, in nats: (b,) in float64 (see core.model.Likelihood); by `rng` with uniform noise.

        Of the image reduced to `bits` bits, where these are fewer than 8. `settings` is a GlowLikelihoodConfig.
        """
        settings = settings_like(self.likelihood, settings)
        labels = None if self.num_classes is None else batch.labels
        total = torch.zeros(len(batch), dtype=torch.float64, device=batch.images.device)
        for draw in range(settings.draws):
            x = self._dequantized(batch.images, rng.child(draw) if draw else rng)
            total += self.network(x, labels).log_prob.double()
        return self.dequantization.log_prob(total / settings.draws)

    @torch.no_grad()
    def bits_per_dim(self, images: Tensor, *, noise: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        """Bits per dimension of each of the uint8 images (b, c, h, w): (b,).

        `noise`: where in its level each value lies, (b, c, h, w) in [0, 1); None: in the middle. Raises ConfigError for other images.
        """
        if images.dtype != torch.uint8 or images.shape[1:] != self.image_shape:
            tensor = f"{images.dtype} {tuple(images.shape)}".removeprefix("torch.")
            raise ConfigError("images", f"got {tensor}, expected uint8 of shape (b, {', '.join(map(str, self.image_shape))})")
        if noise is not None and noise.shape != images.shape:
            raise ConfigError("noise", f"got shape {tuple(noise.shape)}, expected that of the images, {tuple(images.shape)}")
        labels = self._labels(labels, len(images))
        x = self.dequantization.of_values(images, 0.5 if noise is None else noise, dtype=self._dtype)
        return self.dequantization.bits_per_dim(self.network(x, labels).log_prob)

    # Images from latents, and latents from images --------------------------------------------------------------------

    @torch.no_grad()
    def sample(self, rng: Rng, *, labels: Tensor | None, settings: Config, report: Report | None = None) -> Tensor:
        """Images in [-1, 1] (b, c, h, w), one for each index of `rng`, of the 8-bit values of `decode`. `settings`: GlowSamplingConfig."""
        latents = self.sampled_latents(rng, labels=labels, settings=settings)
        labels = self._labels(labels, len(rng))
        return self.dequantization.images(self.network.inverse(latents, labels), hint="a lower temperature may help")

    def sampled_latents(self, rng: Rng, *, labels: Tensor | None, settings: Config) -> list[Tensor]:
        """The latents of the images that `sample` makes: noise, times the temperature."""
        settings = settings_like(self.sampling, settings)
        temperatures = torch.tensor(settings.temperature, device=rng.index.device)[rng.index % len(settings.temperature)]
        noise = [rng.normal(f"latent/{level}", *shape) for level, shape in enumerate(self.network.latent_shapes)]
        return [(temperatures[:, None, None, None] * part).to(self._dtype) for part in noise]

    @torch.no_grad()
    def encode(
        self,
        images: Tensor,
        *,
        labels: Tensor | None = None,
        rng: Rng | None = None,
        settings: Config | None = None,
        report: Report | None = None,
        noise: Tensor | None = None,
    ) -> list[Tensor]:
        """The latents of images (b, c, h, w), in [-1, 1] or uint8, of each level in turn; see `Encoded`. `settings`: GlowEncodingConfig.

        `noise`: where in its level each value lies, as in `bits_per_dim`; None: as `settings` say, `rng` drawing what is random.
        Always in full precision: `decode` gives exactly the same 8-bit images (of `bits` bits) of values in the middle of their level; of
        random ones those that lie at its edge may come out a level off. Raises ConfigError where an rng is missing.
        """
        settings = settings_like(self.encoding, settings)
        labels = self._labels(labels, len(images))
        u: Tensor | float = 0.5 if noise is None else noise
        if noise is None and settings.dequantization == "uniform":
            if rng is None:
                raise ConfigError("dequantization", "got uniform, which needs an rng; give one, or noise")
            check_drawn(rng, len(images))
            u = self._uniform(rng)
        with _exactly(images):
            of = self.dequantization.of_values if images.dtype == torch.uint8 else self.dequantization.of_images
            x = of(images, u, dtype=self._dtype)
            return self.network(x, labels).latents

    @torch.no_grad()
    def decode(self, latents: list[Tensor], *, labels: Tensor | None = None, settings: Config | None = None) -> Tensor:
        """The images in [-1, 1] (b, c, h, w) of latents, of 8-bit values; raises ConfigError for latents of other shapes."""
        shapes, wanted = [tuple(latent.shape[1:]) for latent in latents], self.network.latent_shapes
        if shapes != wanted:
            raise ConfigError("latents", f"got the shapes {shapes}, expected {wanted}, one for each level")
        labels = self._labels(labels, len(latents[0]))
        with _exactly(latents[0]):
            x = self.network.inverse([latent.to(self._dtype) for latent in latents], labels)
            return self.dequantization.images(x, hint="float32 cannot undo latents so far from those of the training data")

    def _uniform(self, rng: Rng) -> Tensor:
        return rng.uniform("dequantization", *self.image_shape)

    def _dequantized(self, images: Tensor, rng: Rng) -> Tensor:
        return self.dequantization.of_images(images, self._uniform(rng), dtype=self._dtype)

    def _labels(self, labels: Tensor | None, count: int) -> Tensor | None:
        """The labels that the flow is told; raises ConfigError where it needs some and these do not fit."""
        return None if self.num_classes is None else checked_labels(labels, count, num_classes=self.num_classes)

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.network.parameters()).dtype


@contextmanager
def _exactly(x: Tensor) -> Iterator[None]:
    """Within it networks compute in the precision of x: autocast does not touch it, nor does a GPU round it to TF32."""
    with without_tf32(), full_precision(x):
        yield
