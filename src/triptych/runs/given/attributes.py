"""Which images have which attributes: from their classes, or from a table beside them."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np

from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError, DataError
from triptych.core.files import explain
from triptych.core.wording import counted
from triptych.data.stored import Member
from triptych.runs.directions import check_group
from triptych.runs.given.collection import Collection

Groups = dict[str, np.ndarray]
"""Whether each image has an attribute, bool (n,), by its name."""

_VALUES = {"1": 1, "0": 0, "-1": -1}
_EXPECTED = "expected 1 or 0, or 1 or -1"


def class_groups(images: Collection, spec: DataSpec, *, count: int) -> Groups:
    """An attribute for each class of the first `count` images: to be of it. `spec`: of the run, whose classes an array's labels are.

    Raises ConfigError for images without classes and for those of one class.
    """
    labels = images.labels
    if labels is None:
        advice = "put them in sub-folders, one for each class, or give a table of attributes"
        raise ConfigError("directions", f"{images.name} has no classes; {advice} (--attributes)")
    names = images.class_names or spec.class_names or ()
    present = np.unique(labels[:count]).tolist()
    if present[-1] >= len(names):
        names = tuple(map(str, range(present[-1] + 1)))
    groups: Groups = {str(names[label]): labels[:count] == label for label in present}
    for name, members in groups.items():
        check_group(f"the class {name}", members, whose=f"{images.name}: ")
    return groups


def attribute_groups(path: Path, images: Collection, *, count: int) -> Groups:
    """The attributes of the first `count` images in a table, by file name.

    The table is a CSV: its first line has the names of the columns, its first column the file names. Or it has the layout of CelebA's
    list_attr_celeba.txt: the number of rows, then the names, then rows with spaces between the values. Where two files have one name, a
    row says the folder too. Values are 1 and 0, or 1 and -1. Raises ConfigError for images that are no files, and DataError for a table
    that does not fit them.
    """
    if not isinstance(images.items, Member):
        raise ConfigError("attributes", f"{images.name} holds images without file names, which the rows of {path} go by")
    keys = [images.items.describe(k) for k in range(count)]
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; expected a .csv of attributes, or list_attr_celeba.txt")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            names, rows = _table(path, file)
            values = _matched(path, names, rows, keys)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: is no table of attributes ({error})") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {explain(error)}") from error
    return {name: _members(path, name, values[:, k]) for k, name in enumerate(names)}


def _table(path: Path, file: IO[str]) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The names of the attributes, and the rows with the numbers of their lines."""
    first = file.readline()
    rows: Iterator[tuple[int, list[str]]]
    if first.strip().isdecimal():
        names = file.readline().split()
        rows = ((line, cells) for line, cells in enumerate(map(str.split, file), start=3) if cells)
    else:
        reader = csv.reader(itertools.chain((first,), file))
        names = [name.strip() for name in next(reader, [])[1:]]
        rows = ((reader.line_num, cells) for cells in reader if cells)
    if not names or not all(names):
        raise DataError(f"{path}: its first line should name the attributes: file,NAME,NAME and so on")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{path}: has two columns named {twice}")
    return names, rows


def _matched(path: Path, names: list[str], rows: Iterator[tuple[int, list[str]]], keys: list[str]) -> np.ndarray:
    """The values of each image, int8 (images, attributes)."""
    wanted: dict[str, list[int]] = {}
    for k, key in enumerate(keys):
        wanted.setdefault(PurePosixPath(key).name, []).append(k)
    stems = {PurePosixPath(name).stem: "" for name in wanted}
    values, missing = np.zeros((len(keys), len(names)), dtype=np.int8), np.ones(len(keys), dtype=bool)
    for line, (file, *cells) in rows:
        row = PurePosixPath(file.strip())
        found = [k for k in wanted.get(row.name, ()) if PurePosixPath(keys[k]).parts[-len(row.parts) :] == row.parts]
        if row.stem in stems:
            stems[row.stem] = str(row)
        if not found:
            continue
        if len(found) > 1:
            raise DataError(f"{path}, line {line}: {row} may be {keys[found[0]]} or {keys[found[1]]}; write the folder too")
        if not missing[found[0]]:
            raise DataError(f"{path}, line {line}: has a second row for {keys[found[0]]}")
        values[found[0]], missing[found[0]] = _cells(f"{path}, line {line}", row, names, cells), False
    if missing.any():
        key = keys[int(missing.argmax())]
        other = stems[PurePosixPath(key).stem]
        raise DataError(f"{path}: has no row for {key}" + (f"; it has one for {other}" if other else ""))
    return values


def _cells(place: str, row: PurePosixPath, names: list[str], cells: list[str]) -> list[int]:
    if len(cells) != len(names):
        raise DataError(f"{place}: {row} has {counted(len(cells), 'value')}, expected {len(names)}")
    for name, cell in zip(names, cells, strict=True):
        if cell.strip() not in _VALUES:
            raise DataError(f"{place}: {name} of {row} is {cell.strip()!r}, {_EXPECTED}")
    return [_VALUES[cell.strip()] for cell in cells]


def _members(path: Path, name: str, values: np.ndarray) -> np.ndarray:
    if {0, -1} <= set(values.tolist()):
        raise DataError(f"{path}: {name} is 0 for some images and -1 for others, {_EXPECTED}")
    members = values == 1
    check_group(name, members, whose=f"{path}: ")
    return members
