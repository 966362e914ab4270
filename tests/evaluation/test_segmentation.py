"""Mean IoU and pixel accuracy against matrices and figures by hand; the jackknife against what theory says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from triptych.core.errors import DataError
from triptych.evaluation.segmentation import class_counts, confusion, iou, jackknife, mean_iou, pixel_accuracy

TRUTH = np.array([[[0, 0, 1], [1, 2, 9]], [[2, 2, 2], [9, 9, 9]]])
MADE = np.array([[[0, 1, 1], [1, 9, 0]], [[2, 2, 0], [0, 1, 9]]])
# Of image 0: the truth has 0 0 1 1 2, the segmenter says 0 1 1 1 nothing. Of image 1: 2 2 2 and 2 2 0. The class 3 is nowhere.


def counts(made: np.ndarray = MADE, truth: np.ndarray = TRUTH) -> np.ndarray:
    return class_counts(confusion(made, truth, num_classes=4, ignore_index=9))


def test_confusion_by_hand() -> None:
    matrices = confusion(MADE, TRUTH, num_classes=4, ignore_index=9)
    assert matrices.tolist() == [
        [[1, 1, 0, 0, 0], [0, 2, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]],
        [[0, 0, 0, 0, 0], [0, 0, 0, 0, 0], [1, 0, 2, 0, 0], [0, 0, 0, 0, 0]],
    ]


def test_figures_by_hand() -> None:
    total = counts().sum(0)
    assert iou(total)[:3] == pytest.approx([1 / 3, 2 / 3, 2 / 4])
    assert math.isnan(iou(total)[3])
    assert mean_iou(total) == pytest.approx((1 / 3 + 2 / 3 + 1 / 2) / 3)
    assert pixel_accuracy(total) == pytest.approx(5 / 8)


def test_a_class_that_only_the_segmenter_sees_counts_as_0() -> None:
    total = counts(np.array([[[0, 0, 3]]]), np.array([[[0, 0, 0]]])).sum(0)
    assert mean_iou(total) == pytest.approx((2 / 3 + 0) / 2)


def test_a_class_of_one_pixel_counts_as_others_do() -> None:
    total = counts(np.array([[[0, 0, 1]]]), np.array([[[0, 0, 1]]])).sum(0)
    assert mean_iou(total) == pixel_accuracy(total) == 1


def test_pixels_that_do_not_count_change_nothing() -> None:
    noisy = MADE.copy()
    noisy[TRUTH == 9] = np.arange(4) % 4
    assert np.array_equal(counts(noisy), counts())
    nothing = counts(MADE[:1] * 0, MADE[:1] * 0 + 9)
    assert np.isnan(mean_iou(nothing)).all()
    assert np.isnan(pixel_accuracy(nothing)).all()


def test_without_an_ignore_index_every_pixel_counts() -> None:
    matrix = confusion(np.array([[[1, 0, 1]]]), np.array([[[1, 1, 0]]]), num_classes=2)
    assert matrix.tolist() == [[[0, 1, 0], [1, 1, 0]]]


def test_jackknife_of_a_mean_is_its_standard_error() -> None:
    """With as many pixels in each image pixel accuracy is a mean over images, for which both agree."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, (12, 5, 5))
    made = np.where(rng.random(truth.shape) < 0.7, truth, (truth + 1) % 3)
    each = (made == truth).mean((1, 2))
    assert jackknife(counts(made, truth), pixel_accuracy) == pytest.approx(each.std(ddof=1) / math.sqrt(12), rel=1e-12)


def test_jackknife_is_the_spread_of_mean_iou_over_data_sets() -> None:
    rng = np.random.default_rng(1)
    values, errors = [], []
    for _ in range(200):
        truth = rng.choice(3, (40, 4, 4), p=(0.6, 0.3, 0.1))
        right = rng.random((40, 1, 1)) * 0.6 + 0.4  # some images are harder than others
        own = counts(np.where(rng.random(truth.shape) < right, truth, (truth + 1) % 3), truth)
        values.append(mean_iou(own.sum(0)))
        errors.append(jackknife(own, mean_iou))
    assert np.mean(errors) == pytest.approx(np.std(values, ddof=1), rel=0.15)  # a spread of 200 values is known to 5 %


def test_jackknife_of_two_images() -> None:
    """3 of 5 pixels of one are right, and 2 of 3 of the other."""
    assert jackknife(counts(), pixel_accuracy) == pytest.approx((2 / 3 - 3 / 5) / 2)


def test_no_error_from_one_image() -> None:
    assert jackknife(counts()[:1], mean_iou) is None
    lone = counts(np.array([[[0]], [[0]]]), np.array([[[0]], [[9]]]))  # without the first image nothing is left
    assert jackknife(lone, mean_iou) is None


def test_what_is_no_class_is_said() -> None:
    with pytest.raises(DataError, match="the segmenter's label map of image 1 of these has 4 at row 0, column 2, expected classes 0 to 3"):
        confusion(np.array([[[0, 0, 0]], [[0, 9, 4]]]), np.zeros((2, 1, 3), int), num_classes=4, ignore_index=9)
    with pytest.raises(DataError, match="the true label map .* has 255 at .*, expected classes 0 to 3 and the ignore index 9"):
        confusion(np.zeros((1, 1, 1), int), np.full((1, 1, 1), 255), num_classes=4, ignore_index=9)
    with pytest.raises(DataError, match=r"got the shapes \[1, 2, 3\] and \[1, 3, 2\]"):
        confusion(np.zeros((1, 2, 3), int), np.zeros((1, 3, 2), int), num_classes=4)
