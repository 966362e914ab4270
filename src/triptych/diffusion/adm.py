"""ADM: a diffusion model of images, conditional on their class or not.

"Diffusion Models Beat GANs on Image Synthesis", Dhariwal and Nichol 2021, https://arxiv.org/abs/2105.05233; with other settings the
models of "Improved Denoising Diffusion Probabilistic Models", Nichol and Dhariwal 2021, https://arxiv.org/abs/2102.09672.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn

from triptych.core.batch import Batch, DataSpec, checked_labels
from triptych.core.config import Config, config, settings_like
from triptych.core.errors import ConfigError
from triptych.core.model import Model, Report
from triptych.core.rng import Rng
from triptych.diffusion.gaussian import Coefficients, GaussianDiffusion, ImageHook
from triptych.diffusion.guidance import LabelledPredictor, NoisyImageClassifier, classifier_score, in_terms_of, retimed, same_noise
from triptych.diffusion.model import Conditions, DiffusionConfig, DiffusionModel, Guide, SamplingConfig, last_sample
from triptych.diffusion.respacing import respaced_timesteps
from triptych.diffusion.samplers import Predictor, Step, ddim_reverse_step, ddim_steps, x0_predictor

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

    steps: int | str | None = None
    'Steps each way: a number, numbers by section "a,b,c", or "ddimN"; None: 250, or all of fewer.'


class ADM(DiffusionModel):
    """The model of an ADMConfig."""

    encoding = EncodingConfig()
    interpolation = "sphere"
    latents_hold_class = False

    def conditions(self, batch: Batch) -> Conditions:
        """The labels, where the model is conditional."""
        return (None if self.num_classes is None else batch.labels,)

    def sample(self, rng: Rng, *, labels: Tensor | None, settings: Config, report: Report | None = None) -> Tensor:
        """One image for each index of `rng`: (b, c, h, w) in [-1, 1].

        `labels` (b,) are given exactly when the model is conditional; `settings` is a SamplingConfig; `report` is told of the steps.
        The model must be in evaluation mode. Raises ConfigError for labels or steps that do not fit.
        """
        return self.last_image(self.sample_progressive(rng, labels=labels, settings=settings), settings, report)

    def sample_progressive(
        self,
        rng: Rng,
        *,
        labels: Tensor | None = None,
        settings: Config | None = None,
        guide: Guide | None = None,
        hook: ImageHook | None = None,
    ) -> Iterator[Step]:
        """Every step of `sample`, from noise to images; `hook` changes the x_0 that each predicts, before it is clipped."""
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
        process, predict = self._both_ways(labels, len(images), settings)
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
        shapes = [tuple(latent.shape[1:]) for latent in latents]
        if shapes != [self.image_shape]:
            raise ConfigError("latents", f"got the shapes {shapes} of a sample, expected {[self.image_shape]}")
        (x,) = latents
        process, predict = self._both_ways(labels, len(x), settings)
        return last_sample(ddim_steps(process, predict, x, noise=lambda i: torch.zeros_like(x)), count=process.steps)

    def _both_ways(self, labels: Tensor | None, count: int, settings: Config | None) -> tuple[GaussianDiffusion, Predictor]:
        steps = settings_like(self.encoding, settings).steps
        steps = min(_ENCODING_STEPS, self.diffusion.steps) if steps is None else steps
        process = self.diffusion.respaced(respaced_timesteps(steps, total=self.diffusion.steps))
        return process, self.predictor(self.checked_labels(labels, count))

    def predictor(self, labels: Tensor | None) -> Predictor:
        """The x_0 that the network predicts, told the labels (b,), or none of an unconditional model; without guidance and clipping."""
        return x0_predictor(self.diffusion, self.denoiser((labels,)))

    def guided_by(self, classifier: Model) -> GuidedADM:
        """This model's sampler, led by a NoisyImageClassifier of the same images, noise and classes; ConfigError for any other."""
        if not isinstance(classifier, NoisyImageClassifier):
            reason = f"{type(classifier).__name__} is no classifier of noisy images; a weaker model goes to {{}}"
            raise ConfigError("guide", reason, ["guide_with"])
        _require_same("guide", self, classifier)
        if self.num_classes not in (None, classifier.num_classes):
            raise ConfigError("guide", f"it tells {classifier.num_classes} classes apart, this model has {self.num_classes}")
        return GuidedADM(self, classifier)

    def guided_with(self, weaker: Model) -> GuidedADM:
        """This model's sampler, led away from a LabelledPredictor of the same images, noise and classes; ConfigError for any other."""
        if not isinstance(weaker, LabelledPredictor):
            reason = f"{type(weaker).__name__} is no diffusion model of images; a classifier goes to {{}}"
            raise ConfigError("guide_with", reason, ["guide"])
        _require_same("guide_with", self, weaker)
        if weaker.num_classes not in (None, self.num_classes):
            classes = "none" if self.num_classes is None else self.num_classes
            raise ConfigError("guide_with", f"it has {weaker.num_classes} classes, this model has {classes}")
        return GuidedADM(self, weaker)


class GuidedADM(nn.Module):
    """A sampler: an ADM, led by a classifier or away from a weaker model. An unconditional one learns the labels from its classifier."""

    def __init__(self, model: ADM, guide: NoisyImageClassifier | LabelledPredictor) -> None:
        super().__init__()
        self.model, self.guide, self.sampling = model, guide, model.sampling
        self.num_classes = guide.num_classes if isinstance(guide, NoisyImageClassifier) else model.num_classes

    def sample(self, rng: Rng, *, labels: Tensor | None, settings: Config, report: Report | None = None) -> Tensor:
        """See `ADM.sample`; `labels` (b,) are given where the model is conditional or led by a classifier."""
        if self.num_classes is not None:
            labels = checked_labels(labels, len(rng), num_classes=self.num_classes)
        model_labels = labels if self.num_classes is None or self.model.num_classes is not None else None
        steps = self.model.sample_progressive(rng, labels=model_labels, settings=settings, guide=self._guide(labels, settings))
        return self.model.last_image(steps, settings, report)

    def _guide(self, labels: Tensor | None, settings: Config) -> Guide:
        assert isinstance(settings, SamplingConfig)
        process, guide = self.model.diffusion, self.guide
        if not isinstance(guide, NoisyImageClassifier):
            return Guide(weak=in_terms_of(process, guide.noise, guide.predictor(None if guide.num_classes is None else labels)))
        assert labels is not None

        def classify(x: Tensor, c: Coefficients) -> Tensor:
            return guide.classify(x, retimed(c, process.config, guide.noise))

        return Guide(score=classifier_score(classify, labels, scale=settings.guidance_scale, interval=settings.guidance_interval))


def _require_same(setting: str, model: ADM, guide: NoisyImageClassifier | LabelledPredictor) -> None:
    """Raises ConfigError, naming what differs, unless the guide knows images and noise levels as the model does."""
    shape, image_shape, noise = model.image_shape, guide.image_shape, guide.noise
    if image_shape[1:] != shape[1:]:
        raise ConfigError(setting, f"its images have {image_shape[1]} pixels, this model's {shape[1]}; give one trained at {shape[1]}")
    if image_shape[0] != shape[0]:
        raise ConfigError(setting, f"its images have {image_shape[0]} channel(s), this model's {shape[0]}")
    if noise is not None and not same_noise(noise, model.noise):
        theirs, ours = (f"{n.steps} steps {'of a table' if n.betas else n.schedule}" for n in (noise, model.noise))
        raise ConfigError(setting, f"its noise schedule is {theirs}, this model's {ours}; give one trained on the same")
