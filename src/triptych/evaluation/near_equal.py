"""How many pairs of samples are all but equal: what tells that a model is collapsing to one image.

Two images are near-equal where their pixels differ by less than `LEVELS` of 255 on average.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int, UInt8

LEVELS = 2
LARGEST = 32
"""Pixels of a side: larger images are compared as images of this size."""
_CELLS = 8  # of a side, by which most pairs are told apart


def reduced(images: UInt8[np.ndarray, "b h w c"]) -> UInt8[np.ndarray, "b h2 w2 c"]:
    """The images, and those larger than `LARGEST` as means over areas."""
    height, width = (min(side, LARGEST) for side in images.shape[1:3])
    if images.shape[1:3] == (height, width):
        return images
    means = F.adaptive_avg_pool2d(torch.from_numpy(images).permute(0, 3, 1, 2).float(), (height, width))
    return means.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()


def near_equal_share(images: UInt8[np.ndarray, "n h w c"]) -> float:
    """The share of all pairs of the images that are near-equal; 0 for a single one.

    Counted exactly: pairs whose sums over cells differ too much are passed over, for these never differ by more than the pixels do.
    """
    count = len(images)
    if count < 2:
        return 0.0
    pixels = images.reshape(count, -1)
    limit, cells, near = LEVELS * pixels.shape[1], _cells(images), 0
    for k in range(count - 1):
        bound = np.abs(cells[k + 1 :] - cells[k]).sum(1)
        others = pixels[k + 1 :][bound < limit]
        differ = np.maximum(others, pixels[k]) - np.minimum(others, pixels[k])
        near += int((differ.sum(1, dtype=np.int64) < limit).sum())
    return near / (count * (count - 1) / 2)


def _cells(images: UInt8[np.ndarray, "n h w c"]) -> Int[np.ndarray, "n cells"]:
    """Sums over the pixels of a cell, of each channel."""
    side = -(-max(images.shape[1:3]) // _CELLS)
    sums = images.astype(np.int32)
    for axis in (1, 2):
        sums = np.add.reduceat(sums, range(0, sums.shape[axis], side), axis=axis)
    return sums.reshape(len(images), -1)
