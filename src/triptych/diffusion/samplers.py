"""Ways from noise to images: ancestral sampling (Ho et al. 2020) and DDIM (Song et al. 2021, arXiv 2010.02502).

The steps take their noise as an argument; the loops ask for it, one draw for each step that adds any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from triptych.diffusion.gaussian import (
    Coefficients,
    Denoiser,
    GaussianDiffusion,
    ImageHook,
    Moments,
    Row,
    StepCoefficients,
    combined,
    factors,
)

SamplerName = Literal[
    "ancestral", "ddim", "dpm++2m", "dpm++2m-sde", "unipc", "heun", "euler", "ode-euler", "ode-heun", "ode-rk4", "sde-euler"
]
"""The first two are below, the last four in path_solvers.py, the others in solvers.py."""
Predictor = Callable[[Tensor, Coefficients], Tensor]
"""The x_0 that is predicted at noisy images x_t (b, c, h, w)."""
Score = Callable[[Tensor, Coefficients], Tensor | None]
"""A gradient (b, c, h, w) to add to the score at noisy images x_t; None: nothing to add at this noise level."""


def without_gradients(network: Denoiser) -> Denoiser:
    """`network` under no_grad, which is not entered again where no gradients are kept anyway."""
    guarded = torch.no_grad()(network)
    return lambda x, c: guarded(x, c) if torch.is_grad_enabled() else network(x, c)


@dataclass(frozen=True, slots=True)
class Step:
    """What a step of a sampler gives: the next x, and the x_0 that the network predicted on the way; both (b, c, h, w)."""

    sample: Tensor
    x0: Tensor


def clipping(threshold: float | None, hook: ImageHook | None = None) -> ImageHook | None:
    """Static thresholding of the predicted x_0 to [-threshold, threshold], after `hook`; None and None: nothing."""
    if threshold is None:
        return hook
    if hook is None:
        return lambda x0: x0.clamp(-threshold, threshold)
    return lambda x0: hook(x0).clamp(-threshold, threshold)


def ancestral_step(moments: Moments, c: StepCoefficients, noise: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
    """x_{t-1}, drawn from p(x_{t-1} | x_t); its mean at t = 0."""
    if isinstance(moments.log_variance, Tensor):
        return moments.mean + c.not_last * (0.5 * moments.log_variance).exp() * noise
    return torch.add(moments.mean, noise, alpha=c.not_last * moments.variance**0.5)


def ddim_sigma(c: StepCoefficients, *, eta: float) -> Any:
    """The deviation of the noise that a DDIM step adds (Song et al. 2021, Eq. 16): 0 for eta = 0, about the ancestral one's for eta = 1."""
    return eta * ((1 - c.abar_prev) / (1 - c.abar)) ** 0.5 * (1 - c.abar / c.abar_prev) ** 0.5


def ddim_row(c: StepCoefficients, *, eta: float = 0.0) -> tuple[float, float, float]:
    """The factors of x_0, x_t and the noise in a step of DDIM (Song et al. 2021, Eq. 12) whose coefficients are numbers.

    The eps of that equation is (sqrt(1 / abar) x_t - x_0) / sigma, as in `noise_from`.
    """
    sigma = ddim_sigma(c, eta=eta)
    direction = max(1 - c.abar_prev - sigma**2, 0.0) ** 0.5 / c.sigma  # rounding may make it negative
    return c.abar_prev**0.5 - direction, direction * c.sqrt_recip, c.not_last * sigma


def ddim_step(x0: Tensor, x_t: Tensor, row: Row, *, noise: Tensor | None = None) -> Tensor:
    """x_{t-1} (b, c, h, w) from x_t and the x_0 predicted there, by `ddim_row`; eta > 0 needs noise."""
    return combined(row, x0, x_t) if noise is None else combined(row, x0, x_t, noise)


