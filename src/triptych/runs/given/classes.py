"""Classes: the labels of images that a user brings, as those of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError, DataError, nearest
from triptych.runs.given.collection import Collection
from triptych.runs.sampling import label_list


def labels_of(
    collection: Collection, num_classes: int | None, spec: DataSpec, *, count: int, chosen: Sequence[int | str] | None
) -> np.ndarray | None:
    """A label for each of the first `count` images: `chosen` taken in turn, else their own as labels of a model of a run on `spec`.

    `num_classes`: of the labels that the model is told; None: it is told none, and they may be any. Raises ConfigError or DataError where
    a model that is told labels gets none, or others than it knows.
    """
    if chosen is not None:
        return label_list(num_classes, spec, count=count, given=chosen)
    labels = None if collection.labels is None else collection.labels[:count]
    if num_classes is None:
        return labels
    if labels is None:
        expected = f"this model needs one for each image, from 0 to {num_classes - 1}"
        raise ConfigError("labels", f"{collection.name} has none, but {expected}")
    if collection.class_names is not None:
        return renumbered(collection, spec, name=collection.name, some=True)[labels]
    if labels.max() >= num_classes:
        raise DataError(f"{collection.name}: holds class {labels.max()}, expected 0 to {num_classes - 1}")
    return labels


class Classed(Protocol):
    """Something that has classes."""

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Of each class; None: they have numbers alone."""
        ...

    @property
    def num_classes(self) -> int | None:
        """How many there are; None: none."""
        ...


def renumbered(theirs: Classed, ours: DataSpec, *, name: str, some: bool = False) -> np.ndarray:
    """The label of `ours` for each class of `theirs`, by name where both have names: int64 (classes,).

    `some`: a part of the classes will do. Raises DataError where the classes differ; `name` says in the message whose they are.
    """
    names, targets = theirs.class_names or (), ours.class_names or ()
    comparable = bool(names and targets) and (some or len(names) == len(targets))
    if comparable and set(names) <= set(targets):
        return np.array([targets.index(each) for each in names], dtype=np.int64)
    if theirs.num_classes == ours.num_classes and (_nameless(names) or _nameless(targets)):
        return np.arange(ours.num_classes or 0)
    if comparable and (some or not _nameless(targets)):
        wrong = next(each for each in names if each not in targets)
        raise DataError(f'{name}: class "{wrong}" is none of this model\'s{nearest(wrong, targets)}')
    raise DataError(f"{name}: has {theirs.num_classes} classes, this model {ours.num_classes}; they have to be the same")


def _nameless(names: tuple[str, ...]) -> bool:
    """Whether the names say no more than the numbers, or are not known."""
    return names == tuple(map(str, range(len(names))))
