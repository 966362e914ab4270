"""Images in Parquet files, as Hugging Face's data sets have them: a row for each, with the bytes of its file in one of the columns.

That column is a struct of bytes and path, or binary. A column of classes may stand beside it, with their names in the metadata. A row group
is read at a time and kept for a while, as far as memory was set aside for that; so files of small groups are read at random as fast as
others are. The files are read by pyarrow (pip install "triptych[parquet]").
"""

from __future__ import annotations

import importlib
import os
import re
from collections import Counter, OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from triptych.core.address import Place
from triptych.core.errors import DataError, one_line
from triptych.core.reading import MOST_CLASSES, open_regular, parsed_json
from triptych.data.arrays import numerals
from triptych.data.files import MOST_BYTES, Files, is_image
from triptych.data.naming import LABELS, Classes
from triptych.data.shards import members_of, splits_of

SUFFIX = ".parquet"
_CACHED = 2**28  # bytes of row groups in memory, in each process; one is kept however large it is
_MOST_IN_A_GROUP = 2**31  # bytes
_MOST_OPEN = 128
_IMAGES = ("image", "img", "jpg", "jpeg", "png", "webp")
_CLASSES = ("label", "labels", "cls", "class", "fine_label")
_REPAIR = "copy or make the file again"


class Table(Files):
    """The images in the rows of one or several Parquet files."""

    def __init__(self, place: Path, paths: list[Path]) -> None:
        """Raises DataError for what is damaged, and where nothing says which column has the images."""
        self._library, self._paths = _pyarrow(place), paths
        self._process, self._files, self._groups = os.getpid(), OrderedDict[int, Any](), OrderedDict[tuple[int, int], Any]()
        schema = self._schema(0)
        self._image, self._is_struct = _image_column(paths[0], schema)
        label, class_names = _label_column(schema)
        rows, said, labels = [], list[str | None](), list[int]()
        for number, split in enumerate(splits_of([path.name for path in paths])):
            for column in (self._image, label) if number else ():
                self._check_column(number, column, schema)
            for group, count in enumerate(self._group_sizes(number)):
                names, classes = self._said(number, group, count, label)
                rows += [(number, group, row) for row in range(count)]
                said += [name if name is None else f"{split}{name}" for name in names]
                labels += classes
        usable = all(name is not None and is_image(name) for name in said) and len(set(said)) == len(said)
        plain = [name or "" for name in said] if usable else _numbered([path.name for path in paths], rows)
        order = sorted(range(len(rows)), key=lambda k: plain[k].split("/"))
        super().__init__(place, [plain[k] for k in order])
        self._rows = np.array(rows, dtype=np.int64).reshape(-1, 3)[order]
        self._firsts = [np.cumsum([0, *self._group_sizes(number)]) for number in range(len(paths))]
        try:
            self._labels, self._class_names = (None if label is None else np.array(labels, dtype=np.int64)[order]), class_names
        except OverflowError:
            raise DataError(f"{place}: holds the class {max(labels)}, expected 0 to {MOST_CLASSES - 1}") from None

    def _check_column(self, number: int, name: str | None, schema: Any) -> None:
        """DataError where a file lacks a column of the first one, or has it of another type."""
        own = self._schema(number)
        if name is not None and (name not in own.names or own.field(name).type != schema.field(name).type):
            has = f"its column {name} is of another type than" if name in own.names else f"has no column {name}, unlike"
            raise DataError(f"{self._paths[number]}: {has} that of {self._paths[0].name}; give files of the same columns")

    def describe(self, k: int) -> str:
        number, group, row = self._rows[k].tolist()
        return f"{self._paths[number]}: row {int(self._firsts[number][group]) + row}"

    def read(self, k: int) -> bytes:
        number, group, row = self._rows[k].tolist()
        found = self._group(number, group)[row].as_py()
        if not found:
            raise DataError(f"{self.describe(k)}: has no bytes in its column {self._image}; write the images themselves into the file")
        if len(found) > MOST_BYTES:
            raise DataError(f"{self.describe(k)}: larger than {MOST_BYTES:,} bytes; leave it out")
        return found

    def classes(self) -> Classes | None:
        return None if self._labels is None else _classes(self.place, self._labels, self._class_names)

    def _file(self, number: int) -> Any:
        if self._process != os.getpid():  # a loader process opens the files anew
            self._process, self._files, self._groups = os.getpid(), OrderedDict(), OrderedDict()
        if number not in self._files:
            while len(self._files) >= _MOST_OPEN:
                self._files.popitem(last=False)[1].close()
            try:
                os.close(open_regular(self._paths[number]))
                self._files[number] = self._library.ParquetFile(str(self._paths[number]), memory_map=True)
            except Exception as error:  # pyarrow's are of many types
                raise _failure(self._paths[number], error) from error
        self._files.move_to_end(number)
        return self._files[number]

    def _schema(self, number: int) -> Any:
        found = self._file(number).schema_arrow
        twice = next((name for name, count in Counter(found.names).items() if count > 1), None)
        if twice is not None:
            raise DataError(f"{self._paths[number]}: has several columns called {twice}; give each a name of its own")
        return found

    def _group_sizes(self, number: int) -> list[int]:
        found = self._file(number).metadata
        return [found.row_group(group).num_rows for group in range(found.num_row_groups)]

    def _said(self, number: int, group: int, count: int, label: str | None) -> tuple[list[str | None], list[int]]:
        """The paths of the `count` images in a group, None for those without, and their classes, -1 for none; the images are not read."""
        columns = [*([f"{self._image}.path"] if self._is_struct else []), *([] if label is None else [label])]
        read = self._columns(number, group, columns) if columns else None
        names: list[str | None] = [None] * count
        if read is not None and self._image in read.column_names:
            names = [each and each.get("path") for each in read.column(self._image).to_pylist()]
        classes = [] if read is None or label is None else [-1 if each is None else each for each in read.column(label).to_pylist()]
        return names, classes

    def _group(self, number: int, group: int) -> Any:
        """The encoded images of a row group, an array of binary values."""
        self._file(number)
        place = (number, group)
        if place not in self._groups:
            column = self._columns(number, group, [f"{self._image}.bytes" if self._is_struct else self._image]).column(self._image)
            found = column.combine_chunks()
            found = found.chunk(0) if hasattr(found, "chunk") else found
            self._groups[place] = found.field("bytes") if self._is_struct else found
            while len(self._groups) > 1 and sum(each.nbytes for each in self._groups.values()) > _CACHED:
                self._groups.popitem(last=False)
        self._groups.move_to_end(place)
        return self._groups[place]

    def _columns(self, number: int, group: int, columns: list[str]) -> Any:
        path, file = self._paths[number], self._file(number)
        try:
            if file.metadata.row_group(group).total_byte_size > _MOST_IN_A_GROUP:
                raise DataError(f"{path}: a row group of more than {_MOST_IN_A_GROUP:,} bytes; write the file with fewer rows to a group")
            read = file.read_row_group(group, columns=columns, use_threads=False)
            read.validate(full=True)
            return read
        except DataError:
            raise
        except Exception as error:
            raise _failure(path, error) from error


