"""Geometric changes of images: an affine transform between fine pixels, and the matrices that it is made of.

"Training Generative Adversarial Networks with Limited Data", Karras et al. 2020, https://arxiv.org/abs/2006.06676, appendix B. All are
differentiable twice and treat each image by itself. A filter that ends at a mirror is a matrix here, one for rows and one for columns: on
a CPU such products are 3 to 25 times as fast as convolutions with so few channels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from triptych.nn.lookup import gathered, in_order

# Low-pass filter of the orthogonal wavelet sym6; the squares of the taps sum to 1.
SYM6 = (
    *(0.015404109327027373, 0.0034907120842174702, -0.11799011114819057, -0.048311742585633, 0.4910559419267466, 0.787641141030194),
    *(0.3379294217276218, -0.07263752278646252, -0.021060292512300564, 0.04472490177066578, 0.0017677118642428036, -0.007800708325034148),
)
_PEAK = 5  # the number of sym6's largest tap: where a pixel lies among the pixels twice as fine
_REACH = len(SYM6) - 2  # pixels of the finer image that its reduction needs beyond it, on both sides together


def transformed(images: Float[Tensor, "b c h w"], source: Float[Tensor, "b 2 3"], *, fine: bool = True) -> Float[Tensor, "b c h w"]:
    """The images, where the pixel at p shows what was at `source` (p, 1): (x, y) in pixels from the middle, to the right and down.

    Beyond its border pixels' middles an image goes on as its mirror image. `fine`: it is made twice as fine by sym6, looked up between
    four pixels, and reduced by sym6 the other way round, so that the filters cancel where nothing moves. Else it is looked up as it is,
    and its values stay within their range, as those of a label map must.
    """
    height, width = images.shape[2:]
    scale, first, more = (2, -_PEAK, _REACH) if fine else (1, 0, 0)
    y, x = (
        torch.arange(first, first + scale * side + more, device=images.device, dtype=images.dtype) - scale * (side - 1) / 2
        for side in (height, width)
    )
    across, down = (
        row[:, None, None, 0] * x + row[:, None, None, 1] * y[:, None] + scale * row[:, None, None, 2] + scale * (side - 1) / 2
        for row, side in zip(source.unbind(1), (width, height), strict=True)
    )
    lookup = _gathered if in_order(images) else _Lookup.apply
    if not fine:
        return lookup(images, _grid(across, down, (width - 1, height - 1)))
    periods = 4 * (width - 1), 4 * (height - 1)
    rows, columns = (_finer(side, device=images.device).to(images) for side in (height, width))
    found = lookup(rows @ images @ columns.T, _grid(across % periods[0], down % periods[1], periods))
    rows, columns = (_coarser(side, device=images.device).to(images) for side in (height, width))
    return rows @ found @ columns.T


def changed(
    images: Float[Tensor, "b c h w"], which: Bool[Tensor, " b"], change: Callable[[Tensor, Tensor], Tensor]
) -> Float[Tensor, "b c h w"]:
    """change(images, numbers) of the images where `which` (b,) holds; the others as they are, to the bit."""
    return (_some_changed if images.device.type == "cpu" else _all_changed)(images, which, change)


def _some_changed(images: Tensor, which: Tensor, change: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    numbers = which.nonzero()[:, 0]
    return images.index_copy(0, numbers, change(images[numbers], numbers)) if len(numbers) else images


def _all_changed(images: Tensor, which: Tensor, change: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Changes all of them: to ask how many are meant would wait for the device."""
    everything = torch.arange(len(images), device=images.device)
    return torch.where(which[:, None, None, None], change(images, everything), images)


def scaling(across: Tensor, down: Tensor) -> Float[Tensor, "b 3 3"]:
    """The matrices that multiply (x, y, 1) by these factors (b,)."""
    return torch.diag_embed(torch.stack((across, down, torch.ones_like(across)), 1))


