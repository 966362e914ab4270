"""Averages of any length, put together out of those that a run tracked: see `engine/power_averages.py`.

What there is to put together are the snapshots until the images that are asked for, and the averages in the checkpoint of just these
images. What `triptych average` made lies in RUN/averages, and is taken where it is there.
"""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.files import explain
from triptych.core.given import optional_place, shown, whole_number
from triptych.core.model import Averaged, Model
from triptych.core.wording import counted
from triptych.engine.checkpoint import Checkpoint, checkpoint_path, list_checkpoints, load_checkpoint, write_folder, write_tensors
from triptych.engine.config import AverageConfig
from triptych.engine.ema import averaged_state
from triptych.engine.lengths import LENGTHS, exponent_of, length_in, length_name
from triptych.engine.power_averages import Combination, Profile, combination
from triptych.engine.run_directory import SNAPSHOTS, RunDirectory
from triptych.engine.state import SUFFIX
from triptych.runs.files import check_notes
from triptych.runs.pieces import digest_of

if TYPE_CHECKING:
    from triptych.runs.stored import StoredRun

ROUGH = 0.05
"""A residual above which the weights are likely to be off by more than a hundredth of what they have changed (benchmarks/averages.py)."""
_LATE = 1e-4
"""The largest share of an average that may be left of the weights at which it began, where it began late."""
_MADE_OF = "made_of"
"""The field of a kept one's state.json that has the hash of what it is made of."""
_RESIDUAL = "residual"
"""The field that has how well it is reached: see `Combination`."""
_LENGTH, _IMAGES = "power_function_length", "images_seen"
"""What a file of its own says in its header."""


@dataclass(frozen=True)
class Tracked:
    """An average that a run tracked, at some number of images."""

    folder: Path
    "The snapshot or checkpoint that has it."
    stem: str
    digest: str
    profile: Profile


@dataclass(frozen=True)
class Mixture:
    """An average, as a sum of tracked ones."""

    length: float
    images: int
    parts: Sequence[Tracked]
    combination: Combination

    @property
    def name(self) -> str:
        """What its file is called."""
        return length_name(self.length)

    @property
    def digest(self) -> str:
        """A hash of what it is made of."""
        return digest_of([self.length, self.images, [part.digest for part in self.parts]])

    @property
    def described(self) -> str:
        """What it is made of, in a few words."""
        lengths = sorted({length_in(part.stem) or 0.0 for part in self.parts})
        times = len({part.profile.images for part in self.parts})
        of = f"length {' and '.join(map(str, lengths))} at {counted(times, 'time')}"
        return f"{len(self.parts)} averages of {of}, residual {self.combination.residual:.2%}" if len(self.parts) > 1 else f"that of {of}"


def snapshots(directory: RunDirectory) -> list[int]:
    """Images seen at each snapshot, ascending."""
    return list_checkpoints(directory.snapshots)


def mixture(directory: RunDirectory, length: float, images: int) -> Mixture:
    """The average of that length after so many images, out of what the run has; no weights are read.

    Raises CheckpointError where the run has too little, or something that cannot be read.
    """
    wanted = Profile(images, exponent_of(length))
    tracked = {part.profile: part for part in tracked_averages(directory, images)}  # of a checkpoint and a snapshot with the same one
    if wanted in tracked:
        return Mixture(length, images, [tracked[wanted]], combination([wanted], wanted))
    if len(tracked) < 2:
        have = "only one average by length" if tracked else "no averages by length"
        there = snapshots(directory)
        first = f"; its first snapshot is at {there[0]}" if there else ""
        raise CheckpointError(
            f"{directory.root} has {have} up to {images} images seen: too few to put {length_name(length)} together{first}; a training "
            "with --train.ema-lengths 0.05,0.1 --train.snapshot-every IMAGES writes them"
        )
    return Mixture(length, images, list(tracked.values()), combination(list(tracked), wanted))


