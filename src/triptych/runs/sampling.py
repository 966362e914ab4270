"""Samples of a trained model: `sample` opens the run, asks for the images of some indices, and draws them batch by batch."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from triptych.core.batch import DataSpec
from triptych.core.config import Config, settings_like
from triptych.core.errors import ConfigError, DataError, nearest
from triptych.core.files import OUTPUTS, PICTURES, explain, write_text
from triptych.core.given import given_place, shown, whole_number
from triptych.core.images import enlarge, grid, save_picture, to_uint8
from triptych.core.memory import available_memory, in_bytes
from triptych.core.model import Report, Sampler, Upsampler
from triptych.core.npz import Header
from triptych.core.rng import Rng
from triptych.core.translation import Translator
from triptych.data.files import LABELS_FILE, is_image
from triptych.data.made import made_in, mark
from triptych.engine.precision import autocast
from triptych.engine.progress import Watch, unwatched
from triptych.runs.files import check_archive, check_place, check_unlearned, save_npz
from triptych.runs.guidance import guided
from triptych.runs.latent_space import Shown, shown_by
from triptych.runs.loading import Loading, LoadingKeywords
from triptych.runs.stored import Opened, StoredRun
from triptych.runs.work import Part, Within, Work, assembled, done, evaluating, ranges, steps_within

_COLUMNS = 16  # of pictures with several kinds of images
_NAMED = 10  # classes, in a message
_EARLIER_LABELS = "labels.json"  # of Triptych 0.1, which nothing read
_GRID_CELL = 48  # pixels that a cell of a grid has at least, so that small images can be seen
_GRID_GAP = 2  # pixels around each image of it
_LONGEST_SIDE = {".jpg": 65_500, ".jpeg": 65_500, ".webp": 16_383}
"""Most pixels of a side in the formats that have a limit: libjpeg's JPEG_MAX_DIMENSION, and the 14 bits of WebP's header."""


def sample(
    run: StoredRun,
    count: int,
    *,
    seed: int = 0,
    labels: Sequence[int | str] | None = None,
    settings: Config | None = None,
    out: str | Path | None = None,
    guide: str | Path | None = None,
    guide_with: str | Path | None = None,
    guide_ema_length: float | None = None,
    progress: Watch = unwatched,
    **loading: Unpack[LoadingKeywords],
) -> Samples:
    """`count` samples, all of them in every process. Image k depends on the seed and k; on batch size and processes by rounding alone.

    `labels` (numbers or class names) are taken in turn; None: all classes in turn. `settings`: of the model's sampler;
    None: those of the run. `out`: a .png, .jpg or .webp for a grid, a .npz, or a folder; an interrupted call goes on where it was.
    `guide`: a run whose classifier leads the sampler; `guide_with`: a run whose weaker model it is led away from; `guide_ema_length`: the
    length of the average of its weights, None: its first average. `progress` is told how many of this process's images are drawn, and how
    many there are.
    Raises ConfigError and CheckpointError for what the run does not have, DataError where `out` cannot be written.
    """
    count, seed = whole_number(count, "count", least=1), whole_number(seed, "seed", least=0)
    require_room(count, run.spec.pictured)
    if out is not None:
        out = given_place(out, "out")
        check_output(out, count=count)  # before the weights are read
        check_unlearned(out, run.config.data)
        require_pictures(out, run.spec)
    opened = run.open_together(Loading(**loading))
    chosen = settings_like(require_sampler(opened.model).sampling, settings)
    leading = {"guide": guide, "guide_with": guide_with, "guide_ema_length": guide_ema_length}
    sampler = guided(opened.model, run, **leading, settings=chosen, world=opened.world)
    num_classes = require_sampler(sampler.model).num_classes
    own = label_list(num_classes, sampler.spec, count=count, given=labels)
    request = Request(count, seed, own, chosen, opened.loading.precision, shown=shown_by(run.spec, opened.world, run.paths))
    return drawn(opened, sampler.model, request, origin=sampler.origin, out=out, progress=progress)


@dataclass(frozen=True)
class Samples:
    """uint8 images (n, h, w, c), or latents that nothing decodes, float32, and their labels, int64 (n,), or None."""

    images: np.ndarray
    labels: np.ndarray | None


@dataclass(frozen=True)
class Request:
    """Which samples are wanted. Image k depends on these and on k alone."""

    count: int
    seed: int
    labels: np.ndarray | None
    "One label for each image; None: the model is not conditional."
    settings: Config
    precision: str
    shown: Shown = field(default=to_uint8, kw_only=True)
    "From what the model makes to images."

    def images(self, model: nn.Module, part: range, device: torch.device, report: Report | None = None) -> Tensor:
        """The images of these indices: (b, c, h, w) in [-1, 1]. Raises ConfigError for a model that makes none of itself."""
        index = torch.arange(part.start, part.stop, device=device)
        rng = Rng(self.seed, ("sample",), index)
        return require_sampler(model).sample(rng, labels=self.labels_of(part, device), settings=self.settings, report=report)

    def labels_of(self, part: range, device: torch.device) -> Tensor | None:
        """The labels of these indices (b,), where there are labels."""
        return None if self.labels is None else torch.from_numpy(self.labels[part.start : part.stop]).to(device)


def label_list(num_classes: int | None, spec: DataSpec, *, count: int, given: Sequence[int | str] | None) -> np.ndarray | None:
    """A label for each of `count` images of a model with so many classes: `given` in turn (numbers or names); None: all classes in turn.

    Raises ConfigError for labels of an unlabelled model and for unknown classes.
    """
    if num_classes is None:
        if given is not None:
            raise ConfigError("labels", "this run's model was trained without labels; leave them out")
        return None
    if given is not None and (isinstance(given, str | bytes) or not isinstance(given, Iterable)):
        raise ConfigError("labels", f"got {shown(given)}, expected a list of numbers or names of classes")
    chosen = range(num_classes) if given is None else [_label(value, spec, num_classes) for value in given]
    if not chosen:
        raise ConfigError("labels", "got an empty list, expected at least one label")
    return np.resize(np.asarray(list(chosen), dtype=np.int64), count)


def _label(value: int | str, spec: DataSpec, num_classes: int) -> int:
    names = spec.class_names or ()
    if isinstance(value, str) and value in names:
        return names.index(value)
    try:
        label = int(value) if isinstance(value, str) else whole_number(value, "labels")
    except ValueError:
        if not isinstance(value, str):
            raise
        known = f", or a name: {', '.join(names[:_NAMED])}{', ...' if len(names) > _NAMED else ''}" if names else ""
        raise ConfigError(
            "labels", f"unknown class {value!r}{nearest(str(value), names)} (expected 0 to {num_classes - 1}{known})"
        ) from None
    if not 0 <= label < num_classes:
        raise ConfigError("labels", f"got {label}, expected 0 to {num_classes - 1}")
    return label


def said_label(value: int | str, spec: DataSpec) -> int | str:
    """A label as a protocol has it: a name, or the number of the class where it is one, or is called by one."""
    names = spec.class_names or ()
    if not str(value).isdecimal():
        return value
    return names.index(value) if value in names else int(value)


def require_sampler(model: nn.Module) -> Sampler:
    """The model as a sampler; ConfigError where it is none."""
    if isinstance(model, Translator):
        raise ConfigError("model", f"{type(model).__name__} makes images from images or maps; use triptych translate RUN INPUT")
    if isinstance(model, Upsampler):
        raise ConfigError("model", f"{type(model).__name__} makes images from images of {model.input_size} pixels; give some by --base")
    if not isinstance(model, Sampler):
        raise ConfigError("model", f"{type(model).__name__} makes no samples")
    return model


def require_room(count: int, images: DataSpec) -> None:
    """ConfigError where the memory that is free is too small for so many images, which every process puts together in it."""
    height, width = images.height_and_width
    processes = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))  # of this machine
    value = 4 if images.undecoded else 1  # bytes: latents are float32
    size, room = count * height * width * images.channels * value, available_memory()
    if room is not None and size * processes > room:
        taken = in_bytes(size) if processes == 1 else f"{in_bytes(size)} in each of {processes} processes, {in_bytes(size * processes)}"
        each = f"{width}x{height} pixels take {taken} of memory, and {in_bytes(room)} are free"
        raise ConfigError("count", f"got {count}, but so many images of {each}; ask for fewer, and for others by another {{}}", ["seed"])


def draw(model: nn.Module, request: Request, part: range, device: torch.device, report: Report | None = None) -> np.ndarray:
    """The images of these indices, one batch: uint8 (b, h, w, c); latents are decoded, or float32 where nothing decodes them."""
    with evaluating(model), autocast(request.precision, device=device):
        return request.shown(request.images(model, part, device, report)).numpy()


def drawing(model: nn.Module, request: Request, *, batch_size: int, device: torch.device, origin: Mapping[str, Any] | None = None) -> Work:
    """The work of drawing what is requested. `origin`: where the weights are from."""

    def make(items: Sequence[int], within: Within) -> Iterator[Part]:
        for part in ranges(items, batch_size):
            yield part, {"images": draw(model, request, part, device, steps_within(within, len(part)))}

    labels = None if request.labels is None else request.labels.tolist()
    identity = [request.count, request.seed, labels, request.settings.to_dict(), request.precision, origin]
    return Work(request.count, identity, make)


def drawn(
    opened: Opened, model: nn.Module, request: Request, *, origin: dict[str, Any], out: str | Path | None, progress: Watch
) -> Samples:
    """The samples of `model`, which is the opened one or one that leads it, in every process; also written to `out`, which was checked.

    What was drawn before an interruption is taken up, where it is of the same request, weights and `origin`. Raises DataError at once for a
    grid that is too large for its format.
    """
    if out is not None:
        check_sheet(Path(out), opened.spec.pictured, count=request.count, columns=label_columns(request.labels))
    return done(
        drawing(model, request, batch_size=opened.batch_size(), device=opened.world.device, origin=opened.origin | origin),
        None if out is None else Path(out),
        world=opened.world,
        progress=progress,
        kept="drawn",
        conclude=lambda parts: Samples(assembled(parts, request.count)["images"], request.labels),
        write=write_samples,
    )


def png_names(count: int) -> list[str]:
    """The files of a folder of samples."""
    return [f"{k:06d}.png" for k in range(count)]


def require_pictures(out: Path, spec: DataSpec) -> None:
    """Raises ConfigError for a picture, or a folder of them, of samples that are latents which nothing decodes."""
    if out.suffix != ".npz" and spec.undecoded:
        reason = f"got '{out}', but samples of this run are latents of {spec.channels} channels, for it was imported without an autoencoder"
        raise ConfigError("out", f"{reason}; give a name that ends with .npz, or import it again with --autoencoder RUN")


def check_output(out: Path, *, count: int) -> None:
    """DataError where `count` samples cannot be written to `out`: another ending than those of OUTPUTS, or a folder with other images.

    Images, and their dataset.json, are replaced where `write_samples` made them.
    """
    check_place(out)
    if out.suffix not in OUTPUTS:
        raise DataError(f"{out}: samples are written as .png, .jpg or .webp (a grid), .npz or a folder, not as {out.suffix}")
    if out.suffix == ".npz":
        check_archive(out, "arr_0.npy", others=lambda name: name == "arr_1.npy", first=_are_samples)
    if not out.suffix and out.exists():
        if not out.is_dir():
            raise DataError(f"{out} is a file; name a folder, or end the name in .png or .npz")
        try:
            there, made, names = set(os.listdir(out)), made_in(out).files, set(png_names(count))
        except OSError as error:
            raise DataError(f"cannot read {out}: {explain(error)}") from error
        other = next((name for name in _images_below(out) if name not in names), LABELS_FILE if LABELS_FILE in there - made else None)
        if other is not None:
            raise DataError(f"{out} already holds {other}, which would be mixed with the new samples; choose another --out or empty it")
        foreign = (names & there) - made
        if foreign:
            raise DataError(f"{out / min(foreign)} is there already, and no such command made it; choose another --out, or remove it")


def check_sheet(out: Path, images: DataSpec, *, count: int, columns: int | None) -> None:
    """DataError where `out` is a grid of so many images, in so many columns (None: as a square), that is larger than its format holds."""
    height, width = images.height_and_width
    columns = columns or math.ceil(math.sqrt(count))
    rows, factor = -(-count // columns), _enlarged(height)
    sheet = [(cells * (side + _GRID_GAP) + _GRID_GAP) * factor for cells, side in ((columns, width), (rows, height))]
    longest = _LONGEST_SIDE.get(out.suffix)
    if longest is not None and max(sheet) > longest:
        reason = f"a grid of {count} images would have {sheet[0]}x{sheet[1]} pixels, and {out.suffix} holds {longest:,} a side"
        raise DataError(f"cannot write {out}: {reason}; end the name in .png or .npz, or name a folder")


def _are_samples(header: Header) -> bool:
    """Images, or latents that nothing decodes."""
    images = header.dtype == np.uint8 and header.shape[3:] in ((1,), (3,))
    return images or (header.dtype == np.float32 and len(header.shape) == 4)


def _images_below(folder: Path) -> Iterator[str]:
    """Images in a folder and its sub-folders, by their paths in it."""
    for place, folders, files in os.walk(folder):
        folders.sort()
        yield from ((Path(place) / name).relative_to(folder).as_posix() for name in sorted(files) if is_image(name))


def write_samples(out: Path, samples: Samples, columns: int | None = None) -> None:
    """Writes a grid (a picture), arr_0 and arr_1 as guided-diffusion's evaluator reads them (.npz), or a folder of PNGs.

    The labels of a folder are in a dataset.json, as all that reads images takes them. `columns`: of the grid; None: see `write_grid`.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix in PICTURES:
        write_grid(out, samples, columns=columns)
    elif out.suffix == ".npz":
        arrays = {"arr_0": samples.images} | ({} if samples.labels is None else {"arr_1": samples.labels})
        save_npz(out, arrays)
    else:
        out.mkdir(exist_ok=True)
        names = png_names(len(samples.images))
        for name in made_in(out).files & {LABELS_FILE, _EARLIER_LABELS}:  # of other samples
            (out / name).unlink(missing_ok=True)
        mark(out, [*names, *([] if samples.labels is None else [LABELS_FILE])], request="samples")
        for name, image in zip(names, samples.images, strict=True):
            save_picture(image, out / name)
        if samples.labels is not None:
            write_labels(out, names, samples.labels)


