"""Solvers along paths where the velocity is known: a Gaussian, and the map of a Gaussian to a mixture in two dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from triptych.core.batch import DataSpec
from triptych.core.rng import Rng
from triptych.diffusion.adm import ADM, ADMConfig
from triptych.diffusion.gaussian import Coefficients, GaussianConfig, GaussianDiffusion
from triptych.diffusion.model import SamplingConfig
from triptych.diffusion.path_solvers import (
    LAST_STEP,
    METHODS,
    PathSolverName,
    Velocity,
    flow_steps,
    ode_steps,
    sde_steps,
    times_of,
    velocity_of,
)
from triptych.diffusion.paths import PATHS, Path, PathName
from triptych.diffusion.solvers import SOLVERS
from triptych.diffusion.unet import UNetConfig

NAMES: tuple[PathName, ...] = get_args(PathName)
every_path = pytest.mark.parametrize("name", NAMES)
MEAN, DEVIATION = 0.3, 0.5
CENTRES = torch.tensor([[0.7, 0.2], [-0.6, 0.5], [-0.1, -0.8]], dtype=torch.float64)
WEIGHTS, SPREAD = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), 0.15
"""A mixture of three Gaussians of the same spread in the plane."""


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def gaussian_image(x: Tensor, c: Coefficients) -> Tensor:
    """E[x_0 | x] of independent pixels from N(0.3, 0.5^2) at the variance-preserving x."""
    return MEAN + c.sqrt_abar * DEVIATION**2 / (c.abar * DEVIATION**2 + c.sqrt_noise**2) * (x - c.sqrt_abar * MEAN)


def gaussian_velocity(path: Path) -> Velocity:
    def velocity(x: Tensor, t: float) -> Tensor:
        point = path.at(number(t))
        variance = point.alpha**2 * DEVIATION**2 + point.s**2
        x0 = MEAN + point.alpha * DEVIATION**2 / variance * (x - point.alpha * MEAN)
        noise = point.s / variance * (x - point.alpha * MEAN)
        return point.velocity(x0, noise)

    return velocity


def gaussian_map(path: Path, x: Tensor, first: float, last: float) -> Tensor:
    """Where the ODE takes x: as many deviations from the mean as it was."""

    def moments(t: float) -> tuple[Tensor, Tensor]:
        point = path.at(number(t))
        return point.alpha * MEAN, (point.alpha**2 * DEVIATION**2 + point.s**2).sqrt()

    (mean, deviation), (end_mean, end_deviation) = moments(first), moments(last)
    return end_mean + end_deviation / deviation * (x - mean)


def mixture_image(x: Tensor, c: Coefficients) -> Tensor:
    """E[x_0 | x] of the mixture; images of two pixels in a row, (b, 1, 1, 2)."""
    y = x.flatten(1)
    variance = c.abar * SPREAD**2 + c.sqrt_noise**2
    away = y[:, None] - c.sqrt_abar * CENTRES
    share = (WEIGHTS.log() - away.square().sum(-1) / (2 * variance)).softmax(-1)
    ends = CENTRES + c.sqrt_abar * SPREAD**2 / variance * away
    return (share[..., None] * ends).sum(1).view_as(x)


def mixture_velocity(path: Path) -> Velocity:
    return velocity_of(mixture_image, path, at=path.coefficients)


def starts(count: int = 64) -> Tensor:
    return Rng(3, ("sample",), torch.arange(count)).normal("initial", 1, 1, 2).double()


def end_of(velocity: Velocity, x: Tensor, path: Path, times: list[float], solver: PathSolverName) -> Tensor:
    return list(ode_steps(velocity, x, path=path, times=times, method=METHODS[solver]))[-1].sample


def orders(errors: list[float]) -> list[float]:
    return [math.log2(before / after) for before, after in pairwise(errors)]


def test_the_model_is_asked_where_it_is_but_at_the_last_time() -> None:
    """On the path vp the last steps of EDM's grid lie above 0.999; a shift of their time would bend the way."""
    asked, path = list[float](), PATHS["vp"]

    def denoise(x: Tensor, c: Coefficients) -> Tensor:
        asked.append(c.sigma)
        return c.abar * SPREAD**2 / (c.abar * SPREAD**2 + c.sqrt_noise**2) / c.sqrt_abar * x

    velocity = velocity_of(denoise, path, at=path.coefficients)
    times = (0.5, 0.9995, 0.99996, 1.0)
    for t in times:
        velocity(starts(2), t)
    expected = [path.coefficients(t).sigma for t in (*times[:-1], 0.999)]
    assert asked == pytest.approx(expected, rel=1e-12)


