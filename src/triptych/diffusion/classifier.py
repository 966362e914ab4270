"""A classifier of noisy images, whose gradient guides a diffusion model.

"Diffusion Models Beat GANs on Image Synthesis", Dhariwal and Nichol 2021, https://arxiv.org/abs/2105.05233, sections 4 and H. The
encoder half of the U-Net gives log p(y | x_t, t). Parameter names and shapes are those of guided-diffusion's classifiers. What differs:
the importance weights of loss-aware timesteps are applied, and the noise, timestep and dropout of a sample depend on it alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from triptych.core.batch import Batch, DataSpec
from triptych.core.config import config
from triptych.core.errors import ConfigError
from triptych.core.model import NUM_GROUPS, LossTerms, Model, ModelConfig, Phase
from triptych.core.rng import Rng
from triptych.diffusion.dropout import masks_ahead
from triptych.diffusion.gaussian import Coefficients, NoiseConfig, NoiseProcess
from triptych.diffusion.networks import of_latents
from triptych.diffusion.pooling import Pool, make_head
from triptych.diffusion.timestep_sampling import LOSS_HISTORY, TimestepSamplerName, make_timestep_sampler
from triptych.diffusion.unet import EncoderConfig, UNetEncoder
from triptych.nn.images import image_shape, square_side

TOP = 5
"""Accuracy is also counted among this many most probable classes, where there are more."""


@config
class ClassifierConfig(ModelConfig):
    """A classifier of noisy images."""

    kind_name: ClassVar = "classifier"

    network: EncoderConfig = dataclasses.field(
        default_factory=lambda: EncoderConfig(attention_resolutions=(32, 16, 8), num_head_channels=64, resblock_updown=True)
    )
    "The encoder; attention pooling has heads of num_head_channels."
    pool: Pool = "attention"
    "From features to classes: attention, or a mean, over the last map; spatial and spatial_v2: two layers on the means of all maps."
    noised: bool = True
    "Train on noised images at sampled timesteps; false: on clean ones, at timestep 0."
    noise: NoiseConfig = dataclasses.field(default_factory=NoiseConfig)
    "How images become noise: as in the diffusion model that is to be guided."
    timestep_sampler: TimestepSamplerName = "uniform"
    "Timesteps in training: all alike, or those with larger losses more often."

    def validate(self) -> None:
        self.require(self.noised or self.timestep_sampler == "uniform", "timestep_sampler", "'uniform' where noised is false")

    def shrunk(self) -> Self:
        return dataclasses.replace(self, network=self.network.shrunk())

    def build(self, spec: DataSpec) -> NoisyClassifier:
        """The classifier of the images of `spec`; raises ConfigError without classes, or for a size that the network cannot take."""
        return NoisyClassifier(self, spec)


class ClassifierNetwork(UNetEncoder):
    """The logits of noisy images: an encoder and one of the heads of pooling.py (keys out.N)."""

    def __init__(self, network: EncoderConfig, *, image_size: int, in_channels: int, num_classes: int, pool: Pool) -> None:
        super().__init__(network, image_size=image_size, in_channels=in_channels)
        widths = [*self.skips, self.levels.widths[-1]]
        self.out = make_head(pool, self.levels, widths=widths, head_channels=network.num_head_channels, num_classes=num_classes)
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] (missing in its overloads)

    def forward(self, x: Float[Tensor, "b c h w"], t: Shaped[Tensor, " b"], rng: Rng | None = None) -> Float[Tensor, "b classes"]:
        """The logits; `t` and `rng` as in `UNet`."""
        outputs, last = self._down(x, self._embed(t, None), masks_ahead(self, rng))
        with torch.autocast(x.device.type, enabled=False):
            return self.out([*outputs, last])


class NoisyClassifier(Model):
    """The model of a ClassifierConfig; `network` gives the logits, `process` the noise."""

    phases = (Phase("classify", ("network",)),)
    averaged = ("network",)
    validated = ("classify",)
    of_training = LOSS_HISTORY

    def __init__(self, config: ClassifierConfig, spec: DataSpec) -> None:
        super().__init__()
        self.config = config
        self.image_shape = image_shape(spec)
        self.num_classes = _num_classes(spec)
        self.process = NoiseProcess(config.noise)
        try:
            self.network = ClassifierNetwork(
                config.network,
                image_size=square_side(spec),
                in_channels=spec.channels,
                num_classes=self.num_classes,
                pool=config.pool,
            )
        except ConfigError as error:
            raise of_latents(error, spec).inside("network") from None
        self.timesteps = make_timestep_sampler(config.timestep_sampler, config.noise.steps)

    @property
    def noise(self) -> NoiseConfig:
        """The timesteps that it was trained on."""
        return self.config.noise

    def classify(self, x: Float[Tensor, "b c h w"], c: Coefficients) -> Float[Tensor, "b classes"]:
        """The logits of noisy images x_t at the noise levels of the coefficients."""
        return self.network(x, c.times(x))

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        """The cross entropy of each image, noised to a timestep of its own; in evaluation mode a uniform one, and without dropout.

        The loss has the weight that makes its mean over drawn timesteps that over all of them. Accuracies have none: they are the
        share of the images seen that were right, from 0 to 1 in every quartile.
        """
        assert batch.labels is not None, "the data of a classifier is labelled"
        t, weight, x = self._noised(batch.images, rng)
        logits = self.network(x, self.process.at(t).times(x), rng)
        entropy = F.cross_entropy(logits, batch.labels, reduction="none")
        return LossTerms(
            loss=weight * entropy,
            logged=accuracies(logits.detach(), batch.labels),
            group=NUM_GROUPS * t // self.process.steps if self.config.noised else None,
            observed=self.timesteps.observed(t, entropy),
        )

    def _noised(self, images: Tensor, rng: Rng) -> tuple[Tensor, Tensor, Tensor]:
        """The timesteps (b,), their weights (b,) and the images there."""
        if not self.config.noised:
            count = len(images)
            return torch.zeros(count, dtype=torch.int64, device=images.device), torch.ones(count, device=images.device), images
        t, weight = self.timesteps.draw(rng)
        return t, weight, self.process.noised(images, rng.normal("noise", *self.image_shape), self.process.at(t))

    def observe(self, phase: Phase, terms: Mapping[str, Tensor]) -> None:
        """Records the losses (b,) for loss-aware timestep sampling."""
        self.timesteps.observe(terms)


def accuracies(logits: Float[Tensor, "b classes"], labels: Int[Tensor, " b"]) -> dict[str, Float[Tensor, " b"]]:
    """Whether each label is the class of the largest logit, and one of the five largest where there are more classes: 0 or 1."""
    counts = (1, TOP) if logits.shape[1] > TOP else (1,)
    # By topk's order, not by comparing with the label's logit: a network that says the same of all classes must not pass for right.
    hits = logits.topk(counts[-1], dim=1).indices == labels[:, None]
    return {f"accuracy@{k}": hits[:, :k].any(1).float() for k in counts}


def _num_classes(spec: DataSpec) -> int:
    if spec.num_classes is None:
        raise ConfigError("", "a classifier learns classes, but the data has no labels; give labelled images, or another data.labels")
    if spec.num_classes < 2:
        raise ConfigError("", f"a classifier needs at least two classes, but the data has {spec.num_classes}")
    return spec.num_classes
