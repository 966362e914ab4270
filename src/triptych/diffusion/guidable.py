"""Samplers that another model may lead: by a classifier of noisy images, or away from a weaker model.

A sample is the end of a way from noise to images.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Literal

from torch import Tensor, nn

from triptych.core.batch import checked_labels
from triptych.core.config import Config
from triptych.core.errors import ConfigError
from triptych.core.model import Model, Report
from triptych.core.rng import Rng
from triptych.core.wording import counted
from triptych.diffusion.counting import network_calls
from triptych.diffusion.gaussian import Coefficients, GaussianConfig, ImageHook, NoiseConfig
from triptych.diffusion.guidance import LabelledPredictor, NoisyImageClassifier, classifier_score, same_noise
from triptych.diffusion.guided import GuidanceSettings, Guide
from triptych.diffusion.samplers import Step


class GuidableSampler(Model):
    """A diffusion model of images, by class or not. Its latents are noise, which knows no class."""

    image_shape: tuple[int, int, int]
    num_classes: int | None
    sampling: Any
    "The default settings of its sampler."
    interpolation: Literal["linear", "sphere"] = "sphere"
    latents_hold_class = False

    @property
    @abstractmethod
    def noise(self) -> NoiseConfig | None:
        """The timesteps that it was trained on; None: it knows every noise level."""

    @abstractmethod
    def seen_by(self, c: Coefficients, noise: NoiseConfig | None) -> Coefficients:
        """A noise level of this model's samplers as a network of `noise` sees it."""

    @abstractmethod
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

    @abstractmethod
    def last_image(self, steps: Iterator[Step], settings: Config, report: Report | None) -> Tensor:
        """The images (b, c, h, w) at the end of the steps with these settings; `report` is told of them."""

    def sample(self, rng: Rng, *, labels: Tensor | None, settings: Config, report: Report | None = None) -> Tensor:
        """One image for each index of `rng`: (b, c, h, w) in [-1, 1].

        `labels` (b,) are given exactly when the model is conditional; `settings` are like its `sampling`; `report` is told of the steps.
        The model must be in evaluation mode. Raises ConfigError for labels, steps or guidance that do not fit.
        """
        return self.last_image(self.sample_progressive(rng, labels=labels, settings=settings), settings, report)

    def network_calls(self, settings: Config, *, weaker: bool = False, classifier: bool = False) -> int:
        """How often `sample` asks the network for an image with these settings (see core.model.Stepwise)."""
        return network_calls(
            self,
            lambda twin, rng, labels, guide: twin.sample_progressive(rng, labels=labels, settings=settings, guide=guide),
            weaker=weaker,
            classifier=classifier,
        )

    def guided_by(self, classifier: Model) -> Guided:
        """This model's sampler, led by a NoisyImageClassifier of the same images, noise and classes; ConfigError for any other."""
        if not isinstance(classifier, NoisyImageClassifier):
            reason = f"{type(classifier).__name__} is no classifier of noisy images; a weaker model goes to {{}}"
            raise ConfigError("guide", reason, ["guide_with"])
        self._require_same("guide", classifier)
        if self.num_classes not in (None, classifier.num_classes):
            raise ConfigError("guide", f"it tells {classifier.num_classes} classes apart, this model has {self.num_classes}")
        return Guided(self, classifier)

    def guided_with(self, weaker: Model) -> Guided:
        """This model's sampler, led away from a LabelledPredictor of the same images, noise and classes; ConfigError for any other."""
        if not isinstance(weaker, LabelledPredictor):
            reason = f"{type(weaker).__name__} is no diffusion model of images; a classifier goes to {{}}"
            raise ConfigError("guide_with", reason, ["guide"])
        self._require_same("guide_with", weaker)
        if isinstance(weaker.noise, GaussianConfig) and weaker.noise.mean == "previous_x":
            raise ConfigError(
                "guide_with", "it predicts previous_x, which says nothing between timesteps; give one of another model.diffusion.mean"
            )
        if weaker.num_classes not in (None, self.num_classes):
            classes = "none" if self.num_classes is None else self.num_classes
            raise ConfigError("guide_with", f"it has {weaker.num_classes} classes, this model has {classes}")
        return Guided(self, weaker)

    def _require_same(self, setting: str, guide: NoisyImageClassifier | LabelledPredictor) -> None:
        """Raises ConfigError, naming what differs, unless the guide knows images and noise levels as the model does."""
        shape, image_shape = self.image_shape, guide.image_shape
        if image_shape[1:] != shape[1:]:
            theirs, ours = (str(h) if h == w else f"{h} x {w}" for _, h, w in (image_shape, shape))
            raise ConfigError(setting, f"its images have {theirs} pixels, this model's {ours}; give one trained at {ours}")
        if image_shape[0] != shape[0]:
            raise ConfigError(setting, f"its images have {counted(image_shape[0], 'channel')}, this model's {shape[0]}")
        if guide.noise is not None and self.noise is not None and not same_noise(guide.noise, self.noise):
            theirs, ours = (f"{n.steps} steps {'of a table' if n.betas else n.schedule}" for n in (guide.noise, self.noise))
            raise ConfigError(setting, f"its noise schedule is {theirs}, this model's {ours}; give one trained on the same")

    def noise_in(self, latents: list[Tensor]) -> Tensor:
        """The noise (b, c, h, w), alone in a list, that images come from; raises ConfigError for other latents."""
        shapes = [tuple(latent.shape[1:]) for latent in latents]
        if shapes != [self.image_shape]:
            raise ConfigError("latents", f"got the shapes {shapes} of a sample, expected {[self.image_shape]}")
        return latents[0]


class Guided(nn.Module):
    """A sampler: a model, led by a classifier or away from a weaker model. An unconditional one learns the labels from its classifier."""

    def __init__(self, model: GuidableSampler, guide: NoisyImageClassifier | LabelledPredictor) -> None:
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
