"""Measuring a trained model on images.

`evaluate` opens the run and the images, lets every metric look at each batch, and makes figures of what they found at all images.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch

from triptych import __version__
from triptych.core.batch import Batch, DataSpec
from triptych.core.config import settings_like
from triptych.core.errors import ConfigError, DataError, RunError
from triptych.core.given import shown, whole_number
from triptych.core.rng import Rng
from triptych.core.wording import counted
from triptych.data.config import DataConfig
from triptych.data.images import ImageSet
from triptych.data.loader import evaluation_batches
from triptych.data.skipping import Chosen, Spread
from triptych.engine.distributed import World
from triptych.engine.precision import autocast
from triptych.engine.progress import Watch, unwatched
from triptych.evaluation.bits_per_dim import BitsPerDimConfig
from triptych.evaluation.catalogue import METRICS
from triptych.evaluation.metric import Collected, Findings, ImageMetric
from triptych.nn.precision import without_tf32
from triptych.runs.bad_images import readable_images
from triptych.runs.figure_files import figures_place, place_in_run, taken_since, write_figures
from triptych.runs.files import check_figures
from triptych.runs.given.classes import renumbered
from triptych.runs.given.data_images import check_split, contents, of_split
from triptych.runs.given.end_to_end import EndToEnd
from triptych.runs.given.pictures import Split
from triptych.runs.loading import Loading, LoadingKeywords
from triptych.runs.metric_names import require_known
from triptych.runs.stored import Opened, StoredRun
from triptych.runs.work import Part, Within, Work, done

FORMAT = 1
_KINDS = ("each", "summed", "same")


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


@dataclass(frozen=True)
class Images:
    """The images that are to be looked at."""

    chosen: ImageSet
    "Whose `numbers` are those within the split."
    split: Split
    available: int
    "How many the split has."


def open_images(config: DataConfig, spec: DataSpec, *, split: Split | None, count: int | None, conditional: bool) -> Images:
    """The images that are asked for, as the model of a run on `spec` takes them, with its labels where it is `conditional`.

    Raises ConfigError or DataError for images that do not fit the run, for a split that is not there, and for too large a count.
    """
    if spec.latents is not None:
        raise ConfigError("metrics", "got bits-per-dim, which are of images, but this run learns latents; measure its samples")
    name = config.path or config.source
    data = dataclasses.replace(config, channels=3 if spec.channels == 3 else 1).open()
    if data.spec.image_size != spec.image_size:
        raise ConfigError("data.image_size", f"got {data.spec.image_size}, but the run's images have {spec.image_size} pixels")
    split = split or ("train" if data.validation is None else "validation")
    sets = of_split(data, split, name=name)
    available = sum(map(len, sets))
    count = available if count is None else count
    if count > available:
        raise ConfigError("count", f"got {count}, expected 1 to {available}, the images that are there (split {split})")
    labels = _labels(sets, data.spec, spec, name=name) if conditional else None
    return Images(Spread(EndToEnd(sets, labels=labels), count), split, available)


def _without_bad(images: Images, world: World) -> Images:
    """Those that can be read, where data.on_error is skip; the others are warned of. Raises DataError where none can."""
    bad: dict[str, str] = {}
    good = readable_images(images.chosen, np.arange(len(images.chosen)), world, bad)
    for key, why in sorted(bad.items()):  # each process those that it looked at
        warnings.warn(f"cannot be read, and is left out: {key}: {why}", stacklevel=3)
    if not len(good):
        raise DataError(f"of {counted(len(images.chosen), 'image')} none can be read")
    return images if len(good) == len(images.chosen) else dataclasses.replace(images, chosen=Chosen(images.chosen, good))


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

    `split`: None for the held-out images, or those of the training where there are none. `count`: so many of them, spread evenly; None:
    all. `out`: a .json, beside which goes an .npz; None: a name in the run's folder evaluations. An interrupted call goes on where it was.
    `progress` is told how many of this process's images are done, and how many there are.
    Raises ConfigError, CheckpointError and DataError for what does not fit or cannot be read or written, RunError for infinities.
    """
    count = None if count is None else whole_number(count, "count", least=1)
    seed = whole_number(seed, "seed", least=0)
    require_known(metrics, METRICS)
    if not metrics:
        raise ConfigError("metrics", f"got {shown(metrics)}, expected a list of names")
    check_split(split)
    if not isinstance(data, DataConfig | None):
        raise ConfigError("data", f"got {shown(data)}, expected a DataConfig")
    settings, place = settings_like(BitsPerDimConfig(), settings), figures_place(out)
    opened = run.open_together(Loading(**loading))
    config, batch_size = data or run.config.data, opened.loading.batch_size or min(64, run.config.train.at_once(1))
    model, world = opened.model.requires_grad_(False), opened.world
    measures = {name: METRICS[name].make(model, settings) for name in metrics}
    images = open_images(config, run.spec, split=split, count=count, conditional=model.num_classes is not None)
    images = _without_bad(images, world)
    if split is None and images.split == "train" and world.is_main:
        warnings.warn("the data has no held-out images: those of the training are used", stacklevel=2)
    with world.patience("reading images"):
        hashed = world.on_main(lambda: contents(images.chosen))
    document = _asked(measures, images, run.spec, opened, seed=seed, data=config, hashed=hashed)
    if place is None:
        place = place_in_run(run.directory, measures, images=int(opened.origin["images"]), asked=document)
        check_figures(place)
    started = time.monotonic()

    def conclude(parts: Iterable[Part]) -> Evaluation:
        collected = _collected(parts, measures)
        findings = {name: metric.conclude(collected[name]) for name, metric in measures.items()}
        return _result(document, findings, images.chosen.numbers, taken_since(started, world), place)

    def make(items: Sequence[int], within: Within) -> Iterator[Part]:
        for part, batch in _batches(images.chosen, items, batch_size=batch_size, device=world.device):
            yield part, _measured(measures, batch, seed=seed, precision=opened.loading.precision)

    def write(out: Path, result: Evaluation) -> None:
        write_figures(out, result.document, result.arrays)

    work = Work(len(images.chosen), document, make)
    return done(work, place, world=world, progress=progress, kept="measured", conclude=conclude, write=write)


