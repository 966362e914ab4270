"""Feature maps halved, and doubled with a convolution."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from triptych.nn.convolution import fast_convolution
from triptych.nn.forward_mode import has_tangent
from triptych.nn.resample import enlarged

_PHASES = ((0, 0), (0, 1), (1, 0), (1, 1))  # row and column of a pixel in its square of four
_FOLDED_FROM = 8  # pixels; below, the border that is computed in vain costs more than is saved (measured on a CPU)


def halved(x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h//2 w//2"]:
    """The mean of every square of four pixels."""
    return F.avg_pool2d(x, 2)


def convolved_enlarged(
    x: Float[Tensor, "b c h w"], weight: Float[Tensor, "o c 3 3"], bias: Float[Tensor, " o"] | None
) -> Float[Tensor, "b o 2*h 2*w"]:
    """conv3x3(enlarged(x)) with a border of zeros.

    On a CPU as one convolution of the small map with four 2x2 kernels, one for each pixel of a square: 4/9 of the products.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling() or min(x.shape[2:]) < _FOLDED_FROM or has_tangent(x):
        return fast_convolution(enlarged(x), weight, bias, padding=1)
    b, _, h, w = x.shape
    o = len(weight)
    windows = fast_convolution(x, _folded(weight), None if bias is None else bias.repeat(4), padding=1).permute(0, 2, 3, 1)
    picked = _Interleaved.apply(windows.reshape(b, h + 1, w + 1, 2, 2, o))
    return picked.view(b, 2 * h, 2 * w, o).permute(0, 3, 1, 2)


class _Interleaved(torch.autograd.Function):
    """Pixel (2 i + p, 2 j + q) is that of kernel (p, q) at window (i + p, j + q): (b, h, 2, w, 2, o) from (b, h+1, w+1, 2, 2, o)."""

    @staticmethod
    def forward(ctx: Any, windows: Tensor) -> Tensor:
        b, h, w, _, _, o = windows.shape
        picked = windows.new_empty(b, h - 1, 2, w - 1, 2, o)
        for p, q in _PHASES:
            picked[:, :, p, :, q] = windows[:, p : p + h - 1, q : q + w - 1, p, q]
        return picked

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        b, h, _, w, _, o = grad.shape
        windows = grad.new_zeros(b, h + 1, w + 1, 2, 2, o)
        for p, q in _PHASES:
            windows[:, p : p + h, q : q + w, p, q] = grad[:, :, p, :, q]
        return windows


def _folded(weight: Tensor) -> Tensor:
    """The four 2x2 kernels, (4 o, c, 2, 2): those taps of (o, c, 3, 3) that see the same small pixel are added."""
    o, c = weight.shape[:2]
    first, second = [[1, 0, 0], [0, 1, 1]], [[1, 1, 0], [0, 0, 1]]  # taps of the upper and of the lower pixel of a square
    taps = torch.tensor([first, second], dtype=weight.dtype, device=weight.device)
    both = torch.einsum("pax,qby->pqabxy", taps, taps).reshape(16, 9)
    with torch.autocast(weight.device.type, enabled=False):
        sums = torch.matmul(both, weight.permute(0, 2, 3, 1).reshape(o, 9, c))
    return sums.view(o, 4, 2, 2, c).transpose(0, 1).reshape(4 * o, 2, 2, c).permute(0, 3, 1, 2)
