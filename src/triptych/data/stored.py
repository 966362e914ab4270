"""Images and maps as they are stored: read one by one, cut, and named where they cannot be used."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import numpy as np

from triptych.core.batch import InputSpec
from triptych.core.errors import DataError
from triptych.data import poses
from triptych.data.cut import Cut, TooSmall, Value, size_of
from triptych.data.decode import number_map, reason
from triptych.data.files import Files
from triptych.data.transforms import Size

PROBED = 256
"""Items whose headers are read before any is used."""

_OF_THE_FILE = frozenset(
    (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EISDIR, errno.EINVAL, errno.EFBIG, errno.ELOOP, errno.ENAMETOOLONG)
)
"""Errors of the system that say something of the file, and would come again."""

T = TypeVar("T")
CutOf = Callable[[Size, str], Cut]
"""From width and height, and the name for messages, to how an item is cut. Raises DataError or TooSmall."""


class Stored(Protocol):
    """Images or maps by number: files, arrays, or the records of files."""

    def read(self, k: int) -> Value:
        """The k-th, encoded or as pixels. Raises DataError or OSError."""
        ...

    def describe(self, k: int) -> str:
        """Where it is, for messages."""
        ...


class Keyed(Stored, Protocol):
    """Those of one source."""

    def key(self, k: int) -> str:
        """What the k-th is called inside its source, the same on every machine (see `skipping`)."""
        ...


@dataclass(frozen=True)
class Member:
    """Some files of one type."""

    spec: InputSpec
    "What they are."
    files: Files
    numbers: np.ndarray
    "Which of them: int64 (n,)."
    folder: str = ""
    "Where the files lie inside the source, for their keys."

    def __post_init__(self) -> None:
        """Raises DataError for maps in files that alter numbers."""
        if self.spec.kind != "image":
            self.files.check_numbers()

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, k: int) -> bytes:
        """The bytes of the k-th."""
        return self.files.read(int(self.numbers[k]))

    def head(self, k: int) -> bytes:
        """What suffices to read the header of the k-th."""
        return self.files.head(int(self.numbers[k]))

    def describe(self, k: int) -> str:
        """Its path, for messages."""
        return self.files.describe(int(self.numbers[k]))

    def key(self, k: int) -> str:
        """Its path inside the source."""
        key = self.files.key(int(self.numbers[k]))
        return f"{self.folder}/{key}" if self.folder else key


class BadImage(DataError):
    """One item of many cannot be used, today and on any other day: what is wrong is in its file."""

    def __init__(self, name: str, why: str, message: str) -> None:
        super().__init__(message)
        self.name, self.why = name, why
        "Where it is, for messages; and what is wrong with it."

    def __reduce__(self) -> tuple[type[DataError], tuple[str]]:
        return DataError, (str(self),)  # between processes

    def stopping(self, *, skips: bool = True) -> DataError:
        """What is said where it ends a training; `skips`: one that could do without it."""
        return DataError(f"{self}, or set data.on_error to skip" if skips else str(self))


@contextmanager
def named(stored: Stored, k: int) -> Iterator[None]:
    """Within it every error becomes a DataError that names the k-th item: a BadImage, unless the machine is to blame."""
    try:
        yield
    except BadImage:
        raise
    except Exception as error:
        raise failure(stored.describe(k), error) from error


def failure(name: str, error: Exception) -> DataError:
    """What is said of a file that cannot be read; Pillow's decoders raise errors of many types, and any of them means that."""
    if isinstance(error, DataError):
        message = str(error)
        why = message.removeprefix(f"{name}: ")
    else:
        why = reason(error)
        message = f"{name}: {why}{'' if isinstance(error, TooSmall) else '; repair or remove the file'}"
    causes = (error, error.__cause__, error.__context__)
    return DataError(message) if any(map(_is_of_the_machine, causes)) else BadImage(name, why, message)


