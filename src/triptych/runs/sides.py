"""The two sides of a score: images that a run makes or that lie somewhere, and the reference that they are held against."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from triptych.core.cache import cache_folder
from triptych.core.errors import ConfigError
from triptych.engine.distributed import World
from triptych.engine.progress import Watch
from triptych.engine.run_directory import RunDirectory
from triptych.evaluation.feature_set import FeatureSet
from triptych.evaluation.feature_space import Embedder
from triptych.runs.embedding import Look, looked_at, network, origin
from triptych.runs.given.classes import Classed
from triptych.runs.given.data_images import model_reference
from triptych.runs.given.pictures import Pictures, Split, SplitPictures, StoredPictures
from triptych.runs.loading import Loading
from triptych.runs.model_images import ImageRequest, ModelImages, maker_of
from triptych.runs.pieces import digest_of
from triptych.runs.references import Statistics, open_reference, reference_of
from triptych.runs.stored import StoredRun

MOST = 10_000
"""Images that a run makes, at most, where nobody says how many."""

ImageSize = int | tuple[int, int] | None


class Reference(ABC):
    """What images are held against."""

    name: str
    size: tuple[int, int] | None = None
    "Height and width; None: of statistics."
    channels: int | None = None
    each: bool = True
    "Whether anything is known of its single images."

    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """What it is, for JSON."""

    @abstractmethod
    def __len__(self) -> int:
        """How many images there are; 0 where that is not known."""

    @abstractmethod
    def features(self, embedder: Embedder, output: str, *, each: bool, world: World, progress: Watch) -> FeatureSet:
        """What a network says of it: the moments of an output, and the array "features" of `each` image. Raises DataError."""


class Subject(Reference):
    """Images that are scored; others may be held against them too."""

    labelled: bool = False
    "Whether each image is of a class."
    kept: bool = True
    "Whether what is found at the images stays on the disk, for other metrics."

    @property
    def network_calls(self) -> int | None:
        """How often a network was asked for each image; None: nobody knows, or it did not go by steps."""
        return None

    @property
    @abstractmethod
    def labels_and_classes(self) -> tuple[np.ndarray, Classed | None]:
        """The class of each, int64 (n,), where there are classes; and whose classes these are, None: they go by their numbers."""

    @abstractmethod
    def looked_at(self, looks: Sequence[Look], *, world: World, progress: Watch) -> Mapping[str, np.ndarray]:
        """What is found at each image; kept, and read another time."""


class RunSide(Subject):
    """Images that a run makes."""

    def __init__(self, run: StoredRun, request: ImageRequest, loading: Loading) -> None:
        """Raises ConfigError, DataError or CheckpointError for what the run cannot make; its weights are not read."""
        self.run, self.name, self._loading = run, str(run.directory), loading
        self.maker = maker_of(run, request)
        self.size, self.channels, self.labelled = self.maker.size, self.maker.channels, self.maker.labelled
        self._origin = run.origin(checkpoint=loading.checkpoint, weights=loading.chosen)
        self._count = 0
        self._images: ModelImages | None = None

    def decide(self, count: int | None, *, reference: int) -> None:
        """Decides how many images are made; `reference`: how many that has, 0 where it is not known. Raises ConfigError."""
        most = self.maker.most
        if count is not None and (count < 2 or (most is not None and count > most)):
            expected = "at least 2" if most is None else f"2 to {most}, as many as the run can make of its held-out images"
            if most == 1:
                expected = "2 or more, but the run has 1 held-out image to make images of: take those of the training (--split train)"
            raise ConfigError("count", f"got {count}, expected {expected}")
        self._count = count or min(reference or MOST, MOST, most or MOST)

    def __len__(self) -> int:
        return self._count

    def identity(self) -> Mapping[str, Any]:
        return self.maker.identity(self._count, origin=self._origin, precision=self._loading.precision)

    @property
    def network_calls(self) -> int | None:
        return self.maker.network_calls

    @property
    def pictures(self) -> ModelImages:
        """The images. Reads the weights, the first time."""
        if self._images is None:
            opened = self.run.open_together(self._loading)
            self._origin = opened.origin
            opened.model.requires_grad_(False)
            self._images = self.maker.made(opened, self._count)
        return self._images

    @property
    def labels_and_classes(self) -> tuple[np.ndarray, Classed | None]:
        labels = self.pictures.labels
        assert labels is not None, "labelled"
        return labels, self.pictures.spec

    def looked_at(self, looks: Sequence[Look], *, world: World, progress: Watch) -> Mapping[str, np.ndarray]:
        out = world.on_main(self._features_folder) / _file(self.pictures, looks)
        return looked_at(self.pictures, looks, out=out, groups_kept=1, world=world, progress=progress)

    def _features_folder(self) -> Path:
        """Of the run; of the user's cache where the run may only be read."""
        may_write = os.access(self.run.directory, os.W_OK)
        return self.run.directory / "evaluations" / "features" if may_write else cache_folder() / "sets"

    def features(self, embedder: Embedder, output: str, *, each: bool, world: World, progress: Watch) -> FeatureSet:
        return FeatureSet(self.looked_at([network(embedder, world.device)], world=world, progress=progress))


