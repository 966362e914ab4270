"""What a start of a training begins with: its configuration, and what of the run is there already."""

from __future__ import annotations

import dataclasses
import secrets
import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError, ConfigError, DataError
from triptych.core.reading import user_path
from triptych.core.wording import counted
from triptych.data.config import AS_STORED, DataConfig
from triptych.data.skipping import read_skip, write_skip
from triptych.engine.checkpoint import sweep
from triptych.engine.precision import native_precision
from triptych.engine.run_directory import RunDirectory, list_checkpoints
from triptych.recipes.config import RunConfig
from triptych.recipes.earlier import BEFORE
from triptych.runs.document import RunDocument, accept_changes
from triptych.runs.interchange import settings_alone, untrained_import
from triptych.runs.latent_space import unlike_latents


@dataclass
class Start:
    """The settings of this start, and those of the run."""

    config: RunConfig
    recipe: str | None
    stored: RunDocument | None
    "The run's own document; None: the run is new."
    notes: list[str]
    "Lines for the log."
    keeps_list: bool = False
    "Whether the run's own copy of the list of images that are left out counts."
    asked: Mapping[str, Any] = field(default_factory=dict)
    "As in RunDocument."
    fresh: bool = False
    "Whether the run was imported and not trained since: how long its clips are may still be chosen."


def begin(config: RunConfig, directory: RunDirectory, recipe: str | None, device: torch.device, stack: ExitStack | None) -> Start:
    """The start of a run in `directory`, new or going on, under the lock of the run where there is one already (no `stack`: without).

    Raises ConfigError for a setting that may not change, CheckpointError for a directory that holds no run of this version.
    """
    if not directory.exists() and list_checkpoints(directory.checkpoints):
        raise CheckpointError(
            f"{directory.root} has checkpoints but no config.json, as after an import that was cut short; import again, or choose another "
            "directory"
        )
    if not directory.exists() or settings_alone(directory):
        notes = []
        if config.train.randomized_seed:
            seed = secrets.randbits(63)
            config = dataclasses.replace(config, train=dataclasses.replace(config.train, seed=seed))
            notes = [f"drew seed {seed}"]
        config, reasons = with_precision(config, device)
        return Start(config, recipe, None, [*notes, *reasons])
    if stack is not None:
        stack.enter_context(directory.lock())
    stored = RunDocument.from_dict(directory.read_config(), directory.config_path)
    if config.train.randomized_seed:
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, seed=stored.config.train.seed))
    earlier, fresh = stored.config, untrained_import(directory)
    config, reasons = with_precision(config, device, kept=None if fresh else earlier.train.precision)
    if not fresh:
        config, kept = _with_colours(config, earlier)
        config, order = _with_order(config, earlier)
        reasons += [*kept, *order]
    if (found := stored.with_found(config)) != config:
        config, reasons = found, [*reasons, f"train.microbatch {found.train.microbatch}, which this run found to fit into memory"]
    if fresh:  # only the model of such a run is fixed
        earlier = dataclasses.replace(earlier, data=config.data, train=config.train, optim=config.optim, log=config.log)
    keeps_list = not fresh and earlier.data.skip is not None and directory.left_out.is_file()
    if keeps_list:
        config, said = _with_own_list(earlier, config, directory)
        reasons += said
    try:
        notes = reasons + accept_changes(earlier, config, directory=str(directory.root))
    except ConfigError:
        if None in (recipe, stored.recipe) or recipe == stored.recipe:
            raise
        place = shlex.quote(str(directory.root))
        raise ConfigError(
            "--run",
            f"{directory.root} holds a run of {stored.recipe}, not of {recipe}: triptych train {place} goes on with it; for {recipe} give "
            f"another --run (with --init-from {place}, to begin with its weights)",
        ) from None
    refuse_shorter(config.train.total_images, earlier.train.total_images, seen=max(list_checkpoints(directory.checkpoints), default=0))
    return Start(config, recipe or stored.recipe, stored, notes, keeps_list, stored.asked_still(config), fresh)


def refuse_shorter(total: int, before: int, *, seen: int) -> None:
    """Raises ConfigError for a new length that the run is past: nothing would be trained, and a length of `before` would be lost."""
    if total < min(before, seen):
        raise ConfigError(
            "train.total_images",
            f"got {total}, but the run has seen {seen} images of {before}; give {seen} to end it there, or more",
        )


def _with_own_list(earlier: RunConfig, config: RunConfig, directory: RunDirectory) -> tuple[RunConfig, list[str]]:
    """The configuration with the run's own data.skip in place of a list of the same images, and lines for the log.

    Raises ConfigError for a list of other images, DataError for one that cannot be read. Where there is none the run's copy is enough.
    """
    given = config.data.skip
    if given is None:
        return config, []
    notes = [] if user_path(given).exists() else [f"data.skip: {given} is not there; the run's own copy counts, {directory.left_out}"]
    own, theirs = (read_skip(path).keys() for path in (directory.left_out, directory.left_out if notes else given))
    if theirs != own:
        more = counted(len(theirs - own), "of its images is", "of its images are")
        raise ConfigError(
            "data.skip",
            f"got {given!r}, but it is not the list of this run: {more} not in {directory.left_out}, and "
            f"{counted(len(own - theirs), 'is', 'are')} missing; give that file, or another --run "
            "(with --init-from, to begin with this run's weights)",
        )
    return dataclasses.replace(config, data=dataclasses.replace(config.data, skip=earlier.data.skip)), notes


