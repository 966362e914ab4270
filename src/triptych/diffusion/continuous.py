"""What the diffusion models of any noise level share: from noise to images and back, guidance, and how probable an image is.

"Elucidating the Design Space of Diffusion-Based Generative Models", Karras et al. 2022, https://arxiv.org/abs/2206.00364. A model says
D(x; sigma), the image that it expects behind x = x_0 + sigma n. The samplers of the family go by x_t = x / sqrt(1 + sigma^2), so that
they serve these models and those of timesteps alike; that is a change of variables, and their paths are the same.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from triptych.core.batch import Batch, DataSpec, labels_for_model
from triptych.core.config import Config, config, settings_like
from triptych.core.errors import ConfigError
from triptych.core.model import ModelConfig, Phase, Report
from triptych.core.rng import Rng
from triptych.diffusion.gaussian import Coefficients, ImageHook, Levels, NoiseConfig, NoiseProcess
from triptych.diffusion.guidable import GuidableSampler
from triptych.diffusion.guidance import extrapolated_image, up_to
from triptych.diffusion.guided import Guide, check_default_guidance, dropped_labels, guides_itself
from triptych.diffusion.likelihood import FlowODEConfig, log_prob
from triptych.diffusion.model import last_sample
from triptych.diffusion.ode import runge_kutta_4
from triptych.diffusion.path_solvers import PATH_SOLVERS, Grid, flow_steps, times_of
from triptych.diffusion.paths import PATHS, Path, PathName
from triptych.diffusion.samplers import Predictor, Step, clipping, steered, without_gradients
from triptych.diffusion.solvers import LARGEST_SIGMA, RHO, SOLVERS, Churn, euler, heun, noise_levels
from triptych.diffusion.unet import NO_LABEL
from triptych.nn.images import image_shape

LevelSamplerName = Literal["heun", "euler", "dpm++2m", "dpm++2m-sde", "unipc", "ode-euler", "ode-heun", "ode-rk4", "sde-euler"]
"""Those of `SOLVERS`, and those along a path of flow matching (path_solvers.py)."""


@config
class LevelSamplingConfig(Config):
    """How images are drawn from a model of any noise level."""

    sampler: LevelSamplerName = "heun"
    "Heun's method (Karras et al. 2022), Euler's, dpm++2m (-sde: with noise), unipc; along a path: ode-euler, -heun, -rk4, sde-euler."
    steps: int = 18
    "Noise levels. heun calls the network twice for each but the last, ode-heun twice, ode-rk4 four times, the others once."
    sigma_min: float = 0.002
    "The least noise level, the last one but 0."
    sigma_max: float = 80.0
    "The first noise level."
    rho: float = RHO
    "The levels lie evenly in sigma^(1 / rho): the larger rho, the more of them at little noise."
    churn: float = 0.0
    "S_churn of the stochastic sampler: noise that is added over all steps, and removed by them; 0: none."
    churn_min: float = 0.0
    "S_min: noise is added at levels from here"
    churn_max: float | None = None
    "S_max: to here; None: to the first."
    churn_noise: float = 1.0
    "S_noise: deviation of the noise that is added."
    flow_path: PathName | None = None
    "Of ode-* and sde-euler: the path of flow matching that they go along; None: the model's own, or linear."
    grid: Grid = "uniform"
    "Of ode-* and sde-euler: steps of equal length, or at noise levels as the others have."
    clip: bool = False
    "Clip the image that each step predicts to [-1, 1]."
    guidance_scale: float = 1.0
    "Guidance by a classifier: factor of its gradient. By a weaker model or without labels: w in weak + w (model - weak); 1: none."
    guidance_interval: tuple[float, float] | None = None
    "Guide only where the noise level is above the first and at most the second number; None: everywhere."

    def validate(self) -> None:
        self.require(1 <= self.steps <= 1_000_000, "steps", "1 to 1,000,000")
        # Heun's steps divide by it in float32.
        self.require(1e-30 <= self.sigma_min < self.sigma_max, "sigma_min", "at least 1e-30, and below sigma_max")
        self.require(self.sigma_max <= 1e6, "sigma_max", "at most 1e6")
        # So that sigma_max^(1 / rho) is finite, and no level is like another.
        self.require(0.02 <= self.rho <= 1e6, "rho", "0.02 to 1,000,000")
        self.require(0 <= self.churn < math.inf, "churn", "0 or more")
        self.require(
            self.churn == 0 or self.sampler in ("heun", "euler"), "churn", f"0 with sampler {self.sampler}; heun and euler have it"
        )
        self.require(0 <= self.churn_min <= self.highest_churned, "churn_min", "0 or more, and at most churn_max")
        self.require(0 < self.churn_noise < math.inf, "churn_noise", "a positive number")
        along = self.sampler in PATH_SOLVERS
        self.require(along or self.flow_path is None, "flow_path", f"nothing with sampler {self.sampler}; ode-* and sde-euler go along one")
        self.require(along or self.grid == "uniform", "grid", f"uniform with sampler {self.sampler}, whose steps lie at noise levels")
        self.require(0 <= self.guidance_scale < math.inf, "guidance_scale", "0 or more")
        low, high = self.guidance_interval or (0.0, 1.0)
        self.require(0 <= low < high, "guidance_interval", "two noise levels, 0 or more, the smaller one first")

    @property
    def highest_churned(self) -> float:
        """The largest noise level at which noise is added."""
        return math.inf if self.churn_max is None else self.churn_max

    def shrunk(self) -> Self:
        """Few steps, for tests."""
        return replace(self, steps=min(self.steps, 4))

    def points(self) -> list[Coefficients]:
        """The coefficients of the noise levels, from the first to the last."""
        if self.steps == 1:
            return [level(self.sigma_max)]
        between = noise_levels(self.sigma_max, self.sigma_min, steps=self.steps, spacing="edm", rho=self.rho)[1:-1]
        return [level(sigma) for sigma in (self.sigma_max, *between, self.sigma_min)]


def level(sigma: float) -> Coefficients:
    """The coefficients of a noise level, for a model that goes by `sigma` alone."""
    return Coefficients.of_sigma(sigma, time=sigma)


@config
class ContinuousConfig(ModelConfig):
    """A diffusion model of images, of any noise level."""

    changeable: ClassVar = frozenset(("sampling",))

    class_conditional: bool = False
    "Learn the images given their class."
    label_dropout: float = 0.0
    "Probability that a training image goes without its label, which classifier-free guidance needs (0.1 is usual)."
    sampling: LevelSamplingConfig = LevelSamplingConfig()
    "Default settings of `triptych sample`, and those of the grids during training."

    def validate(self) -> None:
        self.require(0 <= self.label_dropout < 1, "label_dropout", "from 0 to below 1")
        self.require(self.label_dropout == 0 or self.class_conditional, "label_dropout", "0 where class_conditional is false")
        try:
            check_default_guidance(self.sampling, label_dropout=self.label_dropout)
        except ConfigError as error:
            raise error.inside("sampling") from None


@config
class FlowEncodingConfig(Config):
    """How images become noise along the probability-flow ODE, and how they come back."""

    both_ways: ClassVar = True

    steps: int = 50
    "Steps each way of the Runge-Kutta method of order 4, of equal length in the log of the noise level; four network calls each."

    def validate(self) -> None:
        self.require(self.steps >= 1, "steps", "at least 1")


class ContinuousModel(GuidableSampler):
    """A model of a ContinuousConfig. A subclass gives `network`, `predictor` and `loss`."""

    phases = (Phase("denoise", ("network",)),)
    gathers = "blocks"
    averaged = ("network",)
    validated = ("denoise",)
    likelihood = FlowODEConfig()
    encoding = FlowEncodingConfig()
    sampling: LevelSamplingConfig
    noise: NoiseConfig | None = None  # every noise level
    path: Path = PATHS["linear"]
    "Of flow matching, that samples go along with the samplers that go along one."

    def __init__(self, config: ContinuousConfig, spec: DataSpec) -> None:
        super().__init__()
        self.config, self.sampling = config, config.sampling
        self.image_shape = image_shape(spec)
        self.num_classes = spec.num_labels(class_conditional=config.class_conditional)
        self.bounded = spec.bounded

    # Training -----------------------------------------------------------------------------------------------------------

    def labels_of(self, batch: Batch) -> Tensor | None:
        """The labels of a batch where the model is conditional, else None; in training without those that are dropped (see `told`)."""
        return None if self.num_classes is None else batch.labels

    def told(self, batch: Batch, rng: Rng) -> Tensor | None:
        """The labels (b,) that a training step tells: without some, where the model learns to go without."""
        return dropped_labels(self.labels_of(batch), rng, probability=self.config.label_dropout if self.training else 0.0)

    # Samples ------------------------------------------------------------------------------------------------------------

    @abstractmethod
    def predictor(self, labels: Tensor | None) -> Predictor:
        """The x_0 that the model predicts at levels that are numbers, without guidance and clipping.

        `labels` (b,): exactly when the model is conditional, NO_LABEL for a sample without one.
        """

    @property
    def largest_sigma(self) -> float:
        """The noise level at which it is asked where a model that it guides has more."""
        return max(LARGEST_SIGMA, self.sampling.sigma_max)

    @property
    def levels(self) -> Levels:
        """The noise levels from which and to which images go by the probability-flow ODE."""
        return Levels(self.sampling.sigma_min, self.sampling.sigma_max, level)

    def seen_by(self, c: Coefficients, noise: NoiseConfig | None) -> Coefficients:
        """A noise level, a number, as a network of `noise` sees it: at its nearest timesteps, and between them."""
        if noise is None:
            return c
        process = NoiseProcess(noise)
        return replace(c, time=process.at_time(process.time_of(c.sigma)).time)

    def sample_progressive(
        self,
        rng: Rng,
        *,
        labels: Tensor | None = None,
        settings: Config | None = None,
        guide: Guide | None = None,
        hook: ImageHook | None = None,
    ) -> Iterator[Step]:
        """Every step of `sample`; `settings` is a LevelSamplingConfig."""
        settings = settings_like(self.sampling, settings)
        labels = labels_for_model(labels, len(rng), num_classes=self.num_classes)
        strong, weak = self.predictor(labels), self._weaker(labels, guide, settings)
        if weak is not None:
            strong = extrapolated_image(strong, weak, scale=settings.guidance_scale, interval=settings.guidance_interval)
        hook = clipping(1.0 if settings.clip else None, hook)
        score = None if guide is None or guide.score is None else up_to(guide.score, LARGEST_SIGMA)
        predict = without_gradients(steered(strong, hook=hook, score=score))
        points = settings.points()
        x = points[0].sqrt_noise * rng.normal("initial", *self.image_shape)
        return self.solve(predict, x, points, rng, settings)

    def solve(self, predict: Predictor, x: Tensor, points: list[Coefficients], rng: Rng, settings: LevelSamplingConfig) -> Iterator[Step]:
        """The steps of the sampler of the settings through these noise levels, from x at the first of them."""
        noise = rng.normals([f"step/{i}" for i in range(settings.steps)], *self.image_shape)
        if settings.sampler in PATH_SOLVERS:
            return self._along_a_path(predict, x / points[0].sqrt_noise, settings, noise)
        steps = SOLVERS[settings.sampler].steps
        if settings.sampler in ("heun", "euler"):
            churn = Churn(level, settings.churn, settings.churn_min, settings.highest_churned, settings.churn_noise)
            steps = partial(heun, churn=churn, euler_above=math.inf) if settings.sampler == "heun" else partial(euler, churn=churn)
        return steps(predict, x, points=points, noise=noise)

    def _along_a_path(
        self, predict: Predictor, normal: Tensor, settings: LevelSamplingConfig, noise: Callable[[int], Tensor]
    ) -> Iterator[Step]:
        path = self.path if settings.flow_path is None else PATHS[settings.flow_path]
        sigmas = settings.sigma_max, settings.sigma_min
        ends = self.ends_of(path) or path.between(*sigmas)
        assert settings.sampler in PATH_SOLVERS
        times = times_of(
            path, steps=settings.steps, solver=settings.sampler, grid=settings.grid, ends=ends, sigmas=sigmas, rho=settings.rho
        )
        x = normal * path.at_number(times[0]).norm
        return flow_steps(predict, x, path=path, times=times, at=path.coefficients, solver=settings.sampler, noise=noise)

    def ends_of(self, path: Path) -> tuple[float, float] | None:
        """The times from which and to which the model can be sampled along a path; None: those of the noise levels of the settings."""
        return None

    def _weaker(self, labels: Tensor | None, guide: Guide | None, settings: LevelSamplingConfig) -> Predictor | None:
        """What guides by the difference to it: the guide's model, or without a guide the model itself, told no label."""
        if guide is not None:
            return guide.weak
        if not guides_itself(self, settings, label_dropout=self.config.label_dropout):
            return None
        assert labels is not None, "a model with label dropout is conditional"
        return self.predictor(torch.full_like(labels, NO_LABEL))

    def last_image(self, steps: Iterator[Step], settings: Config, report: Report | None) -> Tensor:
        """The images (b, c, h, w) at the end of a trajectory with these settings; `report` is told of its steps."""
        return last_sample(steps, count=settings_like(self.sampling, settings).steps, report=report, bounded=self.bounded)

    # Along the probability-flow ODE -------------------------------------------------------------------------------------

    def log_prob(self, batch: Batch, rng: Rng, *, settings: Config | None = None) -> Tensor:
        """log P of each 8-bit image of the batch by the probability-flow ODE, in nats: (b,) in float64 (see core.model.Likelihood).

        `settings` is a FlowODEConfig.
        """
        settings = settings_like(self.likelihood, settings)
        return log_prob(self.predictor(self.labels_of(batch)), self.levels, batch.images, rng, settings=settings)

    @torch.no_grad()
    def encode(
        self, images: Tensor, *, labels: Tensor | None, rng: Rng, settings: Config | None = None, report: Report | None = None
    ) -> list[Tensor]:
        """The noise (b, c, h, w), alone in a list, from which `decode` makes the images (b, c, h, w) in [-1, 1] again.

        The images are taken as those at the least noise level; nothing is drawn. `settings` is a FlowEncodingConfig. Raises ConfigError
        for labels that do not fit.
        """
        start, end = (self.levels.at(sigma) for sigma in (self.levels.low, self.levels.high))
        x = self._flowed(images * start.sqrt_abar, labels, settings, there=True, report=report)
        return [x / end.sqrt_noise]

    @torch.no_grad()
    def decode(self, latents: list[Tensor], *, labels: Tensor | None, settings: Config | None = None) -> Tensor:
        """The images (b, c, h, w) in [-1, 1] of noise; the way back of `encode`. Takes and raises what it does."""
        noise = self.noise_in(latents)
        start, end = (self.levels.at(sigma) for sigma in (self.levels.low, self.levels.high))
        x = self._flowed(noise * end.sqrt_noise, labels, settings, there=False)
        return (x / start.sqrt_abar).clamp(-1, 1) if self.bounded else x / start.sqrt_abar

    def _flowed(self, x: Tensor, labels: Tensor | None, settings: Config | None, *, there: bool, report: Report | None = None) -> Tensor:
        """x_t taken from the least noise to the most, or back: d x_t / d log sigma = abar x_t - sqrt(abar) x_0(x_t)."""
        count = settings_like(self.encoding, settings).steps
        predict = self.predictor(labels_for_model(labels, len(x), num_classes=self.num_classes))

        def slope(state: tuple[Tensor, ...], log_sigma: float) -> tuple[Tensor, ...]:
            c, (x,) = self.levels.at(math.exp(log_sigma)), state
            return (c.abar * x - c.sqrt_abar * predict(x, c),)

        low, high = math.log(self.levels.low), math.log(self.levels.high)
        grid = [low + (high - low) * k / count for k in range(count + 1)]
        for done, (here, next_one) in enumerate(pairwise(grid if there else reversed(grid)), start=1):
            (x,) = runge_kutta_4(slope, (x,), here, next_one)
            if report is not None:
                report(done, count)
        return x
