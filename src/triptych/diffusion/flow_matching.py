"""Flow matching: a network learns the velocity with which noise becomes images.

"Flow Matching for Generative Modeling", Lipman et al. 2023, https://arxiv.org/abs/2210.02747; "Flow Straight and Fast" (rectified flow),
Liu et al. 2023, https://arxiv.org/abs/2209.03003; "SiT", Ma et al. 2024, https://arxiv.org/abs/2401.08740, for the other paths and forms.
With x_t = alpha(t) x_0 + s(t) n the loss is the mean over pixels of |v(x_t, t) - (alpha' x_0 + s' n)|^2.

These are not the normalizing flows of triptych.flows: no layer is inverted, and the likelihood is that of an ODE.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal, Self

from jaxtyping import Float
from torch import Tensor

from triptych.core.batch import Batch, DataSpec
from triptych.core.config import config
from triptych.core.model import NUM_GROUPS, LossTerms, Phase
from triptych.core.rng import Rng
from triptych.diffusion.continuous import ContinuousConfig, ContinuousModel, LevelSamplingConfig
from triptych.diffusion.dit import DiTConfig
from triptych.diffusion.gaussian import Coefficients
from triptych.diffusion.networks import NetworkConfig, network_for
from triptych.diffusion.paths import PATHS, Form, Path, PathName
from triptych.diffusion.samplers import Predictor

Times = Literal["uniform", "logit-normal", "edm-skewed"]
_NORMALS: dict[Times, tuple[float, float]] = {"logit-normal": (0.0, 1.0), "edm-skewed": (-1.2, 1.2)}
"""Mean and deviation of the normal draws: Esser et al. 2024 (arXiv 2403.03206), section 3.1; Karras et al. 2022, Table 1."""
_LEAST_TIME = 1e-4  # of the EDM-skewed times, whose noise levels have no end (flow_matching's CIFAR-10 example)


@config
class FlowMatchingConfig(ContinuousConfig):
    """A model of images that learns the velocity from noise to them."""

    kind_name: ClassVar = "flow-matching"

    network: NetworkConfig = DiTConfig()
    "A transformer over patches (kind dit), or the U-Net."
    path: PathName = "linear"
    "From noise to image: a straight line, a quarter of a circle (gvp), or that of the variance-preserving diffusion (vp)."
    prediction: Form = "velocity"
    "What the network says: the velocity, the score or the noise."
    times: Times = "uniform"
    "Of training images: evenly spread, those of a logit-normal variable, or 1 / (1 + sigma) for a log-normal sigma."
    time_mean: float | None = None
    "Mean of the normal variable of logit-normal and edm-skewed times; None: the published 0, and -1.2."
    time_deviation: float | None = None
    "Its deviation; None: the published 1, and 1.2."
    time_scale: float = 1.0
    "The network sees that times the time: 1 as in SiT, 1000 as diffusion models do."
    sampling: LevelSamplingConfig = LevelSamplingConfig(sampler="ode-heun", steps=25)
    "Default settings of `triptych sample`, and those of the grids during training."

    def validate(self) -> None:
        given = self.time_mean is not None or self.time_deviation is not None
        self.require(not given or self.times in _NORMALS, "times", "logit-normal or edm-skewed, where time_mean or time_deviation is given")
        self.require(self.time_mean is None or math.isfinite(self.time_mean), "time_mean", "a number")
        self.require(self.time_deviation is None or 0 < self.time_deviation < math.inf, "time_deviation", "a positive number")
        self.require(0 < self.time_scale < math.inf, "time_scale", "a positive number")

    def build(self, spec: DataSpec) -> FlowMatching:
        """The model for the images of `spec`; raises ConfigError when they are unlabelled, or of a size that the network cannot take."""
        return FlowMatching(self, spec)

    def shrunk(self) -> Self:
        return dataclasses.replace(self, network=self.network.shrunk(), sampling=self.sampling.shrunk())

    def drawn_times(self, rng: Rng) -> Float[Tensor, "b 1 1 1"]:
        """The time of each training image."""
        first, last = PATHS[self.path].interval(self.prediction, training=True)
        if self.times == "uniform":
            t = rng.uniform("time")
        else:
            mean, deviation = _NORMALS[self.times]
            mean = mean if self.time_mean is None else self.time_mean
            drawn = mean + (deviation if self.time_deviation is None else self.time_deviation) * rng.normal("time")
            t = drawn.sigmoid() if self.times == "logit-normal" else (1 / (1 + drawn.exp())).clamp(min=_LEAST_TIME)
        return (first + (last - first) * t)[:, None, None, None]


class FlowMatching(ContinuousModel):
    """The model of a FlowMatchingConfig."""

    config: FlowMatchingConfig

    def __init__(self, config: FlowMatchingConfig, spec: DataSpec) -> None:
        super().__init__(config, spec)
        self.path = PATHS[config.path]
        self.network = network_for(spec, config.network, num_classes=self.num_classes)

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        """The mean over pixels of (prediction - target)^2 at a time of its own for each sample; of a score times s."""
        t, x0, noise = self.config.drawn_times(rng), batch.images, rng.normal("noise", *self.image_shape)
        point, form = self.path.at(t), self.config.prediction
        output = self.said(point.noised(x0, noise), t.flatten(), self.told(batch, rng), rng)
        error = point.s * output + noise if form == "score" else output - point.said(x0, noise, form)
        loss = error.square().mean(dim=(1, 2, 3))
        group = (NUM_GROUPS * (1 - t.detach().flatten())).long().clamp(max=NUM_GROUPS - 1)  # the least noise first
        return LossTerms(loss=loss, logged={"loss": loss.detach()}, group=group)

    def said(self, x_t: Float[Tensor, "b c h w"], t: Float[Tensor, " b"], labels: Tensor | None, rng: Rng | None = None) -> Tensor:
        """What the network says at x_t and t, in the form of `prediction`: (b, c, h, w)."""
        return self.network(x_t, t * self.config.time_scale, labels, rng)

    def predictor(self, labels: Tensor | None) -> Predictor:
        """As of every model of noise levels, also where there is noise alone: by what the network says at the time of the level."""

        def predict(x: Tensor, c: Coefficients) -> Tensor:
            t = self.path.time_at(c.sigma)
            point = self.path.at_number(t)
            x_t = point.norm * x
            return point.image_of(self.said(x_t, x.new_full((len(x),), t), labels), x_t, self.config.prediction)

        return predict

    @property
    def largest_sigma(self) -> float:
        """That of the first time at which the network can be asked; infinite for velocities, but on the path vp."""
        return self.path.coefficients(self.ends_of(self.path)[0]).sigma

    def ends_of(self, path: Path) -> tuple[float, float]:
        """From noise alone to the image itself, where the network can be asked there, of either path."""
        first, last = path.interval(self.config.prediction, training=False)
        if self.config.prediction == "velocity":
            return first, last
        own = (self.path.coefficients(t).sigma for t in self.path.interval(self.config.prediction, training=False))
        own_first, own_last = path.between(*own)
        return max(first, own_first), min(last, own_last)
