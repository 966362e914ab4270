"""A run on disk, opened for use."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from triptych.core.batch import DataSpec
from triptych.core.config import Config
from triptych.core.errors import CheckpointError, ConfigError, nearest
from triptych.core.model import Guidable, Model, seeded_build
from triptych.data.config import DataConfig
from triptych.engine.allocator import keep_freed_memory
from triptych.engine.checkpoint import checkpoint_path, list_checkpoints, load_checkpoint, load_newest
from triptych.engine.distributed import World, open_world
from triptych.engine.run_directory import RunDirectory
from triptych.evaluation.bits_per_dim import BitsPerDimConfig
from triptych.recipes.config import RunConfig
from triptych.runs.document import RunDocument
from triptych.runs.encoding import Coder, Latents, require_encoder
from triptych.runs.evaluation import Evaluation, Question, Split, evaluate
from triptych.runs.sampling import Request, Samples, gather, label_list, require_sampler, sample_to
from triptych.runs.translation import BASE_COUNT, Drawn, Pictures, Translation, open_pictures, require_fitting_base, require_translator
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

    def _led(
        self, model: Model, origin: dict[str, str | int], world: World, *, guide: str | Path | None, guide_with: str | Path | None
    ) -> nn.Module:
        """The model's sampler, led by the guide's newest weights, whose hash joins `origin`; the model itself where there is none."""
        if guide is None and guide_with is None:
            return model
        if guide is not None and guide_with is not None:
            raise ConfigError("guide_with", "got a weaker model beside a classifier (guide); give one of them")
        if not isinstance(model, Guidable):
            raise ConfigError("guide", f"{type(model).__name__} cannot be guided")
        setting, directory = ("guide", guide) if guide is not None else ("guide_with", guide_with)
        other = open_run(str(directory))
        theirs, ours = other.spec.class_names, self.spec.class_names
        if theirs is not None and ours is not None and theirs != ours:
            wrong = next((name for name in theirs if name not in ours), theirs[0])
            raise ConfigError(setting, f"the classes of {directory} are not those of {self.directory} (its {wrong!r}, for one)")
        helper, found = other._load("latest", None, world)
        origin[setting] = found["hash"]
        return (model.guided_by(helper) if guide is not None else model.guided_with(helper)).eval()

    def tensors(self, *, checkpoint: str = "latest", weights: str | None = None) -> dict[str, Tensor]:
        """The model's state by name, with the weights that `load` takes. Raises as `load` does."""
        return self._read(checkpoint, weights)[0]

    def _read(self, which: str, weights: str | None) -> tuple[dict[str, Tensor], dict[str, str | int]]:
        chosen = "model"

        def files(info: Mapping[str, Any]) -> set[str]:
            nonlocal chosen
            chosen = self._weights_file(weights, info)
            return {"model", chosen}

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

    def _weights_file(self, weights: str | None, info: Mapping[str, Any]) -> str:
        """The file of a checkpoint, of which `info` is the rest of its state.json, that holds the weights."""
        stems = [f"ema-{rate}" for rate in self.config.train.ema_rates]
        if "imported" in info:  # without its average, if it has one: see interchange.py
            stems = [stem for stem in stems if stem in info["imported"]["averages"]]
        if weights is None:
            return stems[0] if stems else "model"
        if weights == "raw":
            return "model"
        if weights not in stems:
            raise ConfigError("weights", f'got "{weights}", expected one of {", ".join(["raw", *stems])}{nearest(weights, stems)}')
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
        guide: str | Path | None = None,
        guide_with: str | Path | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Samples:
        """`count` samples, all of them in every process. Image k depends on the seed and k, not on batch size or processes.

        `labels` (numbers or class names) are taken in turn; None: all classes in turn. `settings`: of the model's sampler;
        None: those of the run. `out`: a .png for a grid, a .npz, or a folder; an interrupted call goes on where it was.
        `guide`: a run whose classifier leads the sampler; `guide_with`: a run whose weaker model it is led away from.
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
        led = self._led(model, origin, world, guide=guide, guide_with=guide_with)
        spec = self.spec if guide is None or self.spec.class_names else open_run(guide).spec
        request = Request(count, seed, label_list(led, spec, count=count, given=labels), chosen, precision)
        size = batch_size or min(64, self.config.train.batch_size)
        if out is None:
            return Samples(gather(led, request, batch_size=size, world=world), request.labels)
        report = progress or (lambda drawn: None)
        return sample_to(Path(out), led, request, origin=origin, batch_size=size, world=world, progress=report)

    def inputs(self, images: str | Path | np.ndarray) -> Inputs:
        """The images for `translate`: those at a path (folder, .zip, .tar, .npz, .npy), in an array, or of the base run at a path.

        Raises ConfigError for a run that takes no images, DataError for images of another size or of other classes.
        """
        with torch.device("meta"):
            model = build(self.config, self.spec)
        size = require_translator(model).input_size
        if isinstance(images, np.ndarray) or not RunDirectory(Path(images)).exists():
            return Inputs(open_pictures(images, size=size, channels=self.spec.channels))
        base = open_run(images)
        with torch.device("meta"):
            drawer = build(base.config, base.spec)
        require_sampler(drawer)
        require_fitting_base(str(images), drawer, base.spec, model=model, ours=self.spec)
        return Inputs(base)

    def translate(
        self,
        images: str | Path | np.ndarray | Inputs,
        *,
        count: int | None = None,
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
        """An image for each of the first `count` of `images` (see `inputs`), as an upsampler makes them; all of them in every process.

        `count`: None for all images given, and 64 of a base run. A base draws with its own settings and the same seed; image k depends
        on the seed, k and its small image. `labels` are taken in turn; None: those of the images, which are kept. The rest as in
        `sample`. Raises ConfigError, CheckpointError and DataError for what does not fit or cannot be read or written.
        """
        inputs = images if isinstance(images, Inputs) else self.inputs(images)
        count = inputs.count if count is None else count
        if not 1 <= count <= inputs.most:
            raise ConfigError("count", f"got {count}, expected 1 to {inputs.most}, the images that are there")
        if batch_size is not None and batch_size < 1:
            raise ConfigError("batch_size", f"got {batch_size}, expected at least 1")
        keep_freed_memory()
        world = open_world(device)
        model, origin = self._load(checkpoint, weights, world)
        chosen = settings or require_translator(model).sampling
        if isinstance(inputs.source, Pictures):
            source, found = inputs.source, inputs.source.origin
            kept = source.labels(model, self.spec, count=count, given=labels)
        else:
            source, found = inputs.source._draws(count, seed=seed, labels=labels, precision=precision, world=world)
            kept = source.labels(model, self.spec, given=labels)
        request = Translation(count, seed, kept, chosen, precision, load=source.load)
        size = batch_size or min(64, self.config.train.batch_size)
        if out is None:
            return Samples(gather(model, request, batch_size=size, world=world), kept)
        report = progress or (lambda drawn: None)
        return sample_to(Path(out), model, request, origin=origin | {"inputs": found}, batch_size=size, world=world, progress=report)

    def evaluate(
        self,
        metrics: Sequence[str] = ("bits-per-dim",),
        *,
        settings: BitsPerDimConfig | None = None,
        data: DataConfig | None = None,
        split: Split | None = None,
        count: int | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        checkpoint: str = "latest",
        weights: str | None = None,
        device: str | None = None,
        precision: str = "float32",
        out: str | Path | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Evaluation:
        """What the metrics say of the model on images of `data` (None: the run's own), in every process; also written to `out`.

        `split`, `count`: see Question. `out`: a .json, beside which goes an .npz; None: a name in the run's folder evaluations. An
        interrupted call goes on where it was. `progress` is told how many images are done, and of how many, in this process.
        Raises ConfigError, CheckpointError and DataError for what does not fit or cannot be read or written, RunError for infinities.
        """
        for name, value in (("count", count), ("batch_size", batch_size)):
            if value is not None and value < 1:
                raise ConfigError(name, f"got {value}, expected at least 1")
        keep_freed_memory()
        world = open_world(device)
        model, origin = self._load(checkpoint, weights, world)
        question = Question(tuple(metrics), settings or BitsPerDimConfig(), data or self.config.data, split, count, seed, precision)
        return evaluate(
            model,
            question,
            spec=self.spec,
            origin=origin,
            directory=self.directory,
            out=None if out is None else Path(out),
            batch_size=batch_size or min(64, self.config.train.microbatch or self.config.train.batch_size),
            world=world,
            progress=progress or (lambda done, total: None),
        )

    @property
    def encoding(self) -> Config:
        """The default settings of `coder`. Raises ConfigError where the model encodes no images."""
        with torch.device("meta"):
            return require_encoder(build(self.config, self.spec)).encoding

    def coder(
        self,
        *,
        settings: Config | None = None,
        batch_size: int | None = None,
        checkpoint: str = "latest",
        weights: str | None = None,
        device: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Coder:
        """What turns images into latents and latents into images. `settings`: None for those of `encoding`.

        `progress` is told how many images are done. Raises ConfigError where the model encodes no images, CheckpointError as `load` does.
        """
        if batch_size is not None and batch_size < 1:
            raise ConfigError("batch_size", f"got {batch_size}, expected at least 1")
        keep_freed_memory()
        world = open_world(device)
        model, _ = self._load(checkpoint, weights, world)
        chosen = settings or require_encoder(model).encoding
        size = batch_size or min(64, self.config.train.batch_size)
        return Coder(model, self.spec, chosen, batch_size=size, world=world, progress=progress or (lambda done: None))

    def encode(self, images: str | Path | np.ndarray, *, labels: Sequence[int | str] | None = None, device: str | None = None) -> Latents:
        """The latents of images; see `Coder.encode`."""
        return self.coder(device=device).encode(images, labels=labels)

    def decode(self, latents: Latents | str | Path, *, labels: Sequence[int | str] | None = None, device: str | None = None) -> Samples:
        """The images of latents; see `Coder.decode`."""
        return self.coder(device=device).decode(latents, labels=labels)

    def _draws(
        self, count: int, *, seed: int, labels: Sequence[int | str] | None, precision: str, world: World
    ) -> tuple[Drawn, dict[str, Any]]:
        """What this run draws as the base of another, and what that depends on."""
        model, origin = self._load("latest", None, world)
        settings = require_sampler(model).sampling
        given = None if getattr(model, "num_classes", None) is None else labels
        request = Request(count, seed, label_list(model, self.spec, count=count, given=given), settings, precision)
        chosen = None if request.labels is None else request.labels.tolist()
        drawn = Drawn(model, request, self.spec, str(self.directory), world.device)
        return drawn, origin | {"settings": settings.to_dict(), "labels": chosen}


@dataclass(frozen=True)
class Inputs:
    """Images for `Run.translate`: pictures, or a base run that draws them."""

    source: Pictures | Run

    @property
    def count(self) -> int:
        """How many are used where nothing is said: all pictures, or 64 of a base run."""
        return self.source.count if isinstance(self.source, Pictures) else BASE_COUNT

    @property
    def most(self) -> float:
        """How many there can be; without end where a run draws them."""
        return self.source.count if isinstance(self.source, Pictures) else math.inf


def build(config: RunConfig, spec: DataSpec) -> Model:
    """The run's model with its initial weights, on the CPU. Raises ConfigError where model and data do not fit."""
    try:
        return seeded_build(config.model, spec, seed=config.train.seed)
    except ConfigError as error:
        raise error.inside("model") from None


def open_run(run_dir: str | Path) -> Run:
    """The run in a directory. Raises CheckpointError where there is none that this version can read."""
    return Run(RunDirectory(Path(run_dir)))
