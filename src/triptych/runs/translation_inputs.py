"""What a translator is given: images and maps at a path or in arrays, or held-out images of its run; and the images of a style."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

from triptych.core.batch import STYLE, DataSpec, InputSpec, RawBatch
from triptych.core.config import Config
from triptych.core.errors import ConfigError, DataError, nearest
from triptych.core.model import Example, Translator
from triptych.core.reading import user_path
from triptych.data.arrays import array_file
from triptych.data.config import DataConfig
from triptych.data.database import is_database, open_database
from triptych.data.domains import UnpairedDataConfig
from triptych.data.files import KINDS, Files, Folder, is_image, listed, open_folder, open_tar, open_zip
from triptych.data.images import ImageSet, evenly_spaced, failure
from triptych.data.pairs import Member, PairedDataConfig, matched, stems
from triptych.data.source import recognised
from triptych.data.transforms import Size
from triptych.runs.translation_sources import ArraySource, FileSource, OutputSize, Sizing, Source
from triptych.runs.upsampling import stamp

Given = str | Path | np.ndarray | Mapping[str, Sequence[np.ndarray] | np.ndarray]
"""A path, or an image (h, w, c) or map (h, w) for each sample, by the names of the model's sources where there are several."""

_PROBED = 256


# Inputs -----------------------------------------------------------------------------------------------------------------


class Translatable(ABC):
    """Samples to translate, numbered from 0."""

    def __init__(self, names: list[str], *, origin: Any) -> None:
        self.names = names
        "What the images made of them are called: sub-folders and stem."
        self.origin = origin
        "Changes when they change; JSON can hold it."

    def __len__(self) -> int:
        return len(self.names)

    @abstractmethod
    def size(self, item: int) -> tuple[int, int]:
        """Height and width of a sample, cut. Raises DataError naming a file that does not fit."""

    @abstractmethod
    def example(self, model: Translator, items: Sequence[int], *, device: torch.device | str, settings: Config, truth: bool) -> Example:
        """What the model takes of some samples of one size; with the truth, where it is known, if that is wanted.

        Raises DataError naming a file.
        """


class GivenInputs(Translatable):
    """Files or arrays, one for each of the model's sources."""

    def __init__(self, names: list[str], sources: Sequence[Source], truth: Source | None, *, sizing: Sizing, origin: Any) -> None:
        """Reads the headers of some samples, so that what is wrong shows at once. Raises DataError."""
        super().__init__(names, origin=origin)
        self._sources, self._shown, self._sizing = tuple(sources), () if truth is None else (truth,), sizing
        for item in evenly_spaced(len(names), _PROBED):
            self._size(int(item))

    def size(self, item: int) -> tuple[int, int]:
        return self._sizing.fixed or self._size(item)

    def _size(self, item: int) -> tuple[int, int]:
        first: Size | None = None
        kept = (0, 0)
        for source in (*self._sources, *self._shown):
            try:
                found = source.size(item)
                first = self._checked(source, item, found, first)
                kept = self._sizing.cut(found, source.describe(item)).kept
            except Exception as error:
                raise failure(source.describe(item), error) from error
        return kept

    def example(self, model: Translator, items: Sequence[int], *, device: torch.device | str, settings: Config, truth: bool) -> Example:
        sources = (*self._sources, *(self._shown if truth else ()))
        loaded = [self._load(item, sources) for item in items]
        columns = [torch.from_numpy(np.stack(column)) for column in zip(*loaded, strict=True)]
        inputs = {source.spec.name: column for source, column in zip(self._sources, columns, strict=False)}
        known = len(sources) > len(self._sources)
        images = columns[-1] if known else torch.empty(len(items), 0, 0, 3, dtype=torch.uint8)
        batch = RawBatch(images, None, torch.as_tensor(items), inputs).to(device)
        return Example(batch.inputs, batch.images if known else None)

    def _load(self, item: int, sources: Sequence[Source]) -> list[np.ndarray]:
        values: list[np.ndarray] = []
        first: Size | None = None
        for source in sources:
            try:
                found, cut = source.load(item, self._sizing)
                first = self._checked(source, item, found, first)
            except Exception as error:
                raise failure(source.describe(item), error) from error
            values.append(cut)
        return values

    def _checked(self, source: Source, item: int, found: Size, first: Size | None) -> Size:
        if first not in (None, found):
            where = self._sources[0].describe(item)
            raise DataError(
                f"{source.describe(item)}: {found[0]}x{found[1]} pixels, but {where} has {first[0]}x{first[1]}; make them one size"
            )
        return found


