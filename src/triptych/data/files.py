"""Where the bytes of image files come from: the files of one place, in the order of their names. A folder is such a place.

What is read may be hostile: only regular files are opened.
"""

from __future__ import annotations

import errno
import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from triptych.core.address import Place
from triptych.core.errors import DataError
from triptych.core.reading import read_regular
from triptych.core.wording import counted
from triptych.data.folder_index import Listing, keep, kept, status_of
from triptych.data.made import STAMP, made_in
from triptych.data.naming import Classes

LABELS_FILE = "dataset.json"
"""What the file of labels is called that may lie beside images, or above them."""
PACK_FILE = "triptych-pack.json"
"""What the file in a zip is called that says of which images it is a pack."""
KINDS = "AVIF, BMP, GIF, JPEG, JPEG 2000, PNG, PNM, TIFF and WebP files"
"""What is looked for, in words."""
_EXTENSIONS = frozenset(
    (".avif", ".bmp", ".gif", ".jfif", ".jp2", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp")
)
_MOST_ENDINGS = 6
_TABLE_BYTES = 2**20, 2**13
"""Most bytes of a file of labels, and how many more for each image: what a stranger's unpacks to could fill the memory."""
MOST_BYTES = 2**28
"""Of an encoded image: 256 MiB. A photograph has about 10 MB."""


class Names:
    """Many strings in two arrays: a list of them would be copied page by page into every loader process."""

    def __init__(self, names: Iterable[str]) -> None:
        encoded = [os.fsencode(name) for name in names]
        self.bytes = b"".join(encoded)
        self.ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        "Where each of them ends in `bytes`: int64 (n,)."

    @classmethod
    def joined(cls, joined: bytes, ends: np.ndarray) -> Names:
        """Those that are written one after the other, and end there. Raises ValueError for ends that are none."""
        names = cls(())
        steps = np.diff(ends, prepend=0)
        if ends.ndim != 1 or ends.dtype != np.int64 or (steps < 0).any() or (ends[-1] if len(ends) else 0) != len(joined):
            raise ValueError("names that do not end where they should")
        names.bytes, names.ends = joined, ends
        return names

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, k: int) -> str:
        return os.fsdecode(self.bytes[self.ends[k - 1] if k else 0 : self.ends[k]])

    def __iter__(self) -> Iterator[str]:
        return (self[k] for k in range(len(self)))


class Files(ABC):
    """Files of one place, in the order of their names."""

    def __init__(
        self, place: Place, names: list[str] | Names, *, passed_over: Counter[str] | None = None, tables: Iterable[str] = ()
    ) -> None:
        """`passed_over`: how many files of each ending lie there beside the images."""
        self.place = place
        self.names = names if isinstance(names, Names) else Names(names)
        self.keys = self.names
        "Their paths inside the source: those of the files that were packed, where these are a pack."
        self.tables = tuple(tables)
        "The files of labels, by their names (see `LABELS_FILE`)."
        self.left_out = frozenset[str]()
        "Names of images that are there and not among these."
        self.passed_over = passed_over or Counter()
        self.remarks = list[str]()
        "What else the log is to say of them."
        self.objects: dict[str, str] = {}
        "Which version it is of each file that lies elsewhere, by address."

    @property
    def notes(self) -> tuple[str, ...]:
        """What the log says of the files: which were passed over, and why others are not there."""
        endings = self.passed_over.most_common()
        if not endings:
            return tuple(self.remarks)
        shown = [f"{count:,} {suffix or 'without an ending'}" for suffix, count in endings[:_MOST_ENDINGS]]
        rest = sum(count for _, count in endings[_MOST_ENDINGS:])
        shown += [counted(rest, "other")] if rest else []
        what = counted(sum(self.passed_over.values()), "file that is no image", "files that are no images")
        return (f"{self.place}: passed over {what}: {', '.join(shown)}", *self.remarks)

    def describe(self, k: int) -> str:
        """The path of a file, for messages."""
        return str(self.place / self.names[k])

    def key(self, k: int) -> str:
        """The path of a file inside the source, which is the same on every machine."""
        return self.keys[k]

    @abstractmethod
    def read(self, k: int) -> bytes:
        """The bytes of a file. Raises OSError or DataError."""

    def head(self, k: int) -> bytes:
        """What suffices to read the header of a file. Raises OSError or DataError."""
        return self.read(k)

    def check_numbers(self) -> None:  # noqa: B027 (most have nothing to say)
        """Raises DataError for files that cannot be maps, whose pixels are numbers; of most that shows when one is read."""

    def expect(self, numbers: Sequence[int]) -> None:  # noqa: B027 (most have nothing to do)
        """Fetches at once what lies elsewhere of files that will be read. Raises DataError."""

    def table(self, name: str) -> bytes:
        """The bytes of one of the `tables`. Raises OSError or DataError, KeyError for a name that is none of them."""
        raise KeyError(name)

    def classes(self) -> Classes | None:
        """The classes that the source itself says; None: it says none. Raises DataError for one that cannot be."""
        return None

    @property
    def labelled(self) -> bool:
        """Whether a file with its class (x.cls, x.json) lies beside an image, as webdataset writes them; see `label`."""
        return False

    def label(self, k: int) -> tuple[str, bytes] | None:
        """The path and the bytes of the file that lies beside an image; None: there is none. Raises OSError or DataError."""
        return None

    def packed(self) -> bytes | None:
        """What a pack says of itself, where these are the files of one. Raises OSError or DataError."""
        return None

    def part(self, numbers: np.ndarray) -> Files:
        """Some of the files, as if the others were not there."""
        return self if len(numbers) == len(self.names) else _Part(self, numbers)

    @property
    def most_of_a_table(self) -> int:
        """Bytes that a file of labels may have."""
        least, each = _TABLE_BYTES
        return min(MOST_BYTES, least + each * len(self.names))


