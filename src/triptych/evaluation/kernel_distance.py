"""The kernel inception distance (Binkowski et al. 2018, https://arxiv.org/abs/1801.01401) between two sets of features."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from triptych.core.errors import DataError
from triptych.core.rng import permutation
from triptych.evaluation.feature_set import FeatureSet, Figure, SetMetricConfig


@dataclass(frozen=True)
class Influence:
    """How much the images of one set move the distance: the variance, over them, of what each of them adds."""

    own: float
    "What is due to the image alone."
    shared: float
    "What is due to the images that it happens to meet in its subset, and averages out where it meets others in further ones."


@dataclass(frozen=True)
class SubsetDistance:
    """What one pair of subsets says."""

    value: float
    made: Influence
    reference: Influence


def kernel(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(x.y / d + 1)^3 between the rows of x (n, d) and y (m, d), in float64: (n, m)."""
    products = x @ y.T
    products /= x.shape[1]
    products += 1
    return products * products * products


def subset_distance(x: np.ndarray, y: np.ndarray) -> SubsetDistance:
    """The unbiased estimate of the squared maximum mean discrepancy: E k(x, x') + E k(y, y') - 2 E k(x, y), pairs of one image left out."""
    within, within_reference, between = kernel(x, x), kernel(y, y), kernel(x, y)
    for square in (within, within_reference):
        np.fill_diagonal(square, 0)
    means = [square.sum() / (len(square) * (len(square) - 1)) for square in (within, within_reference)]
    value = means[0] + means[1] - 2 * between.mean()
    return SubsetDistance(float(value), _influence(within, between), _influence(within_reference, between.T))


def _influence(within: np.ndarray, between: np.ndarray) -> Influence:
    """Of 2 (E k(x, x') - E k(x, y)), from kernels (n, n), 0 on the diagonal, and (n, m).

    It is estimated twice, with every second x' and y and with the others. What the estimates have in common is due to x alone.
    """
    count = len(within)
    if min(between.shape) < 4:
        return Influence(float(np.var(2 * (within.sum(1) / (count - 1) - between.mean(1)), ddof=1)), 0.0)
    halves = np.empty((2, count))
    for half in range(2):
        others = len(range(half, count, 2)) - (np.arange(count) % 2 == half)
        halves[half] = 2 * (within[:, half::2].sum(1) / others - between[:, half::2].mean(1))
    own = max(0.0, float(np.cov(halves)[0, 1]))
    return Influence(own, max(0.0, float(np.var(halves.mean(0), ddof=1)) - own))


def subsets(count: int, size: int, number: int, *, seed: int, side: int) -> list[np.ndarray]:
    """`number` random subsets of `size` of `count` images, disjoint as long as there are images left, and then so again."""
    found = list[np.ndarray]()
    while len(found) < number:
        order = permutation(count, seed=seed, epoch=2 * len(found) + side)
        found += [order[start : start + size] for start in range(0, count - size + 1, size)]
    return found[:number]


def kernel_distances(made: np.ndarray, reference: np.ndarray, pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> list[SubsetDistance]:
    """That of each pair of subsets, given by the numbers of their images in the two sets.

    Raises DataError where the two have different numbers of features.
    """
    if made.shape[1] != reference.shape[1]:
        raise DataError(f"{made.shape[1]} features against {reference.shape[1]} of the reference: they are of different networks")
    return [subset_distance(made[own].astype(np.float64), reference[other].astype(np.float64)) for own, other in pairs]


def kid(made: FeatureSet, reference: FeatureSet | None, settings: SetMetricConfig) -> Figure:
    """The mean over random subsets, which are disjoint where the sets are large enough.

    Its error is that of other made sets as large against this very reference: by the influence of each image, measured within the
    subsets, and that of choosing subsets of the reference where not all of it is used. Details: subsets and subset_size; disjoint, how
    many of the subsets share no image; subset_std, the spread over the subsets, which many papers print as if it were an error.
    Raises DataError where a set has a single image.
    """
    assert reference is not None
    own, other = made.array("features"), reference.array("features")
    size = min(settings.kid_subset_size, len(own), len(other))
    if size < 2:
        raise DataError(f"kid needs at least 2 images of each set, and there are {len(own)} and {len(other)}")
    number = settings.kid_subsets if size < max(len(own), len(other)) else 1
    pairs = zip(*(subsets(len(x), size, number, seed=settings.seed, side=i) for i, x in enumerate((own, other))), strict=True)
    found = kernel_distances(own, other, pairs)
    values = np.array([distance.value for distance in found])
    details = {
        "subsets": number,
        "subset_size": size,
        "disjoint": min(number, len(own) // size, len(other) // size),
        "subset_std": float(values.std()),
    }
    return Figure(float(values.mean()), _error(found, number * size, len(own), len(other)), details)


def _error(found: Sequence[SubsetDistance], drawn: int, made: int, reference: int) -> float:
    """Of the mean over subsets that hold `drawn` images together, of sets of `made` and `reference` images.

    An image meets others in each round of disjoint subsets, until it has met them all.
    """
    own, shared, other = (
        np.mean(values) for values in zip(*((each.made.own, each.made.shared, each.reference.own) for each in found), strict=True)
    )
    rounds = max(1, min(drawn / made, made * len(found) / drawn))
    chosen = other * (1 / min(drawn, reference) - 1 / reference)
    return float(np.sqrt((own + shared / rounds) / min(drawn, made) + chosen))
