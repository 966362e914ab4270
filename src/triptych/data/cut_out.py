"""Faces and people cut out of clips by their points, or by the maps that are drawn of them: where, and how that varies in training.

Wang et al. 2019 train few-shot vid2vid on such cuts. One box serves a whole clip; each reference has its own. A box stays
inside of its picture: one that would be larger is made smaller.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from PIL import Image

from triptych.core.batch import InputSpec
from triptych.core.rng import key_of, words
from triptych.data.cut import Cut, Value, size_of
from triptych.data.poses import levels
from triptych.data.stored import Stored, named
from triptych.data.transforms import Fit, Size, apply_nearest

Kind = Literal["face", "person"]

_ROOM = 1.5
"""Times the size of a person: the height of the box."""
_ROOM_SPREAD, _ROOM_LIMITS = (0.05, 0.02), (1.0, 2.0)
"""Deviation of that in training, of clips and of references, and the least and the most."""
_FACE_SCALE, _FACE_SHIFT = 0.2, 0.2
"""In training: the most by which the size of a face's box differs from 1, and by which it is shifted, in shares of half the box."""
_ABOVE, _BELOW = 1.25, 0.75
"""Of a face: half the box times this lies above and below the middle of its points."""


class Extent(NamedTuple):
    """How far something reaches in a picture, in pixels."""

    left: float
    top: float
    right: float
    bottom: float


class Box(NamedTuple):
    """A part of a picture, in pixels; right and bottom are the first ones that are not in it."""

    left: int
    top: int
    right: int
    bottom: int


_CORNER = Box(0, 0, 1, 1)


class Variation(NamedTuple):
    """How a box is varied: the factor of what is shown, and the shifts in shares of half the box."""

    scale: float
    across: float = 0.0
    down: float = 0.0


PLAIN: dict[Kind, Variation] = {"face": Variation(1.0), "person": Variation(_ROOM)}
"""Of clips that are not trained on."""


def varied(kind: Kind, position: int, *, seed: int) -> tuple[Variation, Variation]:
    """How the boxes of a sample's clip and of its references are varied in training."""
    drawn = words(np.array([position]), key=key_of(seed, "data", "cut out"), count=12)[0]
    if kind == "face":
        scale, *shifts = (drawn[:5] + 0.5) / 2.0**31 - 1
        scale, shifts = 1 + _FACE_SCALE * scale, [_FACE_SHIFT * shift for shift in shifts]
        return Variation(scale, shifts[0], shifts[1]), Variation(scale, shifts[2], shifts[3])
    first, second = ((drawn + 0.5) / 2.0**32).reshape(2, 6)
    normal = np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second)  # Box and Muller
    clip, references = (
        Variation(float(np.clip(_ROOM + spread * scale, *_ROOM_LIMITS)), spread * across, spread * down)
        for spread, (scale, across, down) in zip(_ROOM_SPREAD, normal.reshape(2, 3), strict=True)
    )
    return clip, references


# Boxes ------------------------------------------------------------------------------------------------------------------


class Shows(Protocol):
    """What says where a face or a person is in each frame."""

    def extent(self, k: int) -> Extent | None:
        """How far it reaches in frame k; None: it is not there. Raises DataError."""
        ...


@dataclass(frozen=True)
class DrawnMaps:
    """Maps that show it on black."""

    maps: Stored
    spec: InputSpec

    def extent(self, k: int) -> Extent | None:
        """How far what is drawn reaches in map k. Raises DataError."""
        with named(self.maps, k):
            return shown(self.maps.read(k), self.spec)


def shown(value: Value, spec: InputSpec) -> Extent | None:
    """The smallest box with all that is drawn on a map, which is all but black; None: nothing is. Raises as decoding does."""
    if spec.stored != "pixels":
        pixels = levels(value, spec)
    else:
        pixels = Cut(1).pixels(value, spec.channels or 3)
    rows, columns = np.flatnonzero(pixels.any((1, 2))), np.flatnonzero(pixels.any((0, 2)))
    return Extent(float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)) if len(rows) else None


def together(extents: Iterable[Extent | None]) -> Extent | None:
    """The smallest box around some."""
    found = [extent for extent in extents if extent is not None]
    if not found:
        return None
    left, top, right, bottom = zip(*found, strict=True)
    return Extent(min(left), min(top), max(right), max(bottom))


