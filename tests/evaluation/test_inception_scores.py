"""The inception score: the originals' values, what is known beforehand, and its error."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from triptych.core.errors import DataError
from triptych.evaluation import inception_score, inception_scores
from triptych.evaluation.set_metric import SET_METRICS, FeatureSet, Figure, SetMetricConfig

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def logits() -> np.ndarray:
    with np.load(GOLDEN / "metrics.npz") as arrays:
        return arrays["logits"]


def measured(name: str, logits: np.ndarray) -> Figure:
    return SET_METRICS[name].measure(FeatureSet({"logits": logits}), None, SetMetricConfig())


@pytest.mark.parametrize("rows", [8192, 100])
def test_the_originals_values(logits, rows, monkeypatch) -> None:
    monkeypatch.setattr(inception_scores, "_ROWS", rows)
    recorded = json.loads((GOLDEN / "metrics.json").read_text())
    for size in (450, 500, 5000):
        assert inception_score(logits, split_size=size) == pytest.approx(recorded[f"is/guided-diffusion/split_size={size}"], rel=1e-9)
    ten = measured("is-10", logits)
    for original in ("torch-fidelity", "dgm-eval"):
        assert ten.value == pytest.approx(recorded[f"is/{original}/splits=10,unshuffled/mean"], rel=1e-9)
        assert ten.details["split_std"] == pytest.approx(recorded[f"is/{original}/splits=10,unshuffled/std"], rel=1e-9)
    shuffled = logits[np.random.RandomState(2020).permutation(len(logits))]
    assert inception_score(shuffled, 10) == pytest.approx(recorded["is/torch-fidelity/splits=10,shuffled,seed=2020/mean"], rel=1e-9)
    assert measured("is", logits).value == pytest.approx(recorded["is/guided-diffusion/split_size=5000"], rel=1e-9)


def test_splits_of_guided_diffusion_are_of_5000() -> None:
    logits = np.random.default_rng(0).standard_normal((5003, 4)) * 2
    figure = measured("is", logits)
    assert figure.details["splits"] == 2
    assert figure.value == pytest.approx((inception_score(logits[:5000], 1) + inception_score(logits[5000:], 1)) / 2, rel=1e-12)


def test_splits_of_images_that_do_not_divide() -> None:
    assert inception_scores.equal_splits(8, 3) == [slice(0, 2), slice(2, 5), slice(5, 8)]
    assert inception_scores.sized_splits(7, 3) == [slice(0, 3), slice(3, 6), slice(6, 7)]


def test_what_is_known_beforehand() -> None:
    assert inception_score(np.zeros((30, 7)), 3) == pytest.approx(1)
    sure = 2000.0 * np.eye(7)[np.arange(70) % 7] - 1e4  # a softmax that did not take the largest away would overflow
    assert inception_score(sure, 2) == pytest.approx(7)
    rng = np.random.default_rng(1)
    some = rng.standard_normal((40, 5)).astype(np.float32)
    p = np.exp(some.astype(np.float64)) / np.exp(some.astype(np.float64)).sum(1, keepdims=True)
    assert inception_score(some, 1) == pytest.approx(np.exp((p * np.log(p / p.mean(0))).sum(1).mean()), rel=1e-12)


def test_the_error_is_that_of_leaving_out_each_image_in_turn(logits) -> None:
    given = logits[:400]
    without = np.array([inception_score(np.delete(given, i, 0), 1) for i in range(400)])
    jackknife = (399 / 400 * np.square(without - without.mean()).sum()) ** 0.5
    error = measured("is", given).error
    assert error == pytest.approx(jackknife, rel=0.02)
    ten = measured("is-10", logits)
    assert ten.error is not None and 0.5 < ten.error / (ten.details["split_std"] / 3) < 2  # ten splits say it roughly


def test_too_few_images(logits) -> None:
    with pytest.raises(DataError, match="10 splits need at least as many images, and there are 9"):
        measured("is-10", logits[:9])
    assert measured("is-10", logits[:12]).error is None  # splits of one image
