"""A quick look at images: how many, how large, grey or in colour, with which classes, or pairs of which kinds."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from triptych.core.errors import DataError
from triptych.core.reading import user_path
from triptych.core.wording import counted
from triptych.data.config import DataConfig
from triptych.data.decode import header, number_map
from triptych.data.files import Files, is_image, listed, open_folder
from triptych.data.naming import LABELS, TRAINING, held_out_folder
from triptych.data.pairs import stems
from triptych.data.patterns import exists
from triptych.data.source import FILES, located, open_files, open_pixels
from triptych.data.stored import evenly_spaced, named

_PROBED, _MAPS_READ = 64, 1_000
_MOST_NUMBERS = 64
"""A grey image with more different numbers than this is a photo, no map of classes."""
_TARGETS = ("image", "photo", "target", "real", "output")
"""How the names of folders of images to be made often begin."""
_CONDITIONS = ("label", "edge", "sketch", "input", "condition", "source", "depth", "map", "normal", "segmentation")
"""And those of what they are made of."""
_IGNORED = 255
"""How maps usually mark pixels of no class."""
_OF_CLASSES = "move or mend it, or choose a recipe yourself and train it with --data.labels none, which init does not set"


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Folders of one file each for a pair."""

    target: str
    "Folder of the images to be made."
    maps: tuple[str, ...]
    "Folders of class maps."
    num_classes: tuple[int, ...]
    dont_care: bool
    "Whether the maps have pixels of no class."
    conditions: tuple[str, ...]
    "Folders of other images to make them from."


@dataclasses.dataclass(frozen=True)
class Look:
    """What lies at a path."""

    path: Path
    source: str
    "What kind of source it is (folder, zip, mnist); pairs."
    count: int
    "Images, held-out ones included; pairs."
    sides: tuple[int, int, int]
    "The smallest short side, the median short side, the largest long side, of the images that were probed."
    shape: tuple[int, int]
    "Median width and height."
    channels: int
    "1 where all are grey, else 3."
    classes: int | None
    "None: there are none."
    pairs: Pairs | None = None
    bad: str | None = None
    "Of the images that were probed one that cannot be read, and why; None: all can."
    usual: int | None = None
    "The short side that nine of ten of these have at least; None: the smallest."

    def described(self) -> str:
        """It in one line."""
        smallest, median, largest = self.sides
        sizes = f"{self.shape[0]}x{self.shape[1]}" if smallest == median == largest else f"sides of {smallest} to {largest} pixels"
        what = counted(self.count, "pair" if self.pairs else "image")
        colour = "grey" if self.channels == 1 else "in colour"
        classes = "" if self.pairs else f", {counted(self.classes, 'class', 'classes')}" if self.classes else ", no classes"
        return f"{what}, {sizes}, {colour}{classes} ({self.source})"


def look(path: str | Path, *, pairs: bool | None = None) -> Look:
    """What lies there, from names, headers and a few maps. Images that cannot be read are passed over.

    `pairs`: whether folders side by side whose files have the same names are pairs, or classes; None: pairs, where one holds maps or is
    called as images and what they are made of often are. Raises DataError where no image can be read, or their classes cannot.
    """
    place = user_path(path)
    if not exists(place):
        raise DataError(f"{place}: does not exist")
    found = None if pairs is False else _pairs(place, sure=pairs is True)
    if pairs and found is None:
        raise DataError(f"{place}: holds no pairs, two folders or more whose files have the same names")
    return found or _images(place)


def _images(place: Path) -> Look:
    config = DataConfig(path=str(place), image_size=16, enlarge=True, on_error="skip")
    path, source = located(config)
    if source == "latents":
        raise DataError(f"{place}: holds latents; init chooses for images, so give a recipe of a diffusion model to triptych train")
    try:
        data = config.open()
    except DataError as error:
        if error.setting != LABELS:
            raise
        raise DataError(error.reason, advice=_OF_CLASSES) from error
    count = sum(map(len, data.sets))
    if source in FILES:
        files, _ = open_files(path, source)
        probed = _probed(files)
    else:
        train, _ = open_pixels(path, source, side=config.image_size, labelled=True)
        probed = Probed([train.size], train.channels)
    return _look(place, source, count, probed, data.spec.num_classes)


