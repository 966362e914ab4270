"""A run on disk, opened for use. Each verb is a function of the run, in a file of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

import numpy as np

from triptych.core.config import Config
from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.given import optional_place, shown, whole_number
from triptych.data.config import ClassesFrom
from triptych.engine.progress import Watch, unwatched
from triptych.engine.run_directory import RunDirectory
from triptych.runs import averaging, encoding, evaluation, sampling, scoring, translating, upsampling
from triptych.runs.directions import DIRECTIONS, Directions, Edit, Range
from triptych.runs.files import check_place
from triptych.runs.latents import Latents, PathName, Sampled
from triptych.runs.loading import LoadingKeywords
from triptych.runs.sampling import Samples
from triptych.runs.stored import StoredRun
from triptych.runs.translating import require_translator


class Run(StoredRun):
    """A trained (or half trained) run: its configuration, its checkpoints, and what its model makes.

    The verbs take the settings of `Loading` as keyword arguments: `checkpoint`, `weights`, `ema_length`, `batch_size`, `precision` and
    `device`.
    """

    average = averaging.average
    sample = sampling.sample
    translate = translating.translate
    evaluate = evaluation.evaluate
    score = scoring.score
    coder = encoding.coder
    inputs = upsampling.inputs
    upsample = upsampling.upsample

    @property
    def translation(self) -> Config:
        """The default settings of `translate`. Raises ConfigError where the model translates no images."""
        return require_translator(self.outline).translation

    @property
    def encoding(self) -> Config:
        """The default settings of `coder`. Raises ConfigError where the model encodes no images."""
        return encoding.require_encoder(self.outline).encoding

    def encode(
        self, images: str | Path | np.ndarray, *, labels: Sequence[int | str] | None = None, **loading: Unpack[LoadingKeywords]
    ) -> Latents:
        """The latents of images; see `Coder.encode`."""
        return self.coder(**loading).encode(images, labels=labels)

    def decode(
        self, latents: Latents | str | Path, *, labels: Sequence[int | str] | None = None, **loading: Unpack[LoadingKeywords]
    ) -> Samples:
        """The images of latents; see `Coder.decode`."""
        return self.coder(**loading).decode(latents, labels=labels)

    def directions(
        self,
        images: str | Path | np.ndarray,
        *,
        attributes: str | Path | None = None,
        classes: ClassesFrom = "auto",
        labels: Sequence[int | str] | None = None,
        out: str | Path | None = None,
        **loading: Unpack[LoadingKeywords],
    ) -> Directions:
        """The directions of the images' classes, or of the attributes in a table; see `Coder.directions` and `open_collection`."""
        coder = self.coder(**loading)
        pictures = coder.open(images, classes=classes)
        return coder.directions(pictures, attributes=attributes, labels=labels, out=None if out is None else Path(out))[0]

    def edit(
        self,
        latents: Latents | str | Path | None,
        *,
        strengths: Mapping[str, float | Range] | None = None,
        pick: Sequence[int] | None = None,
        between: tuple[int, int] | None = None,
        path: PathName | None = None,
        count: int | None = None,
        mix: tuple[int, int] | None = None,
        mix_at: int | None = None,
        labels: Sequence[int | str] | None = None,
        seed: int = 0,
        settings: Config | None = None,
        directions: Directions | str | Path | None = None,
        out: str | Path | None = None,
        progress: Watch = unwatched,
        **loading: Unpack[LoadingKeywords],
    ) -> Samples:
        """The images of latents, given or in a file, moved along `directions` (None: those in the run's directions.npz).

        `latents` None: those of the samples of `seed`, with these `settings` of the sampler (None: the run's) and `labels`. `strengths`,
        `pick`, `between`, `path`, `count`, `mix`, `mix_at`: see `Edit`; `labels` and what is raised: see `Coder.edit`. The same latents
        give the same images.
        """
        edit = Edit(strengths or {}, pick, between, path, count, mix, mix_at)
        if directions is not None and not strengths:
            raise ConfigError("directions", "got some without {}, how far to go along them", ["strengths"])
        if latents is not None:
            for name, value, usual in (("seed", seed, 0), ("settings", settings, None)):
                if value != usual:
                    raise ConfigError(name, f"got {shown(value)} beside {{}}, which are not drawn; leave it out", ["latents"])
        source = self.directory / DIRECTIONS if directions is None else directions
        place = optional_place(out, "out")
        if place is not None:
            check_place(place)  # before the weights are read
        coder = self.coder(progress=progress, **loading)
        if latents is None:
            return coder.edit(Sampled(whole_number(seed, "seed", least=0), labels, settings), edit, directions=source, out=place)
        return coder.edit(latents, edit, directions=source, labels=labels, out=place)


def open_run(run_dir: str | Path) -> Run:
    """The run in a directory. Raises CheckpointError where there is none that this version can read."""
    if not isinstance(run_dir, str | Path) or not str(run_dir):
        raise CheckpointError(f"got {shown(run_dir)}, expected the directory of a run")
    return Run(RunDirectory(Path(run_dir)))
