"""The Frechet distance between two sets of features, and how sure it is.

Heusel et al. 2017, https://arxiv.org/abs/1706.08500, Eq. 6:  d^2 = |m - m_r|^2 + tr(S + S_r - 2 (S S_r)^(1/2)).

Nothing here takes the square root of the product, which is not symmetric. With R = S_r^(1/2) the trace of (S S_r)^(1/2) is that of
(R S R)^(1/2), and both roots are of symmetric matrices: two eigenproblems, which covariances of any rank have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from triptych.core.errors import DataError
from triptych.evaluation.feature_set import FeatureSet, Figure, SetMetricConfig
from triptych.evaluation.moments import Moments, moments_of

_ROWS = 2048
_RANK = 1e-12
"""Eigenvalues below this part of the largest are roundings of zero."""


FEW_IMAGES = 2048
"""Fewer images than Inception has features: the covariance lacks directions, and the bias is large."""


def frechet(output: str) -> Callable[[FeatureSet, FeatureSet | None, SetMetricConfig], Figure]:
    """The metric on one output of the network.

    Its error is that of this number of images: how the figure varies over other sets as large, about a mean that is above the distance
    of the two distributions. None where the made set is known by its moments alone. Details: images; few, where they are fewer than
    2048; and where `bias` is asked for, extrapolated, the figure for many images, and bias, the difference.
    """

    def measure(made: FeatureSet, reference: FeatureSet | None, settings: SetMetricConfig) -> Figure:
        assert reference is not None
        own, other = made.moments(output), reference.moments(output)
        root = reference.kept(("root", output), lambda: symmetric_root(other.covariance))
        found = frechet_distance(own, other, root=root)
        details: dict[str, Any] = {"images": own.count}
        if 0 < own.count < FEW_IMAGES:
            details["few"] = f"{own.count} images, fewer than {FEW_IMAGES}: compare with sets of the same size alone"
        if output not in made.arrays:
            return Figure(found.value, None, details)
        features = made.array(output)
        if settings.bias and len(features) >= 4:
            limit = extrapolated(features, found.value, other, root=root, seed=settings.seed)
            details |= {"extrapolated": limit, "bias": found.value - limit}
        return Figure(found.value, standard_error(features, own, other, found.slope), details)

    return measure


@dataclass(frozen=True)
class Frechet:
    """The distance of a set's Gaussian from the reference's."""

    value: float
    slope: np.ndarray
    "I - T (d, d), how the distance changes with the set's covariance; T is the optimal transport map from its Gaussian to the reference's."


def frechet_distance(made: Moments, reference: Moments, *, root: np.ndarray | None = None) -> Frechet:
    """d^2 between the Gaussians of two sets; `root` is `symmetric_root` of the reference's covariance where that is known already.

    Raises DataError where the two have different numbers of features.
    """
    if made.mean.shape != reference.mean.shape:
        raise DataError(f"{len(made.mean)} features against {len(reference.mean)} of the reference: they are of different networks")
    root = symmetric_root(reference.covariance) if root is None else root
    product = root @ made.covariance @ root
    values, vectors = np.linalg.eigh((product + product.T) / 2)
    roots = np.sqrt(np.clip(values, 0, None))
    off = made.mean - reference.mean
    squared = off @ off + np.trace(made.covariance) + np.trace(reference.covariance) - 2 * roots.sum()
    value = float(np.maximum(squared, 0))  # roots of roundings of zero may take more away than there is
    real = values > _RANK * max(values[-1], np.finfo(float).tiny)
    half = root @ (vectors[:, real] / np.sqrt(roots[real]))
    return Frechet(value, np.eye(len(off)) - half @ half.T)


def symmetric_root(covariance: np.ndarray) -> np.ndarray:
    """The symmetric square root of a covariance (d, d), of any rank."""
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T


def standard_error(features: np.ndarray, made: Moments, reference: Moments, slope: np.ndarray) -> float:
    """The standard error of the distance over other sets as large as `features` (n, d), the reference being fixed.

    By the influence function, 2 (x - m)'(m - m_r) + (x - m)'(I - T)(x - m) less its mean: what one image more or less changes. The
    bootstrap would be wrong here: resampling adds the distance's bias a second time.
    """
    off, influence = made.mean - reference.mean, np.empty(len(features))
    for start in range(0, len(features), _ROWS):
        x = features[start : start + _ROWS] - made.mean
        influence[start : start + len(x)] = 2 * x @ off + np.einsum("nd,nd->n", x @ slope, x)
    return float(influence.std(ddof=1) / len(features) ** 0.5)


def extrapolated(features: np.ndarray, value: float, reference: Moments, *, root: np.ndarray, seed: int) -> float:
    """What the distance tends to as the number of images grows, where its bias is proportional to 1/n (Chong and Forsyth 2020).

    The line in 1/n goes through `value`, that of all n images, and the mean of two disjoint random halves.
    """
    order = np.random.default_rng(seed).permutation(len(features))
    half = len(features) // 2
    halves = [features[np.sort(part)] for part in (order[:half], order[half : 2 * half])]
    at_half = np.mean([frechet_distance(moments_of(part), reference, root=root).value for part in halves])
    slope = (at_half - value) / (1 / half - 1 / len(features))
    return float(value - slope / len(features))
