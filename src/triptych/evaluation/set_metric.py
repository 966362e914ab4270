"""The metrics of a set of images against a reference set, both seen through the outputs of a network, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from triptych.core.errors import ConfigError, nearest
from triptych.evaluation.feature_set import FeatureSet, Figure, SetMetricConfig
from triptych.evaluation.frechet import frechet
from triptych.evaluation.moments import Moments

__all__ = ["SET_METRICS", "FeatureSet", "Figure", "Moments", "SetMetric", "SetMetricConfig", "find_set_metric"]

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


SET_METRICS: Mapping[str, SetMetric] = {
    "frechet": SetMetric("Frechet distance of the features (in Inception's: FID)", ("features",), "moments", frechet("features")),
    "sfid": SetMetric("Frechet distance of features that keep their place in the image", ("spatial",), "moments", frechet("spatial")),
}


def find_set_metric(name: str) -> SetMetric:
    """The metric of that name; raises ConfigError, with the nearest one, where there is none."""
    if name not in SET_METRICS:
        raise ConfigError("metrics", f'unknown metric "{name}"{nearest(name, SET_METRICS)} (there is {", ".join(SET_METRICS)})')
    return SET_METRICS[name]
