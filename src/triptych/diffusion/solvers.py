"""Ways from noise to images in few network calls: solvers of the equations whose steps lie at any noise levels.

"dpm++2m" and "dpm++2m-sde": DPM-Solver++(2M) of Lu et al. 2022, arXiv 2211.01095. "unipc": UniPC of Zhao et al. 2023, arXiv 2302.04867.
"heun": Karras et al. 2022, arXiv 2206.00364, Algorithm 1, and Algorithm 2 where there is churn. "euler": without its second half.

All of them follow the x_0 that the network predicts, between the points of `points_of`. The last point is the least noise that the
process knows; the step that ends there returns the x_0 predicted at it. With alpha = sqrt(abar), s = sqrt(1 - abar), lambda =
log(alpha / s) and h the difference of lambda between two points, the equation they solve is

    x_t = s_t / s x + s_t * integral of exp(lambda) x_0(lambda) from lambda to lambda + h.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from triptych.core.errors import ConfigError
from triptych.diffusion.gaussian import Coefficients, NoiseProcess, combined, factors
from triptych.diffusion.samplers import Predictor, Step

Spacing = Literal["timesteps", "log-snr", "edm"]

DEFAULT_STEPS = 20
LARGEST_SIGMA = 80.0
"""Where the noise levels of "log-snr" and "edm" begin (Karras et al. 2022, Table 1).

