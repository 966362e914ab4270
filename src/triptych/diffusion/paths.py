"""Paths between noise and images: x_t = alpha(t) x_0 + s(t) n, with noise n at t = 0 and the image x_0 at t = 1.

"linear": Lipman et al. 2023, arXiv 2210.02747, and Liu et al. 2023, arXiv 2209.03003. "gvp" (a quarter of a circle) and "vp" (the
variance-preserving diffusion of Song et al. 2021, arXiv 2011.13456): Ma et al. 2024 (SiT), arXiv 2401.08740, appendix A.

Along a path goes one image and one noise; the velocity is v = alpha' x_0 + s' n, the score -n / s. At a given x_t and t each of x_0, n,
v and the score gives the others. A path visits every noise level sigma = s / alpha once, so t and sigma are two names of one place.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from triptych.diffusion.gaussian import KEPT_POINTS, Coefficients

PathName = Literal["linear", "gvp", "vp"]
Form = Literal["velocity", "score", "noise"]
"""What a network says of x_t."""

_BETA_MIN, _BETA_MAX = 0.1, 20.0  # Song et al. 2021, appendix C


@dataclass(frozen=True, slots=True)
class Point:
    """A path at a time: tensors that broadcast over images (b, 1, 1, 1), or numbers, which are the same for all images."""

    alpha: Tensor | float
    s: Tensor | float
    d_alpha: Tensor | float
    "alpha'(t)."
    d_s: Tensor | float
    "s'(t)."

    @property
    def sigma(self) -> Tensor | float:
        """The noise level s / alpha, infinite where there is noise alone."""
        return self.s / self.alpha if isinstance(self.alpha, Tensor) or self.alpha else math.inf

    @property
    def norm(self) -> Tensor | float:
        """sqrt(alpha^2 + s^2): x_t is that times the variance-preserving x of the same noise level."""
        return (self.alpha**2 + self.s**2) ** 0.5

    @property
    def _determinant(self) -> Tensor | float:
        """Of the equations x_t = alpha x_0 + s n, v = alpha' x_0 + s' n."""
        return self.alpha * self.d_s - self.s * self.d_alpha

    def noised(self, x0: Float[Tensor, " b *d"], noise: Float[Tensor, " b *d"]) -> Float[Tensor, " b *d"]:
        """x_t."""
        return self.alpha * x0 + self.s * noise

    def velocity(self, x0: Float[Tensor, " b *d"], noise: Float[Tensor, " b *d"]) -> Float[Tensor, " b *d"]:
        """d x_t / d t along the path."""
        return self.d_alpha * x0 + self.d_s * noise

    def velocity_to(self, x0: Float[Tensor, " b *d"], x: Float[Tensor, " b *d"]) -> Float[Tensor, " b *d"]:
        """The velocity at x_t where the image is x_0; s must not be 0."""
        rate = self.d_s / self.s
        return _sum(self.d_alpha - rate * self.alpha, x0, rate, x)

    def image_of(self, output: Float[Tensor, " b *d"], x: Float[Tensor, " b *d"], form: Form) -> Float[Tensor, " b *d"]:
        """The x_0 of `ends`, without the noise."""
        if form != "velocity":
            return self.ends(output, x, form)[0]
        return _sum(self.d_s / self._determinant, x, -self.s / self._determinant, output)

    def noise_of(self, velocity: Float[Tensor, " b *d"], x: Float[Tensor, " b *d"]) -> Float[Tensor, " b *d"]:
        """The n of `ends`, without the image."""
        return _sum(-self.d_alpha / self._determinant, x, self.alpha / self._determinant, velocity)

    def ends(self, output: Float[Tensor, " b *d"], x: Float[Tensor, " b *d"], form: Form) -> tuple[Tensor, Tensor]:
        """(x_0, n) from what is said of x_t in that form; alpha must not be 0 but for a velocity, s not but for a noise or velocity."""
        match form:
            case "velocity":
                return self.image_of(output, x, form), self.noise_of(output, x)
            case "score":
                noise = -self.s * output
            case "noise":
                noise = output
        return (x - self.s * noise) / self.alpha, noise

    def said(self, x0: Float[Tensor, " b *d"], noise: Float[Tensor, " b *d"], form: Form) -> Float[Tensor, " b *d"]:
        """The image and the noise in that form; the inverse of `ends`. s must not be 0 for a score."""
        match form:
            case "velocity":
                return self.velocity(x0, noise)
            case "score":
                return -noise / self.s
            case "noise":
                return noise


def _sum(a: Tensor | float, first: Tensor, b: Tensor | float, second: Tensor) -> Tensor:
    """a first + b second."""
    return a * first + b * second if isinstance(b, Tensor) else torch.add(a * first, second, alpha=b)


class Path(ABC):
    """alpha and s of a path, and where it has which noise level."""

    @abstractmethod
    def at(self, t: Tensor) -> Point:
        """The path at times from 0 to 1, of any shape."""

    @abstractmethod
    def time_of(self, sigma: Tensor) -> Tensor:
        """The times at which s / alpha is sigma, of any shape; 0 for a noise level above the path's first."""

    def interval(self, form: Form, *, training: bool) -> tuple[float, float]:
        """The first and the last time at which a network of that form is asked (Ma et al. 2024, appendix C)."""
        return (0.0, 1.0) if form == "velocity" else (1e-3, 1 - 1e-3)

    @functools.lru_cache(maxsize=KEPT_POINTS)  # noqa: B019 (a path is never given up)
    def at_number(self, t: float) -> Point:
        """The path at one time for all images: numbers, kept for the batches after the first."""
        point = self.at(torch.tensor(t, dtype=torch.float64))
        return Point(*map(float, (point.alpha, point.s, point.d_alpha, point.d_s)))

    @functools.lru_cache(maxsize=KEPT_POINTS)  # noqa: B019
    def time_at(self, sigma: float) -> float:
        """The time of one noise level for all images."""
        return float(self.time_of(torch.tensor(sigma, dtype=torch.float64)))

    def between(self, high: float, low: float) -> tuple[float, float]:
        """The times of two noise levels."""
        first, last = self.time_of(torch.tensor([high, low], dtype=torch.float64)).tolist()
        return first, last

    @functools.lru_cache(maxsize=KEPT_POINTS)  # noqa: B019
    def coefficients(self, t: float) -> Coefficients:
        """What predictors know the time by: numbers, `time` being t. The noise level is infinite where there is noise alone."""
        point = self.at_number(t)
        norm, alpha, sigma = float(point.norm), float(point.alpha), float(point.sigma)
        share = alpha / norm
        return Coefficients(t, share**2, share, float(point.s) / norm, math.inf if share == 0 else 1 / share, sigma)