class HeldOut(Translatable):
    """Images of a set, as held-out images are shown: what of them is translated the model says."""

    def __init__(self, images: ImageSet, spec: DataSpec, *, count: int, origin: Any = None) -> None:
        super().__init__([f"{k:06d}" for k in range(count)], origin=origin)
        self._images, self._spec = images, spec

    def size(self, item: int) -> tuple[int, int]:
        return self._spec.height_and_width

    def example(self, model: Translator, items: Sequence[int], *, device: torch.device | str, settings: Config, truth: bool) -> Example:
        numbers = np.asarray(items, dtype=np.int64)
        loaded = self._images.batch(numbers)
        labels = None if loaded.labels is None else torch.from_numpy(loaded.labels)
        inputs = {name: torch.from_numpy(values) for name, values in loaded.inputs.items()}
        batch = RawBatch(torch.from_numpy(np.ascontiguousarray(loaded.images)), labels, torch.from_numpy(numbers), inputs)
        return model.example(batch.to(device), settings=settings)


class Styles:
    """Images whose look is taken: all of them together for each answer, or one after the other."""

    def __init__(self, source: Source, count: int, *, each: bool, sizing: Sizing, origin: Any) -> None:
        """`each`: the answers take them in turn, input by input."""
        self._source, self._count, self._each, self._sizing = source, count, each, sizing
        self._together: torch.Tensor | None = None
        self.origin = [origin, each]

    def of(self, items: Sequence[int], answer: int, *, answers: int, device: torch.device | str) -> torch.Tensor:
        """Those of an answer to some inputs: (b, k, c, h, w) in [-1, 1]. Raises DataError naming a file that cannot be used."""
        if self._each:
            return self._load([(item * answers + answer) % self._count for item in items], device)[:, None]
        if self._together is None:
            self._together = self._load(range(self._count), device)[None]
        return self._together.expand(len(items), -1, -1, -1, -1)

    def _load(self, numbers: Sequence[int], device: torch.device | str) -> torch.Tensor:
        pixels = []
        for k in numbers:
            try:
                pixels.append(self._source.load(k, self._sizing)[1])
            except Exception as error:
                raise failure(self._source.describe(k), error) from error
        return RawBatch(torch.from_numpy(np.stack(pixels)), None, torch.as_tensor(numbers)).to(device).images


# Opening ----------------------------------------------------------------------------------------------------------------


def open_given(
    given: Given, translator: Translator, *, config: DataConfig, spec: DataSpec, size: OutputSize, count: int | None
) -> GivenInputs:
    """The first `count` samples at a path or in arrays, for a model of a run on images of `config` and `spec`.

    Raises ConfigError and DataError for what cannot be used, naming the file.
    """
    sizing = Sizing(config, spec, translator, size)
    truth = None
    if isinstance(given, str | Path):
        path = user_path(given)
        target = config.target if isinstance(config, PairedDataConfig) else None
        if isinstance(config, UnpairedDataConfig):
            _check_one_domain(path, [config.a, config.b])
        names, sources, truth = _at_path(path, translator, target)
        origin: Any = [stamp(path), size]
    else:
        arrays = _by_name(given, translator)
        names = [f"{k:06d}" for k in range(len(arrays[0]))]
        sources, origin = arrays, [*(array.digest for array in arrays), size]
    return GivenInputs(names[: _counted(count, len(names))], sources, truth, sizing=sizing, origin=origin)


def open_held_out(config: DataConfig, spec: DataSpec, *, size: OutputSize, count: int | None) -> HeldOut:
    """The first `count` held-out images of a run on the data of `config`, which was `spec`.

    Raises ConfigError or DataError where there are none, or the data is not what it was, and where another size is asked for.
    """
    if size is not None:
        raise ConfigError("size", f"got {size!r}, but held-out images have the run's size; leave it out, or name the images")
    data = config.open()
    known, found = ((told.height_and_width, told.channels, [entry.name for entry in told.inputs]) for told in (spec, data.spec))
    if found != known:
        raise DataError(f"{config.path}: no longer the data of this run (size, channels, inputs: {found} in place of {known})")
    if data.validation is None:
        raise ConfigError("held_out", "got true, but the run's data has no held-out images; name some images instead")
    return HeldOut(data.validation, spec, count=_counted(count, len(data.validation)), origin=["held out", config.to_dict()])


def open_styles(given: Given, translator: Translator, *, config: DataConfig, spec: DataSpec, each: bool) -> Styles:
    """The images of a file, folder, archive or array as styles, of the run's size. Raises ConfigError and DataError."""
    sizing, kind = Sizing(config, spec, translator), InputSpec(name=STYLE, kind="image", channels=translator.output_channels)
    if isinstance(given, str | Path):
        path = user_path(given)
        names, source = _one_kind(path, kind)
        return Styles(source, len(names), each=each, sizing=sizing, origin=stamp(path))
    if isinstance(given, Mapping):
        raise ConfigError("style", "got arrays by name, expected a path, or uint8 images (n, height, width, channels)")
    source = ArraySource(kind, given, name="style")
    return Styles(source, len(source), each=each, sizing=sizing, origin=source.digest)


def _counted(count: int | None, available: int) -> int:
    if count is not None and not 1 <= count <= available:
        raise ConfigError("count", f"got {count}, expected 1 to {available}, the images that are there")
    return count or available


