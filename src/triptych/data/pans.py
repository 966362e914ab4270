"""Pans: clips of a window that moves over still pictures, with their maps, the true flow, and the points of the scene that pixels show.

Pictures and maps are pairs (see `pairs`). Each is cut with a margin around; in that the window moves by whole pixels, at a speed of its
own in each clip, and turns back at the edges. What the window sees again has the same colours, so that flow and points are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from triptych.core.batch import ClipLength, InputSpec
from triptych.core.config import config
from triptych.core.rng import key_of, words
from triptych.data.clips import numbered
from triptych.data.images import Data, Loaded
from triptych.data.pairs import PairedDataConfig, PairedImages
from triptych.data.stored import Member

FLOW, POINTS = "flow", "points"
"""Names of what pans have beside their maps."""


@config
class PanDataConfig(PairedDataConfig):
    """Clips of a window that moves over still pictures and their maps, which lie as those of the kind paired do."""

    kind_name: ClassVar = "pans"
    skips: ClassVar = False

    length: ClipLength = ClipLength()
    "Frames of a clip in the course of a training; held-out clips have the most, and end where they begin."
    margin: int = 16
    "How far the window can move from the middle, in pixels."
    speed: int = 4
    "The most pixels by which it moves from frame to frame, across and down."

    def validate(self) -> None:
        self.require(self.margin >= 1, "margin", "at least 1")
        self.require(1 <= self.speed <= 2 * self.margin, "speed", "from 1 to twice data.margin")
        self.require(self.resize is None, "resize", "nothing: pictures are cut to data.image_size and data.margin")
        self.require(self.on_error == "stop", "on_error", "stop: clips are not replaced")
        taken = (self.target, self.instances, *self.maps, *self.conditions)
        self.require(
            not {FLOW, POINTS} & set(taken), "maps", f"folders with other names than {FLOW} and {POINTS}, which pans have themselves"
        )

    def open(self) -> Data:
        data = PairedDataConfig.open(self)
        inputs = (*data.spec.inputs, InputSpec(name=FLOW, kind="flow"), InputSpec(name=POINTS, kind="points"))
        most = self.length.most
        inputs = tuple(replace(entry, frames=most) for entry in inputs)
        return replace(data, spec=replace(data.spec, inputs=inputs, frames=most, clip_length=self.length))

    def images(self, members: Sequence[Member], items: np.ndarray) -> PanImages:
        """Some of the pairs of these files, with a window on each."""
        return PanImages(members, self, items=items)


class PanImages(PairedImages):
    """Clips, one of each pair. How long it is in training, and how its window moves, depends on its position."""

    config: PanDataConfig

    def __init__(self, members: Sequence[Member], config: PanDataConfig, *, items: np.ndarray) -> None:
        super().__init__(members, config, items=items)
        self._window, around = self._cut.height_and_width, 2 * config.margin
        width = None if self._cut.width is None else self._cut.width + around
        self._cut = replace(self._cut, image_size=self._cut.image_size + around, width=width)

    def places(self, item: int, position: int | None, *, count: int, seed: int) -> np.ndarray:
        """Top and left of the window in each frame (count, 2), as a position draws them; None: there and back, the same in every run."""
        number, key = (item, key_of(0, "data", "held-out pan")) if position is None else (position, key_of(seed, "data", "pan"))
        drawn = words(np.array([number]), key=key, count=4)[0]
        start, step = drawn[:2] % (2 * self.config.margin + 1), drawn[2:] % (2 * self.config.speed + 1) - self.config.speed
        if not step.any():
            step[:] = self.config.speed
        steps = np.arange(count)
        if position is None:
            steps = np.minimum(steps, count - 1 - steps)
        return _reflected(start + steps[:, None] * step, 2 * self.config.margin)

    def batch(self, items: np.ndarray, positions: np.ndarray | None = None, *, seed: int = 0) -> Loaded:
        """Clips as long as the longest of them: a shorter one goes on, which training does not use."""
        scenes = super().batch(items, positions, seed=seed)
        length, (height, width) = self.config.length, self._window
        count = length.most if positions is None else max((length.at(int(position)) for position in positions), default=length.first)
        whole = {self._members[0].spec.name: scenes.images, **scenes.inputs}
        down, across = self._cut.height_and_width
        world = np.arange(down * across).reshape(down, across)
        found: dict[str, np.ndarray] = {
            name: np.empty((len(items), count, height, width, *values.shape[3:]), values.dtype) for name, values in whole.items()
        }
        found[FLOW] = np.full((len(items), count, 2, height, width), np.nan, dtype=np.float32)
        found[POINTS] = np.empty((len(items), count, height, width), dtype=np.int64)
        for k, item in enumerate(items):
            position = None if positions is None else int(positions[k])
            places = self.places(int(item), position, count=count, seed=seed)
            for t, (top, left) in enumerate(places):
                part = slice(top, top + height), slice(left, left + width)
                for name, values in whole.items():
                    found[name][k, t] = values[k][part]
                found[POINTS][k, t] = world[part]
                if t:
                    self._write_flow(found[FLOW][k, t], places[t] - places[t - 1])
            found[POINTS][k] = numbered(found[POINTS][k])
        return Loaded(found.pop(self._members[0].spec.name), None, found)

    @staticmethod
    def _write_flow(flow: np.ndarray, moved: np.ndarray) -> None:
        """The flow (2, h, w) of a window that moved so far down and across; unknown where the frame before did not show the point."""
        down, across = map(int, moved)
        height, width = flow.shape[1:]
        rows, columns = np.arange(height) + down, np.arange(width) + across
        known = ((rows >= 0) & (rows < height))[:, None] & ((columns >= 0) & (columns < width))
        flow[0][known], flow[1][known] = across, down


def _reflected(places: np.ndarray, most: int) -> np.ndarray:
    """Whole numbers, brought into 0 to `most` by reflection at both ends."""
    return most - abs(places % (2 * most) - most)
