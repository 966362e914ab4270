"""Sizes: how an image or map of any size becomes one of the size that a model takes."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Literal

from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError, DataError
from triptych.core.translation import Translator
from triptych.data.colours import PLAIN, Colours
from triptych.data.config import DataConfig
from triptych.data.cut import Cut, TooSmall
from triptych.data.transforms import Size

OutputSize = Literal["own"] | int | tuple[int, int] | None
"""The size of a translation: None for that of the run's images, "own" for that of its input, a short side, or height and width."""

_MOST_PIXELS = 16384  # along a side


class Sizing(ABC):
    """From the size of an image to how it is cut."""

    fixed: tuple[int, int] | None = None
    "Height and width of everything; None: each image has its own."

    @abstractmethod
    def cut(self, size: Size, where: str) -> Cut:
        """How an image of this width and height is cut. Raises DataError for one that cannot be; `where` is what names it."""


class Fixed(Sizing):
    """Everything becomes of one height and width."""

    def __init__(self, cut: Cut, *, refusal: str = "") -> None:
        """`refusal`: what is said of an image that `cut` would have to enlarge, and may not."""
        self.fixed, self._cut, self._refusal = cut.height_and_width, cut, refusal

    def cut(self, size: Size, where: str) -> Cut:
        try:
            self._cut.fit(size)
        except TooSmall:
            raise DataError(f"{where}: {size[0]}x{size[1]} pixels, {self._refusal}") from None
        return self._cut


def squares(side: int, colours: Colours = PLAIN) -> Sizing:
    """The middle of each image as a square, made smaller but not larger."""
    return Fixed(Cut(side, colours=colours), refusal=f"expected at least {side}x{side}")


def as_trained(config: DataConfig, spec: DataSpec) -> Sizing:
    """As held-out images of a run on the images of `config` and `spec` are cut."""
    high, wide = spec.height_and_width
    return Fixed(Cut.of(config, width=spec.width), refusal=f"too small for the run's {wide}x{high}; give larger ones, or another size")


class Proportional(Sizing):
    """Each image keeps its proportions. It is resized to a short side, or not at all, and cut so that `stride` divides its sides."""

    def __init__(self, short: int | None, *, stride: int, least: int, colours: Colours = PLAIN) -> None:
        """`least`: along each side. `short`: None for an image's own size."""
        self._short, self._stride, self._least, self._colours = short, stride, least, colours

    def cut(self, size: Size, where: str) -> Cut:
        across, down = size
        wide, high = ((side if self._short is None else side * self._short // min(size)) // self._stride * self._stride for side in size)
        if min(high, wide) < self._least or max(high, wide) > _MOST_PIXELS:
            expected = f"expected {self._least} to {_MOST_PIXELS} along each side"
            raise DataError(f"{where}: {across}x{down} pixels, which would make {wide}x{high}; {expected}")
        covered = (down, across) if self._short is None else (high, wide)
        return Cut(*covered, enlarge=True, kept=(high, wide), colours=self._colours)


def translation_sizing(size: OutputSize, *, config: DataConfig, spec: DataSpec, translator: Translator) -> Sizing:
    """How inputs become `size`, for a model of a run on images of `config` and `spec`. Raises ConfigError for one that it cannot make."""
    pair = isinstance(size, tuple) and len(size) == 2 and all(type(side) is int for side in size)
    if not (size is None or size == "own" or type(size) is int or pair):
        raise ConfigError("size", f'got {size!r}, expected "own", a short side (512), or height and width as (480, 640)')
    stride = translator.stride
    least = -(-translator.least_size // stride) * stride
    for side in (size,) if isinstance(size, int) else size if isinstance(size, tuple) else ():
        if side % stride or not least <= side <= _MOST_PIXELS:
            given = "x".join(map(str, size)) if isinstance(size, tuple) else size
            raise ConfigError("size", f"got {given}, expected multiples of {stride} from {least} to {_MOST_PIXELS}")
    if size is None:
        return as_trained(config, spec)
    colours = Colours.of(config)
    if isinstance(size, tuple):
        return Fixed(Cut(*size, enlarge=True, colours=colours))
    return Proportional(None if size == "own" else size, stride=stride, least=least, colours=colours)


PLAIN_SIZE = "a side (512), or height and width (480x640)"


def plain_size(text: str) -> int | tuple[int, int] | None:
    """The size that a text like 512 or 480x640 (height, width) says; None where it says none."""
    if not re.fullmatch(r"[0-9]{1,6}(x[0-9]{1,6})?", text):
        return None
    height, _, width = text.partition("x")
    return (int(height), int(width)) if width else int(height)