def face_box(found: Extent | None, size: Size, how: Variation) -> Box:
    """The square around a face whose points reach as far as `found`, in a picture of this width and height; None: its middle.

    Half a side is the width of the face.
    """
    width, height = size
    most = max(1, min(width, height) // 2)
    if found is None:
        return _around(width / 2, height / 2, most, most, size)
    half = max(1, min(int((found.right - found.left) * how.scale), most))
    across, down = (found.left + found.right) / 2 + how.across * half, (found.top + found.bottom) / 2 + how.down * half
    return _around(across, down - (_ABOVE - _BELOW) / 2 * half, half, half, size)


def person_box(found: Extent | None, size: Size, how: Variation, *, aspect: float) -> Box:
    """The box around a person that fills the box `found`, of this `aspect` (width by height); None: the middle, of full height."""
    width, height = size
    most = max(1, min(height // 2, int(width / 2 / aspect)))
    if found is None:
        return _around(width / 2, height / 2, max(1, int(most * aspect)), most, size)
    tall, wide = how.scale * (found.bottom - found.top), how.scale * (found.right - found.left)
    half = max(int(min(height, max(height // 2, tall)) // 2), int(wide / aspect) // 2)
    half = min(half, most)
    half_width = max(1, int(half * aspect))
    across, down = (found.left + found.right) / 2 + how.across * half_width, (found.top + found.bottom) / 2 + how.down * half
    return _around(across, down, half_width, half, size)


def _around(across: float, down: float, half_width: int, half_height: int, size: Size) -> Box:
    """The box around a point, moved into the picture."""
    left = min(max(0, round(across - half_width)), max(0, size[0] - 2 * half_width))
    top = min(max(0, round(down - half_height)), max(0, size[1] - 2 * half_height))
    return Box(left, top, min(size[0], left + 2 * half_width), min(size[1], top + 2 * half_height))


# Cuts -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BoxCut(Cut):
    """A box of a picture, resized: images bilinearly, maps to the nearest pixel."""

    box: Box = _CORNER
    nearest: bool = False
    "Images to the nearest pixel too."

    def image(self, value: Value, channels: int, crop: np.ndarray | None = None) -> np.ndarray:
        """Of an image: uint8 (h, w, channels). Raises ValueError for one that does not hold the box, and whatever Pillow raises."""
        pixels = self.pixels(value, channels)
        if self.nearest:
            return self.numbers(pixels)
        height, width = self.height_and_width
        cut = self._part(pixels)
        image = Image.fromarray(cut[..., 0] if channels == 1 else cut)
        return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR)).reshape(height, width, channels)

    def numbers(self, values: np.ndarray, crop: np.ndarray | None = None) -> np.ndarray:
        """Of a map (h, w, ...): of the same type. Raises ValueError for one that does not hold the box."""
        height, width = self.height_and_width
        return apply_nearest(self._part(values), Fit((), (width, height), 0, 0, width, height))

    def _part(self, values: np.ndarray) -> np.ndarray:
        """What lies in the box; nothing around it has a say in what is resized."""
        size = size_of(values)
        if size[0] < self.box.right or size[1] < self.box.bottom:
            found = f"{size[0]}x{size[1]} pixels, but what is cut out of its clip reaches to {self.box.right}x{self.box.bottom}"
            raise ValueError(f"{found}; make the frames of a clip one size, or two clips of them")
        return values[self.box.top : self.box.bottom, self.box.left : self.box.right]


@dataclass(frozen=True)
class CutOut:
    """What is cut out of clips of a run, and to which size."""

    kind: Kind
    plain: Cut
    "How the colours of images are read, and the size that comes out."
    by: str
    "Folder of the points or maps that show where it is."
    target: str
    "Folder of the images to be made."

    def box(self, extents: Iterable[Extent | None], size: Size, how: Variation | None = None) -> Box:
        """That of what reaches so far in frames of this width and height."""
        found = together(extents)
        height, width = self.plain.height_and_width
        how = how or PLAIN[self.kind]
        return face_box(found, size, how) if self.kind == "face" else person_box(found, size, how, aspect=width / height)

    def cut(self, box: Box, *, target: bool) -> BoxCut:
        """The cut of the images to be made (`target`), or of what they are made from."""
        high, wide = self.plain.height_and_width
        return BoxCut(high, wide, colours=self.plain.colours, box=box, nearest=self.kind == "person" and not target)
