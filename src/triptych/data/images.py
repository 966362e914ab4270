"""ImageSet: images that can be asked for by number, from files, from the records of files or from an array in memory."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from triptych.core.batch import DataSpec
from triptych.core.npz import OnDisk, stays_on_disk
from triptych.core.rng import key_of
from triptych.data.augmentation import move
from triptych.data.config import DataConfig
from triptych.data.cut import Cut
from triptych.data.files import Files
from triptych.data.stored import PROBED, Keyed, evenly_spaced, measure, named, probe
from triptych.data.transforms import draw, mirror, padded, recolour, with_channels

_MOST_WORKERS = 4  # by default; more is a matter of measuring
_PREPARED_BYTES = 2**26


@dataclass(frozen=True)
class Loaded:
    """All that belongs to some items of an ImageSet."""

    images: np.ndarray
    "uint8 (b, h, w, c) or (b, t, h, w, c); float32 in [-1, 1] has its channels before h."
    labels: np.ndarray | None
    "int64 (b,), or None."
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict)
    "By the names of `DataSpec.inputs`: images as above, or int64."
    bad: Mapping[str, str] = field(default_factory=dict)
    "What is wrong with the images in whose place others are here, by their `source_key` (data.on_error skip)."


class ImageSet(ABC):
    """Images numbered from 0, all cut to the same size and channels, with their labels."""

    def __init__(self, config: DataConfig, *, channels: int, items: np.ndarray, labels: np.ndarray | None) -> None:
        self.config = config
        self.channels = channels
        self.labels = labels
        "Class of each image, int64 of shape (n,), or None."
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    @abstractmethod
    def key(self, item: int) -> str:
        """The file name of an image (or its place in an array), for messages."""

    def source_key(self, item: int) -> str:
        """What an image is called inside its source, the same on every machine (see `skipping`); of a pair that to be made."""
        return self.key(item)

    @property
    def numbers(self) -> np.ndarray:
        """The number of each image where it is stored: int64 (n,)."""
        return self._items

    @abstractmethod
    def batch(self, items: np.ndarray, positions: np.ndarray | None = None, *, seed: int = 0) -> Loaded:
        """All that belongs to the items (b,): varied as their `positions` of the training order (b,) say, or (None) as it is.

        Raises DataError naming the file.
        """

    def content(self, item: int) -> bytes | np.ndarray:
        """What an image is made of: its file's bytes where there is one, else its pixels, cut. Raises DataError naming the file."""
        return self.batch(np.array([item])).images[0]

    def default_workers(self) -> int:
        """How many loader processes suit these images, beside a training process that has its share of this machine's cores."""
        return workers_beside(max(1, int(os.environ.get("LOCAL_WORLD_SIZE", 1))))


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers_beside(processes: int) -> int:
    """Loader processes for each of so many training processes of this machine: their share of the cores, less one."""
    return min(_MOST_WORKERS, max(1, usable_cores() // processes - 1))


@dataclass(frozen=True)
class Data:
    """A data set, opened."""

    train: ImageSet
    validation: ImageSet | None
    "Held-out images; None: there are none."
    spec: DataSpec
    notes: tuple[str, ...] = ()
    "What the log says of the files: those that were passed over, and what looks like a mistake."
    objects: Mapping[str, str] = field(default_factory=dict)
    "Which version it is of each file that lies elsewhere, by address: for a resume."
    pictures: DataConfig | None = None
    "Of latents: what opens the images that they are of, held out alike; None: these are images themselves."
    contents: str = ""
    "Of latents: a hash of these images; empty where their file has none."

    @property
    def sets(self) -> list[ImageSet]:
        """The images to train on, and those that are held out where there are some."""
        return [self.train] if self.validation is None else [self.train, self.validation]

    @property
    def looked_at(self) -> ImageSet:
        """The images that a training is judged by: those that are held out, or where none are those that it learns."""
        return self.train if self.validation is None else self.validation


class SquareImages(ImageSet):
    """Images that are cut to squares, and have labels at most."""

    @abstractmethod
    def _squares(self, items: np.ndarray, crop: np.ndarray | None) -> np.ndarray:
        """uint8 (b, s, s, channels), writable: the centre squares, or those that the words of `crop` (b, 3) choose."""

    def batch(self, items: np.ndarray, positions: np.ndarray | None = None, *, seed: int = 0) -> Loaded:
        draws = draw(positions, self.config, seed=seed)
        squares = self._squares(items, draws.crop)
        if draws.moves is not None:
            move(squares, draws.moves)
        mirror(squares, draws.flip)
        if draws.jitter is not None:
            recolour(squares, draws.jitter, amount=self.config.jitter)
        return Loaded(squares, None if self.labels is None else self.labels[items])


class FileImages(SquareImages):
    """Images in files, archives or records, read and decoded when they are asked for."""

    def __init__(self, stored: Keyed, config: DataConfig, *, channels: int, items: np.ndarray, labels: np.ndarray | None) -> None:
        super().__init__(config, channels=channels, items=items, labels=labels)
        self._stored, self._cut = stored, Cut.of(config)

    def key(self, item: int) -> str:
        return self._stored.describe(int(self._items[item]))

    def source_key(self, item: int) -> str:
        return self._stored.key(int(self._items[item]))

    def content(self, item: int) -> bytes | np.ndarray:
        number = int(self._items[item])
        with named(self._stored, number):
            return self._stored.read(number)

    def whole(self, item: int) -> np.ndarray:
        """All of an image, resized as for its centre square but not cut: uint8 (h, w, channels). Raises DataError naming the file."""
        number = int(self._items[item])
        with named(self._stored, number):
            return self._cut.whole(self._stored.read(number), self.channels)

    def probe(self) -> None:
        """Reads the headers of some images, so that a wrong folder or size shows before training. Raises DataError."""
        items = evenly_spaced(len(self), PROBED)
        if isinstance(self._stored, Files):
            self._stored.expect([int(self._items[item]) for item in items])
        probe(
            items,
            lambda item: measure(self._stored, int(self._items[item]), self._cut.checked),
            on_error=self.config.on_error,
        )

    def _squares(self, items: np.ndarray, crop: np.ndarray | None) -> np.ndarray:
        squares = np.empty((len(items), *self._cut.height_and_width, self.channels), dtype=np.uint8)
        if isinstance(self._stored, Files):
            self._stored.expect([int(self._items[item]) for item in items])
        for k, item in enumerate(items):
            number = int(self._items[item])
            with named(self._stored, number):
                squares[k] = self._cut.image(self._stored.read(number), self.channels, None if crop is None else crop[k])
        return squares


class ArrayImages(SquareImages):
    """Images of one size in an array, in memory or mapped from a file. One in memory is already padded, by `prepared`."""

    def __init__(
        self,
        pixels: OnDisk,
        config: DataConfig,
        *,
        name: str,
        channels: int,
        items: np.ndarray,
        labels: np.ndarray | None,
        keys_begin: str = "",
    ) -> None:
        super().__init__(config, channels=channels, items=items, labels=labels)
        self._pixels = pixels
        self._name = name
        self._keys_begin = keys_begin

    def key(self, item: int) -> str:
        return f"{self._name}[{self._items[item]}]"

    def source_key(self, item: int) -> str:
        return f"{self._keys_begin}{self._items[item]}"

    def default_workers(self) -> int:
        in_memory = not stays_on_disk(self._pixels)
        plain = self.config.crop == "center" and self.config.augment == "none"
        return 0 if in_memory and plain and _is_cut(self._pixels, self.config) else 1

    def _squares(self, items: np.ndarray, crop: np.ndarray | None) -> np.ndarray:
        chosen = np.ascontiguousarray(self._pixels[self._items[items]])  # as `mirror` wants it; an array may be in Fortran's order
        if stays_on_disk(self._pixels):
            chosen = padded(chosen, self.config.pad)
        if crop is None and _is_cut(chosen, self.config):
            return with_channels(chosen, self.channels)
        return with_channels(resized(chosen, self.config, crop), self.channels)


def resized(pixels: np.ndarray, config: DataConfig, crop: np.ndarray | None = None) -> np.ndarray:
    """The centre squares, or those that the words of `crop` (b, 3) choose, of padded images (b, h, w, c): uint8 (b, s, s, c)."""
    cut = replace(Cut.of(config), pad=0, enlarge=True)
    squares = np.empty((len(pixels), *cut.height_and_width, pixels.shape[-1]), dtype=np.uint8)
    for k, image in enumerate(pixels):
        squares[k] = cut.image(image, image.shape[-1], None if crop is None else crop[k])
    return squares


def prepared(pixels: OnDisk, config: DataConfig) -> OnDisk:
    """The pixels padded and, where that is small and nothing is random about it, cut to size once and for all; as they are if mapped."""
    if not isinstance(pixels, np.ndarray) or isinstance(pixels, np.memmap):
        return pixels
    pixels = padded(pixels, config.pad)
    if config.crop != "center" or config.resize is not None or _is_cut(pixels, config):
        return pixels
    return resized(pixels, config) if len(pixels) * config.image_size**2 * pixels.shape[-1] <= _PREPARED_BYTES else pixels


def seed_beside(seed: int, name: str) -> int:
    """The seed of the augmentation of further images that go with those of `seed`."""
    low, high = key_of(seed, "data", name)
    return low | high << 32


def _is_cut(pixels: OnDisk, config: DataConfig) -> bool:
    """Whether images (b, h, w, c) are of the wanted size as they are."""
    return pixels.shape[1:3] == (config.image_size, config.image_size) and config.resize in (None, config.image_size)
