"""Key points as pictures: the 68 points of a face as white lines, the people of OpenPose as lines of a colour for each limb.

Points that belong together are joined by straight lines, or three at a time by a parabola, and what is drawn is an image for
`data.conditions` of pairs and clips. Rules and colours are those that published models of few-shot vid2vid saw in training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Kind = Literal["faces", "people"]
Chain = Sequence[int]

_LANDMARKS, _BODY, _FACE, _HAND = 68, 25, 70, 21
_JAW = (*range(17), *range(68, 83), 0)
"""Of a face: from ear to ear along the chin, and back over the forehead, whose points are mirror images of the jaw's."""
_LINES: tuple[Chain, ...] = (
    range(17, 22), range(22, 27), (28, 31), range(31, 36), (35, 28), range(36, 40), (39, 40, 41, 36), range(42, 46), (45, 46, 47, 42),
    range(48, 55), (*range(54, 60), 48),
)  # fmt: skip
"""Of a face: brows, nose, eyes, the outer edge of the lips."""
_LIPS: tuple[Chain, ...] = (range(60, 65), (64, 65, 66, 67, 60))
_LIMBS = (
    (17, 15), (15, 0), (0, 16), (16, 18), (0, 1), (1, 8), (1, 2), (2, 3), (3, 4), (1, 5), (5, 6), (6, 7), (8, 9), (9, 10), (10, 11),
    (8, 12), (12, 13), (13, 14), (11, 24), (11, 22), (22, 23), (14, 21), (14, 19), (19, 20),
)  # fmt: skip
_LIMB_COLOURS = (
    (153, 0, 153), (153, 0, 102), (102, 0, 153), (51, 0, 153), (153, 0, 51), (153, 0, 0), (153, 51, 0), (153, 102, 0), (153, 153, 0),
    (102, 153, 0), (51, 153, 0), (0, 153, 0), (0, 153, 51), (0, 153, 102), (0, 153, 153), (0, 102, 153), (0, 51, 153), (0, 0, 153),
    *((0, 153, 153),) * 3, *((0, 0, 153),) * 3,
)  # fmt: skip
_FINGERS: tuple[Chain, ...] = tuple((0, *range(first, first + 4)) for first in range(1, 21, 4))
_FINGER_COLOURS = ((204, 0, 0), (163, 204, 0), (0, 204, 82), (0, 82, 204), (163, 0, 204))
_FEET, _LEFT_HAND, _RIGHT_HAND, _FACE_CHANNEL = 18, 24, 25, 26
"""Of a person's channels: the limbs from _FEET to 23 are those of the feet."""
NUM_BODY_LIMBS, NUM_LIMBS = 24, 27
"""Channels of a person: 24 limbs, two hands, a face."""
_FAR = 2**15
"""Coordinates are below it: a line has a sample for each pixel, also outside of the picture."""
_SEEN, _SEEN_FACE = 0.01, 0.1
"""Above this confidence a point of a body or hand, and of a face, is one."""


# Faces ------------------------------------------------------------------------------------------------------------------


