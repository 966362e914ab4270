"""Several tars as one set of images: the shards that webdataset and img2dataset write.

Every shard is indexed once, when the set is opened. The images are in the order of their names over all shards, as in one tar or folder, so
the order of training is a draw over all of them. A path may lie in one shard alone. Where the names of the shards say train, and val or
test, they are a split.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np

from triptych.core.errors import DataError
from triptych.data.archives import Archive, open_tar
from triptych.data.files import Files, is_image, listed
from triptych.data.naming import TRAINING, held_out_folder

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_MOST_OPEN = 128  # files at a time: data sets have thousands, and processes may often open 1024
_SPLIT = re.compile(r"(?:^|[-_.])(train|val|valid|validation|test)(?:[-_.]|$)")


class Shards(Files):
    """The image files of several tars."""

    def __init__(self, place: Path, archives: list[Archive], splits: list[str]) -> None:
        """`splits`: the folder that the images of each seem to lie in, "" for none. Raises DataError for a path in two shards."""
        names = [f"{split}{name}" for archive, split in zip(archives, splits, strict=True) for name in archive.names]
        owners = np.repeat(np.arange(len(archives)), [len(archive.names) for archive in archives])
        numbers = np.concatenate([np.arange(len(archive.names)) for archive in archives])
        order = sorted(range(len(names)), key=lambda k: names[k].split("/"))
        for k, following in itertools.pairwise(order):
            if names[k] == names[following]:
                holders = " and ".join(archives[owners[each]].place.name for each in (k, following))
                raise DataError(f"{place}: {names[k]} lies in {holders}; give each image a path of its own")
        passed_over = sum((archive.passed_over for archive in archives), Counter[str]())
        super().__init__(place, [names[k] for k in order], passed_over=passed_over)
        self._archives, self._owners, self._numbers = archives, owners[order], numbers[order]
        self._open: dict[int, None] = {}
        "Those that were read last; more of them are not kept open."

    def describe(self, k: int) -> str:
        archive, number = self._at(k)
        return archive.describe(number)

    def read(self, k: int) -> bytes:
        archive, number = self._opened(k)
        return archive.read(number)

    @property
    def labelled(self) -> bool:
        return any(archive.labelled for archive in self._archives)

    def label(self, k: int) -> tuple[str, bytes] | None:
        archive, number = self._opened(k)
        return archive.label(number)

    def _at(self, k: int) -> tuple[Archive, int]:
        return self._archives[self._owners[k]], int(self._numbers[k])

    def _opened(self, k: int) -> tuple[Archive, int]:
        owner = int(self._owners[k])
        self._open.pop(owner, None)
        while len(self._open) >= _MOST_OPEN:
            first = next(iter(self._open))
            del self._open[first]
            self._archives[first].release()
        self._open[owner] = None
        return self._at(k)


def holds_shards(folder: Path, suffixes: tuple[str, ...] = TAR_SUFFIXES) -> bool:
    """Whether a folder holds files of these endings, and no images or folders beside them. Raises DataError where it cannot be read."""
    shards = False
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if is_image(entry.name) or entry.is_dir():
                    return False
                shards |= entry.name.lower().endswith(suffixes)
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror})") from error
    return shards


def members_of(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The files of these endings in a folder, in order, but for hidden ones."""
    return [folder / name for name in listed(folder) if name.lower().endswith(suffixes) and not name.startswith(".")]


def open_shards(folder: Path, paths: list[Path] | None = None) -> Shards:
    """The images of all tars in a folder, or of those at `paths`. Raises DataError where one is damaged, or there is none."""
    paths = members_of(folder, TAR_SUFFIXES) if paths is None else paths
    if not paths:
        raise DataError(f"{folder}: not a file, nor a folder of tars, but data.source is tar")
    archives = []
    for path in paths:
        archive = open_tar(path)
        if archive.tables:
            raise DataError(f"{path}/{archive.tables[0]}: labels of shards are beside each image (x.cls beside x.jpg); leave it out")
        archive.release()
        archives.append(archive)
    return Shards(folder, archives, splits_of([path.name for path in paths]))


def splits_of(names: list[str]) -> list[str]:
    """The folder of the split of each shard, with its slash, where all say one, and there are train and another."""
    found = [_SPLIT.search(name) for name in names]
    told = [match[1] for match in found if match is not None]
    if len(told) < len(names) or TRAINING not in told or held_out_folder(told) is None:
        return [""] * len(names)
    return [f"{split}/" for split in told]
