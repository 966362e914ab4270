"""The metrics of two arrays of features, for programs that have made the features themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from triptych.core.errors import ConfigError
from triptych.evaluation.feature_set import FeatureSet, SetMetricConfig
from triptych.evaluation.kernel_distance import kernel_distances
from triptych.evaluation.set_metric import SET_METRICS, find_set_metric

Subsets = tuple[ArrayLike, ArrayLike]


def from_features(
    made: ArrayLike,
    reference: ArrayLike,
    metrics: Sequence[str] | str,
    *,
    subset_index: Subsets | None = None,
    settings: SetMetricConfig | None = None,
) -> dict[str, float]:
    """Each of the metrics (a list of names, or one text with commas) of features (n, d) against (m, d), by name.

    There are frechet, kid, precision, recall, prdc-precision, prdc-recall, density, coverage, authenticity and copies. `subset_index` has
    the subsets of kid: the numbers of the images, (subsets, size), in `made` and in `reference`; otherwise they are random, with the seed
    of `settings`. Raises ConfigError for an unknown metric, DataError for features that cannot be compared.
    """
    names = [name.strip() for name in metrics.split(",")] if isinstance(metrics, str) else list(metrics)
    for name in names:
        if find_set_metric(name).outputs != ("features",):
            known = ", ".join(other for other, metric in SET_METRICS.items() if metric.outputs == ("features",))
            raise ConfigError("metrics", f'"{name}" needs other outputs of a network than features (there is {known})')
    settings = SetMetricConfig() if settings is None else settings
    own, other = (FeatureSet({"features": _rows(name, values)}) for name, values in (("made", made), ("reference", reference)))
    found = dict[str, float]()
    for name in names:
        if name == "kid" and subset_index is not None:
            found[name] = _kid(own.array("features"), other.array("features"), subset_index)
        else:
            found[name] = SET_METRICS[name].measure(own, other, settings).value
    return found


def _rows(name: str, values: ArrayLike) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 2 or array.dtype.kind not in "fiu" or 0 in array.shape:
        expected = "real numbers (images, features), at least one of each"
        raise ConfigError(name, f"got an array of {array.dtype} of shape {array.shape}, expected {expected}")
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def _kid(made: np.ndarray, reference: np.ndarray, subset_index: Subsets) -> float:
    own, other = (np.asarray(index) for index in subset_index)
    if own.ndim != 2 or other.ndim != 2 or len(own) != len(other) or min(own.shape[1], other.shape[1]) < 2 or not len(own):
        raise ConfigError(
            "subset_index", f"got numbers of shapes {own.shape} and {other.shape}, expected (subsets, size) of each, size at least 2"
        )
    for numbers, rows in ((own, made), (other, reference)):
        if numbers.dtype.kind not in "iu" or numbers.min() < 0 or numbers.max() >= len(rows):
            raise ConfigError("subset_index", f"expected numbers of images from 0 to {len(rows) - 1}, those of made first")
    return float(np.mean([distance.value for distance in kernel_distances(made, reference, zip(own, other, strict=True))]))
