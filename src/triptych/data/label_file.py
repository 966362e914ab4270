"""Classes by a text file: those of images that lie in no sub-folder, as ImageNet's for validation do.

Each line has the class of an image: alone, in the order of the names of the images that lie in no sub-folder (the ground truth of
ImageNet's development kit), or behind the name of an image and a space, a tab, a comma or a semicolon (val.txt of Caffe,
LOC_val_solution.csv of Kaggle). Images in sub-folders that no line names have the class of their folder, so the classes of flat images
meet those of a training folder by their names. Where the lines have numbers, a second file may say the names: of the number behind each
name (map_clsloc.txt), else of 0, 1 and so on, one in each line (synset_words.txt). Of ImageNet's development kit that is meta.mat.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from triptych.core.errors import ConfigError, DataError, nearest
from triptych.core.files import explain
from triptych.core.reading import read_regular, user_path
from triptych.core.wording import counted
from triptych.data.config import DataConfig
from triptych.data.dataset_json import file_classes
from triptych.data.files import Files
from triptych.data.matlab import read_structs
from triptych.data.naming import TRAINING, Classes, Paths, held_out_folder, parsed
from triptych.data.unicode_forms import other_form

_MOST_BYTES = 2**28
_LONGEST, _SHOWN = 255, 60  # characters: of the name of a class, and in messages
_BOXES = re.compile(r"(\S+)(?: -?\d+){4}\b")
"""Kaggle's lines: a class and the corners of a box, perhaps of several."""
_HEADER = ("imageid", "image_id", "image", "filename", "file_name", "file", "name", "path")
"""What the first line of a table may begin with that names no image."""


def classes_by(config: DataConfig, files: Files, paths: Paths, *, empty: Sequence[str] = ()) -> Classes | None:
    """The classes of image files as `config` says: by its text file where there is one, else as `file_classes` has them."""
    if config.label_file is None:
        return file_classes(files, paths, scheme=config.labels, empty=list(empty))
    if files.packed() is not None:
        raise not_for(config, f"{files.place.name} is a pack, which has the labels it was packed with")
    said = read_labels(config.label_file)
    return _text_classes(files, said if config.class_file is None else _named(said, config.class_file))


def not_for(config: DataConfig, reason: str) -> ConfigError:
    """The refusal of a text file with the classes of images that have others."""
    return ConfigError("data.label_file", f"got {config.label_file!r}, but {reason}; leave it out")


@dataclass(frozen=True)
class Labels:
    """What a file of labels says."""

    file: str
    lines: list[int]
    "Number of each line that has a class."
    words: list[str]
    "The classes."
    names: list[str] | None
    "The images; None: they are in the order of the images' names."


def read_labels(path: str) -> Labels:
    """The classes in a text file. Raises DataError for a file that has none, and for a line with another form than the others."""
    lines = _lines(path)
    semicolons = _by_semicolons([text for _, text in lines])
    found = [_fields(text, (";",) if semicolons else ("\t", ",")) for _, text in lines]
    if len(found) > 1 and found[0][0] is not None and found[0][0].lower() in _HEADER:
        lines, found = lines[1:], found[1:]
    named = [name is not None for name, _ in found]
    if any(named) and not all(named):
        number = lines[named.index(not named[0])][0]
        raise DataError(f"{path}: line {number} has {'a' if not named[0] else 'no'} name before its class, unlike line {lines[0][0]}")
    names = [name for name, _ in found if name is not None]
    wrong = next((k for k, (_, word) in enumerate(found) if not 0 < len(word) <= _LONGEST), None)
    if wrong is not None:
        raise DataError(f"{path}: line {lines[wrong][0]} has {'no class' if not found[wrong][1] else 'a class of too many letters'}")
    return Labels(path, [number for number, _ in lines], [word for _, word in found], names or None)


