"""Packs: the images of any source in one file, as training takes them, with the keys by which they are held out (`triptych data pack`).

An .npz has the pixels, arr_0, uint8 (n, h, w, c), not compressed, so that they are mapped; labels, arr_1, int64 (n,), where there are
some; the keys, one after the other, and where each ends; and a stamp, in JSON. A zip has a file for each image, named as EDM's programs
name them, the labels in dataset.json, and stamp and keys in `PACK_FILE`. Either has the images in the order of their source. So what is
held out, the order of training and every pixel are those of the source.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from triptych.core.address import Place
from triptych.core.config import Config, config, spelled
from triptych.core.errors import ConfigError, DataError, one_line
from triptych.core.files import explain
from triptych.core.npz import DamagedArchive, OnDisk, open_npz
from triptych.core.reading import parsed_json
from triptych.data.archives import open_zip
from triptych.data.config import DataConfig
from triptych.data.files import LABELS_FILE, PACK_FILE, Files, Names
from triptych.data.images import ArrayImages
from triptych.data.naming import Classes, divided, held_out, parsed

PIXELS, CLASSES, KEYS, KEY_ENDS, DIVISION, STAMP = "arr_0", "arr_1", "keys", "key_ends", "division", "pack"
"""Names of the arrays."""
Kept = Literal["squares", "whole", "files"]
Division = Literal["keys", "numbers", "split"]

_OPEN = ("source", "path", "anchor_size", "flip", "augment", "jitter", "latent_std", "order", "validation_fraction", "workers")
_OPEN += ("label_file", "class_file", "skip", "on_error", "most_errors")
"""Settings that a training may choose, whatever the pack."""
_AGAIN = "pack the images again"


@config
class PackStamp(Config):
    """What a pack holds."""

    unwritten: ClassVar = frozenset(("versions",))

    kept: Kept
    "squares: of data.image_size. whole: images with a short side of data.resize, to be cut at random. files: as they were."
    data: DataConfig
    "How the images were prepared."
    class_names: tuple[str, ...] | None = None
    "Names of the classes; None: there are no labels."
    count: int
    "Number of images."
    division: Division
    "What holds images out: their keys, their numbers in the source, or the source's own split."
    images: str
    "Their fingerprint, which a training from their source has too."
    versions: str = ""
    "Of what versions of files elsewhere, as a hash; empty: none lay elsewhere."

    def text(self) -> str:
        """The stamp as it is in the file."""
        return json.dumps(self.to_dict())

    def opening(self, settings: DataConfig, name: str) -> DataConfig:
        """What opens the images of the pack where a training asks for `settings`. Raises ConfigError for what they are not.

        `name`: of the file, for messages.
        """
        if self.kept == "files":
            return settings
        if self.kept == "squares" and settings.crop != "center":
            raise ConfigError("data.crop", f"got {settings.crop!r}, but {name} keeps squares; set it to center, or {_AGAIN} with it")
        if settings.crop == "random" and settings.scale:
            raise ConfigError("data.scale", f"got {settings.scale}, but the images of {name} have one scale; leave it out")
        for setting in self._settled:
            given, packed = getattr(settings, setting), getattr(self.data, setting)
            if given != packed:
                reason = f"got {spelled(given)}, but the images of {name} were packed with {spelled(packed)}"
                raise ConfigError(f"data.{setting}", f"{reason}; set it to that, or {_AGAIN}")
        if settings.channels not in (None, self.data.channels):
            reason = f"got {settings.channels}, but the images of {name} have {self.data.channels}"
            raise ConfigError("data.channels", f"{reason}; leave it out, or {_AGAIN}")
        resize = self.data.resize if self.kept == "whole" else None
        return dataclasses.replace(settings, pad=0, resize=resize, channels=self.data.channels, decode="exact")

    @property
    def _settled(self) -> list[str]:
        """The names of the settings that have to be those of the pack."""
        left = {*_OPEN, "labels", "channels", "enlarge", "decode", "crop", "scale", *(["image_size"] if self.kept == "whole" else [])}
        return [field.name for field in dataclasses.fields(DataConfig) if field.name not in left]


def preparation(settings: DataConfig, *, channels: int) -> DataConfig:
    """The settings that say how images are prepared; the others as they are by default. So it is the same wherever the images lie."""
    plain = DataConfig()
    return dataclasses.replace(settings, **{name: getattr(plain, name) for name in _OPEN}, channels=channels)


def versions_of(objects: Mapping[str, str]) -> str:
    """A hash of the versions of files elsewhere, which names no address; empty where there are none."""
    said = json.dumps(sorted(objects.items()))
    return hashlib.sha256(said.encode()).hexdigest()[:32] if objects else ""


@dataclass(frozen=True)
class Pack:
    """What a pack says of its images."""

    stamp: PackStamp
    keys: Names
    "What each is called in its source."
    division: np.ndarray | None
    "int64 (n,): of the stamp's division by numbers these, of a split 1 for the images that are held out; None: the keys divide them."

    def divided(self, kept: np.ndarray, *, validation_fraction: float) -> tuple[np.ndarray, np.ndarray]:
        """Of the numbers `kept` those of images for training and for validation, as their source divides all."""
        training, validation = self._divided(validation_fraction)
        return training[np.isin(training, kept)], validation[np.isin(validation, kept)]

    def _divided(self, validation_fraction: float) -> tuple[np.ndarray, np.ndarray]:
        if self.division is None:
            return divided(parsed(list(self.keys)), validation_fraction=validation_fraction)
        if self.stamp.division == "numbers":
            return held_out([str(number) for number in self.division], fraction=validation_fraction)
        return np.flatnonzero(self.division == 0), np.flatnonzero((self.division != 0) & (validation_fraction > 0))


@dataclass(frozen=True)
class ArrayPack(Pack):
    """What is in an .npz."""

    pixels: OnDisk
    "uint8 (n, h, w, 1 or 3), mapped."
    labels: np.ndarray | None
    "int64 (n,)."

    def chosen_labels(self, settings: DataConfig, name: str) -> np.ndarray | None:
        """The labels that a training asks for. Raises ConfigError for others than the pack has."""
        wanted, own = settings.labels, self.stamp.data.labels
        if wanted == "none":
            return None
        if wanted not in ("auto", own) and not (wanted == "folder" and self.labels is not None):
            raise ConfigError("data.labels", f"got {wanted!r}, but {name} has the labels it was packed with ({own}); use auto or none")
        return self.labels


class PackedImages(ArrayImages):
    """Images of an .npz."""

    def __init__(self, pack: ArrayPack, settings: DataConfig, *, name: str, items: np.ndarray, labels: np.ndarray | None) -> None:
        """`labels`: of all images of the pack."""
        channels, chosen = pack.pixels.shape[3], None if labels is None else labels[items]
        super().__init__(pack.pixels, settings, name=name, channels=channels, items=items, labels=chosen)
        self._keys = pack.keys

    def source_key(self, item: int) -> str:
        return self._keys[int(self._items[item])]

    def default_workers(self) -> int:
        """None where images are read as they lie, which is faster than to send them from one process to another."""
        return 0 if self.config.crop == "center" and self.config.augment == "none" else 1


def array_pack(path: Place) -> ArrayPack | None:
    """The pack in an .npz; None where it is none. The pixels are held against their checksum. Raises DataError for a damaged one."""
    if path.suffix.lower() != ".npz":
        return None
    packed = False
    try:
        with open_npz(path) as file:
            packed = {STAMP, KEYS, KEY_ENDS, PIXELS} <= set(file.names)
            if not packed:
                return None
            stamp = PackStamp.from_dict(parsed_json(str(file.array(STAMP))))
            header = file.header(PIXELS)
            if header.dtype != np.uint8 or len(header.shape) != 4 or header.shape[3] not in (1, 3):
                raise ValueError(f"{PIXELS} is {header.dtype} of shape {list(header.shape)}")
            pixels = file.mapped(PIXELS)
            labels, division = (file.array(name) if name in file.names else None for name in (CLASSES, DIVISION))
            keys = Names.joined(file.array(KEYS).tobytes(), file.array(KEY_ENDS))
        names = stamp.class_names or ()
        whole = stamp.count == len(pixels) == len(keys) and all(each is None or each.shape == (len(keys),) for each in (labels, division))
        if not whole or (labels is None) != (stamp.class_names is None) or (labels is not None and labels.max() >= len(names)):
            raise ValueError("its arrays do not belong together")
    except (OSError, MemoryError) as error:
        raise DataError(f"{path}: cannot be read ({explain(error)})") from error
    except (DamagedArchive, ConfigError, ValueError) as error:
        if packed:
            raise _damaged(path, error) from error
        raise DataError(f"{path}: the archive is damaged ({one_line(error)}); copy or make it again") from error
    return ArrayPack(stamp, keys, division, pixels, labels)


def files_pack(files: Files) -> Pack | None:
    """What a pack of files says of them, which get their keys by it; None where they are none. Raises DataError for a damaged one."""
    said = files.packed()
    if said is None:
        return None
    try:
        match parsed_json(said):
            case {"stamp": dict(stamp), "keys": list(keys), "division": list() | None as values}:
                found = PackStamp.from_dict(stamp)
                division = None if values is None else np.array(values, dtype=np.int64)
                lengths = {found.count, len(keys), len(files.names), *([] if division is None else [len(division)])}
                if len(lengths) == 1 and all(isinstance(key, str) for key in keys):
                    files.keys = Names(keys)
                    return Pack(found, files.keys, division)
        raise ValueError(f"{PACK_FILE} does not belong to the files")
    except (ConfigError, ValueError, TypeError, OverflowError) as error:
        raise _damaged(files.place, error) from error


def stamp_of(path: Path) -> PackStamp | None:
    """The stamp of the pack at a path; None where there is none, or a damaged one."""
    try:
        if path.suffix == ".zip":
            found = files_pack(open_zip(path))
            return None if found is None else found.stamp
        with open_npz(path) as file:
            return PackStamp.from_dict(parsed_json(str(file.array(STAMP)))) if STAMP in file.names else None
    except (OSError, MemoryError, DamagedArchive, DataError, ConfigError, ValueError):
        return None


def named_classes(classes: Classes | None, stamp: PackStamp, place: Place) -> Classes | None:
    """Classes by number with the names that they had in the source. Raises DataError for a number that is none of them."""
    names = stamp.class_names
    if classes is None or not classes.numbered or names is None:
        return classes
    if len(classes.names) > len(names):
        raise _damaged(place, ValueError(f"{LABELS_FILE} has {len(classes.names)} classes of {len(names)}"))
    return Classes(classes.labels, names)


def _damaged(path: Place, error: Exception) -> DataError:
    return DataError(f"{path}: the pack is damaged, or of another version ({one_line(error)}); {_AGAIN}")