def with_precision(config: RunConfig, device: torch.device, *, kept: str | None = None) -> tuple[RunConfig, list[str]]:
    """The configuration with a precision in place of auto, and a line for the log: `kept`, that of the run, or what suits the device."""
    if config.train.precision != "auto":
        return config, []
    native = native_precision(device)
    chosen = native if kept in (None, "auto") else kept
    suits = f"this {device.type} multiplies bf16 {'natively' if native == 'bf16' else 'no faster'}"
    why = suits if kept in (None, "auto") else "as in this run"
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, precision=chosen))
    return config, [f"train.precision auto: {chosen} ({why})"]


def _with_colours(config: RunConfig, earlier: RunConfig) -> tuple[RunConfig, list[str]]:
    """The configuration with the colours of a run whose images are read as they lie, where nothing but the default is asked for."""
    plain = DataConfig()
    asked = {name: getattr(config.data, name) for name in AS_STORED}
    if asked != {name: getattr(plain, name) for name in AS_STORED} or any(getattr(earlier.data, name) != AS_STORED[name] for name in asked):
        return config, []
    config = dataclasses.replace(config, data=config.data.updated(AS_STORED))
    return config, ["data.background None, data.profiles ignore: transparency and colour profiles are passed over, as in this run before"]


def _with_order(config: RunConfig, earlier: RunConfig) -> tuple[RunConfig, list[str]]:
    """The configuration with the order of images of a run that an earlier version began."""
    if config.data.order == earlier.data.order or earlier.data.order != BEFORE["order"]:
        return config, []
    config = dataclasses.replace(config, data=config.data.updated(BEFORE))
    return config, ["data.order by-name: validations look at the first held-out images, as in this run before"]


def prepare_directory(directory: RunDirectory, document: RunDocument, start: Start, stack: ExitStack) -> None:
    """Makes the directory and writes config.json; removes what interrupted writes left. A new run is locked from here on.

    Raises CheckpointError where the run that is to go on has been removed or renamed since it was read, or a new one was begun meanwhile.
    """
    if start.stored is None:
        directory.create()
        stack.enter_context(directory.lock())
        if list_checkpoints(directory.checkpoints):  # another start had the lock while this one opened its images
            raise CheckpointError(f"{directory.root}: a run was begun here meanwhile; the same command goes on with it")
    else:
        directory.complete()
    directory.sweep()
    sweep(directory.checkpoints)
    if document.config.data.skip is not None and not start.keeps_list:
        write_skip(directory.left_out, read_skip(document.config.data.skip))
    directory.write_config(document.to_dict())


def same_objects(stored: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raises DataError where files of the data that lie elsewhere are not those of the run: others, or of another version.

    A run whose data were moved as a whole goes on with them where they are.
    """
    if stored.keys().isdisjoint(found):
        return
    for address in sorted(stored.keys() | found.keys()):
        if stored.get(address) != found.get(address):
            before, now = (said.get(address, "not among the data") for said in (stored, found))
            reason = f"not what this run has learned from: {before} before, {now} now"
            raise DataError(f"{address}: {reason}; give what it was, or begin another run with --init-from this one")


def same_images(stored: DataSpec, images: DataSpec, *, fresh: bool = False) -> DataSpec:
    """The images that a run of `stored` goes on with; an imported run has classes without names, and a `fresh` one clips of any length.

    The autoencoder of latents is where the run has it, for a run may be told that it was moved, and their moments are the run's. Raises
    ConfigError for other images.
    """
    if stored.latents is not None and images.latents is not None and not unlike_latents(stored, images):
        images = dataclasses.replace(images, latents=stored.latents)
    if fresh and stored.frames is not None and images.frames is not None:
        stored = _with_lengths(stored, images)
    nameless = stored.num_classes is not None and stored.class_names is None
    if images == stored or (nameless and dataclasses.replace(images, class_names=None) == stored):
        return images
    if stored.undecoded and images.latents is not None:
        reason = "this run was imported without the autoencoder of its latents, so nothing says whether these are on their scale"
        raise ConfigError("data", f"{reason}; import it again with --autoencoder RUN, and encode the images --with the new run")
    names = ("image_size", "width", "channels", "num_classes", "inputs", "frames")
    lines = [f"{name} {getattr(images, name)} in place of {getattr(stored, name)}" for name in names]
    wrong = [line for line, name in zip(lines, names, strict=True) if getattr(images, name) != getattr(stored, name)]
    unlike = unlike_latents(stored, images)
    own = "its own, encoded by triptych data encode IMAGES --with this run" if stored.latents is not None and unlike else "its own"
    raise ConfigError(
        "data",
        f"the images are not those of this run ({', '.join([*wrong, *unlike]) or 'other class names'}); give {own}, or begin another run "
        "with --init-from this one",
    )


def _with_lengths(stored: DataSpec, images: DataSpec) -> DataSpec:
    """The same, with clips as long as those of `images`."""
    frames = {each.name: each.frames for each in images.inputs}
    inputs = tuple(dataclasses.replace(each, frames=frames.get(each.name, each.frames)) for each in stored.inputs)
    return dataclasses.replace(stored, frames=images.frames, clip_length=images.clip_length, inputs=inputs)
