"""The metrics of `triptych evaluate`, by name."""

from __future__ import annotations

from triptych.evaluation.bits_per_dim import bits_per_dim
from triptych.evaluation.metric import Metric

METRICS = {
    "bits-per-dim": Metric("bits for each 8-bit value of the images (a model that knows or bounds their likelihood)", bits_per_dim),
}
