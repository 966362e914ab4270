"""Translations by a trained model: images of one kind made from images, or maps, of another, on any number of processes.

In a folder every image is a file of its own, written whole or not at all, and a small file beside them says what was asked: the same
request goes on where it was, another one replaces what the first made, and nothing else is ever overwritten.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Unpack

import numpy as np
import torch
from PIL import Image
from torch import nn

from triptych.core.batch import STYLE, share
from triptych.core.config import Config
from triptych.core.errors import ConfigError, DataError
from triptych.core.files import OUTPUTS, PICTURES, write_text
from triptych.core.images import save_picture, to_uint8
from triptych.core.model import Example, Sampler, Translator, Upsampler
from triptych.core.reading import is_inside, parsed_json, user_path
from triptych.core.rng import Rng
from triptych.data.images import Data, failure
from triptych.engine.distributed import World
from triptych.engine.loop import Grid
from triptych.engine.precision import autocast
from triptych.engine.progress import Watch, unwatched
from triptych.engine.signals import made_by_all
from triptych.runs.files import check_kept, check_place, save_npz, writing
from triptych.runs.given.sizes import OutputSize
from triptych.runs.given.translation import HeldOut, InputsLike, Styles, Translatable, open_held_out, open_inputs, open_styles
from triptych.runs.loading import Loading, LoadingKeywords
from triptych.runs.pieces import Pieces, digest_of
from triptych.runs.stored import StoredRun
from triptych.runs.translation_grid import rows, write_rows
from triptych.runs.work import assembled

GRID = "grid.png"
"""The picture of the first inputs and what was made of them, in the folder of the images."""

STAMP = ".triptych-translate.json"
"""The file in the folder of the images that says which of them were made, and for what."""

GRID_ROWS = 16
"""Rows of that picture where nothing is said."""

_TRAINING_ROWS = 24  # at most, of the pictures during training

Fits = Callable[[tuple[int, int]], int]
"""From height and width to how many images a process makes at once."""


def translate(
    run: StoredRun,
    inputs: InputsLike | None,
    *,
    count: int | None = None,
    style: InputsLike | None = None,
    style_each: bool = False,
    style_count: int = 1,
    size: OutputSize = None,
    seed: int = 0,
    settings: Config | None = None,
    out: str | Path | None = None,
    grid: int = GRID_ROWS,
    progress: Watch = unwatched,
    **loading: Unpack[LoadingKeywords],
) -> Translations:
    """What the model makes of the first `count` inputs, in every process. Answer j to input k depends on the seed, that input, k and j.

    `inputs`: a path (a folder has a sub-folder for each of the model's sources where there are several), or arrays by the names of
    the sources; None: the run's held-out images. `style`: images whose look is taken, all of them together, or, with `style_each`, in
    turn, input by input; `style_count`: answers to each input. `size`: None for the run's; "own"; the short side; or height and width.
    `out`: a folder, with a picture of the first `grid` inputs; a .npz; or, of one image, a picture. An interrupted call goes on where
    it was. `progress` is told how many of this process's inputs are done, and how many there are.
    Raises ConfigError, CheckpointError and DataError for what does not fit or cannot be read or written.
    """
    if grid < 0:
        raise ConfigError("grid", f"got {grid}, expected 0 or more")
    translator, data = require_translator(run.outline), run.config.data
    check_styles(translator, given=style is not None, each=style_each, answers=style_count, held_out=inputs is None)
    if inputs is None:
        opened_inputs = open_held_out(data, run.spec, size=size, count=count)
    else:
        opened_inputs = open_inputs(inputs, translator, config=data, spec=run.spec, size=size, count=count)
    styles = None if style is None else open_styles(style, translator, config=data, spec=run.spec, each=style_each)
    if out is not None:
        check_target(Path(out), read=(inputs, style), count=len(opened_inputs) * style_count)
    opened = run.open(Loading(**loading))
    model, world, precision = opened.model, opened.world, opened.loading.precision
    wanted = Translation(opened_inputs, styles, style_count, seed, settings or translator.translation, precision)
    if out is None:
        return Translations(wanted.inputs.names, gather_translations(model, wanted, fits=opened.batch_size, world=world, progress=progress))
    return translate_to(
        Path(out), model, wanted, origin=opened.origin, grid_rows=grid, fits=opened.batch_size, world=world, progress=progress
    )


@dataclass(frozen=True)
class Translations:
    """What was made of each input, in their order."""

    names: list[str]
    "Sub-folders and stem of the inputs; of arrays, and of held-out images, their numbers."
    images: Sequence[np.ndarray]
    "Of each input all answers, uint8 (answers, h, w, c); those of a folder are read from it when they are asked for."


@dataclass(frozen=True)
class Translation:
    """Which translations are wanted. Answer j to input k depends on these, on that input, on k and on j alone."""

    inputs: Translatable
    styles: Styles | None
    answers: int
    "Images made of each input."
    seed: int
    settings: Config
    precision: str

    def example(self, model: nn.Module, items: Sequence[int], device: torch.device | str, *, truth: bool = False) -> Example:
        """The model's input for some items of one size, with the style of the first answer. `truth`: with the target image, where known."""
        example = self.inputs.example(require_translator(model), items, device=device, settings=self.settings, truth=truth)
        inputs = dict(example.inputs)
        if self.styles is not None:
            inputs[STYLE] = self.styles.of(items, 0, answers=self.answers, device=device)
        elif self.answers > 1:
            inputs.pop(STYLE, None)  # that held-out images may come with: each answer has a random one instead
        return Example(inputs, example.truth)

    def made(self, model: nn.Module, items: Sequence[int], device: torch.device) -> np.ndarray:
        """All answers to inputs of one size: uint8 (b, answers, h, w, c)."""
        translator, inputs = require_translator(model), dict(self.example(model, items, device).inputs)
        index, found = torch.as_tensor(items, device=device), []
        for answer in range(self.answers):
            if self.styles is not None and answer > 0:
                inputs[STYLE] = self.styles.of(items, answer, answers=self.answers, device=device)
            rng = Rng(self.seed, ("translate", answer) if answer else ("translate",), index)
            with autocast(self.precision, device=device):
                images = translator.translate(inputs, rng, settings=self.settings)
            found.append(to_uint8(images).numpy())
        return np.stack(found, axis=1)

    def files(self, item: int) -> list[str]:
        """The files of an input's answers in a folder."""
        name = self.inputs.names[item]
        return [f"{name}.png"] if self.answers == 1 else [f"{name}_{answer}.png" for answer in range(self.answers)]

    def batches(self, items: Iterable[int], fits: Fits) -> Iterator[list[int]]:
        """The items in groups of one size."""
        by_size: dict[tuple[int, int], list[int]] = {}
        for item in items:
            by_size.setdefault(self.inputs.size(item), []).append(item)
        for size, group in by_size.items():
            step = fits(size)
            yield from (group[start : start + step] for start in range(0, len(group), step))


def require_translator(model: nn.Module) -> Translator:
    """The model as a translator; ConfigError where it is none."""
    if isinstance(model, Translator):
        return model
    name = type(model).__name__
    if isinstance(model, Upsampler):
        raise ConfigError("model", f"{name} enlarges images; use triptych sample RUN --base IMAGES")
    if isinstance(model, Sampler):
        raise ConfigError("model", f"{name} makes images of nothing; use triptych sample RUN")
    raise ConfigError("model", f"{name} translates no images")


def check_styles(model: Translator, *, given: bool, each: bool, answers: int, held_out: bool) -> None:
    """ConfigError where the model cannot make so many answers, or takes no styles, or needs some."""
    name = type(model).__name__
    if answers < 1:
        raise ConfigError("style_count", f"got {answers}, expected at least 1")
    if given and model.styles == "none":
        raise ConfigError("style", f"{name} takes no style from images; leave it out")
    if each and not given:
        raise ConfigError("style_each", "got true, but there are no style images to take in turn; give them by style")
    if model.styles == "required" and not given and not held_out:
        raise ConfigError("style", f"missing: {name} makes images with the look of others; give one or several of them")
    if answers > 1 and not each and (given or not model.random_styles):
        in_turn = "" if model.styles == "none" else "; take style images in turn by style_each"
        why = "all answers would have the one style that is given" if given else f"{name} draws no style at random: it has one answer"
        raise ConfigError("style_count", f"got {answers}, but {why}{in_turn}")


# Making -----------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def draw_translations(
    model: nn.Module, wanted: Translation, batches: Iterable[Sequence[int]], *, device: torch.device
) -> Iterator[tuple[Sequence[int], np.ndarray]]:
    """The answers to some inputs, batch by batch: (their numbers, uint8 (b, answers, h, w, c))."""
    training = model.training
    model.eval()
    for items in batches:
        yield items, wanted.made(model, items, device)
    model.train(training)


