"""How far apart samples are, in terms of real images: what tells that a model makes ever the same, also where no two are equal.

Two distances of a set count: the typical one of two images, sqrt(2 / (n - 1) sum_i |x_i - mean|^2), small where all images are alike; and
the median of that from an image to its nearest other one, small where they are of a few kinds that are alike. Both fall with the number of
images or of pixels, so sets of one size are compared. The images are those of `near_equal.reduced`.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, UInt8

MOST = 500
"""Images of each set that are compared; the nearest of as many others is found by all distances."""


def spread(made: UInt8[np.ndarray, "n h w c"], real: UInt8[np.ndarray, "m h w c"]) -> float:
    """The smaller of the two ratios of the made images' distance to that of as many real ones: 1 for those of their kind, 0 for equal ones.

    1 for fewer than two images, and for real ones of which all are equal.
    """
    count = min(len(made), len(real), MOST)
    if count < 2:
        return 1.0
    own, others = (_distances(images[:count].reshape(count, -1).astype(np.float64)) for images in (made, real))
    return float(min(np.divide(own, others, out=np.ones(2), where=others > 0)))


def _distances(rows: Float64[np.ndarray, "n d"]) -> Float64[np.ndarray, " 2"]:
    """The typical distance of two rows, and the median of that to the nearest other row."""
    centred = rows - rows.mean(0)
    squares = np.square(centred).sum(1)
    squared = squares[:, None] + squares - 2 * centred @ centred.T
    np.fill_diagonal(squared, np.inf)
    nearest = np.sqrt(squared.min(1).clip(0))  # equal rows may be a rounding error below
    return np.array([np.sqrt(2 * squares.sum() / (len(rows) - 1)), np.median(nearest)])
