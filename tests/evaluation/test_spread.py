from __future__ import annotations

import numpy as np
import pytest

from triptych.evaluation.near_equal import near_equal_share
from triptych.evaluation.spread import MOST, spread


def images(count: int, seed: int = 0, size: int = 6) -> np.ndarray:
    return np.random.default_rng(seed).integers(60, 196, (count, size, size, 1)).astype(np.uint8)


def by_hand(made: np.ndarray, real: np.ndarray) -> float:
    """All distances one by one: the root of the mean square, and the median of the smallest."""

    def distances(values: np.ndarray) -> tuple[float, float]:
        rows = values.reshape(len(values), -1).astype(float)
        found = np.array([[np.linalg.norm(a - b) for j, b in enumerate(rows) if j != i] for i, a in enumerate(rows)])
        return float(np.sqrt(np.square(found).mean())), float(np.median(found.min(1)))

    return min(own / other for own, other in zip(distances(made), distances(real), strict=True))


@pytest.mark.parametrize("count", [2, 3, 20])
def test_the_definition(count):
    made, real = images(count), images(count, seed=1) // 2
    assert spread(made, real) == pytest.approx(by_hand(made, real), rel=1e-9)
    assert spread(real, made) == pytest.approx(by_hand(real, made), rel=1e-9)


def test_images_that_are_alike_but_not_equal():
    """Either around one image or around several, where no two are near-equal."""
    real, noise = images(60, seed=1), images(60, seed=2).astype(int) - 128
    one = (images(1).astype(int) + noise // 8).astype(np.uint8)
    five = (images(5)[np.arange(60) % 5].astype(int) + noise // 8).astype(np.uint8)
    assert near_equal_share(one) == near_equal_share(five) == 0.0
    assert spread(one, real) == pytest.approx(1 / 8, rel=0.1)
    assert 0.1 < spread(five, real) < 0.25
    assert spread(images(60), real) == pytest.approx(1, rel=0.1)


def test_sets_of_one_size_are_compared():
    real = images(30, seed=1)
    assert spread(images(100), real) == spread(images(100)[:30], real)
    many = images(MOST + 9)
    assert spread(many, many[: MOST + 1]) == 1.0


def test_equal_images():
    real, equal = images(8), np.repeat(images(1), 8, axis=0)
    assert spread(equal, real) == 0.0
    assert spread(real, equal) == spread(equal, equal) == spread(real[:1], real) == 1.0


def test_images_that_each_stand_twice():
    """They are as far apart as others, but each has an equal one."""
    assert spread(np.repeat(images(4), 2, axis=0), images(8, seed=1)) == pytest.approx(0, abs=1e-6)
