"""Classes by files: dataset.json, which the programs of StyleGAN and EDM write, and those that webdataset has beside each image.

In a tar, x.cls beside x.jpg holds the number of its class, or x.json, an object, has it as "label" or "cls".

dataset.json holds {"labels": [["00000/img00000000.png", 6], ...]}, or null in the place of the list where the images have none. Names are
those below the folder of the file. StyleGAN's may have a list of numbers for each image: 1 for its class and 0 for all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

from triptych.core.errors import DataError, one_line
from triptych.core.reading import MOST_CLASSES, parsed_json
from triptych.core.wording import counted
from triptych.data.arrays import numerals
from triptych.data.config import ClassesFrom
from triptych.data.files import LABELS_FILE, Files
from triptych.data.naming import LABELS, Classes, Paths, classes_of

_ADVICE = "mend the file, or set {} to folder, prefix or none"
_SHOWN = 40  # characters of a label that is none


def file_classes(files: Files, paths: Paths, *, scheme: ClassesFrom, empty: list[str] | None = None) -> Classes | None:
    """The classes of image files, by dataset.json or the files beside them where such lie there, else by their names; None without labels.

    `paths`: the files' names, parsed. `empty`: sub-folders without images. Raises DataError naming the file that has no class.
    """
    place = str(files.place)
    if scheme == "json" and not files.tables:
        reason = f"{place}: no {LABELS_FILE} lies there"
        raise DataError(reason, advice="add it, or set {} to auto, folder, prefix or none", setting=LABELS)
    if scheme in ("auto", "folder") and (own := files.classes()) is not None:
        return own
    if files.labelled and not files.tables and scheme in ("auto", "folder") and (beside := _beside(files)) is not None:
        return beside
    if files.tables and scheme in ("auto", "folder", "json"):
        found = dict(_entries(files))
        if found:
            return _matched(files, found)
        if scheme == "json":
            _refuse(str(files.place / files.tables[0]), "says that the images have no labels")
        if scheme == "auto":
            return None  # and folders mean nothing
    return classes_of(paths, place, scheme="auto" if scheme == "json" else scheme, empty=empty or ())


def _beside(files: Files) -> Classes | None:
    """The classes by the files beside the images; None where such a file of the first image that has one says none."""
    numbers = np.full(len(files.names), -1, dtype=np.int64)
    for k in range(len(numbers)):
        found = files.label(k)
        if found is not None:
            where, data = found
            label = _stated(where, data)
            if label is None and (numbers < 0).all():
                return None
            if label is None:
                _refuse(where, 'holds no class as "label" or "cls", as those of other images do')
            numbers[k], _ = _class(label, "its image", where)
    bare = np.flatnonzero(numbers < 0)
    if len(bare):
        _refuse(files.describe(int(bare[0])), f"no .cls or .json beside it has its class{_others(len(bare))}")
    return Classes(numbers, numerals(numbers, str(files.place)), numbered=True)


def _stated(where: str, data: bytes) -> Any:
    """What a file beside an image says that its class is; None: nothing."""
    try:
        said = parsed_json(data)  # a number by itself is JSON
    except ValueError as error:
        _refuse(where, f"holds no class ({one_line(error)})")
    if not isinstance(said, dict):
        return said
    return next((said[name] for name in ("label", "cls") if type(said.get(name)) is int), None)


def _matched(files: Files, found: dict[str, tuple[int, int]]) -> Classes:
    """The class of each file. Raises DataError for a file without one, and for a class of no file."""
    table = str(files.place / files.tables[0])
    names = list(files.names)
    pairs = np.array([found.get(name, (-1, 0)) for name in names], dtype=np.int64).reshape(-1, 2)
    bare = np.flatnonzero(pairs[:, 0] < 0)
    if len(bare):
        _refuse(table, f"has no label for {names[int(bare[0])]}{_others(len(bare))}")
    absent = found.keys() - set(names) - files.left_out
    if absent:
        _refuse(table, f"has a label for {min(absent)}{_others(len(absent))}, but there is no such image")
    return Classes(pairs[:, 0], numerals(pairs.max(1), table), numbered=True)


def _entries(files: Files) -> Iterator[tuple[str, tuple[int, int]]]:
    """The path of each image that is labelled, its class, and the last class that its label knows of."""
    named = set[str]()
    for table in files.tables:
        where, folder = str(files.place / table), table.removesuffix(LABELS_FILE)
        for entry in _listed(files, table, where):
            match entry:
                case [str(name), label]:
                    path = f"{folder}{name}"
                case _:
                    _refuse(where, f"holds {_short(entry)} among its labels, expected the name of a file and its class")
            if path in named:
                _refuse(where, f"has more than one label for {name}")
            named.add(path)
            yield path, _class(label, name, where)


def _listed(files: Files, table: str, where: str) -> list[Any]:
    """The labels in a dataset.json; none where it says that there are none."""
    try:
        content = parsed_json(files.table(table))
    except (ValueError, OSError) as error:
        _refuse(where, f"cannot be read as JSON ({one_line(error)})")
    match content:
        case {"labels": None}:
            return []
        case {"labels": list(labels)}:
            return labels
    _refuse(where, 'holds no list of "labels"')


def _class(label: Any, name: str, where: str) -> tuple[int, int]:
    """A class, and the last one that is known of by it."""
    if type(label) is int and 0 <= label < MOST_CLASSES:
        return label, label
    if isinstance(label, list) and label.count(1) == 1 and label.count(0) == len(label) - 1:
        return label.index(1), len(label) - 1
    _refuse(where, f"has the label {_short(label)} for {name}, expected one class, a whole number from 0 to {MOST_CLASSES - 1}")


def _refuse(where: str, reason: str) -> NoReturn:
    raise DataError(f"{where}: {reason}", advice=_ADVICE, setting=LABELS)


def _others(count: int) -> str:
    return f" and {counted(count - 1, 'other')}" if count > 1 else ""


def _short(value: Any) -> str:
    text = one_line(ValueError(repr(value)[: 10 * _SHOWN]))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