def write_labels(out: Path, names: Sequence[str], labels: np.ndarray) -> None:
    """Writes the dataset.json of a folder: the label of each of its images."""
    write_text(out / LABELS_FILE, json.dumps({"labels": list(zip(names, labels.tolist(), strict=True))}, indent=0) + "\n")


def write_grid(path: Path, samples: Samples, *, columns: int | None = None) -> None:
    """Writes a picture with all samples: by default a row is one round of the labels where there are 5 to 20 classes in turn."""
    picture = grid(samples.images, columns=columns or label_columns(samples.labels), gap=_GRID_GAP)
    save_picture(enlarge(picture, _enlarged(samples.images.shape[1])), path)


def label_columns(labels: np.ndarray | None) -> int | None:
    """The columns of a grid, where a row is one round of the labels; None: there are not 5 to 20 classes in turn."""
    if labels is None:
        return None
    repeats = np.flatnonzero(labels[1:] == labels[0])
    period = int(repeats[0]) + 1 if len(repeats) else len(labels)
    return period if 5 <= period <= 20 else None


def _enlarged(height: int) -> int:
    """How many pixels of a grid a pixel of its images is wide."""
    return max(1, round(_GRID_CELL / height))


def write_kinds(path: Path, kinds: Sequence[np.ndarray]) -> None:
    """Writes a picture of images of several kinds, uint8 (n, h, w, c) each: a row of each kind in turn, white after the last image."""
    count = len(kinds[0])
    columns = min(count, _COLUMNS)
    shown = [_row(kind, start, columns) for start in range(0, count, columns) for kind in kinds]
    write_grid(path, Samples(np.concatenate(shown), None), columns=columns)


def _row(images: np.ndarray, start: int, columns: int) -> np.ndarray:
    """`columns` images from `start` on, white ones after the last."""
    row = images[start : start + columns]
    return np.concatenate((row, np.full((columns - len(row), *row.shape[1:]), 255, dtype=np.uint8)))
