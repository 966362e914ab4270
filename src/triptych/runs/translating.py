"""Translations by a trained model: images of one kind made from images, or maps, of another.

`translate` opens the inputs and the styles, says where a call cannot succeed, opens the run, and makes the answers in batches of one size.
They go to a folder (see image_folder.py), or as other work to one file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import nn

from triptych.core.batch import STYLE
from triptych.core.config import Config, settings_like
from triptych.core.errors import ConfigError, DataError
from triptych.core.files import OUTPUTS, PICTURES
from triptych.core.finetuning import Finetuned, Finetuning
from triptych.core.given import given_path, optional_place, shown, whole_number
from triptych.core.images import save_picture, to_uint8
from triptych.core.model import Sampler, Upsampler
from triptych.core.rng import Rng
from triptych.core.translation import Example, Translator, VideoTranslator
from triptych.data.clip_files import clips_of
from triptych.data.config import DataConfig
from triptych.data.images import Data
from triptych.data.stored import evenly_spaced
from triptych.data.videos import pyav
from triptych.engine.callables import Grid
from triptych.engine.distributed import World
from triptych.engine.precision import autocast
from triptych.engine.progress import Watch, unwatched
from triptych.runs.clip_videos import RATE, VIDEOS, Filmed, VideoSettings, in_videos
from triptych.runs.files import check_apart, check_place, check_unlearned, save_npz, writing
from triptych.runs.finetuning import finetune
from triptych.runs.first_frames import FirstFrames, open_still_images, run_first_frames
from triptych.runs.given.sizes import OutputSize
from triptych.runs.given.translation import (
    GivenInputs,
    HeldOut,
    InputsLike,
    Styles,
    Translatable,
    open_held_out,
    open_inputs,
    open_styles,
)
from triptych.runs.image_folder import GRID, Folder
from triptych.runs.loading import Loading, LoadingKeywords
from triptych.runs.pieces import digest_of
from triptych.runs.stored import Opened, StoredRun
from triptych.runs.translation_grid import rows, write_rows
from triptych.runs.video import Clips, frames_in_memory, learn_nothing, make_missing_frames, whole_clip
from triptych.runs.work import Part, Within, Work, assembled, done, evaluating, in_memory, make_missing

GRID_ROWS = 16
"""Rows of the picture in a folder where nothing is said."""

_NAMED = 3  # clips that a message names, at most
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
    first: str | Path | np.ndarray | None = None,
    video: VideoSettings | None = None,
    progress: Watch = unwatched,
    **loading: Unpack[LoadingKeywords],
) -> Translations:
    """What the model makes of the first `count` inputs, in every process. Answer j to input k depends on the seed, that input, k and j.

    `inputs`: a path (a folder has a sub-folder for each of the model's sources where there are several), or arrays by the names of
    the sources; None: the run's held-out images. `style`: images whose look is taken, all of them together, or, with `style_each`, in
    turn, input by input; `style_count`: answers to each input. `size`: None for the run's; "own"; the short side; or height and width.
    `out`: a folder, with a picture of the first `grid` inputs (of clips: of so many over their length); a .npz; of one image, a picture;
    or of one clip a video (.mp4, .webm). By the settings of `video` a folder is one of videos, one of each clip. An interrupted call goes
    on where it was. A model of clips makes the frames of each of them in order, into a folder, videos or (None) memory; of held-out clips
    the last frames. `first`: images that clips begin with, in the place of the first frame that is made: one for all clips, or for each.
    `progress` is told how many of this process's inputs are done, and how many there are.
    Raises ConfigError, CheckpointError and DataError for what does not fit or cannot be read or written.
    """
    grid, seed = whole_number(grid, "grid", least=0), whole_number(seed, "seed", least=0)
    count = None if count is None else whole_number(count, "count", least=1)
    _check_given(video, inputs=inputs, style=style, first=first)
    translator, data = require_translator(run.outline), run.config.data
    check_styles(translator, styled=style is not None, each=style_each, answers=style_count, held_out=inputs is None)
    if inputs is None:
        opened_inputs = open_held_out(data, run.spec, size=size, count=count)
    else:
        opened_inputs = open_inputs(inputs, translator, config=data, spec=run.spec, size=size, count=count)
    styles = None if style is None else open_styles(style, translator, config=data, spec=run.spec, each=style_each, size=size)
    chosen = settings_like(translator.translation, settings)
    stills = open_still_images(first, translator, run=run, size=size, settings=chosen, held_out=inputs is None)
    place, video = optional_place(out, "out"), video or VideoSettings()
    filming = _films(place, video)
    if filming:
        _check_video(opened_inputs, style_count, filming, grid=grid)
    _check_place(place, data, read=(inputs, style), count=len(opened_inputs) * style_count)
    clips = None
    if isinstance(translator, VideoTranslator) and isinstance(opened_inputs, GivenInputs):
        _check_frames(place, filmed=filming is not None)
        clips = Clips.of(opened_inputs, settings=chosen, first=stills, styles=styles)
    how = _finetuning(translator, chosen, styled=styles is not None, each=style_each)
    opened = run.open_together(Loading(**loading))
    learn = _learning(run, opened, styles, how, seed=seed, progress=progress)
    begins, precision = stills or run_first_frames(first, run, opened, settings=chosen, seed=seed), opened.loading.precision
    clips = None if clips is None else replace(clips, first=begins, precision=precision, learn=learn)
    wanted = Translation(opened_inputs, styles, style_count, seed, chosen, precision, begins, clips, learn)
    work = _work(opened.model, wanted, opened.batch_size, opened.world.device, opened.origin)
    if filming:
        filmed = _filmed(work, wanted, opened.model, world=opened.world, progress=progress)
        own = opened_inputs.rates if isinstance(opened_inputs, GivenInputs) else {}
        rates = {clip: video.rate or own.get(clip, RATE) for clip in filmed.clips}
        made = in_videos(filmed, filming, video, rates=rates, grid_rows=grid, world=opened.world)
    elif clips is not None and isinstance(opened.model, VideoTranslator) and place is None:
        made = frames_in_memory(opened.model, clips, device=opened.world.device, progress=progress)
    elif place is None or place.suffix:
        made = _in_one_file(work, wanted, place, world=opened.world, progress=progress)
    else:
        made = _in_folder(work, wanted, opened.model, place, grid_rows=grid, world=opened.world, progress=progress)
    return Translations(opened_inputs.names, made)


def _check_given(video: object, **sources: object) -> None:
    """Raises ConfigError for settings of videos that are none, and for an empty path, which would be the current folder."""
    if not isinstance(video, VideoSettings | None):
        raise ConfigError("video", f"got {shown(video)}, expected VideoSettings")
    for name, given in sources.items():
        if isinstance(given, str):
            given_path(given, name)


def _finetuning(translator: Translator, settings: Config, *, styled: bool, each: bool) -> Finetuning | None:
    """How long the model learns from the style images first. Raises ConfigError where there are none for that."""
    how = translator.finetuning(settings) if isinstance(translator, Finetuned) else None
    if how is not None and each:
        reason = f"got {how.steps} beside {{}}, but all style images are learned together; leave one of them out"
        raise ConfigError("finetune", reason, ["style_each"])
    if how is not None and not styled:
        raise ConfigError("finetune", f"got {how.steps}, but there are no style images to learn; give some by {{}}", ["style"])
    return how


def _learning(
    run: StoredRun, opened: Opened, styles: Styles | None, how: Finetuning | None, *, seed: int, progress: Watch
) -> Callable[[], None]:
    """What finetunes the opened model on all style images when it is called first, and then no more; without `how` it does nothing."""
    if how is None or styles is None:
        return learn_nothing

    @functools.cache
    def learn() -> None:
        look = styles.of([0], 0, answers=1, device=opened.world.device)
        finetune(opened.model, look, how=how, optim=run.config.optim, seed=seed, progress=progress)

    return learn


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
    first: FirstFrames | None = None
    "What clips begin with."
    clips: Clips | None = None
    "The clips of a user, which are made frame by frame."
    learn: Callable[[], None] = learn_nothing
    "What the model learns before it makes the first of them, once."

    def example(self, model: nn.Module, items: Sequence[int], device: torch.device | str, *, truth: bool = False) -> Example:
        """The model's input for some items of one size, with the style of the first answer. `truth`: with the target image, where known."""
        example = self.inputs.example(require_translator(model), items, device=device, settings=self.settings, truth=truth)
        inputs = dict(example.inputs)
        if self.styles is not None:
            styled = items if self.clips is None else [self.clips.of_frame[item] for item in items]
            inputs |= self.styles.of(styled, 0, answers=self.answers, device=device)
        elif self.answers > 1:
            inputs.pop(STYLE, None)  # that held-out images may come with: each answer has a random one instead
        return Example(inputs, example.truth)

    def made(self, model: nn.Module, items: Sequence[int], device: torch.device) -> np.ndarray:
        """All answers to inputs of one size: uint8 (b, answers, h, w, c)."""
        self.learn()
        translator, inputs = require_translator(model), dict(self.example(model, items, device).inputs)
        if self.first is not None and isinstance(translator, VideoTranslator):  # held-out clips; those of a user are made frame by frame
            how = {"settings": self.settings, "precision": self.precision, "device": device, "first": self.first}
            clips = [{name: maps[k : k + 1] for name, maps in inputs.items()} for k in range(len(items))]
            made = (whole_clip(translator, item, clip, **how) for item, clip in zip(items, clips, strict=True))
            return np.stack([frames[-1] for frames in made])[:, None]
        index, answers = torch.as_tensor(items, device=device), []
        for answer in range(self.answers):
            if self.styles is not None and answer > 0:
                inputs |= self.styles.of(items, answer, answers=self.answers, device=device)
            rng = Rng(self.seed, ("translate", answer) if answer else ("translate",), index)
            with autocast(self.precision, device=device):
                images = translator.translate(inputs, rng, settings=self.settings)
            answers.append(to_uint8(images).numpy())
        return np.stack(answers, axis=1)

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


def check_styles(model: Translator, *, styled: bool, each: bool, answers: int, held_out: bool) -> None:
    """ConfigError where the model cannot make so many answers, or takes no styles, or needs some."""
    name = type(model).__name__
    whole_number(answers, "style_count", least=1)
    if answers > 1 and isinstance(model, VideoTranslator) and model.styles != "none":
        raise ConfigError("style_count", f"got {answers}, but {name} makes one clip of each; call it again with other style images")
    if styled and model.styles == "none":
        raise ConfigError("style", f"{name} takes no style from images; leave it out")
    if each and not styled:
        raise ConfigError("style_each", "got true, but there are no style images to take in turn; give them by {}", ["style"])
    if model.styles == "required" and not styled and not held_out:
        raise ConfigError("style", f"missing: {name} makes images with the look of others; give one or several of them")
    if answers > 1 and not each and (styled or not model.random_styles):
        in_turn = "" if model.styles == "none" else "; take style images in turn by {}"
        why = "all answers would have the one style that is given" if styled else f"{name} draws no style at random: it has one answer"
        raise ConfigError("style_count", f"got {answers}, but {why}{in_turn}", ["style_each"])


# Making -----------------------------------------------------------------------------------------------------------------


def _work(model: nn.Module, wanted: Translation, fits: Fits, device: torch.device, origin: Mapping[str, Any] | None = None) -> Work:
    """The work of making all that is wanted. `origin`: where the weights are from."""

    def make(items: Sequence[int], within: Within) -> Iterator[Part]:
        for batch in wanted.batches(items, fits):
            with evaluating(model):
                made = wanted.made(model, batch, device)
            yield batch, {"images": made}

    inputs, styles = [wanted.inputs.origin, wanted.inputs.names], None if wanted.styles is None else wanted.styles.origin
    drawn = require_translator(model).random_styles or wanted.first is not None or wanted.learn is not learn_nothing
    seed = wanted.seed if drawn else 0  # where nothing is random, what one seed made is what another makes
    asked = [*inputs, styles, wanted.answers, seed, wanted.settings.to_dict(), wanted.precision, origin]
    asked += [] if wanted.first is None else [wanted.first.origin]
    return Work(len(wanted.inputs), digest_of(asked), make)


def _by_input(parts: Iterable[Part], count: int) -> list[np.ndarray]:
    """The answers to each input: uint8 (answers, h, w, c)."""
    made: dict[int, np.ndarray] = {}
    for items, arrays in parts:
        made |= zip(items, arrays["images"], strict=True)
    return [made[item] for item in range(count)]


def _in_one_file(work: Work, wanted: Translation, out: Path | None, *, world: World, progress: Watch) -> Sequence[np.ndarray]:
    """The answers to each input, in every process; also written to `out`, an .npz or a picture."""
    arrays = False
    if out is not None and out.suffix == ".npz":
        arrays = True
        world.on_main(lambda: _check_one_size(out, wanted.inputs, range(work.count)))

    def conclude(parts: Iterable[Part]) -> Any:  # an array of arrays is a sequence of them
        return assembled(parts, work.count)["images"] if arrays else _by_input(parts, work.count)

    def write(out: Path, made: Any) -> None:
        if arrays:
            save_npz(out, {"arr_0": made.reshape(-1, *made.shape[2:])})
        else:
            save_picture(made[0][0], out)

    return done(work, out, world=world, progress=progress, kept="made", conclude=conclude, write=write)


def _check_one_size(out: Path, inputs: Translatable, items: Sequence[int]) -> None:
    first = inputs.size(items[0])
    for item in items[1:]:
        size = inputs.size(item)
        if size != first:
            sizes = f"{first[1]}x{first[0]}, {inputs.names[item]} would be {size[1]}x{size[0]}"
            raise DataError(
                f"{out}: holds images of one size, but {inputs.names[items[0]]} would be {sizes}; write a folder, or choose a size"
            )


def _in_folder(work: Work, wanted: Translation, model: nn.Module, out: Path, *, grid_rows: int, world: World, progress: Watch) -> Folder:
    folder = Folder(out, [wanted.files(item) for item in range(work.count)], grid_rows=grid_rows)
    with writing(out, world=world, kept="made"):
        world.on_main(lambda: folder.claim(work.identity))
        _make_all(work, wanted, model, folder, world=world, progress=progress)
        if world.is_main and grid_rows:
            shown = range(min(grid_rows, work.count))
            if isinstance(model, VideoTranslator):
                shown = map(int, evenly_spaced(work.count, grid_rows))
            write_rows(out / GRID, [row for item in shown for row in _shown(model, wanted, [item], [folder[item]])])
        world.barrier()
    return folder


def _make_all(work: Work, wanted: Translation, model: nn.Module, folder: Folder, *, world: World, progress: Watch) -> None:
    """Makes what a folder lacks, of clips frame by frame; when it returns, all processes have."""
    if isinstance(model, VideoTranslator) and wanted.clips is not None:
        make_missing_frames(model, wanted.clips, folder, device=world.device, world=world, progress=progress)
    else:
        make_missing(work, folder, world=world, progress=progress)
    world.barrier()


def _filmed(work: Work, wanted: Translation, model: nn.Module, *, world: World, progress: Watch) -> Filmed:
    """What becomes videos."""
    return Filmed(
        clips=clips_of(wanted.inputs.names),
        files=[wanted.files(item) for item in range(work.count)],
        digest=work.identity,
        make=lambda folder: _make_all(work, wanted, model, folder, world=world, progress=progress),
        show=lambda item, answers: _shown(model, wanted, [item], [answers])[0],
    )


def _films(out: Path | None, settings: VideoSettings) -> Path | None:
    """The video, or the folder of them, that is asked for. Raises ConfigError for settings that none takes."""
    if out is not None and out.suffix in VIDEOS:
        if settings.kind is not None:
            raise ConfigError("video", f"got {settings.kind}, for a video of each clip in a folder, but {out} is one file; leave it out")
        return out
    if settings.kind is not None:
        if out is None or out.suffix:
            raise ConfigError("video", f"got {settings.kind}, but there is no folder for a video of each clip; name one")
        return out
    for name, value in (("compare", settings.compare), ("fps", settings.rate)):
        if value:
            raise ConfigError(
                name, f"got {value}, but no video is written; name one, as made.mp4, or ask for a folder of them by {{}}", ["video"]
            )
    return None


def _check_frames(out: Path | None, *, filmed: bool) -> None:
    """Raises DataError for a file that frames are to go to, unless it is `filmed`."""
    if out is not None and out.suffix and not filmed:
        instead = f"name one, without {out.suffix}, or a video (.mp4)"
        raise DataError(f"{out}: the frames of clips are written to a folder, as they are made; {instead}")


def _check_video(inputs: Translatable, answers: int, out: Path, *, grid: int) -> None:
    """Raises ConfigError and DataError for what is no clip, before it is made. `out`: a video, or a folder of them."""
    pyav(out)
    what = "a video" if out.suffix else "a folder of videos"
    if isinstance(inputs, HeldOut):
        raise ConfigError("held_out", f"got true, but {out} is {what}: name a clip")
    if answers > 1:
        raise ConfigError("style_count", f"got {answers}, but {out} is {what}: it has one answer; ask for 1, or name a folder of images")
    if out.suffix and grid not in (0, GRID_ROWS):
        raise ConfigError("grid", f"got {grid}, but {out} is one video, with no picture beside it; leave it out, or name a folder")
    clips = clips_of(inputs.names)
    if len(clips) > 1 and out.suffix:
        some = ", ".join([*list(clips)[:_NAMED], *(["..."] if len(clips) > _NAMED else [])])
        reason = f"{out}: one video, but there are {len(clips)} clips ({some}); name one of them, or a folder for a video of each"
        raise DataError(f"{reason} (--video {out.suffix[1:]})")
    for clip in clips.values():
        _check_one_size(out, inputs, clip)


def _shown(model: nn.Module, wanted: Translation, items: Sequence[int], made: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    return rows(wanted.example(model, items, "cpu", truth=True), made, require_translator(model).sources)


# Where it goes ----------------------------------------------------------------------------------------------------------


def _check_place(place: Path | None, data: DataConfig, *, read: Sequence[Any], count: int) -> None:
    if place is not None:
        check_target(place, read=read, count=count)
        check_unlearned(place, data)


def check_target(out: Path, *, read: Sequence[Any], count: int) -> None:
    """DataError where `count` images cannot be written to `out`, or should not: it is, or lies in, what is read.

    `out`: a folder, a .npz for arr_0 uint8 (inputs x answers, h, w, c), or a picture where there is one image.
    """
    check_place(out)
    if out.suffix not in (*OUTPUTS, *VIDEOS):
        kinds = "a folder, .npz, of one image .png, .jpg or .webp, or of a clip .mp4 or .webm"
        raise DataError(f"{out}: translations are written as {kinds}, not as {out.suffix}")
    if not out.suffix and out.is_file():
        raise DataError(f"{out} is a file; name a folder, or end the name in .png, .npz or .mp4")
    if out.suffix in PICTURES and count > 1:
        raise DataError(f"{out}: one image, but there are {count} to write; name a folder, or end the name in .npz")
    check_apart(out, *read)


# Training ---------------------------------------------------------------------------------------------------------------


def translated_grids(model: nn.Module, data: Data, *, count: int, precision: str, batch_size: int, world: World) -> dict[str, Grid]:
    """What draws pictures of the first held-out (else training) samples: one, and one for each of the model's further settings."""
    images = data.looked_at
    inputs = HeldOut(images, data.spec, count=min(count, _TRAINING_ROWS, len(images)))

    def grid(settings: Config) -> Grid:
        def draw(path: Path, watch: Watch) -> None:
            wanted = Translation(inputs, None, 1, 0, settings, precision)
            parts = in_memory(_work(model, wanted, lambda size: batch_size, world.device), world, watch)
            if world.is_main:
                write_rows(path, _shown(model, wanted, range(len(inputs)), _by_input(parts, len(inputs))))

        return draw

    settings: dict[str, Config] = {"": require_translator(model).translation}
    settings |= {f"-{name}": further for name, further in getattr(model, "grids", {}).items()}
    return {ending: grid(chosen) for ending, chosen in settings.items()}
