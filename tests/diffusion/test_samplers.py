"""Samplers on data whose denoiser is known: independent pixels from N(mean, deviation^2)."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import pytest
import torch
from torch import Tensor

from triptych.core.rng import Rng
from triptych.diffusion.gaussian import Coefficients, GaussianConfig, GaussianDiffusion, ImageHook, StepCoefficients, factors
from triptych.diffusion.respacing import respaced_timesteps
from triptych.diffusion.samplers import (
    Step,
    ancestral_steps,
    clipping,
    ddim_reverse_step,
    ddim_row,
    ddim_sigma,
    ddim_step,
    ddim_steps,
    without_gradients,
    x0_predictor,
)

MEAN, DEVIATION = 0.3, 0.5


class KnownDenoiser:
    """The best epsilon for x_t at original timesteps; it counts its calls and keeps the timesteps."""

    def __init__(self, config: GaussianConfig) -> None:
        tables = StepCoefficients(*torch.from_numpy(GaussianDiffusion(config).tables))
        self.abar = tables.abar
        self.seen: list[int] = []

    def __call__(self, x: Tensor, c: Coefficients) -> Tensor:
        t = c.times(x)
        assert t.shape == (len(x),)
        self.seen.append(int(t[0]))
        abar = float(self.abar[int(t[0])])
        variance = DEVIATION**2 * abar + 1 - abar
        return math.sqrt(1 - abar) * (x - math.sqrt(abar) * MEAN) / variance


def normal(count: int) -> Tensor:
    return Rng(3, ("sample",), torch.arange(count)).normal("initial", 1, 4, 4).double()


def steps_of(
    process: GaussianDiffusion,
    denoise: KnownDenoiser,
    x: Tensor,
    *,
    sampler: str,
    noise: Callable[[int], Tensor],
    eta: float = 0.0,
    hook: ImageHook | None = None,
) -> list[Step]:
    if sampler == "ancestral":
        return list(ancestral_steps(process, denoise, x, noise=noise, hook=hook))
    return list(ddim_steps(process, x0_predictor(process, denoise, hook=hook), x, noise=noise, eta=eta))


def no_noise(i: int) -> Tensor:
    raise AssertionError("a deterministic sampler asked for noise")


def test_ddim_converges_at_first_order() -> None:
    config, x = GaussianConfig(), normal(64)
    chain, denoise = GaussianDiffusion(config), KnownDenoiser(config)
    errors = []
    for count in (25, 50, 100, 200):
        respaced = chain.respaced(respaced_timesteps(count, total=1000))
        *_, last = steps_of(respaced, denoise, x, sampler="ddim", noise=no_noise)
        abar = float(denoise.abar[-1])
        exact = MEAN + DEVIATION / math.sqrt(DEVIATION**2 * abar + 1 - abar) * (x - math.sqrt(abar) * MEAN)
        errors.append(float((last.sample - exact).abs().max()))
    orders = [math.log2(a / b) for a, b in pairwise(errors)]
    assert all(0.75 < order < 1.35 for order in orders), (errors, orders)
    assert errors[-1] < 0.03


@pytest.mark.parametrize(
    ("sampler", "eta", "variance"),
    [("ancestral", 0.0, "fixed_small"), ("ancestral", 0.0, "fixed_large"), ("ddim", 0.0, "fixed_small"), ("ddim", 1.0, "fixed_small")],
)
def test_samples_have_the_mean_and_the_variance_of_the_data(
    sampler: Literal["ancestral", "ddim"], eta: float, variance: Literal["fixed_small", "fixed_large"]
) -> None:
    config = GaussianConfig(schedule="cosine", variance=variance, steps=500)
    rng, x = Rng(3, ("sample",), torch.arange(1024)), normal(1024)
    *_, last = steps_of(
        GaussianDiffusion(config),
        KnownDenoiser(config),
        x,
        sampler=sampler,
        eta=eta,
        noise=lambda i: rng.normal(f"step/{i}", 1, 4, 4).double(),
    )
    assert float(last.sample.mean()) == pytest.approx(MEAN, abs=0.01)
    assert float(last.sample.std()) == pytest.approx(DEVIATION, rel=0.03)


def test_the_reverse_steps_lead_back_to_the_noise() -> None:
    config = GaussianConfig(schedule="linear")
    chain, denoise, x = GaussianDiffusion(config), KnownDenoiser(config), normal(8)
    *_, last = steps_of(chain, denoise, x, sampler="ddim", noise=no_noise)
    back = last.sample
    for step in range(chain.steps - 1):
        c = chain.at_step(step)
        x0 = chain.x0_from(denoise(back, c), back, c)
        back = ddim_reverse_step(chain, x0, back, c)
    torch.testing.assert_close(back, x, atol=0.03, rtol=0)


def test_the_network_sees_original_timesteps() -> None:
    config, x = GaussianConfig(), normal(2)
    denoise, kept = KnownDenoiser(config), respaced_timesteps("5,10,4", total=1000)
    steps = steps_of(GaussianDiffusion(config).respaced(kept), denoise, x, sampler="ddim", noise=no_noise)
    assert len(steps) == 19
    assert denoise.seen == list(reversed(kept))


def test_noise_is_drawn_once_a_step_but_for_the_last() -> None:
    config, x = GaussianConfig(), normal(2)
    process, asked = GaussianDiffusion(config).respaced(respaced_timesteps(5, total=1000)), []

    def noise(i: int) -> Tensor:
        asked.append(i)
        return torch.zeros_like(x)

    steps_of(process, KnownDenoiser(config), x, sampler="ancestral", noise=noise)
    steps_of(process, KnownDenoiser(config), x, sampler="ddim", eta=0.5, noise=noise)
    assert asked == [0, 1, 2, 3] * 2


def test_a_step_of_ddim_is_the_published_equation() -> None:
    process, x_t, x0 = GaussianDiffusion(GaussianConfig()), normal(2), normal(2).flip(0) / 3
    noise = normal(2).flip(-1)
    for eta in (0.0, 0.7, 1.0):
        for c, row in zip(process.points[::100], factors([ddim_row(c, eta=eta) for c in process.points[::100]], x_t), strict=True):
            sigma, eps = ddim_sigma(c, eta=eta), (x_t - math.sqrt(c.abar) * x0) / math.sqrt(1 - c.abar)
            mean = math.sqrt(c.abar_prev) * x0 + math.sqrt(1 - c.abar_prev - sigma**2) * eps
            torch.testing.assert_close(ddim_step(x0, x_t, row), mean)
            torch.testing.assert_close(ddim_step(x0, x_t, row, noise=noise), mean + sigma * noise)


def test_gradients_are_kept_nowhere() -> None:
    seen = []

    def network(x: Tensor, c: Coefficients) -> Tensor:
        seen.append(torch.is_grad_enabled())
        return x

    asked = without_gradients(network)
    c = GaussianDiffusion(GaussianConfig()).points[0]
    asked(normal(1), c)
    assert torch.is_grad_enabled()
    with torch.no_grad():
        asked(normal(1), c)
    assert seen == [False, False]


def test_progressive_predictions_are_clipped_after_the_hook() -> None:
    config, x = GaussianConfig(), normal(4)
    process = GaussianDiffusion(config).respaced(respaced_timesteps(10, total=1000))
    steps = steps_of(process, KnownDenoiser(config), x, sampler="ddim", noise=no_noise, hook=clipping(0.25, lambda x0: x0 + 10))
    assert all((step.x0 == 0.25).all() for step in steps)
    torch.testing.assert_close(steps[-1].sample, steps[-1].x0)
    unclipped = steps_of(process, KnownDenoiser(config), x, sampler="ddim", noise=no_noise, hook=clipping(None))
    assert unclipped[-1].x0.abs().max() > 1


def test_sigma_of_ddim_is_the_posteriors_at_eta_1() -> None:
    process = GaussianDiffusion(GaussianConfig())
    for step in (1, 500, 999):
        c = process.at_step(step)
        assert ddim_sigma(c, eta=1.0) ** 2 == pytest.approx(c.variance_small)
