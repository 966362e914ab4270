"""A run as it lies on disk: its configuration, its checkpoints, and the model that they hold."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError, ConfigError, nearest
from triptych.core.model import Model, seeded_build
from triptych.core.outline import without_weights
from triptych.engine.allocator import keep_freed_memory
from triptych.engine.checkpoint import checkpoint_path, list_checkpoints, load_checkpoint, load_newest
from triptych.engine.distributed import World, open_world
from triptych.engine.lengths import length_in, length_name
from triptych.engine.run_directory import RunDirectory
from triptych.recipes.config import RunConfig
from triptych.runs.averaging import average_origin, read_average, snapshots
from triptych.runs.document import RunDocument, with_own_list
from triptych.runs.loading import Loading
from triptych.runs.weights import load_weights

_LARGEST_BATCH = 64  # where nobody asked for one


@dataclass(frozen=True)
class Opened:
    """A run's model with its weights, on this process's device, and what the verbs need to use it."""

    model: Model
    spec: DataSpec
    world: World
    origin: dict[str, str | int]
    "Where the weights are from: images seen, which ones, their SHA-256."
    loading: Loading
    train_batch: int
    "Images of a batch of the run's training."

    def batch_size(self, height_and_width: tuple[int, int] | None = None) -> int:
        """Images at once: as many as were asked for, else as have the pixels of a training batch, at most 64; None: of the run's size."""
        own_height, own_width = self.spec.height_and_width
        height, width = height_and_width or (own_height, own_width)
        fitting = self.train_batch * own_height * own_width // (height * width)
        return self.loading.batch_size or max(1, min(_LARGEST_BATCH, fitting))