def _lines(path: str) -> list[tuple[int, str]]:
    """The lines that are not empty, by their numbers from 1 on. Raises DataError where there is none."""
    place = user_path(path)
    try:
        text = read_regular(place, most=_MOST_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{place}: cannot be read ({explain(error)})") from error
    except UnicodeDecodeError:
        raise DataError(f"{place}: no text in UTF-8; expected a line with its class for each image") from None
    found = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not found:
        raise DataError(f"{place}: holds no lines; expected one with its class for each image")
    return found


def _by_semicolons(lines: Sequence[str]) -> bool:
    """Whether fields end with semicolons, as where commas are decimal: all lines have one, and not all of them a tab or a comma."""
    return all(";" in line for line in lines) and not any(all(other in line for line in lines) for other in ("\t", ","))


def _fields(line: str, separators: Sequence[str]) -> tuple[str | None, str]:
    """The image that a line names, None for none, and its class."""
    for separator in separators:
        if separator in line:
            name, _, rest = line.partition(separator)
            boxes = _BOXES.match(rest.strip())
            return name.strip().strip('"'), boxes[1] if boxes else rest.partition(separator)[0].strip().strip('"')
    name, _, word = line.rpartition(" ")
    return (name.strip() or None), word


def _text_classes(files: Files, said: Labels) -> Classes:
    """The class of each file, -1 in folders of a split that no one uses. Raises DataError for one without, and for a line about none."""
    everything = sorted({*files.names, *files.left_out}, key=lambda name: name.split("/")) if files.left_out else list(files.names)
    paths = parsed(everything)
    unused = {name for name in paths.split if name is not None} - {TRAINING, held_out_folder(filter(None, set(paths.split)))}
    used = [k for k, split in enumerate(paths.split) if split not in unused]
    flat = [k for k in used if len(paths.parts[k]) == 1]
    folders = [path[0] if flat and len(path) > 1 else None for path in paths.parts]
    known = {folders[k] for k in used} - {None}
    said = said if known else _one_word_each(said)
    given = dict(_given(said, everything, paths.parts, used, flat or used))
    of_name: dict[str, str] = {}
    for k in used:
        name, word = everything[k], given.get(k, folders[k])
        if word is None:
            raise DataError(f"{said.file}: has no class for {name}; add a line, or leave the image out")
        if known and word not in known:
            hint = "; data.class_file may say the names of numbers" if word.isdecimal() else nearest(word, filter(None, known))
            raise DataError(f"{said.file}: says {word[:_SHOWN]} for {name}, but no sub-folder is called so{hint}")
        of_name[name] = word
    return _distinct([of_name.get(name) for name in files.names])


def _one_word_each(said: Labels) -> Labels:
    """The labels with one word for each number, where all are numbers: 01 is 1."""
    words = set(said.words)
    if not all(map(str.isdecimal, words)) or len(set(map(int, words))) == len(words):
        return said
    return replace(said, words=[str(int(word)) for word in said.words])


def _given(said: Labels, everything: list[str], parts: list[list[str]], used: list[int], flat: list[int]) -> Iterable[tuple[int, str]]:
    """The places of the images that have a line, and the class there. `flat`: of those that may be called by their name alone."""
    if said.names is None:
        if len(said.words) != len(flat):
            alone = ("", "") if len(flat) == len(used) else (" that lies in no sub-folder", " that lie in no sub-folder")
            there = counted(len(flat), f"image{alone[0]}", f"images{alone[1]}")
            reason = f"has {counted(len(said.words), 'line')}, but there {'is' if len(flat) == 1 else 'are'} {there}"
            raise DataError(f"{said.file}: {reason}; give one for each, in the order of their names, or write the names before the classes")
        _check_classes(said, {parts[k][-1] for k in flat})
        return zip(flat, said.words, strict=True)
    return _by_name(said, said.names, everything, parts, used, set(flat))


def _check_classes(said: Labels, names: set[str]) -> None:
    """Raises DataError where each line is a class of its own that begins with the name of an image."""
    endings = {name.rpartition(".")[2] for name in names}
    for word in said.words:
        ends = (word.find(f".{ending}") + 1 + len(ending) for ending in endings if f".{ending}" in word)
        if not any(word[:end].lstrip('"').rpartition("/")[2] in names for end in ends):
            return
    if len(set(said.words)) == len(said.words) > 1:
        reason = f"line {said.lines[0]} begins with the name of an image, but has no class that could be told from it"
        raise DataError(f"{said.file}: {reason}; write a space, a tab, a comma or a semicolon between them")


def _by_name(
    said: Labels, names: list[str], everything: list[str], parts: list[list[str]], used: list[int], flat: set[int]
) -> Iterable[tuple[int, str]]:
    rows: dict[str, int] = {}
    for row, name in enumerate(names):
        earlier = rows.setdefault(name.removeprefix("./"), row)
        if said.words[earlier] != said.words[row]:
            raise DataError(f"{said.file}: lines {said.lines[earlier]} and {said.lines[row]} have two classes for {name[:_SHOWN]}")
    of_row: dict[int, int] = {}
    for k in used:
        row = next((rows[form] for form in _forms(everything[k], parts[k], k in flat) if form in rows), None)
        if row is None:
            continue
        if row in of_row:
            both = f"{everything[of_row[row]]} and {everything[k]}"
            raise DataError(f"{said.file}: line {said.lines[row]} names two images, {both}; write their paths")
        of_row[row] = k
    absent = next((row for row in sorted(rows.values()) if row not in of_row), None)
    if absent is not None:
        forms = {form for k in used for form in _forms(everything[k], parts[k], k in flat)}
        form = other_form(names[absent].removeprefix("./"), forms)
        raise DataError(f"{said.file}: line {said.lines[absent]} names {names[absent][:_SHOWN]}, but there is no such image{form}")
    return [(k, said.words[row]) for row, k in of_row.items()]


def _forms(name: str, parts: list[str], flat: bool) -> list[str]:
    """What an image may be called, the longest first."""
    forms = [name, "/".join(parts), *([parts[-1]] if flat else [])]
    return forms + [form.rpartition(".")[0] for form in forms]


def _named(said: Labels, class_file: str) -> Labels:
    """The labels by the names of their classes. Raises DataError for a number, or a name, that the file of classes lacks."""
    rows = _of_kit(class_file) if class_file.lower().endswith(".mat") else [text.split(None, 2) for _, text in _lines(class_file)]
    numbered = all(len(row) > 1 and row[1].isdecimal() for row in rows)
    names = {row[1].lstrip("0") or "0" if numbered else str(k): row[0] for k, row in enumerate(rows)}
    own = set(names.values())
    if len(own) < len(rows):
        raise DataError(f"{class_file}: has a number or a name of a class twice; expected one line for each class")
    words: list[str] = []
    for line, word in zip(said.lines, said.words, strict=True):
        name = word if word in own else names.get(word.lstrip("0") or "0")
        if name is None:
            held = f"{counted(len(names), 'class', 'classes')}, from {rows[0][0]} with the number {rows[0][1] if numbered else 0}"
            raise DataError(f"{said.file}: line {line} has the class {word[:_SHOWN]}, which is not in {class_file} ({held})")
        words.append(name)
    return replace(said, words=words)


def _of_kit(file: str) -> list[list[str]]:
    """Name and number of each class of ImageNet's development kit, in meta.mat. Raises DataError for another file."""
    found = read_structs(user_path(file), "synsets", ("WNID", "ILSVRC2012_ID"))
    rows = [
        [name, f"{number:.0f}"] for name, number in found if isinstance(name, str) and name and isinstance(number, float) and number >= 1
    ]
    if len(rows) < len(found) or not rows:
        raise DataError(f"{file}: {len(rows):,} of its {len(found):,} synsets have a WNID and an ILSVRC2012_ID; expected all")
    return rows


def _distinct(words: list[str | None]) -> Classes:
    """Classes in the order of their names, or of their numbers where all are numbers; of None the label is -1."""
    distinct = sorted({word for word in words if word is not None})
    if all(word.isdecimal() for word in distinct):
        distinct.sort(key=int)
    places: dict[str | None, int] = {word: k for k, word in enumerate(distinct)}
    return Classes(np.fromiter((places.get(word, -1) for word in words), dtype=np.int64, count=len(words)), tuple(distinct))
