"""Convolutions of maps that are doubled first, each pixel to a square of four.

A tap of the kernel sees the same small pixel as the one beside it. On a CPU the convolution is taken of the small map, with four kernels,
one for each pixel (p, q) of a square, in which those taps are added that see the same: for a pixel in row 2 i + p the tap of the row
2 i + p + d is one of the small row i + floor((p + d) / 2). That leaves 4/9 of the products of a 3x3 kernel, and 9/25 of a 5x5 one.
A 1x1 kernel sees a single pixel, so the small map is convolved and then doubled, on any device.

The border is that of the small map, enlarged. Zeros and the nearest pixel are the same in both. Reflected is -1 -> 0 and -2 -> 1 in rows
of the large map, so that for the small map -1 -> 0, the nearest pixel, is right for -1; for 5x5 kernels, which see -2, the difference of
rows 1 and 0 through the outermost taps is added to the outermost pixels.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from triptych.nn.convolution import fast_convolution
from triptych.nn.cpu import takes_other_ways
from triptych.nn.forward_mode import is_transformed
from triptych.nn.lookup import in_order
from triptych.nn.resample import enlarged

Border = Literal["zeros", "reflect", "replicate"]
"""What lies beyond a map: zeros, its pixels mirrored at the outermost, or the nearest pixel."""

_PHASES = ((0, 0), (0, 1), (1, 0), (1, 1))  # row and column of a pixel in its square of four
_FOLDED_FROM = 8  # pixels; below, the border that is computed in vain costs more than is saved (measured on a CPU)


def convolved_enlarged(
    x: Float[Tensor, "b c h w"], weight: Float[Tensor, "o c k k"], bias: Float[Tensor, " o"] | None, *, border: Border = "zeros"
) -> Float[Tensor, "b o 2*h 2*w"]:
    """The convolution of enlarged(x) that keeps its size, for an odd k."""
    reach = weight.shape[2] // 2
    if reach == 0:
        return enlarged(fast_convolution(x, weight, bias))
    if not folds(x, reach):
        large = enlarged(x)
        if border == "zeros":
            return fast_convolution(large, weight, bias, padding=reach)
        return fast_convolution(padded(large, border, rows=reach, columns=reach), weight, bias)
    (b, _, h, w), o = x.shape, len(weight)
    small = (reach + 1) // 2
    kernels, biases = _folded(weight), None if bias is None else bias.repeat(4)
    if border == "zeros":
        windows = fast_convolution(x, kernels, biases, padding=small)
    else:
        windows = fast_convolution(padded(x, "replicate", rows=small, columns=small), kernels, biases)
    edges = _edges(x, weight) if border == "reflect" and reach == 2 else ()
    windows = windows.permute(0, 2, 3, 1).reshape(b, windows.shape[2], windows.shape[3], 2, 2, o)
    return _Interleaved.apply(windows, reach % 2, *edges).view(b, 2 * h, 2 * w, o).permute(0, 3, 1, 2)


def padded(x: Float[Tensor, "b c h w"], border: Literal["reflect", "replicate"], *, rows: int, columns: int) -> Float[Tensor, "b c _ _"]:
    """x with so many rows above and below, and columns on both sides."""
    if border == "reflect" and in_order(x):
        return mirrored(x, rows=rows, columns=columns)
    with torch.autocast(x.device.type, enabled=False):  # which would make it float32
        return F.pad(x, (columns, columns, rows, rows), mode=border)


def mirrored(x: Float[Tensor, "b c h w"], *, rows: int, columns: int) -> Float[Tensor, "b c _ _"]:
    """The same, reflected, of parts put side by side, whose gradients have a fixed order on a GPU; those of F.pad have none there."""
    for axis, count in ((2, rows), (3, columns)):
        if count:
            last = x.shape[axis] - 1
            x = torch.cat((x.narrow(axis, 1, count).flip(axis), x, x.narrow(axis, last - count, count).flip(axis)), dim=axis)
    return x


def folds(x: Tensor, reach: int) -> bool:
    """Whether the convolution is taken of the small map, for a kernel that reaches so many pixels."""
    return (
        x.device.type == "cpu"
        and 1 <= reach <= 2
        and min(x.shape[2:]) >= _FOLDED_FROM
        and not torch.compiler.is_compiling()
        and takes_other_ways()
        and not is_transformed(x)
    )


class _Interleaved(torch.autograd.Function):
    """Pixel (2 i + p, 2 j + q) is that of kernel (p, q) at window (i + s p, j + s q): (b, h, 2, w, 2, o) from (b, h+s, w+s, 2, 2, o).

    `edges`, where there are some, are added to the first and the last row (b, 2 w, o), and to the first and last column (b, 2 h, o).
    """

    @staticmethod
    def forward(ctx: Any, windows: Tensor, shift: int, *edges: Tensor) -> Tensor:
        ctx.shift, ctx.edges = shift, bool(edges)
        b, h, w, _, _, o = windows.shape
        h, w = h - shift, w - shift
        picked = windows.new_empty(b, h, 2, w, 2, o)
        for p, q in _PHASES:
            picked[:, :, p, :, q] = windows[:, shift * p : shift * p + h, shift * q : shift * q + w, p, q]
        for place, edge in zip(_outermost(picked), edges, strict=False):
            place += edge
        return picked

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad, shift = grad.contiguous(), ctx.shift
        b, h, _, w, _, o = grad.shape
        windows = (grad.new_zeros if shift else grad.new_empty)(b, h + shift, w + shift, 2, 2, o)
        for p, q in _PHASES:
            windows[:, shift * p : shift * p + h, shift * q : shift * q + w, p, q] = grad[:, :, p, :, q]
        return windows, None, *(_outermost(grad) if ctx.edges else ())


def _outermost(picked: Float[Tensor, "b h 2 w 2 o"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The first and the last row, the first and the last column."""
    b, h, _, w, _, o = picked.shape
    large = picked.view(b, 2 * h, 2 * w, o)
    return large[:, 0], large[:, -1], large[:, :, 0], large[:, :, -1]