Above it x_0 hardly depends on x, and no score is asked for."""
RHO = 7.0
"""Exponent of the EDM noise levels."""
UNIPC_ORDER = 2
"""Points that a predictor of UniPC goes by; its corrector adds the new one."""


class Steps(Protocol):
    """The steps of a solver."""

    def __call__(self, predict: Predictor, x: Tensor, *, points: Sequence[Coefficients], noise: Callable[[int], Tensor]) -> Iterator[Step]:
        """A step for each of the points from the noise x (b, c, h, w) at the first; `noise(i)` is the draw of the i-th step."""
        ...


@dataclass(frozen=True)
class Solver:
    """A solver, and what is known of it; the tests hold it to that."""

    steps: Steps
    order: int
    "Of convergence, between fixed noise levels; of the mean and the variance where the solver is stochastic."
    spacing: Spacing
    "What suits it."
    calls: int = 1
    "Network calls of a step; the last one has one."


def points_of(process: NoiseProcess, *, steps: int, spacing: Spacing) -> list[Coefficients]:
    """The `steps` points of a solver, from the last timestep of the process to the first.

    "timesteps": evenly spread over the timesteps, between which they may lie. "log-snr" and "edm": by `noise_levels`, which begin at
    sigma = 80 where the last timestep lies above it (that of the cosine schedule has 20,000); their first point is the last timestep.
    """
    if spacing == "timesteps":
        return process.at_times(np.linspace(process.steps - 1, 0, steps).tolist())
    first, last = process.at_times([process.steps - 1, 0])
    sigmas = noise_levels(min(first.sigma, LARGEST_SIGMA), last.sigma, steps=steps, spacing=spacing)
    return [first, *process.at_times(process.times_of(sigmas[1:]))]


def noise_levels(high: float, low: float, *, steps: int, spacing: Literal["log-snr", "edm"], rho: float = RHO) -> list[float]:
    """`steps` noise levels sigma from `high` down to `low`: evenly in log(sigma), or in sigma^(1/rho) (Karras et al. 2022, Eq. 5)."""
    if spacing == "log-snr":
        return np.exp(np.linspace(math.log(high), math.log(low), steps)).tolist()
    return (np.linspace(high ** (1 / rho), low ** (1 / rho), steps) ** rho).tolist()


def num_points(steps: int | str | None, *, total: int) -> int:
    """The number of points that the setting "steps" asks for; None: 20. Raises ConfigError unless it is a number from 1 to `total`."""
    if steps is None:
        return min(DEFAULT_STEPS, total)
    if not str(steps).isdecimal() or not 1 <= int(steps) <= total:
        raise ConfigError("steps", f"got {steps!r}, expected a whole number from 1 to {total} with this sampler")
    return int(steps)


def _rise(c: Coefficients, following: Coefficients) -> float:
    """h, by which lambda rises between two points."""
    return math.log(c.sigma / following.sigma)


def dpm_solver_2m(
    predict: Predictor, x: Tensor, *, points: Sequence[Coefficients], noise: Callable[[int], Tensor], tau: int = 0
) -> Iterator[Step]:
    """The steps of DPM-Solver++(2M) (Lu et al. 2022, Algorithm 2) from x (b, c, h, w), one network call each; it asks for no noise.

    With `tau` 1 those of SDE-DPM-Solver++(2M) (section 5), with noise in all but the last. x_0 is taken half a step on, along the line
    through the last two predictions; the first step has but one.
    """
    before, rises = None, [_rise(c, following) for c, following in pairwise(points)]
    table = []
    for (c, following), h, last in zip(pairwise(points), rises, [math.inf, *rises], strict=False):
        kept = following.sqrt_noise / c.sqrt_noise * math.exp(-tau * h)
        towards, ahead = -following.sqrt_abar * math.expm1(-(1 + tau) * h), h / (2 * last)
        added = [following.sqrt_noise * math.sqrt(-math.expm1(-2 * tau * h))] if tau else []
        table.append((kept, towards * (1 + ahead), -towards * ahead, *added))
    for i, (c, row) in enumerate(zip(points, factors(table, x), strict=False)):
        x0 = predict(x, c)
        older = x0 if before is None else before  # the first step has but one, and its factor here is 0
        x = combined(row, x, x0, older, noise(i)) if tau else combined(row, x, x0, older)
        before = x0
        yield Step(x, x0)
    yield _last(predict, x, points)


def _last(predict: Predictor, x: Tensor, points: Sequence[Coefficients]) -> Step:
    x0 = predict(x, points[-1])
    return Step(x0, x0)


def unipc(predict: Predictor, x: Tensor, *, points: Sequence[Coefficients], noise: Callable[[int], Tensor]) -> Iterator[Step]:
    """The steps of UniPC (Zhao et al. 2023, Algorithms 1 and 2, B_2, data prediction) from x (b, c, h, w), without noise.

    One network call each: the prediction at a new point also corrects the step that led there, so the corrector costs no call.
    `Step.sample` is what the predictor gives. All of it is linear in x and in what was predicted, so correcting x and the next step
    are one weighted sum.
    """
    past: list[Tensor] = []  # what was predicted at the last points, the newest first
    for c, row in zip(points, factors(_unified_rows(points), x), strict=False):
        past = [predict(x, c), *past][: UNIPC_ORDER + 1]
        x = combined(row, x, *past)
        yield Step(x, past[0])
    yield _last(predict, x, points)


def _unified_rows(points: Sequence[Coefficients]) -> list[list[float]]:
    """The factors of x and of the last three predictions of x_0, the newest first, in each step of UniPC.

    x_0 is the polynomial of lambda through what was predicted at the step's start, at the point before and, to correct it, at its end
    (Zhao et al. 2023, Eqs. 3 and 9, without B(h), which cancels but where there is one point besides the start: there they take
    a_1 = 1/2). Correcting x adds the difference of these two sums.
    """
    alpha, s, sigma = np.array([(c.sqrt_abar, c.sqrt_noise, c.sigma) for c in points]).T
    h, kept = -np.diff(np.log(sigma)), s[1:] / s[:-1]
    # h * integral of exp(h (u - 1)) u^k over 0..1 for k = 0, 1, 2, by parts
    whole = -np.expm1(-h)
    first = 1 - 1 / h * whole
    second = 1 - 2 / h * first
    # Weights of the differences of an x_0 from the one at the start. With the end, at 1, and the point before, at r, both: u and v of which
    # u + r v and u + r^2 v have these integrals. The first step has no point before.
    r = -h[:-1] / h[1:]
    before = np.append(0 * whole[:1], whole[1:] / 2 / r)
    end_corrected = np.append(whole[:1] / 2, (second[1:] - r * first[1:]) / (1 - r))
    before_corrected = np.append(0 * whole[:1], (second[1:] - first[1:]) / (r * (r - 1)))
    steps = alpha[1:] * np.stack((whole - before, before, 0 * whole))
    corrections = alpha[1:] * np.stack((end_corrected, before - end_corrected - before_corrected, before_corrected - before))
    steps[:, 1:] += kept[1:] * corrections[:, :-1]
    return np.vstack((kept, steps)).T.tolist()


@dataclass(frozen=True)
class Churn:
    """Noise that is added before a step and removed by it (Karras et al. 2022, Algorithm 2)."""

    at: Callable[[float], Coefficients]
    "The coefficients of a noise level."
    amount: float
    "S_churn: over all steps. Each step's share is at most sqrt(2) - 1 of its noise level."
    low: float = 0.0
    "S_min."
    high: float = math.inf
    "S_max: only noise levels from low to high are churned."
    deviation: float = 1.0
    "S_noise: of the noise that is added, a little above 1 where the network removes too much."

    def raised(self, c: Coefficients, *, steps: int) -> Coefficients:
        """The noise level after it; c itself where no noise is added."""
        gamma = min(self.amount / steps, math.sqrt(2) - 1) if self.low <= c.sigma <= self.high else 0.0
        return self.at(c.sigma * (1 + gamma)) if gamma > 0 else c

    def added(self, x: Tensor, c: Coefficients, raised: Coefficients, noise: Tensor) -> Tensor:
        """x (b, c, h, w) with more noise."""
        more = math.sqrt(raised.sigma**2 - c.sigma**2) * self.deviation
        return (x / c.sqrt_abar + more * noise) * raised.sqrt_abar


def heun(
    predict: Predictor,
    x: Tensor,
    *,
    points: Sequence[Coefficients],
    noise: Callable[[int], Tensor],
    churn: Churn | None = None,
    euler_above: float = LARGEST_SIGMA,
) -> Iterator[Step]:
    """The steps of Heun's method in x / sqrt(abar) over sigma (Karras et al. 2022, Algorithms 1 and 2) from x (b, c, h, w).

    Two network calls each, one in the last, and one in those that begin above `euler_above`: they are Euler's, for the trapezoid
    magnifies an error of x_0 at the end of the step by the quotient of the two sigmas. There is no noise but that of `churn`.
    """
    starts = points if churn is None else [churn.raised(c, steps=len(points)) for c in points]
    ends = list(zip(starts, points[1:], strict=False))
    eulers = factors([_euler_row(start, end) for start, end in ends], x)
    for i, ((start, end), row) in enumerate(zip(ends, eulers, strict=True)):
        c = points[i]
        if churn is not None and start is not c:
            x = churn.added(x, c, start, noise(i))
        x0 = predict(x, start)
        x = combined(row, x, x0)
        if c.sigma <= euler_above:
            # The slopes at both ends of Euler's step are (x - x_0) / sigma with the x_0 predicted there. The step leads straight towards
            # the first x_0, so it could have started anywhere on the way: at its end too, and the slopes differ by x_0 alone.
            half = (start.sigma - end.sigma) / 2 / end.sigma
            x = torch.add(x, predict(x, end) - x0, alpha=half * end.sqrt_abar)
        yield Step(x, x0)
    if churn is not None and starts[-1] is not points[-1]:
        x = churn.added(x, points[-1], starts[-1], noise(len(points) - 1))
    yield _last(predict, x, starts)


def _euler_row(start: Coefficients, end: Coefficients) -> tuple[float, float]:
    """The factors of x and x_0 in a step of Euler, which moves x / sqrt(abar) to x_0 by the share of sigma that the step takes away."""
    left = end.sigma / start.sigma
    return left * end.sqrt_abar / start.sqrt_abar, (1 - left) * end.sqrt_abar


euler = partial(heun, euler_above=0.0)
"""Euler's method in x / sqrt(abar) over sigma, one network call each: DDIM at any noise levels."""


SOLVERS: dict[str, Solver] = {
    "dpm++2m": Solver(dpm_solver_2m, order=2, spacing="log-snr"),
    "dpm++2m-sde": Solver(partial(dpm_solver_2m, tau=1), order=2, spacing="log-snr"),
    "unipc": Solver(unipc, order=UNIPC_ORDER + 1, spacing="log-snr"),
    "heun": Solver(heun, order=2, spacing="edm", calls=2),
    "euler": Solver(euler, order=1, spacing="edm"),
}
"""By the name of the setting `sampler`."""