def turning(angle: Tensor) -> Float[Tensor, "b 3 3"]:
    """Those that turn it from x, to the right, towards y, down, by angles (b,) in radians."""
    cosine, sine, zero, one = angle.cos(), angle.sin(), torch.zeros_like(angle), torch.ones_like(angle)
    return torch.stack((cosine, -sine, zero, sine, cosine, zero, zero, zero, one), 1).view(-1, 3, 3)


def moving(by: Float[Tensor, "b 2"]) -> Float[Tensor, "b 3 3"]:
    """Those that add this to (x, y)."""
    matrix = torch.eye(3, dtype=by.dtype, device=by.device).repeat(len(by), 1, 1)
    matrix[:, :2, 2] = by
    return matrix


def _gathered(images: Tensor, grid: Tensor) -> Tensor:
    """`_Lookup`, whose gradients a GPU adds in a fixed order."""
    return gathered(images, grid, border="reflection", align_corners=True)


class _Lookup(torch.autograd.Function):
    """F.grid_sample, bilinear and mirrored, with derivatives of any order for the images, where PyTorch's has the first alone."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, grid: Tensor) -> Tensor:
        ctx.save_for_backward(grid)
        ctx.size = images.shape
        return F.grid_sample(images, grid, padding_mode="reflection", align_corners=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _Spread.apply(gradients[0], *ctx.saved_tensors, ctx.size), None


class _Spread(torch.autograd.Function):
    """The transpose of `_Lookup`: each value goes back to the four pixels between which it was looked up."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, grid: Tensor, size: torch.Size) -> Tensor:
        ctx.save_for_backward(grid)
        bilinear, reflection = 0, 2
        images, _ = torch.ops.aten.grid_sampler_2d_backward(
            values, values.new_zeros(()).expand(size), grid, bilinear, reflection, True, (True, False)
        )
        return images

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _Lookup.apply(gradients[0], *ctx.saved_tensors), None, None


def _grid(across: Tensor, down: Tensor, last: tuple[int, int]) -> Tensor:
    """Places in pixels as grid_sample takes them: -1 is the middle of the first pixel, 1 that of pixel `last`."""
    return torch.stack([2 * at / end - 1 for at, end in zip((across, down), last, strict=True)], dim=-1)


def mirrored(at: np.ndarray, side: int) -> np.ndarray:
    """The pixels that stand at these places of an image that goes on as its mirror images."""
    at = at % (2 * (side - 1))
    return np.minimum(at, 2 * (side - 1) - at)


def taps_matrix(rows: int, columns: int, *, at: np.ndarray, taps: np.ndarray, device: torch.device) -> Tensor:
    """Zeros (rows, columns) but for `taps` at the columns `at`, both (rows, n), added where they meet: float64."""
    matrix = np.zeros((rows, columns))
    np.add.at(matrix, (np.arange(rows)[:, None], at), taps)
    return torch.from_numpy(matrix).to(device)


@functools.lru_cache(maxsize=32)
def _finer(side: int, *, device: torch.device) -> Float[Tensor, "n h"]:
    """Makes `side` pixels twice as many by sym6, and goes on through their mirror image until they begin again: n = 4 (side - 1) + 1."""
    count = 4 * (side - 1) + 1
    twice = np.arange(count)[:, None] + _PEAK - np.arange(len(SYM6))
    taps = np.sqrt(2) * np.array(SYM6) * (twice % 2 == 0)
    return taps_matrix(count, side, at=mirrored(twice // 2, side), taps=taps, device=device)


@functools.lru_cache(maxsize=32)
def _coarser(side: int, *, device: torch.device) -> Float[Tensor, "h n"]:
    """Makes 2 side + 10 pixels, from the fifth before the image on, half as many by sym6 the other way round."""
    at = 2 * np.arange(side)[:, None] + np.arange(len(SYM6))
    taps = np.broadcast_to(np.array(SYM6) / np.sqrt(2), at.shape)
    return taps_matrix(side, 2 * side + _REACH, at=at, taps=taps, device=device)
