"""Measuring a trained model on images.

`evaluate` opens the run and the images, lets every metric look at each batch, and makes figures of what they found at all images.
"""

from __future__ import annotations

import dataclasses
import json
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Unpack, get_args

import numpy as np
import torch

from triptych import __version__
from triptych.core.batch import Batch, DataSpec
from triptych.core.config import settings_like
from triptych.core.errors import ConfigError, DataError, RunError
from triptych.core.files import write_text
from triptych.core.given import given_path, shown, whole_number
from triptych.core.rng import Rng
from triptych.data.config import DataConfig
from triptych.data.images import ImageSet, Loaded
from triptych.data.loader import evaluation_batches
from triptych.data.skipping import spread
from triptych.engine.distributed import World
from triptych.engine.precision import autocast
from triptych.engine.progress import Watch, unwatched
from triptych.evaluation.bits_per_dim import BitsPerDimConfig
from triptych.evaluation.catalogue import METRICS
from triptych.evaluation.metric import Collected, Findings, ImageMetric, Measured
from triptych.nn.precision import without_tf32
from triptych.runs.bad_images import readable_images
from triptych.runs.files import check_figures, save_npz
from triptych.runs.given.classes import renumbered
from triptych.runs.given.data_images import contents
from triptych.runs.loading import Loading, LoadingKeywords
from triptych.runs.metric_names import require_known
from triptych.runs.pieces import digest_of
from triptych.runs.stored import StoredRun
from triptych.runs.work import Part, Within, Work, done

FORMAT = 1
Split = Literal["validation", "train", "all"]
_KINDS = ("each", "summed", "same")


@dataclass(frozen=True)
class EvaluationRequest:
    """What is to be measured. What a metric finds at an image depends on these and on the image's number alone."""

    metrics: tuple[str, ...]
    settings: BitsPerDimConfig
    data: DataConfig
    split: Split | None
    "None: the held-out images, or those of the training where there are none."
    count: int | None
    "So many of the images, spread evenly over them; None: all."
    seed: int
    precision: str


@dataclass(frozen=True)
class Evaluation:
    """What was measured, as it is in the files: `out` and, of the same name, an .npz."""

    figures: dict[str, dict[str, float | None]]
    "By metric; the first is the metric itself, the second its standard error over the images."
    arrays: dict[str, np.ndarray]
    "By image or by timestep; `image` has the numbers of the images within their split."
    document: dict[str, Any]
    "What `out` holds: the figures, the settings, the weights and the data."
    out: Path


class Subset(ImageSet):
    """Some of the images of sets that are put end to end, by their numbers there."""

    def __init__(self, sets: Sequence[ImageSet], numbers: np.ndarray, *, labels: np.ndarray | None) -> None:
        super().__init__(sets[0].config, channels=sets[0].channels, items=numbers, labels=labels)
        self._sets = sets
        self._ends = np.cumsum([len(images) for images in sets])

    @property
    def numbers(self) -> np.ndarray:
        """Which images these are: int64 (n,)."""
        return self._items

    def part(self, items: Sequence[int]) -> Subset:
        """Some of these."""
        chosen = np.asarray(items)
        return Subset(self._sets, self._items[chosen], labels=None if self.labels is None else self.labels[chosen])

    def key(self, item: int) -> str:
        images, number = self._place(int(self._items[item]))
        return images.key(number)

    def content(self, item: int) -> bytes | np.ndarray:
        images, number = self._place(int(self._items[item]))
        return images.content(number)

    def default_workers(self) -> int:
        return max(images.default_workers() for images in self._sets)

    def batch(self, items: np.ndarray, positions: np.ndarray | None = None, *, seed: int = 0) -> Loaded:
        places = [self._place(int(number)) for number in self._items[items]]
        loaded = [images.batch(np.array([number])) for images, number in places]
        bad = {key: why for one in loaded for key, why in one.bad.items()}
        return Loaded(np.concatenate([one.images for one in loaded]), None if self.labels is None else self.labels[items], bad=bad)

    def _place(self, number: int) -> tuple[ImageSet, int]:
        k = int(np.searchsorted(self._ends, number, side="right"))
        return self._sets[k], number - int(self._ends[k]) + len(self._sets[k])


@dataclass(frozen=True)
class Images:
    """The images that are to be looked at."""

    chosen: Subset
    split: Split
    available: int
    "How many the split has."


