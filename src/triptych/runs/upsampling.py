"""Images that a model makes from other images: of pictures that it is given, or of those that a base run draws for it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.core.batch import DataSpec, RawBatch
from triptych.core.errors import ConfigError, DataError, nearest
from triptych.core.images import nearest_uint8
from triptych.core.model import Report, Upsampler
from triptych.core.reading import user_path
from triptych.core.rng import Rng
from triptych.data.arrays import array_file
from triptych.data.config import DataConfig
from triptych.data.files import walked
from triptych.data.images import ArrayImages, Data, ImageSet
from triptych.data.source import recognised
from triptych.runs.sampling import Request, Samples, draw, label_list, write_grid

BASE_COUNT = 64
"""Images that a base run draws where no number is given."""

ClassesFrom = Literal["auto", "folder", "prefix", "none"]
_COLUMNS = 16  # of the grids during training
_BELOW_SIZE = ", smaller than data.image_size"  # the rest of the data's message advises on settings that this command does not have
_LABELS = "data.labels"  # which is called `classes` here


@dataclass(frozen=True)
class Upsampling(Request):
    """Which enlargements are wanted. Image k depends on these, on its own small image and on k alone."""

    load: Callable[[range], np.ndarray]
    "The small images of some indices: uint8 (b, s, s, c)."

    def images(self, model: nn.Module, part: range, device: torch.device, report: Report | None = None) -> Tensor:
        """The images that the model makes of those of these indices: (b, c, h, w) in [-1, 1]."""
        index = torch.arange(part.start, part.stop, device=device)
        small = RawBatch(torch.from_numpy(self.load(part)), self.labels_of(part, device), index).to(device)
        # Its own stream: a base draws from "sample", and both would begin with the same noise.
        return require_upsampler(model).upsample(small, Rng(self.seed, ("upsample",), index), settings=self.settings, report=report)


def require_upsampler(model: nn.Module) -> Upsampler:
    """The model as a upsampler; ConfigError where it is none."""
    if not isinstance(model, Upsampler):
        raise ConfigError("model", f"{type(model).__name__} takes no images; leave out --base")
    return model


@dataclass(frozen=True)
class Pictures:
    """Small images that were given, with their classes where they have some."""

    name: str
    images: ImageSet
    classes: DataSpec
    "What their labels mean."
    numbered: bool
    "Whether labels are the numbers of the run's own classes; else classes go by their names."
    origin: str
    "Changes when the images change."

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.images)

    def load(self, part: range) -> np.ndarray:
        """The images of some indices: uint8 (b, s, s, c). Raises DataError naming a file that cannot be used."""
        with _sized(self.classes.image_size):
            return self.images.batch(np.arange(part.start, part.stop)).images

    def labels(self, model: nn.Module, spec: DataSpec, *, count: int, given: Sequence[int | str] | None) -> np.ndarray | None:
        """A label for each of the first `count` images: `given` taken in turn, else their own as labels of the model.

        Raises ConfigError or DataError where a conditional model gets none, or others than it knows.
        """
        conditional = getattr(model, "num_classes", None)
        if given is not None:
            return label_list(model, spec, count=count, given=given)
        own = None if self.images.labels is None else self.images.labels[:count]
        if conditional is None:
            return own
        if own is None:
            raise ConfigError("labels", f"{self.name} has none, but this model needs one for each image, from 0 to {conditional - 1}")
        if not self.numbered:
            return renumbered(self.classes, spec, name=self.name, some=True)[own]
        if own.max() >= conditional:
            raise DataError(f"{self.name}: holds class {own.max()}, expected 0 to {conditional - 1}")
        return own


def open_pictures(source: str | Path | np.ndarray, *, size: int, channels: int, classes: ClassesFrom = "auto") -> Pictures:
    """All images of a folder, archive or array, in order; larger ones of files are cut to `size`, arrays have to have it.

    `classes`: of files, from their folders or what their names have before an underscore; auto: from the folders, where all are in one.
    Raises DataError for what cannot be used, naming the file.
    """
    if isinstance(source, np.ndarray):
        return _array_pictures("the array", source, None, size=size, channels=channels)
    path = user_path(source)
    if not path.exists():
        raise DataError(f"{source}: does not exist; expected a run, or a folder, .zip, .tar, .npz or .npy of images")
    if recognised(path) == "arrays":
        part = array_file(path)
        if classes in ("folder", "prefix"):
            raise ConfigError("classes", f"got {classes!r}, but {path} is not made of files; leave it out")
        return _array_pictures(str(path), part.pixels, None if classes == "none" else part.labels, size=size, channels=channels)
    config = DataConfig(
        path=str(path),
        labels=classes,
        image_size=size,
        channels=3 if channels == 3 else 1,
        flip=False,
        validation_fraction=0,
        workers=0,
    )
    with _sized(size):
        data = config.open()
    return Pictures(str(path), data.train, data.spec, numbered=False, origin=stamp(path))


def _array_pictures(name: str, pixels: np.ndarray, labels: np.ndarray | None, *, size: int, channels: int) -> Pictures:
    if pixels.ndim != 4 or pixels.dtype != np.uint8 or pixels.shape[-1] not in (1, 3) or not len(pixels):
        raise DataError(f"{name}: {pixels.dtype} of shape {pixels.shape}, expected uint8 of shape (n, height, width, 1 or 3)")
    if pixels.shape[1:3] != (size, size):
        raise DataError(f"{name}: images of {pixels.shape[2]}x{pixels.shape[1]} pixels, expected {size}x{size}")
    config = DataConfig(image_size=size, channels=3 if channels == 3 else 1, flip=False, validation_fraction=0, workers=0)
    images = ArrayImages(pixels, config, name=name, channels=channels, items=np.arange(len(pixels)), labels=labels)
    digest = hashlib.sha256(np.ascontiguousarray(pixels).data).hexdigest()
    return Pictures(name, images, DataSpec(image_size=size, channels=channels), numbered=True, origin=digest)


@contextmanager
def _sized(size: int) -> Iterator[None]:
    """Within it an image that is too small is said to be so, and classes to be missing, without advice about the settings of a training."""
    try:
        yield
    except ConfigError as error:
        if error.setting != _LABELS:
            raise
        raise ConfigError("classes", error.reason) from error
    except DataError as error:
        head, found, _ = str(error).partition(_BELOW_SIZE)
        if not found and _LABELS not in head:
            raise
        raise DataError(f"{head}, expected at least {size}x{size}" if found else head.replace(_LABELS, "classes")) from error


def stamp(path: Path) -> str:
    """Names, sizes and times of the files at a path, links followed, in short."""
    lines = []
    for file in sorted(_below(path)) if path.is_dir() else [path]:
        try:
            found = file.stat()
            lines.append(f"{file} {found.st_size} {found.st_mtime_ns}")
        except OSError:  # a link to nothing: who reads it as an image says so
            lines.append(f"{file} cannot be read")
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def _below(folder: Path) -> Iterator[Path]:
    for relative, folders, others in walked(folder):
        folders[:] = [entry for entry in folders if not entry.name.startswith(".")]  # nothing in them is read
        yield from (folder / relative / entry.name for entry in others)


def renumbered(theirs: DataSpec, ours: DataSpec, *, name: str, some: bool = False) -> np.ndarray:
    """The label of `ours` for each class of `theirs`, by name where both have names; int64 (classes,).

    `some`: `theirs` may lack classes of `ours`. Raises DataError where the classes are not the same; `name` says whose they are.
    """
    names, known = theirs.class_names or (), ours.class_names or ()
    comparable = bool(names and known) and (some or len(names) == len(known))
    if comparable and set(names) <= set(known):
        return np.array([known.index(given) for given in names], dtype=np.int64)
    if theirs.num_classes == ours.num_classes and (_nameless(names) or _nameless(known)):
        return np.arange(ours.num_classes or 0)
    if comparable and (some or not _nameless(known)):
        wrong = next(given for given in names if given not in known)
        raise DataError(f'{name}: class "{wrong}" is none of this model\'s{nearest(wrong, known)}')
    raise DataError(f"{name}: has {theirs.num_classes} classes, this model {ours.num_classes}; they have to be the same")


def _nameless(names: tuple[str, ...]) -> bool:
    """Whether the names say no more than the numbers, or are not known."""
    return names == tuple(map(str, range(len(names))))


@dataclass(frozen=True)
class Drawn:
    """The images that a base run draws for a upsampler."""

    base: nn.Module
    request: Request
    spec: DataSpec
    "Of the base's data."
    name: str
    device: torch.device

    def load(self, part: range) -> np.ndarray:
        """The images of some indices, drawn now: uint8 (b, s, s, c)."""
        ((_, images),) = draw(self.base, self.request, indices=part, batch_size=len(part), device=self.device)
        return images

    def labels(self, model: nn.Module, spec: DataSpec, *, given: Sequence[int | str] | None) -> np.ndarray | None:
        """The base's labels, as those of the model; `given`, taken in turn, where the base has none."""
        own = self.request.labels
        if own is None and given is None and getattr(model, "num_classes", None) is not None:
            raise ConfigError("labels", f"{self.name} draws images without labels, but this model needs them; give some")
        if own is None:
            return label_list(model, spec, count=self.request.count, given=given)
        return own if getattr(model, "num_classes", None) is None else renumbered(self.spec, spec, name=self.name)[own]


