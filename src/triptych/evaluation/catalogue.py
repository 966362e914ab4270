"""The metrics of `triptych evaluate`, by name."""

from __future__ import annotations

from triptych.core.errors import ConfigError, nearest
from triptych.evaluation.bits_per_dim import bits_per_dim
from triptych.evaluation.metric import Metric

METRICS = {
    "bits-per-dim": Metric("bits for each 8-bit value of the images (a model that knows or bounds their likelihood)", bits_per_dim),
}


def find_metric(name: str) -> Metric:
    """The metric of that name; raises ConfigError, with the nearest one, where there is none."""
    if name not in METRICS:
        raise ConfigError("metrics", f'unknown metric "{name}"{nearest(name, METRICS)} (there is {", ".join(METRICS)})')
    return METRICS[name]
