"""Random shifts and affine moves of training images: the augmentation of openai/glow (its levels 1 and 2).

Its images come from Keras 2.2.0, whose geometry (keras-preprocessing 1.0.1) is kept. The output's pixel (row, column) = p shows the
input at A (p - o) + R t + o, with A = R S Z: R rotates by theta; S = (1, -sin s; 0, cos s) shears by s; Z = diag(z_row, z_column)
zooms (a factor below 1 enlarges); t shifts by a share of the image's size, rows and columns; o = size / 2 + 1/2 on both axes, which is one
pixel below and right of the middle. Between pixels the image is bilinear, beyond its border the pixel there is repeated, and
fractions of a level are cut off. The shear of 0.02 is in degrees, as Keras takes it: next to nothing.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from triptych.core.rng import key_of, words
from triptych.data.config import Augment

_SHIFT = 0.1  # of the size
_ROTATION, _SHEAR = np.deg2rad(15), np.deg2rad(0.02)
_ZOOM = 0.1
_REACH = 0.3  # of the size: no move looks further beyond the border, but for a pixel or two


def moves(positions: np.ndarray, *, seed: int, augment: Augment) -> np.ndarray | None:
    """A and R t of the samples at these positions of the training order: float64 (b, 2, 3), R t as a share of the size. None: no moves."""
    if augment == "none":
        return None
    drawn = words(positions, key=key_of(seed, "data", "augment"), count=6)
    return shifts(drawn) if augment == "shift" else affine(drawn)


def shifts(drawn: np.ndarray) -> np.ndarray:
    """The moves of "shift" that words in 0..2^32-1 (b, 6) choose."""
    moved = np.zeros((len(drawn), 2, 3))
    moved[:, :, :2] = np.eye(2)
    moved[:, :, 2] = _SHIFT * _spread(drawn[:, 1:3])
    return moved


def affine(drawn: np.ndarray) -> np.ndarray:
    """The moves of "affine" that words in 0..2^32-1 (b, 6) choose, without its mirroring."""
    theta, shear = _ROTATION * _spread(drawn[:, 0]), _SHEAR * _spread(drawn[:, 3])
    cos, sin, zero, one = np.cos(theta), np.sin(theta), np.zeros_like(theta), np.ones_like(theta)
    rotated = _matrices(cos, -sin, sin, cos)
    sheared = _matrices(one, -np.sin(shear), zero, np.cos(shear))
    zoomed = 1 + _ZOOM * _spread(drawn[:, 4:6])
    shifted = rotated @ (_SHIFT * _spread(drawn[:, 1:3]))[:, :, None]
    return np.concatenate(((rotated @ sheared) * zoomed[:, None, :], shifted), axis=2)


def _spread(drawn: np.ndarray) -> np.ndarray:
    """Words in 0..2^32-1 as numbers from -1 to 1."""
    return (drawn - (2.0**31 - 0.5)) / (2.0**31 - 0.5)


def _matrices(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> np.ndarray:
    return np.stack((a, b, c, d), axis=1).reshape(-1, 2, 2)


def move(images: np.ndarray, moved: np.ndarray) -> None:
    """Moves the uint8 images (b, s, s, 1 or 3) in place."""
    size, channels = images.shape[1], images.shape[3]
    border = int(np.ceil(_REACH * size)) + 2
    bordered = np.clip(np.arange(-border, size + border), 0, size - 1)
    centre = size / 2 + 1.0  # o, for Pillow, whose pixels have their middle at 1/2
    for image, matrix in zip(images, moved, strict=True):
        linear, shift = matrix[:, :2], matrix[:, 2] * size
        offset = centre - linear @ (centre, centre) + shift + border
        (down, skew_down, top), (skew_right, right, left) = np.column_stack((linear, offset))
        spread = image.take(bordered, axis=0).take(bordered, axis=1)
        picture = Image.fromarray(spread if channels == 3 else spread[..., 0])
        result = picture.transform(
            (size, size),
            Image.Transform.AFFINE,
            (right, skew_right, left, skew_down, down, top),  # x of the input, then y, from x and y of the output
            resample=Image.Resampling.BILINEAR,
        )
        image[:] = np.asarray(result).reshape(size, size, channels)