def _asked(
    metrics: Mapping[str, ImageMetric], images: Images, spec: DataSpec, opened: Opened, *, seed: int, data: DataConfig, hashed: str
) -> dict[str, Any]:
    """All that the answer depends on, for JSON. `hashed`: the hash of the images."""
    loading = ("workers", "flip", "crop", "augment", "anchor_size", "order")  # of training: without effect here
    settings = {name: value for name, value in data.to_dict().items() if name not in loading}
    return {
        "triptych": __version__,
        "checkpoint": dict(opened.origin),
        "metrics": {name: metric.settings for name, metric in metrics.items()},
        "seed": seed,
        "precision": opened.loading.precision,
        "data": settings | {"split": images.split, "available": images.available, "contents": hashed},
        "images": len(images.chosen),
        "shape": [spec.channels, spec.image_size, spec.image_size],
    }


def _batches(chosen: ImageSet, items: Sequence[int], *, batch_size: int, device: torch.device) -> Iterator[tuple[range, Batch]]:
    """The batches of some of the images; `index` holds the images' numbers in their split."""
    part = Chosen(chosen, np.asarray(items))
    for raw in evaluation_batches(part, batch_size=batch_size, workers=chosen.config.workers):
        first = items[int(raw.index[0])]
        numbered = dataclasses.replace(raw, index=torch.from_numpy(part.numbers[raw.index.numpy()]))
        yield range(first, first + len(raw)), numbered.to(device)


def _measured(metrics: Mapping[str, ImageMetric], batch: Batch, *, seed: int, precision: str) -> dict[str, np.ndarray]:
    """What the metrics find at a batch, by METRIC/KIND/NAME. Raises RunError where it is not finite."""
    found = {}
    for metric, measure in metrics.items():
        with without_tf32(), autocast(precision, device=batch.images.device):
            measured = measure.measure(batch, Rng(seed, ("evaluate", metric), batch.index))
        for values in measured.each.values():
            wrong = ~values.isfinite()
            if wrong.any():
                k = int(wrong.nonzero()[0])
                raise RunError(f"{metric}: image {int(batch.index[k])} gives {float(values[k])}; try precision float32, or more steps")
        for kind in _KINDS:
            found |= {f"{metric}/{kind}/{name}": values.cpu().numpy() for name, values in getattr(measured, kind).items()}
    return found


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