def open_images(request: EvaluationRequest, spec: DataSpec, *, conditional: bool) -> Images:
    """The images that `request` asks for, as the model of a run on `spec` takes them, with its labels where it is `conditional`.

    Raises ConfigError or DataError for images that do not fit the run, for a split that is not there, and for too large a count.
    """
    if spec.latents is not None:
        raise ConfigError("metrics", "got bits-per-dim, which are of images, but this run learns latents; measure its samples")
    name = request.data.path or request.data.source
    data = dataclasses.replace(request.data, channels=3 if spec.channels == 3 else 1).open()
    if data.spec.image_size != spec.image_size:
        raise ConfigError("data.image_size", f"got {data.spec.image_size}, but the run's images have {spec.image_size} pixels")
    split = request.split or ("train" if data.validation is None else "validation")
    if split == "validation" and data.validation is None:
        raise ConfigError("split", f"got validation, but {name} has no held-out images; use train or all")
    wanted = {"train": [data.train], "validation": [data.validation], "all": [data.train, data.validation]}[split]
    sets = [images for images in wanted if images is not None]
    available = sum(map(len, sets))
    count = available if request.count is None else request.count
    if count > available:
        raise ConfigError("count", f"got {count}, expected 1 to {available}, the images that are there (split {split})")
    numbers = spread(count, available)
    labels = _labels(sets, data.spec, spec, name=name)[numbers] if conditional else None
    return Images(Subset(sets, numbers, labels=labels), split, available)


def _without_bad(images: Images, world: World) -> Images:
    """Those that can be read, where data.on_error is skip; the others are warned of. Raises DataError where none can."""
    bad: dict[str, str] = {}
    good = readable_images(images.chosen, np.arange(len(images.chosen)), world, bad)
    for key, why in sorted(bad.items()):  # each process those that it looked at
        warnings.warn(f"cannot be read, and is left out: {key}: {why}", stacklevel=3)
    if not len(good):
        raise DataError(f"none of the {len(images.chosen)} images can be read")
    return images if len(good) == len(images.chosen) else dataclasses.replace(images, chosen=images.chosen.part(good.tolist()))


def _labels(sets: Sequence[ImageSet], theirs: DataSpec, ours: DataSpec, *, name: str) -> np.ndarray:
    found = [images.labels for images in sets if images.labels is not None]
    if not found:
        raise ConfigError("data.labels", f"this run's model is told the class of each image, but {name} has no labels")
    return renumbered(theirs, ours, name=name, some=True)[np.concatenate(found)]


def evaluate(
    run: StoredRun,
    metrics: Sequence[str] = ("bits-per-dim",),
    *,
    settings: BitsPerDimConfig | None = None,
    data: DataConfig | None = None,
    split: Split | None = None,
    count: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    progress: Watch = unwatched,
    **loading: Unpack[LoadingKeywords],
) -> Evaluation:
    """What the metrics say of the model on images of `data` (None: the run's own), in every process; also written to `out`.

    `split`, `count`: see EvaluationRequest. `out`: a .json, beside which goes an .npz; None: a name in the run's folder evaluations. An
    interrupted call goes on where it was. `progress` is told how many of this process's images are done, and how many there are.
    Raises ConfigError, CheckpointError and DataError for what does not fit or cannot be read or written, RunError for infinities.
    """
    count = None if count is None else whole_number(count, "count", least=1)
    seed = whole_number(seed, "seed", least=0)
    require_known(metrics, METRICS)
    if not metrics:
        raise ConfigError("metrics", f"got {shown(metrics)}, expected a list of names")
    if split is not None and split not in get_args(Split):
        raise ConfigError("split", f"got {shown(split)}, expected {', '.join(get_args(Split))}")
    if not isinstance(data, DataConfig | None):
        raise ConfigError("data", f"got {shown(data)}, expected a DataConfig")
    settings = settings_like(BitsPerDimConfig(), settings)
    opened = run.open_together(Loading(**loading))
    request = EvaluationRequest(tuple(metrics), settings, data or run.config.data, split, count, seed, opened.loading.precision)
    train = run.config.train
    batch_size = opened.loading.batch_size or min(64, train.at_once(1))
    place = None if out is None else given_path(out, "out")
    if place is not None and place.suffix != ".json":
        raise ConfigError("out", f"got {str(place)!r}, expected a name that ends with .json")
    model, world = opened.model.requires_grad_(False), opened.world
    measures = {name: METRICS[name].make(model, request.settings) for name in request.metrics}
    images = _without_bad(open_images(request, run.spec, conditional=model.num_classes is not None), world)
    if request.split is None and images.split == "train" and world.is_main:
        warnings.warn("the data has no held-out images: those of the training are used", stacklevel=2)
    with world.patience("reading images"):
        hashed = world.on_main(lambda: contents(images.chosen))
    document = _asked(request, measures, images, hashed, run.spec, opened.origin)
    if place is None:
        name = f"{'+'.join(measures)}-{opened.origin['images']:09d}-{digest_of(document)[:6]}.json"
        place = run.directory / "evaluations" / name
    check_figures(place)
    started = time.monotonic()

    def conclude(parts: Iterable[Part]) -> Evaluation:
        collected = _collected(parts, measures)
        findings = {name: metric.conclude(collected[name]) for name, metric in measures.items()}
        took = {"seconds": round(time.monotonic() - started, 1), "processes": world.size, "device": world.device.type}
        return _result(document, findings, images.chosen.numbers, took, place)

    def make(items: Sequence[int], within: Within) -> Iterator[Part]:
        for part, batch in _batches(images.chosen, items, batch_size=batch_size, device=world.device):
            yield part, _flat({name: _measure(metric, name, batch, request) for name, metric in measures.items()})

    work = Work(len(images.chosen), document, make)
    return done(work, place, world=world, progress=progress, kept="measured", conclude=conclude, write=_write)


