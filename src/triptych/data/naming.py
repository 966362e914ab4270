"""What the names of image files say: their class, and which of them are for training and which for validation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from triptych.core.errors import DataError
from triptych.data.config import ClassesFrom

LABELS = "data.labels"
"""The setting of a training that says so."""

TRAINING = "train"
_HELD_OUT = ("val", "valid", "validation", "test")  # the first that is there is used

_LEARNED = "be learned as images too: give the folder of the photos alone, or train a recipe for pairs (triptych recipes)"
_FEW_HALVES = 3
_LOOKED_AT = 2_000
_SEPARATORS = str.maketrans("-. ", "___")
_HALVES = frozenset(
    (
        *("edge", "edges", "canny", "hed", "sketch", "sketches", "depth", "normals", "gt", "l", "parsing", "annotation", "annotations"),
        *("seg", "segs", "segment", "segments", "segmentation", "segmentations", "seg_maps", "semantic", "instance", "instances"),
        *("points", "mask", "masks", "label", "labels", "label_map", "label_maps", "labelmap", "labelmaps"),
    )
)
"""What folders and ends of names are called that hold the other half of a pair (0001_L.png, labels/0001.png)."""


@dataclass(frozen=True)
class Classes:
    """The class of each file."""

    labels: np.ndarray
    "int64 of shape (n,): places in `names`."
    names: tuple[str, ...]
    numbered: bool = False
    "Whether the names are no more than their numbers, which someone chose."


@dataclass(frozen=True)
class Paths:
    """File paths in parts, without the folders that all of them share, nor the folders of a split that came with the data."""

    parts: list[list[str]]
    split: list[str | None]
    "Name of the split's folder of each file; None where the data came unsplit."
    warning: str = ""
    "What the log says of folders that are no split, but look like one."


def parsed(names: list[str]) -> Paths:
    """The paths of a data set. Top folders named train and val (or valid, validation, test) are a split."""
    whole = [name.split("/") for name in names]
    depth = _shared_folders(whole, kept=1)
    parts = [path[depth:] for path in whole]
    below = _shared_folders(whole, kept=0)  # more only where a file lies in the last shared folder itself
    tops = {path[below] if len(path) > below + 1 else "": path for path in reversed(whole)}
    held = held_out_folder(tops)
    if TRAINING not in tops or held is None:
        return Paths(parts, [None] * len(parts))
    beside = next((path[below:] for top, path in tops.items() if top not in (TRAINING, *_HELD_OUT)), None)
    if beside is None:
        return Paths([path[1:] for path in parts], [path[0] for path in parts])
    why = f"the folders {TRAINING} and {held} are no split, for {'/'.join(beside)} lies beside them"
    warning = f"warning: {why}: held-out images are chosen from all; move that away, and those of {held} are held out"
    return Paths(parts, [None] * len(parts), warning)


def _shared_folders(paths: list[list[str]], *, kept: int) -> int:
    """How many leading folders hold everything. `kept`: 1, without the last folder above any file, for that one may be a class; or 0."""
    depth = 0
    while paths and all(len(path) > depth + 1 + kept and path[depth] == paths[0][depth] for path in paths):
        depth += 1
    return depth


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

    An item's own key decides, so it stays on its side whatever is added to the data, in every run and with every seed, as long as its
    key stays: that of a file is its path below the folders that all files share. Where
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


def classes_of(paths: Paths, place: str, *, scheme: ClassesFrom, empty: Sequence[str] = ()) -> Classes | None:
    """The classes by sub-folder or by prefix; None without labels. `empty`: sub-folders without images.

    Raises DataError naming a file that has no class, or a sub-folder that would be a class without images.
    """
    if scheme == "none":
        return None
    if scheme == "prefix":
        return _numbered([_prefix(path[-1], place) for path in paths.parts])
    parts = [path[1:] if path[0] == "." else path for path in paths.parts]  # ./a/1.png of a tar
    unplaced = next((path for path in parts if len(path) < 2), None)
    if scheme == "folder" and unplaced is not None:
        reason = f"{place}: {unplaced[-1]} lies in no sub-folder, so it has no class"
        raise DataError(reason, advice="move it, or set {} to prefix or none", setting=LABELS)
    if unplaced is not None:
        return None
    classes = _numbered([path[0] for path in parts])
    if scheme == "auto" and len(classes.names) < 2:
        return None
    if empty:
        reason = f"{place}/{empty[0]}: a sub-folder without images, but sub-folders are classes"
        raise DataError(reason, advice="move it elsewhere, or set {}", setting=LABELS)
    return classes


def pairs_warning(names: list[str], place: str, *, consequence: str = _LEARNED) -> tuple[str, ...]:
    """A warning where many files look like the other halves of pairs (edges, segments, masks) beside the photos; else nothing.

    `consequence`: what would become of them, and what to do.
    """
    some = range(1, len(names), max(1, len(names) // _LOOKED_AT))
    if not any(_half_of(names[k]) or _root(names[k]) == _root(names[k - 1]) for k in some):
        return ()  # at once, for a million names take seconds
    photos, firsts = dict[str, str](), dict[str, str]()
    halves: list[tuple[str, str]] = []
    for name in names:
        stem = _half_of(name)
        base = _root(name).rpartition("/")[2]
        if stem is None and _root(photos.get(base, "")) == _root(name):
            stem = base  # 0001.png beside 0001.jpg
        if stem is None:
            photos[base] = name
            firsts.setdefault(base, name)
        else:
            halves.append((stem, name))
    pairs = [(stem, name) for stem, name in halves if stem in photos]
    if len(pairs) < max(_FEW_HALVES, 0.5 * len(halves), 0.1 * len(names)):
        return ()
    stem, half = pairs[0]
    return (
        f"warning: {place}: {len(pairs):,} of {len(names):,} files look like the other halves of pairs ({half} beside {firsts[stem]}), "
        f"which would {consequence}",
    )


def _root(name: str) -> str:
    """The path without its ending; keys of an LMDB have none."""
    root, _, ending = name.rpartition(".")
    return name if "/" in ending or not root else root


def _half_of(name: str) -> str | None:
    """The stem of the photo to which a file seems to be the other half, by its folder or the end of its name; None: to none."""
    folder, _, stem = _root(name).rpartition("/")
    start, _, mark = stem.translate(_SEPARATORS).rpartition("_")
    if start and mark.lower() in _HALVES:
        return stem[: len(start)]
    return None if _HALVES.isdisjoint(folder.lower().split("/")) else stem


def _prefix(name: str, place: str) -> str:
    prefix, underscore, _ = name.partition("_")
    if not underscore or not prefix:
        reason = f"{place}: {name} has no class before an underscore"
        raise DataError(reason, advice="rename it, or set {} to folder or none", setting=LABELS)
    return prefix


def _numbered(names: list[str]) -> Classes:
    distinct, labels = np.unique(np.array(names), return_inverse=True)
    return Classes(labels.reshape(-1).astype(np.int64), tuple(str(name) for name in distinct))
