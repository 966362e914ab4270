"""The figures of a run that `triptych evaluate` wrote into RUN/evaluations, with their intervals and how they were measured."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from triptych.core.errors import one_line
from triptych.core.reading import parsed_json, read_regular
from triptych.core.wording import counted
from triptych.report.curves import LARGEST
from triptych.report.facts import flattened, spelled_value

NORMAL_95 = 1.96
"""Standard errors on each side of a figure between which 95 % of a normal distribution lie."""
_SHARES = ("precision", "recall", "coverage", "copies", "authenticity", "mean-iou", "accuracy", "accuracy_1", "accuracy_5")
NOTHING = spelled_value(None)
"""What a protocol has where there is none."""
_MOST_BYTES = 2**24
_MOST_FILES = 200
_MOST_FIGURES = 100
_ASIDE = ("figures", "metrics", "protocol", "arrays", "format", "sweep", "missing", "digest", "setting", "value")
_IMAGES = ("images_seen", "checkpoint.images", "weights.images", "weights.images_seen", "made.images_seen")


@dataclass(frozen=True)
class Figure:
    """A number that was measured."""

    name: str
    value: float
    error: float | None
    "Its standard error; None: not known."
    details: Mapping[str, str] = field(default_factory=dict)
    "Further numbers, in words."

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval; of a share it ends at 0 and at 1."""
        return interval(self.name, self.value, self.error)


def is_share(name: str) -> bool:
    """Whether a figure of this name is a share of all, between 0 and 1."""
    return re.split(r"[./]", name)[-1].endswith(_SHARES)


def interval(name: str, value: float, error: float | None) -> tuple[float, float] | None:
    """The 95 % interval of a figure; of a share it ends at 0 and at 1. None where the standard error is not known."""
    if error is None:
        return None
    ends = value - NORMAL_95 * error, value + NORMAL_95 * error
    return (max(ends[0], 0.0), min(ends[1], 1.0)) if is_share(name) and 0 <= value <= 1 else ends


_LOWER = ("frechet", "fid", "sfid", "kid", "fvd", "copies", "lpips", "bits-per-dim", "warping-error")
_HIGHER = (*(name for name in _SHARES if name != "copies"), "is", "is-10", "density", "psnr", "ssim")


def sign_of(name: str) -> Literal[1, -1] | None:
    """1 where lower figures of this name are better, -1 where higher ones are; None: it is not said."""
    if name in _LOWER or name.startswith("fd-"):
        return 1
    return -1 if name in _HIGHER or name.endswith(tuple(f"-{ending}" for ending in _HIGHER)) else None


@dataclass(frozen=True)
class Evaluation:
    """A file of figures, or one setting of a sweep."""

    file: str
    figures: tuple[Figure, ...]
    protocol: Mapping[str, str]
    "How they were measured: dotted names and what they have, in words."
    images_seen: int | None
    "By the weights that were measured."
    steps: float | None
    "Of the sampler, or of the likelihood; a step of some takes several calls of the network."
    calls: float | None = None
    "How often a network was asked for each image; None: not known."
    pictures: tuple[Path, ...] = ()
    "Pictures that were written beside it."
    sampler: Mapping[str, float] = field(default_factory=dict)
    "The numbers among the sampler's settings."
    missing: Mapping[str, str] = field(default_factory=dict)
    "Why figures that were asked for are not there."

    def repeats(self, other: Evaluation) -> bool:
        """Whether the other has the same figures of the same weights, by as many steps."""
        return (self.figures, self.images_seen, self.steps) == (other.figures, other.images_seen, other.steps)

    def same_protocol(self, other: Evaluation, *, steps: bool = False) -> bool:
        """Whether the two can be compared: but for the run, its weights and the time, all was alike. `steps`: as in `comparable`."""
        own, theirs = comparable(self.protocol, steps=steps), comparable(other.protocol, steps=steps)
        if any(not any(name.startswith(_SETTINGS) for name in each) for each in (own, theirs)):  # as of sweeps, which did not say them
            own, theirs = (_without_settings(each) for each in (own, theirs))
        return own == theirs