@every_path
@pytest.mark.parametrize("solver", METHODS)
def test_order_of_convergence_on_a_gaussian(name: PathName, solver: PathSolverName) -> None:
    path, method = PATHS[name], METHODS[solver]
    first, last = 0.0, 0.9
    x, velocity = starts(), gaussian_velocity(path)
    exact = gaussian_map(path, x, first, last)
    errors = []
    for steps in (20, 40, 80):
        times = torch.linspace(first, last, steps + 1, dtype=torch.float64).tolist()
        errors.append(float((end_of(velocity, x, path, times, solver) - exact).abs().max()))
    assert all(method.order - 0.3 < found < method.order + 0.5 for found in orders(errors)), (errors, orders(errors))


def mixture_map(x: Tensor, path: Path, last: float) -> Tensor:
    """Where the ODE takes x in the plane, by an adaptive method of order 8 of scipy."""
    integrate = pytest.importorskip("scipy.integrate")
    velocity = mixture_velocity(path)

    def slope(t: float, y: np.ndarray) -> np.ndarray:
        return velocity(torch.from_numpy(y).view_as(x), t).flatten().numpy()

    found = integrate.solve_ivp(slope, (0.0, last), x.flatten().numpy(), method="DOP853", rtol=1e-11, atol=1e-12)
    return torch.from_numpy(found.y[:, -1].copy()).view_as(x)


@pytest.mark.parametrize("solver", METHODS)
def test_order_of_convergence_on_a_mixture_in_the_plane(solver: PathSolverName) -> None:
    path, method, x, last = PATHS["linear"], METHODS[solver], starts(12), 0.8
    exact, velocity = mixture_map(x, path, last), mixture_velocity(path)
    errors = []
    for steps in (20, 40, 80):
        times = torch.linspace(0, last, steps + 1, dtype=torch.float64).tolist()
        errors.append(float((end_of(velocity, x, path, times, solver) - exact).square().mean().sqrt()))
    assert all(method.order - 0.35 < found < method.order + 0.6 for found in orders(errors)), (errors, orders(errors))


@pytest.mark.parametrize("name", ["gvp", "vp"])
def test_every_path_takes_the_noise_to_the_same_places(name: PathName) -> None:
    """A change of variables: x_t / norm is a function of the noise level alone, so the paths end where the linear one does."""
    x, sigmas = starts(8), (50.0, 0.3)
    ends = []
    for path in (PATHS["linear"], PATHS[name]):
        first, last = path.time_of(torch.tensor(sigmas, dtype=torch.float64)).tolist()
        norms = [path.at(number(t)).norm for t in (first, last)]
        times = torch.linspace(first, last, 81, dtype=torch.float64).tolist()
        ends.append(end_of(mixture_velocity(path), x * norms[0], path, times, "ode-rk4") / norms[1])
    torch.testing.assert_close(ends[0], ends[1], atol=3e-5, rtol=0)


@every_path
def test_the_ode_takes_a_gaussian_to_the_mixture(name: PathName) -> None:
    """Of 6,000 points: the share, the mean and the deviation of each component."""
    path, x = PATHS[name], starts(6_000)
    times = times_of(path, steps=60, solver="ode-heun", grid="uniform", ends=path.interval("velocity", training=False), sigmas=(80, 0.002))
    steps = list(flow_steps(mixture_image, x, path=path, times=times, at=path.coefficients, solver="ode-heun", noise=no_noise))
    assert len(steps) == 60
    compare_with_mixture(steps[-1].sample, atol=0.02)


