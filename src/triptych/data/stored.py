"""Images and maps as they are stored: read one by one, cut, and named where they cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from triptych.core.batch import InputSpec
from triptych.core.errors import DataError
from triptych.data.cut import Cut, TooSmall, Value, size_of
from triptych.data.decode import number_map, reason
from triptych.data.files import Files
from triptych.data.transforms import Size

PROBED = 256
"""Items whose headers are read before any is used."""

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

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, k: int) -> bytes:
        """The bytes of the k-th."""
        return self.files.read(int(self.numbers[k]))

    def describe(self, k: int) -> str:
        """Its path, for messages."""
        return self.files.describe(int(self.numbers[k]))

    def key(self, k: int) -> str:
        """Its path inside the source."""
        key = self.files.key(int(self.numbers[k]))
        return f"{self.folder}/{key}" if self.folder else key


@contextmanager
def named(stored: Stored, k: int) -> Iterator[None]:
    """Within it every error becomes a DataError that names the k-th item."""
    try:
        yield
    except Exception as error:
        raise failure(stored.describe(k), error) from error


def failure(name: str, error: Exception) -> DataError:
    """What is said of a file that cannot be read; Pillow's decoders raise errors of many types, and any of them means that."""
    if isinstance(error, DataError):
        return error
    advice = "" if isinstance(error, TooSmall) else "; repair or remove the file"
    return DataError(f"{name}: {reason(error)}{advice}")


def measure(stored: Stored, k: int, cut_of: CutOf) -> tuple[Size, Cut]:
    """Width and height of the k-th item, from its header alone, and how it is cut. Raises DataError."""
    with named(stored, k):
        size = size_of(stored.read(k))
        return size, cut_of(size, stored.describe(k))


def read(
    stored: Stored, k: int, spec: InputSpec, cut_of: CutOf, crop: np.ndarray | None = None, *, remedy: str = ""
) -> tuple[Size, np.ndarray]:
    """Width and height of the k-th item, and itself, cut: uint8 (h, w, c) or int64 (h, w). Raises DataError.

    `crop`: the words (3,) of a random crop; None: the middle. `remedy`: what to do about a class that `spec` does not have.
    """
    with named(stored, k):
        value, where = stored.read(k), stored.describe(k)
        size = size_of(value)
        cut = cut_of(size, where)
        if spec.kind == "image":
            return size, cut.image(value, spec.channels or 3, crop)
        numbers = number_map(value) if isinstance(value, bytes) else value.astype(np.int64)
        return size, cut.numbers(numbers if spec.num_classes is None else class_map(numbers, spec, where, remedy=remedy), crop)


def of_one_size(members: Sequence[Stored], k: int, sized: Sequence[tuple[Size, T]]) -> list[T]:
    """What was found at the k-th item of the first members. Raises DataError unless the items have one width and height."""
    (width, height), _ = sized[0]
    for member, (size, _) in zip(members, sized, strict=False):
        if size != (width, height):
            where, first = member.describe(k), members[0].describe(k)
            raise DataError(f"{where}: {size[0]}x{size[1]} pixels, but {first} has {width}x{height}; make them one size")
    return [one for _, one in sized]


def class_map(values: np.ndarray, spec: InputSpec, where: str, *, remedy: str) -> np.ndarray:
    """The map with `num_classes` in the place of what is no class. Raises DataError where there is such and `spec` has no such pixels."""
    assert spec.num_classes is not None
    outside = (values < 0) | (values >= spec.num_classes)
    if not outside.any():
        return values
    if not spec.dont_care:
        raise DataError(f"{where}: holds class {values[outside][0]}, expected 0 to {spec.num_classes - 1}: {remedy}")
    return np.where(outside, spec.num_classes, values)


def evenly_spaced(count: int, most: int) -> np.ndarray:
    """At most so many of `count` items, the first and the last among them: int64."""
    return np.unique(np.linspace(0, count - 1, most).astype(np.int64)) if count else np.arange(0)
