"""The variational bound, in bits per dimension, and the training losses that contain it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from triptych.core.model import Bound
from triptych.diffusion.gaussian import RESCALED_TO, Denoiser, GaussianDiffusion, ImageHook, Moments, StepCoefficients

_BITS = 1 / math.log(2)
_TINY = 1e-12


def mean_of_samples(x: Float[Tensor, " b *d"]) -> Float[Tensor, " b"]:
    """The mean over everything but the batch."""
    return x.mean(dim=tuple(range(1, x.ndim)))


def normal_kl(mean: Float[Tensor, " b *d"], log_variance: Any, other_mean: Any, other_log_variance: Any) -> Float[Tensor, " b *d"]:
    """KL(N(mean, variance) || N(other)) in nats, element by element; the log-variances are numbers or tensors."""
    difference = torch.as_tensor(log_variance - other_log_variance, dtype=mean.dtype, device=mean.device)
    precision = torch.as_tensor(-other_log_variance, dtype=mean.dtype, device=mean.device).exp()
    return 0.5 * (difference.expm1() - difference + (mean - other_mean) ** 2 * precision)


def _normal_cdf(x: Tensor) -> Tensor:
    """An approximation by a hyperbolic tangent (Page 1977), the one that published figures rest on."""
    return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def discretized_gaussian_log_likelihood(
    x: Float[Tensor, " b *d"], mean: Float[Tensor, " b *d"], log_variance: Any
) -> Float[Tensor, " b *d"]:
    """log P(x) in nats, element by element, of 8-bit values x in [-1, 1] under a Gaussian cut into 256 bins (Ho et al. 2020, Eq. 13).

    A bin reaches 1/255 to both sides; those of -1 and 1 reach to infinity.
    """
    precision = torch.as_tensor(-0.5 * log_variance, dtype=x.dtype, device=x.device).exp()
    upper = _normal_cdf(precision * (x - mean + 1 / 255))
    lower = _normal_cdf(precision * (x - mean - 1 / 255))
    inside = torch.where(x > 0.999, 1 - lower, upper - lower)
    return torch.where(x < -0.999, upper, inside).clamp(min=_TINY).log()


def bound_term(process: GaussianDiffusion, moments: Moments, *, x0: Tensor, x_t: Tensor, coefficients: StepCoefficients) -> Tensor:
    """The bound's term at each sample's timestep, in bits per dimension: (b,); -log p(x_0 | x_1) at t = 0, else a KL (Ho et al., Eq. 5)."""
    c = coefficients
    true_mean = process.posterior_mean(x0, x_t, c)
    kl = mean_of_samples(normal_kl(true_mean, c.log_variance_small, moments.mean, moments.log_variance))
    likelihood = mean_of_samples(discretized_gaussian_log_likelihood(x0, moments.mean, moments.log_variance))
    return torch.where(c.not_last.flatten() == 0, -likelihood, kl) * _BITS


def losses(process: GaussianDiffusion, output: Tensor, *, x0: Tensor, x_t: Tensor, noise: Tensor, t: Tensor) -> dict[str, Tensor]:
    """The training loss of each sample, (b,), under "loss", and its parts "mse" and "vb" where it has them.

    "vb" is in bits per dimension, weighted as in the loss where that is their sum: the hybrid loss, whose bound's term trains the
    variance only (Nichol and Dhariwal 2021, section 3.1).
    """
    config, c = process.config, process.at(t)
    if config.loss in ("kl", "rescaled_kl"):
        vb = bound_term(process, process.moments(output, x_t, c), x0=x0, x_t=x_t, coefficients=c)
        loss = vb * process.steps if config.loss == "rescaled_kl" else vb
        return {"loss": loss, "vb": vb}
    prediction, logits = process.split(output)
    mse = mean_of_samples((process.target(x0, x_t, noise, c) - prediction) ** 2)
    if logits is None:
        return {"loss": mse, "mse": mse}
    frozen = torch.cat((prediction.detach(), logits), dim=1)
    vb = bound_term(process, process.moments(frozen, x_t, c), x0=x0, x_t=x_t, coefficients=c)
    if config.loss == "rescaled_mse":
        vb = vb * (process.steps / RESCALED_TO)
    return {"loss": mse + vb, "mse": mse, "vb": vb}


def prior_term(process: GaussianDiffusion, x0: Float[Tensor, " b *d"]) -> Float[Tensor, " b"]:
    """KL(q(x_T | x_0) || N(0, 1)) in bits per dimension."""
    c = process.at_step(process.steps - 1)
    return mean_of_samples(normal_kl(c.sqrt_abar * x0, math.log1p(-c.abar), 0.0, 0.0)) * _BITS


@torch.no_grad()
def bound(
    process: GaussianDiffusion,
    denoise: Denoiser,
    x0: Tensor,
    *,
    noise: Callable[[int], Tensor],
    hook: ImageHook | None = None,
) -> Bound:
    """The bound for 8-bit images x0 (b, c, h, w), every timestep evaluated once.

    `noise(i)` is the i-th draw, of timestep T - 1 - i; `hook` changes the predicted x_0.
    """
    per_step = []
    for i, step in enumerate(reversed(range(process.steps))):
        t = torch.full((len(x0),), step, device=x0.device)
        c, drawn = process.at(t), noise(i)
        x_t = process.noised(x0, drawn, c)
        moments = process.moments(denoise(x_t, c), x_t, c, hook)
        term = bound_term(process, moments, x0=x0, x_t=x_t, coefficients=c)
        noise_difference = process.noise_from(moments.x0, x_t, c) - drawn
        per_step.append((term, mean_of_samples((moments.x0 - x0) ** 2), mean_of_samples(noise_difference**2)))
    prior = prior_term(process, x0)
    terms, x0_mse, noise_mse = (torch.stack(parts, dim=1) for parts in zip(*per_step, strict=True))
    return Bound(terms.sum(1) + prior, prior, terms, x0_mse, noise_mse, process.kept[::-1])
