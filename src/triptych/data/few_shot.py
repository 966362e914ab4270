"""Images by class for few-shot translation: content of one class, and style images of another.

Classes are kept for validation as a whole, so that a model meets them there for the first time.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import ClassVar, Literal

import numpy as np

from triptych.core.batch import STYLE, STYLE_LABELS, DataSpec, InputSpec, style_names
from triptych.core.config import config, spelled
from triptych.core.errors import ConfigError, DataError, nearest
from triptych.core.rng import key_of, words
from triptych.core.wording import counted
from triptych.data.config import DataConfig
from triptych.data.files import KINDS
from triptych.data.images import Data, FileImages, ImageSet, Loaded, seed_beside
from triptych.data.naming import divided, hashed, parsed
from triptych.data.skipping import LeftOut, without_bad
from triptych.data.source import FILES, located, open_files


@config
class FewShotDataConfig(DataConfig):
    """Images by class: the content of one, in the style of another class."""

    kind_name: ClassVar = "few-shot"

    class_folder: Literal["first", "deepest"] = "first"
    "Which folder is the class: the first below `path`, or every one that holds images, under its whole name (Greek/character01)."
    held_out: int | tuple[str, ...] | None = None
    "Classes for validation: how many, or their names (or folders above them); None: data.validation_fraction of them, at least 2."
    style_count: int = 1
    "Style images of each sample, all of one class."

    def validate(self) -> None:
        self.require(self.style_count >= 1, "style_count", "at least 1")
        number = self.held_out if isinstance(self.held_out, int) else 2
        self.require(number == 0 or number >= 2, "held_out", "0, or at least 2: the style is of another class than the content")
        self.require(self.held_out != (), "held_out", "a number, names of classes, or nothing")
        self.require(self.labels in ("auto", "folder"), "labels", "auto or folder: folders are the classes")
        self.require(self.label_file is None, "label_file", "nothing: folders are the classes")
        allowed = ("auto", "folder", "tar", "zip", "lmdb")
        self.require(self.source in allowed, "source", f"one of {', '.join(allowed)}: classes are folders of image files")

    def open(self) -> Data:
        path, source = located(self)
        if source not in FILES:
            raise DataError(f"{path}: expected a folder, archive or LMDB of image files in folders of classes, not {source}")
        files, left_out = open_files(path, source)[0], LeftOut.of(self)
        if files.packed() is not None:
            raise DataError(f"{path}: a pack, whose folders are no classes; give the folder or archive that it was made of")
        files = files.part(left_out.kept(files.key, len(files.names)))
        place = str(files.place)
        if not len(files.names):
            raise DataError(f"{place}: no images to train on ({KINDS} in folders of classes)")
        paths = parsed(list(files.names))
        of_file = _class_names(self, paths.parts, place)
        if any(split is not None for split in paths.split):
            if self.held_out is not None:
                raise ConfigError(
                    "data.held_out", f"got {spelled(self.held_out)}, but {place} is split into folders by itself; leave it out"
                )
            training, validation = divided(paths, validation_fraction=self.validation_fraction)
        else:
            kept = np.isin(of_file, _held_out_classes(self, np.unique(of_file).tolist(), place))
            training, validation = np.flatnonzero(~kept), np.flatnonzero(kept)
        names = np.unique(of_file[training]).tolist()
        numbers = {name: k for k, name in enumerate([*names, *(name for name in np.unique(of_file) if name not in names)])}
        labels = np.array([numbers[name] for name in of_file], dtype=np.int64)

        def images(items: np.ndarray, purpose: str) -> FewShotImages:
            _check_classes(of_file[items], f"{place}: for {purpose}", self.style_count)
            opened = FileImages(files, self, channels=self.channels or 3, items=items, labels=labels[items])
            opened.probe()
            return FewShotImages(without_bad(opened, of_one_class=True), style_count=self.style_count)

        train = images(training, "training")
        styles = [InputSpec(name=name, kind="image", channels=train.channels) for name in style_names(self.style_count)]
        spec = DataSpec(
            image_size=self.image_size,
            channels=train.channels,
            num_classes=len(names),
            class_names=tuple(names),
            inputs=(*styles, InputSpec(name=STYLE_LABELS, kind="labels", num_classes=len(names))),
        )
        notes = (*files.notes, *left_out.notes(), *filter(None, [paths.warning]))
        return Data(train, images(validation, "validation") if len(validation) else None, spec, notes)


class FewShotImages(ImageSet):
    """Content images, each with style images of another class: drawn by the position in training, else by the number of the item."""

    def __init__(self, images: ImageSet, *, style_count: int) -> None:
        """`images` have labels; each of their classes has `style_count` images or more."""
        assert images.labels is not None
        super().__init__(images.config, channels=images.channels, items=np.arange(len(images)), labels=images.labels)
        self._images = images
        self._style_count = style_count
        self._classes, counts = np.unique(images.labels, return_counts=True)
        self._members = np.split(np.argsort(images.labels, kind="stable"), np.cumsum(counts)[:-1])

    def key(self, item: int) -> str:
        return self._images.key(item)

    def source_key(self, item: int) -> str:
        return self._images.source_key(item)

    def default_workers(self) -> int:
        return self._images.default_workers()

    def batch(self, items: np.ndarray, positions: np.ndarray | None = None, *, seed: int = 0) -> Loaded:
        content = self._images.batch(items, positions, seed=seed)
        styles = self._styles(items, items if positions is None else positions, seed=0 if positions is None else seed)
        assert content.labels is not None and self.labels is not None
        inputs, bad = {STYLE_LABELS: self.labels[styles[:, 0]]}, dict(content.bad)
        for name, chosen in zip(style_names(self._style_count), styles.T, strict=True):
            style = self._images.batch(chosen, positions, seed=seed_beside(seed, name))
            inputs[name] = style.images
            bad |= style.bad
        return Loaded(content.images, content.labels, inputs, bad)

    def _styles(self, items: np.ndarray, index: np.ndarray, *, seed: int) -> np.ndarray:
        """The style images of these content images, none twice: int64 (b, style_count)."""
        assert self.labels is not None
        drawn = words(index, key=key_of(seed, "data", STYLE), count=1 + self._style_count)
        content_classes = np.searchsorted(self._classes, self.labels[items])
        others = (drawn[:, 0] * (len(self._classes) - 1)) >> 32
        others += others >= content_classes
        chosen = [self._members[k][_distinct(row, len(self._members[k]))] for k, row in zip(others, drawn[:, 1:], strict=True)]
        return np.array(chosen, dtype=np.int64).reshape(len(items), self._style_count)


def _distinct(drawn: np.ndarray, count: int) -> list[int]:
    """A number in 0..count-1 for each word, none twice."""
    taken: list[int] = []
    for word in drawn:
        number = (int(word) * (count - len(taken))) >> 32
        for other in sorted(taken):
            number += number >= other
        taken.append(number)
    return taken


# Opening


def _class_names(config: FewShotDataConfig, parts: list[list[str]], place: str) -> np.ndarray:
    """The class of each file, by name."""
    loose = next((path for path in parts if len(path) < 2), None)
    if loose is not None:
        raise DataError(f"{place}: {loose[-1]} lies in no folder of a class: move it into one")
    return np.array([path[0] if config.class_folder == "first" else "/".join(path[:-1]) for path in parts])


def _held_out_classes(config: FewShotDataConfig, classes: list[str], place: str) -> list[str]:
    """The classes for validation. Raises ConfigError for a name that is none."""
    wanted = config.held_out
    if wanted is None:
        share = max(2, round(config.validation_fraction * len(classes)))
        wanted = share if config.validation_fraction > 0 and len(classes) >= share + 2 else 0
    if isinstance(wanted, int):
        if wanted and wanted > len(classes) - 2:
            held = counted(len(classes), "class", "classes")
            raise ConfigError("data.held_out", f"got {wanted}, but {place} has {held}, of which 2 have to remain")
        order = np.argsort(hashed(classes), kind="stable")
        return [classes[k] for k in order[:wanted]]
    above = {name: {name, *(parent.as_posix() for parent in PurePosixPath(name).parents)} for name in classes}
    names = set().union(*above.values()) - {"."}
    for name in wanted:
        if name not in names:
            raise ConfigError(
                "data.held_out", f"got {name!r}, which is no class in {place}{nearest(name, names)}; give names, a number, or None"
            )
    return [name for name in classes if above[name] & set(wanted)]


def _check_classes(of_file: np.ndarray, where: str, style_count: int) -> None:
    """DataError unless there are two classes or more, each with enough images for a style."""
    names, counts = np.unique(of_file, return_counts=True)
    if len(names) < 2:
        problem = f"there is only class {names[0]}" if len(names) else "there is no class"
        raise DataError(f"{where} {problem}; the style is of another class than the content, so it takes 2 or more")
    if counts.min() < style_count:
        name, count = names[counts.argmin()], counts.min()
        few = f"has {counted(int(count), 'image')}, fewer than data.style_count {style_count}"
        raise DataError(f"{where} class {name} {few}: lower it, or add images")
