"""The metrics that look at one image after the other, beside its truth, the other answers to its input, its label map or its class."""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from triptych.core.errors import DataError, UserError
from triptych.engine.distributed import World
from triptych.evaluation.feature_set import Figure
from triptych.evaluation.pair_metric import PAIR_METRICS, PairMeasure, PairMetricConfig
from triptych.runs.classifying import ImageClassifier, open_classifier
from triptych.runs.embedding import Look
from triptych.runs.given.classes import renumbered
from triptych.runs.given.collection import stamp
from triptych.runs.given.pictures import StoredPictures
from triptych.runs.sampling import png_names
from triptych.runs.sides import PictureSide, Reference, RunSide, Subject

Drop = Callable[[Sequence[str], object], None]
"""Takes out metrics that cannot be measured, for a reason."""


@dataclass(frozen=True)
class SingleRequest:
    """What these metrics are told beside the images."""

    settings: PairMetricConfig = dataclasses.field(default_factory=PairMetricConfig)
    classifier: str | Path | None = None
    "A run of a classifier, or a network with classes."
    label_maps: str | Path | None = None
    "A folder with a label map for each image, 000000.png and so on, by a segmenter of the user's own."


@dataclass(frozen=True)
class Prepared:
    """A metric that is ready to look at images."""

    name: str
    measure: PairMeasure
    identity: Any
    beside: Callable[[Sequence[int], np.ndarray], tuple[np.ndarray, np.ndarray | None]]
    "From the numbers of images, and these, to what `measure` takes."
    step: int = 1
    "It looks at every so manieth image alone, and the ones behind it."

    def look(self, count: int) -> Look:
        """What is found at `count` images."""

        def find(items: Sequence[int], images: np.ndarray) -> dict[str, np.ndarray]:
            chosen = [k for k, item in enumerate(items) if item % self.step == 0 and item + self.step <= count]
            rows = self.measure.measure(*self.beside([items[k] for k in chosen], images[chosen])) if chosen else np.zeros(0)
            found = np.zeros((len(items), *rows.shape[1:]), rows.dtype)
            found[chosen] = rows
            return {self.name: found}

        return Look((self.name,), [self.name, self.identity], find)

    def conclude(self, found: np.ndarray) -> Figure:
        """The figure of what was found at all images."""
        whole = len(found) // self.step * self.step
        return self.measure.conclude(found[: whole : self.step])


def prepared(
    names: Sequence[str], subject: Subject, reference: Reference | None, request: SingleRequest, *, world: World, drop: Drop
) -> list[Prepared]:
    """Those of the metrics that can be measured; the others are dropped. No weights of a run that makes images are read."""
    ready = []
    for name in names:
        try:
            ready.append(_prepared(name, subject, reference, request, world))
        except UserError as error:
            drop([name], error)
    return ready


def _prepared(name: str, subject: Subject, reference: Reference | None, request: SingleRequest, world: World) -> Prepared:
    metric, settings = PAIR_METRICS[name], request.settings
    if metric.needs == "truth":
        truth = _truth(subject, reference)
        if world.is_main and (other_names := _other_names(subject, reference)) is not None:
            warnings.warn(other_names, stacklevel=4)
        measure = metric.make(settings, world.device)
        measure.measure(_blank(subject), _blank(subject))  # small images are refused before any are made
        return Prepared(name, measure, {**measure.identity, **_truth_set(subject, reference)}, lambda items, images: (images, truth(items)))
    if metric.needs == "answers":
        answers = subject.maker.request.style_count if isinstance(subject, RunSide) else 1
        if not isinstance(subject, RunSide) or answers < 2:
            raise DataError("it compares several answers to one input: of a model that translates, with --style-count 2 or more")
        measure = metric.make(settings, world.device)
        measure.measure(np.stack([_blank(subject)] * answers, axis=1), None)
        return Prepared(name, measure, dict(measure.identity), _answers(subject, answers), answers)
    if metric.needs == "label maps":
        return _of_maps(name, subject, request, world)
    return _of_classes(name, subject, request, world)


def _blank(subject: Subject) -> np.ndarray:
    """An image of its size, uint8 (1, h, w, c)."""
    assert subject.size is not None and subject.channels is not None
    return np.zeros((1, *subject.size, subject.channels), np.uint8)


# Truth and answers ------------------------------------------------------------------------------------------------------


def _truth(subject: Subject, reference: Reference | None) -> Callable[[Sequence[int]], np.ndarray]:
    """From the numbers of images to the true ones."""
    if isinstance(subject, RunSide):
        if not subject.maker.has_truth:
            raise DataError("nobody knows the true images: it needs a model of pairs, or one that enlarges or encodes images")
        return lambda items: subject.pictures.truth(items)  # type: ignore[misc]  (has_truth)
    if not isinstance(reference, PictureSide) or len(reference) != len(subject):
        raise DataError("it compares image by image: give the true images as reference, as many, under the same names")
    if reference.channels != subject.channels:
        raise DataError("it compares value by value, but one of the two sets is grey and the other is in colour")
    return reference.pictures.images


