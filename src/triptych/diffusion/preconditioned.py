"""A network of any noise level, preconditioned: what goes in and what is to come out has variance 1 at all of them.

"Elucidating the Design Space of Diffusion-Based Generative Models", Karras et al. 2022, https://arxiv.org/abs/2206.00364, section 5.
With sigma_data the deviation of the images' values,

    D(x; sigma) = c_skip x + c_out F(c_in x, c_noise)
    c_skip = sigma_data^2 / (sigma^2 + sigma_data^2)    c_out = sigma sigma_data / sqrt(sigma^2 + sigma_data^2)
    c_in = 1 / sqrt(sigma^2 + sigma_data^2)             c_noise = ln(sigma) / 4
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from triptych.core.config import config
from triptych.core.model import NUM_GROUPS
from triptych.core.rng import Rng
from triptych.diffusion.continuous import ContinuousConfig, ContinuousModel
from triptych.diffusion.samplers import Predictor


@config
class PreconditionedConfig(ContinuousConfig):
    """A diffusion model with a preconditioned network, trained at log-normal noise levels."""

    sigma_data: float = 0.5
    "Deviation of the images' values, by which the network's input and target get deviation 1."
    noise_mean: float = -1.2
    "P_mean: noise levels of training are log-normal, with this mean of ln(sigma)."
    noise_std: float = 1.2
    "P_std: deviation of ln(sigma)."

    def validate(self) -> None:
        for name in ("sigma_data", "noise_std"):
            self.require(0 < getattr(self, name) < math.inf, name, "a positive number")
        self.require(abs(self.noise_mean) < math.inf, "noise_mean", "a finite number")

    def levels_of_training(self, rng: Rng) -> TrainingLevels:
        """A noise level for each sample: ln(sigma) ~ N(noise_mean, noise_std^2)."""
        standard = rng.normal("level", 1, 1, 1)
        share = torch.special.ndtr(standard.flatten())
        group = (NUM_GROUPS * share).long().clamp(max=NUM_GROUPS - 1)
        return TrainingLevels((self.noise_mean + self.noise_std * standard).exp(), group)


class PreconditionedModel(ContinuousModel):
    """A model of a PreconditionedConfig. A subclass gives `network`, `predict` and `loss`."""

    @abstractmethod
    def predict(
        self, x: Float[Tensor, "b c h w"], sigma: Float[Tensor, "b 1 1 1"], labels: Int[Tensor, " b"] | None, rng: Rng | None = None
    ) -> Float[Tensor, "b c h w"]:
        """D(x; sigma), the image expected behind x = x_0 + sigma n.

        `labels`: exactly when the model is conditional, NO_LABEL for a sample without one. `rng` draws the dropout masks in training.
        """

    def predictor(self, labels: Tensor | None) -> Predictor:
        return lambda x, c: self.predict(x / c.sqrt_abar, x.new_full((len(x), 1, 1, 1), c.sigma), labels)


@dataclass(frozen=True)
class TrainingLevels:
    """Noise levels of a training step."""

    sigma: Tensor
    "(b, 1, 1, 1)."
    group: Tensor
    "(b,): in which quarter of the levels of training each is, the least noise first."


def preconditioned(
    network: Callable[[Tensor, Tensor], Tensor], x: Float[Tensor, "b c h w"], sigma: Float[Tensor, "b 1 1 1"], *, sigma_data: float
) -> Float[Tensor, "b c h w"]:
    """D(x; sigma) by F = network(c_in x, c_noise (b,)) (Eq. 7 and Table 1)."""
    total = sigma.square() + sigma_data**2
    c_skip, c_out, c_in = sigma_data**2 / total, sigma * sigma_data * total.rsqrt(), total.rsqrt()
    return c_skip * x + c_out * network(c_in * x, c_noise(sigma))


def c_noise(sigma: Float[Tensor, "b 1 1 1"]) -> Float[Tensor, " b"]:
    """What the network sees of a noise level: ln(sigma) / 4."""
    return sigma.flatten().log() / 4


def weight_of(sigma: Float[Tensor, "b 1 1 1"], *, sigma_data: float) -> Float[Tensor, " b"]:
    """lambda(sigma) = 1 / c_out^2, by which the squared error of an untrained network is about 1 at all noise levels."""
    return (sigma.square() + sigma_data**2).flatten() / (sigma * sigma_data).square().flatten()
