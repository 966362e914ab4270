"""Gaussian diffusion: the forward process, what a network may predict of it, and the losses.

Ho et al. 2020 (DDPM, arXiv 2006.11239); Nichol and Dhariwal 2021 (Improved DDPM, arXiv 2102.09672) for the cosine schedule, the
learned variances and the hybrid loss; Salimans and Ho 2022 (arXiv 2202.00512) for v. x_t = sqrt(abar_t) x_0 + sqrt(1 - abar_t) eps.

`NoiseProcess` is the way from images to noise, all that a classifier of noisy images needs; `GaussianDiffusion` adds what a network
predicts of the way back.

Tables are float64 and become PyTorch's default type where they are looked up. A lookup gives `StepCoefficients`: numbers for one step
that all samples share, tensors (b, 1, 1, 1) for a step of its own for each sample; the formulas are the same for both. Predictors and
solvers need the first six of them alone, `Coefficients`, which every noise level has, with or without a table.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from triptych.core.config import Config, config
from triptych.core.rng import Rng
from triptych.diffusion.schedules import ScheduleName, named_betas

ImageHook = Callable[[Tensor], Tensor]
"""Changes the predicted x_0 (b, c, h, w) before it is used: clipping, thresholding, projection."""

_MOST_STEPS = 1_000_000
_LEAST_BETA = 1e-12  # of less nothing is left in 1 - beta, and the first noise level would be 0
_LEAST_LEFT = 1e-30
"""Of the image's variance at the last timestep: x_0 is a difference of numbers 1e15 times as large, whose squares are finite in float32."""
RESCALED_TO = 1000
"""Timesteps are rescaled to this range, and rescaled losses weighted as if there were this many."""


@config
class NoiseConfig(Config):
    """How images become noise."""

    steps: int = 1000
    "Number of timesteps T."
    schedule: ScheduleName = "linear"
    "How the noise grows: linear betas (Ho et al. 2020), or a cosine alpha_bar (Nichol and Dhariwal 2021)."
    betas: tuple[float, ...] | None = None
    "A table of `steps` betas in place of the schedule; None: the schedule."
    rescale_timesteps: bool = False
    "The network sees t * 1000 / T."

    def validate(self) -> None:
        self.require(1 <= self.steps <= _MOST_STEPS, "steps", f"1 to {_MOST_STEPS:,}")
        if self.betas is None:
            named_betas(self.schedule, steps=self.steps)
        else:
            self.require(len(self.betas) == self.steps, "betas", f"one for each of the {self.steps} steps")
            self.require(all(_LEAST_BETA <= beta < 1 for beta in self.betas), "betas", f"numbers from {_LEAST_BETA:g} to below 1")
            left = math.prod(1 - beta for beta in self.betas)
            self.require(left >= _LEAST_LEFT, "betas", f"a product of all 1 - beta of at least {_LEAST_LEFT:g}, what is left of the image")

    def table(self) -> np.ndarray:
        """The betas: float64 (steps,)."""
        return named_betas(self.schedule, steps=self.steps) if self.betas is None else np.array(self.betas, dtype=np.float64)

    @property
    def time_unit(self) -> float:
        """What the network sees of one timestep: 1, or 1000 / T."""
        return RESCALED_TO / self.steps if self.rescale_timesteps else 1.0


@config
class GaussianConfig(NoiseConfig):
    """The diffusion, what the network predicts, and how it is trained."""

    mean: Literal["epsilon", "x0", "previous_x", "v"] = "epsilon"
    "What the network predicts: the noise, the image, the mean of x at the step before, or v = sqrt(abar) eps - sqrt(1 - abar) x0."
    variance: Literal["fixed_small", "fixed_large", "learned", "learned_range"] = "fixed_large"
    "Of a reverse step: the posterior's, beta, the network's, or the network's between the first two (in the log domain)."
    loss: Literal["mse", "rescaled_mse", "kl", "rescaled_kl"] = "mse"
    "Squared error (plus the bound's term for a learned variance; times T/1000 if rescaled), or the bound's term alone (times T)."

    @property
    def learns_variance(self) -> bool:
        """Whether the network has a second half of output channels, for the variance."""
        return self.variance in ("learned", "learned_range")


