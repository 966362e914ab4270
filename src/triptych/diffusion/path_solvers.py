"""Ways along a path from noise to images, by the velocity: the ODE dx/dt = v(x, t) on a fixed grid, and the SDE with the same densities.

Ma et al. 2024 (SiT), arXiv 2401.08740, sections 2.3 and 3.4. With a diffusion D(t) the SDE is

    dx = (v + D score) dt + sqrt(2 D) dW,

here with SiT's D = s; then D score = -n, and the drift has no singular point. The grid is fixed: steps that adapt to their errors would
let an image depend on the others in its batch.

A path is a change of variables of every process of the same noise levels (`velocity_of`): a diffusion model is sampled as a flow with
the x_0 that it predicts at sigma = s / alpha, and a flow by the solvers of solvers.py with the x_0 that follows from its velocity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor

from triptych.diffusion.gaussian import Coefficients, NoiseProcess
from triptych.diffusion.paths import Path
from triptych.diffusion.samplers import Predictor, Step
from triptych.diffusion.solvers import LARGEST_SIGMA, RHO, noise_levels

Velocity = Callable[[Tensor, float], Tensor]
"""v at x_t (b, c, h, w) and t."""
PathSolverName = Literal["ode-euler", "ode-heun", "ode-rk4", "sde-euler"]
Grid = Literal["uniform", "edm"]
LAST_STEP = 0.04
"""Of the SDE on its way to t = 1, which is taken without noise (Ma et al. 2024, appendix C)."""
LATEST = 0.999
"""The time at which a predicted x_0 is asked for what noise goes with it, in the place of t = 1."""


@dataclass(frozen=True)
class RungeKutta:
    """An explicit method each of whose slopes goes by the one before alone."""

    places: tuple[float, ...]
    "Of the second and further slopes within the step."
    weights: tuple[float, ...]
    order: int


METHODS: dict[PathSolverName, RungeKutta] = {
    "ode-euler": RungeKutta((), (1.0,), order=1),
    "ode-heun": RungeKutta((1.0,), (1 / 2, 1 / 2), order=2),
    "ode-rk4": RungeKutta((1 / 2, 1 / 2, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6), order=4),
}
"""The methods for the ODE, by the name of the setting `sampler`."""
PATH_SOLVERS: tuple[PathSolverName, ...] = get_args(PathSolverName)


def ode_steps(velocity: Velocity, x: Tensor, *, path: Path, times: Sequence[float], method: RungeKutta) -> Iterator[Step]:
    """A step between each two of the times from x at the first; the last one's `sample` is x at the last. No noise is drawn."""
    for t, following in pairwise(times):
        h, slopes = following - t, [velocity(x, t)]
        x0 = path.at_number(t).image_of(slopes[0], x, "velocity")
        for place in method.places:
            slopes.append(velocity(torch.add(x, slopes[-1], alpha=place * h), t + place * h))
        for weight, slope in zip(method.weights, slopes, strict=True):
            x = torch.add(x, slope, alpha=weight * h)
        yield Step(x, x0)


def sde_steps(velocity: Velocity, x: Tensor, *, path: Path, times: Sequence[float], noise: Callable[[int], Tensor]) -> Iterator[Step]:
    """A step of Euler and Maruyama between each two of the times from x at the first; the last one draws no noise.

    To t = 1 that one goes along the drift, as published (Ma et al. 2024, appendix C). To an earlier time it goes along the ODE: the drift
    also takes away what a draw would replace, so it overshoots, and a network that is told of little noise would leave that in its x_0.
    `noise(i)` is the standard normal draw of the i-th step.
    """
    last = len(times) - 2
    for i, (t, following) in enumerate(pairwise(times)):
        point, h = path.at_number(t), following - t
        v = velocity(x, t)
        x0, n = point.image_of(v, x, "velocity"), point.noise_of(v, x)
        x = torch.add(x, v if i == last and following < 1 else v - n, alpha=h)
        if i < last:
            x = torch.add(x, noise(i), alpha=float(2 * point.s * h) ** 0.5)
        yield Step(x, x0)