def tracked_averages(directory: RunDirectory, images: int) -> list[Tracked]:
    """What there is to put together at so many images; last that of the checkpoint. Raises CheckpointError."""
    folders = [checkpoint_path(directory.snapshots, number) for number in snapshots(directory) if number <= images]
    folders += [checkpoint_path(directory.checkpoints, images)] if images in list_checkpoints(directory.checkpoints) else []
    found = []
    for folder in folders:
        stored = _load(folder)
        begun = stored.info.get("begun", {})
        for stem, digest in stored.hashes.items():
            length = length_in(stem)
            if length is not None and stored.images_seen:
                profile = Profile(stored.images_seen, exponent_of(length))
                if profile.left_of(begun.get(stem, 0)) <= _LATE:
                    found.append(Tracked(folder, stem, digest, profile))
    return found


def mixed(made: Mixture, model: Model) -> dict[str, Tensor]:
    """The tensors of the average, on the CPU; `model` has their names, types and shapes, and need not have weights.

    What is not learned is that of the last of the parts. Raises CheckpointError for a part that is damaged or of another model.
    """
    if made.combination.residual > ROUGH:
        _warn_of(made.name, made.images, made.combination.residual)
    live = averaged_state(model)
    sums = {name: torch.zeros(tensor.shape, dtype=torch.float64) for name, tensor in live.items() if isinstance(tensor, torch.nn.Parameter)}
    tensors: dict[str, Tensor] = {}
    latest = max(part.profile.images for part in made.parts)
    for part, factor in zip(made.parts, made.combination.coefficients.tolist(), strict=True):
        stored = _load(part.folder, part.stem).files[part.stem]
        _require_shapes(stored, live, part.folder / (part.stem + SUFFIX))
        for name, total in sums.items():
            total.add_(stored[name].double(), alpha=factor)
        if part.profile.images == latest:
            tensors = {name: stored[name].clone() for name in live}
    tensors |= {name: total.to(live[name].dtype) for name, total in sums.items()}
    if isinstance(model, Averaged):
        model.recompute_buffers(tensors)
    return tensors


def _load(folder: Path, *stems: str) -> Checkpoint:
    """A snapshot or checkpoint with files that are asked for; the error of a snapshot says what to do, for there are others."""
    try:
        return load_checkpoint(folder, files=stems)
    except CheckpointError as error:
        if folder.parent.name != SNAPSHOTS:
            raise
        raise CheckpointError(f"{error}; remove the folder {folder}, and the average is put together of the others") from error


def _require_shapes(stored: Mapping[str, Tensor], live: Mapping[str, Tensor], path: Path) -> None:
    wrong = next((name for name in live if name not in stored or stored[name].shape != live[name].shape), None)
    if wrong is not None or len(stored) != len(live):
        raise CheckpointError(f"{path} is of another model: its tensors are not this one's ({wrong or 'it has more'})")


def kept_folder(directory: RunDirectory, length: float, images: int) -> Path:
    """The folder, as a checkpoint's, in which `triptych average` keeps an average."""
    return directory.averages / length_name(length) / f"{images:09d}"


def average_origin(directory: RunDirectory, length: float, images: int) -> dict[str, str | int]:
    """Where the average that `read_average` gives would be from: images seen, its name, a hash of what it is made of. Raises alike."""
    kept = kept_folder(directory, length, images)
    made_of = load_checkpoint(kept, files=()).info[_MADE_OF] if kept.exists() else mixture(directory, length, images).digest
    return {"images": images, "weights": length_name(length), "hash": made_of}


def read_average(directory: RunDirectory, length: float, images: int, model: Model) -> dict[str, Tensor]:
    """The tensors of an average that was kept, else they are put together; see `mixed`. Raises CheckpointError."""
    kept, name = kept_folder(directory, length, images), length_name(length)
    if not kept.exists():
        return mixed(mixture(directory, length, images), model)
    tensors = load_checkpoint(kept, files=(name,)).files[name]
    _require_shapes(tensors, averaged_state(model), kept / (name + SUFFIX))
    return tensors


@dataclass(frozen=True)
class Made:
    """An average that was put together and written, or one that was kept before and is no worse."""

    path: Path
    "The file of safetensors."
    images: int
    "Images seen when it is taken."
    described: str
    "What it is made of, in a few words."


