"""Clips made by a trained run, frame by frame: each is made of its maps and of the frames before it, as they were written.

The frames of a clip are made one after the other and go to a folder at once, so that the length of a clip costs no memory. The next frame
sees the frames before it as they lie there, with 8 bits: an interrupted command goes on at the frame where it was, to the same bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from triptych.core.config import Config
from triptych.core.errors import ConfigError
from triptych.core.images import to_uint8
from triptych.core.translation import VideoTranslator
from triptych.data.clip_files import clips_of
from triptych.engine.distributed import World
from triptych.engine.precision import autocast
from triptych.engine.progress import Watch
from triptych.runs.first_frames import FirstFrames
from triptych.runs.given.translation import GivenInputs, Styles
from triptych.runs.image_folder import Folder


def learn_nothing() -> None:
    """Of a model that makes frames as it is."""


@dataclass(frozen=True)
class Clips:
    """The clips to be made: the frames of each, by their numbers among the inputs, in order."""

    inputs: GivenInputs
    clips: Sequence[Sequence[int]]
    settings: Config
    precision: str = "float32"
    first: FirstFrames | None = None
    "What clips begin with; None: the first frames are made too."
    styles: Styles | None = None
    "What they look like, each like all style images, or like the one that is its turn."
    learn: Callable[[], None] = learn_nothing
    "What the model learns before it makes a frame."

    @classmethod
    def of(cls, inputs: GivenInputs, *, settings: Config, first: FirstFrames | None = None, styles: Styles | None = None) -> Clips:
        """Those of inputs by sub-folder, or by the beginnings of their names.

        Raises ConfigError for frames of a clip of several sizes and for style images of another one, DataError for first frames that do
        not fit.
        """
        clips, sizes = list(clips_of(inputs.names).values()), dict[tuple[int, int], str]()
        for frames in clips:
            expected = inputs.size(frames[0])
            for frame in frames[1:]:
                size = inputs.size(frame)
                if size != expected:
                    found = f"{size[1]}x{size[0]} pixels, but {inputs.names[frames[0]]} of the same clip {expected[1]}x{expected[0]}"
                    raise ConfigError("size", f"{inputs.names[frame]} would have {found}; give run, or a size for all frames of a clip")
            sizes.setdefault(expected, inputs.names[frames[0]])
        if styles is not None:
            for size, name in sizes.items():
                styles.check_size(size, name)
        if first is not None:
            first.check(len(clips))
        return cls(inputs, clips, settings, first=first, styles=styles)

    @functools.cached_property
    def of_frame(self) -> Mapping[int, int]:
        """Of each frame its clip."""
        return {frame: number for number, frames in enumerate(self.clips) for frame in frames}

    def maps(self, model: VideoTranslator, frame: int, device: torch.device) -> Mapping[str, Tensor]:
        """What the model makes a frame of."""
        return self.inputs.example(model, [frame], device=device, settings=self.settings, truth=False).inputs

    def maker(self, model: VideoTranslator, clip: int, device: torch.device) -> ClipMaker:
        """What makes the frames of one of the clips."""
        look = None if self.styles is None else self.styles.of([clip], 0, answers=1, device=device)
        return ClipMaker(model, clip, look, settings=self.settings, precision=self.precision, device=device, first=self.first)


def seen_again(frames: Sequence[np.ndarray], device: torch.device) -> Tensor:
    """Frames that were made, uint8 (h, w, c) each, as the next one is shown them: (1, p, c, h, w), the middle of what becomes a level."""
    levels = torch.from_numpy(np.stack(frames)[None]).to(device).movedim(-1, -3)
    return (levels.to(torch.get_default_dtype()) + 0.5) / 127.5 - 1


class ClipMaker:
    """Makes the frames of a clip in order."""

    def __init__(
        self,
        model: VideoTranslator,
        clip: int,
        look: Mapping[str, Tensor] | None = None,
        *,
        settings: Config,
        precision: str,
        device: torch.device,
        first: FirstFrames | None,
    ) -> None:
        """`look`: the model's `style_sources` (1, k, ...), where it has some."""
        self._model, self._clip, self._settings, self._first = model, clip, settings, first
        self._precision, self._device = precision, device
        self._look = look or {}
        self._past: list[Mapping[str, Tensor]] = []
        self._made: list[np.ndarray] = []
        self._memory: Mapping[str, Tensor] = {}

    def seen(self, inputs: Mapping[str, Tensor], made: np.ndarray) -> None:
        """Takes a frame that was made before, uint8 (h, w, c), with its maps."""
        if self._model.remembers:
            self._memory = self._model.remembered({**inputs, **self._memory}, seen_again([made], self._device)[:, 0])
        most = self._model.past_frames
        self._past, self._made = [*self._past, inputs][-most:], [*self._made, made][-most:]

    def next(self, t: int, inputs: Mapping[str, Tensor]) -> np.ndarray:
        """Frame t of its maps, uint8 (h, w, c): the one that the clip begins with, or made."""
        pixels = None if self._first is None else self._first.frame(self._clip, t, inputs)
        if pixels is None:
            made = seen_again(self._made, self._device) if self._made else None
            with torch.no_grad(), autocast(self._precision, device=self._device):
                image = self._model.next_frame({**inputs, **self._look, **self._memory}, self._past, made, settings=self._settings)
            pixels = to_uint8(image).numpy()[0]
        self.seen(inputs, pixels)
        return pixels