class StoredRun:
    """A run that can be read. Raises CheckpointError where there is none that this version can read."""

    def __init__(self, directory: RunDirectory) -> None:
        self.paths = directory
        "Where its files lie."
        document = RunDocument.from_dict(directory.read_config(), directory.config_path)
        self.config: RunConfig = replace(document.config, data=with_own_list(document.config.data, directory))
        self.spec: DataSpec = document.spec
        self.recipe: str | None = document.recipe
        self.licence = document.licence
        "Of published weights that it began with; empty where none is known."
        self.stopped = False
        "Whether the training that gave it back was asked to stop before all was done: images, evaluations, grids."

    @functools.cached_property
    def outline(self) -> Model:
        """The model without its weights: what it can do. Raises ConfigError where this version cannot build it.

        Opening the run gives it its weights, after which this is another one.
        """
        return outline(self.config, self.spec)

    @property
    def directory(self) -> Path:
        """The folder of the run."""
        return self.paths.root

    def checkpoints(self) -> list[int]:
        """Images seen by each checkpoint, ascending."""
        return list_checkpoints(self.paths.checkpoints)

    def find_checkpoint(self, which: str = "latest") -> int:
        """Images seen by the checkpoint "latest", "best" (by train.best_by) or of a number of images.

        Raises CheckpointError where there is none.
        """
        there = self.checkpoints()
        if not there:
            taken = snapshots(self.paths)
            only = f", only snapshots of averages until {taken[-1]} images, which need one" if taken else ""
            raise CheckpointError(f"{self.directory} has no checkpoint yet{only}; train it {'on' if taken else 'first'}")
        if which == "latest":
            return there[-1]
        if which == "best":
            newest = load_newest(self.paths.checkpoints, warn=_warn, files=())
            best = None if newest is None else newest.info["best"]
            if best is None:
                raise CheckpointError(f"{self.directory} has no best checkpoint: nothing of it was validated or evaluated; use latest")
            which = str(best["images"])
        if not which.isdecimal() or int(which) not in there:
            if which.isdecimal() and int(which) in snapshots(self.paths):
                reason = f"{self.directory} has a snapshot at {int(which)} images and no checkpoint: say which average (--ema-length 0.1)"
                raise CheckpointError(reason)
            raise CheckpointError(f'no checkpoint "{which}" in {self.directory}; there are latest, best, {", ".join(map(str, there))}')
        return int(which)

    def load(self, *, checkpoint: str = "latest", weights: str | None = None, device: str | None = None) -> Model:
        """The model in evaluation mode. `weights`: see `WeightsChoice`; None: the first average, or raw where there is none.

        An average by length that was not tracked is put together out of snapshots, also at the images of a snapshot without a checkpoint.
        Raises CheckpointError for a checkpoint that is missing, damaged or of another model.
        """
        return self.open(Loading(checkpoint=checkpoint, weights=weights, device=device)).model

    def open(self, loading: Loading) -> Opened:
        """The model in evaluation mode, built once, with the weights of `loading` on its device.

        Raises ConfigError for a device or weights that are not there, CheckpointError as `load` does.
        """
        return self._opened(loading, self.loaded)

    def open_together(self, loading: Loading) -> Opened:
        """What `open` gives, of the checkpoint that the main process takes; all processes call this. Raises as `open` does."""
        return self._opened(loading, self.loaded_together)

    def _opened(self, loading: Loading, loaded: Callable[[str, str | None, World], tuple[Model, dict[str, str | int]]]) -> Opened:
        keep_freed_memory()
        world = open_world(loading.device)
        try:
            model, origin = loaded(loading.checkpoint, loading.chosen, world)
        except CheckpointError as error:
            raise CheckpointError(f"{error}{self._raw_instead(loading)}") from error
        return Opened(model, self.spec, world, origin, loading, self.config.train.batch_size)

    def tensors(self, *, checkpoint: str = "latest", weights: str | None = None) -> dict[str, Tensor]:
        """The model's state by name, with the weights that `load` takes. Raises as `load` does."""
        return self._read(checkpoint, weights)[0]

    def origin(self, *, checkpoint: str = "latest", weights: str | None = None) -> dict[str, str | int]:
        """Where the weights that `load` takes would be from, as long as they can be read: nothing of them is. Raises as `load` does."""
        at = self._snapshot_alone(checkpoint, weights)
        found = checkpoint_path(self.paths.checkpoints, self.find_checkpoint(checkpoint if at is None else "latest"))
        loaded = load_checkpoint(found, files=())
        chosen, length = self._weights_file(weights, loaded.info, tracked=at is None)
        if length is not None:
            return average_origin(self.paths, length, at or loaded.images_seen)
        return {"images": loaded.images_seen, "weights": chosen, "hash": loaded.hashes[chosen]}

    def _read(self, which: str, weights: str | None) -> tuple[dict[str, Tensor], dict[str, str | int]]:
        chosen, length = "model", None
        at = self._snapshot_alone(which, weights)
        which = which if at is None else "latest"  # for what the averages do not follow

        def files(info: Mapping[str, Any]) -> set[str]:
            nonlocal chosen, length
            chosen, length = self._weights_file(weights, info, tracked=at is None)
            return {"model", chosen} if length is None else {"model"}

        loaded = None
        if which == "latest":
            loaded = load_newest(self.paths.checkpoints, warn=_warn, files=files)
        if loaded is None:
            loaded = load_checkpoint(checkpoint_path(self.paths.checkpoints, self.find_checkpoint(which)), files=files)
        if length is not None:
            images = at or loaded.images_seen
            average = read_average(self.paths, length, images, self.outline)
            return loaded.files["model"] | average, average_origin(self.paths, length, images)
        origin: dict[str, str | int] = {"images": loaded.images_seen, "weights": chosen, "hash": loaded.hashes[chosen]}
        return loaded.files["model"] | loaded.files[chosen], origin

    def _raw_instead(self, loading: Loading) -> str:
        """What is said where no checkpoint can be read with these weights, but one can with those that training has."""
        if loading.checkpoint != "latest" or loading.chosen == "raw":
            return ""
        try:
            found = load_newest(self.paths.checkpoints, warn=lambda line: None, files=("model",))
        except CheckpointError:
            return ""
        return "; the weights without an average can be read: --weights raw" if found is not None else ""

    def _snapshot_alone(self, which: str, weights: str | None) -> int | None:
        """The number of a snapshot, where an average by length is asked for at one of which there is no checkpoint."""
        if weights is None or length_in(weights) is None or not which.isdecimal():
            return None
        number = int(which)
        return number if number in snapshots(self.paths) and number not in self.checkpoints() else None

    def loaded(self, which: str, weights: str | None, world: World) -> tuple[Model, dict[str, str | int]]:
        """What `load` gives, on the device of `world`, and where its weights are from: images seen, which ones, their SHA-256."""
        tensors, origin = self._read(which, weights)
        model = self.outline
        del self.outline
        load_weights(model, tensors)
        model.to(world.device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
        return model, origin

    def loaded_together(self, which: str, weights: str | None, world: World) -> tuple[Model, dict[str, str | int]]:
        """What `loaded` gives, of the checkpoint that the main process takes; all processes call this.

        Without it each would take the latest by itself, and another one where a training goes on meanwhile.
        """
        model, origin = self.loaded(which, weights, world)
        number = world.from_main(origin["images"])
        return (model, origin) if origin["images"] == number else self.loaded(str(number), weights, world)

    def _weights_file(self, weights: str | None, info: Mapping[str, Any], *, tracked: bool = True) -> tuple[str, float | None]:
        """The file of a checkpoint, of which `info` is the rest of its state.json, that holds the weights; of an average that is in none
        of its files, or that is not `tracked` there, its name and its length."""
        stems = [average.name for average in self.config.train.all_averages]
        if "imported" in info:  # without its average, if it has one: see interchange.py
            stems = [stem for stem in stems if stem in info["imported"]["averages"]]
        if weights is None:
            return stems[0] if stems else "model", None
        if weights == "raw":
            return "model", None
        length = length_in(weights)
        name = weights if length is None else length_name(length)
        if length is None and name not in stems:
            raise ConfigError("weights", f'got "{weights}", expected one of {", ".join(["raw", *stems])}{nearest(weights, stems)}')
        return name, None if tracked and name in stems else length


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)


def build(config: RunConfig, spec: DataSpec) -> Model:
    """The run's model with its initial weights, on the CPU. Raises ConfigError where model and data do not fit."""
    if spec.latents is not None and config.model.within_bounds:
        advice = "take a model of diffusion that is no upsampler"
        raise ConfigError("data.path", f"got latents, but this model makes images within [-1, 1]; {advice}")
    try:
        model = seeded_build(config.model, spec, seed=config.train.seed)
    except ConfigError as error:
        raise error.inside("model") from None
    if spec.latents is not None and getattr(getattr(model, "sampling", None), "clip", False):
        raise ConfigError("model.sampling.clip", "got true, but the samples are latents, which have no bounds; set it to false")
    return model


def outline(config: RunConfig, spec: DataSpec) -> Model:
    """The run's model for `load_weights`: all that a checkpoint holds is on the meta device. Raises as `build` does."""
    with without_weights():
        return build(config, spec)