def gather_translations(
    model: nn.Module, wanted: Translation, *, fits: Fits, world: World, progress: Watch = unwatched
) -> list[np.ndarray]:
    """The answers to all inputs, in every process: each makes those of its share. Raises Stopped where `progress` does in one."""
    own = share(len(wanted.inputs), rank=world.rank, world_size=world.size)

    def made() -> dict[int, np.ndarray]:
        found: dict[int, np.ndarray] = {}
        progress(0, len(own))
        for items, images in draw_translations(model, wanted, wanted.batches(own, fits), device=world.device):
            found |= zip(items, images, strict=True)
            progress(len(found), len(own))
        return found

    parts = made_by_all(world, made)
    return [answers for part in parts for _, answers in sorted(part.items(), key=lambda entry: entry[0])]


def translate_to(
    out: Path,
    model: nn.Module,
    wanted: Translation,
    *,
    origin: dict[str, Any],
    grid_rows: int,
    fits: Fits,
    world: World,
    progress: Watch,
) -> Translations:
    """Makes what is missing of the request and writes it to `out` (see `check_target`).

    `origin` names the weights; files and pieces of another origin are not taken up. `progress` is told how many inputs are done, and of
    how many, in this process. Raises DataError where something cannot be written, or would be lost.
    """
    styles = None if wanted.styles is None else wanted.styles.origin
    asked = [wanted.inputs.origin, wanted.inputs.names, styles, wanted.answers, wanted.seed, wanted.settings.to_dict(), wanted.precision]
    digest = digest_of([*asked, origin])
    with writing(out, world=world, kept="made"):
        if out.suffix == ".npz":
            return _to_arrays(out, model, wanted, digest=digest, fits=fits, world=world, progress=progress)
        if out.suffix in PICTURES:
            made = gather_translations(model, wanted, fits=fits, world=world, progress=progress)
            if world.is_main:
                out.parent.mkdir(parents=True, exist_ok=True)
                save_picture(made[0][0], out)
            return Translations(wanted.inputs.names, made)
        return _to_folder(out, model, wanted, digest=digest, grid_rows=grid_rows, fits=fits, world=world, progress=progress)