def compare_with_mixture(made: Tensor, *, atol: float) -> None:
    points = made.flatten(1)
    nearest = torch.cdist(points, CENTRES).argmin(1)
    for k, (centre, weight) in enumerate(zip(CENTRES, WEIGHTS, strict=True)):
        own = points[nearest == k]
        assert len(own) / len(points) == pytest.approx(float(weight), abs=atol)
        torch.testing.assert_close(own.mean(0), centre, atol=atol, rtol=0)
        torch.testing.assert_close(own.std(0), torch.full((2,), SPREAD, dtype=torch.float64), atol=atol, rtol=0)


def no_noise(i: int) -> Tensor:
    raise AssertionError("a deterministic solver asked for noise")


def test_the_sde_by_hand() -> None:
    """Two steps of x + (v + s score) h + sqrt(2 s h) z, and one of 0.04 along the drift."""
    path, velocity = PATHS["linear"], gaussian_velocity(PATHS["linear"])
    x = starts(4)
    drawn = [torch.full_like(x, value) for value in (0.7, -1.1)]
    times = times_of(path, steps=3, solver="sde-euler", grid="uniform", ends=(0, 1), sigmas=(80, 0.002))
    assert times == pytest.approx([0, 0.48, 0.96, 1])

    def drift(y: Tensor, t: float) -> Tensor:
        score = -(y - t * MEAN) / (t**2 * DEVIATION**2 + (1 - t) ** 2)
        return velocity(y, t) + (1 - t) * score

    first = x + 0.48 * drift(x, 0.0) + math.sqrt(2 * 1.0 * 0.48) * drawn[0]
    second = first + 0.48 * drift(first, 0.48) + math.sqrt(2 * 0.52 * 0.48) * drawn[1]
    last = second + LAST_STEP * drift(second, 0.96)
    steps = list(sde_steps(velocity, x, path=path, times=times, noise=lambda i: drawn[i]))
    for step, expected, y, t in zip(steps, (first, second, last), (x, first, second), times, strict=False):
        torch.testing.assert_close(step.sample, expected, rtol=1e-9, atol=1e-9)
        image = MEAN + t * DEVIATION**2 / (t**2 * DEVIATION**2 + (1 - t) ** 2) * (y - t * MEAN)
        torch.testing.assert_close(step.x0, image, rtol=1e-9, atol=1e-9)
    assert len(steps) == 3


@every_path
@pytest.mark.parametrize("grid", ["uniform", "edm"])
def test_one_step_of_the_sde_gives_the_image_that_is_predicted(name: PathName, grid: Literal["uniform", "edm"]) -> None:
    """Along the drift of the linear path it would end with all of the noise that it began with, turned round."""
    path, ends = PATHS[name], PATHS[name].interval("velocity", training=False)
    times = times_of(path, steps=1, solver="sde-euler", grid=grid, ends=ends, sigmas=(80, 0.002))
    x = starts(4) * path.at_number(times[0]).norm
    (step,) = flow_steps(mixture_image, x, path=path, times=times, at=path.coefficients, solver="sde-euler", noise=no_noise)
    torch.testing.assert_close(step.sample, mixture_image(starts(4), path.coefficients(times[0])))
    assert step.x0 is step.sample


def sde_moments(name: PathName, steps: int) -> tuple[float, float]:
    """Mean and deviation of what the SDE makes of N(0, 1), exactly: it is linear in the start and in every draw."""
    path = PATHS[name]
    first, last = path.interval("velocity", training=False)[0], 0.9
    times = torch.linspace(first, last, steps + 1, dtype=torch.float64).tolist()
    start = path.at(number(first))
    count = steps + 1

    def unit(row: int, factor: float = 1.0) -> Tensor:
        made = torch.zeros(count + 1, 1, 1, 1, dtype=torch.float64)
        made[row] = factor
        return made

    deviation = float((start.alpha**2 * DEVIATION**2 + start.s**2).sqrt())
    x = float(start.alpha) * MEAN + unit(1, deviation)
    made = list(sde_steps(gaussian_velocity(path), x, path=path, times=times, noise=lambda i: unit(2 + i)))[-1].sample.flatten()
    return float(made[0]), float((made[1:] - made[0]).norm())


