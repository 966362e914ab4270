"""How well generated images keep to their label maps: what a segmenter sees in them, against the maps they were made from.

Mean IoU and pixel accuracy as in "Fully Convolutional Networks for Semantic Segmentation", Long et al. 2015, https://arxiv.org/abs/1411.4038,
section 5. The segmenter is the user's own: its label maps come as arrays of classes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int, Int64

from triptych.core.errors import DataError

HITS, PREDICTED, TRUE = 0, 1, 2
"""Rows of `class_counts`."""


def confusion(
    made: Int64[np.ndarray, "b h w"], truth: Int64[np.ndarray, "b h w"], *, num_classes: int, ignore_index: int | None = None
) -> Int64[np.ndarray, "b classes predicted"]:
    """The confusion matrix of each image: the pixels of true class i that the segmenter calls class j.

    Pixels whose truth is `ignore_index` count nowhere. The last column, `num_classes`, has those that the segmenter gives the
    `ignore_index` though their truth is known. Raises DataError for maps of different shapes and for other numbers.
    """
    if made.shape != truth.shape:
        raise DataError(f"label maps and their truth have to be alike, got the shapes {list(made.shape)} and {list(truth.shape)}")
    for maps, name in ((made, "the segmenter's label map"), (truth, "the true label map")):
        _require_classes(maps, name, num_classes, ignore_index)
    matrices = np.zeros((len(truth), num_classes, num_classes + 1), np.int64)
    for matrix, own, true in zip(matrices, made, truth, strict=True):
        known = np.ones(true.shape, bool) if ignore_index is None else true != ignore_index
        column = own if ignore_index is None else np.where(own == ignore_index, num_classes, own)
        matrix[:] = np.bincount((true * (num_classes + 1) + column)[known], minlength=matrix.size).reshape(matrix.shape)
    return matrices


def class_counts(matrices: Int64[np.ndarray, "*b classes predicted"]) -> Int64[np.ndarray, "*b 3 classes"]:
    """Pixels by class that were found (HITS), that were called so (PREDICTED), and that are so (TRUE); all that the figures need."""
    square = matrices[..., :-1]
    return np.stack((np.diagonal(square, axis1=-2, axis2=-1), square.sum(-2), matrices.sum(-1)), axis=-2)


def iou(counts: Int[np.ndarray, "*b 3 classes"]) -> Float[np.ndarray, "*b classes"]:
    """Intersection over union of each class, in [0, 1]; NaN for one that neither the maps nor the segmenter have."""
    hits = counts[..., HITS, :]
    union = counts[..., PREDICTED, :] + counts[..., TRUE, :] - hits
    return np.where(union > 0, hits / np.maximum(union, 1), np.nan)


def mean_iou(counts: Int[np.ndarray, "*b 3 classes"]) -> Float[np.ndarray, "*b"]:
    """The mean of `iou` over the classes that occur; NaN where none does."""
    each = iou(counts)
    occurs = ~np.isnan(each)
    return _share(np.where(occurs, each, 0).sum(-1), occurs.sum(-1))


def pixel_accuracy(counts: Int[np.ndarray, "*b 3 classes"]) -> Float[np.ndarray, "*b"]:
    """The share of the pixels whose class was found; NaN where none has a class."""
    return _share(counts[..., HITS, :].sum(-1), counts[..., TRUE, :].sum(-1))


def jackknife(counts: Int64[np.ndarray, "n 3 classes"], figure: Callable[[np.ndarray], np.ndarray]) -> float | None:
    """The standard error of `figure` of the counts of n images together, from what it is without each of them.

    "Bootstrap Methods: Another Look at the Jackknife", Efron 1979, Eq. 3.3, https://doi.org/10.1214/aos/1176344552:
    √((n − 1) / n · Σ (θ₍ᵢ₎ − θ̄)²). None for a single image, and where a figure is not defined without one of them.
    """
    n = len(counts)
    without = figure(counts.sum(0) - counts)
    if n < 2 or np.isnan(without).any():
        return None
    return float(np.sqrt((n - 1) / n * np.square(without - without.mean()).sum()))


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)


def _require_classes(maps: np.ndarray, name: str, num_classes: int, ignore_index: int | None) -> None:
    wrong = (maps < 0) | (maps >= num_classes)
    if ignore_index is not None:
        wrong &= maps != ignore_index
    if wrong.any():
        image, row, column = (int(k[0]) for k in np.nonzero(wrong))
        also = "" if ignore_index is None else f" and the ignore index {ignore_index}"
        where = f"image {image} of these has {int(maps[image, row, column])} at row {row}, column {column}"
        raise DataError(f"{name} of {where}, expected classes 0 to {num_classes - 1}{also}")
