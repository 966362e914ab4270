"""Several tars as one set of images: the shards that webdataset and img2dataset write.

Every shard is indexed once, when the set is opened. The images are in the order of their names over all shards, as in one tar or folder, so
the order of training is a draw over all of them. A path may lie in one shard alone. Where the names of the shards say train, and val or
test, they are a split.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from triptych.core.address import Address, Place
from triptych.core.errors import DataError
from triptych.core.remote import at_once, listed
from triptych.data import files
from triptych.data.archives import Archive, open_tar
from triptych.data.files import Files, is_image
from triptych.data.naming import TRAINING, held_out_folder
from triptych.data.patterns import MOST, expanded

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_MOST_OPEN = 128  # files at a time: data sets have thousands, and processes may often open 1024
_SPLIT = re.compile(r"(?:^|[-_.])(train|val|valid|validation|test)(?:[-_.]|$)")


class Shards(Files):
    """The image files of several tars."""

    def __init__(self, place: Place, archives: list[Archive], splits: list[str]) -> None:
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
        self.remarks += [remark for archive in archives for remark in archive.remarks]
        self._archives, self._owners, self._numbers = archives, owners[order], numbers[order]
        self.objects = {address: said for archive in archives for address, said in archive.objects.items()}
        self._open: dict[int, None] = {}
        "Those that were read last; more of them are not kept open."

    def describe(self, k: int) -> str:
        archive, number = self._at(k)
        return archive.describe(number)

    def read(self, k: int) -> bytes:
        archive, number = self._opened(k)
        return archive.read(number)

    def expect(self, numbers: Sequence[int]) -> None:
        owners = self._owners[np.asarray(numbers, dtype=np.int64)]
        of_each = [(self._archives[owner], self._numbers[np.asarray(numbers)[owners == owner]].tolist()) for owner in np.unique(owners)]
        at_once([functools.partial(archive.expect, own) for archive, own in of_each if archive.objects])

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
                if is_image(entry.name) or files.holds(entry.is_dir):
                    return False
                shards |= entry.name.lower().endswith(suffixes)
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror})") from error
    return shards


def members_of(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The files of these endings in a folder, in order, but for hidden ones."""
    return [folder / name for name in files.listed(folder) if name.lower().endswith(suffixes) and not name.startswith(".")]


def remote_shards(address: Address) -> list[Address]:
    """The tars in a folder elsewhere, or those of braces such as part-{000..127}.tar. Raises DataError."""
    if "{" in address.text:
        texts = list(itertools.islice(expanded(address.text, address), MOST + 1))
        if len(texts) > MOST:
            raise DataError(f"{address}: stands for more than {MOST:,} files; give their folder")
        return [Address(text) for text in dict.fromkeys(texts)]
    found = listed(address)
    return [place for place in found if place.name.lower().endswith(TAR_SUFFIXES) and not place.name.startswith(".")]


def open_shards(folder: Place, paths: list[Path] | None = None) -> Shards:
    """The images of all tars in a folder, or of those at `paths`. Raises DataError where one is damaged, or there is none.

    Of tars elsewhere the headers of several are read at once; a process that finds another one of the machine at a tar waits for it, and
    takes what that found.
    """
    if isinstance(folder, Address):
        places: Sequence[Place] = remote_shards(folder)
        archives = at_once([functools.partial(open_tar, place) for place in places])
    else:
        places = members_of(folder, TAR_SUFFIXES) if paths is None else paths
        archives = map(open_tar, places)
    if not places:
        raise DataError(f"{folder}: not a file, nor a folder of tars, but data.source is tar")
    opened = []
    for place, archive in zip(places, archives, strict=True):
        if archive.tables:
            raise DataError(f"{place}/{archive.tables[0]}: labels of shards are beside each image (x.cls beside x.jpg); leave it out")
        archive.release()
        opened.append(archive)
    return Shards(folder, opened, splits_of([place.name for place in places]))


def splits_of(names: list[str]) -> list[str]:
    """The folder of the split of each shard, with its slash, where all say one, and there are train and another."""
    found = [_SPLIT.search(name) for name in names]
    told = [match[1] for match in found if match is not None]
    if len(told) < len(names) or TRAINING not in told or held_out_folder(told) is None:
        return [""] * len(names)
    return [f"{split}/" for split in told]