class _Part(Files):
    """Some of the files of a place."""

    def __init__(self, files: Files, numbers: np.ndarray) -> None:
        names = [files.names[int(k)] for k in numbers]
        super().__init__(files.place, names, passed_over=files.passed_over, tables=files.tables)
        self.left_out, self.remarks = files.left_out | set(files.names) - set(names), files.remarks
        self._files, self._numbers = files, numbers
        self.objects = files.objects

    def expect(self, numbers: Sequence[int]) -> None:
        self._files.expect([int(self._numbers[k]) for k in numbers])

    def describe(self, k: int) -> str:
        return self._files.describe(int(self._numbers[k]))

    def key(self, k: int) -> str:
        return self._files.key(int(self._numbers[k]))

    def read(self, k: int) -> bytes:
        return self._files.read(int(self._numbers[k]))

    def table(self, name: str) -> bytes:
        return self._files.table(name)

    def classes(self) -> Classes | None:
        found = self._files.classes()
        return None if found is None else replace(found, labels=found.labels[self._numbers])

    @property
    def labelled(self) -> bool:
        return self._files.labelled

    def label(self, k: int) -> tuple[str, bytes] | None:
        return self._files.label(int(self._numbers[k]))


class Folder(Files):
    """The image files under a folder."""

    def __init__(
        self, root: Path, names: list[str] | Names, *, passed_over: Counter[str] | None = None, tables: Iterable[str] = ()
    ) -> None:
        super().__init__(root, names, passed_over=passed_over, tables=tables)
        self._root = root

    def read(self, k: int) -> bytes:
        return read_regular(self._root / self.names[k], most=MOST_BYTES)

    def table(self, name: str) -> bytes:
        return read_regular(self._root / name, most=self.most_of_a_table)


def ending(name: str) -> str:
    """The ending of a file's name, in small letters; that of .bashrc and of x. is empty."""
    last = name.rpartition("/")[2]
    place = last.rfind(".")
    return last[place:].lower() if 0 < place < len(last) - 1 else ""


def is_image(name: str) -> bool:
    """Whether a file of this name is taken for an image; hidden files are not, nor what lies in hidden folders."""
    return ending(name) in _EXTENSIONS and not _hidden(name)


def _hidden(name: str) -> bool:
    if not name.startswith(".") and "/." not in name:  # at once, for most are not
        return False
    return any(part.startswith(".") and part not in (".", "..") for part in name.split("/"))


def is_table(name: str) -> bool:
    """Whether a file of this name is a file of labels."""
    return name.rpartition("/")[2] == LABELS_FILE


def chosen(name: str, passed_over: Counter[str]) -> bool:
    """Whether a file is taken for an image or for labels; one that is neither that nor hidden is counted by its ending."""
    if is_image(name) or is_table(name):
        return True
    if not _hidden(name):
        passed_over[ending(name)] += 1
    return False


