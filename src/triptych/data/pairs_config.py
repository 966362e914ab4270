"""The data of image-to-image models: which images belong together, and where they lie."""

from __future__ import annotations

from typing import ClassVar, Literal

from triptych.core.config import config
from triptych.data.config import DataConfig


@config
class PairedDataConfig(DataConfig):
    """Images and what they are to be made from, file by file: PATH/train/TYPE/..., PATH/val/TYPE/..., or PATH/TYPE/... without a split."""

    kind_name: ClassVar = "paired"

    width: int | None = None
    "Width of the images, where it is not image_size, which is then their height alone."
    target: str = "images"
    "Folder of the images to be made."
    maps: tuple[str, ...] = ()
    "Folders of class maps: a number for each pixel, in grey or with a palette."
    num_classes: tuple[int, ...] = ()
    "Number of classes of each folder of maps."
    dont_care: bool = False
    "Ignore pixels of any other class: they become class num_classes, the ignore index. Without this they are an error."
    instances: str | None = None
    "Folder of instance maps: the number of the object that each pixel belongs to, of 8 or 16 bits."
    conditions: tuple[str, ...] = ()
    "Folders of other images to make them from (edges, sketches, photos of another season)."

    def validate(self) -> None:
        self.require(self.width is None or self.width >= 1, "width", "at least 1, or nothing")
        folders = [self.target, *self.maps, *self.conditions, *([] if self.instances is None else [self.instances])]
        for setting, names in (("target", (self.target,)), ("maps", self.maps), ("conditions", self.conditions)):
            self.require(all(map(_is_name, names)), setting, "names of folders, without a slash")
        self.require(self.instances is None or _is_name(self.instances), "instances", "the name of a folder, without a slash, or nothing")
        self.require(len(folders) > 1, "maps", "the folder of the class maps, unless there are data.instances or data.conditions")
        self.require(len(set(folders)) == len(folders), "maps", f"folders that differ from one another ({', '.join(folders)})")
        counted = len(self.num_classes) == len(self.maps) and all(count >= 1 for count in self.num_classes)
        self.require(counted, "num_classes", f"the number of classes of each of data.maps, {len(self.maps)} in all")
        self.require(self.augment == "none", "augment", "none: pairs are varied by data.crop, data.scale, data.flip and data.jitter")
        self.require(self.pad == 0, "pad", "0: maps have no darkest pixel")
        self.require(self.source in ("auto", "folder", "lmdb"), "source", "auto, folder or lmdb: pairs lie in folders by type")
        self.require(self.labels in ("auto", "none"), "labels", "auto or none: pairs have no classes")


@config
class UnpairedDataConfig(DataConfig):
    """Images of two domains, without pairs."""

    kind_name: ClassVar = "unpaired"
    changeable: ClassVar = DataConfig.changeable | {"a", "b"}

    a: str = "images_a"
    "Images of domain A: a folder in `path` (or in its train and val) or another place; whatever a path of images may be."
    b: str = "images_b"
    "Images of domain B, likewise."

    def validate(self) -> None:
        for setting in ("a", "b"):
            self.require(getattr(self, setting) not in ("", "."), setting, "the name of a folder, or a path")
        self.require(self.a != self.b, "b", f"another place than data.a, {self.a!r}")
        self.require(self.labels in ("auto", "none"), "labels", "auto or none: the classes of the domains are not looked at")


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
        allowed = ("auto", "folder", "tar", "zip", "lmdb")
        self.require(self.source in allowed, "source", f"one of {', '.join(allowed)}: classes are folders of image files")


def _is_name(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name
