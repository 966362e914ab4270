"""Scores of what a model makes while it is trained: those of `triptych evaluate`, of fewer images, of which nothing is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import cast

import numpy as np

from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError, DataError
from triptych.core.model import Model, Report
from triptych.engine.callables import ERROR, Criterion, Evaluated, Evaluation
from triptych.engine.config import TrainConfig
from triptych.engine.distributed import World
from triptych.engine.metric_log import read_metrics
from triptych.engine.progress import Watch
from triptych.engine.run_directory import RunDirectory
from triptych.engine.signals import made_by_all
from triptych.evaluation.feature_set import FeatureSet, SetMetricConfig
from triptych.evaluation.feature_space import OR_NAMED, WITHOUT_FILE, Embedder, any_space, default_space, open_space
from triptych.evaluation.near_equal import near_equal_share, reduced
from triptych.evaluation.pair_metric import PAIR_METRICS
from triptych.evaluation.spread import MOST
from triptych.recipes.config import RunConfig
from triptych.runs.collapse import NEAR_EQUAL, SPREAD, collapse_figures, collapse_news
from triptych.runs.embedding import GROUP, Look, looked_at, network
from triptych.runs.given.data_images import model_reference
from triptych.runs.given.pictures import SplitPictures
from triptych.runs.loading import Loading, Precision
from triptych.runs.metric_names import COPIES, FID, INCEPTION, Wanted, figure_name, metric_names, needs_reference
from triptych.runs.model_images import ImageRequest, ModelImages
from triptych.runs.pieces import digest_of
from triptych.runs.protocol import few_mark
from triptych.runs.scoring import Scores, Task, drop_impossible, measured, reference_features
from triptych.runs.sides import PictureSide, RunSide, check_sizes
from triptych.runs.single_images import Prepared, SingleRequest, prepared
from triptych.runs.stored import Opened, StoredRun

SETTINGS = SetMetricConfig(kid_subsets=10)  # a hundred would take longer than the samples
LOWER_IS_BETTER = frozenset(("frechet", "fid", "sfid", "kid", "copies", "lpips"))
_ANY = "any"
_SMALL = Look(("small",), "small", lambda items, images: {"small": reduced(images)})


class TrainingScores:
    """Measures the images that a model makes, whenever it is asked."""

    def __init__(self, model: Model, spec: DataSpec, config: RunConfig, directory: RunDirectory, world: World) -> None:
        """Raises ConfigError, DataError or CheckpointError, naming the setting, for what can never be measured; no image is read yet."""
        self._world, self._directory, self._config, self._space = world, directory, config, config.train.evaluate_features
        self._names, self._embedder = names_and_embedder(config.train, world)
        with _named_as_in_training():
            self._made = _Made(_Trained(model, spec, config, directory, world), config.train)
            self._real = model_reference(
                self._made.run, split=config.train.evaluate_split, settings=self._made.maker.settings, most=config.train.evaluate_reference
            )
            self._reference = _reference(self._made, self._real, self._names)
            self._looks = self._prepared(Wanted(list(self._names)))
        self._small: np.ndarray | None = None
        self.evaluation = Evaluation(self.measure, self._criterion(config.train))

    def _prepared(self, wanted: Wanted) -> list[Prepared]:
        if wanted.names:
            drop_impossible(wanted, self._embedder, self._reference)
        looks = prepared(wanted.of_images(), self._made, None, SingleRequest(), world=self._world, drop=wanted.drop)
        for name, reason in wanted.missing.items():
            raise ConfigError("metrics", f"{name} cannot be measured: {reason}")
        return looks

    def _criterion(self, train: TrainConfig) -> Criterion | None:
        if train.best_by not in self._names:
            return None
        figure = figure_name(train.best_by, self._embedder)
        settings = digest_of([self._made.maker.settings.to_dict(), train.precision])[:8]
        return Criterion(f"{figure} ({self._how()})", figure, 1 if train.best_by in LOWER_IS_BETTER else -1, settings)

    def _how(self) -> str:
        """What a figure depends on besides the weights."""
        space = [] if self._embedder is None else [f"seen by {self._embedder.name}"]
        return ", ".join([f"{len(self._made)} samples", *space, *self._against()])

    def _against(self) -> list[str]:
        return [] if self._reference is None else [f"against {len(self._reference)} {self._reference.name.partition(' of ')[0]}"]

    def describe(self) -> str:
        """What is measured, for the log, and what a user lacks for more."""
        lacking = self._space == _ANY and self._embedder is not None and self._embedder.name == WITHOUT_FILE
        advice = '; pip install "triptych[features]" brings a network that has learned' if lacking else ""
        every = self._real.available
        part = len(self._real) < every and COPIES in self._names
        seen = f"; copies of the {every:,} images are looked for among these alone (evaluate_reference)" if part else ""
        return f"evaluations: {', '.join([*self._names, NEAR_EQUAL, SPREAD])}; {self._how()}{seen}{advice}"

    def prepare(self, progress: Watch) -> None:
        """Looks at the reference, unless the cache has what an earlier look found; `progress` is told of its images.

        Raises DataError where that fails, as where the cache cannot be written.
        """
        if self._names:
            task = self._task(progress)
            with suppress(ConfigError):  # that no metric is left; why is known for each
                reference_features(task)
            for name, reason in task.wanted.missing.items():
                raise DataError(f"evaluations: no {name} can be measured: {reason}")
        with self._world.patience("looking at real images"):
            self._world.on_main(lambda: self._look_at_real(progress))

    def _look_at_real(self, progress: Watch) -> None:
        """Reads as many real images as the samples are compared with, where they have one size."""
        if self._real.size != self._made.size or self._real.channels != self._made.channels:
            return
        count = min(len(self._made), len(self._real), MOST)
        numbers, small = np.arange(count) * len(self._real) // count, []
        for start in range(0, count, GROUP):
            small.append(reduced(self._real.images(numbers[start : start + GROUP].tolist())))
            progress(min(start + GROUP, count), count)
        self._small = np.concatenate(small)

    def measure(self, progress: Watch) -> Evaluated:
        """The figures with the present weights of the model, in every process, and the same at any number of them."""
        scores = Scores({}, {}, {}, {})
        if self._names:
            scores = measured(self._task(progress))
        else:
            self._made.looked_at([], world=self._world, progress=progress)
        values: dict[str, float] = {}
        for name, figure in scores.figures.items():
            values[name] = figure.value
            if figure.error is not None:
                values[f"{name}{ERROR}"] = figure.error
        alike = self._world.from_main(collapse_figures(self._made.small, self._small) if self._world.is_main else None)
        notes = [f"warning: {name} was not measured: {reason}" for name, reason in scores.missing.items()]
        values |= alike
        if self._world.is_main and (news := self._collapse(values)) is not None:
            notes.append(news)
        few = few_mark(len(self._made), of_sets=self._embedder is not None)
        return Evaluated(values, f"{len(self._made)} samples{few}", tuple(notes))

    def look_at_samples(self, progress: Watch) -> None:
        """Makes the samples of an evaluation and looks at them, which is what takes long of `measure`; keeps nothing."""
        self._made.looked_at(
            [*(look.look(len(self._made)) for look in self._looks), *self._networks()], world=self._world, progress=progress
        )

    def look_at_reference(self, progress: Watch) -> None:
        """Looks at the reference as `prepare` does where the cache knows nothing of it; keeps nothing."""
        if self._reference is not None:
            looked_at(self._reference.pictures, self._networks(), world=self._world, progress=progress)

    def _networks(self) -> list[Look]:
        return [] if self._embedder is None else [network(self._embedder, self._world.device)]

    def _task(self, progress: Watch) -> Task:
        wanted = Wanted(list(self._names))
        return Task(self._made, self._reference, self._embedder, wanted, self._looks, SETTINGS, self._world, progress)

    def _collapse(self, now: Mapping[str, float]) -> str | None:
        lines = read_metrics(self._directory.metrics_path, kind="evaluation/")
        before = [{name: line[key] for name in (NEAR_EQUAL, SPREAD) if (key := f"evaluation/{name}") in line} for line in lines]
        usual = 0.0 if self._small is None else near_equal_share(self._small)
        return collapse_news(now, [each for each in before if each], config=self._config, usual=usual)


# Before the training ----------------------------------------------------------------------------------------------------


def names_and_embedder(train: TrainConfig, world: World) -> tuple[list[str], Embedder | None]:
    """The metrics that are asked for, and the network that they need. Raises ConfigError or CheckpointError; no data are looked at."""
    with _named_as_in_training():
        names = _checked(train)
        return names, open_space(_space(train), device=world.device) if Wanted(list(names)).of_sets() else None


def _checked(train: TrainConfig) -> list[str]:
    """The metrics that are asked for, where they need nothing but what a training has."""
    names = metric_names(train.evaluate_metrics)
    for name in names:
        needs = PAIR_METRICS[name].needs if name in PAIR_METRICS else "truth"
        if needs != "truth":
            raise ConfigError("metrics", f"got {name}, but a training has no {needs} to measure it by; triptych evaluate measures it")
    return names


def _space(train: TrainConfig) -> str:
    if train.evaluate_features not in (None, _ANY):
        return train.evaluate_features
    if FID in train.evaluate_metrics:
        return INCEPTION
    return default_space() if train.evaluate_features is None else any_space()


def _reference(made: _Made, real: SplitPictures, names: Sequence[str]) -> _Remembered | None:
    """The real images, where one of the metrics asks for them."""
    if not any(needs_reference(name, made) for name in names):
        return None
    reference = _Remembered(real, real.name)
    check_sizes(made, reference)
    return reference


_SETTINGS = {"metrics": "evaluate_metrics", "features": "evaluate_features", "split": "evaluate_split", "count": "evaluate_count"}


@contextmanager
def _named_as_in_training() -> Iterator[None]:
    """Within it a ConfigError names the settings of the training."""
    try:
        yield
    except ConfigError as error:
        setting = f"train.{_SETTINGS[error.setting]}" if error.setting in _SETTINGS else "train.evaluate_every"
        raise ConfigError(setting, error.reason.removesuffix(OR_NAMED)) from None


# The two sides ----------------------------------------------------------------------------------------------------------


class _Trained(StoredRun):
    """The run that is trained: its model is at hand, and no checkpoint need be there."""

    def __init__(self, model: Model, spec: DataSpec, config: RunConfig, directory: RunDirectory, world: World) -> None:
        self.paths, self.config, self.spec, self.recipe = directory, config, spec, None
        self.outline, self._world = model, world

    def origin(self, *, checkpoint: str = "latest", weights: str | None = None) -> dict[str, str | int]:
        return {"images": 0, "weights": "", "hash": ""}  # they change

    def open(self, loading: Loading) -> Opened:
        return Opened(self.outline, self.spec, self._world, self.origin(), loading, self.config.train.batch_size)


class _Made(RunSide):
    """What the model makes with its weights of now."""

    kept = False

    def __init__(self, run: _Trained, train: TrainConfig) -> None:
        super().__init__(run, ImageRequest(), Loading(precision=cast(Precision, train.precision)))
        self.small = np.zeros((0, 1, 1, 1), np.uint8)
        "The images that were looked at last, at most 32 pixels wide and high."
        self._within: Report = lambda step, steps: None
        most = self.maker.most or train.evaluate_count
        self.decide(min(train.evaluate_count, most), reference=0)

    @property
    def pictures(self) -> ModelImages:
        if self._images is None:
            self._images = self.maker.made(self.run.open(self._loading), len(self), lambda step, steps: self._within(step, steps))
        return self._images

    def _open(self) -> None:
        self._images = self.pictures

    def looked_at(self, looks: Sequence[Look], *, world: World, progress: Watch) -> Mapping[str, np.ndarray]:
        self._images = None  # of the weights before
        made_by_all(world, self._open)  # what one process cannot open, as where a disk fails it, is said in all
        done, total, chunks, last = 0.0, float(len(self)), 0, 0

        def told(now: float, of: float) -> None:
            nonlocal done, total, chunks, last
            done, total, chunks, last = now, of, 0, 0
            progress(done, total)

        def within(step: int, steps: int) -> None:
            """Of a sampler, whose steps may be many; a group of images may be made in several chunks."""
            nonlocal chunks, last
            chunks, last = chunks + (step <= last), step
            progress(min(done + (chunks + step / steps) * self.pictures.chunk, total), total)

        self._within = within
        found = looked_at(self.pictures, [*looks, _SMALL], world=world, progress=told)
        self.small = found.pop("small")
        return found


class _Remembered(PictureSide):
    """The real images; what a network says of them stays in memory, and so does what metrics make of that."""

    def __init__(self, pictures: SplitPictures, name: str) -> None:
        super().__init__(pictures, name)
        self._known: dict[str, FeatureSet] = {}

    def features(self, embedder: Embedder, output: str, *, each: bool, world: World, progress: Watch) -> FeatureSet:
        if output not in self._known:
            self._known[output] = super().features(embedder, output, each=each, world=world, progress=progress)
        return self._known[output]