@every_path
def test_the_sde_has_the_densities_of_the_ode(name: PathName) -> None:
    """Mean and deviation at t = 0.9 are right to the first order in the step."""
    point = PATHS[name].at(number(0.9))
    mean, deviation = float(point.alpha * MEAN), float((point.alpha**2 * DEVIATION**2 + point.s**2).sqrt())
    errors = [abs(found[0] - mean) + abs(found[1] - deviation) for found in (sde_moments(name, steps) for steps in (100, 200, 400))]
    assert errors[-1] < 0.006 and all(0.75 < order < 1.6 for order in orders(errors)), (errors, orders(errors))


@every_path
def test_the_sde_leaves_no_noise_in_what_is_predicted_at_its_end(name: PathName) -> None:
    """The deviation that 20 steps give a faint texture, of 0.02, exactly: the way is linear in the start and in every draw.

    Where the last step goes along the drift it is two to four times too large.
    """
    path, texture, count = PATHS[name], 0.02, 20
    first, last = path.between(80.0, 0.002)
    times = times_of(path, steps=count, solver="sde-euler", grid="uniform", ends=(first, last), sigmas=(80.0, 0.002))
    units = torch.eye(count, dtype=torch.float64)[:, :, None, None, None]

    def predict(x: Tensor, c: Coefficients) -> Tensor:
        return c.sqrt_abar * texture**2 / (c.abar * texture**2 + c.sqrt_noise**2) * x

    x = units[0] * path.at_number(first).norm
    steps = flow_steps(predict, x, path=path, times=times, at=path.coefficients, solver="sde-euler", noise=lambda i: units[i + 1])
    assert 0.5 < float(list(steps)[-1].sample.norm()) / texture < 1.4


def test_grids() -> None:
    path = PATHS["linear"]
    made: Callable[..., list[float]] = lambda **given: times_of(path, **({"steps": 4, "solver": "ode-heun", "grid": "uniform"} | given))  # noqa: E731
    assert made(ends=(0, 1), sigmas=(80, 0.002)) == [0, 0.25, 0.5, 0.75, 1]
    assert made(ends=(0.1, 0.7), sigmas=(80, 0.002)) == pytest.approx([0.1, 0.3, 0.5, 0.7])
    edm = made(ends=(0, 1), sigmas=(80, 0.002), grid="edm")
    assert edm[0] == pytest.approx(1 / 81) and edm[-2:] == pytest.approx([1 / 1.002, 1]) and len(edm) == 5
    sigma = (80 ** (1 / 7) + (0.002 ** (1 / 7) - 80 ** (1 / 7)) / 3) ** 7
    assert edm[1] == pytest.approx(1 / (1 + sigma))
    assert made(ends=(0, 1), sigmas=(80, 0.002), steps=1) == [0, 1] == made(ends=(0, 1), sigmas=(80, 1), steps=1, grid="uniform")
    assert len(made(ends=(0, 1), sigmas=(80, 0.002), steps=1, grid="edm")) == 2


def test_one_step_of_euler_on_the_linear_path_gives_the_predicted_image() -> None:
    path, x = PATHS["linear"], starts(3)
    steps = list(flow_steps(mixture_image, x, path=path, times=[0.0, 1.0], at=path.coefficients, solver="ode-euler", noise=no_noise))
    torch.testing.assert_close(steps[0].sample, mixture_image(x, path.coefficients(0.0)))
    torch.testing.assert_close(steps[0].x0, steps[0].sample)


