"""Mean flows: a network learns the mean velocity over a span of time, so that one call makes an image of noise.

"Mean Flows for One-step Generative Modeling", Geng et al. 2025, https://arxiv.org/abs/2505.13447. Here t = 1 is noise, as in the paper:
z_t = (1 - t) x + t e with velocity v = e - x. What the network says, u(z_t, t, t - r), is the mean of the velocity over [r, t], for which

    u = v - (t - r) d/dt u(z_t, t, t - r),        d/dt along (v, 1, 1) in z, t and t - r.

The loss is the squared distance from the right-hand side, through which no gradient goes, summed over the pixels and divided by
(itself + c)^p. What differs from the paper: the derivative is computed for those samples alone whose r is not t, in a call of its own.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from triptych.core.batch import Batch, DataSpec, labels_for_model
from triptych.core.config import Config, config, settings_like
from triptych.core.model import NUM_GROUPS, LossTerms, Model, ModelConfig, Phase, Report
from triptych.core.rng import Rng
from triptych.diffusion.counting import network_calls
from triptych.diffusion.dit import DiTConfig
from triptych.diffusion.guided import dropped_labels
from triptych.diffusion.networks import NetworkConfig, network_for
from triptych.diffusion.unet import NO_LABEL
from triptych.nn.forward_mode import directional_derivative
from triptych.nn.images import image_shape


@config
class MeanFlowSamplingConfig(Config):
    """How images are drawn from the model."""

    steps: int = 1
    "Network calls: steps of equal length from noise to image."

    def validate(self) -> None:
        self.require(1 <= self.steps <= 1_000_000, "steps", "1 to 1,000,000")


@config
class MeanFlowConfig(ModelConfig):
    """A model of images that makes them in one network call."""

    kind_name: ClassVar = "mean-flow"
    changeable: ClassVar = frozenset(("sampling",))
    unwritten: ClassVar = frozenset(("guidance_times",))

    network: NetworkConfig = DiTConfig()
    "A transformer over patches (kind dit), or the U-Net; it is told the span of time too."
    class_conditional: bool = False
    "Learn the images given their class."
    label_dropout: float = 0.0
    "Probability that a training image goes without its label, which guidance needs (0.1 in the paper)."
    guidance_scale: float = 1.0
    "w of the velocity that is learned, w v + (1 - w - guidance_mix) u(none) + guidance_mix u(class); 1 with a mix of 0: no guidance."
    guidance_mix: float = 0.0
    "Share of what the network says of the class in it; the effective scale of guidance is w / (1 - guidance_mix)."
    guidance_times: tuple[float, float] = (0.0, 1.0)
    "First and last time t, 1 being noise, at which the velocity is guided; at other times it is v."
    time_mean: float = -0.4
    "Mean of the normal variables whose sigmoids are the two times of a training image."
    time_deviation: float = 1.0
    "Their deviation."
    equal_share: float = 0.75
    "Probability that the two times are the same, so that the velocity itself is learned."
    weight_power: float = 1.0
    "p of the weight 1 / (squared error + weight_constant)^p of a sample; 0: none."
    weight_constant: float = 0.01
    "c of it."
    sampling: MeanFlowSamplingConfig = MeanFlowSamplingConfig()
    "Default settings of `triptych sample`, and those of the grids during training."

    def validate(self) -> None:
        self.require(0 <= self.label_dropout < 1, "label_dropout", "from 0 to below 1")
        self.require(self.label_dropout == 0 or self.class_conditional, "label_dropout", "0 where class_conditional is false")
        self.require(0 <= self.guidance_scale < math.inf, "guidance_scale", "0 or more")
        self.require(0 <= self.guidance_mix < 1, "guidance_mix", "from 0 to below 1")
        needed = "1 (and guidance_mix 0) without label_dropout, for guidance needs what the network says without labels"
        self.require(self.label_dropout > 0 or not self.guides, "guidance_scale", needed)
        first, last = self.guidance_times
        self.require(0 <= first < last <= 1, "guidance_times", "two times from 0 to 1, the smaller one first")
        unused = "0 and 1 where nothing is guided (guidance_scale 1, guidance_mix 0)"
        self.require(self.guides or (first, last) == (0, 1), "guidance_times", unused)
        self.require(math.isfinite(self.time_mean), "time_mean", "a number")
        self.require(0 < self.time_deviation < math.inf, "time_deviation", "a positive number")
        self.require(0 <= self.equal_share <= 1, "equal_share", "from 0 to 1")
        self.require(0 <= self.weight_power < math.inf, "weight_power", "0 or more")
        self.require(0 < self.weight_constant < math.inf, "weight_constant", "a positive number")

    @property
    def guides(self) -> bool:
        """Whether the velocity that is learned is a guided one."""
        return (self.guidance_scale, self.guidance_mix) != (1.0, 0.0)

    def build(self, spec: DataSpec) -> MeanFlow:
        """The model for the images of `spec`; raises ConfigError when they are unlabelled, or of a size that the network cannot take."""
        return MeanFlow(self, spec)

    def shrunk(self) -> Self:
        return dataclasses.replace(self, network=self.network.shrunk())

    def drawn_times(self, rng: Rng) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        """t and t - r of each training image."""
        both = (self.time_mean + self.time_deviation * rng.normal("times", 2)).sigmoid()
        t, r = both.amax(1), both.amin(1)
        return t, torch.where(rng.uniform("equal") < self.equal_share, 0, t - r)


class MeanFlow(Model):
    """The model of a MeanFlowConfig."""

    phases = (Phase("denoise", ("network",)),)
    gathers = "never"
    averaged = ("network",)
    validated = ("denoise",)

    def __init__(self, config: MeanFlowConfig, spec: DataSpec) -> None:
        super().__init__()
        self.config, self.sampling = config, config.sampling
        self.image_shape, self.bounded = image_shape(spec), spec.bounded
        self.num_classes = spec.num_labels(class_conditional=config.class_conditional)
        self.network = network_for(spec, config.network, num_classes=self.num_classes, spans=True)

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        """The weighted squared error of each sample; in evaluation mode its mean over pixels, without weight."""
        t, span = self.config.drawn_times(rng)
        labels = batch.labels if self.num_classes is not None else None
        told = dropped_labels(labels, rng, probability=self.config.label_dropout if self.training else 0.0)
        noise = rng.normal("noise", *self.image_shape)
        at = _over_images(t)
        z = (1 - at) * batch.images + at * noise
        velocity = self.learned_velocity(noise - batch.images, z, t, told, rng)
        error = self.mean_velocity(z, t, span, told, rng) - self.target(velocity, z, t, span, told, rng)
        squared = error.square().flatten(1).sum(1)
        mean = squared / noise[0].numel()
        weight = (squared.detach() + self.config.weight_constant) ** -self.config.weight_power
        group = (NUM_GROUPS * t).long().clamp(max=NUM_GROUPS - 1)
        return LossTerms(loss=squared * weight if self.training else mean, logged={"squared_error": mean.detach()}, group=group)

    def mean_velocity(
        self, z: Float[Tensor, "b c h w"], t: Float[Tensor, " b"], span: Float[Tensor, " b"], labels: Tensor | None, rng: Rng | None = None
    ) -> Float[Tensor, "b c h w"]:
        """u(z, t, span), the mean of the velocity over [t - span, t]; at span 0 the velocity itself."""
        return self.network(z, t, labels, rng, span)

    @torch.no_grad()
    def learned_velocity(
        self, velocity: Float[Tensor, "b c h w"], z: Float[Tensor, "b c h w"], t: Tensor, labels: Int[Tensor, " b"] | None, rng: Rng
    ) -> Float[Tensor, "b c h w"]:
        """The velocity that is to be learned: guided, but not of samples without a label or outside guidance_times.

        Geng et al. 2025, Eq. 21, and the times of Table 4.
        """
        if not self.config.guides:
            return velocity
        assert labels is not None, "guidance needs label dropout, and that labels"
        scale, mix, none = self.config.guidance_scale, self.config.guidance_mix, torch.zeros_like(t)
        mixed = scale * velocity + (1 - scale - mix) * self.mean_velocity(z, t, none, torch.full_like(labels, NO_LABEL), rng)
        if mix > 0:
            mixed = mixed + mix * self.mean_velocity(z, t, none, labels, rng)
        first, last = self.config.guidance_times
        guided = (labels != NO_LABEL) & (first <= t) & (t <= last)
        return torch.where(_over_images(guided), mixed, velocity)

    @torch.no_grad()
    def target(
        self,
        velocity: Float[Tensor, "b c h w"],
        z: Float[Tensor, "b c h w"],
        t: Float[Tensor, " b"],
        span: Float[Tensor, " b"],
        labels: Int[Tensor, " b"] | None,
        rng: Rng,
    ) -> Float[Tensor, "b c h w"]:
        """velocity - span d/dt u, the derivative being along (velocity, 1, 1) in z, t and the span (Geng et al. 2025, Eq. 10)."""
        moving = span.nonzero().flatten()
        if len(moving) == 0:
            return velocity
        own_labels, own_rng = None if labels is None else labels[moving], dataclasses.replace(rng, index=rng.index[moving])
        inputs, along = (z[moving], t[moving], span[moving]), velocity[moving]

        def mean(z: Tensor, t: Tensor, span: Tensor) -> Tensor:
            # Past torch.compile, which knows no forward mode: of a compiled network the derivative would be 0.
            return self.network.forward(z, t, own_labels, own_rng, span)

        slope = directional_derivative(mean, inputs, (along, torch.ones_like(inputs[1]), torch.ones_like(inputs[2])))
        return velocity.index_copy(0, moving, (along - _over_images(inputs[2]) * slope).to(velocity.dtype))

    @torch.no_grad()
    def sample(self, rng: Rng, *, labels: Tensor | None, settings: Config | None = None, report: Report | None = None) -> Tensor:
        """One image for each index of `rng`: (b, c, h, w) in [-1, 1], by z_r = z_t - (t - r) u(z_t, t, t - r) from t = 1 to 0.

        `labels` (b,) are given exactly when the model is conditional; `settings` is a MeanFlowSamplingConfig; `report` is told of the
        steps. The model must be in evaluation mode. Raises ConfigError for labels that do not fit.
        """
        steps = settings_like(self.sampling, settings).steps
        labels = labels_for_model(labels, len(rng), num_classes=self.num_classes)
        z = rng.normal("initial", *self.image_shape)
        span = z.new_full((len(z),), 1 / steps)
        for step in range(steps):
            z = z - self.mean_velocity(z, z.new_full((len(z),), 1 - step / steps), span, labels) / steps
            if report is not None:
                report(step + 1, steps)
        return z.clamp(-1, 1) if self.bounded else z

    def network_calls(self, settings: Config, *, weaker: bool = False, classifier: bool = False) -> int:
        """How often `sample` asks the network for an image with these settings (see core.model.Stepwise); nothing leads it."""
        return network_calls(self, lambda twin, rng, labels, guide: [twin.sample(rng, labels=labels, settings=settings)])


def _over_images(values: Tensor) -> Tensor:
    return values[:, None, None, None]