def _other_names(subject: Subject, reference: Reference | None) -> str | None:
    """What is said where two sets of files that are compared image by image have other names, by which their order may be another one."""
    if not isinstance(subject, PictureSide) or not isinstance(reference, PictureSide):
        return None
    one, other = subject.pictures, reference.pictures
    if not isinstance(one, StoredPictures) or not isinstance(other, StoredPictures):
        return None
    for item in range(len(one)):
        name, beside = one.stem(item), other.stem(item)
        if name is not None and beside is not None and name != beside:
            names = f"{one.items.describe(item)} beside {other.items.describe(item)}"
            return f"images are compared in the order of their names, which differ: {names}"
    return None


def _truth_set(subject: Subject, reference: Reference | None) -> dict[str, Any]:
    """The set that the truth of images is, on which their figures depend too; a run's own truth is part of what its images are."""
    if isinstance(subject, RunSide) or not isinstance(reference, PictureSide):
        return {}
    return {"truth": {name: value for name, value in reference.identity().items() if name not in ("path", "kind")}}


def _answers(subject: RunSide, count: int) -> Callable[[Sequence[int], np.ndarray], tuple[np.ndarray, None]]:
    def beside(items: Sequence[int], images: np.ndarray) -> tuple[np.ndarray, None]:
        return np.stack([subject.pictures.images(range(item, item + count)) for item in items]), None

    return beside


# Label maps -------------------------------------------------------------------------------------------------------------


def _of_maps(name: str, subject: Subject, request: SingleRequest, world: World) -> Prepared:
    if not isinstance(subject, RunSide) or subject.maker.class_map is None:
        raise DataError("it needs a model that makes images of label maps")
    spec = subject.maker.class_map
    if request.label_maps is None:
        advice = "keep the images by --keep-samples FOLDER, let a segmenter make their label maps, and name those by --label-maps"
        raise DataError(f"it needs label maps of the images: {advice}")
    folder = Path(request.label_maps)
    ignored = request.settings.ignore_index is None and (spec.dont_care or spec.blank)
    settings = request.settings.updated(
        {
            "num_classes": request.settings.num_classes or spec.num_classes,
            "ignore_index": spec.num_classes if ignored else request.settings.ignore_index,
        }
    )
    names = png_names(len(subject))
    missing = [each for each in names if not (folder / each).is_file()]
    if missing:
        raise DataError(f"{folder}: has no {missing[0]}; it should hold a label map for each of the {len(names)} images, under their names")
    measure = PAIR_METRICS[name].make(settings, world.device)

    def beside(items: Sequence[int], images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        truth = subject.pictures.maps(items)  # type: ignore[misc]  (class_map)
        return np.stack([_map(folder / names[item], truth.shape[1:]) for item in items]), truth

    return Prepared(name, measure, {**measure.identity, "label_maps": stamp(folder)}, beside)


def _map(path: Path, size: tuple[int, ...]) -> np.ndarray:
    """A label map, int64 (h, w). Raises DataError."""
    try:
        with Image.open(path, formats=("PNG",)) as image:
            values = np.asarray(image)
    except Exception as error:
        raise DataError(f"{path}: cannot be read as a PNG ({error})") from error
    if values.ndim != 2 or values.shape != size:
        has = "x".join(map(str, values.shape))
        raise DataError(f"{path}: expected a class for each of {size[0]}x{size[1]} pixels (height, width), in one channel; got {has}")
    return values.astype(np.int64)


# Classes ----------------------------------------------------------------------------------------------------------------


def _of_classes(name: str, subject: Subject, request: SingleRequest, world: World) -> Prepared:
    if not subject.labelled:
        raise DataError(f"{subject.name} has images without classes")
    if request.classifier is None:
        raise DataError("it needs to be told what the images show: name a run of a classifier, or a network with classes, by --classifier")
    assert subject.size is not None and subject.channels is not None
    classifier = open_classifier(request.classifier, size=subject.size, channels=subject.channels, world=world)
    if classifier.spec is not None and isinstance(subject, RunSide) and subject.run.spec.num_classes is not None:
        renumbered(subject.run.spec, classifier.spec, name=subject.name, some=True)
    measure = PAIR_METRICS[name].make(request.settings, world.device)

    def beside(items: Sequence[int], images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return classifier.logits(images), _labels(subject, classifier, items)

    identity = {**measure.identity, "classifier": classifier.identity}
    if not isinstance(subject, RunSide):  # what a run's images are tells their classes
        labels = np.ascontiguousarray(_labels(subject, classifier, range(len(subject))), dtype="<i8")
        identity["labels"] = hashlib.sha256(labels.tobytes()).hexdigest()
    return Prepared(name, measure, identity, beside)


def _labels(subject: Subject, classifier: ImageClassifier, items: Sequence[int]) -> np.ndarray:
    """The classes of images, as the classifier numbers them."""
    labels, classes = subject.labels_and_classes
    own = labels[np.asarray(items)]
    if classes is None or classifier.spec is None:
        return own
    return renumbered(classes, classifier.spec, name=subject.name, some=True)[own]