@dataclass(frozen=True, slots=True, eq=False)  # told apart as objects: a hash of all fields would take as long as using them
class Coefficients:
    """What the formulas need of a noise level: numbers, or tensors (b, 1, 1, 1)."""

    time: Any
    "What the network sees: the original timestep, rescaled if asked."
    abar: Any
    sqrt_abar: Any
    sqrt_noise: Any
    "sqrt(1 - abar)."
    sqrt_recip: Any
    "sqrt(1 / abar)."
    sigma: Any
    "sqrt(1 / abar - 1), the noise level of Karras et al. (2022): the deviation of the noise where the image has factor 1."

    @staticmethod
    def of_sigma(sigma: Any, *, time: Any) -> Coefficients:
        """Those of any noise level above 0, without a table: a number, or a tensor (b, 1, 1, 1). `time`: what the network sees of it."""
        abar = 1 / (1 + sigma**2)
        return Coefficients(time, abar, abar**0.5, sigma * abar**0.5, (1 + sigma**2) ** 0.5, sigma)

    def times(self, x: Tensor) -> Tensor:
        """`time` for each sample of x (b, ...): (b,)."""
        return self.time.flatten() if isinstance(self.time, Tensor) else torch.full((x.shape[0],), self.time, device=x.device)


@dataclass(frozen=True, slots=True, eq=False)
class StepCoefficients(Coefficients):
    """What the formulas need of a timestep, which has neighbours and a posterior."""

    abar_prev: Any
    abar_next: Any
    posterior_x0: Any
    "Of x_0 in the mean of q(x_{t-1} | x_t, x_0): beta sqrt(abar_prev) / (1 - abar)."
    posterior_xt: Any
    "Of x_t there: (1 - abar_prev) sqrt(1 - beta) / (1 - abar)."
    variance_small: Any
    "Of q(x_{t-1} | x_t, x_0): beta (1 - abar_prev) / (1 - abar)."
    log_variance_small: Any
    "Its logarithm; at t = 0, where it is 0, that of t = 1."
    variance_large: Any
    "beta; at t = 0 the small variance of t = 1."
    log_variance_large: Any
    log_beta: Any
    not_last: Any
    "0 at t = 0, the sampler's last step, which adds no noise; else 1."
    own_x0: Any
    "posterior_x0 of the step of one timestep, which the network learned, whatever timesteps are left out here; so too the next three."
    own_xt: Any
    own_log_small: Any
    own_log_beta: Any


def times_at(points: Sequence[Coefficients], rng: Rng) -> dict[Coefficients, Tensor]:
    """What `times` gives for the samples of `rng` at each of the points, numbers: made at once, since one by one takes longer."""
    times = torch.tensor([c.time for c in points], dtype=torch.get_default_dtype(), device=rng.index.device)
    return dict(zip(points, times[:, None].repeat(1, len(rng)).unbind(), strict=True))


KEPT_POINTS = 4096
"""Places of a way from noise to images whose numbers are kept: those of a way of some thousand steps."""
Row = Sequence[Any]
"""Factors of images that all samples share: the first a tensor of no axes, the others numbers."""


def factors(table: Iterable[Sequence[float]], x: Tensor) -> list[Row]:
    """The rows of a trajectory's table of numbers, for `combined` of images like x.

    PyTorch makes a tensor of a number in each product with it, which takes longer than a product of few values. A sum takes it as it is.
    """
    rows, dtype = list(table), torch.promote_types(x.dtype, torch.get_default_dtype())  # a network may answer in more digits than x has
    first = torch.tensor([row[0] for row in rows], dtype=dtype).unbind()
    return [(factor, *row[1:]) for factor, row in zip(first, rows, strict=True)]


def combined(row: Row, first: Tensor, *others: Tensor) -> Tensor:
    """The sum of the parts (b, ...), each times its factor in a row of `factors`, which may have more of them than there are parts."""
    total = row[0] * first
    for i, part in enumerate(others, start=1):
        total = torch.add(total, part, alpha=row[i])
    return total


