"""Images and maps that a translator is given, one by one: from files or arrays, resized and cut as asked."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image

from triptych.core.batch import DataSpec, InputSpec
from triptych.core.errors import ConfigError, DataError
from triptych.core.model import Translator
from triptych.data.config import DataConfig
from triptych.data.decode import TooSmall, check_size, header_size, image_square, number_map
from triptych.data.images import limits
from triptych.data.pairs import Member, class_map
from triptych.data.transforms import Size, apply, apply_nearest, padded, plan, with_channels

OutputSize = Literal["own"] | int | tuple[int, int] | None
"""Of what is made: None, as the run's images; own, each input's; a short side; or height and width."""

_MOST_PIXELS = 16384  # along a side


# Sizes ------------------------------------------------------------------------------------------------------------------


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

    def decoded(self, data: bytes, channels: int) -> np.ndarray:
        """Of an encoded image: uint8 (h, w, channels)."""
        pixels = image_square(
            data,
            image_size=self.high,
            width=self.wide,
            channels=channels,
            crop=None,
            reduced=self.reduced,
            enlarge=True,
            pad=self.pad,
            resize=self.resize,
        )
        return self._middle(pixels)

    def pixels(self, pixels: np.ndarray, channels: int) -> np.ndarray:
        """Of an image (h, w, 1 or 3): uint8 (h, w, channels)."""
        pixels = padded(pixels, self.pad)
        steps = plan((pixels.shape[1], pixels.shape[0]), self.high, resize=self.resize, width=self.wide)
        cut = apply(Image.fromarray(pixels if pixels.shape[-1] == 3 else pixels[..., 0]), steps)
        return with_channels(self._middle(cut.reshape(self.high, self.wide, -1))[None], channels)[0]

    def numbers(self, numbers: np.ndarray) -> np.ndarray:
        """Of a map (h, w)."""
        steps = plan((numbers.shape[1], numbers.shape[0]), self.high, resize=self.resize, width=self.wide)
        return self._middle(apply_nearest(numbers, steps))

    def _middle(self, values: np.ndarray) -> np.ndarray:
        height, width = self.kept
        top, left = (self.high - height) // 2, (self.wide - width) // 2
        return values[top : top + height, left : left + width]


class Sizing:
    """From the size of an image to how it is cut."""

    def __init__(self, config: DataConfig, spec: DataSpec, translator: Translator, size: OutputSize = None) -> None:
        """`config`, `spec`: of the run's images. Raises ConfigError for a size that the model cannot make."""
        pair = isinstance(size, tuple) and len(size) == 2 and all(type(side) is int for side in size)
        if not (size is None or size == "own" or type(size) is int or pair):
            raise ConfigError("size", f'got {size!r}, expected "own", a short side (512), or height and width as (480, 640)')
        self._config, self._spec, self._size = config, spec, size
        self._stride = translator.stride
        self._least = -(-translator.least_size // self._stride) * self._stride
        for side in (size,) if isinstance(size, int) else size if isinstance(size, tuple) else ():
            if side % self._stride or not self._least <= side <= _MOST_PIXELS:
                given = size if isinstance(size, int) else "x".join(map(str, size))  # type: ignore[arg-type]
                raise ConfigError("size", f"got {given}, expected multiples of {self._stride} from {self._least} to {_MOST_PIXELS}")

    @property
    def fixed(self) -> tuple[int, int] | None:
        """Height and width of everything; None: it is each image's own affair."""
        if self._size is None:
            return self._spec.height_and_width
        return self._size if isinstance(self._size, tuple) else None

    def cut(self, found: Size, where: str) -> Cut:
        """How an image of this size is cut. Raises DataError naming it where it is too small or too long."""
        across, down = found
        if self.fixed is not None:
            high, wide = self.fixed
            return self._like_the_run(found, where) if self._size is None else Cut(high, wide, (high, wide))
        if self._size == "own":
            high, wide = down // self._stride * self._stride, across // self._stride * self._stride
        else:
            assert isinstance(self._size, int)
            wide, high = (side * self._size // min(found) // self._stride * self._stride for side in found)
        if min(high, wide) < self._least or max(high, wide) > _MOST_PIXELS:
            raise DataError(
                f"{where}: {across}x{down} pixels, which would make {wide}x{high}; expected {self._least} to {_MOST_PIXELS} along each side"
            )
        return Cut(down, across, (high, wide)) if self._size == "own" else Cut(high, wide, (high, wide))

    def _like_the_run(self, found: Size, where: str) -> Cut:
        config, (high, wide) = self._config, self._spec.height_and_width
        try:
            check_size(found, **limits(config), width=self._spec.width)
        except TooSmall:
            raise DataError(
                f"{where}: {found[0]}x{found[1]} pixels, too small for the run's {wide}x{high}; give larger ones, or another size"
            ) from None
        return Cut(high, wide, (high, wide), config.resize, config.pad, config.decode == "reduced")


# Sources ----------------------------------------------------------------------------------------------------------------


class Source(ABC):
    """One kind of what a translator takes: an image or map for each sample."""

    def __init__(self, spec: InputSpec) -> None:
        self.spec = spec

    @abstractmethod
    def describe(self, k: int) -> str:
        """Where the k-th is, for messages."""

    @abstractmethod
    def size(self, k: int) -> Size:
        """Width and height of the k-th."""

    @abstractmethod
    def load(self, k: int, sizing: Sizing) -> tuple[Size, np.ndarray]:
        """The size that the k-th had, and itself, cut: uint8 (h, w, c) or int64 (h, w)."""


class FileSource(Source):
    """Files of images or maps."""

    def __init__(self, member: Member) -> None:
        super().__init__(member.spec)
        self._member = member

    def describe(self, k: int) -> str:
        return self._member.describe(k)

    def size(self, k: int) -> Size:
        return header_size(self._member.read(k))

    def load(self, k: int, sizing: Sizing) -> tuple[Size, np.ndarray]:
        data = self._member.read(k)
        found = header_size(data)
        cut = sizing.cut(found, self.describe(k))
        if self.spec.kind == "image":
            return found, cut.decoded(data, self.spec.channels or 3)
        return found, cut.numbers(_known(number_map(data), self.spec, self.describe(k)))


class ArraySource(Source):
    """Arrays of images (h, w, c) or maps (h, w)."""

    def __init__(self, spec: InputSpec, values: Sequence[np.ndarray] | np.ndarray, *, name: str) -> None:
        """Raises DataError for arrays of another kind."""
        super().__init__(spec)
        self._values, self._name = values, name
        if not hasattr(values, "__len__"):
            raise DataError(f"{name}: got {values!r}, expected a path or arrays")
        if not len(values):
            raise DataError(f"{name}: holds nothing")
        for k in range(len(values)):
            found = np.asarray(values[k])
            if spec.kind == "image":
                fits = found.dtype == np.uint8 and found.ndim == 3 and found.shape[-1] in (1, 3)
                expected = "uint8 of shape (height, width, 1 or 3)"
            else:
                fits, expected = np.issubdtype(found.dtype, np.integer) and found.ndim == 2, "whole numbers of shape (height, width)"
            if not fits or not found.size:
                raise DataError(f"{self.describe(k)}: {found.dtype} of shape {found.shape}, expected {expected}")

    def __len__(self) -> int:
        return len(self._values)

    def describe(self, k: int) -> str:
        return f"{self._name}[{k}]"

    def size(self, k: int) -> Size:
        height, width = self._values[k].shape[:2]
        return width, height

    def load(self, k: int, sizing: Sizing) -> tuple[Size, np.ndarray]:
        cut, values = sizing.cut(self.size(k), self.describe(k)), np.asarray(self._values[k])
        if self.spec.kind == "image":
            return self.size(k), cut.pixels(values, self.spec.channels or 3)
        return self.size(k), cut.numbers(_known(values.astype(np.int64), self.spec, self.describe(k)))

    @property
    def digest(self) -> str:
        """Changes when the values change."""
        hashed = hashlib.sha256()
        for value in self._values:
            array = np.ascontiguousarray(value)
            hashed.update(f"{array.dtype}{array.shape}".encode())
            hashed.update(array.data)
        return hashed.hexdigest()


def _known(numbers: np.ndarray, spec: InputSpec, where: str) -> np.ndarray:
    remedy = "the model knows no others; change the map"
    return class_map(numbers, spec, where, remedy=remedy) if spec.kind == "classes" else numbers
