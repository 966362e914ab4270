"""The metrics of a set of images against a reference set, both seen through the outputs of a network, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from triptych.core.errors import ConfigError, nearest
from triptych.evaluation.feature_set import FeatureSet, Figure, SetMetricConfig
from triptych.evaluation.frechet import frechet
from triptych.evaluation.inception_scores import equal_splits, scored, sized_splits
from triptych.evaluation.kernel_distance import kid
from triptych.evaluation.neighbour_metrics import authenticity, closed_ball, copies, coverage, density, open_ball, precision, recall

__all__ = ["SET_METRICS", "FeatureSet", "Figure", "SetMetric", "SetMetricConfig", "find_set_metric"]

Measure = Callable[[FeatureSet, FeatureSet | None, SetMetricConfig], Figure]


@dataclass(frozen=True)
class SetMetric:
    """An entry of the catalogue."""

    summary: str
    outputs: tuple[str, ...]
    "Outputs of the network that it needs."
    reference: Literal["none", "moments", "features"]
    "What it needs of the reference."
    measure: Measure
    "Of the made set, the reference (None where it needs none) and the settings; raises DataError for sets that it cannot compare."


_GUIDED_DIFFUSION_SPLIT = 5000
_F, _SPATIAL, _LOGITS = ("features",), ("spatial",), ("logits",)

SET_METRICS: Mapping[str, SetMetric] = {
    "frechet": SetMetric("Frechet distance of the features; FID in those of Inception", _F, "moments", frechet("features")),
    "sfid": SetMetric("Frechet distance of features that keep their place in the image", _SPATIAL, "moments", frechet("spatial")),
    "kid": SetMetric("kernel distance of the features, over subsets", _F, "features", kid),
    "is": SetMetric(
        "inception score, splits of 5000 images in order, as guided-diffusion",
        _LOGITS,
        "none",
        scored(lambda count: sized_splits(count, _GUIDED_DIFFUSION_SPLIT)),
    ),
    "is-10": SetMetric("inception score, 10 equal splits in order", _LOGITS, "none", scored(lambda count: equal_splits(count, 10))),
    "precision": SetMetric(
        "share of the made images near the reference: k = 3, <=, as guided-diffusion", _F, "features", precision(closed_ball)
    ),
    "recall": SetMetric("share of the reference near the made images: k = 3, <=, as guided-diffusion", _F, "features", recall(closed_ball)),
    "prdc-precision": SetMetric("the same as precision: k = 5, <, as prdc", _F, "features", precision(open_ball)),
    "prdc-recall": SetMetric("the same as recall: k = 5, <, as prdc", _F, "features", recall(open_ball)),
    "density": SetMetric("how densely the reference lies where the made images are: k = 5, <", _F, "features", density(open_ball)),
    "coverage": SetMetric("share of the reference with a made image near it: k = 5, <", _F, "features", coverage(open_ball)),
    "authenticity": SetMetric("share of the made images that are no mere copy by the distances around them", _F, "features", authenticity),
    "copies": SetMetric("share of the made images as near to one of the reference as its own hardly are", _F, "features", copies),
}


def find_set_metric(name: str) -> SetMetric:
    """The metric of that name; raises ConfigError, with the nearest one, where there is none."""
    if name not in SET_METRICS:
        raise ConfigError("metrics", f'unknown metric "{name}"{nearest(name, SET_METRICS)} (there is {", ".join(SET_METRICS)})')
    return SET_METRICS[name]
