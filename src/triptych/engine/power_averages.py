"""Power-function averages of the weights, and one of any length out of others.

Karras et al. 2024, https://arxiv.org/abs/2312.02696, section 3. After t images such an average is the integral over s from 0 to t of
p(s) w(s), where w(s) are the weights after s images and

    p(s) = (gamma + 1) s^gamma / t^(gamma + 1)

its profile. How wide that is, its standard deviation as a share of t, is the average's length, sigma_rel in the paper. t may be in
images or any other unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Profile(NamedTuple):
    """The profile of an average: when it was taken, and its gamma."""

    images: float
    exponent: float

    def left_of(self, images: float) -> float:
        """The share of it that belongs to the weights before so many images."""
        return min(1.0, images / self.images) ** (self.exponent + 1)


@dataclass(frozen=True)
class Combination:
    """What other averages are multiplied by, so that their sum is one of another profile."""

    coefficients: np.ndarray
    "(n,) in float64; their sum is 1."
    residual: float
    "How far the profile of the sum is from the one that was wanted: the norm of their difference, as a share of that of the latter."


def combination(given: Sequence[Profile], wanted: Profile) -> Combination:
    """The sum of averages whose profile comes nearest to the wanted one: A x = b, A and b being the products of profiles.

    The solution is divided by its sum. `given` must not have a profile twice.
    """
    products, own = _products(given, given), _products([wanted], [wanted])[0, 0]
    aims = _products(given, [wanted])[:, 0]
    scale = 1 / np.sqrt(np.diag(products))  # so that all of the profiles have length 1, and none is lost by rounding
    solution = scale * np.linalg.solve(products * scale[:, None] * scale, aims * scale)
    coefficients = solution / solution.sum()
    square = own - 2 * coefficients @ aims + coefficients @ products @ coefficients
    return Combination(coefficients, math.sqrt(max(0.0, square / own)))


def _products(one: Sequence[Profile], other: Sequence[Profile]) -> np.ndarray:
    """The integrals of p q for all profiles p of `one` and q of `other`: (len(one), len(other))."""
    (t, g), (u, h) = (np.array(profiles, np.float64).T for profiles in (one, other))
    t, g = t[:, None], g[:, None]
    ratio = (t / u) ** np.where(t < u, h, -g)
    return (g + 1) * (h + 1) * ratio / ((g + h + 1) * np.maximum(t, u))
