"""What a translator takes: images and maps of a user, or held-out images of its run; and the images of a style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from triptych.core.batch import STYLE, DataSpec, InputSpec, RawBatch, style_map
from triptych.core.config import Config
from triptych.core.errors import ConfigError, DataError, nearest
from triptych.core.reading import user_path
from triptych.core.translation import Example, Translator, VideoTranslator
from triptych.data.clip_files import clips_of, open_clip_files
from triptych.data.clips import ClipDataConfig
from triptych.data.config import DataConfig
from triptych.data.cut_out import CutOut
from triptych.data.files import listed
from triptych.data.images import ImageSet
from triptych.data.loader import load
from triptych.data.pairs import matched
from triptych.data.stored import PROBED, Member, evenly_spaced, of_one_size
from triptych.data.videos import ClipFolder
from triptych.runs.given.collection import Collection, counted, open_collection, stamp
from triptych.runs.given.cut_outs import cut_out, cut_out_of
from triptych.runs.given.data_images import contents, reopened
from triptych.runs.given.sizes import OutputSize, Sizing, as_trained, translation_sizing

InputsLike = str | Path | np.ndarray | Mapping[str, Sequence[np.ndarray] | np.ndarray]
"""A path, or an image (h, w, c) or map (h, w) for each sample, by the names of the model's sources where there are several."""


# Inputs -----------------------------------------------------------------------------------------------------------------


class GivenInputs:
    """Samples that a user brings, numbered from 0: an item of a collection for each of the model's sources."""

    def __init__(self, names: Mapping[str, int], sources: Sequence[Collection], truth: Collection | None, *, origin: Any) -> None:
        """Reads the headers of some samples: `names` has the item of each, by the name of it. Raises DataError."""
        self.names = list(names)
        "What the images made of them are called: sub-folders and stem."
        self._items = list(names.values())
        self.origin = origin
        "Changes when they change; JSON can hold it."
        self._sources, self._members = tuple(sources), (*sources, *(() if truth is None else (truth,)))
        self._stored = [member.items for member in self._members]
        for item in evenly_spaced(len(names), PROBED):
            self._measure(int(item))

    def __len__(self) -> int:
        return len(self.names)

    def size(self, item: int) -> tuple[int, int]:
        """Height and width of a sample, cut. Raises DataError naming a file that does not fit."""
        return self._sources[0].sizing.fixed or self._measure(item)

    @property
    def rates(self) -> dict[str, float]:
        """Frames per second of each clip that is read from a video which says them, by the clip's name."""
        rates: dict[str, float] = {}
        for member in self._members:
            files = member.items.files if isinstance(member.items, Member) else None
            videos = files.videos if isinstance(files, ClipFolder) else {}
            rates = {clip: video.rate for clip, video in videos.items() if video.rate} | rates
        return rates

    def _measure(self, item: int) -> tuple[int, int]:
        k = self._items[item]
        return of_one_size(self._stored, k, [member.measure(k) for member in self._members])[-1].height_and_width

    def example(self, model: Translator, items: Sequence[int], *, device: torch.device | str, settings: Config, truth: bool) -> Example:
        """What the model takes of some samples of one size; with the `truth`, where there is one. Raises DataError naming a file."""
        members = self._members if truth else self._sources
        places = (self._items[item] for item in items)
        samples = (of_one_size(self._stored, k, [member.read(k) for member in members]) for k in places)
        columns = [torch.from_numpy(np.stack(column)) for column in zip(*samples, strict=True)]
        inputs = {source.spec.name: column for source, column in zip(self._sources, columns, strict=False)}
        known = len(members) > len(self._sources)
        images = columns[-1] if known else torch.empty(len(items), 0, 0, 3, dtype=torch.uint8)
        batch = RawBatch(images, None, torch.as_tensor(items), inputs).to(device)
        return Example(batch.inputs, batch.images if known else None)


