"""Scoring images: of a run, or of a set that lies somewhere, against a reference.

`score` opens both sides, says where a call cannot succeed, and lets every metric look at what a network says of them. A metric that
cannot be measured does not stop the others.
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, Unpack, cast

import numpy as np

from triptych.core.errors import ConfigError, DataError, UserError
from triptych.core.given import optional_place, shown, whole_number
from triptych.core.npz import open_npz
from triptych.core.reading import parsed_json
from triptych.engine.distributed import World, open_world
from triptych.engine.progress import Watch, unwatched
from triptych.evaluation.feature_set import FeatureSet, Figure, SetMetricConfig
from triptych.evaluation.feature_space import SPACES, Embedder, check_space, default_space, open_space
from triptych.evaluation.set_metric import SET_METRICS
from triptych.runs.embedding import network
from triptych.runs.figure_files import figures_place, place_in_run, taken_since, write_figures
from triptych.runs.files import check_place, check_unlearned, writing
from triptych.runs.given.pictures import Split, open_pictures
from triptych.runs.kept_images import check_target, keep
from triptych.runs.loading import Loading, LoadingKeywords
from triptych.runs.metric_names import (
    COPIES,
    FID,
    FRECHET,
    INCEPTION,
    Wanted,
    figure_name,
    is_fid,
    metric_name,
    metric_names,
    needs_reference,
)
from triptych.runs.model_images import TRAINING, ImageRequest
from triptych.runs.nearest_pairs import write_pairs
from triptych.runs.pieces import digest_of
from triptych.runs.protocol import commit, protocol_of
from triptych.runs.sides import (
    ImageSize,
    PictureSide,
    Reference,
    RunSide,
    Subject,
    check_sizes,
    is_run,
    reference_side,
    stored_run,
)
from triptych.runs.single_images import Prepared, SingleRequest, prepared
from triptych.runs.stored import StoredRun

Opened = TypeVar("Opened", bound=Reference | None)

FORMAT = 1


@dataclass(frozen=True)
class Scores:
    """What was measured, as it is in the file `out` where there is one."""

    figures: dict[str, Figure]
    "By name, in the order in which they were asked for."
    missing: dict[str, str]
    "Why a metric was not measured, by name."
    protocol: dict[str, Any]
    "How it was measured; JSON."
    settings: Mapping[str, Any]
    "Those of the metrics; JSON."
    out: Path | None = None
    already: bool = False
    "Whether it had been measured before, and was read."

    def to_dict(self) -> dict[str, Any]:
        """What the file holds, but for the time that it took."""
        # JSON has no infinity: PSNR has, of images that are their truth.
        figures = {
            name: {"value": figure.value if math.isfinite(figure.value) else str(figure.value), "error": figure.error, **figure.details}
            for name, figure in self.figures.items()
        }
        settings = {"settings": dict(self.settings)} if self.settings else {}
        return {"format": FORMAT, "figures": figures, "missing": self.missing, "protocol": self.protocol, **settings}


def score(
    images: str | Path | StoredRun,
    reference: str | Path | StoredRun | None = None,
    *,
    metrics: Sequence[str] | None = None,
    features: str | None = None,
    features_weights: str | Path | None = None,
    features_resize: str | None = None,
    request: ImageRequest | None = None,
    split: Split | None = None,
    count: int | None = None,
    image_size: ImageSize = None,
    settings: SetMetricConfig | None = None,
    single: SingleRequest | None = None,
    out: str | Path | None = None,
    keep_samples: str | Path | None = None,
    progress: Watch = unwatched,
    **loading: Unpack[LoadingKeywords],
) -> Scores:
    """The figures of images against a reference, in every process; also written to `out`, a .json.

    `images`: a run, or a folder, .zip, .tar, .npz or .npy. `reference`: likewise, or a file of statistics; None: of a run its training
    images, or those of `split`. `metrics`: None for `USUAL`. `features`: the network's name in SPACES; None: see `default_space`.
    `features_weights`: the file of its weights; None: that of the user's cache. `request`, `count`: which images a run makes, and how
    many, also a run that a set is held against; None: as many as the reference has, at most 10,000. `image_size`: of two sets, a side, or
    height and width. `settings`: of the metrics that compare sets; `single`: what the others are told, which look at one image after the
    other. `out`: None for a name in the run's folder evaluations, for sets: nowhere. `keep_samples`: a folder or .npz for the images that a
    run makes. An interrupted call goes on where it was, and a finished one is read.

    Raises ConfigError, CheckpointError and DataError where nothing can be measured, RunError for outputs that are not finite.
    """
    _require_places(images=images, **({} if reference is None else {"reference": reference}))
    chosen, settings, request = Loading(**loading), settings or SetMetricConfig(), request or ImageRequest()
    single, count = single or SingleRequest(), None if count is None else whole_number(count, "count")
    place, kept = _places(out, keep_samples, read=(images, reference))
    wanted = Wanted(metric_names(metrics))
    check_space(features, features_resize)
    world = open_world(chosen.device)

    def open_subject() -> Subject:
        own = None if is_run(reference) else count  # of a set it is the run's that it is held against
        return _subject(images, image_size=image_size, count=own, kept=kept, request=request, loading=chosen)

    subject = _main_first(open_subject, world)
    if isinstance(subject, RunSide) and place is not None and COPIES in wanted.names:
        check_unlearned(_copies_at(place), subject.run.config.data)
    other = None
    if any(needs_reference(name, subject) for name in wanted.names):
        other = _main_first(
            lambda: reference_side(reference, subject, split=split, image_size=image_size, request=request, loading=chosen), world
        )
    else:
        _refuse_reference(reference, split, wanted)
    _check_sides(subject, other, chosen, request, world)
    if metrics is None and other is not None and not other.each:
        wanted = Wanted([FRECHET])
    _decide(subject, other, count)
    embedder = _embedder(wanted, world, features=features, weights=features_weights, resize=features_resize)
    drop_impossible(wanted, embedder, other)
    looks = prepared(wanted.of_images(), subject, other, single, world=world, drop=wanted.drop)
    task = Task(subject, other, embedder, wanted, looks, settings, world, progress)
    asked = task.asked()
    if place is None and isinstance(subject, RunSide):
        place = place_in_run(subject.run.directory, wanted.names, images=asked["weights"]["images"], asked=asked)
        check_place(place)
    if kept is not None and isinstance(subject, RunSide):
        keep(subject.pictures, kept, world=world, progress=progress)
    if place is not None and (found := world.on_main(lambda: _read(place, digest_of(asked)))) is not None:
        return found
    return measured(task, place)


# Before the weights are read --------------------------------------------------------------------------------------------


def _require_places(**sides: object) -> None:
    """Raises ConfigError for what is neither a path nor a run, and for an empty path."""
    for name, given in sides.items():
        if not isinstance(given, str | Path | StoredRun) or given == "":  # which would be the current folder
            raise ConfigError(name, f"got {shown(given)}, expected a path or a run; of images in memory, write them to a folder or .npz")


def _places(out: str | Path | None, keep_samples: str | Path | None, *, read: Sequence[object]) -> tuple[Path | None, Path | None]:
    """Where figures and images go. Raises ConfigError or DataError where they cannot."""
    place = figures_place(out)
    kept = optional_place(keep_samples, "keep_samples")
    if kept is not None:
        check_target(kept, read)
    return place, kept


def _main_first(opened: Callable[[], Opened], world: World) -> Opened:
    """A side, opened by the main process before the others: what it finds in all images of a set, these take from the user's cache."""

    def in_main() -> None:
        nonlocal side
        side = opened()
        if isinstance(side, PictureSide):
            side.identity()
            for note in getattr(side.pictures, "notes", ()):
                warnings.warn(note.removeprefix("warning: "), stacklevel=4)

    side: Opened | None = None
    with world.patience("reading images"):
        world.on_main(in_main)
    return cast(Opened, side) if world.is_main else opened()


