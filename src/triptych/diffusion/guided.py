"""A diffusion model as a sampler that another model leads: a classifier of noisy images, or a weaker model that it is led away from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from triptych.core.batch import checked_labels
from triptych.core.config import Config, spelled
from triptych.core.errors import ConfigError
from triptych.core.model import Guidable, Model, Report
from triptych.core.rng import Rng
from triptych.diffusion.gaussian import Coefficients, GaussianConfig, NoiseConfig
from triptych.diffusion.guidance import Interval, LabelledPredictor, NoisyImageClassifier, classifier_score, same_noise
from triptych.diffusion.samplers import Predictor, Score, Step
from triptych.diffusion.unet import NO_LABEL


@runtime_checkable
class GuidanceSettings(Protocol):
    """What the settings of a sampler say of guidance."""

    @property
    def guidance_scale(self) -> float: ...

    @property
    def guidance_interval(self) -> Interval | None: ...


@dataclass(frozen=True)
class Guide:
    """Who helps to sample: a classifier of noisy images, by its score, or a weaker model, by the x_0 that it predicts."""

    score: Score | None = None
    weak: Predictor | None = None


class GuidableModel(Protocol):
    """A diffusion model of images, by class or not."""

    image_shape: tuple[int, int, int]
    num_classes: int | None

    @property
    def sampling(self) -> Config:
        """The default settings of its sampler."""
        ...

    @property
    def noise(self) -> NoiseConfig | None:
        """The timesteps that it was trained on; None: it knows every noise level."""
        ...

    def seen_by(self, c: Coefficients, noise: NoiseConfig | None) -> Coefficients:
        """A noise level of this model's samplers as a network of `noise` sees it."""
        ...

    def sample_progressive(self, rng: Rng, *, labels: Tensor | None, settings: Config, guide: Guide) -> Iterator[Step]:
        """Every step of a sample, led by `guide`."""
        ...

    def last_image(self, steps: Iterator[Step], settings: Config, report: Report | None) -> Tensor:
        """The images (b, c, h, w) at the end of the steps."""
        ...


class Guided(nn.Module):
    """A sampler: a model, led by a classifier or away from a weaker model. An unconditional one learns the labels from its classifier."""

    def __init__(self, model: GuidableModel, guide: NoisyImageClassifier | LabelledPredictor) -> None:
        super().__init__()
        self.model, self.guide, self.sampling = model, guide, model.sampling
        self.num_classes = guide.num_classes if isinstance(guide, NoisyImageClassifier) else model.num_classes

    def sample(self, rng: Rng, *, labels: Tensor | None, settings: Config, report: Report | None = None) -> Tensor:
        """As the model's own `sample`; `labels` (b,) are given where the model is conditional or led by a classifier."""
        if self.num_classes is not None:
            labels = checked_labels(labels, len(rng), num_classes=self.num_classes)
        model_labels = labels if self.num_classes is None or self.model.num_classes is not None else None
        steps = self.model.sample_progressive(rng, labels=model_labels, settings=settings, guide=self._guide(labels, settings))
        return self.model.last_image(steps, settings, report)

    def _guide(self, labels: Tensor | None, settings: Config) -> Guide:
        model, guide = self.model, self.guide
        if not isinstance(guide, NoisyImageClassifier):
            predict = guide.predictor(None if guide.num_classes is None else labels)
            alike = model.noise is not None and guide.noise is not None  # then their timesteps are the same
            most = math.inf if alike else guide.largest_sigma
            last = Coefficients.of_sigma(most, time=most)
            return Guide(weak=lambda x, c: predict(x, model.seen_by(c if c.sigma <= most else last, guide.noise)))
        assert labels is not None and isinstance(settings, GuidanceSettings)

        def classify(x: Tensor, c: Coefficients) -> Tensor:
            return guide.classify(x, model.seen_by(c, guide.noise))

        return Guide(score=classifier_score(classify, labels, scale=settings.guidance_scale, interval=settings.guidance_interval))


