"""Mean and covariance of features, in float64, a block of rows at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from triptych.core.errors import DataError

_ROWS = 2048  # of a block: 32 MB in float64 at 2048 features


@dataclass(frozen=True)
class Moments:
    """What a Gaussian fit needs of one output of a network over a set of images."""

    count: int
    "Number of images; 0 where a file of statistics does not say."
    mean: np.ndarray
    "float64 (d,)."
    covariance: np.ndarray
    "float64 (d, d), unbiased: divided by count - 1."


class MomentSums:
    """Collects moments from blocks of rows; holds nothing larger than (d, d).

    Sums are kept about the running mean (Chan, Golub and LeVeque 1983), so that features far from zero lose no digits.
    """

    def __init__(self, dimensions: int) -> None:
        self.count = 0
        self._mean = np.zeros(dimensions)
        self._squares = np.zeros((dimensions, dimensions))  # sum of (x - mean)(x - mean)'

    def add(self, rows: np.ndarray) -> None:
        """Takes in rows (n, d) of any float type."""
        if not len(rows):
            return
        x = np.asarray(rows, dtype=np.float64)
        mean = x.mean(0)
        x = x - mean
        off, total = mean - self._mean, self.count + len(x)
        self._squares += x.T @ x
        self._squares += np.outer(off, off * (self.count * len(x) / total))
        self._mean = self._mean + off * (len(x) / total)
        self.count = total

    def moments(self) -> Moments:
        """Those of all rows so far. Raises DataError for fewer than two."""
        if self.count < 2:
            raise DataError(f"a covariance needs at least 2 images, and there are {self.count}")
        return Moments(self.count, self._mean, self._squares / (self.count - 1))


def moments_of(features: np.ndarray) -> Moments:
    """The moments of features (n, d). Raises DataError for fewer than two rows."""
    sums = MomentSums(features.shape[1])
    for start in range(0, len(features), _ROWS):
        sums.add(features[start : start + _ROWS])
    return sums.moments()
