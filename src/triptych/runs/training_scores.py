"""Scores of what a model makes while it is trained: those of `triptych evaluate`, of fewer images and with nothing kept but figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError
from triptych.core.model import Model
from triptych.engine.callables import ERROR, Criterion, Evaluated, Evaluation
from triptych.engine.config import TrainConfig
from triptych.engine.distributed import World
from triptych.engine.metric_log import read_metrics
from triptych.engine.progress import Watch
from triptych.engine.run_directory import RunDirectory
from triptych.evaluation.feature_set import FeatureSet, SetMetricConfig
from triptych.evaluation.feature_space import OR_NAMED, Embedder, default_space, open_space
from triptych.evaluation.near_equal import LARGEST, LEVELS, near_equal_share, reduced
from triptych.evaluation.pair_metric import PAIR_METRICS
from triptych.recipes.config import RunConfig
from triptych.runs.embedding import Look, looked_at
from triptych.runs.given.data_images import model_reference
from triptych.runs.loading import Loading
from triptych.runs.model_images import ImageRequest, ModelImages
from triptych.runs.protocol import FEW
from triptych.runs.scoring import (
    FID,
    INCEPTION,
    Scores,
    Task,
    Wanted,
    drop_impossible,
    figure_name,
    measured,
    metric_name,
    metric_names,
    needs_reference,
)
from triptych.runs.sides import PictureSide, RunSide, check_sizes
from triptych.runs.single_images import SingleRequest, prepared
from triptych.runs.stored import Opened, StoredRun

NEAR_EQUAL = "near_equal"
"""The figure that tells of a collapse: the share of pairs of samples that are all but equal."""
COLLAPSING = 0.01
"""Above this share the log warns. Trainings that went well had 0 all the time, those that collapsed 0.018 to 0.37."""
SETTINGS = SetMetricConfig(kid_subsets=10)  # a hundred subsets take longer than the images
LOWER_IS_BETTER = frozenset(("frechet", "fid", "sfid", "kid", "copies", "lpips"))
_SMALL = "small"


class TrainingScores:
    """Measures the images that a model makes, each time it is asked."""

    def __init__(self, model: Model, spec: DataSpec, config: RunConfig, directory: RunDirectory, world: World) -> None:
        """Raises ConfigError, DataError or CheckpointError for what cannot be measured; no image is looked at yet."""
        train = config.train
        self._world, self._directory = world, directory
        with _as_settings_of_training():
            self._names = metric_names(train.evaluate_metrics)
            for name in self._names:
                if name in PAIR_METRICS and PAIR_METRICS[name].needs != "truth":
                    raise ConfigError("metrics", f"got {name}, which needs {PAIR_METRICS[name].needs}; triptych evaluate measures it")
            self._made = _Made(_Trained(model, spec, config, directory, world), train.precision)
            self._reference = self._embedder = None
            if any(needs_reference(name, self._made) for name in self._names):
                settings = self._made.maker.settings
                images = model_reference(
                    self._made.run, split=train.evaluate_split, settings=settings, most=train.evaluate_reference
                )
                self._reference = _Remembered(images, images.name)
                check_sizes(self._made, self._reference)
            most = self._made.maker.most
            self._made.decide(min(train.evaluate_count, most or train.evaluate_count), reference=0)
            wanted = Wanted(list(self._names))
            if wanted.of_sets():
                self._embedder = open_space(_space(train), device=world.device)
            drop_impossible(wanted, self._embedder, self._reference)
            self._looks = prepared(wanted.of_images(), self._made, None, SingleRequest(), world=world, drop=wanted.drop)
            for name, reason in wanted.missing.items():
                raise ConfigError("metrics", f"{name} cannot be measured: {reason}")
        self._best_by = train.best_by

    @property
    def evaluation(self) -> Evaluation:
        """For the loop."""
        return Evaluation(self.measure, self._criterion())

    def describe(self) -> str:
        """What is measured, for the log."""
        against = "" if self._reference is None else f", against {len(self._reference)} {self._reference.name}"
        space = "" if self._embedder is None else f", seen by {self._embedder.name}"
        return f"evaluations: {', '.join([*self._names, NEAR_EQUAL])} of {self._said()}{against}{space}"

    def prepare(self, progress: Watch) -> None:
        """Looks at the reference, or reads what an earlier look found; `progress` is told of images."""
        task = self._task(progress)
        for name in task.wanted.of_sets():
            ...

    def measure(self, progress: Watch) -> Evaluated:
        """The figures with the model's present weights, in every process; the same for any number of them."""
        scores = measured(self._task(progress)) if self._names else Scores({}, {}, {})
        ...