def make_missing_frames(
    model: VideoTranslator, wanted: Clips, folder: Folder, *, device: torch.device, world: World, progress: Watch
) -> None:
    """Makes the frames that a folder lacks, each process those of whole clips. `progress` is told of the frames of this process."""
    missing = {item for group in folder.missing(range(len(wanted.inputs))) for item in group}
    mine = range(world.rank, len(wanted.clips), world.size)
    done, count = 0, sum(len(wanted.clips[clip]) for clip in mine)
    for clip in mine:
        frames = wanted.clips[clip]
        there = next((t for t, frame in enumerate(frames) if frame in missing), len(frames))
        maker = wanted.maker(model, clip, device)
        first = 0 if model.remembers else max(0, there - model.past_frames)
        for frame in frames[first:there] if there < len(frames) else ():
            maker.seen(wanted.maps(model, frame, device), folder[frame][0])
        done += there
        progress(done, count)
        if there < len(frames):
            wanted.learn()
        for t in range(there, len(frames)):
            pixels = maker.next(t, wanted.maps(model, frames[t], device))
            folder.save([frames[t]], {"images": pixels[None, None]})
            done += 1
            progress(done, count)


def frames_in_memory(model: VideoTranslator, wanted: Clips, *, device: torch.device, progress: Watch) -> list[np.ndarray]:
    """The frames, uint8 (1, h, w, c) each, in the order of the inputs; every process makes all of them."""
    made: dict[int, np.ndarray] = {}
    wanted.learn()
    for clip, frames in enumerate(wanted.clips):
        maker = wanted.maker(model, clip, device)
        for t, frame in enumerate(frames):
            made[frame] = maker.next(t, wanted.maps(model, frame, device))[None]
            progress(len(made), len(wanted.inputs))
    return [made[frame] for frame in range(len(made))]


def whole_clip(
    model: VideoTranslator,
    clip: int,
    inputs: Mapping[str, Tensor],
    *,
    settings: Config,
    precision: str,
    device: torch.device,
    first: FirstFrames | None,
) -> list[np.ndarray]:
    """The frames, uint8 (h, w, c) each, of clip number `clip`, whose maps (1, t, ...) and look are given whole."""
    look = {entry.name: inputs[entry.name] for entry in model.style_sources}
    maker = ClipMaker(model, clip, look, settings=settings, precision=precision, device=device, first=first)
    maps = {source.name: inputs[source.name] for source in model.sources}
    length = next(iter(maps.values())).shape[1]
    return [maker.next(t, {name: values[:, t] for name, values in maps.items()}) for t in range(length)]
