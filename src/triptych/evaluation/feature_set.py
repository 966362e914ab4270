"""Sets of images as a network sees them, and what a metric says of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from triptych.core.config import Config, config
from triptych.core.errors import DataError
from triptych.evaluation.moments import Moments, moments_of

T = TypeVar("T")

_ROWS = 4096


class FeatureSet:
    """What a network says of a set of images: `arrays` by output, each (n, d) in the order of the images, or only their moments.

    "features" and "spatial" are float32; "logits" (n, classes) are without the bias.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray] | None = None, moments: Mapping[str, Moments] | None = None) -> None:
        self.arrays: Mapping[str, np.ndarray] = dict(arrays or {})
        self._moments = dict(moments or {})
        self._kept = dict[Hashable, Any]()

    def __len__(self) -> int:
        """The number of images; 0 where it is not known."""
        for array in self.arrays.values():
            return len(array)
        return next((moments.count for moments in self._moments.values()), 0)

    def array(self, output: str) -> np.ndarray:
        """One output for each image. Raises DataError where it is not there, or not finite."""
        if output not in self.arrays:
            raise DataError(f'there are no "{output}" of each image of this set', advice="give its images, not statistics of them")
        unusable = self.kept(("unusable", output), lambda: _first_unusable(self.arrays[output]))
        if unusable is not None:
            raise DataError(f'image {unusable} has "{output}" that are not finite numbers', advice="see which network or image gives them")
        return self.arrays[output]

    def moments(self, output: str) -> Moments:
        """Those given, or computed once from the array. Raises DataError where there is neither."""
        if output not in self._moments:
            self._moments[output] = moments_of(self.array(output))
        return self._moments[output]

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives, made once for each key: several metrics share what takes long."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]


def _first_unusable(array: np.ndarray) -> int | None:
    for start in range(0, len(array), _ROWS):
        finite = np.isfinite(array[start : start + _ROWS]).all(1)
        if not finite.all():
            return start + int(finite.argmin())
    return None


@dataclass(frozen=True)
class Figure:
    """What a metric says in the end."""

    value: float
    error: float | None
    "The standard error; None: it cannot be told."
    details: Mapping[str, Any] = field(default_factory=dict)
    "Further numbers and remarks, as JSON can hold them."
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    "Numbers by image, where the metric has some."


@config
class SetMetricConfig(Config):
    """How sets of images are compared."""

    kid_subsets: int = 100
    "kid: number of subsets that it is averaged over."
    kid_subset_size: int = 1000
    "kid: images in a subset; fewer where a set has fewer."
    seed: int = 0
    "Seed of random subsets."
    neighbours: int = 3
    "precision, recall: k, the neighbour at whose distance an image's sphere ends."
    prdc_neighbours: int = 5
    "prdc-precision, prdc-recall, density, coverage: the same."
    copy_share: float = 0.01
    "copies: an image is called a copy where it is nearer than all but this share of the reference's images are to one another."
    bias: bool = False
    "Frechet distances: also what they tend to for more images, by extrapolation; computes two more distances."

    def validate(self) -> None:
        self.require(self.kid_subsets >= 1, "kid_subsets", "at least 1")
        self.require(self.kid_subset_size >= 2, "kid_subset_size", "at least 2")
        self.require(self.seed >= 0, "seed", "0 or more")
        for name in ("neighbours", "prdc_neighbours"):
            self.require(1 <= getattr(self, name) <= 100, name, "a number from 1 to 100")
        self.require(0 <= self.copy_share < 1, "copy_share", "a number from 0 to below 1")