def average(run: StoredRun, length: float, *, at: int | None = None, out: str | Path | None = None) -> Made:
    """The average of that length after `at` images (None: those of the newest checkpoint), as if it had been tracked, in a file.

    It is kept in the run, where the verbs find it by `ema_length`; `out`: a .safetensors in its place. One that is kept is made anew where
    the run has now what reaches it better, as it no longer has when snapshots were removed. Raises ConfigError for a length that no average
    has and for images that no checkpoint or snapshot has seen, CheckpointError where the run has too little or nothing can be written,
    DataError where `out` is there and is no such file.
    """
    if not isinstance(length, numbers.Real):
        raise ConfigError("length", f"got {shown(length)}, expected {LENGTHS}")
    AverageConfig(length=float(length))
    directory = run.paths
    at = None if at is None else whole_number(at, "at")
    place = optional_place(out, "out")
    if place is not None:
        if place.suffix != ".safetensors":
            raise ConfigError("out", f"got {str(place)!r}, expected a name that ends with .safetensors")
        check_notes(place, _LENGTH)
    taken = sorted({*run.checkpoints(), *snapshots(directory)})
    if at is not None and not 1 <= at <= max(taken, default=0):
        raise ConfigError("at", f"got {at}, expected 1 to {max(taken, default=0)}, the images seen at the newest checkpoint or snapshot")
    if at is not None and at not in taken and place is None:
        near = " or ".join(str(one) for one in _around(taken, at))
        reason = f"got {at}, where the run has no checkpoint and no snapshot, so no command could draw with the average"
        raise ConfigError("at", f"{reason}; give {near}, or --out FILE.safetensors")
    images = run.find_checkpoint() if at is None else at
    kept = kept_folder(directory, length, images)
    path = place or kept / (length_name(length) + SUFFIX)
    before = _kept_state(kept)
    made = _better(directory, length, images, before)
    try:
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            tensors = read_average(directory, length, images, run.outline) if made is None else mixed(made, run.outline)
            write_tensors(place, tensors, notes={_LENGTH: str(length), _IMAGES: str(images)})
        elif made is not None:
            info = {"log2_loss_scale": {}, "best": None, _MADE_OF: made.digest, _RESIDUAL: made.combination.residual}
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_folder(kept, images_seen=images, files={made.name: mixed(made, run.outline)}, info=info)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write {path}: {explain(error)}") from error
    if made is None and before[_RESIDUAL] > ROUGH:
        _warn_of(length_name(length), images, before[_RESIDUAL])
    return Made(path, images, f"kept from an earlier call, residual {before[_RESIDUAL]:.2%}" if made is None else made.described)


def _better(directory: RunDirectory, length: float, images: int, before: Mapping[str, Any]) -> Mixture | None:
    """What the run has now for an average; None where the one that was kept, `before`, is the same or reaches it better.

    Raises CheckpointError where the run has too little and none was kept.
    """
    try:
        made = mixture(directory, length, images)
    except CheckpointError:
        if not before:
            raise
        return None
    return None if before and (made.digest == before[_MADE_OF] or made.combination.residual > before[_RESIDUAL]) else made


def _kept_state(kept: Path) -> Mapping[str, Any]:
    """What is known of the average that is kept there; nothing where there is none, or one that is damaged."""
    try:
        return load_checkpoint(kept).info if kept.exists() else {}
    except CheckpointError:
        return {}


def _warn_of(name: str, images: int, residual: float) -> None:
    """That an average is not reached well."""
    warnings.warn(
        f"{name} at {images} images seen has a residual of {residual:.2%}: what the run tracked does not reach it well; give a length "
        "between the tracked ones, or train with more snapshots (--train.snapshot-every)",
        stacklevel=3,
    )


def _around(taken: Sequence[int], at: int) -> list[int]:
    """The nearest below and above, where there are some."""
    return [*[one for one in taken if one < at][-1:], *[one for one in taken if one > at][:1]]