def _to_arrays(out: Path, model: nn.Module, wanted: Translation, *, digest: str, fits: Fits, world: World, progress: Watch) -> Translations:
    count = len(wanted.inputs)
    world.on_main(lambda: _check_one_size(out, wanted.inputs))
    pieces = Pieces.of(out, identity=digest)
    own = share(count, rank=world.rank, world_size=world.size)
    missing = list(pieces.missing(own))
    done = len(own) - sum(map(len, missing))
    progress(done, len(own))
    for stretch in missing:
        for items, images in draw_translations(model, wanted, wanted.batches(stretch, fits), device=world.device):
            pieces.save(range(items[0], items[-1] + 1), {"images": images})
            done += len(items)
            progress(done, len(own))
    world.barrier()
    made = assembled(pieces.read(count), count)["images"]
    world.barrier()
    if world.is_main:
        save_npz(out, {"arr_0": made.reshape(-1, *made.shape[2:])})
        pieces.remove()
    return Translations(wanted.inputs.names, made)  # type: ignore[arg-type]  (an array of them is a sequence of them)


def _check_one_size(out: Path, inputs: Translatable) -> None:
    first = inputs.size(0)
    for item in range(1, len(inputs)):
        found = inputs.size(item)
        if found != first:
            sizes = f"{first[1]}x{first[0]}, {inputs.names[item]} would be {found[1]}x{found[0]}"
            raise DataError(f"{out}: holds images of one size, but {inputs.names[0]} would be {sizes}; write a folder, or choose a size")


def _to_folder(
    out: Path,
    model: nn.Module,
    wanted: Translation,
    *,
    digest: str,
    grid_rows: int,
    fits: Fits,
    world: World,
    progress: Watch,
) -> Translations:
    names = [name for item in range(len(wanted.inputs)) for name in wanted.files(item)]
    if grid_rows and GRID in names:
        raise ConfigError("grid", f"got {grid_rows}, but there is an input whose image is {GRID} itself; ask for no grid (0), or rename it")
    clash = set(names).intersection(parent.as_posix() for name in names for parent in PurePosixPath(name).parents)
    if clash:
        raise DataError(f"{out / min(clash)}: would have to be an image and a folder; rename one of the two inputs")
    world.on_main(lambda: _claim(out, [*names, *([GRID] if grid_rows else [])], digest))
    own = share(len(wanted.inputs), rank=world.rank, world_size=world.size)
    missing = [item for item in own if not all((out / name).is_file() for name in wanted.files(item))]
    done = len(own) - len(missing)
    progress(done, len(own))
    for items, images in draw_translations(model, wanted, wanted.batches(missing, fits), device=world.device):
        for item, answers in zip(items, images, strict=True):
            for name, image in zip(wanted.files(item), answers, strict=True):
                (out / name).parent.mkdir(parents=True, exist_ok=True)
                save_picture(image, out / name)
        done += len(items)
        progress(done, len(own))
    world.barrier()
    made = Translations(wanted.inputs.names, Written(out, [wanted.files(item) for item in range(len(wanted.inputs))]))
    if world.is_main and grid_rows:
        first = range(min(grid_rows, len(wanted.inputs)))
        write_rows(out / GRID, [row for item in first for row in _shown(model, wanted, [item], [made.images[item]])])
    world.barrier()
    return made


