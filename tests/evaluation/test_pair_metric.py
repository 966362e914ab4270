"""The catalogue of metrics of single samples: what each makes of them, its error, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from tests.evaluation.recorded_pairs import lpips_weights, pair
from triptych.core.errors import ConfigError, DataError
from triptych.evaluation import pair_metric as module
from triptych.evaluation.class_accuracy import class_found
from triptych.evaluation.lpips import Lpips
from triptych.evaluation.pair_metric import PAIR_METRICS, PairMeasure, PairMetricConfig

CPU = torch.device("cpu")
MAPS = PairMetricConfig(num_classes=3, ignore_index=9)


@pytest.fixture(autouse=True)
def random_lpips(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "open_lpips", lambda name, *, weights, device: Lpips(name, lpips_weights(name), source=str(weights)))
    yield


def made(name: str, settings: PairMetricConfig = MAPS) -> PairMeasure:
    return PAIR_METRICS[name].make(settings, CPU)


def batch(needs: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Four samples, with what a metric is told of them."""
    rng = np.random.default_rng(0)
    if needs == "truth":
        images, truth = pair("rgb")
        images, truth = (np.concatenate((x, x[:, ::-1])) for x in (images, truth))
        return images[:, :176, :176], truth[:, :176, :176]
    if needs == "answers":
        return np.stack((pair("alexnet")[0][:, :32, :32], pair("alexnet")[1][:, :32, :32], pair("alexnet")[0][:, 32:64, 32:])).swapaxes(
            0, 1
        ), None
    if needs == "label maps":
        return rng.integers(0, 3, (4, 5, 6)), rng.integers(0, 3, (4, 5, 6))
    return rng.normal(size=(4, 3)).astype(np.float32), np.array([0, 1, 2, 0])


@pytest.mark.parametrize("name", PAIR_METRICS)
def test_pieces_of_a_batch_give_the_figure_of_the_whole(name: str) -> None:
    metric, own = PAIR_METRICS[name], made(name)
    first, second = batch(metric.needs)
    whole = own.measure(first, second)
    pieces = [own.measure(first[k : k + 1], None if second is None else second[k : k + 1]) for k in range(len(first))]
    assert whole.shape == np.concatenate(pieces).shape
    figure, again = own.conclude(whole), own.conclude(np.concatenate(pieces))
    assert again.value == pytest.approx(figure.value, rel=1e-9)
    assert again.error == pytest.approx(figure.error, rel=1e-9)
    assert math.isfinite(figure.value)
    assert figure.error is not None
    assert own.conclude(whole[:1]).error is None


def test_the_figure_is_the_mean_with_its_standard_error() -> None:
    figure = made("ssim").conclude(np.array([0.5, 0.7, 0.9]))
    assert (figure.value, figure.error) == pytest.approx((0.7, 0.2 / math.sqrt(3)))
    assert figure.arrays["each"].tolist() == [0.5, 0.7, 0.9]


def test_psnr_counts_equal_images_apart() -> None:
    own = made("psnr")
    figure = own.conclude(np.array([20.0, np.inf, 30.0]))
    assert (figure.value, figure.error, figure.details) == (25, pytest.approx(5), {"identical": 1})
    equal = own.conclude(np.array([np.inf, np.inf]))
    assert (equal.value, equal.error, equal.details) == (math.inf, None, {"identical": 2})


def test_figures_of_label_maps_tell_each_class() -> None:
    own = made("mean-iou")
    truth = np.array([[[0, 0, 1, 9]], [[0, 1, 1, 1]]])
    figure = own.conclude(own.measure(np.array([[[0, 1, 1, 2]], [[0, 1, 1, 1]]]), truth))
    assert figure.details == {"iou": [pytest.approx(2 / 3), pytest.approx(4 / 5), None]}
    assert figure.value == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert figure.error == pytest.approx(abs(1 - 1 / 2) / 2)  # the jackknife of two: half of what lies between them
    assert own.identity == {"num_classes": 3, "ignore_index": 9}
    with pytest.raises(ConfigError, match="num_classes: missing"):
        made("mean-iou", PairMetricConfig())


def test_lpips_says_what_it_is_of() -> None:
    assert made("lpips").identity["network"] == "alexnet"
    assert made("diversity").identity == {"lpips": "0.1", "network": "alexnet", "sha256": None}
    with pytest.raises(DataError, match="alike"):
        made("lpips").measure(np.zeros((1, 40, 40, 3), np.uint8), np.zeros((1, 41, 40, 3), np.uint8))


def test_class_accuracy_by_hand() -> None:
    logits = np.array([[1.0, 3.0, 2.0], [5.0, 5.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    found = class_found(logits, np.array([1, 0, 2, 2]))
    assert found.tolist() == [1, 1, 0, 1]
    figure = made("class-accuracy").conclude(found)
    assert (figure.value, figure.error) == pytest.approx((0.75, math.sqrt(0.75 * 0.25 / 3)))
    for value in (0.0, 1.0):  # none or all of 6 is not certain: as if two more had been found and two had not
        figure = made("class-accuracy").conclude(np.full(6, value))
        assert (figure.value, figure.error) == (value, pytest.approx(math.sqrt(0.2 * 0.8 / 10)))
        assert made("class-accuracy").conclude(np.full(1, value)).error is None
    with pytest.raises(DataError, match="sample 1 of these was drawn for class 3, the classifier knows 0 to 2"):
        class_found(logits[:2], np.array([1, 3]))
    with pytest.raises(DataError, match="logits of sample 2 of these are not finite"):
        class_found(np.array([[0.0], [1.0], [np.nan]]), np.array([0, 0, 0]))


def test_the_settings_say_which_lpips(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def opened(name: str, *, weights: str | None, device: torch.device) -> Lpips:
        seen.append((name, weights, device))
        return Lpips("alexnet", lpips_weights("alexnet"))

    monkeypatch.setattr(module, "open_lpips", opened)
    made("lpips", PairMetricConfig(lpips="vgg16", lpips_weights="some/file.pth"))
    made("diversity")
    assert seen == [("vgg16", "some/file.pth", CPU), ("alexnet", None, CPU)]


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_classes: got 0"):
        PairMetricConfig(num_classes=0)
    with pytest.raises(ConfigError, match="ignore_index: got -1"):
        PairMetricConfig(ignore_index=-1)
