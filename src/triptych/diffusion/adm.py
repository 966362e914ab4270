"""ADM: a diffusion model of images, conditional on their class or not.

"Diffusion Models Beat GANs on Image Synthesis", Dhariwal and Nichol 2021, https://arxiv.org/abs/2105.05233; with other settings the
models of "Improved Denoising Diffusion Probabilistic Models", Nichol and Dhariwal 2021, https://arxiv.org/abs/2102.09672.
What differs from the published programs: the noise, timestep and dropout of a sample depend on the sample alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from triptych.core.batch import Batch, DataSpec
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.core.model import NUM_GROUPS, LossTerms, Model, ModelConfig, Phase
from triptych.core.rng import Rng
from triptych.diffusion.bounds import Bound, bound, losses
from triptych.diffusion.gaussian import GaussianConfig, GaussianDiffusion, ImageHook
from triptych.diffusion.respacing import respaced_timesteps
from triptych.diffusion.samplers import Denoiser, SamplerName, Step, clipping, sample_steps
from triptych.diffusion.timestep_sampling import LossSecondMoment, UniformTimesteps
from triptych.diffusion.unet import UNet, UNetConfig


@config
class SamplingConfig(Config):
    """How images are drawn from the model."""

    sampler: SamplerName = "ancestral"
    "Ancestral sampling (Ho et al. 2020), or DDIM (Song et al. 2021), better at few steps."
    steps: int | str | None = None
    'Steps: a number, numbers by section "a,b,c", or "ddimN"; None: as many as in training.'
    eta: float = 0.0
    "Noise of DDIM, from 0 (none) to 1 (about that of ancestral sampling)."
    clip: bool = True
    "Clip the image that each step predicts (static thresholding)."
    threshold: float = 1.0
    "Clipping is to [-threshold, threshold]."

    def __post_init__(self) -> None:
        self.require(0 <= self.eta <= 1, "eta", "from 0 to 1")
        self.require(self.threshold > 0, "threshold", "a positive number")


@config
class ADMConfig(ModelConfig):
    """A diffusion model of images."""

    changeable: ClassVar = frozenset(("sampling",))

    network: UNetConfig = dataclasses.field(default_factory=UNetConfig)
    "The U-Net."
    diffusion: GaussianConfig = dataclasses.field(default_factory=GaussianConfig)
    "The diffusion and the loss."
    timestep_sampler: Literal["uniform", "loss-second-moment"] = "uniform"
    "Timesteps in training: all alike, or those with larger losses more often (for the kl losses)."
    class_conditional: bool = False
    "Learn the images given their class."
    sampling: SamplingConfig = dataclasses.field(default_factory=SamplingConfig)
    "Default settings of `triptych sample`, and those of the grids during training."

    def __post_init__(self) -> None:
        try:
            respaced_timesteps(self.sampling.steps, total=self.diffusion.steps)
        except ConfigError as error:
            raise error.inside("sampling") from None

    def build(self, spec: DataSpec) -> ADM:
        """The model for the images of `spec`; raises ConfigError when they are unlabelled, or of a size that the network cannot take."""
        if self.class_conditional and spec.num_classes is None:
            raise ConfigError("class_conditional", "got true, but the data has no labels; set it to false, or give labelled data")
        return ADM(self, spec)


class ADM(Model):
    """The model of an ADMConfig; `network` is its U-Net, `diffusion` its process."""

    phases = (Phase("denoise", ("network",)),)
    averaged = ("network",)
    validated = ("denoise",)

    def __init__(self, config: ADMConfig, spec: DataSpec) -> None:
        super().__init__()
        self.config, self.sampling = config, config.sampling
        self.image_shape = (spec.channels, spec.image_size, spec.image_size)
        self.num_classes = spec.num_classes if config.class_conditional else None
        self.diffusion = GaussianDiffusion(config.diffusion)
        out_channels = spec.channels * (2 if config.diffusion.learns_variance else 1)
        try:
            self.network = UNet(
                config.network,
                image_size=spec.image_size,
                in_channels=spec.channels,
                out_channels=out_channels,
                num_classes=self.num_classes,
            )
        except ConfigError as error:
            raise error.inside("network") from None
        loss_aware = config.timestep_sampler == "loss-second-moment"
        self.timesteps = LossSecondMoment(config.diffusion.steps) if loss_aware else UniformTimesteps(config.diffusion.steps)

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        """The denoising loss of each sample at a timestep of its own; in evaluation mode at uniform timesteps and without dropout."""
        sampler = self.timesteps if self.training else UniformTimesteps(self.diffusion.steps)
        t, weight = sampler.draw(rng)
        x0, noise = batch.images, rng.normal("noise", *self.image_shape)
        x_t = self.diffusion.noised(x0, noise, self.diffusion.at(t))
        output = self.network(x_t, self.diffusion.network_times(t), self._labels_of(batch), rng)
        terms = losses(self.diffusion, output, x0=x0, x_t=x_t, noise=noise, t=t)
        observed = {"t": t, "loss": terms["loss"].detach()} if isinstance(sampler, LossSecondMoment) else {}
        return LossTerms(
            loss=weight * terms["loss"],
            logged={name: weight * term.detach() for name, term in terms.items()},
            group=NUM_GROUPS * t // self.diffusion.steps,
            observed=observed,
        )

    def observe(self, phase: Phase, terms: Mapping[str, Tensor]) -> None:
        """Records the losses for loss-aware timestep sampling."""
        if isinstance(self.timesteps, LossSecondMoment) and terms:
            self.timesteps.record(terms["t"], terms["loss"])

    def sample(self, rng: Rng, *, labels: Tensor | None, settings: Config) -> Tensor:
        """One image for each index of `rng`: (b, c, h, w) in [-1, 1].

        `labels` (b,) are given exactly when the model is conditional; `settings` is a SamplingConfig. The model must be in
        evaluation mode. Raises ConfigError for labels or steps that do not fit.
        """
        image = None
        for step in self.sample_progressive(rng, labels=labels, settings=settings):
            image = step.sample
        assert image is not None, "a process has at least one step"
        return image.clamp(-1, 1)

    def sample_progressive(
        self, rng: Rng, *, labels: Tensor | None = None, settings: Config | None = None, hook: ImageHook | None = None
    ) -> Iterator[Step]:
        """Every step of `sample`, from noise to images; `hook` changes the x_0 that each predicts, before it is clipped."""
        settings = self.sampling if settings is None else settings
        if not isinstance(settings, SamplingConfig):
            raise TypeError(f"{type(settings).__name__} are not the settings of a diffusion sampler")
        denoise = self._denoiser(self._checked(labels, len(rng)))
        process = self.diffusion.respaced(respaced_timesteps(settings.steps, total=self.diffusion.steps))
        return self._steps(process, denoise, rng, settings, clipping(settings.threshold if settings.clip else None, hook))

    @torch.no_grad()
    def _steps(
        self, process: GaussianDiffusion, denoise: Denoiser, rng: Rng, settings: SamplingConfig, hook: ImageHook | None
    ) -> Iterator[Step]:
        x = rng.normal("initial", *self.image_shape)
        yield from sample_steps(
            process,
            denoise,
            x,
            sampler=settings.sampler,
            noise=lambda i: rng.normal(f"step/{i}", *self.image_shape),
            eta=settings.eta,
            hook=hook,
        )

    def bound(self, batch: Batch, rng: Rng, *, steps: int | str | None = None, clip: bool = True) -> Bound:
        """The variational bound of the batch's images on the timesteps `steps` (see SamplingConfig), in bits per dimension."""
        process = self.diffusion.respaced(respaced_timesteps(steps, total=self.diffusion.steps))
        return bound(
            process,
            self._denoiser(self._labels_of(batch)),
            batch.images,
            noise=lambda i: rng.normal(f"step/{i}", *self.image_shape),
            hook=clipping(1.0 if clip else None),
        )

    def _denoiser(self, labels: Tensor | None) -> Denoiser:
        return lambda x, t: self.network(x, t, labels)

    def _labels_of(self, batch: Batch) -> Tensor | None:
        return None if self.num_classes is None else batch.labels

    def _checked(self, labels: Tensor | None, count: int) -> Tensor | None:
        """The labels; raises ConfigError unless they fit the model."""
        if self.num_classes is None:
            if labels is not None:
                raise ConfigError("labels", "this model was trained without labels; leave them out")
            return None
        if labels is None:
            raise ConfigError("labels", f"this model needs labels, from 0 to {self.num_classes - 1}")
        if labels.shape != (count,):
            raise ConfigError("labels", f"got {labels.numel()} for {count} images")
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < self.num_classes:
            wrong = next(label for label in labels.tolist() if not 0 <= label < self.num_classes)
            raise ConfigError("labels", f"got {wrong}, expected 0 to {self.num_classes - 1}")
        return labels.long()
