"""Images that are there twice: the same pixels, or nearly.

Near duplicates are found by the difference hash (dHash): the image is reduced to 9x8 grey pixels, and each of 64 bits says whether a pixel
is brighter than the one to its left. Hashes that differ in few bits are found without comparing all pairs: with k bits that may differ, and
the 64 bits cut into k + 3 bands, three bands at least are equal. So the hashes are sorted by the bits of each three bands, and those that
are equal there are compared. Smooth pictures may have such hashes without being alike, so the 9x8 pixels have to agree too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from PIL import Image

_EQUAL_BANDS = 3
_ROWS, _COLUMNS = 8, 8
REDUCED = _ROWS * (_COLUMNS + 1)
"""Pixels that an image is reduced to for its hash."""
_FURTHEST = 1000
"""Of images whose hashes are equal in three bands, each is compared with so many that follow; more are of data without detail."""


def reduced(image: Image.Image) -> np.ndarray:
    """The 9x8 grey pixels of an image, row by row: uint8 (72,)."""
    return np.asarray(image.convert("L").resize((_COLUMNS + 1, _ROWS), Image.Resampling.BOX)).reshape(-1)


def difference_hash(pixels: np.ndarray) -> int:
    """The 64 bits of an image out of its 9x8 pixels: row by row, 1 where a pixel is brighter than the one to its left."""
    rows = pixels.reshape(_ROWS, _COLUMNS + 1)
    return int.from_bytes(np.packbits(rows[:, 1:] > rows[:, :-1]).tobytes())


def equal(keys: np.ndarray) -> np.ndarray:
    """For each key (n,), or row of keys (n, k), the number of the first that equals it: int64 (n,)."""
    _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    return first[inverse.reshape(-1)]


def near(hashes: np.ndarray, pixels: np.ndarray, *, bits: int, levels: float) -> np.ndarray:
    """For each image the number of its group's first: its near duplicates, and theirs: int64 (n,).

    Two are near where their hashes, uint64 (n,), differ in at most so many `bits`, and their 9x8 pixels, uint8 (n, 72), by at most so many
    `levels` in the mean.
    """
    keys = np.column_stack([hashes.astype(">u8").view(np.uint8).reshape(-1, 8), pixels])
    _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    values, shades = hashes[first], pixels[first].astype(np.float32)
    labels = np.arange(len(values))
    for a, b in _candidates(values, bits):
        close = (np.bitwise_count(values[a] ^ values[b]) <= bits) & (labels[a] != labels[b])
        a, b = a[close], b[close]
        alike = np.abs(shades[a] - shades[b]).mean(1) <= levels
        _merge(labels, a[alike], b[alike])
    least = np.full(len(values), len(hashes))
    np.minimum.at(least, labels, first)
    return least[labels][inverse.reshape(-1)]


def _candidates(values: np.ndarray, bits: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The numbers of pairs of hashes that are equal in three bands, in parts; some pairs come several times."""
    for mask in _masks(bits + _EQUAL_BANDS):
        keys = values & mask
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        left = np.arange(len(keys))
        for distance in range(1, _FURTHEST + 1):
            left = left[: np.searchsorted(left, len(keys) - distance)]
            left = left[keys[left] == keys[left + distance]]
            if not len(left):
                break
            yield order[left], order[left + distance]


def _masks(bands: int) -> Iterator[np.uint64]:
    """The bits of each three of so many bands."""
    ends = [round(64 * k / bands) for k in range(bands + 1)]
    each = [sum(1 << bit for bit in range(low, high)) for low, high in itertools.pairwise(ends)]
    for chosen in itertools.combinations(each, _EQUAL_BANDS):
        yield np.uint64(sum(chosen))


def _merge(labels: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """Makes one group of the groups of a[i] and b[i]; a label is the least number of its group."""
    while True:
        differ = labels[a] != labels[b]
        if not differ.any():
            return
        a, b = a[differ], b[differ]
        np.minimum.at(labels, np.maximum(labels[a], labels[b]), np.minimum(labels[a], labels[b]))
        while (labels[labels] != labels).any():
            labels[:] = labels[labels]