def _decide(subject: Subject, reference: Reference | None, count: int | None) -> None:
    """How many images runs make."""
    if isinstance(reference, RunSide):
        reference.decide(count if isinstance(subject, PictureSide) else None, reference=count or 0)
    if isinstance(subject, RunSide):
        subject.decide(count, reference=0 if reference is None else len(reference))


def _refuse_reference(reference: str | Path | StoredRun | None, split: Split | None, wanted: Wanted) -> None:
    """Raises ConfigError for a reference, or a part of the run's images as one, where nothing that is measured needs it."""
    for setting, given in (("reference", reference), ("split", split)):
        if given is not None:
            names = ", ".join(wanted.names)
            raise ConfigError(setting, f"got {given}, but nothing that is measured ({names}) needs a reference; leave it out")


def _subject(
    images: str | Path | StoredRun, *, image_size: ImageSize, count: int | None, kept: Path | None, request: ImageRequest, loading: Loading
) -> Subject:
    if is_run(images):
        if image_size is not None:
            raise ConfigError(
                "image_size", f"got {image_size}, but a run's images have its size, and the reference is cut to it; leave it out"
            )
        run = stored_run(images)
        if kept is not None:
            check_unlearned(kept, run.config.data, option="--keep-samples")
        return RunSide(run, request, loading)
    if count is not None:
        raise ConfigError("count", f"got {count}, but {images} is a set, of which all images count; leave it out")
    if kept is not None:
        raise ConfigError("keep_samples", f"got {str(kept)!r}, but {images} is a set already; leave it out")
    of_runs = [field.name for field in dataclasses.fields(request) if field.name != "seed"]
    request.refuse(of_runs, f"{images} is no run, which makes its images so")
    return PictureSide(open_pictures(images, image_size=image_size), str(images))  # type: ignore[arg-type]  (is_run: no StoredRun)