@dataclass(frozen=True, slots=True)
class Levels:
    """The noise levels sigma that a model knows."""

    low: float
    high: float
    at: Callable[[float], Coefficients]
    "The coefficients of a level from low to high, as numbers."


Denoiser = Callable[[Tensor, Coefficients], Tensor]
"""The network's output for noisy images x_t (b, c, h, w) at the noise levels of the coefficients."""

_FIELDS = tuple(field.name for field in dataclasses.fields(StepCoefficients))
_OWN = {"own_x0": "posterior_x0", "own_xt": "posterior_xt", "own_log_small": "log_variance_small", "own_log_beta": "log_beta"}


def _tables(betas: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The fields of StepCoefficients for every timestep: float64 (fields, steps)."""
    abar = np.cumprod(1 - betas)
    abar_prev, abar_next = np.append(1.0, abar[:-1]), np.append(abar[1:], 0.0)
    small = betas * (1 - abar_prev) / (1 - abar)
    first = small[1] if len(betas) > 1 else betas[0]
    clipped, large = np.append(first, small[1:]), np.append(first, betas[1:])
    tables = {
        "time": times,
        "abar": abar,
        "abar_prev": abar_prev,
        "abar_next": abar_next,
        "sqrt_abar": np.sqrt(abar),
        "sqrt_noise": np.sqrt(1 - abar),
        "sqrt_recip": np.sqrt(1 / abar),
        "sigma": np.sqrt(1 / abar - 1),
        "posterior_x0": betas * np.sqrt(abar_prev) / (1 - abar),
        "posterior_xt": (1 - abar_prev) * np.sqrt(1 - betas) / (1 - abar),
        "variance_small": small,
        "log_variance_small": np.log(clipped),
        "variance_large": large,
        "log_variance_large": np.log(large),
        "log_beta": np.log(betas),
        "not_last": np.minimum(np.arange(len(betas), dtype=np.float64), 1.0),
    }
    return np.stack([tables[_OWN.get(name, name)] for name in _FIELDS])


@dataclass(frozen=True, slots=True)
class Moments:
    """p(x_{t-1} | x_t) of a network, and the x_0 (b, c, h, w) that it comes from; the variances may be numbers."""

    mean: Tensor
    variance: Any
    log_variance: Any
    x0: Tensor


class NoiseProcess:
    """The forward process of a configuration; after `respaced`, the same on some of its timesteps."""

    def __init__(self, config: NoiseConfig, *, kept: Sequence[int] | None = None) -> None:
        self.config = config
        self.kept = tuple(range(config.steps)) if kept is None else tuple(kept)
        betas, seen = config.table(), np.arange(config.steps) * config.time_unit
        self.betas, self.tables = betas, _tables(betas, seen)
        if kept is not None:
            abar, own = np.cumprod(1 - betas)[list(self.kept)], [_FIELDS.index(name) for name in _OWN]
            learned = self.tables[:, list(self.kept)][own]
            self.betas = 1 - abar / np.append(1.0, abar[:-1])
            self.tables = _tables(self.betas, seen[list(self.kept)])
            self.tables[own] = learned
        self._log_sigmas = np.log(self.tables[_FIELDS.index("sigma")])
        self._on_device: dict[torch.device, Tensor] = {}

    @property
    def steps(self) -> int:
        """Number of timesteps of this process."""
        return len(self.kept)

    def at(self, t: Int[Tensor, " b"]) -> StepCoefficients:
        """The coefficients at each sample's timestep."""
        if t.device not in self._on_device:
            self._on_device[t.device] = torch.from_numpy(self.tables).to(t.device, torch.get_default_dtype())
        return StepCoefficients(*self._on_device[t.device].index_select(1, t)[:, :, None, None, None].unbind(0))

    def at_step(self, step: int) -> StepCoefficients:
        """The coefficients at one timestep, as numbers."""
        return StepCoefficients(*self.tables[:, step].tolist())

    @cached_property
    def points(self) -> list[StepCoefficients]:
        """`at_step` of all timesteps, from the last to the first."""
        return [StepCoefficients(*row) for row in self.tables.T[::-1].tolist()]

    def at_time(self, t: float) -> Coefficients:
        """The coefficients at a time from 0 to steps - 1, also between two timesteps: log(sigma) is interpolated along a line."""
        return self.at_times([t])[0]

    def at_times(self, times: Sequence[float]) -> list[Coefficients]:
        """`at_time` of each of the times."""
        log_sigmas, seen = (np.interp(times, np.arange(self.steps), table).tolist() for table in (self._log_sigmas, self.tables[0]))
        return [Coefficients.of_sigma(math.exp(log_sigma), time=time) for log_sigma, time in zip(log_sigmas, seen, strict=True)]

    def time_of(self, sigma: float) -> float:
        """The time, from 0 to steps - 1, at which the noise level is `sigma`; the inverse of `at_time`."""
        return self.times_of([sigma])[0]

    def times_of(self, sigmas: Sequence[float]) -> list[float]:
        """`time_of` of each of the noise levels."""
        return np.interp([math.log(sigma) for sigma in sigmas], self._log_sigmas, np.arange(self.steps)).tolist()

    @cached_property
    def levels(self) -> Levels:
        """From the first timestep to the last, also between two of them; found levels are kept for the batches after the first."""
        low, high = (self.at_time(t).sigma for t in (0, self.steps - 1))
        return Levels(low, high, lru_cache(maxsize=KEPT_POINTS)(lambda sigma: self.at_time(self.time_of(sigma))))

    def noised(self, x0: Float[Tensor, " b *d"], noise: Float[Tensor, " b *d"], c: Coefficients) -> Float[Tensor, " b *d"]:
        """x_t, a sample of q(x_t | x_0)."""
        return c.sqrt_abar * x0 + c.sqrt_noise * noise

    def noise_from(self, x0: Float[Tensor, " b *d"], x_t: Float[Tensor, " b *d"], c: Coefficients) -> Float[Tensor, " b *d"]:
        """The noise that leads from x_0 to x_t."""
        return (c.sqrt_recip * x_t - x0) / c.sigma


class GaussianDiffusion(NoiseProcess):
    """The process of a configuration, and what its network says of the way back."""

    config: GaussianConfig

    def __init__(self, config: GaussianConfig, *, kept: Sequence[int] | None = None) -> None:
        super().__init__(config, kept=kept)
        self._respaced: GaussianDiffusion | None = None

    def respaced(self, kept: Sequence[int]) -> GaussianDiffusion:
        """The process on the timesteps `kept` of the original one; its own are 0..len(kept)-1, the network sees the originals.

        The last one is kept: batches are sampled on the same timesteps, and a table takes as long as some steps of few images.
        """
        last = self._respaced
        if last is None or last.kept != tuple(kept):
            last = self._respaced = GaussianDiffusion(self.config, kept=kept)
        return last

    def posterior_mean(
        self, x0: Float[Tensor, " b *d"], x_t: Float[Tensor, " b *d"], c: Coefficients, row: Row | None = None
    ) -> Float[Tensor, " b *d"]:
        """The mean of q(x_{t-1} | x_t, x_0) (Ho et al. 2020, Eq. 7), which timesteps alone have; `row` as in `combined`."""
        if row is not None:
            return combined(row, x0, x_t)
        posterior_x0, posterior_xt = self.mean_row(c)
        return posterior_x0 * x0 + posterior_xt * x_t

    def mean_row(self, c: Coefficients) -> tuple[Any, Any]:
        """The factors of x_0 and of x_t in `posterior_mean`."""
        assert isinstance(c, StepCoefficients)
        return c.posterior_x0, c.posterior_xt

    def target(
        self, x0: Float[Tensor, " b *d"], x_t: Float[Tensor, " b *d"], noise: Float[Tensor, " b *d"], c: Coefficients
    ) -> Float[Tensor, " b *d"]:
        """What the mean half of the network's output should be."""
        match self.config.mean:
            case "epsilon":
                return noise
            case "x0":
                return x0
            case "previous_x":
                assert isinstance(c, StepCoefficients)
                return c.own_x0 * x0 + c.own_xt * x_t
            case "v":
                return c.sqrt_abar * noise - c.sqrt_noise * x0

    def split(self, output: Tensor) -> tuple[Tensor, Tensor | None]:
        """The network's output (b, 2 c, h, w) as its mean half and its variance half; None where the variance is fixed."""
        if not self.config.learns_variance:
            return output, None
        mean, variance = output.chunk(2, dim=1)
        return mean, variance

    def x0_row(self, c: Coefficients) -> tuple[float, float]:
        """The factors of x_t and of what the network predicts in `x0_from`, at a noise level whose coefficients are numbers."""
        match self.config.mean:
            case "epsilon":
                return c.sqrt_recip, -c.sigma
            case "x0":
                return 0.0, 1.0
            case "previous_x":
                assert isinstance(c, StepCoefficients)
                return -c.own_xt / c.own_x0, 1 / c.own_x0
            case "v":
                return c.sqrt_abar, -c.sqrt_noise

    def x0_from(
        self, prediction: Float[Tensor, " b *d"], x_t: Float[Tensor, " b *d"], c: Coefficients, row: Row | None = None
    ) -> Float[Tensor, " b *d"]:
        """x_0 from what the network predicts; `row`: `x0_row` of c as in `combined`."""
        if row is not None:
            return combined(row, x_t, prediction)
        match self.config.mean:
            case "epsilon":
                return c.sqrt_recip * x_t - c.sigma * prediction
            case "x0":
                return prediction
            case "previous_x":
                assert isinstance(c, StepCoefficients)
                return (prediction - c.own_xt * x_t) / c.own_x0
            case "v":
                return c.sqrt_abar * x_t - c.sqrt_noise * prediction

    def prediction_from(self, x0: Float[Tensor, " b *d"], x_t: Float[Tensor, " b *d"], c: Coefficients) -> Float[Tensor, " b *d"]:
        """What the network would predict for that x_0; the inverse of `x0_from`."""
        return self.target(x0, x_t, self.noise_from(x0, x_t, c), c)

    def moments(
        self,
        output: Tensor,
        x_t: Tensor,
        c: StepCoefficients,
        hook: ImageHook | None = None,
        *,
        x0_row: Row | None = None,
        mean_row: Row | None = None,
    ) -> Moments:
        """p(x_{t-1} | x_t), from the network's whole output at (x_t, t); `hook` changes the predicted x_0.

        The rows are those of `x0_from` and of `posterior_mean`.
        """
        prediction, logits = self.split(output)
        x0 = self.x0_from(prediction, x_t, c, x0_row)
        changed = x0 if hook is None else hook(x0)
        if self.config.mean != "previous_x":
            mean = self.posterior_mean(changed, x_t, c, mean_row)
        elif self._is_whole:
            mean = prediction
        else:
            mean = self.posterior_mean(x0, x_t, c, mean_row)
        return Moments(mean, *self._variance(logits, c), changed)

    @property
    def _is_whole(self) -> bool:
        """Whether no timestep is left out."""
        return self.steps == self.config.steps

    def _variance(self, logits: Tensor | None, c: StepCoefficients) -> tuple[Any, Any]:
        """The variance and its logarithm."""
        if logits is None:
            small = self.config.variance == "fixed_small"
            return (c.variance_small, c.log_variance_small) if small else (c.variance_large, c.log_variance_large)
        if self.config.variance == "learned" and self._is_whole:
            return logits.exp(), logits
        if self.config.variance == "learned":  # of a step of one timestep: the same share of what a longer one may have
            share = ((logits - c.own_log_small) / (c.own_log_beta - c.own_log_small)).clamp(0, 1)
        else:
            share = (logits + 1) / 2  # Nichol and Dhariwal 2021, Eq. 15, with v in [-1, 1] for an output near 0
        log_variance = share * c.log_beta + (1 - share) * c.log_variance_small
        return log_variance.exp(), log_variance
