"""Images that a training does without: those of a list, and those that cannot be read.

The list is a file in JSON: {"format": "triptych-skip-1", "skip": [{"key": "a/b.png", "why": "truncated"}, ...]}. The key of an image is its
path inside the source, the same on every machine: the name of a file below the folder or inside the archive, or the number of an image in
an array. What is listed is left out before anything else, so that all is as if it had never been there.

An image that cannot be read is found when it is wanted, and another one takes its place (`WithoutBad`). Which one is a function of the seed
and the position in the order of training, so any number of processes, a microbatch and a resume see the same.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from triptych.core.errors import DataError
from triptych.core.files import explain, write_text
from triptych.core.reading import parsed_json, read_regular, user_path
from triptych.core.rng import permutation
from triptych.core.wording import counted
from triptych.data.config import DataConfig
from triptych.data.images import ImageSet, Loaded
from triptych.data.stored import BadImage

FORMAT = "triptych-skip-1"
_MOST_BYTES = 2**28  # a million keys have 100 MB
_FEW = 3
"""So many bad images never stop a run, however few images there are."""
_NAMED = 10
_EPOCHS_KEPT = 2


def read_skip(path: str | Path) -> dict[str, str]:
    """Why each image is left out, by its key. Raises DataError for a file that cannot be read, or holds something else."""
    place = user_path(path)
    try:
        document = parsed_json(read_regular(place, most=_MOST_BYTES))
    except OSError as error:
        raise DataError(f"{place}: cannot be read ({explain(error)})") from error
    except ValueError as error:
        raise DataError(f"{place}: not JSON ({error}); give a list of images as triptych data doctor --quarantine writes it") from None
    match document:
        case {"format": str(name), "skip": list(entries)} if name == FORMAT:
            return dict(_entry(entry, place) for entry in entries)
    raise DataError(f'{place}: no list of images to leave out; expected {{"format": "{FORMAT}", "skip": [{{"key": ..., "why": ...}}]}}')


def write_skip(path: str | Path, reasons: Mapping[str, str]) -> None:
    """Writes the keys of images and why each is left out, whole or not at all. Raises DataError."""
    place = user_path(path)
    entries = [{"key": key, "why": why} for key, why in reasons.items()]
    try:
        write_text(place, json.dumps({"format": FORMAT, "skip": entries}, indent=1) + "\n")
    except OSError as error:
        raise DataError(f"{place}: cannot be written ({explain(error)})") from error


def _entry(entry: object, place: Path) -> tuple[str, str]:
    match entry:
        case {"key": str(key), "why": str(why)}:
            return key, why
        case {"key": str(key)}:
            return key, ""
    raise DataError(f'{place}: an entry of its list has no key; expected {{"key": "a/b.png", "why": "truncated"}}')


# Images of a list


class LeftOut:
    """The images that data.skip leaves out of a source."""

    def __init__(self, keys: Iterable[str], *, listed_in: str = "", folder: str = "", found: set[str] | None = None) -> None:
        """`folder`: where in the source the images lie of which the keys will be asked, with a slash; `found`: what was found so far."""
        self._keys, self._listed_in, self.folder = frozenset(keys), listed_in, folder
        self._found = set[str]() if found is None else found

    @classmethod
    def of(cls, config: DataConfig) -> LeftOut:
        """Those of a run's images. Raises DataError where the list cannot be read."""
        return cls(()) if config.skip is None else cls(read_skip(config.skip), listed_in=config.skip)

    def inside(self, folder: str) -> LeftOut:
        """The same for the images of a folder of the source, whose keys begin below it."""
        return LeftOut(self._keys, listed_in=self._listed_in, folder=f"{self.folder}{folder}/", found=self._found)

    def kept(self, key_of: Callable[[int], str], count: int) -> np.ndarray:
        """The numbers, of `count` images, that are not left out: int64 (n,)."""
        return self.kept_pairs([key_of], count)

    def kept_pairs(self, key_of: Sequence[Callable[[int], str]], count: int) -> np.ndarray:
        """Likewise for images of several files, each with a key of its own; one in the list is enough."""
        if not self._keys:
            return np.arange(count)
        chosen = np.ones(count, dtype=bool)
        for one in key_of:
            for k in range(count):
                key = f"{self.folder}{one(k)}"
                if key in self._keys:
                    self._found.add(key)
                    chosen[k] = False
        return np.flatnonzero(chosen)

    def notes(self) -> tuple[str, ...]:
        """What the log says: how many were left out, and which are not in the source."""
        if not self._listed_in:
            return ()
        absent = sorted(self._keys - self._found)
        lines = [f"data.skip {self._listed_in}: {counted(len(self._found), 'image is', 'images are')} left out"]
        if absent:
            more = f" and {len(absent) - _NAMED:,} more" if len(absent) > _NAMED else ""
            lines.append(f"data.skip {self._listed_in}: not in the source: {', '.join(absent[:_NAMED])}{more}")
        return tuple(lines)


# Images that cannot be read


def most_bad(count: int, most_errors: float) -> int:
    """How many of `count` images may be bad."""
    return max(_FEW, int(most_errors * count))


def without_bad(images: ImageSet, *, keys_begin: str = "", of_one_class: bool = False) -> ImageSet:
    """The images, with others in the place of those that cannot be read where data.on_error is skip.

    `keys_begin`: what their keys begin with. `of_one_class`: another one is of the same class.
    """
    return WithoutBad(images, keys_begin=keys_begin, of_one_class=of_one_class) if images.config.on_error == "skip" else images


