"""Collections: the images or maps that a user brings, whatever they are stored in, one by one and cut as a model takes them.

Opening a collection reads names and labels, no pixels. An item is read when it is asked for, so a collection may be larger than memory.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from triptych.core.batch import InputSpec
from triptych.core.errors import ConfigError, DataError
from triptych.core.given import whole_number
from triptych.core.npz import local
from triptych.core.reading import is_inside, user_path
from triptych.core.rng import permutation
from triptych.data.clip_files import in_order
from triptych.data.colours import PLAIN, Colours
from triptych.data.config import ClassesFrom
from triptych.data.cut import Cut, size_of
from triptych.data.dataset_json import file_classes
from triptych.data.files import KINDS, Files, Folder, is_image, walked
from triptych.data.made import STAMP
from triptych.data.naming import LABELS, divided, parsed
from triptych.data.pairs import stems
from triptych.data.patterns import exists, matched
from triptych.data.source import FILES, open_files, open_pixels, recognised
from triptych.data.stored import PROBED, CutOf, Member, evenly_spaced, measure, read
from triptych.data.tfrecord import Records
from triptych.data.transforms import Size
from triptych.data.videos import VIDEOS, is_video, open_clips, open_video
from triptych.engine.run_directory import RunDirectory, named_runs
from triptych.runs.given.sizes import Sizing, squares

ImagesLike = str | Path | np.ndarray | Sequence[np.ndarray]
"""What a collection is opened from: a path, or images (h, w, c) or maps (h, w)."""

_FULL_SIZE = 2**16  # more than the resolution of any TFRecord file, so that the largest is read


@dataclass(frozen=True)
class ArrayItems:
    """Arrays in memory, or mapped from a file."""

    values: Sequence[np.ndarray] | np.ndarray
    name: str

    def __len__(self) -> int:
        return len(self.values)

    def read(self, k: int) -> np.ndarray:
        """The k-th array."""
        return np.asarray(self.values[k])

    def describe(self, k: int) -> str:
        """Where it is, for messages."""
        return f"{self.name}[{k}]"


@dataclass(frozen=True)
class SomeItems:
    """Some of records or arrays."""

    items: Records | ArrayItems | SomeItems
    numbers: np.ndarray
    "Which of them: int64 (n,)."

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, k: int) -> np.ndarray:
        """The k-th of them."""
        return self.items.read(int(self.numbers[k]))

    def describe(self, k: int) -> str:
        """Where it is, for messages."""
        return self.items.describe(int(self.numbers[k]))


Items = Member | Records | ArrayItems | SomeItems


@dataclass(frozen=True)
class Collection:
    """Images or maps, numbered from 0. All that its methods raise is a DataError that names the item."""

    name: str
    items: Items
    spec: InputSpec
    "What they are read as: images with so many channels, or maps."
    sizing: Sizing
    origin: str
    "Changes when an item changes."
    labels: np.ndarray | None = None
    "Class of each item, int64 (n,), or None."
    class_names: tuple[str, ...] | None = None
    "None: labels are the numbers of the run's own classes."
    own: Callable[[int], Cut] | None = None
    "How each item is cut; None: by `sizing`."

    def __len__(self) -> int:
        return len(self.items)

    @property
    def num_classes(self) -> int | None:
        """How many classes have names."""
        return None if self.class_names is None else len(self.class_names)

    @property
    def names(self) -> list[str]:
        """Sub-folders and stem of each file, or the number of each array: what is made of an item is called so."""
        if not isinstance(self.items, Member):
            return [f"{k:06d}" for k in range(len(self))]
        by_number = {number: stem for stem, number in stems(self.items.files).items()}
        names = [by_number[int(number)] for number in self.items.numbers]
        outside = next((name for name in names if not is_inside(name)), None)
        if outside is not None:
            advice = "make the archive again with plain names"
            raise DataError(f"{self.name}: {outside!r} leads out of the folder that images are written to; {advice}")
        return names

    def in_order(self) -> list[int]:
        """The numbers of the items in the order of their names, numbers in these as numbers: 9.png before 10.png."""
        names = self.names
        return sorted(range(len(names)), key=lambda k: in_order(names[k]))

    def measure(self, k: int) -> tuple[Size, Cut]:
        """Width and height of the k-th item, from its header alone, and how it is cut."""
        return measure(self.items, k, self._cut_of(k))

    def read(self, k: int) -> tuple[Size, np.ndarray]:
        """The width and height that the k-th item had, and itself, cut: uint8 (h, w, c) or int64 (h, w)."""
        return read(self.items, k, self.spec, self._cut_of(k), remedy="the model knows no others; change the map")

    def _cut_of(self, k: int) -> CutOf:
        own = self.own
        return self.sizing.cut if own is None else lambda size, where: own(k)

    def load(self, items: Sequence[int]) -> np.ndarray:
        """Some items, cut to one size: uint8 (b, h, w, c) or int64 (b, h, w)."""
        return np.stack([self.read(k)[1] for k in items])

    def drawn(self, count: int) -> Collection:
        """So many of the items, in their order, which are drawn at random, always the same ones; itself where these are all."""
        if count == len(self):
            return self
        numbers, own = np.sort(permutation(len(self), seed=0, epoch=0)[:count]), self.own
        items = self.items
        return replace(
            self,
            items=replace(items, numbers=items.numbers[numbers]) if isinstance(items, Member) else SomeItems(items, numbers),
            origin=f"{self.origin}, {count} drawn",
            labels=None if self.labels is None else self.labels[numbers],
            own=None if own is None else lambda k: own(int(numbers[k])),
        )

    def probe(self) -> None:
        """Reads the headers of some items."""
        for k in evenly_spaced(len(self), PROBED):
            self.measure(int(k))


# Opening


def open_collection(
    source: ImagesLike, spec: InputSpec, sizing: Sizing, *, classes: ClassesFrom | None = None, clips: bool = False
) -> Collection:
    """The images or maps of `spec` in a file, folder, archive, LMDB, array or published data set, or in arrays that it names in messages.

    A video file gives its frames; those in a folder are passed over, unless it is one of `clips`. `classes`: where the labels of files are
    from; a folder that is split then gives its images for training. None: all files, without labels. Raises ConfigError for `classes` that
    a path cannot have, DataError for what cannot be used.
    """
    if not isinstance(source, str | Path):
        return _of_arrays(source, spec, sizing)
    path = user_path(source)
    if not exists(path):
        raise DataError(f"{path}: does not exist; expected a folder, .zip, .tar, .npz or .npy of images")
    _refuse_runs(path)
    try:
        return _at_path(path, spec, sizing, classes, clips)
    except DataError as error:
        raise (error.renamed("classes") if error.setting == LABELS else error) from error


def _refuse_runs(path: Path) -> None:
    """DataError for a run, or a folder of runs: their files would be taken for images in classes."""
    if RunDirectory(path).exists():
        raise DataError(f"{path}: is a run, expected images; triptych sample {shlex.quote(str(path))} --out FOLDER draws some with it")
    inside = named_runs(path)
    if inside is not None:
        raise DataError(f"{path}: holds the runs {inside}, expected images; name the folder or file that has them")


def open_squares(
    source: str | Path | np.ndarray, *, side: int, channels: int, colours: Colours = PLAIN, classes: ClassesFrom = "auto"
) -> Collection:
    """All images at a path or in an array, in order, as squares: larger ones are cut, but arrays have to have the size."""
    spec = InputSpec(name="the array", kind="image", channels=channels)
    collection = open_collection(source, spec, squares(side, colours), classes=classes)
    if isinstance(collection.items, ArrayItems) and collection.class_names is None:
        width, height = size_of(collection.items.read(0))
        if (width, height) != (side, side):
            raise DataError(f"{collection.name}: images of {width}x{height} pixels, expected {side}x{side}")
    collection.probe()
    return collection


def _at_path(path: Path, spec: InputSpec, sizing: Sizing, classes: ClassesFrom | None, clips: bool) -> Collection:
    if path.is_file() and is_video(path.name):
        return _all_of(open_video(path), path, spec, sizing)
    stored = "file" if is_image(path.name) and path.is_file() else recognised(path)
    if stored == "folder" and clips:
        return _all_of(open_clips(path), path, spec, sizing)
    if stored in ("file", *FILES):
        files, empty = (Folder(path.parent, [path.name]), []) if stored == "file" else open_files(path, stored)
        if not len(files.names):
            raise DataError(f"{path}: holds no images ({KINDS} are looked for, in sub-folders too)")
        paths = parsed(list(files.names))
        found = file_classes(files, paths, scheme=classes or "none", empty=empty)
        chosen = np.arange(len(files.names)) if classes is None else divided(paths, validation_fraction=0)[0]
        labels, class_names = (None, None) if found is None else (found.labels[chosen], None if found.numbered else found.names)
        return Collection(str(path), Member(spec, files, chosen), spec, sizing, stamp(path), labels, class_names)
    if spec.kind != "image":
        raise DataError(f"{path}: maps are read from files of images, or given as arrays in Python; expected a file, folder, .zip or .tar")
    if classes in ("prefix", "json") or (classes == "folder" and stored == "arrays"):
        raise ConfigError("classes", f"got {classes!r}, but {path} is not made of files; leave it out")
    labelled = classes not in (None, "none")
    part, _ = open_pixels(path, stored, side=min(sizing.fixed or (_FULL_SIZE,)), labelled=labelled)
    if not len(part):
        raise DataError(f"{path}: holds nothing")
    items = part if isinstance(part, Records) else ArrayItems(local(part.pixels), str(path))
    class_names = None if stored == "arrays" else part.class_names
    return Collection(str(path), items, spec, sizing, stamp(path), part.labels if labelled else None, class_names)


def _all_of(files: Files, path: Path, spec: InputSpec, sizing: Sizing) -> Collection:
    count = len(files.names)
    if not count:
        raise DataError(f"{path}: holds no images ({KINDS}; {VIDEOS} are looked for, in sub-folders too)")
    return Collection(str(path), Member(spec, files, np.arange(count)), spec, sizing, stamp(path))


def _of_arrays(values: Sequence[np.ndarray] | np.ndarray, spec: InputSpec, sizing: Sizing) -> Collection:
    if not hasattr(values, "__len__"):
        raise DataError(f"{spec.name}: got {values!r}, expected a path or arrays")
    if not len(values):
        raise DataError(f"{spec.name}: holds nothing")
    hashed = hashlib.sha256()
    for k in range(len(values)):
        array = np.ascontiguousarray(values[k])
        if spec.kind == "image":
            counts = {"pixels": (1, 3), "limbs": (4,), "densepose": (3,)}[spec.stored]
            fits = array.dtype == np.uint8 and array.ndim == 3 and array.shape[-1] in counts
            expected = f"uint8 of shape (height, width, {' or '.join(map(str, counts))})"
        else:
            fits, expected = np.issubdtype(array.dtype, np.integer) and array.ndim == 2, "whole numbers of shape (height, width)"
        if not fits or not array.size:
            raise DataError(f"{spec.name}[{k}]: {array.dtype} of shape {array.shape}, expected {expected}")
        hashed.update(f"{array.dtype}{array.shape}".encode())
        hashed.update(array.data)
    return Collection(spec.name, ArrayItems(values, spec.name), spec, sizing, hashed.hexdigest())


def counted(count: int | None, there: int, *, what: str = "images") -> int:
    """How many of those that are there; all for None. Raises ConfigError."""
    count = there if count is None else whole_number(count, "count")
    if not 1 <= count <= there:
        raise ConfigError("count", f"got {count}, expected 1 to {there}, the {what} that are there")
    return count


def stamp(path: Path) -> str:
    """A hash of the names, sizes and times of the files at a path, links followed."""
    hashed = hashlib.sha256()
    for file in sorted(files_at(path)):
        try:
            found = file.stat()
            hashed.update(os.fsencode(f"{file} {found.st_size} {found.st_mtime_ns}\n"))
        except OSError:  # a link to nothing: who reads it as an image says so
            hashed.update(os.fsencode(f"{file} cannot be read\n"))
    return hashed.hexdigest()


def files_at(path: Path) -> Iterator[Path]:
    """The files of a pattern, those in a folder (see `files_below`), or the one file."""
    several = matched(path)
    yield from several if several is not None else files_below(path) if path.is_dir() else [path]


def files_below(folder: Path) -> Iterator[Path]:
    """All files in a folder and the folders below it, but for hidden files and folders, of which nothing is read but the stamp."""
    for relative, folders, others in walked(folder):
        folders[:] = [entry for entry in folders if not entry.name.startswith(".")]
        seen = (entry.name for entry in others if entry.name == STAMP or not entry.name.startswith("."))  # it says what is no image
        yield from (folder / relative / name for name in seen)
