"""Guidance: at every step the sample is pushed to where a classifier, or a better model against a weaker one, points.

Classifier guidance: Dhariwal and Nichol 2021, arXiv 2105.05233, section 4. Classifier-free guidance: Ho and Salimans 2022, arXiv
2207.12598. Autoguidance: Karras et al. 2024, arXiv 2406.02507. Guidance in an interval of noise levels: Kynkaanniemi et al. 2024, arXiv
2404.07724.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from triptych.diffusion.gaussian import Coefficients, Denoiser, GaussianDiffusion, NoiseConfig
from triptych.diffusion.samplers import Predictor, Score
from triptych.nn.gradients import gradient

Interval = tuple[float, float]
"""Noise levels sigma = sqrt(1 / abar - 1) in (low, high]."""


class _GuideModel(Protocol):
    image_shape: tuple[int, int, int]
    "Channels, height and width of its images."
    num_classes: int | None

    @property
    def noise(self) -> NoiseConfig | None:
        """The timesteps that it was trained on; None: it knows every noise level."""
        ...


@runtime_checkable
class NoisyImageClassifier(_GuideModel, Protocol):
    """A model whose gradient may guide a diffusion model."""

    def classify(self, x: Tensor, c: Coefficients) -> Tensor:
        """The logits (b, num_classes) of noisy images x_t (b, c, h, w)."""
        ...


@runtime_checkable
class LabelledPredictor(_GuideModel, Protocol):
    """A diffusion model, told labels at most, that another one may be guided away from."""

    @property
    def largest_sigma(self) -> float:
        """The noise level at which it is asked where there is more noise, or noise alone."""
        ...

    def predictor(self, labels: Tensor | None) -> Predictor:
        """The x_0 that it predicts; `labels`: (b,), exactly where it has classes."""
        ...


def within(interval: Interval | None, c: Coefficients) -> bool:
    """Whether guidance acts at this timestep, whose coefficients are numbers."""
    return interval is None or interval[0] < c.sigma <= interval[1]


def classifier_score(
    classify: Callable[[Tensor, Coefficients], Tensor], labels: Tensor, *, scale: float, interval: Interval | None = None
) -> Score:
    """scale * grad_x log p(labels | x_t), where `classify` gives the logits (b, classes) of noisy images."""

    def score(x: Tensor, c: Coefficients) -> Tensor | None:
        if scale == 0 or not within(interval, c):
            return None
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            log_p = classify(x, c).float().log_softmax(-1)
            return gradient(log_p.gather(1, labels[:, None]).sum(), x) * scale

    return score


def up_to(score: Score, sigma: float) -> Score:
    """`score` at noise levels of at most `sigma`; above, nothing to add."""
    return lambda x, c: score(x, c) if c.sigma <= sigma else None


def extrapolated(
    process: GaussianDiffusion, strong: Denoiser, weak: Denoiser, *, scale: float, interval: Interval | None = None
) -> Denoiser:
    """The output of `strong` with its prediction replaced by weak + scale * (strong - weak); its variance stays.

    `weak` gives a prediction without variance. At scale 1, and outside the interval, it is not asked.
    """

    def denoise(x: Tensor, c: Coefficients) -> Tensor:
        output = strong(x, c)
        if scale == 1 or not within(interval, c):
            return output
        prediction, variance = process.split(output)
        other = weak(x, c)
        prediction = other + scale * (prediction - other)
        return prediction if variance is None else torch.cat((prediction, variance), dim=1)

    return denoise


def in_terms_of(process: GaussianDiffusion, predict: Predictor) -> Denoiser:
    """An x_0 that is predicted, as a network of `process` would say it."""
    return lambda x, c: process.prediction_from(predict(x, c), x, c)


def extrapolated_image(strong: Predictor, weak: Predictor, *, scale: float, interval: Interval | None = None) -> Predictor:
    """x_0 as weak + scale * (strong - weak). At scale 1, and outside the interval, `weak` is not asked."""

    def predict(x: Tensor, c: Coefficients) -> Tensor:
        x0 = strong(x, c)
        if scale == 1 or not within(interval, c):
            return x0
        other = weak(x, c)
        return other + scale * (x0 - other)

    return predict


def retimed(c: Coefficients, config: NoiseConfig, other: NoiseConfig | None) -> Coefficients:
    """The coefficients of a timestep as a network of `other` sees it, which has the same timesteps but may rescale them otherwise."""
    unit = config.time_unit if other is None else other.time_unit
    return c if config.time_unit == unit else replace(c, time=c.time / config.time_unit * unit)


def same_noise(config: NoiseConfig, other: NoiseConfig) -> bool:
    """Whether two networks were trained on the same timesteps, so that one can guide the other."""
    return config.steps == other.steps and np.array_equal(config.table(), other.table())
