"""What clips begin with in the place of frames that their model makes: still images, or what a run of single images makes of their maps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from triptych.core.batch import InputSpec
from triptych.core.config import Config
from triptych.core.errors import ConfigError, DataError
from triptych.core.images import to_uint8
from triptych.core.rng import Rng
from triptych.core.translation import Translator, VideoTranslator
from triptych.core.wording import counted
from triptych.engine.precision import autocast
from triptych.engine.run_directory import RunDirectory, run_and_checkpoint
from triptych.runs.given.collection import Collection
from triptych.runs.given.sizes import OutputSize
from triptych.runs.given.translation import open_first
from triptych.runs.loading import Loading
from triptych.runs.stored import Opened, StoredRun
from triptych.runs.work import evaluating


class FirstFrames(ABC):
    """The first frames of clips, by their numbers."""

    origin: Any
    "Changes when they change; JSON can hold it."

    @abstractmethod
    def check(self, clips: int) -> None:
        """Raises DataError where they are not for so many clips."""

    @abstractmethod
    def frame(self, clip: int, t: int, inputs: Mapping[str, Tensor]) -> np.ndarray | None:
        """Frame t of a clip, uint8 (h, w, c), with the maps `inputs` of it; None: the clip's model makes it.

        Raises DataError and ConfigError for one that does not fit.
        """


class StillImages(FirstFrames):
    """An image for each clip, or one for all of them."""

    def __init__(self, images: Collection) -> None:
        self._images, self.origin = images, images.origin
        self._order = images.in_order()

    def check(self, clips: int) -> None:
        """Raises DataError unless there is one image, or one for each clip."""
        if len(self._images) not in (1, clips):
            found = f"{len(self._images):,} first frames for {counted(clips, 'clip')}"
            raise DataError(f"{self._images.name}: {found}; give one for all, or one for each")

    def frame(self, clip: int, t: int, inputs: Mapping[str, Tensor]) -> np.ndarray | None:
        """The image as the first frame. Raises ConfigError for one of another size than the clip's."""
        if t > 0:
            return None
        image = self._order[min(clip, len(self._order) - 1)]
        pixels, (height, width) = self._images.read(image)[1], next(iter(inputs.values())).shape[-2:]
        if pixels.shape[:2] != (height, width):
            found = f"{pixels.shape[1]}x{pixels.shape[0]} pixels as its own size, but the clip has {width}x{height}"
            raise ConfigError("size", f"{self._images.items.describe(image)} has {found}; make it that size, or give a size for all")
        return pixels


@dataclass(frozen=True)
class SingleImages(FirstFrames):
    """The first frames made one by one by the model of another run, all of a clip in one random style where it draws styles."""

    model: Translator
    count: int
    "Frames of each clip."
    seed: int
    precision: str
    device: torch.device
    origin: Any

    def check(self, clips: int) -> None:
        """Nothing: they are made for as many clips as there are."""

    def frame(self, clip: int, t: int, inputs: Mapping[str, Tensor]) -> np.ndarray | None:
        """Frame t of the first `count`. Raises ConfigError for maps of sides that the model does not take."""
        if t >= self.count:
            return None
        maps = {source.name: inputs[source.name] for source in self.model.sources}
        rng = Rng(self.seed, ("translate", "first"), torch.tensor([clip], device=self.device))
        assert isinstance(self.model, torch.nn.Module)
        try:
            with evaluating(self.model), autocast(self.precision, device=self.device):
                image = self.model.translate(maps, rng, settings=self.model.translation)
        except ConfigError as error:
            raise ConfigError("first", f"its model does not take the maps of these clips ({error})") from None
        return to_uint8(image).numpy()[0]


def is_run(first: Any) -> TypeGuard[str | Path]:
    """Whether the first frames that were asked for are those of a run: a path to one, or to one of its checkpoints."""
    return isinstance(first, str | Path) and RunDirectory(run_and_checkpoint(first)[0]).exists()


