"""Latents of images in a file, as an autoencoder's run wrote them (`triptych data encode`): to be learned in place of the images.

An .npz with, for each image, the mean and the deviation of its latents, float32 (n, z, h, w), and where mirrored images were encoded too
mirrored_mean and mirrored_std; labels, int64 (n,), where there are some; held_out, bool (n,); and a stamp, in JSON: which run with which
weights encoded which images, prepared how. A sample is mean + std noise, and nothing is decoded for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from triptych.core.address import Place
from triptych.core.batch import DataSpec, LatentSpec
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError, DataError
from triptych.core.files import explain
from triptych.core.npz import DamagedArchive, OnDisk, open_npz
from triptych.core.reading import parsed_json
from triptych.core.rng import Rng
from triptych.core.wording import counted
from triptych.data.config import AS_STORED, DataConfig, read_before
from triptych.data.images import Data, ImageSet, Loaded
from triptych.data.transforms import draw

STAMP, MEAN, STD, LABELS, HELD_OUT = "latents", "mean", "std", "labels", "held_out"
MIRRORED = "mirrored_"
"""What the names of the arrays of mirrored images begin with."""
_OF_IMAGES = ("pad", "resize", "scale", "jitter", "augment", "crop", "enlarge", "anchor_size", "skip", *AS_STORED)
"""Settings that say how images are prepared, which was settled when they were encoded."""


@config
class LatentStamp(Config):
    """What latents are of."""

    unwritten: ClassVar = frozenset({"as_learned", "contents"})

    latents: LatentSpec
    "The autoencoder, its images' size, and the latents' moments over the training images."
    data: DataConfig
    "What opens the images."
    precision: str = "float32"
    "Arithmetic of the encoder."
    class_names: tuple[str, ...] | None = None
    "Names of the classes; None: there are no labels."
    as_learned: bool = False
    "Whether moments and scale are those of latents that a model learned before, and not of these."
    contents: str = ""
    "A hash of the images, their names and their classes; empty in files of earlier versions."

    def text(self) -> str:
        """The stamp as it is in the file."""
        return json.dumps(self.to_dict())

    @property
    def asked(self) -> dict[str, Any]:
        """All that the latents depend on, for JSON: the stamp without what was found."""
        document = self.to_dict()
        if self.as_learned:
            return document
        return document | {"latents": {name: value for name, value in document["latents"].items() if name not in ("mean", "std")}}


def holds_latents(path: Place) -> bool:
    """Whether an .npz says that it holds latents; nothing is unpacked."""
    try:
        with open_npz(path) as file:
            return STAMP in file.names
    except (OSError, MemoryError, DamagedArchive):
        return False


@dataclass(frozen=True)
class LatentFile:
    """The arrays of a file; they stay on the disk."""

    stamp: LatentStamp
    arrays: dict[str, OnDisk]
    "mean and std, and those of mirrored images where there are some: float32 (n, z, h, w)."
    labels: np.ndarray | None
    held_out: np.ndarray

    def __len__(self) -> int:
        return len(self.held_out)

    @property
    def mirrored(self) -> bool:
        """Whether mirrored images were encoded too."""
        return MIRRORED + MEAN in self.arrays


def read_stamp(path: Place) -> LatentStamp:
    """The stamp of a file. Raises DataError."""
    return _read(path, stamp_alone=True).stamp


def read_latent_file(path: Place) -> LatentFile:
    """The latents of a file, each array held against its checksum. Raises DataError for a file that is damaged or another one."""
    return _read(path, stamp_alone=False)


def _read(path: Place, *, stamp_alone: bool) -> LatentFile:
    try:
        with open_npz(path) as file:
            if STAMP not in file.names or HELD_OUT not in file.names or MEAN not in file.names:
                raise DataError(f"{path}: holds {', '.join(file.names) or 'nothing'}, expected latents as triptych data encode writes them")
            stamp = LatentStamp.from_dict(_read_before(parsed_json(str(file.array(STAMP)))))
            if stamp_alone:
                return LatentFile(stamp, {}, None, np.zeros(0, dtype=bool))
            names = [name for prefix in ("", MIRRORED) for name in (prefix + MEAN, prefix + STD) if name in file.names]
            shape = file.header(MEAN).shape
            for name in names:
                header = file.header(name)
                if header.dtype != np.float32 or header.shape != shape or len(shape) != 4 or shape[1] != len(stamp.latents.mean):
                    raise DataError(f"{path}: {name} is {header.dtype} of shape {list(header.shape)}, expected float32 (n, z, h, w)")
            arrays = {name: file.mapped(name) for name in names}
            labels = file.array(LABELS) if LABELS in file.names else None
            held_out = file.array(HELD_OUT)
    except (OSError, MemoryError) as error:
        raise DataError(f"{path}: cannot be read ({explain(error)})") from error
    except (DamagedArchive, ConfigError, ValueError) as error:
        raise DataError(f"{path}: its latents are damaged, or of another version ({error}); encode the images again") from error
    whole = held_out.shape == (len(arrays[MEAN]),) and held_out.dtype == bool and len(arrays) in (2, 4)
    classes = stamp.class_names
    if not whole or not (labels is None if classes is None else _are_labels(labels, held_out.shape, len(classes))):
        raise DataError(f"{path}: its arrays do not belong together; encode the images again")
    return LatentFile(stamp, arrays, labels, held_out)


def _are_labels(labels: np.ndarray | None, shape: tuple[int, ...], classes: int) -> bool:
    """Whether that is the class of each image."""
    return labels is not None and labels.dtype == np.int64 and labels.shape == shape and bool(((labels >= 0) & (labels < classes)).all())


def _read_before(stamp: Any) -> Any:
    """A stamp with the settings of images that earlier versions did not write."""
    return stamp | {"data": read_before(stamp["data"])} if isinstance(stamp, dict) and "data" in stamp else stamp


class LatentImages(ImageSet):
    """Latents drawn from the distributions in a file, normalised: float32 (b, z, h, w)."""

    def __init__(self, file: LatentFile, spec: LatentSpec, config: DataConfig, *, name: str, items: np.ndarray) -> None:
        labels = None if file.labels is None or config.labels == "none" else file.labels[items]
        super().__init__(config, channels=len(spec.mean), items=items, labels=labels)
        self._file, self._spec, self._name = file, spec, name

    def key(self, item: int) -> str:
        return f"{self._name}[{self._items[item]}]"

    def source_key(self, item: int) -> str:
        return str(self._items[item])

    def default_workers(self) -> int:
        return 0

    def content(self, item: int) -> np.ndarray:
        """The distribution, as in the file."""
        return np.stack([self._file.arrays[name][self._items[item]] for name in (MEAN, STD)])

    def batch(self, items: np.ndarray, positions: np.ndarray | None = None, *, seed: int = 0) -> Loaded:
        numbers = self._items[items]
        mean, std = (self._file.arrays[name][numbers] for name in (MEAN, STD))
        flipped = draw(positions, self.config, seed=seed).flip
        if flipped.any():
            for values, name in ((mean, MEAN), (std, STD)):
                values[flipped] = self._file.arrays[MIRRORED + name][numbers[flipped]]
        noise = self._noise(numbers if positions is None else positions, varied=positions is not None, seed=seed)
        samples = self._spec.normalised(torch.from_numpy(mean) + torch.from_numpy(std) * noise)
        return Loaded(samples.numpy(), None if self.labels is None else self.labels[items])

    def _noise(self, index: np.ndarray, *, varied: bool, seed: int) -> torch.Tensor:
        """That of positions of the training order, or of images by their numbers, whose noise is always the same."""
        stream = ("data", "latents") if varied else ("data", "latents as they are")
        shape = self._file.arrays[MEAN].shape[1:]
        return Rng(seed if varied else 0, stream, torch.as_tensor(index, dtype=torch.int64)).normal("z", *shape).float()


def open_latents(config: DataConfig, path: Place) -> Data:
    """The latents of a file. Raises ConfigError for settings that the encoded images do not have, DataError as `read_latent_file`."""
    file = read_latent_file(path)
    stamp = file.stamp
    _check_settings(config, file, path)
    spec = stamp.latents if stamp.as_learned else replace(stamp.latents, scaled_to=config.latent_std)
    held_out = file.held_out if config.validation_fraction > 0 else np.zeros_like(file.held_out)
    train, rest = (np.flatnonzero(chosen) for chosen in (~file.held_out, held_out))
    if not len(train):
        raise DataError(f"{path}: holds no latents to train on")
    sets = [LatentImages(file, spec, config, name=path.name, items=items) for items in (train, rest)]
    _, channels, height, width = file.arrays[MEAN].shape
    names = stamp.class_names if config.labels != "none" else None
    described = DataSpec(
        image_size=height,
        width=None if width == height else width,
        channels=channels,
        num_classes=None if names is None else len(names),
        class_names=names,
        latents=spec,
    )
    wide = spec.width or spec.image_size
    note = f"they are latents of {wide}x{spec.image_size} images by {spec.autoencoder} ({spec.weights} at {spec.checkpoint} images)"
    return Data(sets[0], sets[1] if len(rest) else None, described, pictures=stamp.data, contents=stamp.contents, notes=(note,))


def _check_settings(config: DataConfig, file: LatentFile, path: Place) -> None:
    spec, plain = file.stamp.latents, DataConfig()
    if config.image_size != spec.image_size:
        reason = f"got {config.image_size}, but {path.name} keeps latents of images of {spec.image_size} pixels; set it to that"
        raise ConfigError("data.image_size", reason)
    if file.stamp.as_learned and config.latent_std not in (plain.latent_std, spec.scaled_to):
        reason = f"got {config.latent_std:g}, but {path.name} has latents on the scale of a model that learned them, {spec.scaled_to:g}"
        raise ConfigError("data.latent_std", f"{reason}; leave it out")
    if config.channels not in (None, spec.channels):
        raise ConfigError("data.channels", f"got {config.channels}, but the images of {path.name} have {spec.channels}; leave it out")
    if config.validation_fraction not in (0, plain.validation_fraction, file.stamp.data.validation_fraction):
        were = "was held out when it was encoded" if (held := int(file.held_out.sum())) == 1 else "were held out when they were encoded"
        kept = f"{held:,} of {counted(len(file), 'image')} of {path.name} {were}"
        reason = f"got {config.validation_fraction:g}, but {kept}; leave it out, or encode them again (--validation-fraction)"
        raise ConfigError("data.validation_fraction", reason)
    for name in _OF_IMAGES:
        if getattr(config, name) not in (getattr(plain, name), AS_STORED.get(name, getattr(plain, name))):
            reason = f"got {getattr(config, name)!r}, but the images of {path.name} were prepared when they were encoded"
            raise ConfigError(f"data.{name}", f"{reason}; set it to {getattr(plain, name)!r}")
    if config.labels in ("prefix", "json") or (config.labels == "folder" and file.labels is None):
        raise ConfigError("data.labels", f"got {config.labels!r}, but {path.name} has the labels it was encoded with; use auto or none")
    if config.flip and not file.mirrored:
        remedy = "encode them with --flip True, or in a new run set it to false"
        raise ConfigError("data.flip", f"got true, but {path.name} has no mirrored images; {remedy}")
