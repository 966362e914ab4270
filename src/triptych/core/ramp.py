"""Numbers that change with the images seen."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from triptych.core.config import Config, config


@config
class Ramp(Config):
    """A number that goes from one value to another over the first images of a run, and then stays."""

    start: float
    "Its value at the beginning."
    end: float
    "Its value from `images` on."
    images: int
    "Images seen when it has arrived."
    shape: Literal["cosine", "linear"] = "cosine"
    "The way: half a cosine, start + (1 - cos(pi n / images)) / 2 (end - start) after n images, or a line."

    def validate(self) -> None:
        self.require(self.images >= 1, "images", "at least 1")

    def at(self, images_seen: int) -> float:
        """The value at a number of images seen."""
        if images_seen >= self.images:
            return self.end
        done = images_seen / self.images
        share = done if self.shape == "linear" else (1 - math.cos(math.pi * done)) / 2
        return self.start + share * (self.end - self.start)


def value_at(value: float | Ramp, images_seen: int) -> float:
    """A number that may be a ramp, at a number of images seen."""
    return value.at(images_seen) if isinstance(value, Ramp) else value


def scaled(value: float | Ramp, factor: float) -> float | Ramp:
    """A number that may be a ramp, times `factor`: of a ramp both ends, so that it arrives at the product itself."""
    return replace(value, start=value.start * factor, end=value.end * factor) if isinstance(value, Ramp) else value * factor


def ends(value: float | Ramp | None) -> tuple[float, ...]:
    """The first and the last value of a ramp, for checks of range; of a number that alone, of None nothing."""
    return () if value is None else (value.start, value.end) if isinstance(value, Ramp) else (value,)
