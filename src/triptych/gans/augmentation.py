"""Differentiable augmentation: the discriminator sees real and generated images through the same kinds of random changes.

"Differentiable Augmentation for Data-Efficient GAN Training", Zhao et al. 2020, https://arxiv.org/abs/2006.10738. The gradient goes
through to the generator. Every draw is a function of the seed, the stream and the sample's index: the same rng gives real and generated
images the same changes, two streams give them their own. Each change stands alone as a function of what was drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from triptych.core.rng import Rng
from triptych.nn.lookup import looked_up
from triptych.nn.precision import widened

Change = Literal["color", "translation", "translation_scale", "cutout"]

_BRIGHTNESS = 0.5
_SATURATION = 1.0
_CONTRAST = 0.5
_SHIFT = 1 / 8  # translation: of the side; translation_scale: of half the side, in the coordinates of an affine map
_SCALE = 1 / 8
_CUT = 1 / 2  # of the side


@dataclass(frozen=True)
class View:
    """The augmentation through which the discriminator sees images: one draw for each sample, the same in every call."""

    policy: tuple[Change, ...]
    rng: Rng
    adapt: Callable[..., Tensor] | None = None
    "The changes of ADA, which come first: (images, rng, maps=...) to images."

    def __call__(self, images: Float[Tensor, "b c h w"], *, maps: bool = False) -> Float[Tensor, "b c h w"]:
        """The augmented images; as they are where there is no policy. `maps`: label maps, which keep their values."""
        if self.adapt is not None:
            images = self.adapt(images, self.rng.child("ada"), maps=maps)
        policy: tuple[Change, ...] = tuple(change for change in self.policy if not (maps and change == "color"))
        return augmented(images, self.rng, policy=policy) if policy else images


def augmented(images: Float[Tensor, "b c h w"], rng: Rng, *, policy: tuple[Change, ...]) -> Float[Tensor, "b c h w"]:
    """The images, changed at random in the order of `policy`, in float32 where the precision was lower.

    color: brightness + U(-.5, .5), saturation times U(0, 2), contrast times U(.5, 1.5). translation: by whole pixels, up to an eighth
    of each side. translation_scale: times U(.875, 1.125) and up to a sixteenth of each side. cutout: a grey square of half the side.
    Values are not clipped.
    """
    images = widened(images)
    height, width = images.shape[2:]
    for change in policy:
        if change == "color":
            images = with_brightness(images, _BRIGHTNESS * _spread(rng, "brightness"))
            images = with_saturation(images, 1 + _SATURATION * _spread(rng, "saturation"))
            images = with_contrast(images, 1 + _CONTRAST * _spread(rng, "contrast"))
        elif change == "translation":
            rows, columns = _rounded(height * _SHIFT), _rounded(width * _SHIFT)
            down, right = rng.integers("down", 2 * rows + 1) - rows, rng.integers("right", 2 * columns + 1) - columns
            images = translated(images, down=down, right=right, reach=(rows, columns))
        elif change == "translation_scale":
            shift = _SHIFT * _spread(rng, "shift", 2)
            images = scaled(images, scale=1 + _SCALE * _spread(rng, "scale"), shift=shift)
        else:
            rows, columns = _rounded(height * _CUT), _rounded(width * _CUT)
            # In the middle of an odd side there is a pixel, of an even one a line between two, of which an image has one more.
            row, column = rng.integers("row", height + 1 - rows % 2), rng.integers("column", width + 1 - columns % 2)
            images = cut_out(images, row=row, column=column, size=(rows, columns))
    return images


def with_brightness(images: Float[Tensor, "b c h w"], amount: Float[Tensor, " b"]) -> Float[Tensor, "b c h w"]:
    """images + amount."""
    return images + _per_image(amount)


def with_saturation(images: Float[Tensor, "b c h w"], factor: Float[Tensor, " b"]) -> Float[Tensor, "b c h w"]:
    """The distances of each pixel's channels from their mean, times factor."""
    return _stretched(images, images.mean(1, keepdim=True), factor)


def with_contrast(images: Float[Tensor, "b c h w"], factor: Float[Tensor, " b"]) -> Float[Tensor, "b c h w"]:
    """The distances of each image's values from their mean, times factor."""
    return _stretched(images, images.mean((1, 2, 3), keepdim=True), factor)


def translated(
    images: Float[Tensor, "b c h w"], *, down: Int[Tensor, " b"], right: Int[Tensor, " b"], reach: tuple[int, int]
) -> Float[Tensor, "b c h w"]:
    """The images, each moved by its whole numbers of pixels, at most `reach` of rows and of columns; zeros move in."""
    (rows, columns), (height, width) = reach, images.shape[2:]
    device = images.device
    padded = F.pad(images, (columns, columns, rows, rows)).permute(0, 2, 3, 1)
    sample = torch.arange(len(images), device=device)[:, None, None]
    row = torch.arange(height, device=device)[None, :, None] + (rows - down)[:, None, None]
    column = torch.arange(width, device=device)[None, None, :] + (columns - right)[:, None, None]
    return padded[sample, row, column].permute(0, 3, 1, 2)


def scaled(images: Float[Tensor, "b c h w"], *, scale: Float[Tensor, " b"], shift: Float[Tensor, "b 2"]) -> Float[Tensor, "b c h w"]:
    """The pixel at p shows the image at scale * p + shift, bilinear, p in [-1, 1] from border to border; mirrored beyond them.

    `scale` above 1 makes things smaller. `shift`: to the right, down.
    """
    linear = torch.eye(2, device=images.device) * _per_image(scale)[:, 0]
    affine = torch.cat((linear, shift[:, :, None]), dim=2).to(images.dtype)
    with torch.autocast(images.device.type, enabled=False):
        grid = F.affine_grid(affine, list(images.shape), align_corners=False)
        return looked_up(images, grid, border="reflection", align_corners=False)


def cut_out(
    images: Float[Tensor, "b c h w"], *, row: Int[Tensor, " b"], column: Int[Tensor, " b"], size: tuple[int, int]
) -> Float[Tensor, "b c h w"]:
    """The images with zeros in a rectangle of `size` (rows, columns) around (row, column), cut off at the border."""
    rows, columns = (
        _within(side, first=middle - cut // 2, count=cut) for side, middle, cut in zip(images.shape[2:], (row, column), size, strict=True)
    )
    return images * ~(rows[:, None, :, None] & columns[:, None, None, :])


def _within(side: int, *, first: Tensor, count: int) -> Tensor:
    """Which of 0..side-1 are among the `count` numbers from `first` (b,) on: bool (b, side)."""
    behind = torch.arange(side, device=first.device) - first[:, None]
    return (behind >= 0) & (behind < count)


def _spread(rng: Rng, name: str, *shape: int) -> Tensor:
    """Uniform from -1 to 1: (b, *shape)."""
    return 2 * rng.uniform(name, *shape) - 1


def _stretched(images: Tensor, middle: Tensor, factor: Tensor) -> Tensor:
    return (images - middle) * _per_image(factor) + middle


def _per_image(values: Tensor) -> Tensor:
    return values[:, None, None, None]


def _rounded(length: float) -> int:
    return int(length + 0.5)
