"""From an image of any size to a square of pixels, or to a rectangle: halvings, one bicubic resize, a crop, a mirror image.

The arithmetic is that of guided-diffusion's loader, pixel for pixel: halve with a box filter while the short side is at least
twice the target, resize bicubically so that it is the target, cut a square out. For a rectangle, both sides are held against its own.
Only the random draws come from elsewhere: from (seed, position in the order of training), so that they are the same in every
process, worker and restart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from triptych.core.rng import key_of, words
from triptych.data.augmentation import moves
from triptych.data.config import DataConfig

Size = tuple[int, int]
"""Width and height."""


@dataclass(frozen=True)
class Draws:
    """What augmentation draws for b samples."""

    flip: np.ndarray
    "Which samples are mirrored: bool of shape (b,), or (0,) for none."
    crop: np.ndarray | None
    "Words in 0..2^32-1 for the scale, top and left of a random crop: int64 of shape (b, 3). None: centre crop."
    moves: np.ndarray | None = None
    "How each sample is shifted, or rotated and zoomed too: float64 of shape (b, 2, 3), see augmentation.py. None: not at all."
    jitter: np.ndarray | None = None
    "Words in 0..2^32-1 for each sample's brightness, contrast and gamma: int64 of shape (b, 3). None: colours stay."


def draw(positions: np.ndarray | None, settings: DataConfig, *, seed: int) -> Draws:
    """The augmentation of the samples at these positions (b,) of the training order; None: they stay as they are."""
    if positions is None:
        return Draws(np.zeros(0, dtype=bool), None)
    if settings.flip or settings.augment == "affine":
        mirrored = words(positions, key=key_of(seed, "data", "flip"))[:, 0] >= 1 << 31
    else:
        mirrored = np.zeros(len(positions), dtype=bool)
    cropped = words(positions, key=key_of(seed, "data", "crop"), count=3) if settings.crop == "random" else None
    shades = words(positions, key=key_of(seed, "data", "jitter"), count=3) if settings.jitter > 0 else None
    return Draws(mirrored, cropped, moves(positions, seed=seed, augment=settings.augment), shades)


@dataclass(frozen=True)
class Fit:
    """How an image becomes a square or rectangle: the sizes it goes through, and where that lies in the last of them."""

    halved: tuple[Size, ...]
    resized: Size
    left: int
    top: int
    width: int
    height: int


def fit(
    size: Size,
    image_size: int,
    crop: np.ndarray | None = None,
    *,
    resize: int | None = None,
    scale: float | None = None,
    width: int | None = None,
) -> Fit:
    """The fit for an image of `size`: centre crop, or the random crop that the three words of `crop` choose.

    `resize`: the short side before the square is cut; None: image_size. A random crop enlarges that by a random factor of up to
    1 + `scale`; None: 1, or 1.25 without `resize`. `width`: of a rectangle that is image_size high; the image is then made to cover,
    instead of a square, a rectangle of the same proportions.
    """
    short = resize or image_size
    if crop is not None:
        short += below(crop[0], _enlargement(short, resize, scale) + 1)
    wide = image_size if width is None else width
    box = (-(-short * wide // image_size), short)
    halved: list[Size] = []
    while size[0] >= 2 * box[0] and size[1] >= 2 * box[1]:
        size = (size[0] // 2, size[1] // 2)
        halved.append(size)
    factor = max(box[0] / size[0], box[1] / size[1])
    across, down = round(size[0] * factor), round(size[1] * factor)
    if crop is None:
        left, top = (across - wide) // 2, (down - image_size) // 2
    else:
        top, left = below(crop[1], down - image_size + 1), below(crop[2], across - wide + 1)
    return Fit(tuple(halved), (across, down), left, top, wide, image_size)


def _enlargement(short: int, resize: int | None, scale: float | None) -> int:
    """The most pixels by which a random crop enlarges the short side."""
    if scale is not None:
        return round(short * scale)
    return 0 if resize else -(-short // 4)  # the crop covers at least 0.8 of the short side


def below(word: int, high: int) -> int:
    """A number from 0 to high - 1, each as likely as another, that a word in 0..2^32-1 chooses."""
    return (int(word) * high) >> 32


def apply(image: Image.Image, steps: Fit, *, halvings_done: int = 0, original: Size | None = None) -> np.ndarray:
    """The square or rectangle as uint8 (h, w) or (h, w, 3).

    `halvings_done`: the image was decoded at 1 / 2^halvings_done of its `original` size, rounded up.
    """
    if halvings_done and original is not None:
        extent = (original[0] / 2**halvings_done, original[1] / 2**halvings_done)
        if extent != steps.halved[halvings_done - 1] or extent != image.size:
            image = image.resize(steps.halved[halvings_done - 1], Image.Resampling.BICUBIC, box=(0, 0, *extent))
    for size in steps.halved[halvings_done:]:
        image = image.resize(size, Image.Resampling.BOX)
    if image.size != steps.resized:
        image = image.resize(steps.resized, Image.Resampling.BICUBIC)
    return np.asarray(image)[steps.top : steps.top + steps.height, steps.left : steps.left + steps.width]


def apply_nearest(values: np.ndarray, steps: Fit) -> np.ndarray:
    """The same place of a map (h, w, ...) of the image's size: at each pixel what is nearest to it, by one resize without halvings."""
    height, width = values.shape[:2]
    rows = (2 * (steps.top + np.arange(steps.height)) + 1) * height // (2 * steps.resized[1])
    columns = (2 * (steps.left + np.arange(steps.width)) + 1) * width // (2 * steps.resized[0])
    return values[rows[:, None], columns]


