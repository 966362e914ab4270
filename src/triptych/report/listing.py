"""What runs there are and how far they are, read from their files alone: without PyTorch, and whatever state they are in."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.core.errors import CheckpointError
from triptych.core.files import PICTURES
from triptych.engine.metric_log import read_metrics
from triptych.engine.run_directory import RunDirectory, checkpoint_path, list_checkpoints
from triptych.report.best import best_checkpoint

_DEPTH = 3  # folders below the one that is given in which runs are looked for
_TAIL_BYTES = 2**18
_VALIDATION, _EVALUATION = "validation/", "evaluation/"
_NO_FIGURES = ("gradient_norm", "learning_rate", "loss_scale", "standard_error", "images_per_second", "memory_bytes", "images", "time")


@dataclass(frozen=True)
class Listed:
    """A run, as far as its files say."""

    root: Path
    recipe: str
    "The recipe, or the class of the model where there is none."
    images_seen: int
    total_images: int | None
    figures: dict[str, float]
    "The newest loss of the training, the newest one of a validation and the newest figure of an evaluation, as metrics.jsonl calls them."
    size_bytes: int
    written: float
    "When a file of the run was last written, in seconds since the epoch."
    fault: str | None
    "Why config.json cannot be read; None: it can."


@dataclass(frozen=True)
class ListedCheckpoint:
    """A checkpoint of a run."""

    images_seen: int
    size_bytes: int
    written: float
    is_best: bool


@dataclass(frozen=True)
class ListedSnapshots:
    """The snapshots of a run."""

    count: int
    size_bytes: int


def find_runs(folder: Path, *, depth: int = _DEPTH) -> Iterator[Path]:
    """The runs in a folder and the folders below it, by name; those inside a run are not looked for."""
    try:
        places = sorted(entry.path for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return
    for place in map(Path, places):
        if RunDirectory(place).exists():
            yield place
        elif depth > 1:
            yield from find_runs(place, depth=depth - 1)


def listed(root: Path) -> Listed:
    """What is known of a run; what cannot be read is left out."""
    directory = RunDirectory(root)
    document, fault = document_of(root)
    lines = _metrics(directory)
    seen = [*list_checkpoints(directory.checkpoints), *(line["images"] for line in lines)]
    size_bytes, written = _measured(root)
    total = inside(document, "train", "total_images")
    recipe = document.get("recipe")
    return Listed(
        root=root,
        recipe=recipe if isinstance(recipe, str) else kind_of(document),
        images_seen=max(seen, default=0),
        total_images=total if isinstance(total, int) else None,
        figures=_headlines(lines),
        size_bytes=size_bytes,
        written=written,
        fault=fault,
    )


def document_of(root: Path) -> tuple[dict[str, Any], str | None]:
    """What config.json has, nothing where it cannot be read; and why it cannot, else None."""
    try:
        return RunDirectory(root).read_config(), None
    except (CheckpointError, RecursionError) as error:
        return {}, str(error) or type(error).__name__


def kind_of(document: dict[str, Any]) -> str:
    """The kind of model, as config.json names it."""
    kind = inside(document, "model", "kind")
    return kind.rpartition(":")[2].removesuffix("Config") if isinstance(kind, str) else "unknown"


def inside(document: Any, *names: str) -> Any:
    """What a document has under these names, one in another; None where it has not."""
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def checkpoints(root: Path) -> list[ListedCheckpoint]:
    """The checkpoints of a run, the oldest first."""
    folder = RunDirectory(root).checkpoints
    numbers = list_checkpoints(folder)
    best = best_checkpoint(folder)
    return [
        ListedCheckpoint(number, *_measured(checkpoint_path(folder, number)), is_best=best is not None and number == best.images)
        for number in numbers
    ]


def snapshots(root: Path) -> ListedSnapshots | None:
    """The snapshots of averages by length; None: there are none."""
    folder = RunDirectory(root).snapshots
    numbers = list_checkpoints(folder)
    return ListedSnapshots(len(numbers), _measured(folder)[0]) if numbers else None


def pictures(root: Path) -> list[Path]:
    """The pictures of a run, the oldest first."""
    found = [path for path in (*root.glob("*"), *RunDirectory(root).samples.glob("*")) if path.suffix.lower() in PICTURES]
    dated = [(_status(path), path) for path in found if not path.name.startswith(".")]
    return [path for _, path in sorted((status.st_mtime, path) for status, path in dated if status is not None)]


def _metrics(directory: RunDirectory) -> list[dict[str, Any]]:
    try:
        lines = read_metrics(directory.metrics_path, last_bytes=_TAIL_BYTES)
    except (OSError, TypeError, KeyError, RecursionError):
        return []
    return [line for line in lines if isinstance(line["images"], int)]


def _headlines(lines: list[dict[str, Any]]) -> dict[str, float]:
    """The newest first loss of training and of validation, and first figure of an evaluation; others are parts of it, or further ones."""
    found: dict[str, float] = {}
    for kind in ("", _VALIDATION, _EVALUATION):
        for line in reversed(lines):
            names = [name for name in line if _kind(name) == kind and _is_loss(name, line[name])]
            if names:
                found[names[0]] = line[names[0]]
                break
    return found


def _kind(name: str) -> str:
    return next((kind for kind in (_VALIDATION, _EVALUATION) if name.startswith(kind)), "")


def _is_loss(name: str, value: Any) -> bool:
    by_group = name[-2:-1] == "q" and name[-1:].isdecimal()
    error = name.startswith(_EVALUATION) and name.endswith("_error")
    return isinstance(value, int | float) and not by_group and not error and not name.endswith(_NO_FIGURES)


def _measured(folder: Path) -> tuple[int, float]:
    """Bytes of all files below a folder, and when the last one was written; links are not followed."""
    statuses = [_status(Path(place) / name) for place, _, names in os.walk(folder) for name in names]
    files = [status for status in (*statuses, _status(folder)) if status is not None and stat.S_ISREG(status.st_mode)]
    own = _status(folder)
    return sum(file.st_size for file in files), max((file.st_mtime for file in files), default=own.st_mtime if own else 0.0)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:  # removed a moment ago, or not to be looked at
        return None
