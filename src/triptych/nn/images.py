"""Checks of the images that models are built for, and of those that they are given."""

from __future__ import annotations

from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError
from triptych.core.rng import Rng


def image_shape(spec: DataSpec) -> tuple[int, int, int]:
    """Channels, height and width of the images of `spec`; ConfigError where its samples are clips."""
    if spec.frames is not None:
        advice = "take data of single images, or a model of clips, such as vid2vid"
        raise ConfigError("", f"the data has clips, but this model learns single images; {advice}")
    return (spec.channels, *spec.height_and_width)


def square_side(spec: DataSpec, *, taker: str = "a U-Net", instead: str = "") -> int:
    """The side of the images of `spec`; ConfigError where they are no squares. `instead`: what else can be done about it."""
    _, height, width = image_shape(spec)
    if height != width:
        raise ConfigError("", f"{taker} takes squares, not images of {height} x {width} pixels; {instead}leave out data.width")
    return height


def check_drawn(rng: Rng, count: int) -> None:
    """Raises ConfigError where `rng` does not draw for so many images; draws for one would go to all of them without a word."""
    if len(rng) != count:
        raise ConfigError("rng", f"got draws for {len(rng)} of {count} images, expected an index for each")