def evaluations(folder: Path) -> tuple[list[Evaluation], list[str]]:
    """The evaluations in a folder, by images seen and then by age, and a line for each file that cannot be read."""
    try:
        files = sorted((path for path in folder.glob("*.json") if not path.name.startswith(".")), key=_age)
    except OSError as error:
        return [], [f"evaluations cannot be read: {error.strerror or error}"]
    found: list[Evaluation] = []
    swept: list[Evaluation] = []
    older = counted(len(files) - _MOST_FILES, "older file of evaluations is", "older files of evaluations are")
    notes = [f"{older} left out"] if len(files) > _MOST_FILES else []
    for path in files[-_MOST_FILES:]:
        try:
            for evaluation, of_a_sweep in _read(path):
                (swept if of_a_sweep else found).append(evaluation)
        except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            notes.append(f"evaluations/{path.name} cannot be read: {one_line(error)}")
    found += [each for each in swept if not any(each.repeats(other) for other in found)]
    return sorted(found, key=lambda each: -1 if each.images_seen is None else each.images_seen), notes


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # a link that leads nowhere: to read it says so
        return 0.0


def _read(path: Path) -> Iterator[tuple[Evaluation, bool]]:
    """The evaluations of a file, and whether they are of a sweep: these may have files of their own too."""
    document = parsed_json(read_regular(path, most=_MOST_BYTES))
    if not isinstance(document, dict):
        raise ValueError("no table of figures")
    pictures = tuple(sorted(path.parent.glob(f"{path.stem}*.png")))
    swept = document.get("sweep")
    parts = [part for part in swept if isinstance(part, dict)] if isinstance(swept, list) else []
    for part in parts or [document]:
        yield _evaluation(path, {**document, **part}, pictures), bool(parts)


def _evaluation(path: Path, document: dict[str, Any], pictures: tuple[Path, ...]) -> Evaluation:
    figures = list(_figures(document))[:_MOST_FIGURES]
    if not figures:
        raise ValueError("it has no figures")
    given = document.get("protocol")
    aside = {name: value for name, value in document.items() if name not in _ASIDE}
    settings = {name: values.get("settings") for name, values in _tables(document.get("metrics"))}
    protocol = flattened(
        {**aside, **{name: value for name, value in settings.items() if value}, **(given if isinstance(given, dict) else {})}
    )
    seen = next((protocol[name] for name in _IMAGES if isinstance(protocol.get(name), int)), None)
    return Evaluation(
        file=path.name,
        figures=tuple(figures),
        protocol={name: spelled_value(value) for name, value in protocol.items()},
        images_seen=seen,
        steps=_last_number(protocol, "steps"),
        calls=_last_number(protocol, _CALLS),
        pictures=pictures,
        sampler={
            name.removeprefix("sampler."): float(value)
            for name, value in protocol.items()
            if name.startswith("sampler.") and _is_number(value) and abs(value) < LARGEST
        },
        missing={name: spelled_value(reason) for name, reason in flattened(document.get("missing") or {}).items() if name},
    )


def _figures(document: Mapping[str, Any]) -> Iterator[Figure]:
    """Those of "figures", and those of "metrics", as bits per dimension have them: the first number is the figure."""
    for name, values in _tables(document.get("figures")):
        yield Figure(str(name), _number(values.get("value")), _error(values.get("error")), _details(values, "value", "error"))
    for metric, values in _tables(document.get("metrics")):
        numbers = [name for name in values if name not in ("settings", "standard_error")]
        if not numbers:
            raise ValueError(f"{metric} has no number")
        first, *others = numbers
        details = _details({name: values[name] for name in others})
        yield Figure(str(metric), _number(values[first]), _error(values.get("standard_error")), details)


def _tables(values: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(name, table) for name, table in values.items() if isinstance(table, dict)] if isinstance(values, dict) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any) -> float:
    if not _is_number(value) and not isinstance(value, str):
        raise ValueError(f"{value!r} is no number")
    number = float(value)  # also "nan", as other files of a run have it
    if math.isfinite(number) and abs(number) >= LARGEST:
        raise ValueError(f"{number} is too large")
    return number


def _error(value: Any) -> float | None:
    error = None if value is None else _number(value)
    return error if error is not None and math.isfinite(error) else None


def _details(values: Mapping[str, Any], *without: str) -> dict[str, str]:
    further = values.get("details")
    rest = dict(values) | (further if isinstance(further, dict) else {})
    told = {name: value for name, value in rest.items() if name not in without and isinstance(value, int | float | str)}
    words = {name: f"{value:.4g}" if isinstance(value, float) else spelled_value(value) for name, value in told.items()}
    sentences = [value for value in told.values() if isinstance(value, str)]
    return {name: text for name, text in words.items() if not any(said.startswith(f"{told[name]} {name}, ") for said in sentences)}