def _look(place: Path, source: str, count: int, probed: Probed, classes: int | None, pairs: Pairs | None = None) -> Look:
    sizes = probed.sizes
    short = [min(size) for size in sizes]
    sides = min(short), int(statistics.median(short)), max(max(size) for size in sizes)
    shape = int(statistics.median(width for width, _ in sizes)), int(statistics.median(height for _, height in sizes))
    return Look(place, source, count, sides, shape, probed.channels, classes, pairs, probed.bad, sorted(short)[len(short) // 10])


class Probed(NamedTuple):
    """What some of the files are."""

    sizes: list[tuple[int, int]]
    "Width and height of each that can be read."
    channels: int
    bad: str | None = None
    "Why another cannot."


def _probed(files: Files) -> Probed:
    """Of some of the files. Raises DataError naming one where none can be read."""
    found, bad = list[tuple[tuple[int, int], int]](), list[DataError]()
    for k in map(int, evenly_spaced(len(files.names), _PROBED)):
        try:
            with named(files, k):
                found.append(header(files.read(k)))
        except DataError as error:
            bad.append(error)
    if not found:
        raise bad[0]
    return Probed([size for size, _ in found], max(channels for _, channels in found), str(bad[0]) if bad else None)


def _pairs(place: Path, *, sure: bool) -> Look | None:
    """The pairs that lie there, if they do: two folders or more, side by side, with files of the same names.

    Where it is not `sure` that these are no classes, whose files are numbered, a folder of maps says so, or the name of one.
    """
    if not place.is_dir():
        return None
    root = place / TRAINING if (place / TRAINING).is_dir() else place
    folders = [name for name in listed(root) if (root / name).is_dir() and any(map(is_image, listed(root / name)))]
    if len(folders) < 2 or (root == place and _split(folders)):
        return None
    files = {name: open_folder(root / name)[0] for name in folders}
    try:
        names = {name: set(stems(some)) for name, some in files.items()}
    except DataError:  # two files of one name but for their endings
        if sure:
            raise
        return None
    if any(these != names[folders[0]] for these in names.values()):
        return None
    bad = list[DataError]()
    maps = {name: found for name in folders if (found := _map_classes(files[name], bad)) is not None}
    photos = [name for name in folders if name not in maps]
    if not (sure or maps or any(name.lower().startswith((*_TARGETS, *_CONDITIONS)) for name in folders)):
        return None
    if not photos:
        raise DataError(f"{place}: pairs whose folders are all maps ({', '.join(folders)}); the images to be made are missing")
    target = max(photos, key=lambda name: (name.lower().startswith(_TARGETS), not name.lower().startswith(_CONDITIONS)))
    pairs = Pairs(
        target=target,
        maps=tuple(maps),
        num_classes=tuple(count for count, _ in maps.values()),
        dont_care=any(ignored for _, ignored in maps.values()),
        conditions=tuple(name for name in photos if name != target),
    )
    held = held_out_folder(name for name in listed(place) if (place / name / target).is_dir()) if root != place else None
    count = len(names[target]) + (0 if held is None else len(open_folder(place / held / target)[0].names))
    probed = _probed(files[target])
    return _look(place, "pairs", count, probed if probed.bad or not bad else probed._replace(bad=str(bad[0])), None, pairs)


def _split(folders: Sequence[str]) -> bool:
    return TRAINING in folders or held_out_folder(folders) is not None


def _map_classes(files: Files, bad: list[DataError]) -> tuple[int, bool] | None:
    """The number of classes of a folder of maps, and whether some pixels have none; None: these are no maps.

    Those that cannot be read are passed over, and why is put into `bad`. Raises DataError naming one where none can be.
    """
    highest, ignored, unread = -1, False, list[DataError]()
    chosen = evenly_spaced(len(files.names), _MAPS_READ)
    for k in map(int, chosen):
        try:
            with named(files, k):
                numbers = _numbers(files.read(k))
        except DataError as error:
            unread.append(error)
            continue
        if numbers is None:
            return None
        if len(numbers) > _MOST_NUMBERS:
            return None
        classes = numbers[numbers != _IGNORED]
        ignored |= len(classes) < len(numbers)
        highest = max(highest, int(classes.max(initial=-1)))
    if unread and len(unread) == len(chosen):
        raise unread[0]
    bad += unread
    return (highest + 1, ignored) if highest >= 0 else None


def _numbers(data: bytes) -> np.ndarray | None:
    """Those in a map, each once; None for a picture. Raises what Pillow raises where it cannot be read."""
    try:
        return np.unique(number_map(data))
    except ValueError:
        header(data)  # raises where it is no picture either
        return None