@every_path
def test_a_diffusion_model_is_sampled_as_a_flow(name: PathName) -> None:
    """A discrete process by its predictor, whose times are looked up by the noise level, ends where Heun over sigma ends."""
    process, path = GaussianDiffusion(GaussianConfig(schedule="cosine")), PATHS[name]
    low, high = process.at_time(0).sigma, 40.0
    seen: list[float] = []

    def predict(x: Tensor, c: Coefficients) -> Tensor:
        assert c.time == pytest.approx(process.time_of(c.sigma), abs=1e-6)
        seen.append(c.time)
        return mixture_image(x, c)

    def at(t: float) -> Coefficients:
        return process.at_time(process.time_of(float(path.at(number(t)).sigma)))

    first, last = path.time_of(torch.tensor([high, low], dtype=torch.float64)).tolist()
    times = times_of(path, steps=150, solver="ode-heun", grid="edm", ends=(first, last), sigmas=(high, low))
    x = starts(8)
    steps = list(flow_steps(predict, x * path.at(number(first)).norm, path=path, times=times, at=at, solver="ode-heun", noise=no_noise))
    sigmas = [float(path.at(number(t)).sigma) for t in times]
    points = [process.at_time(process.time_of(sigma)) for sigma in sigmas]
    other = list(SOLVERS["heun"].steps(mixture_image, x, points=points, noise=no_noise))
    assert len(steps) == 150 and len(seen) == 299
    torch.testing.assert_close(steps[-1].sample, other[-1].sample, atol=3e-3, rtol=0)


def adm_of_the_mixture(diffusion: GaussianConfig) -> tuple[ADM, list[float]]:
    """A model of timesteps that says what noise there is in a point of the plane, and the noise levels that it is asked at."""
    network = UNetConfig(num_channels=32, num_res_blocks=1, channel_mult=(1,), attention_resolutions=())
    model, asked = ADMConfig(network=network, diffusion=diffusion).build(DataSpec(image_size=2, channels=1)).eval(), []

    def noise(x: Tensor, c: Coefficients) -> Tensor:
        asked.append(c.sigma)
        return (x - c.sqrt_abar * mixture_image(x, c)) / c.sqrt_noise

    model.image_shape, model.denoiser = (1, 1, 2), lambda conditions, times: noise  # type: ignore[method-assign]
    return model, asked


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_adm_sampled_as_a_flow_ends_where_ddim_does_in_the_limit(schedule: Literal["linear", "cosine"]) -> None:
    """Along every path, on either grid. The error of DDIM halves with its steps, so twice the fine one less the coarse one is the limit."""
    model, asked = adm_of_the_mixture(GaussianConfig(schedule=schedule))
    lowest, highest = model.diffusion.levels.low, model.diffusion.levels.high

    def end(**settings: Any) -> Tensor:
        asked.clear()
        draws = Rng(3, ("sample",), torch.arange(8))
        return list(model.sample_progressive(draws, settings=SamplingConfig(clip=False, **settings)))[-1].sample

    coarse, fine = (end(sampler="ddim", steps=steps) for steps in (500, 1000))
    limit = 2 * fine - coarse
    assert 1e-3 < float((fine - limit).abs().max()) < 4e-3
    grids: list[tuple[PathName, str, float]] = [
        ("linear", "uniform", highest),
        ("gvp", "edm", highest),
        ("vp", "uniform", min(highest, 152.2)),
    ]
    for path, grid, first in grids:
        near = 4e-3 if path == "vp" else 2e-4  # the vp path begins at sigma = 152, and is asked until t = 0.999
        torch.testing.assert_close(end(sampler="ode-rk4", steps=60, flow_path=path, grid=grid), limit, atol=near, rtol=0)
        assert len(asked) == 59 * 4 + 1
        assert asked[0] == pytest.approx(first, rel=1e-2) and asked[-1] == pytest.approx(lowest, rel=1e-6)
    torch.testing.assert_close(end(sampler="ode-heun", steps=100), limit, atol=2e-3, rtol=0)
    torch.testing.assert_close(end(sampler="ode-euler", steps=1), mixture_start(model, highest), atol=1e-9, rtol=0)


def mixture_start(model: ADM, sigma: float) -> Tensor:
    """The x_0 that is predicted at the last timestep: that is where one step ends."""
    return mixture_image(starts(8), model.diffusion.levels.at(sigma))


@pytest.mark.usefixtures("float64")
def test_adm_sampled_along_a_path_with_noise_has_the_mixture() -> None:
    model, _ = adm_of_the_mixture(GaussianConfig(schedule="cosine"))
    draws = Rng(3, ("sample",), torch.arange(4_000))
    settings = SamplingConfig(sampler="sde-euler", steps=250, clip=False)
    compare_with_mixture(list(model.sample_progressive(draws, settings=settings))[-1].sample, atol=0.03)