def draw_face(points: np.ndarray, *, height: int, width: int, forehead: bool = True) -> np.ndarray:
    """The 68 points (x, y) of a face as lines: uint8 (height, width), 255 on black. `forehead`: with a line over it."""
    canvas, thick = np.zeros((height, width, 1), dtype=np.uint8), max(1, height // 256)
    if forehead:
        points = np.concatenate((points, _forehead(points)))
    for chain in (_JAW if forehead else range(17), *_LINES, *_LIPS):
        numbers = list(chain)
        for k in range(0, len(numbers) - 1, 2):  # 0-1-2, 2-3-4, and what is left at the end
            _stroke(canvas, _curve(points[numbers[k : k + 3]]), (255,), thick)
    return canvas[..., 0]


def _forehead(points: np.ndarray) -> np.ndarray:
    """Points 1 to 15 of the jaw, mirrored about the height of the ears and two thirds as far from it, from right to left."""
    base = int((points[0, 1] + points[16, 1]) / 2)
    jaw = points[1:16][::-1]
    return np.stack((jaw[:, 0], base + (base - jaw[:, 1]) * 2 // 3), axis=1)


# People -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PeopleStyle:
    """How people are drawn, and which of their parts."""

    limbs: bool = False
    "In a channel for each part, instead of in colours."
    body_only: bool = False
    "Without feet, hands and face."
    face: bool = True
    "With the face."


COLOURED = PeopleStyle()


@dataclass(frozen=True)
class _Line:
    """A line of a person, through points that were seen."""

    channel: int
    points: np.ndarray
    colour: tuple[int, ...]
    thick: int
    ends: bool = False


def draw_person(person: Mapping[str, np.ndarray], *, height: int, width: int, style: PeopleStyle = COLOURED) -> np.ndarray:
    """A person's `body` (25), `face` (70), `left` and `right` (21), each point x, y and confidence: uint8 (height, width, 3).

    With `style.limbs` of 0 and 1, (height, width, 27): a channel for each of the 24 limbs, the left hand, the right hand and the face.
    """
    canvas = np.zeros((height, width, NUM_LIMBS if style.limbs else 3), dtype=np.uint8)
    for line in _lines(person, height=height, style=style):
        where = canvas[..., line.channel : line.channel + 1] if style.limbs else canvas
        _stroke(where, _curve(line.points), (1,) if style.limbs else line.colour, line.thick, ends=line.ends)
    return canvas


def _lines(person: Mapping[str, np.ndarray], *, height: int, style: PeopleStyle) -> Iterator[_Line]:
    """The lines of a person, in the order in which they are drawn."""
    body = person["body"]
    seen = body[body[:, 2] > _SEEN]
    tall = min(int(np.ptp(seen[:, 1])), height) if len(seen) else 0  # points far outside would take lines as thick as the picture
    thick, thin = max(1, tall // 150), max(1, tall // 450)
    for number, (pair, colour) in enumerate(zip(_LIMBS, _LIMB_COLOURS, strict=True)):
        points = body[list(pair)]
        if (points[:, 2] > _SEEN).all() and (points[:, 0] != 0).all() and not (style.body_only and number >= _FEET):
            yield _Line(number, points[:, :2], colour, thick, ends=True)
    if style.body_only:
        return
    for channel, hand in ((_LEFT_HAND, person["left"]), (_RIGHT_HAND, person["right"])):
        for chain, colour in zip(_FINGERS, _FINGER_COLOURS, strict=True):
            yield from _chain(channel, hand[list(chain)], colour, thin, least=_SEEN)
    for chain in (range(17), *_LINES) if style.face else ():
        yield from _chain(_FACE_CHANNEL, person["face"][list(chain)], (255, 255, 255), thin, least=_SEEN_FACE)


def _chain(channel: int, points: np.ndarray, colour: tuple[int, ...], thick: int, *, least: float) -> Iterator[_Line]:
    """Joins the points of a chain where all of them were seen."""
    if (points[:, 2] > least).all():
        for k in range(len(points) - 1):
            if (points[k : k + 2, 0] != 0).all():
                yield _Line(channel, points[k : k + 2, :2], colour, thick)


# Lines ------------------------------------------------------------------------------------------------------------------


def _curve(points: np.ndarray) -> np.ndarray:
    """Pixels (n, 2) from the first of two points to the other, or on the parabola through three; none where that is too bent."""
    moved = abs(np.diff(points, axis=0)).max(0)
    turned = moved[0] < moved[1]
    x, y = (points[:, ::-1] if turned else points).T.astype(np.float64)
    if x[0] > x[-1]:
        x, y = x[::-1], y[::-1]
    if len(np.unique(x)) < len(x):
        return np.empty((0, 2), dtype=np.int64)  # nothing goes through them
    bend = np.polyfit(x, y, len(x) - 1)
    if len(x) == 3 and abs(bend[0]) > 1:
        return np.empty((0, 2), dtype=np.int64)
    along = np.linspace(x[0], x[-1], round(x[-1] - x[0]))
    pixels = np.round(np.stack((along, np.polyval(bend, along)), axis=1), 6).astype(np.int64)  # so that 12 is not 11.999
    return pixels[:, ::-1] if turned else pixels


def _stroke(canvas: np.ndarray, pixels: np.ndarray, colour: tuple[int, ...], thick: int, *, ends: bool = False) -> None:
    """Draws squares around pixels (n, 2), one offset at a time, and discs at both ends; colours that meet are mixed."""
    if not len(pixels):
        return
    for down in range(-thick, thick):
        for across in range(-thick, thick):
            _colour(canvas, pixels + np.array((across, down)), colour)
    reach = 2 * thick
    for down in range(-reach, reach) if ends else ():
        for across in range(-reach, reach):
            if down**2 + across**2 < reach**2:
                _colour(canvas, pixels[[0, -1]] + (across, down), colour)


def _colour(canvas: np.ndarray, pixels: np.ndarray, colour: tuple[int, ...]) -> None:
    """Colours some pixels, where one of them has a colour by the mean of it and the new one: all of them alike."""
    x, y = pixels[((pixels >= 0) & (pixels < canvas.shape[1::-1])).all(1)].T
    before = canvas[y, x]
    canvas[y, x] = (before + np.array(colour)) // 2 if before.any() and len(colour) > 1 else colour


# What files hold ------------------------------------------------------------------------------------------------------------------


def read_face(content: Any) -> np.ndarray:
    """The 68 points of a JSON list [[x, y], ...]: (68, 2). Raises ValueError for anything else."""
    return _numbers(content, (_LANDMARKS, 2), "68 points, as [[x, y], ...]")


def face_points(content: Any) -> np.ndarray:
    """The points of a face (n, 2): all 68, or of what OpenPose writes those that it is sure of. Raises ValueError for anything else."""
    if not isinstance(content, Mapping):
        return read_face(content)
    person = read_person(content)
    face = np.empty((0, 3)) if person is None else person["face"]
    return face[face[:, 2] > _SEEN_FACE, :2]


def read_person(content: Any) -> dict[str, np.ndarray] | None:
    """The tallest of the people that OpenPose found, None: nobody. Raises ValueError for anything else than its JSON."""
    people = content.get("people") if isinstance(content, Mapping) else None
    if not isinstance(people, list) or not all(isinstance(person, Mapping) for person in people):
        raise ValueError('expected what OpenPose writes, {"people": [{"pose_keypoints_2d": [x, y, confidence, ...], ...}]}')
    parts = {"body": ("pose", _BODY), "face": ("face", _FACE), "left": ("hand_left", _HAND), "right": ("hand_right", _HAND)}
    tallest, most = None, -1.0
    for found in people:
        person = {}
        for name, (key, count) in parts.items():
            values = found.get(f"{key}_keypoints_2d") or [0] * (3 * count)
            person[name] = _numbers(values, (3 * count,), f"{key}_keypoints_2d of {count} points").reshape(count, 3)
        seen = person["body"][person["body"][:, 2] > _SEEN, 1]
        extent = float(np.ptp(seen)) if len(seen) else 0.0
        if extent > most:
            tallest, most = person, extent
    return tallest


def _numbers(content: Any, shape: tuple[int, ...], expected: str) -> np.ndarray:
    try:
        values = np.array(content, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        values = np.empty(0)
    if values.shape != shape or not (np.abs(values) < _FAR).all():
        raise ValueError(f"expected {expected}")
    return values


def drawn(content: Any, kind: Kind, *, height: int, width: int, forehead: bool = True, style: PeopleStyle = COLOURED) -> np.ndarray:
    """What a file of JSON holds as a picture: uint8 (h, w) of a face, and of the tallest person what `draw_person` gives.

    Raises ValueError for others.
    """
    if kind == "faces":
        return draw_face(read_face(content), height=height, width=width, forehead=forehead)
    nobody = {"body": np.zeros((_BODY, 3)), "face": np.zeros((_FACE, 3)), "left": np.zeros((_HAND, 3)), "right": np.zeros((_HAND, 3))}
    return draw_person(read_person(content) or nobody, height=height, width=width, style=style)
