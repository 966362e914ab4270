"""The share of near-equal pairs, against a count of each pair."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from triptych.evaluation.near_equal import LARGEST, near_equal_share, reduced


def counted(images: np.ndarray) -> float:
    pairs = [np.abs(a.astype(int) - b.astype(int)).mean() < 2 for a, b in combinations(images, 2)]
    return float(np.mean(pairs))


@pytest.mark.parametrize("size", [(16, 16, 1), (9, 13, 3), (3, 32, 1)])
def test_every_pair_is_counted(size: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(0)
    images = np.clip(128 + rng.normal(0, 1.2, (40, *size)) + rng.normal(0, 1.5, (40, 1, 1, 1)), 0, 255).astype(np.uint8)
    share = near_equal_share(images)
    assert 0.2 < share < 0.9
    assert share == pytest.approx(counted(images), abs=1e-12)


def test_two_levels_are_not_below_two_levels() -> None:
    images = np.zeros((3, 4, 4, 1), np.uint8)
    images[1], images[2] = 2, 253
    assert near_equal_share(images) == 0
    images[1, 0, 0] = 1
    assert near_equal_share(images) == pytest.approx(1 / 3)
    assert near_equal_share(np.repeat(images[2:], 5, axis=0)) == 1
    assert near_equal_share(images[:1]) == 0


def test_large_images_are_compared_as_means_over_areas() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 64, 96, 3)).astype(np.uint8)
    small = reduced(images)
    assert small.shape == (2, LARGEST, LARGEST, 3)
    assert small[1, 3, 5] == pytest.approx(images[1, 6:8, 15:18].mean((0, 1)), abs=0.5)
    assert reduced(images[:, :, :20]).shape == (2, LARGEST, 20, 3)
    assert reduced(images[:, :20, :20]) is not None and np.array_equal(reduced(images[:, :20, :20]), images[:, :20, :20])
