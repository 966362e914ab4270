"""The metrics that look at one sample after the other, each beside what belongs to it (its truth, other answers, a label map), by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.evaluation.class_accuracy import class_found
from triptych.evaluation.feature_set import Figure
from triptych.evaluation.lpips import Lpips, LpipsNetwork, open_lpips
from triptych.evaluation.metric import share_error, standard_error
from triptych.evaluation.pairs import ms_ssim, psnr, require_alike, ssim
from triptych.evaluation.segmentation import class_counts, confusion, iou, jackknife, mean_iou, pixel_accuracy

Needs = Literal["truth", "answers", "label maps", "classes"]
"""What `PairMeasure.measure` is given.

truth: images and their truth, uint8 (b, h, w, c) both. answers: the k answers to each input, uint8 (b, k, h, w, c), and None.
label maps: those of the segmenter and the true ones, int64 (b, h, w) both. classes: logits of a classifier (b, classes), and the labels
that the samples were drawn for, int64 (b,).
"""

_MOST_CLASSES = 4096  # of label maps: the confusion matrix of an image then has 134 MB


@config
class PairMetricConfig(Config):
    """How the metrics that look at one sample after the other measure."""

    lpips: LpipsNetwork = "alexnet"
    "The network of LPIPS and of diversity; figures of the two networks do not compare."
    lpips_weights: str | None = None
    "File of its weights, as torchvision has them; None: the one in the cache."
    num_classes: int | None = None
    "mean-iou, pixel-accuracy: the number of classes of the label maps; None: that of the run's own maps."
    ignore_index: int | None = None
    "mean-iou, pixel-accuracy: the number in a label map for pixels that do not count; None: as in the run's own maps."

    def validate(self) -> None:
        self.require(self.num_classes is None or 1 <= self.num_classes <= _MOST_CLASSES, "num_classes", f"1 to {_MOST_CLASSES:,}")
        self.require(self.ignore_index is None or self.ignore_index >= 0, "ignore_index", "0 or more, or none")


@dataclass(frozen=True)
class PairMeasure:
    """A metric that is ready to measure."""

    measure: Callable[[np.ndarray, np.ndarray | None], np.ndarray]
    "What it keeps of each sample, (b, ...), of a batch as `Needs` says; raises DataError for what it cannot compare."
    conclude: Callable[[np.ndarray], Figure]
    "The figure of all samples, from what was kept of them, (n, ...), in any order."
    identity: Mapping[str, Any] = field(default_factory=dict)
    "JSON: what the figure depends on beside the images, for protocol lines."


@dataclass(frozen=True)
class PairMetric:
    """An entry of the catalogue."""

    summary: str
    needs: Needs
    make: Callable[[PairMetricConfig, torch.device], PairMeasure]
    "Raises ConfigError for a setting or a file of weights that is missing, CheckpointError for one that cannot be used."


def mean(values: np.ndarray) -> Figure:
    """The mean of (n,) with its standard error; "each" among the arrays has the values."""
    return Figure(float(values.mean()), standard_error(values), arrays={"each": values})


def share(values: np.ndarray) -> Figure:
    """The mean of 0 and 1 (n,), with its standard error; "each" among the arrays has the values."""
    figure = mean(values)
    sure = figure.value in (0, 1) and len(values) > 1
    return replace(figure, error=share_error(int(values.sum()), len(values))) if sure else figure


def mean_psnr(values: np.ndarray) -> Figure:
    """The mean over the images that differ from their truth; the others, whose PSNR is infinite, are counted in `details`.

    Where all are equal to their truth it is infinite, without an error.
    """
    differ = values[np.isfinite(values)]
    details = {"identical": len(values) - len(differ)}
    value, error = (float(differ.mean()), standard_error(differ)) if len(differ) else (float("inf"), None)
    return Figure(value, error, details, {"each": values})


def _of_pairs(function: Callable[[Any, Any], np.ndarray], conclude: Callable[[np.ndarray], Figure] = mean) -> Callable[..., PairMeasure]:
    return lambda settings, device: PairMeasure(function, conclude)


def _lpips(settings: PairMetricConfig, device: torch.device) -> PairMeasure:
    """LPIPS from the truth."""
    model = _opened(settings, device)

    def measure(images: np.ndarray, truth: np.ndarray | None) -> np.ndarray:
        assert truth is not None
        require_alike(images, truth)
        return model(_on(device, images), _on(device, truth)).cpu().numpy()

    return PairMeasure(measure, mean, model.identity)


def _diversity(settings: PairMetricConfig, device: torch.device) -> PairMeasure:
    """The mean LPIPS between the answers to one input."""
    model = _opened(settings, device)
    return PairMeasure(lambda answers, _: model.diversity(_on(device, answers)).cpu().numpy(), mean, model.identity)


def _opened(settings: PairMetricConfig, device: torch.device) -> Lpips:
    return open_lpips(settings.lpips, weights=settings.lpips_weights, device=device)


def _on(device: torch.device, images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(images)).to(device)


def _of_maps(figure: Callable[[np.ndarray], np.ndarray]) -> Callable[[PairMetricConfig, torch.device], PairMeasure]:
    """A figure of the confusion matrix of all images; its error is the jackknife's."""

    def make(settings: PairMetricConfig, device: torch.device) -> PairMeasure:
        classes, ignored = settings.num_classes, settings.ignore_index
        if classes is None:
            raise ConfigError("num_classes", "missing: how many classes do the label maps have?")

        def measure(made: np.ndarray, truth: np.ndarray | None) -> np.ndarray:
            assert truth is not None
            return class_counts(confusion(made, truth, num_classes=classes, ignore_index=ignored))

        def conclude(counts: np.ndarray) -> Figure:
            total = counts.sum(0)
            each = [None if np.isnan(value) else float(value) for value in iou(total)]
            return Figure(float(figure(total)), jackknife(counts, figure), {"iou": each})

        return PairMeasure(measure, conclude, {"num_classes": classes, "ignore_index": ignored})

    return make


PAIR_METRICS: Mapping[str, PairMetric] = {
    "psnr": PairMetric("peak signal-to-noise ratio to the truth, in dB", "truth", _of_pairs(psnr, mean_psnr)),
    "ssim": PairMetric("structural similarity to the truth, 1 for equal images", "truth", _of_pairs(ssim)),
    "ms-ssim": PairMetric("structural similarity to the truth at five sizes, 1 for equal images", "truth", _of_pairs(ms_ssim)),
    "lpips": PairMetric("LPIPS v0.1: distance from the truth in a network's features, 0 for equal images", "truth", _lpips),
    "diversity": PairMetric("mean LPIPS between the answers to one input: the larger, the more they differ", "answers", _diversity),
    "mean-iou": PairMetric("mean IoU of what a segmenter sees in the samples with their label maps", "label maps", _of_maps(mean_iou)),
    "pixel-accuracy": PairMetric("share of pixels whose class the segmenter finds in the samples", "label maps", _of_maps(pixel_accuracy)),
    "class-accuracy": PairMetric("share of the samples in which a classifier finds their class", "classes", _of_pairs(class_found, share)),
}