class HeldOut:
    """The first samples of an image set, as `GivenInputs`; the model says what of them is translated."""

    def __init__(self, images: ImageSet, spec: DataSpec, *, count: int, origin: Any = None) -> None:
        self.names, self.origin = [f"{k:06d}" for k in range(count)], origin
        self._images, self._spec = images, spec

    def __len__(self) -> int:
        return len(self.names)

    def size(self, item: int) -> tuple[int, int]:
        return self._spec.height_and_width

    def example(self, model: Translator, items: Sequence[int], *, device: torch.device | str, settings: Config, truth: bool) -> Example:
        batch = load(self._images, np.asarray(items, dtype=np.int64))
        return model.example(batch.to(device), settings=settings)


Translatable = GivenInputs | HeldOut


class Styles:
    """Style images: each answer takes its style from all of them, or from one, in turn; and the maps that come with them, of clips."""

    def __init__(self, images: Mapping[str, Collection], *, each: bool, numbered: bool = False) -> None:
        """`images`: by the names that a model takes them by, as many of each.

        `each`: in turn. Input i has `answers` answers, and answer j of it takes image (i * answers + j) modulo their number.
        `numbered`: numbers in their names count as numbers, as those of clips and frames do.
        """
        self._images, self._each = list(images.values()), each
        self._names = list(images)
        first, *_ = self._images
        self._order = first.in_order() if numbered else range(len(first))
        self._together: Mapping[str, torch.Tensor] | None = None
        self.origin = [*dict.fromkeys(one.origin for one in images.values()), each]

    def of(self, items: Sequence[int], answer: int, *, answers: int, device: torch.device | str) -> dict[str, torch.Tensor]:
        """The style images of one answer to each of `items`: (b, k, c, h, w) in [-1, 1], and maps (b, k, h, w). Raises DataError."""
        if self._each:
            found = self._load([(item * answers + answer) % len(self._order) for item in items], device)
            return {name: values[:, None] for name, values in found.items()}
        if self._together is None:
            self._together = self._load(range(len(self._order)), device)
        return {name: values.expand(len(items), *values.shape) for name, values in self._together.items()}

    def check_size(self, expected: tuple[int, int], of: str) -> None:
        """Raises ConfigError, naming the file, for one of other height and width than the frames `of` a clip."""
        stored = [one.items for one in self._images]
        for k in self._order:
            size = of_one_size(stored, k, [one.measure(k) for one in self._images])[0].height_and_width
            if size != expected:
                found = f"{size[1]}x{size[0]} pixels, but {of} {expected[1]}x{expected[0]}"
                advice = "style images have that of the frames: make them so, or give a size for all"
                raise ConfigError("size", f"{stored[0].describe(k)} would have {found}; {advice}")

    def _load(self, places: Sequence[int], device: torch.device | str) -> Mapping[str, torch.Tensor]:
        numbers, stored = [self._order[place] for place in places], [one.items for one in self._images]
        samples = [of_one_size(stored, k, [one.read(k) for one in self._images]) for k in numbers]
        loaded = {name: torch.from_numpy(np.stack(column)) for name, column in zip(self._names, zip(*samples, strict=True), strict=True)}
        first, *_ = loaded.values()
        return RawBatch(first, None, torch.as_tensor(numbers), loaded).to(device).inputs


# Opening ----------------------------------------------------------------------------------------------------------------


def open_inputs(
    inputs: InputsLike, translator: Translator, *, config: DataConfig, spec: DataSpec, size: OutputSize, count: int | None
) -> GivenInputs:
    """The first `count` samples at a path or in arrays, for a model of a run on images of `config` and `spec`.

    Raises ConfigError and DataError for what cannot be used, naming the file.
    """
    sizing = translation_sizing(size, config=config, spec=spec, translator=translator)
    cut, truth = cut_out_of(config, given=inputs, size=size, setting="inputs"), None
    if isinstance(inputs, str | Path):
        path = user_path(inputs)
        _check_one_domain(path, config.domain_folders)
        sources, truth = _at_path(path, translator, config.truth_folder, sizing, cut)
        origin = [sources[0].origin, size]
    else:
        sources = _by_name(inputs, translator.sources, sizing)
        origin = [*(source.origin for source in sources), size]
    names = sources[0].names
    numbers = list(range(len(names)))
    if isinstance(translator, VideoTranslator):
        numbers = [number for clip in clips_of(names).values() for number in clip]
    chosen = sorted(numbers[: counted(count, len(names))])
    return GivenInputs({names[number]: number for number in chosen}, sources, truth, origin=origin)