def listed(folder: Path) -> list[str]:
    """What lies in a folder, in order. Raises DataError where it is none, or cannot be looked into."""
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror})") from error


def holds(question: Callable[[], bool]) -> bool:
    """Whether that is so of an entry of a folder; of a link that leads to itself nothing is."""
    try:
        return question()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise


def walked(
    root: Path, statuses: dict[str, list[int]] | None = None, again: list[str] | None = None
) -> Iterator[tuple[str, list[os.DirEntry[str]], list[os.DirEntry[str]]]]:
    """A folder and all folders below it, links followed: its path from `root` ("" for that), its folders and its other entries, in order.

    A caller may remove folders from the list, which are then not entered; one that a link leads back to has none. `statuses` gets what
    `status_of` says of each before it is looked into, `again` the folders that were there under another path.
    Raises DataError for one that cannot be looked into.
    """
    visited: set[tuple[int, int]] = set()
    waiting = [""]
    while waiting:
        relative = waiting.pop()
        folder = root / relative
        folders: list[os.DirEntry[str]] = []
        others: list[os.DirEntry[str]] = []
        try:
            status = folder.stat()
            if statuses is not None:
                statuses[relative] = status_of(status)
            if (status.st_dev, status.st_ino) in visited:
                if again is not None:
                    again.append(relative)
            else:
                with os.scandir(folder) as entries:
                    for entry in sorted(entries, key=lambda entry: entry.name):
                        (folders if holds(entry.is_dir) else others).append(entry)
        except OSError as error:
            raise DataError(f"{folder}: cannot be listed ({error.strerror})") from error
        visited.add((status.st_dev, status.st_ino))
        yield relative, folders, others
        waiting += [inside(relative, entry.name) for entry in reversed(folders)]


def inside(folder: str, name: str) -> str:
    """The path of what is called `name` in a folder, which is "" for the root."""
    return f"{folder}/{name}" if folder else name


def is_run_folder(names: Container[str]) -> bool:
    """Whether a folder with these names in it is that of a run."""
    return "config.json" in names and ("metrics.jsonl" in names or "checkpoints" in names)


def open_folder(root: Path) -> tuple[Folder, list[str]]:
    """The images of a folder and all folders below it, links followed, and its sub-folders that hold none.

    Those of a run are none of them: its grids would be learned as soon as they are there. Nor is the picture in which `triptych translate`
    shows several images of a folder.
    The list of a large folder is kept in the user's cache while no folder in it changes. Raises DataError for a pipe or device that is
    named like an image: reading it could wait or go on for ever.
    """
    known = kept(root)
    if known is not None:
        return Folder(root, Names.joined(known.names, known.ends), passed_over=known.passed_over, tables=known.tables), known.empty
    started, statuses, again, links = time.time_ns(), dict[str, list[int]](), list[str](), False
    names, empty, tables, runs, passed_over = [], [], [], [], Counter[str]()
    for relative, folders, others in walked(root, statuses, again):
        links |= any(entry.is_symlink() for entry in others)
        if relative and is_run_folder({entry.name for entry in (*folders, *others)}):
            folders.clear()
            runs.append(relative)
            continue
        folders[:] = [entry for entry in folders if not entry.name.startswith(".")]
        overview = made_in(root / relative).overview if any(entry.name == STAMP for entry in others) else None
        taken = [entry for entry in others if entry.name != overview and chosen(entry.name, passed_over)]
        for entry in taken:
            if not holds(entry.is_file) and os.path.exists(entry.path):
                raise DataError(f"{entry.path}: not a regular file but a pipe or a device, or a link to one; remove it")
        images = [entry for entry in taken if not is_table(entry.name)]
        names += [inside(relative, entry.name) for entry in images]
        tables += [inside(relative, LABELS_FILE)] if len(images) < len(taken) else []
        if not images and not folders and relative and relative not in again:
            empty.append(relative)
    files = Folder(root, sorted(names, key=lambda name: name.split("/")), passed_over=passed_over, tables=tables)
    files.remarks += [f"{root / folder}: a link to a folder that is there already; its images count once" for folder in again]
    files.remarks += [f"{root / folder}: a run; what lies in it counts for none of these images" for folder in runs]
    if not links and not again and not runs:
        listing = Listing(files.names.bytes, files.names.ends, empty, tables, passed_over)
        keep(root, listing, statuses, started=started)
    return files, empty