def led_by(model: GuidableModel, classifier: Model) -> Guided:
    """The model's sampler, led by a NoisyImageClassifier of the same images, noise and classes; ConfigError for any other."""
    if not isinstance(classifier, NoisyImageClassifier):
        reason = f"{type(classifier).__name__} is no classifier of noisy images; a weaker model goes to {{}}"
        raise ConfigError("guide", reason, ["guide_with"])
    _require_same("guide", model, classifier)
    if model.num_classes not in (None, classifier.num_classes):
        raise ConfigError("guide", f"it tells {classifier.num_classes} classes apart, this model has {model.num_classes}")
    return Guided(model, classifier)


def led_away_from(model: GuidableModel, weaker: Model) -> Guided:
    """The model's sampler, led away from a LabelledPredictor of the same images, noise and classes; ConfigError for any other."""
    if not isinstance(weaker, LabelledPredictor):
        reason = f"{type(weaker).__name__} is no diffusion model of images; a classifier goes to {{}}"
        raise ConfigError("guide_with", reason, ["guide"])
    _require_same("guide_with", model, weaker)
    if isinstance(weaker.noise, GaussianConfig) and weaker.noise.mean == "previous_x":
        raise ConfigError(
            "guide_with", "it predicts previous_x, which says nothing between timesteps; give one of another model.diffusion.mean"
        )
    if weaker.num_classes not in (None, model.num_classes):
        classes = "none" if model.num_classes is None else model.num_classes
        raise ConfigError("guide_with", f"it has {weaker.num_classes} classes, this model has {classes}")
    return Guided(model, weaker)


def _require_same(setting: str, model: GuidableModel, guide: NoisyImageClassifier | LabelledPredictor) -> None:
    """Raises ConfigError, naming what differs, unless the guide knows images and noise levels as the model does."""
    shape, image_shape = model.image_shape, guide.image_shape
    if image_shape[1:] != shape[1:]:
        theirs, ours = (str(h) if h == w else f"{h} x {w}" for _, h, w in (image_shape, shape))
        raise ConfigError(setting, f"its images have {theirs} pixels, this model's {ours}; give one trained at {ours}")
    if image_shape[0] != shape[0]:
        raise ConfigError(setting, f"its images have {image_shape[0]} channel(s), this model's {shape[0]}")
    if guide.noise is not None and model.noise is not None and not same_noise(guide.noise, model.noise):
        theirs, ours = (f"{n.steps} steps {'of a table' if n.betas else n.schedule}" for n in (guide.noise, model.noise))
        raise ConfigError(setting, f"its noise schedule is {theirs}, this model's {ours}; give one trained on the same")


def guides_itself(model: Model, settings: GuidanceSettings, *, label_dropout: float) -> bool:
    """Whether the model guides itself where no other one does, by what it says without labels. Raises ConfigError where it cannot."""
    guide = "give a guide, or " if isinstance(model, Guidable) else "give "
    if settings.guidance_scale == 1:
        if settings.guidance_interval is not None:
            reason = f"got {spelled(settings.guidance_interval)}, but nothing guides; {guide}a {{}} other than 1"
            raise ConfigError("guidance_interval", reason, ["guidance_scale"])
        return False
    if label_dropout == 0:
        raise ConfigError(
            "guidance_scale",
            f"got {settings.guidance_scale}, but this model was not trained with model.label_dropout, which classifier-free guidance "
            f"needs; {guide}1",
        )
    return True


def check_default_guidance(settings: GuidanceSettings, *, label_dropout: float, guidable: bool = True) -> None:
    """Raises ConfigError where a model's default settings, those of the grids in training, ask for what only a guide could do.

    `guidable`: whether another model may guide it later, by settings of its own.
    """
    later = "; {} of a guide is given when sampling" if guidable else ""
    if settings.guidance_scale != 1 and label_dropout == 0:
        reason = f"got {settings.guidance_scale}, expected 1 in a model without label_dropout{later.format('the scale')}"
        raise ConfigError("guidance_scale", reason)
    if settings.guidance_scale == 1 and settings.guidance_interval is not None:
        reason = f"got {spelled(settings.guidance_interval)}, expected nothing with guidance_scale 1{later.format('the interval')}"
        raise ConfigError("guidance_interval", reason)


def dropped_labels(labels: Tensor | None, rng: Rng, *, probability: float) -> Tensor | None:
    """The labels (b,) of a training step, NO_LABEL in place of those that are dropped."""
    if labels is None or probability == 0:
        return labels
    return labels.masked_fill(rng.uniform("label-dropout") < probability, NO_LABEL)
