"""A run on disk, opened for use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from triptych.core.config import Config
from triptych.core.errors import ConfigError
from triptych.core.model import Model, Translator
from triptych.data.config import DataConfig
from triptych.engine.allocator import keep_freed_memory
from triptych.engine.distributed import World, open_world
from triptych.engine.run_directory import RunDirectory
from triptych.evaluation.bits_per_dim import BitsPerDimConfig
from triptych.runs.directions import DIRECTIONS, Directions, Edit, Range
from triptych.runs.encoding import Coder, require_encoder
from triptych.runs.evaluation import Evaluation, Question, Split, evaluate
from triptych.runs.guidance import led
from triptych.runs.inputs import Inputs, drawn_by, open_inputs
from triptych.runs.latents import Latents, PathName
from triptych.runs.sampling import Request, Samples, gather, label_list, require_sampler, sample_to
from triptych.runs.stored import StoredRun
from triptych.runs.translating import (
    GRID_ROWS,
    Translation,
    Translations,
    check_styles,
    check_target,
    fitting,
    gather_translations,
    require_translator,
    translate_to,
)
from triptych.runs.translation_inputs import Given, open_given, open_held_out, open_styles
from triptych.runs.translation_sources import OutputSize
from triptych.runs.upsampling import ClassesFrom, Pictures, Upsampling, require_upsampler


class Run(StoredRun):
    """A trained (or half trained) run: its configuration, its checkpoints, and what its model makes."""

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
        None: those of the run. `out`: a .png, .jpg or .webp for a grid, a .npz, or a folder; an interrupted call goes on where it was.
        `guide`: a run whose classifier leads the sampler; `guide_with`: a run whose weaker model it is led away from.
        Raises ConfigError and CheckpointError for what the run does not have, DataError where `out` cannot be written.
        """
        if count < 1:
            raise ConfigError("count", f"got {count}, expected at least 1")
        world, model, origin = self._ready(checkpoint, weights, device, batch_size)
        chosen = settings or require_sampler(model).sampling
        sampler = led(model, self, guide=guide, guide_with=guide_with, settings=chosen, world=world)
        request = Request(count, seed, label_list(sampler.model, sampler.spec, count=count, given=labels), chosen, precision)
        size = batch_size or min(64, self.config.train.batch_size)
        if out is None:
            return Samples(gather(sampler.model, request, batch_size=size, world=world), request.labels)
        report = progress or (lambda drawn: None)
        origin |= sampler.origin
        return sample_to(Path(out), sampler.model, request, origin=origin, batch_size=size, world=world, progress=report)

    def inputs(self, images: str | Path | np.ndarray) -> Inputs:
        """The images for `upsample`: those at a path (folder, .zip, .tar, .npz, .npy), in an array, or of the base run at a path.

        Raises ConfigError for a run that takes no images, DataError for images of another size or of other classes.
        """
        return open_inputs(images, run=self)

    def upsample(
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
        world, model, origin = self._ready(checkpoint, weights, device, batch_size)
        chosen = settings or require_upsampler(model).sampling
        if isinstance(inputs.source, Pictures):
            source, found = inputs.source, inputs.source.origin
            kept = source.labels(model, self.spec, count=count, given=labels)
        else:
            source, found = drawn_by(inputs.source, count, seed=seed, labels=labels, precision=precision, world=world)
            kept = source.labels(model, self.spec, given=labels)
        request = Upsampling(count, seed, kept, chosen, precision, load=source.load)
        size = batch_size or min(64, self.config.train.batch_size)
        if out is None:
            return Samples(gather(model, request, batch_size=size, world=world), kept)
        report = progress or (lambda drawn: None)
        return sample_to(Path(out), model, request, origin=origin | {"inputs": found}, batch_size=size, world=world, progress=report)

    @property
    def translation(self) -> Config:
        """The default settings of `translate`. Raises ConfigError where the model translates no images."""
        return self._translator().translation

    def translate(
        self,
        inputs: Given | None,
        *,
        count: int | None = None,
        style: Given | None = None,
        style_each: bool = False,
        style_count: int = 1,
        size: OutputSize = None,
        seed: int = 0,
        settings: Config | None = None,
        batch_size: int | None = None,
        checkpoint: str = "latest",
        weights: str | None = None,
        device: str | None = None,
        precision: str = "float32",
        out: str | Path | None = None,
        grid: int = GRID_ROWS,
        progress: Callable[[int, int], None] | None = None,
    ) -> Translations:
        """What the model makes of the first `count` inputs, in every process. Answer j to input k depends on the seed, that input, k and j.

        `inputs`: a path (a folder has a sub-folder for each of the model's sources where there are several), or arrays by the names of
        the sources; None: the run's held-out images. `style`: images whose look is taken, all of them together, or, with `style_each`, in
        turn, input by input; `style_count`: answers to each input. `size`: None for the run's; "own"; the short side; or height and width.
        `out`: a folder, with a picture of the first `grid` inputs; a .npz; or, of one image, a picture. An interrupted call goes on where
        it was. Raises ConfigError, CheckpointError and DataError for what does not fit or cannot be read or written.
        """
        if grid < 0:
            raise ConfigError("grid", f"got {grid}, expected 0 or more")
        facts = self._translator()
        check_styles(facts, given=style is not None, each=style_each, answers=style_count, held_out=inputs is None)
        if inputs is None:
            opened = open_held_out(self.config.data, self.spec, size=size, count=count)
        else:
            opened = open_given(inputs, facts, config=self.config.data, spec=self.spec, size=size, count=count)
        styles = None if style is None else open_styles(style, facts, config=self.config.data, spec=self.spec, each=style_each)
        if out is not None:
            check_target(Path(out), read=(inputs, style), count=len(opened) * style_count)
        world, model, origin = self._ready(checkpoint, weights, device, batch_size)
        wanted = Translation(opened, styles, style_count, seed, settings or facts.translation, precision)
        fits = fitting(batch_size, size=self.config.train.batch_size, height_and_width=self.spec.height_and_width)
        report = progress or (lambda done, total: None)
        if out is None:
            return Translations(opened.names, gather_translations(model, wanted, fits=fits, world=world, progress=report))
        return translate_to(Path(out), model, wanted, origin=origin, grid_rows=grid, fits=fits, world=world, progress=report)

    def _translator(self) -> Translator:
        """What the model translates, without its weights."""
        return require_translator(self.outline)

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
        if count is not None and count < 1:
            raise ConfigError("count", f"got {count}, expected at least 1")
        world, model, origin = self._ready(checkpoint, weights, device, batch_size)
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

    def _ready(
        self, checkpoint: str, weights: str | None, device: str | None, batch_size: int | None
    ) -> tuple[World, Model, dict[str, str | int]]:
        """The processes, the model on this one's device, and where its weights are from. Raises what its callers say."""
        if batch_size is not None and batch_size < 1:
            raise ConfigError("batch_size", f"got {batch_size}, expected at least 1")
        keep_freed_memory()
        world = open_world(device)
        return world, *self.loaded(checkpoint, weights, world)

    @property
    def encoding(self) -> Config:
        """The default settings of `coder`. Raises ConfigError where the model encodes no images."""
        return require_encoder(self.outline).encoding

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
        world, model, _ = self._ready(checkpoint, weights, device, batch_size)
        chosen = settings or require_encoder(model).encoding
        size = batch_size or min(64, self.config.train.batch_size)
        return Coder(model, self.spec, chosen, batch_size=size, world=world, progress=progress or (lambda done: None))

    def encode(self, images: str | Path | np.ndarray, *, labels: Sequence[int | str] | None = None, device: str | None = None) -> Latents:
        """The latents of images; see `Coder.encode`."""
        return self.coder(device=device).encode(images, labels=labels)

    def decode(self, latents: Latents | str | Path, *, labels: Sequence[int | str] | None = None, device: str | None = None) -> Samples:
        """The images of latents; see `Coder.decode`."""
        return self.coder(device=device).decode(latents, labels=labels)

    def directions(
        self,
        images: str | Path | np.ndarray,
        *,
        attributes: str | Path | None = None,
        classes: ClassesFrom = "auto",
        labels: Sequence[int | str] | None = None,
        device: str | None = None,
        out: str | Path | None = None,
    ) -> Directions:
        """The directions of the images' classes, or of the attributes in a table; see `Coder.directions` and `open_pictures`."""
        coder = self.coder(device=device)
        pictures = coder.open(images, classes=classes)
        return coder.directions(pictures, attributes=attributes, labels=labels, out=None if out is None else Path(out))[0]

    def edit(
        self,
        latents: Latents | str | Path,
        *,
        strengths: Mapping[str, float | Range] | None = None,
        pick: Sequence[int] | None = None,
        between: tuple[int, int] | None = None,
        path: PathName | None = None,
        count: int | None = None,
        labels: Sequence[int | str] | None = None,
        directions: Directions | str | Path | None = None,
        batch_size: int | None = None,
        checkpoint: str = "latest",
        weights: str | None = None,
        device: str | None = None,
        out: str | Path | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Samples:
        """The images of latents, given or in a file, moved along `directions` (None: those in the run's directions.npz).

        `strengths`, `pick`, `between`, `path`, `count`: see `Edit`; `labels` and what is raised: see `Coder.edit`. Nothing is drawn, so
        the same latents give the same images.
        """
        edit = Edit(strengths or {}, pick, between, path, count)
        coder = self.coder(batch_size=batch_size, checkpoint=checkpoint, weights=weights, device=device, progress=progress)
        known = self.directory / DIRECTIONS if directions is None else directions
        return coder.edit(latents, edit, directions=known, labels=labels, out=None if out is None else Path(out))


def open_run(run_dir: str | Path) -> Run:
    """The run in a directory. Raises CheckpointError where there is none that this version can read."""
    return Run(RunDirectory(Path(run_dir)))
