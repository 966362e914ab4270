"""Metrics: of a model at each image of a data set, and of sets of images.

from triptych.evaluation import from_features, inception_score, load_inception

from_features(made, reference, ["frechet", "precision", "recall"])  # features (n, d) and (m, d)
inception_score(logits, 10)
load_inception(state_dict)(images)["2048"]  # of uint8 images (b, h, w, 3)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from triptych.core.lazy import lazy

if TYPE_CHECKING:
    from triptych.evaluation.feature_space import load_inception
    from triptych.evaluation.from_arrays import from_features
    from triptych.evaluation.inception_scores import inception_score

__all__ = ["from_features", "inception_score", "load_inception"]

_MODULES = {
    "triptych.evaluation.feature_space": ("load_inception",),
    "triptych.evaluation.from_arrays": ("from_features",),
    "triptych.evaluation.inception_scores": ("inception_score",),
}
__getattr__ = lazy(__name__, _MODULES)