def open_parquet(path: Path, paths: list[Path] | None = None) -> Table:
    """The images of a Parquet file, of all those in a folder, or of those at `paths`. Raises DataError."""
    if paths is None:
        paths = members_of(path, (SUFFIX,)) if path.is_dir() else [path]
    if len({each.name for each in paths}) < len(paths):
        raise DataError(f"{path}: stands for files of one name in several folders, which tells their rows apart; rename them")
    if not paths:
        raise DataError(f"{path}: not a file, nor a folder of {SUFFIX} files, but data.source is parquet")
    return Table(path, paths)


def _pyarrow(place: Path) -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise DataError(f"{place}: Parquet files are read by pyarrow, which is not installed: pip install 'triptych[parquet]'") from None


def _failure(path: Path, error: Exception) -> DataError:
    return error if isinstance(error, DataError) else DataError(f"{path}: cannot be read as Parquet ({one_line(error)}); {_REPAIR}")


def _image_column(path: Path, schema: Any) -> tuple[str, bool]:
    """The column of the images, and whether it is a struct of bytes and path."""
    types = {name: str(schema.field(name).type) for name in schema.names}
    structs = [name for name, kind in types.items() if re.match(r"struct<.*\bbytes: (large_)?binary\b", kind)]
    plain = [name for name, kind in types.items() if kind in ("binary", "large_binary")]
    for found in (structs, plain):
        named = [name for name in _IMAGES if name in found] or found
        if len(found) == 1 or (named and named[0] in _IMAGES):
            return named[0], found is structs
    held = ", ".join(f"{name} ({kind[:40]})" for name, kind in types.items())
    raise DataError(f"{path}: holds {held or 'no columns'}, expected one with images, image: a struct of bytes and path, or binary")


def _label_column(schema: Any) -> tuple[str | None, tuple[str, ...] | None]:
    """The column of the classes, None for none, and their names, where the metadata of Hugging Face's data sets say them."""
    features: Any = {}
    with suppress(KeyError, TypeError, ValueError):
        features = parsed_json((schema.metadata or {})[b"huggingface"])["info"]["features"]
    whole = [name for name in schema.names if re.fullmatch(r"u?int(8|16|32|64)", str(schema.field(name).type))]
    for name in sorted(whole, key=lambda name: name not in _CLASSES):
        feature = features.get(name) if isinstance(features, dict) else None
        names = feature.get("names") if isinstance(feature, dict) else None
        if isinstance(names, list) and all(isinstance(each, str) for each in names):
            return name, tuple(names)
    return next((name for name in _CLASSES if name in whole), None), None


def _classes(place: Place, labels: np.ndarray, names: tuple[str, ...] | None) -> Classes | None:
    """The classes; None where all are -1, as where they are kept secret. Raises DataError for one that is none."""
    if (labels == -1).all():
        return None
    most = MOST_CLASSES if names is None else len(names)
    if labels.min() < 0 or labels.max() >= most:
        wrong = labels[(labels < 0) | (labels >= most)][0]
        reason = f"{place}: holds the class {wrong}, expected 0 to {most - 1}"
        raise DataError(reason, advice="set {} to none, or mend the file", setting=LABELS)
    return Classes(labels, numerals(labels, str(place)) if names is None else names, numbered=names is None)


def _numbered(files: list[str], rows: list[tuple[int, int, int]]) -> list[str]:
    """Names for rows that have none: the file, and the number there."""
    count, names = dict.fromkeys(range(len(files)), 0), list[str]()
    splits = splits_of(files)
    for number, _, _ in rows:
        names.append(f"{splits[number]}{files[number].removesuffix(SUFFIX)}-{count[number]:09d}")
        count[number] += 1
    return names
