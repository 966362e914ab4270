"""ADM: a diffusion model of images, conditional on their class or not.

"Diffusion Models Beat GANs on Image Synthesis", Dhariwal and Nichol 2021, https://arxiv.org/abs/2105.05233; with other settings the
models of "Improved Denoising Diffusion Probabilistic Models", Nichol and Dhariwal 2021, https://arxiv.org/abs/2102.09672.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from triptych.core.batch import Batch, DataSpec
from triptych.core.config import Config, config, settings_like
from triptych.core.model import Report
from triptych.core.rng import Rng
from triptych.diffusion.gaussian import Coefficients, GaussianDiffusion, ImageHook, NoiseConfig
from triptych.diffusion.guidable import GuidableSampler
from triptych.diffusion.guidance import retimed
from triptych.diffusion.guided import Guide
from triptych.diffusion.model import Conditions, DiffusionConfig, DiffusionModel, last_sample
from triptych.diffusion.respacing import counts_of, respaced_timesteps
from triptych.diffusion.samplers import Predictor, Step, ddim_reverse_step, ddim_steps, x0_predictor, x0_rows

_ENCODING_STEPS = 250  # a digit comes back from them with a mean error of 0.5 levels of 255; from 50 of 1.9


@config
class ADMConfig(DiffusionConfig):
    """A diffusion model of images, by class or not."""

    kind_name: ClassVar = "adm"

    def build(self, spec: DataSpec) -> ADM:
        """The model for the images of `spec`; raises ConfigError when they are unlabelled, or of a size that the network cannot take."""
        return ADM(self, spec)


@config
class EncodingConfig(Config):
    """How images become noise by DDIM, and how they come back."""

    both_ways: ClassVar = True

    steps: int | str | None = None
    'Steps each way: a number, numbers by section "a,b,c", or "ddimN"; None: 250, or all of fewer.'

    def validate(self) -> None:
        counts = counts_of(self.steps)
        self.require(sum(counts) != 1, "steps", "2 or more: one is the first timestep alone, from which no way leads to noise")


class ADM(DiffusionModel, GuidableSampler):
    """The model of an ADMConfig."""

    encoding = EncodingConfig()

    def conditions(self, batch: Batch) -> Conditions:
        """The labels, where the model is conditional."""
        return (None if self.num_classes is None else batch.labels,)

    def sample_progressive(
        self,
        rng: Rng,
        *,
        labels: Tensor | None = None,
        settings: Config | None = None,
        guide: Guide | None = None,
        hook: ImageHook | None = None,
    ) -> Iterator[Step]:
        """Every step of `sample`; `settings` is a SamplingConfig."""
        conditions = (self.checked_labels(labels, len(rng)),)
        return self.trajectory(rng, conditions, self.sampling if settings is None else settings, guide=guide, hook=hook)

    @torch.no_grad()
    def encode(
        self, images: Tensor, *, labels: Tensor | None, rng: Rng, settings: Config | None = None, report: Report | None = None
    ) -> list[Tensor]:
        """The noise (b, c, h, w), alone in a list, from which `decode` makes the images (b, c, h, w) in [-1, 1] again.

        DDIM in reverse (Song et al. 2021, section 4.3), from the images at the first timestep to the last one, without guidance and
        clipping; nothing is drawn. `settings` is an EncodingConfig. Raises ConfigError for labels or steps that do not fit.
        """
        process, predict = self._both_ways(labels, images, settings)
        x = images
        for step in range(process.steps - 1):
            c = process.at_step(step)
            x = ddim_reverse_step(process, predict(x, c), x, c)
            if report is not None:
                report(step + 1, process.steps - 1)
        return [x]

    @torch.no_grad()
    def decode(self, latents: list[Tensor], *, labels: Tensor | None, settings: Config | None = None) -> Tensor:
        """The images (b, c, h, w) in [-1, 1] of noise: DDIM without noise, guidance and clipping. Takes and raises what `encode` does."""
        x = self.noise_in(latents)
        process, predict = self._both_ways(labels, x, settings)
        steps = ddim_steps(process, predict, x, noise=lambda i: torch.zeros_like(x))
        return last_sample(steps, count=process.steps, bounded=self.bounded)

    def _both_ways(self, labels: Tensor | None, x: Tensor, settings: Config | None) -> tuple[GaussianDiffusion, Predictor]:
        steps = settings_like(self.encoding, settings).steps
        steps = min(_ENCODING_STEPS, self.diffusion.steps) if steps is None else steps
        process = self.diffusion.respaced(respaced_timesteps(steps, total=self.diffusion.steps))
        denoise = self.denoiser((self.checked_labels(labels, len(x)),))
        return process, x0_predictor(self.diffusion, denoise, rows=x0_rows(process, process.points, x))

    @property
    def largest_sigma(self) -> float:
        """The noise level at which it is asked where a model that it guides has more."""
        return self.diffusion.levels.high

    def predictor(self, labels: Tensor | None) -> Predictor:
        """The x_0 that the network predicts, told the labels (b,), or none of an unconditional model; without guidance and clipping."""
        return x0_predictor(self.diffusion, self.denoiser((labels,)))

    def seen_by(self, c: Coefficients, noise: NoiseConfig | None) -> Coefficients:
        """A timestep as a network of `noise` sees it, which has the same timesteps but may rescale them otherwise."""
        return retimed(c, self.noise, noise)