def _is_of_the_machine(error: BaseException | None) -> bool:
    """Whether another attempt may go well: no memory, too many open files, a disk or a network that does not answer."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, OSError) and error.errno is not None and error.errno not in _OF_THE_FILE


def probe(items: Iterable[int], look: Callable[[int], object], *, on_error: Literal["stop", "skip"], skips: bool = True) -> None:
    """Looks at some items. Raises DataError for the first that cannot be used; with skip, where that are more than half of them.

    `skips`: see `BadImage.stopping`.
    """
    count, bad = 0, list[BadImage]()
    for item in items:
        count += 1
        try:
            look(int(item))
        except BadImage as error:
            if on_error == "stop":
                raise error.stopping(skips=skips) from error
            bad.append(error)
    if 2 * len(bad) > count:
        raise DataError(f"{bad[0]} ({len(bad)} of the {count} that were looked at cannot be used)") from bad[0]


def measure(stored: Stored, k: int, cut_of: CutOf) -> tuple[Size, Cut]:
    """Width and height of the k-th item, from its header alone, and how it is cut. Raises DataError."""
    with named(stored, k):
        size = size_of(stored.head(k) if isinstance(stored, Member) else stored.read(k))
        return size, cut_of(size, stored.describe(k))


def read(
    stored: Stored, k: int, spec: InputSpec, cut_of: CutOf, crop: np.ndarray | None = None, *, remedy: str = ""
) -> tuple[Size, np.ndarray]:
    """Width and height of the k-th item, and itself, cut: uint8 (h, w, c), int64 (h, w), or of DensePose float32 (3, h, w).

    Raises DataError for one that cannot be read.

    `crop`: the words (3,) of a random crop; None: the middle. `remedy`: what to do about a class that `spec` does not have.
    """
    with named(stored, k):
        value, where = stored.read(k), stored.describe(k)
        size = size_of(value)
        cut = cut_of(size, where)
        if spec.stored != "pixels":
            return size, poses.channels(cut.numbers(poses.levels(value, spec), crop), spec)
        if spec.kind == "image":
            return size, (cut.nearest if spec.nearest else cut.image)(value, spec.channels or 3, crop)
        points = spec.kind == "points"  # which are stored with numbers from 1 on, 0 for none
        numbers = (number_map(value, wide=points) if isinstance(value, bytes) else value.astype(np.int64)) - points
        return size, cut.numbers(numbers if spec.num_classes is None else class_map(numbers, spec, where, remedy=remedy), crop)


def of_one_size(members: Sequence[Stored], k: int, sized: Sequence[tuple[Size, T]]) -> list[T]:
    """What was found at the k-th item of the first members. Raises DataError unless the items have one width and height."""
    (width, height), _ = sized[0]
    for member, (size, _) in zip(members, sized, strict=False):
        if size != (width, height):
            where, first = member.describe(k), members[0].describe(k)
            why = f"{size[0]}x{size[1]} pixels, but {first} has {width}x{height}"
            raise BadImage(where, why, f"{where}: {why}; make them one size")
    return [one for _, one in sized]


def class_map(values: np.ndarray, spec: InputSpec, where: str, *, remedy: str) -> np.ndarray:
    """The map with `num_classes` in the place of what is no class. Raises DataError where there is such and `spec` has no such pixels.

    What becomes of them in networks is said by `InputSpec.dont_care` and `InputSpec.blank`.
    """
    assert spec.num_classes is not None
    outside = (values < 0) | (values >= spec.num_classes)
    if not outside.any():
        return values
    if not (spec.dont_care or spec.blank):
        raise DataError(f"{where}: holds class {values[outside][0]}, expected 0 to {spec.num_classes - 1}: {remedy}")
    return np.where(outside, spec.num_classes, values)


def evenly_spaced(count: int, most: int) -> np.ndarray:
    """At most so many of `count` items, the first and the last among them: int64."""
    return np.unique(np.linspace(0, count - 1, most).astype(np.int64)) if count else np.arange(0)