def _last_number(protocol: Mapping[str, Any], name: str) -> float | None:
    """The first number whose dotted name ends with this one; how a reference was made is not the run's."""
    found = (value for key, value in protocol.items() if key.rpartition(".")[2] == name and not key.startswith(_REFERENCE))
    return next((float(value) for value in found if _is_number(value) and abs(value) < LARGEST), None)


_CALLS = "network_calls"
_OF_THE_RUN = ("seconds", "triptych", "commit", "processes", "device", "weights", "hash", "images_seen", "precision", "run", "seed", _CALLS)
_SWEPT = ("steps",)
_OF_THE_COMMAND = ("seconds", "triptych", "commit", "processes", "device", "hash", _CALLS)
_MADE, _MADE_BY = "made.", "made.settings."
_SETTINGS = "settings."
_WHERE = "path"
"""Of the run itself, which may have been moved."""
_MOST_DIFFERENCES = 6
_PARTS_OF_THE_RUN = ("checkpoint.", "weights.", "made.", "sampling.", "sampler.")
_ASKED = ("made.labels", "made.inputs", "made.contents")
"""Of what was made: which classes, and of which images."""
_REFERENCE = "reference."
_HASHES = ("reference.sha256", "reference.weights.hash")
_CLASSIFIER = ".classifier."
"""Within the name of what is said of one that looked at images, which is none of the run's."""
_CALLED = ("reference.path", "reference.kind", "reference_name")
"""Of a reference: what it is called, wherever it lies."""


def comparable(protocol: Mapping[str, str], *, steps: bool = True) -> dict[str, str]:
    """What of a protocol has to be alike for figures to be compared: the reference, the network and the counts, not the run.

    `steps`: those of a likelihood too.
    """
    called = _CALLED if any(name in protocol for name in _HASHES) else ()
    return {
        name: value
        for name, value in protocol.items()
        if name not in called and (name.startswith((_REFERENCE, *_ASKED)) or not _of_the_run(name)) and (steps or not of_steps(name))
    }


def _of_the_run(name: str) -> bool:
    if _CLASSIFIER in name:
        return name.endswith(".run")  # the hash says which it is, wherever it lies
    return name.rpartition(".")[2] in _OF_THE_RUN or name.startswith(_PARTS_OF_THE_RUN)


def seen_by(protocol: Mapping[str, str], figure: str) -> str | None:
    """The name of the network, or of the classifier's run, that looked at the images of a figure; None: none did."""
    look = f"single_images.{figure}"
    names = (f"{look}{_CLASSIFIER}run", f"{look}{_CLASSIFIER}network", f"{look}.network", "network")
    found = next((protocol[name] for name in names if protocol.get(name, NOTHING) != NOTHING), None)
    return None if found is None else found.rstrip("/").rpartition("/")[2]


def _without_settings(protocol: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in protocol.items() if not name.startswith(_SETTINGS)}


def choices(evaluation: Evaluation, without: Callable[[str], bool] = lambda name: False) -> dict[str, str]:
    """What of a protocol was chosen: all but the time, the machine, and the names that are passed over.

    What is said of the run twice, of what was made and of the evaluation, is there once, by its shorter name.
    """
    found: dict[str, str] = {}
    for name, value in evaluation.protocol.items():
        name = f"sampler.{name.removeprefix(_MADE_BY)}" if name.startswith(_MADE_BY) else name.removeprefix(_MADE)
        if name != _WHERE and name.rpartition(".")[2] not in _OF_THE_COMMAND and not without(name):
            found[name] = value
    return found


def of_images(name: str) -> bool:
    """Whether a name in a protocol tells how many images the weights have seen."""
    return name in _IMAGES


def of_steps(name: str) -> bool:
    """Whether a name in a protocol tells how many steps were taken; those of the reference are no choice of the run's."""
    return name.rpartition(".")[2] in _SWEPT and not name.startswith(_REFERENCE)


def differences(found: Sequence[Evaluation], without: Callable[[str], bool] = lambda name: False) -> list[str]:
    """What each evaluation has otherwise than others of them, in words: "weights raw, guidance_scale 4"; "" where all is alike."""
    chosen = [choices(each, without) for each in found]
    names = [name for name in dict.fromkeys(name for each in chosen for name in each) if len({each.get(name) for each in chosen}) > 1]
    return [", ".join(f"{name.rpartition('.')[2]} {each[name]}" for name in names[:_MOST_DIFFERENCES] if name in each) for each in chosen]
