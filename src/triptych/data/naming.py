"""What the names of image files say: their class, and which of them are for training and which for validation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from triptych.core.errors import DataError

TRAINING = "train"
_HELD_OUT = ("val", "valid", "validation", "test")  # the first that is there is used


@dataclass(frozen=True)
class Classes:
    """The class of each file."""

    labels: np.ndarray
    "int64 of shape (n,): places in `names`."
    names: tuple[str, ...]


@dataclass(frozen=True)
class Paths:
    """File paths in parts, without the folders that all of them share, nor the folders of a split that came with the data."""

    parts: list[list[str]]
    split: list[str | None]
    "Name of the split's folder of each file; None where the data came unsplit."


def parsed(names: list[str]) -> Paths:
    """The paths of a data set. Top folders named train and val (or valid, validation, test) are a split."""
    parts = _without_shared_folder([name.split("/") for name in names])
    tops = {path[0] if len(path) > 1 else "" for path in parts}
    if TRAINING in tops and len(tops) > 1 and tops <= {TRAINING, *_HELD_OUT}:
        return Paths([path[1:] for path in parts], [path[0] for path in parts])
    return Paths(parts, [None] * len(parts))


def _without_shared_folder(parts: list[list[str]]) -> list[list[str]]:
    """Strips leading folders that hold everything, but never the last folder above a file: that one may be a class."""
    depth = 0
    while parts and all(len(path) > depth + 2 and path[depth] == parts[0][depth] for path in parts):
        depth += 1
    return [path[depth:] for path in parts]


def divided(paths: Paths, *, validation_fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the files for training and for validation (empty with a fraction of 0)."""
    if all(split is None for split in paths.split):
        return held_out(["/".join(path) for path in paths.parts], fraction=validation_fraction)
    validation = held_out_folder(name for name in paths.split if name is not None)
    chosen = [np.flatnonzero([split == name for split in paths.split]) for name in (TRAINING, validation)]
    return chosen[0], chosen[1] if validation_fraction > 0 else chosen[1][:0]


def held_out_folder(names: Iterable[str]) -> str | None:
    """Which of the folders' names is that of the held-out images; None: none is."""
    there = set(names)
    return next((name for name in _HELD_OUT if name in there), None)


def held_out(keys: list[str], *, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the items for training and for validation.

    An item's own key decides, so it stays on its side whatever is added to the data, in every run and with every seed. Where
    chance would hold none out of two or more, the item of the smallest hash is.
    """
    hashes = hashed(keys)
    chosen = hashes < fraction * 2.0**48
    if fraction > 0 and len(keys) > 1:
        chosen[hashes.argmin()] = True
        chosen[hashes.argmax()] = False
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def hashed(keys: list[str]) -> np.ndarray:
    """A number from 0 to 2^48 - 1 for each key, which depends on nothing else: int64 (n,)."""
    digests = (hashlib.blake2b(key.encode(errors="surrogateescape"), digest_size=6).digest() for key in keys)
    return np.fromiter(map(int.from_bytes, digests), dtype=np.int64, count=len(keys))


def classes_of(paths: Paths, place: str, *, scheme: Literal["auto", "folder", "prefix", "none"]) -> Classes | None:
    """The classes by sub-folder or by prefix; None without labels. Raises DataError naming a file that has no class."""
    if scheme == "none":
        return None
    if scheme == "prefix":
        return _numbered([_prefix(path[-1], place) for path in paths.parts])
    unplaced = next((path for path in paths.parts if len(path) < 2), None)
    if scheme == "folder" and unplaced is not None:
        raise DataError(f"{place}: {unplaced[-1]} lies in no sub-folder, so it has no class: move it, or set data.labels to prefix or none")
    if unplaced is not None:
        return None
    classes = _numbered([path[0] for path in paths.parts])
    return classes if scheme == "folder" or len(classes.names) > 1 else None


def _prefix(name: str, place: str) -> str:
    prefix, underscore, _ = name.partition("_")
    if not underscore or not prefix:
        raise DataError(f"{place}: {name} has no class before an underscore: rename it, or set data.labels to folder or none")
    return prefix


def _numbered(names: list[str]) -> Classes:
    distinct, labels = np.unique(np.array(names), return_inverse=True)
    return Classes(labels.reshape(-1).astype(np.int64), tuple(str(name) for name in distinct))