def single_image_run(place: str | Path, translator: VideoTranslator) -> tuple[StoredRun, str | None]:
    """The run at `place`, and the checkpoint that it names. Raises ConfigError where it does not make frames of the clips' maps."""
    directory, checkpoint = run_and_checkpoint(place)
    run = StoredRun(RunDirectory(directory))
    model, name = run.outline, type(run.outline).__name__
    if not isinstance(model, Translator) or isinstance(model, VideoTranslator):
        what = "makes clips" if isinstance(model, VideoTranslator) else "translates no images"
        raise ConfigError("first", f"got {str(place)!r}, but {name} {what}; name a run that makes single images of label maps")
    if model.styles == "required":
        raise ConfigError("first", f"got {str(place)!r}, but {name} needs style images")
    if model.output_channels != translator.output_channels:
        channels = f"{model.output_channels} channels, the clips {translator.output_channels}"
        raise ConfigError("first", f"got {str(place)!r}, which makes images of {channels}")
    theirs = {source.name: _kind(source) for source in translator.sources}
    for source in model.sources:
        if theirs.get(source.name) != _kind(source):
            there = ", ".join(_in_words(one) for one in translator.sources)
            raise ConfigError("first", f"got {str(place)!r}, which makes images of {_in_words(source)}, but the clips have {there}")
    return run, checkpoint


def open_still_images(
    first: str | Path | np.ndarray | None, model: Any, *, run: StoredRun, size: OutputSize, settings: Config, held_out: bool
) -> StillImages | None:
    """The still images that clips of a run's model begin with; None where `first` is a run, or nothing. Raises ConfigError and DataError.

    `settings`: those of the translation, which must not ask for frames of a run where there is none.
    `held_out`: of the run's own clips, whose first frames are there; a run may make them again, a still image is none of theirs.
    """
    if isinstance(model, VideoTranslator) and not is_run(first) and (first is not None or not run.paths.first_frames.exists()):
        asked = model.first_frames(settings)
        if first is not None and asked < 1:
            raise ConfigError("first_frames", f"got {asked}, but clips shall begin with an image: set it to 1, or leave the image out")
        if asked > 1 and asked != model.first_frames(model.translation):
            raise ConfigError("first_frames", f"got {asked}, but no run makes the first frames; name one by {{}}", ["first"])
    if first is None:
        return None
    if not isinstance(model, VideoTranslator):
        named = "a run" if is_run(first) else "an image"
        raise ConfigError("first", f"got {named}, but {type(model).__name__} makes each image by itself; leave it out")
    if is_run(first):
        single_image_run(first, model)
        return None
    if held_out:
        raise ConfigError("first", "got an image, but held-out clips are made from their first frame on; leave it out, or name a run")
    return StillImages(open_first(first, model, config=run.config.data, spec=run.spec, size=size))


def run_first_frames(first: Any, run: StoredRun, opened: Opened, *, settings: Config | None = None, seed: int = 0) -> SingleImages | None:
    """The first frames as the run that `first` names makes them, else as the one that `run` keeps for them; None where it keeps none.

    There are as many as `settings` (None: those of the run) say. Raises ConfigError for a run that does not make such frames of the maps of
    the clips, CheckpointError where its weights are missing.
    """
    model, kept = opened.model, run.paths.first_frames
    if not isinstance(model, VideoTranslator) or not (is_run(first) or kept.exists()):
        return None
    source, checkpoint = single_image_run(first if is_run(first) else kept.root, model)
    precision, device = opened.loading.precision, opened.loading.device
    found = source.open(Loading(checkpoint=checkpoint or "latest", precision=precision, device=device))
    assert isinstance(found.model, Translator)
    count = model.first_frames(settings or model.translation)
    origin = [found.origin, found.model.translation.to_dict(), count]
    return SingleImages(found.model, count, seed, precision, found.world.device, origin)


def _kind(source: InputSpec) -> tuple[Any, ...]:
    return source.kind, source.channels, source.num_classes, source.dont_care


def _in_words(source: InputSpec) -> str:
    count = source.num_classes or source.channels
    return f"{source.name} ({source.kind}{'' if count is None else f', {count}'}{' and the ignore index' if source.dont_care else ''})"