def padded(images: np.ndarray, pad: int) -> np.ndarray:
    """The images (..., h, w, c) with `pad` pixels more on each side: the least of each column above and below, then of each row."""
    if not pad:
        return images
    return np.pad(images, [(0, 0)] * (images.ndim - 3) + [(pad, pad), (pad, pad), (0, 0)], mode="minimum")


def mirror(images: np.ndarray, flip: np.ndarray) -> None:
    """Mirrors the chosen ones of the images (b, h, w, c) left to right, in place."""
    chosen = np.flatnonzero(flip)
    pixels = images.view(f"V{images.shape[-1]}")[..., 0]  # whole pixels move, which is twice as fast as their channels one by one
    pixels[chosen] = pixels[chosen][:, :, ::-1]


def recolour(images: np.ndarray, drawn: np.ndarray, *, amount: float) -> None:
    """Changes the colours of the uint8 images (b, h, w, c) in place, as words in 0..2^32-1 (b, 3) choose.

    A value x of 0..1 becomes b (c (x^g - 1/2) + 1/2), cut to 0..1: brightness b and contrast c from 1 - amount to 1 + amount, and gamma
    g from 1 / (1 + amount) to 1 + amount, evenly in its logarithm.
    """
    spread = drawn / 2.0**31 - 1
    levels = np.arange(256) / 255
    for image, (brightness, contrast), gamma in zip(images, 1 + amount * spread[:, :2], (1 + amount) ** spread[:, 2], strict=True):
        shades = brightness * (contrast * (levels**gamma - 0.5) + 0.5)
        image[:] = np.round(255 * np.clip(shades, 0, 1)).astype(np.uint8)[image]


def with_channels(images: np.ndarray, channels: int) -> np.ndarray:
    """The uint8 images (b, h, w, 1 or 3) with that number of channels; grey by ITU-R 601 in Pillow's fixed-point arithmetic."""
    if images.shape[-1] == channels:
        return images
    if channels == 3:
        return images.repeat(3, axis=-1)
    red, green, blue = (images[..., c : c + 1].astype(np.uint32) for c in range(3))
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).astype(np.uint8)