def _refuse_settings_of_runs(images: str, chosen: Loading, request: ImageRequest, *, drawn: bool) -> None:
    """Raises ConfigError for what is said of a run's images where these are a set. `drawn`: the reference is a run."""
    of_weights = {"checkpoint": "latest", "weights": None, "ema_length": None}
    of_samples = {} if drawn else {"precision": Loading().precision, "seed": ImageRequest().seed}
    given = {**{name: getattr(chosen, name) for name in (*of_weights, "precision")}, "seed": request.seed}
    for name, usual in (of_weights | of_samples).items():
        if given[name] != usual:
            of = "its reference is taken with the newest weights and its first average" if drawn else "no run makes images here"
            raise ConfigError(name, f"got {given[name]!r}, but {images} is a set of images, and {of}; leave it out")


def _check_sides(subject: Subject, reference: Reference | None, chosen: Loading, request: ImageRequest, world: World) -> None:
    if isinstance(subject, PictureSide):
        _refuse_settings_of_runs(subject.name, chosen, request, drawn=isinstance(reference, RunSide))
    check_sizes(subject, reference)
    if world.is_main and isinstance(subject, RunSide) and getattr(subject.maker, "inputs", None) == TRAINING:
        warnings.warn("the run has no held-out images: its images are made of those of the training", stacklevel=3)
    if isinstance(subject, PictureSide) and isinstance(reference, PictureSide):
        one, other = ({k: v for k, v in side.identity().items() if k not in ("path", "kind")} for side in (subject, reference))
        if one == other:
            warnings.warn(f"{subject.name} and {reference.name} hold the same images: a trial, but no figure of a model", stacklevel=3)


def _embedder(wanted: Wanted, world: World, *, features: str | None, weights: str | Path | None, resize: str | None) -> Embedder | None:
    if not wanted.of_sets():
        return None
    if features is None and FID in wanted.names:
        features = INCEPTION
    try:
        name = features or default_space()
        return open_space(name, weights=None if weights is None else Path(weights), resize=resize, device=world.device)
    except UserError as error:
        wanted.drop(wanted.of_sets(), error)
        return None


