"""Metrics: of a model at each image of a data set, and of sets of images.

from triptych.evaluation import from_features, inception_score

from_features(made, reference, ["frechet", "precision", "recall"])  # features (n, d) and (m, d)
inception_score(logits, 10)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from triptych.core.lazy import lazy

if TYPE_CHECKING:
    from triptych.evaluation.from_arrays import from_features
    from triptych.evaluation.inception_scores import inception_score

__all__ = ["from_features", "inception_score"]

_MODULES = {
    "triptych.evaluation.from_arrays": ("from_features",),
    "triptych.evaluation.inception_scores": ("inception_score",),
}
__getattr__ = lazy(__name__, _MODULES)
