"""What all diffusion models of images share: the loss, the bound, and the ways from noise to images.

"Diffusion Models Beat GANs on Image Synthesis", Dhariwal and Nichol 2021, https://arxiv.org/abs/2105.05233; "Improved Denoising Diffusion
Probabilistic Models", Nichol and Dhariwal 2021, https://arxiv.org/abs/2102.09672. What differs from the published programs: the noise,
timestep and dropout of a sample depend on the sample alone.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor

from triptych.core.batch import Batch, DataSpec, labels_for_model
from triptych.core.config import Config, config, settings_like
from triptych.core.errors import ConfigError
from triptych.core.model import NUM_GROUPS, Bound, LossTerms, Model, ModelConfig, Phase, Report
from triptych.core.rng import Rng
from triptych.diffusion.bounds import bound, losses
from triptych.diffusion.gaussian import Coefficients, Denoiser, GaussianConfig, GaussianDiffusion, ImageHook, times_at
from triptych.diffusion.guidance import extrapolated, in_terms_of, up_to
from triptych.diffusion.guided import Guide, check_default_guidance, dropped_labels, guides_itself
from triptych.diffusion.likelihood import FlowODEConfig, log_prob
from triptych.diffusion.networks import Network, NetworkConfig, network_for
from triptych.diffusion.path_solvers import PATH_SOLVERS, Grid, process_steps
from triptych.diffusion.paths import PATHS, PathName
from triptych.diffusion.respacing import counts_of, respaced_timesteps
from triptych.diffusion.samplers import (
    SamplerName,
    Score,
    Step,
    ancestral_steps,
    clipping,
    ddim_steps,
    without_gradients,
    x0_predictor,
    x0_rows,
)
from triptych.diffusion.solvers import LARGEST_SIGMA, SOLVERS, Spacing, num_points, points_of
from triptych.diffusion.timestep_sampling import LOSS_HISTORY, TimestepSamplerName, make_timestep_sampler
from triptych.diffusion.unet import NO_LABEL, UNetConfig
from triptych.nn.images import image_shape

Conditions = tuple[Tensor | None, ...]
"""What the network gets after x and t: the labels (b,), or None, and before them what else the model goes by."""


@config
class SamplingConfig(Config):
    """How images are drawn from the model."""

    unwritten: ClassVar = frozenset(("flow_path", "grid"))

    sampler: SamplerName = "ancestral"
    "Ancestral, or DDIM; for 10 to 30 steps unipc, dpm++2m (-sde: with noise) or heun; along a path: ode-euler, -heun, -rk4, sde-euler."
    steps: int | str | None = None
    'Steps: a number, numbers by section "a,b,c", or "ddimN"; None: as many as in training. Solvers: a number; None: 20.'
    spacing: Spacing | None = None
    "Where the steps of a solver lie: evenly in timesteps, in log-snr, or as in edm (rho = 7); None: what suits it."
    flow_path: PathName | None = None
    "Of ode-* and sde-euler: the path of flow matching that they go along; None: linear."
    grid: Grid = "uniform"
    "Of ode-* and sde-euler: steps of equal length, or at noise levels as in edm."
    eta: float = 0.0
    "Noise of DDIM, from 0 (none) to 1 (about that of ancestral sampling)."
    clip: bool = True
    "Clip the image that each step predicts (static thresholding)."
    threshold: float = 1.0
    "Clipping is to [-threshold, threshold]."
    guidance_scale: float = 1.0
    "Guidance by a classifier: factor of its gradient. By a weaker model or without labels: w in weak + w (model - weak); 1: none."
    guidance_interval: tuple[float, float] | None = None
    "Guide only where the noise level sqrt(1 / abar - 1) is above the first and at most the second number; None: everywhere."
    clip_guided: bool = False
    "With clip: clip once more after the shift by a classifier (not in ancestral sampling, which shifts the mean)."

    def validate(self) -> None:
        if not self.between_timesteps:  # solvers have a rule of their own
            counts_of(self.steps)
        self.require(0 <= self.eta <= 1, "eta", "from 0 to 1")
        self.require(self.eta == 0 or self.sampler == "ddim", "eta", f"0 with sampler {self.sampler}; ddim alone has it")
        along, solver = self.sampler in PATH_SOLVERS, self.sampler in SOLVERS
        why = "whose steps lie as grid says" if along else "which goes by steps alone"
        self.require(solver or self.spacing is None, "spacing", f"nothing with sampler {self.sampler}, {why}")
        self.require(along or self.flow_path is None, "flow_path", f"nothing with sampler {self.sampler}; ode-* and sde-euler go along one")
        self.require(along or self.grid == "uniform", "grid", f"uniform with sampler {self.sampler}; ode-* and sde-euler have it")
        self.require(0 < self.threshold <= 1e6, "threshold", "a positive number, at most 1e6")
        self.require(0 <= self.guidance_scale < math.inf, "guidance_scale", "0 or more")
        low, high = self.guidance_interval or (0.0, 1.0)
        self.require(0 <= low < high, "guidance_interval", "two noise levels, 0 or more, the smaller one first")

    @property
    def between_timesteps(self) -> bool:
        """Whether the steps of the sampler may lie between timesteps."""
        return self.sampler in SOLVERS or self.sampler in PATH_SOLVERS

    @property
    def stochastic(self) -> bool:
        """Whether the steps of the sampler add noise."""
        return self.sampler in ("ancestral", "dpm++2m-sde", "sde-euler") or self.eta > 0

    def check(self, diffusion: GaussianConfig) -> None:
        """Raises ConfigError where the sampler or the steps do not fit the diffusion."""
        self.num_steps(diffusion)
        # Between two timesteps there is no step before.
        fits = not self.between_timesteps or diffusion.mean != "previous_x"
        self.require(fits, "sampler", "ancestral or ddim with a model that predicts previous_x")

    def num_steps(self, diffusion: GaussianConfig) -> int:
        """How many steps the sampler takes. Raises ConfigError where they do not fit the diffusion."""
        if self.between_timesteps:
            return num_points(self.steps, total=diffusion.steps)
        return len(respaced_timesteps(self.steps, total=diffusion.steps))


@config
class DiffusionConfig(ModelConfig):
    """A diffusion model of images."""

    changeable: ClassVar = frozenset(("sampling",))
    guidable: ClassVar[bool] = True
    "Whether another model may guide its models when they sample."

    network: NetworkConfig = dataclasses.field(default_factory=UNetConfig)
    "The U-Net, or a transformer over patches (kind dit)."
    diffusion: GaussianConfig = dataclasses.field(default_factory=GaussianConfig)
    "The diffusion and the loss."
    timestep_sampler: TimestepSamplerName = "uniform"
    "Timesteps in training: all alike, or those with larger losses more often (for the kl losses)."
    class_conditional: bool = False
    "Learn the images given their class."
    label_dropout: float = 0.0
    "Probability that a training image goes without its label, which classifier-free guidance needs (0.1 is usual)."
    sampling: SamplingConfig = dataclasses.field(default_factory=SamplingConfig)
    "Default settings of `triptych sample`, and those of the grids during training."

    def validate(self) -> None:
        self.require(0 <= self.label_dropout < 1, "label_dropout", "from 0 to below 1")
        self.require(self.label_dropout == 0 or self.class_conditional, "label_dropout", "0 where class_conditional is false")
        try:
            self.sampling.check(self.diffusion)
            check_default_guidance(self.sampling, label_dropout=self.label_dropout, guidable=self.guidable)
        except ConfigError as error:
            raise error.inside("sampling") from None

    def shrunk(self) -> Self:
        return dataclasses.replace(self, network=self.network.shrunk(), sampling=dataclasses.replace(self.sampling, steps="4"))


class DiffusionModel(Model):
    """The model of a DiffusionConfig; `network` is its U-Net or transformer, `diffusion` its process."""

    phases = (Phase("denoise", ("network",)),)
    gathers = "blocks"
    averaged = ("network",)
    validated = ("denoise",)
    of_training = LOSS_HISTORY
    likelihood = FlowODEConfig()

    def __init__(self, config: DiffusionConfig, spec: DataSpec) -> None:
        super().__init__()
        self.config, self.sampling = config, config.sampling
        self.image_shape, self.bounded = image_shape(spec), spec.bounded
        self.num_classes = spec.num_labels(class_conditional=config.class_conditional)
        self.diffusion = GaussianDiffusion(config.diffusion)
        self.network = self.network_for(spec, out_channels=spec.channels * (2 if config.diffusion.learns_variance else 1))
        self.timesteps = make_timestep_sampler(config.timestep_sampler, config.diffusion.steps)

    def network_for(self, spec: DataSpec, *, out_channels: int) -> Network:
        """The network, called with x, t, the conditions and an rng. Raises ConfigError where it cannot take images of `spec`."""
        return network_for(spec, self.config.network, num_classes=self.num_classes, out_channels=out_channels)

    @property
    def noise(self) -> GaussianConfig:
        """The timesteps that it was trained on."""
        return self.config.diffusion

    @abstractmethod
    def conditions(self, batch: Batch) -> Conditions:
        """What the network is told of the images of a batch of the data."""

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        """The denoising loss of each sample at a timestep of its own; in evaluation mode at uniform timesteps and without dropout."""
        t, weight = self.timesteps.draw(rng)
        x0, noise = batch.images, rng.normal("noise", *self.image_shape)
        c = self.diffusion.at(t)
        x_t = self.diffusion.noised(x0, noise, c)
        output = self.network(x_t, c.times(x_t), *self._told(self.conditions(batch), rng), rng)
        terms = losses(self.diffusion, output, x0=x0, x_t=x_t, noise=noise, t=t)
        return LossTerms(
            loss=weight * terms["loss"],
            logged={name: weight * term.detach() for name, term in terms.items()},
            group=NUM_GROUPS * t // self.diffusion.steps,
            observed=self.timesteps.observed(t, terms["loss"]),
        )

    def _told(self, conditions: Conditions, rng: Rng) -> Conditions:
        """The conditions of a training step: without some of the labels, where the model learns to go without."""
        if not self.training:
            return conditions
        return (*conditions[:-1], dropped_labels(conditions[-1], rng, probability=self.config.label_dropout))

    def observe(self, phase: Phase, terms: Mapping[str, Tensor]) -> None:
        """Records the losses (b,) for loss-aware timestep sampling."""
        self.timesteps.observe(terms)

    def bound(self, batch: Batch, rng: Rng, *, steps: int | str | None = None, clip: bool = True) -> Bound:
        """The variational bound of the batch's images on the timesteps `steps` (see SamplingConfig), in bits per dimension."""
        return bound(
            self.diffusion.respaced(respaced_timesteps(steps, total=self.diffusion.steps)),
            self.denoiser(self.conditions(batch)),
            batch.images,
            noise=lambda i: rng.normal(f"step/{i}", *self.image_shape),
            hook=clipping(1.0 if clip else None),
        )

    def log_prob(self, batch: Batch, rng: Rng, *, settings: Config | None = None) -> Tensor:
        """log P of each 8-bit image of the batch by the probability-flow ODE, in nats: (b,) in float64 (see core.model.Likelihood).

        `settings` is a FlowODEConfig. Raises ConfigError where the network predicts previous_x, which has no meaning between timesteps.
        """
        settings = settings_like(self.likelihood, settings)
        if self.config.diffusion.mean == "previous_x":
            raise ConfigError("likelihood", "got ode, but this model predicts previous_x, which has no flow between timesteps; use bound")
        predict = x0_predictor(self.diffusion, self.denoiser(self.conditions(batch)))
        return log_prob(predict, self.diffusion.levels, batch.images, rng, settings=settings)

    def denoiser(self, conditions: Conditions, *, times: Mapping[Coefficients, Tensor] | None = None) -> Denoiser:
        """The network, told `conditions`; `times`: `times_at` points where it will be asked."""
        known = {} if times is None else times

        def denoise(x: Tensor, c: Coefficients) -> Tensor:
            t = known.get(c)
            return self.network(x, c.times(x) if t is None else t, *conditions)

        return denoise

    def trajectory(
        self, rng: Rng, conditions: Conditions, settings: Config, *, guide: Guide | None = None, hook: ImageHook | None = None
    ) -> Iterator[Step]:
        """Every step from noise to one image for each index of `rng`, without gradients.

        `settings` is a SamplingConfig; `hook` changes the x_0 that each step predicts, before it is clipped. The model must be in
        evaluation mode. Raises ConfigError for a sampler or steps that do not fit, and for guidance that there is nothing for.
        """
        settings = settings_like(self.config.sampling, settings)
        settings.check(self.config.diffusion)
        process, points = self._points(settings)
        times = times_at(points, rng)
        denoise, score = self.denoiser(conditions, times=times), None if guide is None else guide.score
        weak = self._weaker(conditions, times, guide, settings)
        if weak is not None:
            denoise = extrapolated(self.diffusion, denoise, weak, scale=settings.guidance_scale, interval=settings.guidance_interval)
        return self._steps(process, points, denoise, score, rng, settings, hook)

    def _points(self, settings: SamplingConfig) -> tuple[GaussianDiffusion, Sequence[Coefficients]]:
        """The process that the sampler follows, and where it asks the network; none where a path says that."""
        if not settings.between_timesteps:
            process = self.diffusion.respaced(respaced_timesteps(settings.steps, total=self.diffusion.steps))
            return process, process.points
        if settings.sampler in PATH_SOLVERS:
            return self.diffusion, ()
        spacing = settings.spacing or SOLVERS[settings.sampler].spacing
        return self.diffusion, points_of(self.diffusion, steps=settings.num_steps(self.config.diffusion), spacing=spacing)

    def _weaker(
        self, conditions: Conditions, times: Mapping[Coefficients, Tensor], guide: Guide | None, settings: SamplingConfig
    ) -> Denoiser | None:
        """What guides by the difference to it: the guide's model, or without a guide the network itself, told no label."""
        if guide is not None:
            return None if guide.weak is None else in_terms_of(self.diffusion, guide.weak)
        if not guides_itself(self, settings, label_dropout=self.config.label_dropout):
            return None
        labels = conditions[-1]
        assert labels is not None, "a model with label dropout is conditional"
        alone = self.denoiser((*conditions[:-1], torch.full_like(labels, NO_LABEL)), times=times)
        return lambda x, c: self.diffusion.split(alone(x, c))[0]

    def last_image(self, steps: Iterator[Step], settings: Config, report: Report | None) -> Tensor:
        """The images (b, c, h, w) at the end of a trajectory with these settings; `report` is told of its steps."""
        assert isinstance(settings, SamplingConfig)  # or there would be no trajectory
        return last_sample(steps, count=settings.num_steps(self.config.diffusion), report=report, bounded=self.bounded)

    def _steps(
        self,
        process: GaussianDiffusion,
        points: Sequence[Coefficients],
        denoise: Denoiser,
        score: Score | None,
        rng: Rng,
        settings: SamplingConfig,
        hook: ImageHook | None,
    ) -> Iterator[Step]:
        denoise, hook = without_gradients(denoise), clipping(settings.threshold if settings.clip else None, hook)
        steps = settings.num_steps(self.config.diffusion)
        draw = rng.normals(["initial", *(f"step/{i}" for i in range(steps if settings.stochastic else 0))], *self.image_shape)
        x, noise = draw(0), lambda i: draw(i + 1)
        if settings.sampler == "ancestral":
            yield from ancestral_steps(process, denoise, x, noise=noise, hook=hook, score=score)
            return
        # Where it clips, DDIM is the published program's, which asks the classifier at every timestep.
        if score is not None and (settings.between_timesteps or not settings.clip):
            # Above it no class can be seen, and what a network says of it all the same would move x_0 by sigma times as much.
            score = up_to(score, LARGEST_SIGMA)
        rows = x0_rows(process, points, x)
        predict = x0_predictor(process, denoise, rows=rows, hook=hook, score=score, hook_again=settings.clip_guided)
        if settings.sampler == "ddim":
            yield from ddim_steps(process, predict, x, noise=noise, eta=settings.eta)
        elif settings.sampler in PATH_SOLVERS:
            path = PATHS[settings.flow_path or "linear"]
            yield from process_steps(process, predict, x, path=path, steps=steps, solver=settings.sampler, grid=settings.grid, noise=noise)
        else:
            yield from SOLVERS[settings.sampler].steps(predict, x, points=points, noise=noise)

    def checked_labels(self, labels: Tensor | None, count: int) -> Tensor | None:
        """The labels (b,); raises ConfigError unless they fit the model."""
        return labels_for_model(labels, count, num_classes=self.num_classes)


@torch.no_grad()
def last_sample(steps: Iterator[Step], *, count: int, report: Report | None = None, bounded: bool = True) -> Tensor:
    """The images (b, c, h, w) at the end of a trajectory of `count` steps, within [-1, 1] if `bounded`; `report` is told of each."""
    image = None
    for done, step in enumerate(steps, start=1):
        image = step.sample
        if report is not None:
            report(done, count)
    assert image is not None, "a process has at least one step"
    return image.clamp(-1, 1) if bounded else image
