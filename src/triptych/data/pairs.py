"""Pairs: images, and the class maps, instance maps and other images that they are to be made from, all cut alike.

The members of a pair have the same sub-folders and stem in the folder of their type, and the same size. All go through one fit: the
images by halvings and a bicubic resize, the maps and what `nearest` names by one resize to the nearest pixel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np

from triptych.core.batch import DataSpec, InputSpec
from triptych.core.config import config
from triptych.core.errors import DataError, nearest
from triptych.data.config import DataConfig
from triptych.data.cut import Cut
from triptych.data.database import is_database, open_database
from triptych.data.decode import header_channels
from triptych.data.files import KINDS, Files, is_image, listed, open_folder
from triptych.data.images import Data, ImageSet, Loaded
from triptych.data.naming import TRAINING, held_out, held_out_folder
from triptych.data.skipping import LeftOut, without_bad
from triptych.data.source import existing_path
from triptych.data.stored import PROBED, BadImage, Member, evenly_spaced, measure, named, of_one_size, probe, read
from triptych.data.transforms import draw, mirror, recolour
from triptych.data.unicode_forms import other_form

_MAPS = 16
"""Pairs whose maps are read before training begins."""
REMEDY = "raise data.num_classes, or set data.dont_care (or data.blank) to true"


@config
class PairedDataConfig(DataConfig):
    """Images and what they are to be made from, file by file: PATH/train/TYPE/..., PATH/val/TYPE/..., or PATH/TYPE/... without a split."""

    kind_name: ClassVar = "paired"
    unwritten: ClassVar = DataConfig.unwritten | {"blank", "nearest"}

    width: int | None = None
    "Width of the images, where it is not image_size, which is then their height alone. None: as the height."
    target: str = "images"
    "Folder of the images to be made."
    maps: tuple[str, ...] = ()
    "Folders of class maps: a number for each pixel, in grey or with a palette."
    num_classes: tuple[int, ...] = ()
    "Number of classes of each folder of maps."
    dont_care: bool = False
    "Ignore pixels of any other class: they become class num_classes, the ignore index. Without this they are an error."
    blank: bool = False
    "Pixels of any other class have none: all channels of their map are 0, and there is no channel more as with data.dont_care."
    instances: str | None = None
    "Folder of instance maps: the number of the object that each pixel belongs to, of 8 or 16 bits. None: none."
    conditions: tuple[str, ...] = ()
    "Folders of other images to make them from (edges, sketches, photos of another season)."
    nearest: tuple[str, ...] = ()
    "Those of data.conditions that are resized to the nearest pixel, as maps are: what is black and white gets no grey."

    def validate(self) -> None:
        self.require(self.width is None or self.width >= 1, "width", "at least 1, or nothing")
        folders = [self.target, *self.maps, *self.conditions, *([] if self.instances is None else [self.instances])]
        for setting, names in (("target", (self.target,)), ("maps", self.maps), ("conditions", self.conditions)):
            self.require(all(map(_is_name, names)), setting, "names of folders, without a slash")
        self.require(self.instances is None or _is_name(self.instances), "instances", "the name of a folder, without a slash, or nothing")
        some = len(folders) > 1 or bool(self.further_maps)
        self.require(some, "maps", "the folder of the class maps, unless there are data.instances, data.conditions or other maps")
        self.require(len(set(folders)) == len(folders), "maps", f"folders that differ from one another ({', '.join(folders)})")
        self.require(set(self.nearest) <= set(self.conditions), "nearest", "some of data.conditions")
        self.require(not (self.blank and self.dont_care), "blank", "false with data.dont_care, by which such pixels have a channel")
        counted = len(self.num_classes) == len(self.maps) and all(count >= 1 for count in self.num_classes)
        self.require(counted, "num_classes", f"the number of classes of each of data.maps, {len(self.maps)} in all")
        self.require(self.augment == "none", "augment", "none: pairs are varied by data.crop, data.scale, data.flip and data.jitter")
        self.require(self.pad == 0, "pad", "0: maps have no darkest pixel")
        self.require(self.source in ("auto", "folder", "lmdb"), "source", "auto, folder or lmdb: pairs lie in folders by type")
        self.require(self.labels in ("auto", "none"), "labels", "auto or none: pairs have no classes")
        self.require(self.label_file is None, "label_file", "nothing: pairs have no classes")

    @property
    def further_maps(self) -> tuple[str, ...]:
        """Folders of maps beside those of all pairs: none."""
        return ()

    @property
    def truth_folder(self) -> str:
        """Where the image is that a model should make of each input."""
        return self.target

    def open(self) -> Data:
        path = existing_path(self)
        train_root, held_root = roots(self, path)
        keys, files, numbers = matched(train_root, folder_settings(self))
        specs = specs_of(self, files, numbers)
        members = [member_of(spec, files, numbers, path, train_root) for spec in specs]
        left_out = LeftOut.of(self)
        kept = left_out.kept_pairs([member.key for member in members], len(keys))
        if held_root is None:
            chosen, rest = (kept[part] for part in held_out([keys[k] for k in kept], fraction=self.validation_fraction))
            held_members = members
        else:
            held_keys, held_files, held_numbers = matched(held_root, folder_settings(self))
            held_members = [member_of(spec, held_files, held_numbers, path, held_root) for spec in specs]
            rest = left_out.kept_pairs([member.key for member in held_members], len(held_keys))
            chosen, rest = kept, rest if self.validation_fraction > 0 else rest[:0]
        if not len(chosen):
            raise DataError(f"{train_root}: no pairs to train on, for data.skip leaves all of them out")
        train = self.images(members, chosen)
        validation = self.images(held_members, rest) if len(rest) else None
        for images in (train, validation):
            if images is not None:
                images.probe()
        width = None if self.width == self.image_size else self.width
        spec = DataSpec(image_size=self.image_size, width=width, channels=train.channels, inputs=tuple(specs[1:]))
        notes = (*(note for one in files.values() for note in one.notes), *left_out.notes())
        return Data(without_bad(train), None if validation is None else without_bad(validation), spec, notes)

    def images(self, members: Sequence[Member], items: np.ndarray) -> PairedImages:
        """Some of the pairs of these files."""
        return PairedImages(members, self, items=items)


def member_of(spec: InputSpec, files: Mapping[str, Files], numbers: Mapping[str, np.ndarray], path: Path, root: Path) -> Member:
    """The files of a type, of the pairs in a folder of the source at `path`."""
    return Member(spec, files[spec.name], numbers[spec.name], folder=(root / spec.name).relative_to(path).as_posix())


def _is_name(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name


class PairedImages(ImageSet):
    """Pairs, decoded when they are asked for; the first member is the images to be made."""

    config: PairedDataConfig

    def __init__(self, members: Sequence[Member], config: PairedDataConfig, *, items: np.ndarray) -> None:
        super().__init__(config, channels=members[0].spec.channels or 3, items=items, labels=None)
        self._members, self._cut = tuple(members), Cut.of(config, width=config.width)

    def key(self, item: int) -> str:
        return self._members[0].describe(int(self._items[item]))

    def source_key(self, item: int) -> str:
        return self._members[0].key(int(self._items[item]))

    def batch(self, items: np.ndarray, positions: np.ndarray | None = None, *, seed: int = 0) -> Loaded:
        draws = draw(positions, self.config, seed=seed)
        cut = self._load(items, draws.crop, self._members)
        for member in self._members:
            values = cut[member.spec.name]
            mirror(values if values.dtype == np.uint8 else values[..., None].view(np.uint8), draws.flip)
            if draws.jitter is not None and is_coloured(member.spec, self._members[0].spec):
                recolour(values, draws.jitter, amount=self.config.jitter)
        images = cut.pop(self._members[0].spec.name)
        return Loaded(images, None, cut)

    def probe(self) -> None:
        """Reads the headers of some pairs, and the maps of a few, so that what is wrong shows before training. Raises DataError."""

        def sizes(item: int) -> None:
            pair = int(self._items[item])
            of_one_size(self._members, pair, [measure(member, pair, self._cut.checked) for member in self._members])

        maps = [member for member in self._members if member.spec.kind != "image"]
        probe(evenly_spaced(len(self), PROBED), sizes, on_error=self.config.on_error, skips=self.config.skips)
        if maps:
            probe(
                evenly_spaced(len(self), _MAPS),
                lambda item: self._load(np.array([item]), None, maps),
                on_error=self.config.on_error,
                skips=self.config.skips,
            )

    def _load(self, items: np.ndarray, crop: np.ndarray | None, members: Sequence[Member]) -> dict[str, np.ndarray]:
        """The members by name: uint8 images (b, h, w, c) and int64 maps (b, h, w)."""
        shape = (len(items), *self._cut.height_and_width)
        cut = {member.spec.name: empty(member.spec, shape) for member in members}
        for k, item in enumerate(items):
            pair, drawn = int(self._items[item]), None if crop is None else crop[k]
            sized = [read(member, pair, member.spec, self._cut.checked, drawn, remedy=REMEDY) for member in members]
            for member, values in zip(members, of_one_size(members, pair, sized), strict=True):
                cut[member.spec.name][k] = values
        return cut


def is_coloured(spec: InputSpec, target: InputSpec) -> bool:
    """Whether jitter applies: to the images to be made and to others in colour, not to maps, edges and poses."""
    return spec.stored == "pixels" and spec.kind == "image" and (spec == target or spec.channels == 3)


def empty(spec: InputSpec, shape: tuple[int, ...]) -> np.ndarray:
    """Room for images (*shape, c) of uint8, for maps of this shape, or for DensePose (..., 3, h, w) of float32."""
    if spec.stored == "densepose":
        return np.empty((*shape[:-2], 3, *shape[-2:]), dtype=np.float32)
    return np.empty((*shape, spec.channels or 3), dtype=np.uint8) if spec.kind == "image" else np.empty(shape, dtype=np.int64)


# Opening


def roots(config: PairedDataConfig, path: Path) -> tuple[Path, Path | None]:
    """The folders that hold those of the types, for training and for validation; the latter None: it is part of the former."""
    if not path.is_dir():
        raise DataError(f"{path}: not a folder; give the one that holds {config.target}, or {TRAINING}/{config.target} (data.target)")
    if (path / TRAINING / config.target).is_dir():
        held = held_out_folder(name for name in listed(path) if (path / name / config.target).is_dir())
        return path / TRAINING, None if held is None else path / held
    if (path / config.target).is_dir():
        return path, None
    raise DataError(
        f"{path}: holds neither {config.target}/ nor {TRAINING}/{config.target}/ with the images to be made (data.target)"
        f"{nearest(config.target, listed(path))}"
    )


def folder_settings(config: PairedDataConfig) -> dict[str, str]:
    """The setting that named each folder."""
    named = {config.target: "data.target"} | dict.fromkeys(config.maps, "data.maps")
    if config.instances is not None:
        named[config.instances] = "data.instances"
    return named | dict.fromkeys(config.conditions, "data.conditions")


def matched(root: Path, types: Mapping[str, str]) -> tuple[list[str], dict[str, Files], dict[str, np.ndarray]]:
    """Sub-folders and stem of each pair; for each type its files, and which of them belong to the pairs. Raises DataError.

    `types`: the folder of each type, and what it is, for messages; pairs are in the order of the first one's files.
    """
    files = open_types(root, types, folder=lambda path: open_folder(path)[0])
    return agreed(root, files, {name: stems(images) for name, images in files.items()})


def open_types(root: Path, types: Mapping[str, str], *, folder: Callable[[Path], Files]) -> dict[str, Files]:
    """The files of each type, of one that is no LMDB opened by `folder`. Raises DataError where one is missing or empty."""
    files = dict[str, Files]()
    for name, meaning in types.items():
        if not (root / name).is_dir():
            raise DataError(f"{root}: holds no folder {name} ({meaning}){nearest(name, listed(root))}")
        files[name] = open_database(root / name) if is_database(root / name) else folder(root / name)
    first = next(iter(types))
    if not len(files[first].names):
        raise DataError(f"{root / first}: holds no images ({KINDS} are looked for)")
    return files


def agreed(
    root: Path, files: dict[str, Files], by_stem: Mapping[str, dict[str, int]]
) -> tuple[list[str], dict[str, Files], dict[str, np.ndarray]]:
    """What `matched` gives, of the number of each file by its name. Raises DataError for one that another type lacks."""
    first = next(iter(files))
    keys = list(by_stem[first])
    for name in files:
        _require_all(by_stem, files, has=first, lacks=name, root=root)
        _require_all(by_stem, files, has=name, lacks=first, root=root)
    return keys, files, {name: np.array([by_stem[name][key] for key in keys], dtype=np.int64) for name in files}


def stem_of(name: str) -> str:
    """The path of a file without its ending, which the members of a pair share; a key of an LMDB has none."""
    return PurePosixPath(name).with_suffix("").as_posix() if is_image(name) else name


def stems(files: Files) -> dict[str, int]:
    """The number of the file of each path without its ending. Raises DataError for two of one stem."""
    numbers: dict[str, int] = {}
    for k, name in enumerate(files.names):
        stem = stem_of(name)
        if stem in numbers:
            raise DataError(f"{files.describe(k)}: {files.names[numbers[stem]]} has the same name but for its ending; remove one of them")
        numbers[stem] = k
    return numbers


def _require_all(by_stem: Mapping[str, dict[str, int]], files: Mapping[str, Files], *, has: str, lacks: str, root: Path) -> None:
    missing = [key for key in by_stem[has] if key not in by_stem[lacks]]
    if missing:
        more = f" (nor to {len(missing) - 1} more)" if len(missing) > 1 else ""
        where = files[has].describe(by_stem[has][missing[0]])
        form = other_form(missing[0], by_stem[lacks]) or "; add it, or remove this one"
        raise DataError(f"{where}: {root / lacks} has no file {missing[0]}.* to go with it{more}{form}")


def specs_of(config: PairedDataConfig, files: Mapping[str, Files], numbers: Mapping[str, np.ndarray]) -> list[InputSpec]:
    """The images to be made, then the inputs."""
    specs = [InputSpec(name=config.target, kind="image", channels=config.channels or 3)]
    for name, count in zip(config.maps, config.num_classes, strict=True):
        specs.append(InputSpec(name=name, kind="classes", num_classes=count, dont_care=config.dont_care, blank=config.blank))
    if config.instances is not None:
        specs.append(InputSpec(name=config.instances, kind="instances"))
    for name in config.conditions:
        channels = _channels(files[name], numbers[name])
        specs.append(InputSpec(name=name, kind="image", channels=channels, nearest=name in config.nearest))
    return specs


def _channels(files: Files, numbers: np.ndarray) -> int:
    """3 where some of these images are in colour, else 1."""
    for k in map(int, numbers[evenly_spaced(len(numbers), PROBED)]):
        with suppress(BadImage), named(files, k):  # that is said where it is read
            if header_channels(files.head(k)) == 3:
                return 3
    return 1