class PictureSide(Subject):
    """Images that lie somewhere."""

    def __init__(self, pictures: StoredPictures | SplitPictures, name: str) -> None:
        self.pictures, self.name = pictures, name
        self.size, self.channels, self.labelled = pictures.size, pictures.channels, pictures.labels is not None

    @property
    def labels_and_classes(self) -> tuple[np.ndarray, Classed | None]:
        assert self.pictures.labels is not None, "labelled"
        return self.pictures.labels, None if self.pictures.class_names is None else self.pictures

    def __len__(self) -> int:
        return len(self.pictures)

    def identity(self) -> Mapping[str, Any]:
        return self.pictures.identity

    def looked_at(self, looks: Sequence[Look], *, world: World, progress: Watch) -> Mapping[str, np.ndarray]:
        out = cache_folder() / "sets" / _file(self.pictures, looks)
        return looked_at(self.pictures, looks, out=out, world=world, progress=progress)

    def features(self, embedder: Embedder, output: str, *, each: bool, world: World, progress: Watch) -> FeatureSet:
        return reference_of(self.pictures, embedder, outputs=(output,), features=each, world=world, progress=progress)


class StatisticsSide(Reference):
    """Statistics of a reference, in a file."""

    def __init__(self, statistics: Statistics) -> None:
        self.statistics, self.name, self.each, self.size = statistics, str(statistics.path), statistics.has_images, statistics.size

    def __len__(self) -> int:
        return self.statistics.count

    def identity(self) -> Mapping[str, Any]:
        return self.statistics.identity

    def features(self, embedder: Embedder, output: str, *, each: bool, world: World, progress: Watch) -> FeatureSet:
        return reference_of(self.statistics, embedder, outputs=(output,), features=each, world=world, progress=progress)


def _file(pictures: Pictures, looks: Sequence[Look]) -> str:
    return f"{digest_of(origin(pictures, *(look.identity for look in looks)))}.npz"


def is_run(source: Any) -> bool:
    """Whether it is a run, or the directory of one."""
    return isinstance(source, StoredRun) or (isinstance(source, str | Path) and RunDirectory(Path(source)).exists())


def stored_run(source: Any) -> StoredRun:
    """The run in a directory, or itself."""
    return source if isinstance(source, StoredRun) else StoredRun(RunDirectory(Path(source)))


def reference_side(
    source: Any, subject: Subject, *, split: Split | None, image_size: ImageSize, request: ImageRequest, loading: Loading
) -> Reference | None:
    """What `subject` is held against; None for a set of which nobody named a reference. Raises ConfigError and DataError."""
    run = subject.run if isinstance(subject, RunSide) else None
    if source is None:
        if not isinstance(subject, RunSide):
            return None
        images = model_reference(subject.run, split=split, settings=subject.maker.settings)
        return PictureSide(images, images.name)
    if split is not None:
        raise ConfigError("split", f"got {split}, which is of a run's own images, but there is another reference; leave one of the two out")
    if is_run(source):
        of_its_own = ImageRequest(seed=request.seed + 1)  # two sets of one noise would be alike for that alone
        return RunSide(stored_run(source), of_its_own, Loading(precision=loading.precision, device=loading.device))
    opened = open_reference(
        source, image_size=image_size, like=None if run is None else run.config.data, channels=None if run is None else subject.channels
    )
    return StatisticsSide(opened) if isinstance(opened, Statistics) else PictureSide(opened, str(source))


def check_sizes(subject: Subject, reference: Reference | None) -> None:
    """ConfigError for images of two sizes."""
    if reference is None or reference.size is None or subject.size is None or reference.size == subject.size:
        return
    (high, wide), (other_high, other_wide) = subject.size, reference.size
    what = f"{subject.name} has images of {wide}x{high}, {reference.name} of {other_wide}x{other_high}"
    if isinstance(subject, RunSide):
        raise ConfigError("reference", f"{what}: give images of the run's size, or larger ones, which are cut")
    fixed = not isinstance(reference, PictureSide)  # a run's images, and those of statistics, keep their size
    if fixed and (high < other_high or wide < other_wide):
        advice = "give images of the run's size" if isinstance(reference, RunSide) else "give images of the size that statistics are of"
        raise ConfigError("reference", f"{what}: {advice}, or larger ones")
    smaller = reference.size if fixed else min(subject.size, reference.size, key=lambda size: size[0] * size[1])
    side = str(smaller[0]) if smaller[0] == smaller[1] else f"{smaller[0]}x{smaller[1]}"
    raise ConfigError("image_size", f"{what}: make them alike with --image-size {side}")