def times_of(
    path: Path,
    *,
    steps: int,
    solver: PathSolverName,
    grid: Grid,
    ends: tuple[float, float],
    sigmas: tuple[float, float],
    rho: float = RHO,
) -> list[float]:
    """The times that `steps` steps go by, from the first to the last of `ends`.

    "uniform": evenly, but for the last step of the SDE to t = 1, which is 0.04 long. "edm": at noise levels from the larger to the smaller
    of the sigmas, evenly in sigma^(1/rho) (Karras et al. 2022, Eq. 5), and the last of the ends after them. A way that ends before the
    image, at t = 1, has one step less, for `flow_steps` takes one more there. So does the SDE of one step: its drift would turn the noise
    round and leave all of it.
    """
    (first, last), whole = map(float, ends), ends[1] == 1 and (steps > 1 or solver != "sde-euler")
    if grid == "edm":
        levels = noise_levels(*sigmas, steps=steps, spacing="edm", rho=rho)
        times = path.time_of(torch.tensor(levels, dtype=torch.float64)).tolist()
        return [*times, last] if whole else times
    if not whole:
        return torch.linspace(first, last, steps, dtype=torch.float64).tolist()
    if solver == "sde-euler":
        return [*torch.linspace(first, 1 - LAST_STEP, steps, dtype=torch.float64).tolist(), last]
    return torch.linspace(first, last, steps + 1, dtype=torch.float64).tolist()


def velocity_of(predict: Predictor, path: Path, *, at: Callable[[float], Coefficients]) -> Velocity:
    """The velocity along a path of any process of the same noise levels, by the x_0 that it predicts.

    `at`: the coefficients at a time of the path, with the time that `predict` knows it by. At t = 1 the x_0 is x and says nothing of
    the noise, so the model is asked at 0.999 there.
    """

    def velocity(x: Tensor, t: float) -> Tensor:
        t = LATEST if t >= 1 else t
        point = path.at_number(t)
        x0 = predict(x / point.norm, at(t))
        return point.velocity_to(x0, x)

    return velocity


def flow_steps(
    predict: Predictor,
    x: Tensor,
    *,
    path: Path,
    times: Sequence[float],
    at: Callable[[float], Coefficients],
    solver: PathSolverName,
    noise: Callable[[int], Tensor],
) -> Iterator[Step]:
    """The way of any process along a path, from x (b, c, h, w) at the first of the times, by the x_0 that it predicts.

    Where the last of the times is not 1, one call more gives the x_0 predicted there, which is then the last step's `sample`. `at` as in
    `velocity_of`, `noise` as in `sde_steps`.
    """
    velocity = velocity_of(predict, path, at=at)
    if solver == "sde-euler":
        steps = sde_steps(velocity, x, path=path, times=times, noise=noise)
    else:
        steps = ode_steps(velocity, x, path=path, times=times, method=METHODS[solver])
    for step in steps:
        x = step.sample
        yield step
    if times[-1] < 1:
        x0 = predict(x / path.at_number(times[-1]).norm, at(times[-1]))
        yield Step(x0, x0)


def process_steps(
    process: NoiseProcess,
    predict: Predictor,
    x: Tensor,
    *,
    path: Path,
    steps: int,
    solver: PathSolverName,
    grid: Grid,
    noise: Callable[[int], Tensor],
) -> Iterator[Step]:
    """The way of a process of timesteps along a path, from the noise x (b, c, h, w) at its last timestep to its first.

    "edm": as in `points_of`, from sigma = 80, but for the first step, which begins at the last timestep. The last of the `steps` steps
    gives the x_0 predicted at the first timestep.
    """
    levels = process.levels
    ends, sigmas = path.between(levels.high, levels.low), (min(levels.high, LARGEST_SIGMA), levels.low)
    times = [ends[0], *times_of(path, steps=steps, solver=solver, grid=grid, ends=ends, sigmas=sigmas)[1:]]

    def at(t: float) -> Coefficients:
        return levels.at(path.coefficients(t).sigma)

    return flow_steps(predict, x * path.at_number(times[0]).norm, path=path, times=times, at=at, solver=solver, noise=noise)