def drop_impossible(wanted: Wanted, embedder: Embedder | None, reference: Reference | None) -> None:
    """Takes out the metrics that the network or the reference has not enough for."""
    if embedder is None:
        return
    for name in wanted.of_sets():
        metric = SET_METRICS[metric_name(name)]
        lacking = [output for output in metric.outputs if output not in embedder.outputs]
        if name == FID and not is_fid(embedder):
            wanted.drop([name], f"FID is the distance in the space {INCEPTION} alone, with its own resize; frechet measures it here")
        elif lacking:
            able = [space for space, entry in SPACES.items() if set(metric.outputs) <= set(entry.outputs)]
            has = f"{', '.join(able) or 'no network'} {'have' if len(able) > 1 else 'has'} it"
            wanted.drop([name], f'{embedder.name} has no "{lacking[0]}"; {has}')
        elif metric.reference != "none" and reference is None:
            wanted.drop([name], "it compares with a reference; give one")
        elif metric.reference != "none" and reference is not None and len(reference) == 1:
            wanted.drop([name], f"there is one image to compare with ({reference.name}), and it takes 2")
        elif metric.reference == "features" and reference is not None and not reference.each:
            wanted.drop([name], f"{reference.name} holds statistics alone; give its images")


def _read(place: Path, digest: str) -> Scores | None:
    """What a file holds, where it was made of the same."""
    try:
        document = parsed_json(place.read_text("utf-8"))
        if document["digest"] != digest:
            return None
        figures = {name: _figure(values) for name, values in document["figures"].items()}
        arrays = _arrays(place.with_suffix(".npz"))
        figures = {name: dataclasses.replace(figure, arrays=arrays.get(name, {})) for name, figure in figures.items()}
        return Scores(figures, document["missing"], document["protocol"], document.get("settings", {}), place, already=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _figure(values: Mapping[str, Any]) -> Figure:
    return Figure(
        float(values["value"]), values["error"], {name: value for name, value in values.items() if name not in ("value", "error")}
    )


def _arrays(place: Path) -> dict[str, dict[str, np.ndarray]]:
    """The numbers by image beside a file of figures, by figure and kind. Raises OSError and ValueError for a damaged file."""
    found: dict[str, dict[str, np.ndarray]] = {}
    if place.exists():
        with open_npz(place) as file:
            for name in file.names:
                figure, _, kind = name.rpartition("/")
                found.setdefault(figure, {})[kind] = file.array(name)
    return found


# Measuring --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """What is measured, and by whom."""

    subject: Subject
    reference: Reference | None
    embedder: Embedder | None
    wanted: Wanted
    looks: Sequence[Prepared]
    settings: SetMetricConfig
    world: World
    progress: Watch

    def asked(self) -> dict[str, Any]:
        """All that the figures depend on, for JSON."""
        names = sorted([*self.wanted.names, *self.wanted.missing])
        protocol = protocol_of(self.subject, self.reference, self.embedder)
        if self.looks:
            protocol["single_images"] = {look.name: look.identity for look in self.looks}
        return {"metrics": names, "settings": self.settings.to_dict(), **protocol}


def measured(task: Task, place: Path | None = None) -> Scores:
    """The figures, in every process; the main one writes them to a `place`. Raises ConfigError where none can be measured."""
    started = time.monotonic()
    references = reference_features(task)
    looks = [look.look(len(task.subject)) for look in task.looks]
    if task.embedder is not None and task.wanted.of_sets():
        outputs = {output for name in task.wanted.of_sets() for output in SET_METRICS[metric_name(name)].outputs}
        looks.append(network(task.embedder, task.world.device, None if task.subject.kept else outputs))
    found = task.subject.looked_at(looks, world=task.world, progress=task.progress)
    with task.world.patience("measuring"):
        outcomes = task.world.on_main(lambda: dict(_figures(task, found, references)))
    figures = {figure_name(name, task.embedder): outcome for name, outcome in outcomes.items() if isinstance(outcome, Figure)}
    for name, outcome in outcomes.items():
        if isinstance(outcome, str):
            task.wanted.drop([name], outcome)
    asked = task.asked()  # once more, for the weights are known for certain now
    protocol = {name: value for name, value in asked.items() if name not in ("metrics", "settings")} | {"commit": commit()}
    protocol["network_calls"] = task.subject.network_calls
    scores = Scores(figures, task.wanted.missing, protocol, asked["settings"], place)
    if place is not None:
        _show_copies(task, figures.get(COPIES), place)
        with writing(place, world=task.world):
            task.world.on_main(lambda: write_scores(place, scores, {"digest": digest_of(asked), **taken_since(started, task.world)}))
    return scores


def _show_copies(task: Task, copies: Figure | None, place: Path) -> None:
    """A picture of the nearest pairs beside the figures, where copies were counted."""
    if copies is None or not isinstance(task.reference, PictureSide | RunSide) or not isinstance(task.subject, PictureSide | RunSide):
        return
    made, reference = task.subject.pictures, task.reference.pictures
    with writing(place, world=task.world), task.world.patience("showing copies"):
        if task.world.is_main:
            write_pairs(_copies_at(place), made, reference, copies.details["pairs"])


def _copies_at(place: Path) -> Path:
    """The picture of the nearest pairs beside a file of figures."""
    return place.with_name(f"{place.stem}-copies.png")


def reference_features(task: Task) -> dict[str, FeatureSet]:
    """What is known of the reference, by output. Takes out the metrics of which it lacks something."""
    known: dict[str, FeatureSet] = {}
    for name in task.wanted.of_sets():
        metric = SET_METRICS[metric_name(name)]
        if metric.reference == "none":
            continue
        assert task.reference is not None and task.embedder is not None
        (output,) = metric.outputs
        each = any(SET_METRICS[metric_name(other)].reference == "features" for other in task.wanted.of_sets())
        try:
            if output not in known:
                known[output] = task.reference.features(task.embedder, output, each=each, world=task.world, progress=task.progress)
        except DataError as error:
            task.wanted.drop([name], error)
    return known


def _figures(task: Task, found: Mapping[str, np.ndarray], references: Mapping[str, FeatureSet]) -> Iterator[tuple[str, Figure | str]]:
    """The figures, or why there is none."""
    made, looks = FeatureSet(found), {look.name: look for look in task.looks}
    for name in task.wanted.names:
        try:
            if name in looks:
                yield name, looks[name].conclude(found[name])
            else:
                metric = SET_METRICS[metric_name(name)]
                yield name, metric.measure(made, references.get(metric.outputs[0]) if metric.reference != "none" else None, task.settings)
        except UserError as error:
            yield name, str(error)


def write_scores(out: Path, scores: Scores, further: Mapping[str, Any]) -> None:
    """Writes the numbers by image, and then the figures, with `further` entries, each whole or not at all."""
    arrays = {f"{name}/{kind}": values for name, figure in scores.figures.items() for kind, values in figure.arrays.items()}
    write_figures(out, scores.to_dict() | dict(further), arrays)


def write_sweep(setting: str, found: Mapping[str, Scores], out: Path | None = None, *, device: str | None = None) -> Path | None:
    """Where the scores at several values of a setting are in one .json: `out`, or a name beside theirs; None: these are in no files.

    All processes call it, with the `device` of `score`. Raises DataError where it cannot be written.
    """
    files = [scores.out for scores in found.values() if scores.out is not None]
    if out is None and files:
        out = files[0].parent / f"sweep-{setting}-{digest_of([file.name for file in files])[:6]}.json"
    if out is None:
        return None
    world = open_world(device)
    parts = [{"setting": setting, "value": value, **scores.to_dict()} for value, scores in found.items()]
    with writing(out, world=world):
        world.on_main(lambda: write_figures(out, {"format": FORMAT, "sweep": parts}, {}))
    return out