def open_held_out(config: DataConfig, spec: DataSpec, *, size: OutputSize, count: int | None) -> HeldOut:
    """The first `count` held-out images of a run on the data of `config`, which was `spec`.

    Raises ConfigError or DataError where there are none, or the data is not what it was, and where another size is asked for.
    """
    if size is not None:
        raise ConfigError("size", f"got {size!r}, but held-out images have the run's size; leave it out, or name the images")
    data = reopened(config, spec)
    if data.validation is None:
        raise ConfigError("held_out", "got true, but the run's data has no held-out images; name some images instead")
    count = counted(count, len(data.validation))
    read = contents(data.validation, first=count)
    return HeldOut(data.validation, spec, count=count, origin=["held out", config.to_dict(), read])


def open_styles(
    style: InputsLike, translator: Translator, *, config: DataConfig, spec: DataSpec, each: bool, size: OutputSize = None
) -> Styles:
    """The images of a file, folder, archive or array as styles, of the run's size. Raises ConfigError and DataError.

    Those of clips are of the `size` of their frames, in a folder with a sub-folder for them and for each of the model's sources, as its
    data has them; or arrays by the names of its `style_sources`.
    """
    if isinstance(translator, VideoTranslator) and translator.style_sources:
        sizing = translation_sizing(size, config=config, spec=spec, translator=translator)
        return Styles(_style_sources(style, translator, config, sizing, size), each=each, numbered=True)
    kind = InputSpec(name=STYLE, kind="image", channels=translator.output_channels)
    if isinstance(style, Mapping):
        raise ConfigError("style", "got arrays by name, expected a path, or uint8 images (n, height, width, channels)")
    images = {STYLE: open_collection(style, kind, as_trained(config, spec))}
    return Styles(images, each=each, numbered=isinstance(translator, VideoTranslator))


def _style_sources(
    style: InputsLike, translator: VideoTranslator, config: DataConfig, sizing: Sizing, size: OutputSize
) -> dict[str, Collection]:
    """The style images of clips, and their maps, by the names of the model's `style_sources`."""
    specs, cut = translator.style_sources, cut_out_of(config, given=style, size=size, setting="style")
    if not isinstance(style, str | Path):
        return {found.spec.name: found for found in _by_name(style, specs, sizing, setting="style")}
    path, (target, *maps) = user_path(style), specs
    folders = {target.name: config.truth_folder or target.name} | {style_map(source.name): source.name for source in translator.sources}
    if not path.is_dir():
        there = ", ".join(folders.values())
        raise DataError(f"{path}: not a folder; the style of clips is one with the sub-folders {there}, as its data has them")
    of_folders = [replace(spec, name=folders[spec.name]) for spec in (target, *maps)]
    opened, _ = _layout(path, of_folders, None, sizing, clips=True, meaning="of style images", cut=cut, each=True)
    return {spec.name: found for spec, found in zip(specs, opened, strict=True)}


def open_first(
    first: str | Path | np.ndarray, translator: Translator, *, config: DataConfig, spec: DataSpec, size: OutputSize
) -> Collection:
    """The still images that clips begin with, cut as their frames are. Raises ConfigError and DataError."""
    if isinstance(config, ClipDataConfig) and config.cut_out != "none":
        raise ConfigError("first", f"got an image, but this run cuts a {config.cut_out} out of frames; leave it out, or name a run")
    if isinstance(first, str | Path) and not user_path(first).exists():
        raise ConfigError("first", f"{first} does not exist; expected an image, a folder with one for each clip, or a run of single images")
    kind = InputSpec(name="first", kind="image", channels=translator.output_channels)
    return open_collection(first, kind, translation_sizing(size, config=config, spec=spec, translator=translator))


