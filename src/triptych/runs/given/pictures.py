"""Pictures: sets of images that are evaluated, whatever they are stored in, a few of them in memory at a time.

The order of a set is fixed: files by their names, arrays and records as they lie, those for training before those for testing.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Protocol

import numpy as np

from triptych.core.address import is_address
from triptych.core.batch import DataSpec, InputSpec
from triptych.core.errors import ConfigError, DataError
from triptych.core.npz import DamagedArchive, Rows, local
from triptych.core.reading import user_path
from triptych.core.wording import counted
from triptych.data.arrays import Arrays, image_rows
from triptych.data.colours import Colours
from triptych.data.config import AS_STORED, DataConfig, Source
from triptych.data.cut import Cut, TooSmall, Value
from triptych.data.dataset_json import file_classes
from triptych.data.decode import header_and_colours
from triptych.data.files import KINDS, Files, Folder, is_image, walked
from triptych.data.images import ImageSet
from triptych.data.naming import LABELS, Classes, pairs_warning, parsed
from triptych.data.patterns import exists
from triptych.data.source import FILES, open_files, open_pixels, recognised
from triptych.data.stored import Stored, named, read
from triptych.data.tfrecord import Records
from triptych.data.transforms import Size
from triptych.data.videos import is_video
from triptych.runs.given.end_to_end import EndToEnd
from triptych.runs.given.known import known

_FULL_SIZE = 2**16  # more than the resolution of any TFRecord file, so that the largest is read

Split = Literal["validation", "train", "all"]


class Pictures(Protocol):
    """Images numbered from 0, all of one size."""

    def __len__(self) -> int: ...

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        ...

    @property
    def channels(self) -> int:
        """1 (grey) or 3 (RGB)."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """What they are, for JSON: path, kind, count, the SHA-256 of what is stored, and how it is prepared.

        Two sets of one identity, but for path and kind, have the same pixels.
        """
        ...

    @property
    def labels(self) -> np.ndarray | None:
        """Class of each, int64 (n,), or None."""
        ...

    def images(self, items: Sequence[int]) -> np.ndarray:
        """Some of them, uint8 (b, h, w, c); nothing but these is in memory. Raises DataError naming the file."""
        ...


def open_pictures(
    path: str | Path,
    *,
    image_size: int | tuple[int, int] | None = None,
    like: DataConfig | None = None,
    channels: int | None = None,
    least: int = 2,
) -> StoredPictures:
    """All images in a folder, .zip, .tar, .npz, .npy, LMDB or published data set, those for testing too, where there are at least `least`.

    They become `image_size` (a side, or height and width) by the centre crop, or what held-out images of a training on `like` are; else
    they stay as they are. `channels`: 1 or 3; None: 1 where all are grey. Every one is read once, for its header and for the hash, and
    not again while the files stay as they are. Raises
    DataError for what cannot be used, and where nothing says their size and they have several.
    """
    place = user_path(path)
    if not exists(place):
        raise DataError(f"{place}: does not exist; expected a folder, .zip, .tar, .npz or .npy of images")
    require_no_video(place)
    cut = _asked(image_size, like)
    kind, items, classes, notes = _opened(place, side=_FULL_SIZE if cut is None else min(cut.height_and_width))
    if not len(items):
        videos = place.is_dir() and any(is_video(entry.name) for _, _, entries in walked(place) for entry in entries)
        instead = "; of videos the frames are measured: give a folder with a sub-folder of them for each" if videos else ""
        raise DataError(f"{place}: holds no images ({KINDS} are looked for, in sub-folders too){instead}")
    if len(items) < least:
        raise DataError(f"{place}: holds {counted(len(items), 'image')}, but a set has at least {least}")
    larger = "lower --image-size" if like is None else "give larger ones, or another --image-size"
    asked = None if cut is None else dataclasses.asdict(cut)
    question = ["survey", 2, kind, len(items), asked]
    found = _Survey.of(known(place, question, lambda: dataclasses.asdict(_surveyed(items, cut, larger=larger))))
    width, height = found.size
    if cut is None and found.other is not None:
        number, (wide, high) = found.other
        reason = f"{items.describe(number)}: {wide}x{high} pixels, but {items.describe(0)} has {width}x{height}"
        raise DataError(reason, advice="make them one size by --image-size")
    as_it_is = found.other is None and (cut is None or _keeps(cut, found.size))
    colours = Colours() if like is None else Colours.of(like)
    cut = Cut(height, width, colours=colours) if cut is None or as_it_is else cut
    spec = InputSpec(name=str(place), kind="image", channels=channels or (3 if found.coloured else 1))
    identity = {
        "path": str(place),
        "kind": kind,
        "count": len(items),
        "sha256": found.sha256,
        "size": list(cut.height_and_width),
        "channels": spec.channels,
        "preparation": None if as_it_is else {name: value for name, value in dataclasses.asdict(cut).items() if name != "colours"},
    }
    if found.altered and not colours.as_stored:
        identity["colours"] = dataclasses.asdict(colours)
    labels, class_names = (None, None) if classes is None else (classes.labels, None if classes.numbered else classes.names)
    return StoredPictures(items, spec, cut, identity, labels, class_names, notes)


def require_no_video(place: Path) -> None:
    """Raises DataError for a video file, of which the frames are measured."""
    if is_video(place.name) and place.is_file():
        frames = f"ffmpeg -i {shlex.quote(str(place))} FOLDER/{shlex.quote(place.stem)}/%06d.png"
        reason = "a video, of which the frames are measured: give a folder with a sub-folder of them for each clip"
        raise DataError(f"{place}: {reason} ({frames})")


class _Stored(Stored, Protocol):
    """Images by number, and how many there are."""

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class StoredPictures:
    """The pictures at a path."""

    items: _Stored
    spec: InputSpec
    cut: Cut
    identity: dict[str, Any]
    labels: np.ndarray | None
    class_names: tuple[str, ...] | None
    notes: tuple[str, ...]
    "What is to be said of the files: those that were passed over, and what looks like a mistake."

    def __len__(self) -> int:
        return len(self.items)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.cut.height_and_width

    @property
    def channels(self) -> int:
        """1 (grey) or 3 (RGB)."""
        return self.spec.channels or 3

    @property
    def num_classes(self) -> int | None:
        """How many have names."""
        return None if self.class_names is None else len(self.class_names)

    def stem(self, item: int) -> str | None:
        """The name of a file, without folders and ending; None for one in an array or in records."""
        return PurePosixPath(self.items.names[item]).stem if isinstance(self.items, _FileItems) else None

    def images(self, items: Sequence[int]) -> np.ndarray:
        """Some of them, uint8 (b, h, w, c). Raises DataError naming the file."""
        return np.stack([read(self.items, int(k), self.spec, lambda size, where: self.cut)[1] for k in items])


class SplitPictures:
    """Sets of images of a training, end to end; none of them mirrored or varied."""

    def __init__(
        self, name: str, data: DataConfig, split: Split, sets: Sequence[ImageSet], spec: DataSpec, *, available: int | None = None
    ) -> None:
        """`available`: images that there are, where these are a part of them."""
        self.name = name
        "What messages call them."
        labels = [images.labels for images in sets if images.labels is not None]
        self.labels = np.concatenate(labels) if len(labels) == len(sets) else None
        self._data, self._split, self._images, self._spec = data, split, EndToEnd(sets, labels=self.labels), spec
        self.class_names, self.num_classes = spec.class_names, spec.num_classes
        self.available = len(self) if available is None else available
        "Images that there are, of which these may be a part."

    def __len__(self) -> int:
        return len(self._images)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self._spec.height_and_width

    @property
    def channels(self) -> int:
        """1 (grey) or 3 (RGB)."""
        return self._spec.channels

    @property
    def identity(self) -> dict[str, Any]:
        """See `Pictures`; every image is read when it is first asked for, and not again while the files stay as they are."""
        return self._identified

    @functools.cached_property
    def _identified(self) -> dict[str, Any]:
        settings = self._data.to_dict()
        colours = () if Colours.of(self._data).as_stored else AS_STORED
        return {
            "path": self.name,
            "kind": self._data.kind_name,
            "split": self._split,
            "count": len(self),
            "sha256": self._sha256(),
            "size": list(self.size),
            "channels": self.channels,
            "preparation": {name: settings[name] for name in ("pad", "resize", "enlarge", "decode", *colours)},
        }

    def _sha256(self) -> str:
        path = self._data.path
        if type(self._data) is not DataConfig or path is None or is_address(path):  # other kinds of data may read files in other places
            return self._hashed()
        chosen = hashlib.sha256()
        for k in range(len(self)):
            chosen.update(os.fsencode(self._images.key(k)) + b"\0")
        question = ["split", self._data.to_dict(), self.channels, chosen.hexdigest()]
        return known(user_path(path), question, lambda: {"sha256": self._hashed()})["sha256"]

    def _hashed(self) -> str:
        hashed = hashlib.sha256()
        for k in range(len(self)):
            _add(hashed, self._images.content(k))
        return hashed.hexdigest()

    def images(self, items: Sequence[int]) -> np.ndarray:
        """Some of them, uint8 (b, h, w, c). Raises DataError naming the file."""
        return self._images.batch(np.asarray(items, dtype=np.int64)).images


# What is at a path


class _FileItems:
    """The image files of one place."""

    def __init__(self, files: Files) -> None:
        self.read, self.describe, self.names = files.read, files.describe, files.names

    def __len__(self) -> int:
        return len(self.names)


class _Rows:
    """The images of an array that stays on the disk."""

    def __init__(self, rows: np.ndarray | Rows, name: str) -> None:
        self._rows, self._name = rows, name

    def __len__(self) -> int:
        return len(self._rows)

    def describe(self, k: int) -> str:
        """The array, and the number of the row."""
        return f"{self._name}[{k}]"

    def read(self, k: int) -> np.ndarray:
        """The k-th image, uint8 (h, w, 1 or 3)."""
        try:
            row = np.asarray(self._rows[k])
        except DamagedArchive as error:
            raise DataError(f"{self._name}: {error}; copy or make it again") from error
        return row[..., None] if row.ndim == 2 else row


class _Parts:
    """Images of several places, end to end."""

    def __init__(self, parts: Sequence[_Stored]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def describe(self, k: int) -> str:
        """Where the k-th is."""
        part, number = self._place(k)
        return part.describe(number)

    def read(self, k: int) -> Value:
        """The k-th."""
        part, number = self._place(k)
        return part.read(number)

    def _place(self, k: int) -> tuple[_Stored, int]:
        part = int(np.searchsorted(self._ends, k, side="right"))
        return self._parts[part], k - int(self._ends[part]) + len(self._parts[part])


def _opened(path: Path, *, side: int) -> tuple[str, _Stored, Classes | None, tuple[str, ...]]:
    """The kind of what lies at a path, all its images, their classes, and what is to be said of them."""
    kind = "file" if is_image(path.name) and path.is_file() else recognised(path)
    if kind in ("file", *FILES):
        files = Folder(path.parent, [path.name]) if kind == "file" else open_files(path, kind)[0]
        names = list(files.names)
        classes, unlabelled = _classes(files, names)
        notes = (
            *files.notes,
            *unlabelled,
            *pairs_warning(names, str(path), consequence="be counted as images too: give the folder of the photos alone"),
        )
        return kind, _FileItems(files), classes, notes
    if kind == "arrays":
        rows, labels = image_rows(path)
        return kind, _Rows(rows, str(path)), _numbered(labels), ()
    found = [part for part in _published(path, kind, side=side) if part is not None]
    labelled = [part.labels for part in found if part.labels is not None]
    parts = _Parts([_Rows(local(part.pixels), f"{path}/{part.name}") if isinstance(part, Arrays) else part for part in found])
    return kind, parts, _numbered(np.concatenate(labelled) if len(labelled) == len(found) else None), ()


def _classes(files: Files, names: list[str]) -> tuple[Classes | None, tuple[str, ...]]:
    """The classes of files, and why there are none where there should be some."""
    try:
        return file_classes(files, parsed(names), scheme="auto"), ()
    except DataError as error:
        return None, (f"warning: {error.reason}; so the images have no labels",)


def _numbered(labels: np.ndarray | None) -> Classes | None:
    return None if labels is None else Classes(labels, (), numbered=True)


def _published(path: Path, kind: Source, *, side: int) -> tuple[Arrays | Records | None, ...]:
    """The images for training and for testing, with labels where all have some."""
    try:
        return open_pixels(path, kind, side=side, labelled=True)
    except DataError as error:
        if error.setting != LABELS:
            raise
        return open_pixels(path, kind, side=side, labelled=False)


@dataclass(frozen=True)
class _Survey:
    """What the headers of all images say."""

    size: Size
    "Width and height of the first."
    other: tuple[int, Size] | None
    "The first image of another size."
    coloured: bool
    sha256: str
    altered: bool
    "Whether any has transparency, or a colour profile that is not sRGB."

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> _Survey:
        """From the values by name, as JSON has them."""
        (width, height), other = values["size"], values["other"]
        first = None if other is None else (other[0], (other[1][0], other[1][1]))
        return cls((width, height), first, values["coloured"], values["sha256"], values["altered"])


def _surveyed(items: _Stored, cut: Cut | None, *, larger: str) -> _Survey:
    """Every image is read and hashed; `cut` has to fit all. `larger`: what to do where an image is too small."""
    hashed, coloured, altered, size, other = hashlib.sha256(), False, False, (0, 0), None
    for k in range(len(items)):
        with named(items, k):
            value = items.read(k)
            if isinstance(value, bytes):
                (own, channels), differs = header_and_colours(value)
                altered |= differs
            else:
                own, channels = (value.shape[1], value.shape[0]), value.shape[2]
        _add(hashed, value)
        coloured |= channels == 3
        size = own if k == 0 else size
        other = (k, own) if other is None and own != size else other
        try:
            if cut is not None:
                cut.fit(own)
        except TooSmall:
            high, wide = cut.height_and_width if cut is not None else own
            raise DataError(f"{items.describe(k)}: {own[0]}x{own[1]} pixels, too small for {wide}x{high}; {larger}") from None
    return _Survey(size, other, coloured, hashed.hexdigest(), altered)


def _add(hashed: Any, value: Value) -> None:
    """Takes an image into a hash; its length first, so that two sets never run into the same bytes."""
    hashed.update(f"{len(value)} ".encode() if isinstance(value, bytes) else f"{value.shape} ".encode())
    hashed.update(value if isinstance(value, bytes) else np.ascontiguousarray(value).data)


def _asked(image_size: int | tuple[int, int] | None, like: DataConfig | None) -> Cut | None:
    """How images become the size that is asked for; None: it is not."""
    if image_size is not None:
        height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
        if min(height, width) < 1:
            raise ConfigError("image_size", f"got {height}x{width}, expected at least 1")
        return Cut(height, width, colours=Colours() if like is None else Colours.of(like))
    return None if like is None else Cut.of(like, width=getattr(like, "width", None))


def _keeps(cut: Cut, size: Size) -> bool:
    """Whether an image of this size stays as it is."""
    height, width = cut.height_and_width
    return size == (width, height) and cut.resize in (None, cut.image_size) and not cut.pad