def _shown(model: nn.Module, wanted: Translation, items: Sequence[int], made: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    return rows(wanted.example(model, items, "cpu", truth=True), made, require_translator(model).sources)


class Written(Sequence[np.ndarray]):
    """Images in a folder, read when they are asked for: of each input uint8 (answers, h, w, c)."""

    def __init__(self, folder: Path, files: Sequence[Sequence[str]]) -> None:
        self._folder, self._files = folder, files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, item: int) -> np.ndarray:  # type: ignore[override]  (no slices)
        return np.stack([_read(self._folder / name) for name in self._files[item]])


def _read(path: Path) -> np.ndarray:
    try:
        with Image.open(path, formats=("PNG",)) as image:
            pixels = np.asarray(image)
    except Exception as error:
        raise failure(str(path), error) from error
    return pixels.reshape(*pixels.shape[:2], -1)


# Where it goes ----------------------------------------------------------------------------------------------------------


def check_target(out: Path, *, read: Sequence[Any], count: int) -> None:
    """DataError where `count` images cannot be written to `out`, or should not: it is, or lies in, what is read.

    `out`: a folder, a .npz for arr_0 uint8 (inputs x answers, h, w, c), or a picture where there is one image.
    """
    check_place(out)
    if out.suffix not in OUTPUTS:
        raise DataError(f"{out}: translations are written as a folder, .npz or, of one image, .png, .jpg or .webp, not as {out.suffix}")
    if not out.suffix and out.is_file():
        raise DataError(f"{out} is a file; name a folder, or end the name in .png or .npz")
    if out.suffix in PICTURES and count > 1:
        raise DataError(f"{out}: one image, but there are {count} to write; name a folder, or end the name in .npz")
    for path in (user_path(given) for given in read if isinstance(given, str | Path)):
        check_kept(out, path)
        if path.is_dir() and path.resolve() in (out.resolve(), *out.resolve().parents):
            raise DataError(f"cannot write {out}: it lies in {path}, which is read; choose another --out")


def _claim(out: Path, names: list[str], digest: str) -> None:
    """Makes `out` ready for files of these names: removes what another request made of them. Raises DataError for any other file."""
    made, before = _stamped(out)
    foreign = next((name for name in names if name not in made and (out / name).exists()), None)
    if foreign is not None:
        raise DataError(f"{out / foreign} is there already, and no translation made it; choose another --out, or remove it")
    if before != digest:
        left = next((name for name in sorted(made - {*names, GRID}) if (out / name).exists()), None)
        if left is not None:
            raise DataError(
                f"{out} already holds {left} of another translation, which would be mixed with the new images; choose another --out "
                "or empty it"
            )
        for name in made:
            (out / name).unlink(missing_ok=True)
        made = set()
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / STAMP, json.dumps({"request": digest, "files": sorted(made.union(names))}, indent=0) + "\n")


def _stamped(out: Path) -> tuple[set[str], str | None]:
    """The files that translations made in a folder, and the last request; nothing where no stamp can be read."""
    try:
        stamp = parsed_json((out / STAMP).read_text("utf-8"))
        made, request = {str(name) for name in stamp["files"]}, str(stamp["request"])
    except (OSError, ValueError, TypeError, KeyError):
        return set(), None
    return (made, request) if all(map(is_inside, made)) else (set(), None)  # what is made may be deleted, but nothing elsewhere


# Training ---------------------------------------------------------------------------------------------------------------


def translated_grids(model: nn.Module, data: Data, *, count: int, precision: str, batch_size: int, world: World) -> dict[str, Grid]:
    """What draws pictures of the first held-out (else training) samples: one, and one for each of the model's further settings."""
    images = data.train if data.validation is None else data.validation
    inputs = HeldOut(images, data.spec, count=min(count, _TRAINING_ROWS, len(images)))

    def grid(settings: Config) -> Grid:
        def draw(path: Path, watch: Watch) -> None:
            wanted = Translation(inputs, None, 1, 0, settings, precision)
            made = gather_translations(model, wanted, fits=lambda size: batch_size, world=world, progress=watch)
            if world.is_main:
                write_rows(path, _shown(model, wanted, range(len(inputs)), made))

        return draw

    settings: dict[str, Config] = {"": require_translator(model).translation}
    settings |= {f"-{name}": further for name, further in getattr(model, "grids", {}).items()}
    return {ending: grid(chosen) for ending, chosen in settings.items()}
