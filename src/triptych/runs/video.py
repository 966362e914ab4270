"""Clips made by a trained run, frame by frame: each is made of its maps and of the frames before it, as they were written.

The frames of a clip are made one after the other and go to a folder at once, so that the length of a clip costs no memory. The next frame
sees the frames before it as they lie there, with 8 bits: an interrupted command goes on at the frame where it was, to the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from triptych.core.config import Config
from triptych.core.errors import DataError
from triptych.core.images import to_uint8
from triptych.core.model import VideoTranslator
from triptych.data.clip_files import clips_of
from triptych.engine.distributed import World
from triptych.engine.precision import autocast
from triptych.engine.progress import Watch
from triptych.runs.given.collection import Collection
from triptych.runs.given.translation import GivenInputs
from triptych.runs.translation_folder import Folder


@dataclass(frozen=True)
class Clips:
    """The clips to be made: the frames of each, by their numbers among the inputs, in order."""

    inputs: GivenInputs
    clips: Sequence[Sequence[int]]
    settings: Config
    precision: str
    first: Collection | None = None
    "Of each clip, or of all of them, the image that it begins with; None: the first frame is made too."

    @classmethod
    def of(cls, inputs: GivenInputs, *, settings: Config, precision: str, first: Collection | None = None) -> Clips:
        """Those of inputs by sub-folder, or by the beginnings of their names.

        Raises DataError for frames of a clip of several sizes, and for first frames that do not fit.
        """
        clips = list(clips_of(inputs.names).values())
        for frames in clips:
            expected = inputs.size(frames[0])
            for frame in frames[1:]:
                size = inputs.size(frame)
                if size != expected:
                    found = f"{size[1]}x{size[0]} pixels, but {inputs.names[frames[0]]} of the same clip {expected[1]}x{expected[0]}"
                    raise DataError(f"{inputs.names[frame]} would have {found}; the frames of a clip have one size: choose one by size")
        if first is not None and len(first) not in (1, len(clips)):
            raise DataError(f"{first.name}: {len(first)} first frames for {len(clips)} clips; give one for all, or one for each")
        return cls(inputs, clips, settings, precision, first)

    def given(self, clip: int) -> np.ndarray | None:
        """The image that a clip begins with, uint8 (h, w, c). Raises DataError for one of another size than its frames."""
        if self.first is None:
            return None
        image = min(clip, len(self.first) - 1)
        pixels, (height, width) = self.first.read(image)[1], self.inputs.size(self.clips[clip][0])
        if pixels.shape[:2] != (height, width):
            found = f"{pixels.shape[1]}x{pixels.shape[0]} pixels as its own size, but the clip has {width}x{height}"
            raise DataError(f"{self.first.items.describe(image)}: {found}; make it that size, or choose one by size")
        return pixels


def seen_again(frames: Sequence[np.ndarray], device: torch.device) -> Tensor:
    """Frames that were made, uint8 (h, w, c) each, as the next one is shown them: (1, p, c, h, w), the middle of what becomes a level."""
    levels = torch.from_numpy(np.stack(frames)[None]).to(device).movedim(-1, -3)
    return (levels.to(torch.get_default_dtype()) + 0.5) / 127.5 - 1


class _Maker:
    """Makes the frames of a clip in order."""

    def __init__(self, model: VideoTranslator, wanted: Clips, device: torch.device) -> None:
        self._model, self._wanted, self._device = model, wanted, device
        self._past: list[Mapping[str, Tensor]] = []
        self._made: list[np.ndarray] = []
        self._memory: Mapping[str, Tensor] = {}

    def seen(self, frame: int, made: np.ndarray) -> np.ndarray:
        """Takes a frame that was made before, or is given: uint8 (h, w, c)."""
        self._remember(self._inputs(frame), made)
        return made

    def next(self, frame: int) -> np.ndarray:
        """Makes a frame: uint8 (h, w, c)."""
        inputs, made = self._inputs(frame), None
        if self._made:
            made = seen_again(self._made, self._device)
        with torch.no_grad(), autocast(self._wanted.precision, device=self._device):
            image = self._model.next_frame({**inputs, **self._memory}, self._past, made, settings=self._wanted.settings)
        pixels = to_uint8(image).numpy()[0]
        self._remember(inputs, pixels)
        return pixels

    def _inputs(self, frame: int) -> Mapping[str, Tensor]:
        wanted = self._wanted
        return wanted.inputs.example(self._model, [frame], device=self._device, settings=wanted.settings, truth=False).inputs

    def _remember(self, inputs: Mapping[str, Tensor], made: np.ndarray) -> None:
        if self._model.remembers:
            self._memory = self._model.remembered({**inputs, **self._memory}, seen_again([made], self._device)[:, 0])
        most = self._model.past_frames
        self._past, self._made = [*self._past, inputs][-most:], [*self._made, made][-most:]


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
        maker = _Maker(model, wanted, device)
        first = 0 if model.remembers else max(0, there - model.past_frames)
        for frame in frames[first:there] if there < len(frames) else ():
            maker.seen(frame, folder[frame][0])
        done += there
        progress(done, count)
        given = wanted.given(clip) if there == 0 else None
        for frame in frames[there:]:
            pixels = maker.next(frame) if given is None else maker.seen(frame, given)
            given = None
            folder.save([frame], {"images": pixels[None, None]})
            done += 1
            progress(done, count)


def frames_in_memory(model: VideoTranslator, wanted: Clips, *, device: torch.device, progress: Watch) -> list[np.ndarray]:
    """The frames, uint8 (1, h, w, c) each, in the order of the inputs; every process makes all of them."""
    made: dict[int, np.ndarray] = {}
    for clip, frames in enumerate(wanted.clips):
        maker, given = _Maker(model, wanted, device), wanted.given(clip)
        for frame in frames:
            made[frame] = (maker.next(frame) if given is None else maker.seen(frame, given))[None]
            given = None
            progress(len(made), len(wanted.inputs))
    return [made[frame] for frame in range(len(made))]
