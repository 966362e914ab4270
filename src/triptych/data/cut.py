"""Cut: how an image or map of any size becomes one of a certain size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from PIL import Image

from triptych.data.colours import PLAIN, Colours
from triptych.data.config import DataConfig
from triptych.data.decode import decoded, header_size, image_square, open_image
from triptych.data.transforms import Fit, Size, apply, apply_nearest, fit, padded, with_channels

Value = bytes | np.ndarray
"""An encoded image or map; or pixels, uint8 (h, w, 1 or 3), or the numbers of a map, (h, w)."""


def size_of(value: Value) -> Size:
    """Width and height, upright; of an encoded image from its header alone."""
    return header_size(value) if isinstance(value, bytes) else (value.shape[1], value.shape[0])


class TooSmall(ValueError):
    """The image would have to be enlarged, which was not asked for."""


@dataclass(frozen=True)
class Cut:
    """An image is padded, resized so that it covers a square or rectangle (see `fit`), and that is cut out of it."""

    image_size: int
    "Height of what comes out; of a square its width too."
    width: int | None = None
    resize: int | None = None
    scale: float | None = None
    pad: int = 0
    enlarge: bool = False
    reduced: bool = False
    "Whether JPEGs are decoded at reduced scale."
    kept: tuple[int, int] | None = None
    "Height and width of the middle that is kept of it; None: all of it."
    colours: Colours = PLAIN
    "How the colours of encoded images are read."

    @classmethod
    def of(cls, settings: DataConfig, *, width: int | None = None) -> Cut:
        """That of a run's images."""
        reduced = settings.decode == "reduced"
        colours = Colours.of(settings)
        return cls(settings.image_size, width, settings.resize, settings.scale, settings.pad, settings.enlarge, reduced, colours=colours)

    @property
    def height_and_width(self) -> tuple[int, int]:
        """Of what comes out."""
        return self.kept or (self.image_size, self.width or self.image_size)

    def fit(self, size: Size, crop: np.ndarray | None = None) -> Fit:
        """The fit for an image of a width and height: of the middle, or the one that the words of `crop` (3,) choose. Raises TooSmall."""
        across, down = size[0] + 2 * self.pad, size[1] + 2 * self.pad
        short, setting = self.resize or self.image_size, "data.resize" if self.resize else "data.image_size"
        least = short if self.width is None else -(-short * self.width // self.image_size)
        if (across < least or down < short) and not self.enlarge:
            pixels = f"{across}x{down} pixels{' with data.pad' if self.pad else ''}"
            shape = "" if self.width is None else f" (with data.width: {least}x{short})"
            raise TooSmall(f"{pixels}, smaller than {setting} {short}{shape}: lower {setting}, or set data.enlarge to true")
        return fit((across, down), self.image_size, crop, resize=self.resize, scale=self.scale, width=self.width)

    def checked(self, size: Size, where: str = "") -> Cut:
        """This cut, for an image of a width and height. Raises TooSmall."""
        self.fit(size)
        return self

    def image(self, value: Value, channels: int, crop: np.ndarray | None = None) -> np.ndarray:
        """Of an image: uint8 (h, w, channels). Raises TooSmall, and of encoded images whatever Pillow raises."""
        return self._middle(self._resized(value, channels, partial(self.fit, crop=crop)))

    def whole(self, value: Value, channels: int) -> np.ndarray:
        """Of an image: all of it, padded and resized but not cut: uint8 (h, w, channels). Raises as `image` does."""

        def all_of(size: Size) -> Fit:
            steps = self.fit(size)
            return replace(steps, left=0, top=0, width=steps.resized[0], height=steps.resized[1])

        return self._resized(value, channels, all_of)

    def numbers(self, values: np.ndarray, crop: np.ndarray | None = None) -> np.ndarray:
        """Of a map (h, w, ...), which is not padded: of the same type. Raises TooSmall."""
        return self._middle(apply_nearest(values, self.fit(size_of(values), crop)))

    def nearest(self, value: Value, channels: int, crop: np.ndarray | None = None) -> np.ndarray:
        """Of an image that is cut as maps are, with the levels that it has: uint8 (h, w, channels). Raises as `image` does."""
        return self.numbers(self.pixels(value, channels), crop)

    def pixels(self, value: Value, channels: int) -> np.ndarray:
        """All pixels of an image, neither padded nor resized: uint8 (h, w, channels). Raises whatever Pillow raises."""
        if isinstance(value, bytes):
            with open_image(value) as image:
                value = np.atleast_3d(np.asarray(decoded(value, image, channels=channels, colours=self.colours)))
        return with_channels(value[None], channels)[0]

    def _resized(self, value: Value, channels: int, fit_of: Callable[[Size], Fit]) -> np.ndarray:
        if isinstance(value, bytes):
            return image_square(value, fit_of, channels=channels, reduced=self.reduced, pad=self.pad, colours=self.colours)
        steps, value = fit_of(size_of(value)), padded(value, self.pad)
        square = apply(Image.fromarray(value if value.shape[-1] == 3 else value[..., 0]), steps)
        return with_channels(square.reshape(1, steps.height, steps.width, -1), channels)[0]

    def _middle(self, values: np.ndarray) -> np.ndarray:
        (down, across), (height, width) = values.shape[:2], self.height_and_width
        top, left = (down - height) // 2, (across - width) // 2
        return values[top : top + height, left : left + width]
