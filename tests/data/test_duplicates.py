"""Duplicates: each pair of hashes within the limit is found, and no other."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import picture
from triptych.data.duplicates import REDUCED, difference_hash, equal, near, reduced


def groups(labels: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in np.unique(labels)}


def by_all_pairs(hashes: np.ndarray, bits: int) -> set[frozenset[int]]:
    """The same by looking at all pairs, and following them."""
    close = np.array([[(int(a) ^ int(b)).bit_count() <= bits for b in hashes] for a in hashes])
    reached = close
    while True:
        further = (reached.astype(np.int64) @ reached.astype(np.int64)) > 0
        if (further == reached).all():
            return {frozenset(np.flatnonzero(row).tolist()) for row in reached}
        reached = further


@pytest.mark.parametrize("bits", [0, 1, 3, 5])
def test_near_hashes_are_those_of_all_pairs(bits: int) -> None:
    generator = np.random.default_rng(bits)
    hashes = generator.integers(0, 2**64, 60, dtype=np.uint64)
    hashes[20:25] = hashes[3]
    for k in range(30, 60):  # up to 7 bits away from another one, in any places
        flipped = sum(1 << int(bit) for bit in generator.choice(64, generator.integers(0, 8), replace=False))
        hashes[k] = hashes[generator.integers(0, 30)] ^ np.uint64(flipped)
    labels = near(hashes, np.zeros((60, REDUCED), dtype=np.uint8), bits=bits, levels=0)
    assert groups(labels) == by_all_pairs(hashes, bits)
    assert all(label == min(np.flatnonzero(labels == label)) for label in labels)


@pytest.mark.parametrize("places", [(0, 1, 2), (0, 31, 63), (10, 21, 42), (11, 22, 43), (61, 62, 63)])
def test_three_bits_anywhere_are_near_and_four_are_not(places: tuple[int, ...]) -> None:
    pair = np.array([0x0123456789ABCDEF, 0x0123456789ABCDEF ^ sum(1 << bit for bit in places)], dtype=np.uint64)
    alike = np.zeros((2, REDUCED), dtype=np.uint8)
    assert near(pair, alike, bits=3, levels=0).tolist() == [0, 0]
    assert near(pair ^ np.array([0, 1 << 50], dtype=np.uint64), alike, bits=3, levels=0).tolist() == [0, 1]


def test_rows_that_are_equal() -> None:
    assert equal(np.array([[1, 2], [1, 3], [1, 2], [2, 1], [1, 3]])).tolist() == [0, 1, 0, 3, 1]
    assert near(np.zeros(0, dtype=np.uint64), np.zeros((0, REDUCED), dtype=np.uint8), bits=3, levels=8).tolist() == []


def test_the_reduced_pixels_have_to_agree() -> None:
    """The mean of the absolute differences is 8 from the first to the second and from there to the third, and 8.5 to the fourth."""
    step = np.repeat(np.array([0, 2], dtype=np.uint8), REDUCED // 2)
    pixels = 100 + np.stack([0 * step, 8 * step, 16 * step, 8 * step + 17 * (step == 0)]).astype(np.uint8)
    hashes = np.zeros(4, dtype=np.uint64)
    assert near(hashes[:2], pixels[[0, 1]], bits=3, levels=8).tolist() == [0, 0]
    assert near(hashes[:2], pixels[[1, 3]], bits=3, levels=8).tolist() == [0, 1]
    assert near(hashes[:2], pixels[[0, 2]], bits=3, levels=8).tolist() == [0, 1]
    assert near(hashes, pixels, bits=3, levels=8).tolist() == [0, 0, 0, 3], "the third by way of the second"


def test_the_hash_is_of_brighter_neighbours() -> None:
    rising = np.tile(np.arange(0, 90, 10, dtype=np.uint8), (8, 1))
    assert difference_hash(rising) == 2**64 - 1
    assert difference_hash(rising[:, ::-1]) == 0
    step = np.zeros((8, 9), dtype=np.uint8)
    step[0, 1:] = 200  # the first bit of the first row alone
    assert difference_hash(step) == 1 << 63


def test_another_size_and_quality_stays_near_and_another_picture_does_not() -> None:
    first, other = (Image.fromarray(picture(120, 90, seed=seed)) for seed in (0, 1))
    hashes = [difference_hash(reduced(image)) for image in (first, first.resize((61, 47)), other)]
    assert (hashes[0] ^ hashes[1]).bit_count() <= 3 < (hashes[0] ^ hashes[2]).bit_count()
