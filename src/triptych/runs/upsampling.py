"""The verb that enlarges: images that a model makes of small ones, those of a user or those that a base run draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.core.batch import RawBatch
from triptych.core.config import Config, settings_like
from triptych.core.errors import ConfigError, DataError
from triptych.core.given import given_path, given_place, whole_number
from triptych.core.images import nearest_uint8
from triptych.core.model import Report, Upsampler
from triptych.core.reading import user_path
from triptych.core.rng import Rng
from triptych.data.colours import Colours
from triptych.data.images import Data
from triptych.engine.progress import Watch, unwatched
from triptych.engine.run_directory import RunDirectory
from triptych.runs.files import check_apart, check_unlearned
from triptych.runs.given.classes import renumbered
from triptych.runs.given.collection import Collection, open_squares
from triptych.runs.given.small_images import Load, SmallImages
from triptych.runs.latent_space import require_decoded
from triptych.runs.loading import Loading, LoadingKeywords
from triptych.runs.sampling import Request, Samples, check_output, drawn, require_room, require_sampler, write_kinds
from triptych.runs.stored import StoredRun


def upsample(
    run: StoredRun,
    images: str | Path | np.ndarray | SmallImages,
    *,
    count: int | None = None,
    seed: int = 0,
    labels: Sequence[int | str] | None = None,
    settings: Config | None = None,
    out: str | Path | None = None,
    progress: Watch = unwatched,
    **loading: Unpack[LoadingKeywords],
) -> Samples:
    """An image for each of the first `count` of `images` (see `inputs`), as an upsampler makes them; all of them in every process.

    `count`: None for all images given, and 64 of a base run. A base draws with its own settings and the same seed; image k depends
    on the seed, k and its small image. `labels` are taken in turn; None: those of the images, which are kept. The rest as in
    `sample`. Raises ConfigError, CheckpointError and DataError for what does not fit or cannot be read or written.
    """
    small = images if isinstance(images, SmallImages) else inputs(run, images)
    count, seed = small.counted(count), whole_number(seed, "seed", least=0)
    require_room(count, run.spec.pictured)
    if out is not None:
        out = given_place(out, "out")
        if isinstance(small.source, Collection):
            check_apart(out, small.source.name)
        check_output(out, count=count)  # before the weights are read
        check_unlearned(out, run.config.data)
    opened = run.open_together(Loading(**loading))
    load, kept, origin = small.first(count, opened, seed=seed, labels=labels)
    chosen = settings_like(require_upsampler(opened.model).sampling, settings)
    request = Upsampling(count, seed, kept, chosen, opened.loading.precision, load=load)
    return drawn(opened, opened.model, request, origin={"inputs": origin}, out=out, progress=progress)


def inputs(run: StoredRun, images: str | Path | np.ndarray) -> SmallImages:
    """The images for `upsample`: those at a path (folder, .zip, .tar, .npz, .npy), in an array, or of the base run at a path.

    Raises ConfigError for a run that takes no images, DataError for images of another size or of other classes.
    """
    side = require_upsampler(run.outline).input_size
    if not isinstance(images, np.ndarray):
        directory = RunDirectory(given_path(images, "images"))
        if directory.exists():
            base = StoredRun(directory)
            _check_base(str(images), base, run, side=side)
            return SmallImages(base)
        if not user_path(images).exists():
            raise DataError(f"{images}: does not exist; expected a run, or a folder, .zip, .tar, .npz or .npy of images")
    return SmallImages(open_squares(images, side=side, channels=run.spec.channels, colours=Colours.of(run.config.data)))


def _check_base(name: str, base: StoredRun, run: StoredRun, *, side: int) -> None:
    """Raises ConfigError or DataError unless a base run draws the images and has the classes that the upsampler of `run` takes."""
    require_sampler(base.outline)
    require_decoded(base.spec, name)
    kinds, channels, drawn = {1: "grey", 3: "RGB"}, run.spec.channels, base.spec.pictured
    if (drawn.image_size, drawn.channels) != (side, channels):
        images = f"{kinds[drawn.channels]} images of {drawn.image_size} pixels"
        raise DataError(f"{name}: draws {images}, expected {kinds[channels]} ones of {side}")
    if base.outline.num_classes is not None and run.outline.num_classes is not None:
        renumbered(base.spec, run.spec, name=name)


@dataclass(frozen=True)
class Upsampling(Request):
    """Which enlargements are wanted. Image k depends on these, on its own small image and on k alone."""

    load: Load
    "The small images."

    def images(self, model: nn.Module, part: range, device: torch.device, report: Report | None = None) -> Tensor:
        """The images that the model makes of those of these indices: (b, c, h, w) in [-1, 1]."""
        index = torch.arange(part.start, part.stop, device=device)
        small = RawBatch(torch.from_numpy(self.load(part)), self.labels_of(part, device), index).to(device)
        # Its own stream: a base draws from "sample", and both would begin with the same noise.
        return require_upsampler(model).upsample(small, Rng(self.seed, ("upsample",), index), settings=self.settings, report=report)


def require_upsampler(model: nn.Module) -> Upsampler:
    """The model as an upsampler; ConfigError where it is none."""
    if not isinstance(model, Upsampler):
        raise ConfigError("model", f"{type(model).__name__} takes no images; leave out --base")
    return model


def made_small(images: np.ndarray, side: int) -> np.ndarray:
    """Images, uint8 (b, h, w, c), as small ones of `side` pixels, 8-bit too: the mean of the pixels that each new one covers."""
    large = RawBatch(torch.from_numpy(images), None, torch.arange(len(images))).to("cpu").images
    return nearest_uint8(F.interpolate(large, size=side, mode="area")).numpy()


def upsampled_grid(model: nn.Module, data: Data, *, count: int, precision: str) -> tuple[Upsampling, Callable[[Path, np.ndarray], None]]:
    """A request that enlarges some of the data's own images, made small before; and what writes the picture of the result.

    They are the first held-out images, or training images where none are held out. The picture has rows of three kinds in turn: the
    small images, what was made of them, the originals.
    """
    upsampler = require_upsampler(model)
    images = data.looked_at
    count = min(count, len(images))
    originals = images.batch(np.arange(count)).images
    small = made_small(originals, upsampler.input_size)
    labels = None if images.labels is None else images.labels[:count]
    request = Upsampling(count, 0, labels, upsampler.sampling, precision, load=lambda part: small[part.start : part.stop])
    nearest_pixel = np.arange(originals.shape[1]) * small.shape[1] // originals.shape[1]
    enlarged = small[:, nearest_pixel][:, :, nearest_pixel]

    def write(path: Path, made: np.ndarray) -> None:
        write_kinds(path, (enlarged, made, originals))

    return request, write