def _edges(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """For `_Interleaved`: what the outermost taps of a 5x5 kernel see in a reflected border, less what they see in the nearest pixels."""

    def row(difference: Tensor, taps: Tensor) -> Tensor:
        doubled = difference.repeat_interleave(2, dim=2)[:, :, None]
        return F.conv2d(padded(doubled, "reflect", rows=0, columns=2), taps).squeeze(2).transpose(1, 2)

    def column(difference: Tensor, taps: Tensor) -> Tensor:
        doubled = difference.repeat_interleave(2, dim=2)[:, :, :, None]
        return F.conv2d(padded(doubled, "replicate", rows=2, columns=0), taps).squeeze(3).transpose(1, 2)

    first, last, left, right = _Beyond.apply(x)
    return (
        row(first, weight[:, :, :1]),
        row(last, weight[:, :, 4:]),
        column(left, weight[:, :, :, :1]),
        column(right, weight[:, :, :, 4:]),
    )


class _Beyond(torch.autograd.Function):
    """Each outermost row (b, c, w) and column (b, c, h) taken from the one beside it: the first and the last row, the same of columns.

    The gradient of every slice alone would be a map of zeros, and a sum of two maps.
    """

    SIDES = ((2, 1, 0), (2, -2, -1), (3, 1, 0), (3, -2, -1))  # axis, the pixels beside the outermost, the outermost

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x)  # for its shape and layout; the convolution keeps it anyway
        return tuple(x.select(axis, beside) - x.select(axis, outermost) for axis, beside, outermost in _Beyond.SIDES)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        whole = torch.zeros_like(x)
        for (axis, beside, outermost), gradient in zip(_Beyond.SIDES, gradients, strict=True):
            whole.select(axis, beside).add_(gradient)
            whole.select(axis, outermost).sub_(gradient)
        return whole


def _folded(weight: Float[Tensor, "o c k k"]) -> Float[Tensor, "4*o c s s"]:
    """The four kernels, of s = (k + 1) / 2 taps along a side: those taps that see the same small pixel are added."""
    (o, c, k, _), s = weight.shape, weight.shape[2] // 2 + 1
    both = torch.tensor(_taps(k), dtype=weight.dtype, device=weight.device)
    with torch.autocast(weight.device.type, enabled=False):
        sums = torch.matmul(both, weight.permute(0, 2, 3, 1).reshape(o, k * k, c))
    return sums.view(o, 4, s, s, c).transpose(0, 1).reshape(4 * o, s, s, c).permute(0, 3, 1, 2)


@functools.cache
def _taps(k: int) -> list[list[float]]:
    """Which of the k x k taps belong to each tap of each of the four kernels, 4 s s rows of k k zeros and ones."""
    reach = k // 2
    along = np.zeros((2, reach + 1, k))
    for p in range(2):
        first = (p - reach) // 2
        for tap in range(k):
            along[p, (p + tap - reach) // 2 - first, tap] = 1
    return np.einsum("pax,qby->pqabxy", along, along).reshape(-1, k * k).tolist()
