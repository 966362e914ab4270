"""What nearest neighbours say of two sets of features: precision, recall, density, coverage, authenticity, copies.

Distances are squared Euclidean. A matrix product in float64 gives them all, a strip of rows at a time; those within its rounding of
what they are compared with are computed anew from the difference of the two rows. So equal distances are equal, whatever the order of the
images, the strips or the processor, and "nearer than" differs from "as near as" where it should.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from triptych.core.errors import DataError
from triptych.core.wording import counted

_STRIP = 1 << 24  # distances of a strip: 128 MB
_COLUMNS = 4096
_PAIRS = 1024
_MARGIN = 8
"""The rounding of a sum of d products grows as the root of d (Higham and Mary 2019); that many times as much is allowed for."""
_ALTERNATING = np.array([(-1) ** (k + 1) * sum(math.comb(8, j) for j in range(k, 9)) / 2**8 for k in range(10)])
"""By the number of images of a set, the weight of what just these cover; 0 from 9 on."""


@dataclass(frozen=True)
class Ball:
    """Which sphere around an image counts: as far as its k-th nearest other image of its set, the surface itself included or not."""

    k: int
    closed: bool


@dataclass(frozen=True)
class Balls:
    """What the spheres around the images of two sets hold."""

    holding: np.ndarray
    "int64 (made,): how many of the reference's spheres hold each made image."
    reached: Cover
    "Which images of the reference have a made image in their own sphere."
    held: Cover
    "Which images of the reference lie in the sphere of a made image."


class Cover:
    """Which images of the reference a made set covers, and by which made images."""

    def __init__(self, size: int) -> None:
        self._counts, self._last = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
        self._sums = np.zeros(size, dtype=np.uint64)  # of the hashes of the made images that cover it: alike for equal sets of them

    def add(self, covers: np.ndarray, start: int) -> None:
        """bool (rows, reference): what some made images cover, the first of them the `start`-th."""
        rows, columns = np.nonzero(covers)
        self._counts += np.bincount(columns, minlength=len(self._counts))
        self._last[columns] = start + rows
        np.add.at(self._sums, columns, _mixed(start + rows))

    @property
    def covered(self) -> np.ndarray:
        """bool (reference,)."""
        return self._counts > 0

    def alone(self, made: int) -> np.ndarray:
        """int64 (made,): how many images of the reference each made image covers alone."""
        return np.bincount(self._last[self._counts == 1], minlength=made)

    def variance(self, made: int) -> float:
        """Of the share that is covered, over other made sets of as many independent images.

        For each set J of made images let c_J be the share of the reference that just these cover. The variance for a random number of
        images, Poisson(n), is the mean of the sum over J of (-1)^(|J| + 1) c_J^2; that for n of them is less by n (d share / d n)^2, where
        the derivative is what an image covers alone. Sets of many images add nothing but noise to a sum that alternates: they are
        weighed by the share of binomial draws, half of 8, that are as many (Efron and Thisted 1976). It may come out below 0.
        """
        reached = self.covered
        _, firsts, sizes = np.unique(self._sums[reached], return_index=True, return_counts=True)
        weights = _ALTERNATING[np.minimum(self._counts[reached][firsts], len(_ALTERNATING) - 1)]
        alone = (self._counts == 1).mean()
        return float(weights @ np.square(sizes / len(self._counts)) - alone**2 / made)


@dataclass(frozen=True)
class Neighbourhood:
    """How a made set lies in a reference."""

    balls: dict[Ball, Balls]
    nearest: np.ndarray
    "int64 (made,): the nearest image of the reference, the first of equally near ones."
    squared: np.ndarray
    "float64 (made,): its squared distance."


class Points:
    """Rows to measure distances between, about a common centre, so that little is lost in their products."""

    def __init__(self, features: np.ndarray, centre: np.ndarray) -> None:
        self.features, self._centre = features, centre
        numbers = dict[bytes, int]()
        self.first = np.array([numbers.setdefault(hashlib.sha256(row.tobytes()).digest(), i) for i, row in enumerate(features)])
        "The number of the first row that is the same; a model that collapsed makes one image many times."
        order = np.argsort(self.first, kind="stable")
        self.before = np.empty(len(features), dtype=np.int64)
        "How many rows before it are the same."
        self.before[order] = np.arange(len(features)) - np.searchsorted(self.first, self.first[order], sorter=order)
        self.squares = np.empty(len(features))
        for start in range(0, len(features), _COLUMNS):
            x = self.centred(start, start + _COLUMNS)
            self.squares[start : start + len(x)] = np.einsum("nd,nd->n", x, x)

    def __len__(self) -> int:
        return len(self.features)

    def centred(self, start: int, stop: int) -> np.ndarray:
        """Some of the rows, in float64."""
        return self.features[start:stop].astype(np.float64) - self._centre


class Strip:
    """Squared distances of some rows of `a`, from `start`, to all of `b`; good to `slack`."""

    def __init__(self, a: Points, start: int, stop: int, b: Points) -> None:
        self._a, self._b, self._start = a, b, start
        x = a.centred(start, stop)
        self.squared = np.empty((len(x), len(b)))
        for first in range(0, len(b), _COLUMNS):
            columns = self.squared[:, first : first + _COLUMNS]
            np.matmul(-2 * x, b.centred(first, first + _COLUMNS).T, out=columns)
        self.squared += a.squares[start:stop, None]
        self.squared += b.squares
        norms = a.squares.max() + b.squares.max()
        self.slack = float(_MARGIN * np.finfo(float).eps * x.shape[1] ** 0.5 * norms)

    def exact(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """The distances of these pairs (p,), each from the difference of the two rows, the same in whatever set and place they stand."""
        pairs = self._a.first[self._start + rows] * len(self._b) + self._b.first[columns]
        pairs, places = np.unique(pairs, return_inverse=True)
        found = np.empty(len(pairs))
        for start in range(0, len(pairs), _PAIRS):
            row, column = np.divmod(pairs[start : start + _PAIRS], len(self._b))
            x = self._a.features[row].astype(np.float64)
            x -= self._b.features[column]
            found[start : start + len(x)] = np.square(x, out=x).sum(1)
        return found[places]

    def smallest(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k nearest of each row, in ascending order, equals by their number: squared distances and numbers (rows, k).

        A row itself, at an infinite distance, is none of them. Of rows that are the same k + 1 are looked at: there may be thousands.
        """
        bound = np.partition(self.squared, k - 1, axis=1)[:, k - 1 : k] + 2 * self.slack
        rows, columns = np.nonzero((self.squared <= bound) & (self._b.before <= k))
        squared = self.exact(rows, columns)
        order = np.lexsort((columns, squared, rows))
        firsts = np.searchsorted(rows, np.arange(len(self.squared)))
        chosen = order[firsts[:, None] + np.arange(k)]
        return squared[chosen], columns[chosen]

    def within(self, bound: np.ndarray, *, closed: bool) -> np.ndarray:
        """Which distances are less than `bound` (rows, 1) or (columns,), or as large where `closed`: bool (rows, columns)."""
        inside = self.squared < bound - self.slack
        rows, columns = np.nonzero((self.squared <= bound + self.slack) ^ inside)
        limit = np.broadcast_to(bound, inside.shape)[rows, columns]
        exact = self.exact(rows, columns)
        inside[rows, columns] = exact <= limit if closed else exact < limit
        return inside


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """uint64 hashes of numbers, whose sums tell sets of numbers apart (SplitMix64: Steele, Lea and Flood 2014)."""
    x = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _strips(rows: int, columns: int) -> list[tuple[int, int]]:
    height = max(1, _STRIP // columns)
    return [(start, min(start + height, rows)) for start in range(0, rows, height)]


def require_others(count: int, k: int) -> None:
    """DataError where there are too few images for each to have k others."""
    if count <= k:
        raise DataError(f"{counted(count, 'image')}, and each needs {counted(k, 'other')}", advice=f"give at least {k + 1}")


def radii(points: Points, k: int) -> np.ndarray:
    """The squared distances of each image to its k nearest others, ascending: float64 (n, k). Raises DataError for k images or fewer."""
    require_others(len(points), k)
    found = np.empty((len(points), k))
    for start, stop in _strips(len(points), len(points)) if k else ():
        strip = Strip(points, start, stop, points)
        np.fill_diagonal(strip.squared[:, start:], np.inf)
        found[start:stop] = strip.smallest(k)[0]
    return found


def neighbourhood(
    made: Points, reference: Points, made_radii: np.ndarray, reference_radii: np.ndarray, balls: tuple[Ball, ...]
) -> Neighbourhood:
    """How `made` lies in `reference`; radii (n, largest k) as `radii` gives them. Spheres of a larger k are left out."""
    found = {ball: Balls(np.zeros(len(made), dtype=np.int64), Cover(len(reference)), Cover(len(reference))) for ball in balls}
    squared, nearest = np.empty(len(made)), np.empty(len(made), dtype=np.int64)
    for start, stop in _strips(len(made), len(reference)):
        strip = Strip(made, start, stop, reference)
        first = strip.smallest(1)
        squared[start:stop], nearest[start:stop] = first[0][:, 0], first[1][:, 0]
        for ball, so_far in found.items():
            if ball.k <= reference_radii.shape[1]:
                inside = strip.within(reference_radii[:, ball.k - 1], closed=ball.closed)
                so_far.holding[start:stop] = inside.sum(1)
                so_far.reached.add(inside, start)
            if ball.k <= made_radii.shape[1]:
                so_far.held.add(strip.within(made_radii[start:stop, ball.k - 1 : ball.k], closed=ball.closed), start)
    return Neighbourhood(found, nearest, squared)