def _by_name(
    inputs: np.ndarray | Mapping[str, Any], specs: Sequence[InputSpec], sizing: Sizing, *, setting: str = "inputs"
) -> list[Collection]:
    names = [spec.name for spec in specs]
    arrays = inputs if isinstance(inputs, Mapping) else {names[0]: inputs} if len(names) == 1 else {}
    if set(arrays) != set(names):
        wrong = next((name for name in arrays if name not in names), None)
        got = "one array" if not isinstance(inputs, Mapping) else ", ".join(arrays) or "nothing"
        hint = "" if wrong is None else nearest(wrong, names)
        raise ConfigError(setting, f"got {got}, expected arrays by the names {', '.join(names)}{hint}")
    sources = [open_collection(arrays[spec.name], spec, sizing) for spec in specs]
    if len({len(source) for source in sources}) > 1:
        lengths = ", ".join(f"{len(source)} {source.spec.name}" for source in sources)
        raise ConfigError(setting, f"got {lengths}, expected as many of each")
    return sources


def _at_path(
    path: Path, translator: Translator, target: str | None, sizing: Sizing, cut: CutOut | None
) -> tuple[list[Collection], Collection | None]:
    """A collection for each of the model's sources; and that of the target images, where they are there too."""
    specs, first = translator.sources, translator.sources[0]
    if path.is_dir() and (len(specs) > 1 or target is not None):
        parts = [name for name in listed(path) if (path / name / first.name).is_dir()]
        if (path / first.name).is_dir() or (len(specs) > 1 and not parts):
            truth = None if target is None else InputSpec(name=target, kind="image", channels=translator.output_channels)
            return _layout(path, specs, truth, sizing, clips=isinstance(translator, VideoTranslator), cut=cut)
        if parts:
            raise DataError(f"{path}: holds {', '.join(parts)}, each with a folder {first.name}; name one of them, as in {path / parts[0]}")
    if len(specs) > 1 and path.exists():
        wanted = ", ".join(spec.name for spec in specs)
        raise DataError(f"{path}: not a folder; this model makes images of {wanted}, which lie in a folder with a sub-folder for each")
    if cut is not None and path.exists():
        raise DataError(f"{path}: holds no folder {first.name}; this run cuts a {cut.kind} out of frames: name the folder that holds it")
    return [open_collection(path, first, sizing, clips=isinstance(translator, VideoTranslator))], None


def _check_one_domain(path: Path, domains: Sequence[str]) -> None:
    """DataError for a folder that holds both domains: the images of one of them would be translated into their own kind."""
    if not domains or any(user_path(domain).is_absolute() for domain in domains):
        return  # there are none, or they lie elsewhere
    for place in (path, *((path / name for name in listed(path)) if path.is_dir() else ())):
        if all((place / domain).is_dir() for domain in domains):
            found = " and ".join(domains)
            raise DataError(f"{place}: holds the two domains {found}; name one of them, as in {place / domains[0]}")


def _layout(
    path: Path,
    specs: Sequence[InputSpec],
    truth: InputSpec | None,
    sizing: Sizing,
    *,
    clips: bool,
    meaning: str = "which this model makes images of",
    cut: CutOut | None = None,
    each: bool = False,
) -> tuple[list[Collection], Collection | None]:
    """The collections of a folder that has one sub-folder for each source; and that of the target images, where they are there too.

    `cut`: what is cut out of clips; by the first frame of each, or by `each` frame.
    """
    chosen = [*specs, *([truth] if truth is not None and (path / truth.name).is_dir() else [])]
    types = {spec.name: meaning for spec in chosen}
    found = open_clip_files(path, types) if clips else None
    if found is not None:
        files, numbers = found.files, found.numbers
    else:
        _, files, numbers = matched(path, types)
    origin = stamp(path)
    opened = [Collection(str(path), Member(spec, files[spec.name], numbers[spec.name]), spec, sizing, origin) for spec in chosen]
    if cut is not None and found is not None:
        opened = cut_out(cut, found, opened, path, each=each)
    return opened[: len(specs)], opened[-1] if len(chosen) > len(specs) else None