class LinearPath(Path):
    """x_t = t x_0 + (1 - t) n: a straight line at constant speed."""

    def at(self, t: Tensor) -> Point:
        return Point(t, 1 - t, torch.ones_like(t), -torch.ones_like(t))

    def time_of(self, sigma: Tensor) -> Tensor:
        return 1 / (1 + sigma)


class GVPPath(Path):
    """alpha = sin(pi t / 2), s = cos(pi t / 2)."""

    def at(self, t: Tensor) -> Point:
        angle, speed = t * (math.pi / 2), math.pi / 2
        alpha, s = angle.sin(), ((1 - t) * speed).sin()  # s exactly 0 at t = 1
        return Point(alpha, s, speed * s, -speed * alpha)

    def time_of(self, sigma: Tensor) -> Tensor:
        return (1 / sigma).atan() * (2 / math.pi)


class VPPath(Path):
    """log alpha = -(1 - t)^2 (beta_1 - beta_0) / 4 - (1 - t) beta_0 / 2, s = sqrt(1 - alpha^2); at t = 0 sigma is 152, not infinite."""

    def at(self, t: Tensor) -> Point:
        left, rise = 1 - t, _BETA_MAX - _BETA_MIN
        log_alpha = -(left**2) * (rise / 4) - left * (_BETA_MIN / 2)
        slope = left * (rise / 2) + _BETA_MIN / 2  # d log alpha / d t
        alpha, s = log_alpha.exp(), (-torch.expm1(2 * log_alpha)).sqrt()
        return Point(alpha, s, alpha * slope, -(alpha**2) * slope / s)

    def time_of(self, sigma: Tensor) -> Tensor:
        # 1 - t is the root of (beta_1 - beta_0) / 4 y^2 + beta_0 / 2 y = log(1 + sigma^2) / 2, written without cancellation.
        doubled = 2 * torch.log1p(sigma**2)
        left = doubled / (_BETA_MIN + (_BETA_MIN**2 + (_BETA_MAX - _BETA_MIN) * doubled).sqrt())
        return (1 - left.nan_to_num(nan=1.0)).clamp(min=0)

    def interval(self, form: Form, *, training: bool) -> tuple[float, float]:
        return (0.0, 1 - 1e-5) if training else (0.0, 1 - 1e-3)  # at t = 1 the velocity is infinite


PATHS: dict[PathName, Path] = {"linear": LinearPath(), "gvp": GVPPath(), "vp": VPPath()}
"""By the name of the setting `path`."""