def require_fitting_base(name: str, base: nn.Module, spec: DataSpec, *, model: nn.Module, ours: DataSpec) -> None:
    """DataError unless the images and classes of a base run, whose data is `spec`, are those that the model takes."""
    size = require_upsampler(model).input_size
    if (spec.image_size, spec.channels) != (size, ours.channels):
        kind = {1: "grey", 3: "RGB"}
        found = f"{kind[spec.channels]} images of {spec.image_size} pixels"
        raise DataError(f"{name}: draws {found}, expected {kind[ours.channels]} ones of {size}")
    if getattr(base, "num_classes", None) is not None and getattr(model, "num_classes", None) is not None:
        renumbered(spec, ours, name=name)


def upsampled_grid(model: nn.Module, data: Data, *, count: int, precision: str) -> tuple[Upsampling, Callable[[Path, np.ndarray], None]]:
    """The request for enlargements of the first held-out (else training) images made small, and what draws the picture of them.

    In the picture a row of the small images is above one of what was made of them and one of the originals.
    """
    upsampler = require_upsampler(model)
    images = data.train if data.validation is None else data.validation
    count = min(count, len(images))
    originals = images.batch(np.arange(count)).images
    large = RawBatch(torch.from_numpy(originals), None, torch.arange(count)).to("cpu").images
    small = nearest_uint8(F.interpolate(large, size=upsampler.input_size, mode="area")).numpy()
    labels = None if images.labels is None else images.labels[:count]
    request = Upsampling(count, 0, labels, upsampler.sampling, precision, load=lambda part: small[part.start : part.stop])
    nearest_pixel = np.arange(originals.shape[1]) * small.shape[1] // originals.shape[1]
    enlarged = small[:, nearest_pixel][:, :, nearest_pixel]

    def write(path: Path, made: np.ndarray) -> None:
        columns = min(count, _COLUMNS)
        shown = [_row(kind, start, columns) for start in range(0, count, columns) for kind in (enlarged, made, originals)]
        write_grid(path, Samples(np.concatenate(shown), None), columns=columns)

    return request, write


def _row(images: np.ndarray, start: int, columns: int) -> np.ndarray:
    """`columns` images from `start` on, white ones after the last."""
    row = images[start : start + columns]
    return np.concatenate((row, np.full((columns - len(row), *row.shape[1:]), 255, dtype=np.uint8)))