def _by_name(given: np.ndarray | Mapping[str, Any], translator: Translator) -> list[ArraySource]:
    specs = translator.sources
    names = [spec.name for spec in specs]
    arrays = given if isinstance(given, Mapping) else {names[0]: given} if len(names) == 1 else {}
    if set(arrays) != set(names):
        wrong = next((name for name in arrays if name not in names), None)
        found = "one array" if not isinstance(given, Mapping) else ", ".join(arrays) or "nothing"
        hint = "" if wrong is None else nearest(wrong, names)
        raise ConfigError("inputs", f"got {found}, expected arrays by the names {', '.join(names)}{hint}")
    sources = [ArraySource(spec, arrays[spec.name], name=spec.name) for spec in specs]
    if len({len(source) for source in sources}) > 1:
        lengths = ", ".join(f"{len(source)} {source.spec.name}" for source in sources)
        raise ConfigError("inputs", f"got {lengths}, expected as many of each")
    return sources


def _at_path(path: Path, translator: Translator, target: str | None) -> tuple[list[str], list[Source], Source | None]:
    """Names, a source for each that the model has, and the truth where it is there."""
    specs, first = translator.sources, translator.sources[0]
    if not path.exists():
        raise DataError(f"{path}: does not exist")
    if path.is_dir() and (len(specs) > 1 or target is not None):
        parts = [name for name in listed(path) if (path / name / first.name).is_dir()]
        if (path / first.name).is_dir() or (len(specs) > 1 and not parts):
            return _layout(
                path, specs, None if target is None else InputSpec(name=target, kind="image", channels=translator.output_channels)
            )
        if parts:
            raise DataError(f"{path}: holds {', '.join(parts)}, each with a folder {first.name}; name one of them, as in {path / parts[0]}")
    if len(specs) > 1:
        wanted = ", ".join(spec.name for spec in specs)
        raise DataError(f"{path}: not a folder; this model makes images of {wanted}, which lie in a folder with a sub-folder for each")
    names, source = _one_kind(path, first)
    return names, [source], None


def _check_one_domain(path: Path, domains: Sequence[str]) -> None:
    """DataError for a folder laid out as training data of two domains: half of its images are not of the kind that is translated."""
    if any(user_path(domain).is_absolute() for domain in domains):
        return  # they lie elsewhere
    for place in (path, *((path / name for name in listed(path)) if path.is_dir() else ())):
        if all((place / domain).is_dir() for domain in domains):
            found = " and ".join(domains)
            raise DataError(f"{place}: holds the two domains {found}; name one of them, as in {place / domains[0]}")


def _layout(path: Path, specs: Sequence[InputSpec], target: InputSpec | None) -> tuple[list[str], list[Source], Source | None]:
    """The files in a sub-folder for each source, and in that of the images to be made where there is one."""
    chosen = [*specs, *([target] if target is not None and (path / target.name).is_dir() else [])]
    keys, files, numbers = matched(path, {spec.name: "which this model makes images of" for spec in chosen})
    sources = [FileSource(Member(spec, files[spec.name], numbers[spec.name])) for spec in chosen]
    return [_safe(key, path) for key in keys], list(sources[: len(specs)]), sources[-1] if len(chosen) > len(specs) else None


def _one_kind(path: Path, spec: InputSpec) -> tuple[list[str], Source]:
    """Names, and the images or maps of a file, a folder, an archive or an array file."""
    if not path.exists():
        raise DataError(f"{path}: does not exist")
    if path.is_file() and not is_image(path.name) and recognised(path) == "arrays":
        if spec.kind != "image":
            raise DataError(
                f"{path}: maps are read from files of images, or given as arrays in Python; expected a file, folder, .zip or .tar"
            )
        source = ArraySource(spec, array_file(path).pixels, name=str(path))
        return [f"{k:06d}" for k in range(len(source))], source
    files = _files(path)
    by_stem = stems(files)
    if not by_stem:
        raise DataError(f"{path}: holds no images ({KINDS} are looked for, in sub-folders too)")
    return [_safe(name, path) for name in by_stem], FileSource(Member(spec, files, np.fromiter(by_stem.values(), dtype=np.int64)))


def _files(path: Path) -> Files:
    if path.is_dir():
        return open_database(path) if is_database(path) else open_folder(path)[0]
    if is_image(path.name):
        return Folder(path.parent, [path.name])
    return {"tar": open_tar, "zip": open_zip}[recognised(path)](path)


def is_inside(name: str) -> bool:
    """Whether a relative path leads to a place inside its folder."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\0" not in name


def _safe(name: str, path: Path) -> str:
    """The name, which files are going to have. Raises DataError for one of an archive that leads out of their folder."""
    if not is_inside(name):
        raise DataError(f"{path}: {name!r} leads out of the folder that images are written to; make the archive again with plain names")
    return name