class WithoutBad(ImageSet):
    """Images of which those that cannot be read are replaced, image by image.

    In training the next one of the order of training takes the place: at position p that of p + 1, or p + 2 where that is bad too, with the
    variations of p. Of images as they are, and of those of one class, it is the next by number. An image is bad or not whatever its
    position, so what was found before changes nothing but the time.
    """

    def __init__(self, images: ImageSet, *, keys_begin: str, of_one_class: bool) -> None:
        super().__init__(images.config, channels=images.channels, items=np.arange(len(images)), labels=images.labels)
        self._images, self._keys_begin, self._of_one_class = images, keys_begin, of_one_class
        self._why: dict[int, str] = {}
        self._order = functools.lru_cache(_EPOCHS_KEPT)(lambda seed, epoch: permutation(len(images), seed=seed, epoch=epoch))

    def key(self, item: int) -> str:
        return self._images.key(item)

    def source_key(self, item: int) -> str:
        return f"{self._keys_begin}{self._images.source_key(item)}"

    @property
    def numbers(self) -> np.ndarray:
        return self._images.numbers

    def content(self, item: int) -> bytes | np.ndarray:
        try:
            return self._images.content(item)
        except BadImage:
            return self._images.content(self._replaced(item, None, 0, {}))

    def default_workers(self) -> int:
        return self._images.default_workers()

    def batch(self, items: np.ndarray, positions: np.ndarray | None = None, *, seed: int = 0) -> Loaded:
        chosen, bad = np.array(items, dtype=np.int64), dict[str, str]()
        if not self._why.keys() & set(chosen.tolist()):
            try:
                return self._images.batch(chosen, positions, seed=seed)
            except BadImage:
                pass  # which of them are bad is found one by one
        for k, item in enumerate(chosen.tolist()):
            chosen[k] = self._replaced(item, None if positions is None else int(positions[k]), seed, bad)
        loaded = self._images.batch(chosen, positions, seed=seed)
        return Loaded(loaded.images, loaded.labels, loaded.inputs, bad)

    def _replaced(self, item: int, position: int | None, seed: int, bad: dict[str, str]) -> int:
        """An image that can be read: the item itself, or the first after it. Adds to `bad` those that were met."""
        for candidate in self._candidates(item, position, seed):
            if self._is_good(candidate):
                return candidate
            bad[self.source_key(candidate)] = self._why[candidate]
        raise DataError(f"{self.key(item)}: {self._why[item]}, and no image can take its place (data.on_error skip): none can be read")

    def _candidates(self, item: int, position: int | None, seed: int) -> Iterator[int]:
        """The item, and what may take its place in turn: every image at least once."""
        yield item
        count = len(self)
        if self._of_one_class and self.labels is not None:
            members = np.flatnonzero(self.labels == self.labels[item])
            yield from np.roll(members, -1 - int(np.searchsorted(members, item))).tolist()
        elif position is None:
            yield from ((item + k) % count for k in range(1, count))
        else:
            for later in range(position + 1, position + 2 * count):
                epoch, place = divmod(later, count)
                yield int(self._order(seed, epoch)[place])

    def _is_good(self, item: int) -> bool:
        """Whether an image can be read. Raises DataError where more cannot than may be."""
        if item in self._why:
            return False
        try:
            self._images.batch(np.array([item]))
        except BadImage as error:
            name = self.key(item)
            self._why[item] = error.why if error.name == name else f"{error.name}: {error.why}"
            if len(self._why) > most_bad(len(self), self.config.most_errors):
                raise too_many(len(self._why), len(self), self.config.most_errors, f"; one of them is {name}: {self._why[item]}") from error
            return False
        return True


def too_many(bad: int, count: int, most_errors: float, which: str) -> DataError:
    """What is said when more images are bad than may be."""
    reason = f"{bad:,} of {count:,} images cannot be read, more than data.most_errors {most_errors:g} allows{which}"
    return DataError(f"{reason}; repair them, leave them out by data.skip, or raise data.most_errors")


class Chosen(ImageSet):
    """Some of the images of a set, by their numbers."""

    def __init__(self, images: ImageSet, numbers: np.ndarray) -> None:
        labels = None if images.labels is None else images.labels[numbers]
        super().__init__(images.config, channels=images.channels, items=numbers, labels=labels)
        self._images = images

    @property
    def numbers(self) -> np.ndarray:
        return self._images.numbers[self._items]

    def key(self, item: int) -> str:
        return self._images.key(int(self._items[item]))

    def source_key(self, item: int) -> str:
        return self._images.source_key(int(self._items[item]))

    def content(self, item: int) -> bytes | np.ndarray:
        return self._images.content(int(self._items[item]))

    def default_workers(self) -> int:
        return self._images.default_workers()

    def batch(self, items: np.ndarray, positions: np.ndarray | None = None, *, seed: int = 0) -> Loaded:
        return self._images.batch(self._items[items], positions, seed=seed)


class Spread(Chosen):
    """So many of the images of a set, spread evenly over it."""

    def __init__(self, images: ImageSet, count: int, *, available: int | None = None) -> None:
        """`available`: of so many of the first ones."""
        super().__init__(images, spread(count, len(images) if available is None else available))


def spread(count: int, available: int) -> np.ndarray:
    """So many numbers from 0 to `available` - 1, spread evenly: int64 (count,)."""
    return np.arange(count, dtype=np.int64) * available // count


def readable(images: ImageSet, numbers: Iterable[int], bad: dict[str, str]) -> list[int]:
    """Those of some images, by number, that can be read; why the others cannot goes to `bad`, by key. Without on_error skip all, unseen."""
    if images.config.on_error != "skip":
        return list(numbers)
    good = []
    for number in numbers:
        found = images.batch(np.array([number])).bad
        bad.update(found)
        good += [] if found else [number]
    return good