def ddim_reverse_step(process: GaussianDiffusion, x0: Tensor, x_t: Tensor, c: StepCoefficients) -> Tensor:
    """x_{t+1} (b, c, h, w) from x_t and the x_0 there, along the same path as `ddim_step` with eta = 0: from an image to its noise."""
    return c.abar_next**0.5 * x0 + (1 - c.abar_next) ** 0.5 * process.noise_from(x0, x_t, c)


def x0_rows(process: GaussianDiffusion, points: Sequence[Coefficients], x: Tensor) -> dict[Coefficients, Row]:
    """What `x0_predictor` multiplies by at these points of a trajectory from x, made once for all of them."""
    return dict(zip(points, factors(map(process.x0_row, points), x), strict=True))


def x0_predictor(
    process: GaussianDiffusion,
    denoise: Denoiser,
    *,
    rows: Mapping[Coefficients, Row] | None = None,
    hook: ImageHook | None = None,
    score: Score | None = None,
    hook_again: bool = False,
) -> Predictor:
    """The x_0 that the network predicts, changed as `steered` does; `rows`: `x0_rows` of points where it will be asked."""
    known = {} if rows is None else rows

    def predict(x: Tensor, c: Coefficients) -> Tensor:
        return process.x0_from(process.split(denoise(x, c))[0], x, c, known.get(c))

    return steered(predict, hook=hook, score=score, hook_again=hook_again)


def steered(predictor: Predictor, *, hook: ImageHook | None = None, score: Score | None = None, hook_again: bool = False) -> Predictor:
    """A predicted x_0, changed by `hook` and moved along `score`; `hook_again`: then changed by `hook` once more.

    Moving the score by g moves eps by -sqrt(1 - abar) g (Dhariwal and Nichol 2021, Eq. 14), and x_0 by (1 - abar) / sqrt(abar) g.
    """
    if score is None:
        return predictor if hook is None else lambda x, c: hook(predictor(x, c))

    def predict(x: Tensor, c: Coefficients) -> Tensor:
        x0 = predictor(x, c)
        x0 = x0 if hook is None else hook(x0)
        gradient = score(x, c)
        if gradient is None:
            return x0
        x0 = x0 + (1 - c.abar) / c.sqrt_abar * gradient
        return hook(x0) if hook is not None and hook_again else x0

    return predict


def ancestral_steps(
    process: GaussianDiffusion,
    denoise: Denoiser,
    x: Tensor,
    *,
    noise: Callable[[int], Tensor],
    hook: ImageHook | None = None,
    score: Score | None = None,
) -> Iterator[Step]:
    """Every step of ancestral sampling from the noise x (b, c, h, w); the last one's `sample` is the images.

    `noise(i)` is the standard normal draw of the i-th step; it is asked for where it is used. `hook` changes the predicted x_0.
    `score` moves the mean by the variance times it (Dhariwal and Nichol 2021, Algorithm 1).
    """
    points = process.points
    x0_table, mean_table = (factors(map(row, points), x) for row in (process.x0_row, process.mean_row))
    for i, (c, x0_row, mean_row) in enumerate(zip(points, x0_table, mean_table, strict=True)):
        moments = process.moments(denoise(x, c), x, c, hook, x0_row=x0_row, mean_row=mean_row)
        gradient = None if score is None else score(x, c)
        if gradient is not None:
            moments = replace(moments, mean=moments.mean + moments.variance * gradient)
        x = ancestral_step(moments, c, noise(i)) if c.not_last else moments.mean
        yield Step(x, moments.x0)


def ddim_steps(
    process: GaussianDiffusion, predict: Predictor, x: Tensor, *, noise: Callable[[int], Tensor], eta: float = 0.0
) -> Iterator[Step]:
    """Every step of DDIM from the noise x (b, c, h, w); the last one's `sample` is the images. `noise` as in `ancestral_steps`."""
    points = process.points
    table = factors([ddim_row(c, eta=eta) for c in points], x)
    for i, (c, row) in enumerate(zip(points, table, strict=True)):
        x0 = predict(x, c)
        x = ddim_step(x0, x, row, noise=noise(i) if eta > 0 and c.not_last else None)
        yield Step(x, x0)
