"""Sizes: how an image or map of any size becomes one of the size that a model takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image

from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError, DataError
from triptych.core.model import Translator
from triptych.data.config import DataConfig
from triptych.data.decode import TooSmall, check_size, header_size, image_square
from triptych.data.images import limits
from triptych.data.transforms import Size, apply, apply_nearest, padded, plan, with_channels

Value = bytes | np.ndarray
"""An encoded image or map; or pixels, uint8 (h, w, 1 or 3), or the numbers of a map, (h, w)."""

OutputSize = Literal["own"] | int | tuple[int, int] | None
"""Of translations: None, as the run's images; own, each input's; a short side; or height and width."""

_MOST_PIXELS = 16384  # along a side


def size_of(value: Value) -> Size:
    """Width and height of an image or map, upright; of an encoded one from its header alone."""
    return header_size(value) if isinstance(value, bytes) else (value.shape[1], value.shape[0])


@dataclass(frozen=True)
class Cut:
    """How an image becomes one of a certain size: it covers `high` x `wide` as `plan` has it, and the middle of that is kept."""

    high: int
    wide: int
    kept: tuple[int, int]
    "Height and width of what is left."
    resize: int | None = None
    pad: int = 0
    reduced: bool = False
    "Whether JPEGs are decoded at reduced scale."

    def image(self, value: Value, channels: int) -> np.ndarray:
        """The image, cut: uint8 (h, w, channels)."""
        if isinstance(value, bytes):
            size = {"image_size": self.high, "width": self.wide, "resize": self.resize, "pad": self.pad}
            return self._middle(image_square(value, channels=channels, crop=None, reduced=self.reduced, enlarge=True, **size))
        value = padded(value, self.pad)
        steps = plan((value.shape[1], value.shape[0]), self.high, resize=self.resize, width=self.wide)
        covering = apply(Image.fromarray(value if value.shape[-1] == 3 else value[..., 0]), steps)
        return with_channels(self._middle(covering.reshape(self.high, self.wide, -1))[None], channels)[0]

    def numbers(self, numbers: np.ndarray) -> np.ndarray:
        """The map (h, w), cut: of the same type."""
        steps = plan((numbers.shape[1], numbers.shape[0]), self.high, resize=self.resize, width=self.wide)
        return self._middle(apply_nearest(numbers, steps))

    def _middle(self, values: np.ndarray) -> np.ndarray:
        height, width = self.kept
        top, left = (self.high - height) // 2, (self.wide - width) // 2
        return values[top : top + height, left : left + width]


class Sizing(ABC):
    """From the size of an image to how it is cut."""

    fixed: tuple[int, int] | None = None
    "Height and width of everything; None: each image has its own."

    @abstractmethod
    def cut(self, size: Size, where: str) -> Cut:
        """How an image of this width and height is cut. Raises DataError for one that cannot be; `where` is what names it."""


class AsTrained(Sizing):
    """As held-out images of a run are cut."""

    def __init__(self, config: DataConfig, spec: DataSpec, *, refusal: str | None = None) -> None:
        """`config`, `spec`: of the run's images. `refusal`: what is said of an image that is too small."""
        high, wide = self.fixed = spec.height_and_width
        self._limits = {**limits(config), "width": spec.width}
        self._cut = Cut(high, wide, self.fixed, config.resize, config.pad, config.decode == "reduced")
        self._refusal = refusal or f"too small for the run's {wide}x{high}; give larger ones, or another size"

    def cut(self, size: Size, where: str) -> Cut:
        try:
            check_size(size, **self._limits)
        except TooSmall:
            raise DataError(f"{where}: {size[0]}x{size[1]} pixels, {self._refusal}") from None
        return self._cut


def squares(side: int) -> Sizing:
    """The middle of each image as a square, made smaller but not larger."""
    spec = DataSpec(image_size=side, channels=3)
    return AsTrained(DataConfig(image_size=side), spec, refusal=f"expected at least {side}x{side}")


class Exactly(Sizing):
    """Of one height and width: an image is resized to cover them."""

    def __init__(self, height: int, width: int) -> None:
        self.fixed = (height, width)
        self._cut = Cut(height, width, self.fixed)

    def cut(self, size: Size, where: str) -> Cut:
        return self._cut


class Proportional(Sizing):
    """Of its own proportions: in its own size, or resized to a short side; then the middle of it whose sides are multiples of `stride`."""

    def __init__(self, short: int | None, *, stride: int, least: int) -> None:
        """`least`: along each side. `short`: None for an image's own size."""
        self._short, self._stride, self._least = short, stride, least

    def cut(self, size: Size, where: str) -> Cut:
        across, down = size
        wide, high = ((side if self._short is None else side * self._short // min(size)) // self._stride * self._stride for side in size)
        if min(high, wide) < self._least or max(high, wide) > _MOST_PIXELS:
            expected = f"expected {self._least} to {_MOST_PIXELS} along each side"
            raise DataError(f"{where}: {across}x{down} pixels, which would make {wide}x{high}; {expected}")
        return Cut(down, across, (high, wide)) if self._short is None else Cut(high, wide, (high, wide))


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
        return AsTrained(config, spec)
    if isinstance(size, tuple):
        return Exactly(*size)
    return Proportional(None if size == "own" else size, stride=stride, least=least)
