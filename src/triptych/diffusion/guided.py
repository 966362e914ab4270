"""Who leads a sampler, what its settings say of that, and the labels that a model learns to go without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from triptych.core.config import spelled
from triptych.core.errors import ConfigError
from triptych.core.model import Guidable, Model
from triptych.core.rng import Rng
from triptych.diffusion.guidance import Interval
from triptych.diffusion.samplers import Predictor, Score
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