def _asked(
    request: EvaluationRequest,
    metrics: Mapping[str, ImageMetric],
    images: Images,
    hashed: str,
    spec: DataSpec,
    origin: Mapping[str, str | int],
) -> dict[str, Any]:
    """All that the answer depends on, for JSON. `hashed`: the hash of the images."""
    loading = ("workers", "flip", "crop", "augment", "anchor_size", "order")  # of training: without effect here
    data = {name: value for name, value in request.data.to_dict().items() if name not in loading}
    return {
        "triptych": __version__,
        "checkpoint": dict(origin),
        "metrics": {name: metric.settings for name, metric in metrics.items()},
        "seed": request.seed,
        "precision": request.precision,
        "data": data | {"split": images.split, "available": images.available, "contents": hashed},
        "images": len(images.chosen),
        "shape": [spec.channels, spec.image_size, spec.image_size],
    }


def _batches(chosen: Subset, items: Sequence[int], *, batch_size: int, device: torch.device) -> Iterator[tuple[range, Batch]]:
    """The batches of some of the images; `index` holds the images' numbers in their split."""
    part = chosen.part(items)
    for raw in evaluation_batches(part, batch_size=batch_size, workers=chosen.config.workers):
        first = items[int(raw.index[0])]
        numbered = dataclasses.replace(raw, index=torch.from_numpy(part.numbers[raw.index.numpy()]))
        yield range(first, first + len(raw)), numbered.to(device)


def _measure(metric: ImageMetric, name: str, batch: Batch, request: EvaluationRequest) -> Measured:
    with without_tf32(), autocast(request.precision, device=batch.images.device):
        measured = metric.measure(batch, Rng(request.seed, ("evaluate", name), batch.index))
    for values in measured.each.values():
        wrong = ~values.isfinite()
        if wrong.any():
            k = int(wrong.nonzero()[0])
            raise RunError(f"{name}: image {int(batch.index[k])} gives {float(values[k])}; try precision float32, or more steps")
    return measured


def _flat(measured: Mapping[str, Measured]) -> dict[str, np.ndarray]:
    return {
        f"{metric}/{kind}/{name}": values.cpu().numpy()
        for metric, found in measured.items()
        for kind in _KINDS
        for name, values in getattr(found, kind).items()
    }


def _collected(parts: Iterable[Part], metrics: Iterable[str]) -> dict[str, Collected]:
    """What was measured, by metric: the values of all images in order, the sums added up."""
    values: dict[str, Any] = {}
    for _, arrays in parts:
        for key, measured in arrays.items():
            if "/each/" in key:
                values.setdefault(key, []).append(measured)
            else:
                values[key] = values.get(key, 0.0) + measured if "/summed/" in key else measured

    def of(metric: str, kind: str) -> dict[str, Any]:
        start = f"{metric}/{kind}/"
        return {key.removeprefix(start): value for key, value in values.items() if key.startswith(start)}

    return {
        name: Collected({key: np.concatenate(rows) for key, rows in of(name, "each").items()}, of(name, "summed"), of(name, "same"))
        for name in metrics
    }


def _result(document: dict[str, Any], findings: Mapping[str, Findings], numbers: np.ndarray, took: dict[str, Any], out: Path) -> Evaluation:
    figures = {name: found.figures for name, found in findings.items()}
    arrays = {"image": numbers}
    for found in findings.values():
        arrays |= found.arrays
    asked = document["metrics"]
    metrics = {name: {"settings": asked[name], **figures[name]} for name in figures}
    whole = {"format": FORMAT, **document, "metrics": metrics, **took, "arrays": out.with_suffix(".npz").name}
    return Evaluation(figures, arrays, whole, out)


def _write(out: Path, result: Evaluation) -> None:
    """Writes the arrays, and then the figures, each whole or not at all."""
    save_npz(out.with_suffix(".npz"), result.arrays)
    write_text(out, json.dumps(result.document, indent=2) + "\n")
