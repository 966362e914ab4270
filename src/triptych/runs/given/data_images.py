"""The images of a run's own data, as its model learns them, and those of them that it makes images like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from triptych.core.batch import DataSpec
from triptych.core.config import Config
from triptych.core.errors import ConfigError, DataError
from triptych.data.config import DataConfig
from triptych.data.domains import UnpairedDataConfig, UnpairedImages
from triptych.data.few_shot import FewShotDataConfig
from triptych.data.images import Data, ImageSet, Loaded
from triptych.runs.stored import StoredRun

Split = Literal["train", "validation", "all"]

_OF_TRAINING = ("workers", "flip", "crop", "augment", "anchor_size", "jitter")
"""Settings of the data without effect on images that are not varied."""
_SPLITS = {"train": "training images", "validation": "held-out images", "all": "all images"}


def reopened(config: DataConfig, spec: DataSpec) -> Data:
    """The data of a run, which were `spec`. Raises ConfigError or DataError where they are not there, or not what they were."""
    data = config.open()
    before, now = ((told.height_and_width, told.channels, [entry.name for entry in told.inputs]) for told in (spec, data.spec))
    if now != before:
        raise DataError(f"{config.path}: no longer the data of this run (size, channels, inputs: {now} in place of {before})")
    return data


def written(run: StoredRun) -> dict[str, Any]:
    """The settings that the run's images depend on, where they are not varied; JSON."""
    return {name: value for name, value in run.config.data.to_dict().items() if name not in _OF_TRAINING}


class Spread(ImageSet):
    """So many of the items of a set, spread evenly over it."""

    def __init__(self, images: ImageSet, count: int, *, available: int | None = None) -> None:
        """`available`: of so many of the first ones."""
        numbers = np.arange(count, dtype=np.int64) * (available or len(images)) // count
        labels = None if images.labels is None else images.labels[numbers]
        super().__init__(images.config, channels=images.channels, items=numbers, labels=labels)
        self._images = images

    def key(self, item: int) -> str:
        return self._images.key(int(self._items[item]))

    def default_workers(self) -> int:
        return self._images.default_workers()

    def batch(self, items: np.ndarray, positions: np.ndarray | None = None, *, seed: int = 0) -> Loaded:
        return self._images.batch(self._items[items])


class DataImages:
    """Real images of a run's data, for an evaluation: of a model between two domains, those of the domain that it translates to."""

    def __init__(self, run: StoredRun, *, split: Split | None = None, settings: Config | None = None) -> None:
        """`split`: None for those of the training; of a few-shot model the held-out ones, whose classes its images have.

        `settings`: of a translation, which say its direction. Raises ConfigError or DataError where there are no such images.
        """
        config = run.config.data
        data = reopened(config, run.spec)
        self.split: Split = split or ("validation" if isinstance(config, FewShotDataConfig) and data.validation is not None else "train")
        wanted = {"train": [data.train], "validation": [data.validation], "all": [data.train, data.validation]}[self.split]
        found = [_target(images, settings) for images in wanted if images is not None]
        if not found:
            raise ConfigError("split", f"got {self.split}, but the run's data has no held-out images; use train")
        self._sets, self._ends = found, np.cumsum([len(images) for images in found])
        self.size, self.channels = run.spec.height_and_width, run.spec.channels
        labelled = [images.labels for images in found if images.labels is not None]
        self.labels = np.concatenate(labelled) if len(labelled) == len(found) else None
        direction = getattr(settings, "direction", None) if isinstance(config, UnpairedDataConfig) else None
        self.identity: dict[str, Any] = {"data": written(run), "split": self.split, "count": len(self)}
        self.identity |= {} if direction is None else {"direction": direction}
        self.name = f"{_SPLITS[self.split]} of {config.path or 'the built-in digits'}"

    def __len__(self) -> int:
        return int(self._ends[-1])

    def images(self, items: Sequence[int]) -> np.ndarray:
        """uint8 (b, h, w, c), cut as held-out images are. Raises DataError naming a file."""
        made = np.empty((len(items), *self.size, self.channels), dtype=np.uint8)
        for k, item in enumerate(items):
            number = int(np.searchsorted(self._ends, item, side="right"))
            images = self._sets[number]
            made[k] = images.batch(np.array([item - int(self._ends[number]) + len(images)])).images[0]
        return made


def _target(images: ImageSet, settings: Config | None) -> ImageSet:
    return images.domains[target_domain(settings)] if isinstance(images, UnpairedImages) else images


def target_domain(settings: Config | None) -> int:
    """The domain that a translation of these settings ends in: 0 for A, 1 for B."""
    return 1 if getattr(settings, "direction", "a-to-b") == "a-to-b" else 0
