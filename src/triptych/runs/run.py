"""A run on disk, opened for use."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from triptych.core.batch import DataSpec
from triptych.core.config import Config
from triptych.core.errors import CheckpointError, ConfigError, nearest
from triptych.core.model import Model, seeded_build
from triptych.engine.allocator import keep_freed_memory
from triptych.engine.checkpoint import checkpoint_path, list_checkpoints, load_checkpoint, load_newest
from triptych.engine.distributed import World, open_world
from triptych.engine.run_directory import RunDirectory
from triptych.recipes.config import RunConfig
from triptych.runs.document import RunDocument
from triptych.runs.sampling import Request, Samples, gather, label_list, require_sampler, sample_to
from triptych.runs.weights import load_weights


class Run:
    """A trained (or half trained) run: its configuration, its checkpoints, and what its model makes."""

    def __init__(self, directory: RunDirectory) -> None:
        self._paths = directory
        document = RunDocument.from_dict(directory.read_config())
        self.config: RunConfig = document.config
        self.spec: DataSpec = document.spec
        self.recipe: str | None = document.recipe

    @property
    def directory(self) -> Path:
        """The folder of the run."""
        return self._paths.root

    def checkpoints(self) -> list[int]:
        """Images seen by each checkpoint, ascending."""
        return list_checkpoints(self._paths.checkpoints)

    def find_checkpoint(self, which: str = "latest") -> int:
        """Images seen by the checkpoint "latest", "best" (by validation loss) or of a number of images.

        Raises CheckpointError where there is none.
        """
        there = self.checkpoints()
        if not there:
            raise CheckpointError(f"{self.directory} has no checkpoint yet; train it first")
        if which == "latest":
            return there[-1]
        if which == "best":
            best = load_checkpoint(checkpoint_path(self._paths.checkpoints, there[-1]), files=()).info["best"]
            if best is None:
                raise CheckpointError(f"{self.directory} has no best checkpoint: it was trained without validation; use latest")
            which = str(best["images"])
        if not which.isdecimal() or int(which) not in there:
            raise CheckpointError(f'no checkpoint "{which}" in {self.directory}; there are latest, best, {", ".join(map(str, there))}')
        return int(which)

    def load(self, *, checkpoint: str = "latest", weights: str | None = None, device: str | None = None) -> Model:
        """The model in evaluation mode. `weights`: "raw" or "ema-RATE"; None: the first average, or raw where there is none.

        Raises CheckpointError for a checkpoint that is missing, damaged or of another model.
        """
        model, _ = self._load(checkpoint, weights, open_world(device))
        return model

    def tensors(self, *, checkpoint: str = "latest", weights: str | None = None) -> dict[str, Tensor]:
        """The model's state by name, with the weights that `load` takes. Raises as `load` does."""
        return self._read(checkpoint, weights)[0]

    def _read(self, which: str, weights: str | None) -> tuple[dict[str, Tensor], dict[str, str | int]]:
        chosen = self._weights_file(weights)
        files = ("model",) if chosen == "model" else ("model", chosen)
        loaded = None
        if which == "latest":
            loaded = load_newest(self._paths.checkpoints, warn=lambda message: warnings.warn(message, stacklevel=2), files=files)
        if loaded is None:
            loaded = load_checkpoint(checkpoint_path(self._paths.checkpoints, self.find_checkpoint(which)), files=files)
        origin: dict[str, str | int] = {"images": loaded.images_seen, "weights": chosen, "hash": loaded.hashes[chosen]}
        return loaded.files["model"] | loaded.files[chosen], origin

    def _load(self, which: str, weights: str | None, world: World) -> tuple[Model, dict[str, str | int]]:
        tensors, origin = self._read(which, weights)
        model = build(self.config, self.spec)
        load_weights(model, tensors)
        model.to(world.device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
        return model, origin

    def _weights_file(self, weights: str | None) -> str:
        stems = [f"ema-{rate}" for rate in self.config.train.ema_rates]
        if weights is None:
            return stems[0] if stems else "model"
        if weights == "raw":
            return "model"
        if weights not in stems:
            raise ConfigError("weights", f'got "{weights}", expected one of raw, {", ".join(stems)}{nearest(weights, stems)}')
        return weights

    def sample(
        self,
        count: int,
        *,
        seed: int = 0,
        labels: Sequence[int | str] | None = None,
        settings: Config | None = None,
        batch_size: int | None = None,
        checkpoint: str = "latest",
        weights: str | None = None,
        device: str | None = None,
        precision: str = "float32",
        out: str | Path | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Samples:
        """`count` samples, all of them in every process. Image k depends on the seed and k, not on batch size or processes.

        `labels` (numbers or class names) are taken in turn; None: all classes in turn. `settings`: of the model's sampler;
        None: those of the run. `out`: a .png for a grid, a .npz, or a folder; an interrupted call goes on where it was.
        Raises ConfigError and CheckpointError for what the run does not have, DataError where `out` cannot be written.
        """
        if count < 1:
            raise ConfigError("count", f"got {count}, expected at least 1")
        if batch_size is not None and batch_size < 1:
            raise ConfigError("batch_size", f"got {batch_size}, expected at least 1")
        keep_freed_memory()
        world = open_world(device)
        model, origin = self._load(checkpoint, weights, world)
        chosen = settings or require_sampler(model).sampling
        request = Request(count, seed, label_list(model, self.spec, count=count, given=labels), chosen, precision)
        size = batch_size or min(64, self.config.train.batch_size)
        if out is None:
            return Samples(gather(model, request, batch_size=size, world=world), request.labels)
        report = progress or (lambda drawn: None)
        return sample_to(Path(out), model, request, origin=origin, batch_size=size, world=world, progress=report)


def build(config: RunConfig, spec: DataSpec) -> Model:
    """The run's model with its initial weights, on the CPU. Raises ConfigError where model and data do not fit."""
    try:
        return seeded_build(config.model, spec, seed=config.train.seed)
    except ConfigError as error:
        raise error.inside("model") from None


def open_run(run_dir: str | Path) -> Run:
    """The run in a directory. Raises CheckpointError where there is none that this version can read."""
    return Run(RunDirectory(Path(run_dir)))
