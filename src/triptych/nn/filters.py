"""Halving and doubling of images by a separable filter, as ordinary convolutions.

Pixels are squares: pixel i of the small image lies in the middle of pixels 2i and 2i + 1 of the large one, so filters have even lengths.
Beyond the border all is 0. A filter is given by its `taps` in each direction, which are divided by their sum; or by the whole kernel that
`kernel_of` gives, as it is: a network keeps it as a buffer, so that no call copies it to a GPU.

The fused forms leave out the pixels that would be thrown away, or that are 0: a quarter of the work. They are
the convolutions of "Analyzing and Improving the Image Quality of StyleGAN", Karras et al. 2020, https://arxiv.org/abs/1912.04958.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from triptych.nn.convolution import convolution, transposed_convolution
from triptych.nn.precision import widened

BINOMIAL: tuple[float, ...] = (1.0, 3.0, 3.0, 1.0)
Taps: TypeAlias = Sequence[float] | Tensor

_LARGEST_KERNEL = 6  # longer filters are faster as a pass along each axis


def kernel_of(taps: Sequence[float], *, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Float[Tensor, "n n"]:
    """The filter in two directions, divided by its sum. Raises ValueError for an odd number of taps."""
    line = _line(taps, dtype=dtype, device=device)
    return line[:, None] * line


def upsampled(x: Float[Tensor, "b c h w"], taps: Taps = BINOMIAL) -> Float[Tensor, "b c 2*h 2*w"]:
    """Twice as large: zeros between the pixels, then the filter, four times as strong."""
    for kernel in _kernels(taps, x, gain=4.0):
        where = [int(side > 1) for side in kernel.shape]  # a pass along one axis leaves the other one alone
        padding, stride = [a * (max(kernel.shape) // 2 - 1) for a in where], [1 + a for a in where]
        sides = [side * step for side, step in zip(x.shape[2:], stride, strict=True)]
        x = _Transposed.apply(x, kernel, sides, stride, padding)
    return x


def downsampled(x: Float[Tensor, "b c h w"], taps: Taps = BINOMIAL) -> Float[Tensor, "b c h//2 w//2"]:
    """Half as large: the filter, then every second pixel."""
    return _filtered(x, taps, reach=-1, stride=2)


def upsampled_convolution(
    x: Float[Tensor, "b c h w"], weight: Float[Tensor, "d i k k"], taps: Taps = BINOMIAL, *, groups: int = 1
) -> Float[Tensor, "b d 2*h 2*w"]:
    """Zeros between the pixels, a convolution (k odd), then the filter, four times as strong.

    The convolution is that of mathematics, whose kernel is turned by 180 degrees against that of `F.conv2d`, as a transposed one has it.
    """
    outs = weight.shape[0] // groups
    turned = weight.unflatten(0, (groups, outs)).transpose(1, 2).flatten(0, 1)
    return _filtered(transposed_convolution(x, turned, stride=2, groups=groups), taps, reach=-(weight.shape[2] // 2), gain=4.0)


def downsampled_convolution(
    x: Float[Tensor, "b c h w"], weight: Float[Tensor, "d c k k"], taps: Taps = BINOMIAL
) -> Float[Tensor, "b d h//2 w//2"]:
    """The filter, then a convolution (k odd) of stride 2."""
    reach = weight.shape[2] // 2
    return convolution(downsampled(x, taps), weight) if not reach else convolution(_filtered(x, taps, reach=reach - 1), weight, stride=2)


def convolved_downsampled(
    x: Float[Tensor, "b c h w"], weight: Float[Tensor, "d c k k"], taps: Taps = BINOMIAL
) -> Float[Tensor, "b d h//2 w//2"]:
    """A convolution (k odd), then the filter, then every second pixel. What the filter sees beyond the border is convolved too."""
    kernel = _kernels(taps, x)[0]
    beyond = max(kernel.shape) // 2 - 1
    return _filtered(convolution(x, weight, padding=weight.shape[2] // 2 + beyond), taps, reach=-1 - beyond, stride=2)


def _filtered(x: Tensor, taps: Taps, *, reach: int, stride: int = 1, gain: float = 1.0) -> Tensor:
    """x convolved with the filter, after half its length and `reach` pixels of zeros on each side."""
    for kernel in _kernels(taps, x, gain=gain):
        where = [int(side > 1) for side in kernel.shape]
        padding, strides = [a * (max(kernel.shape) // 2 + reach) for a in where], [1 + a * (stride - 1) for a in where]
        x = _Filter.apply(x, kernel.flip(0, 1), strides, padding)
    return x


class _Filter(Function):
    """Each channel convolved with the kernel (h, w), in the precision of x; its gradient is `_Transposed`, and the other way round.

    PyTorch's own gradient in half precision takes some forty times as long on a CPU, for a transposed convolution of single channels has
    no fast kernel there.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, stride: list[int], padding: list[int]) -> Tensor:
        ctx.kernel, ctx.sides, ctx.geometry = kernel, x.shape[2:], (stride, padding)
        ctx.set_materialize_grads(False)
        with torch.autocast(x.device.type, enabled=False):
            return F.conv2d(x, _for_each_channel(kernel, x), stride=stride, padding=padding, groups=x.shape[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return None if gradient is None else _Transposed.apply(gradient, ctx.kernel, ctx.sides, *ctx.geometry), None, None, None


class _Transposed(Function):
    """The transposed convolution of each channel with the kernel, of so many pixels (h, w); on a CPU computed in float32 at least."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, sides: Sequence[int], stride: list[int], padding: list[int]) -> Tensor:
        ctx.kernel, ctx.geometry = kernel, (stride, padding)
        ctx.set_materialize_grads(False)
        around = [taps - 1 - beyond for taps, beyond in zip(kernel.shape, padding, strict=True)]
        with torch.autocast(x.device.type, enabled=False):
            if max(stride) == 1 and min(around) >= 0:  # then it is a convolution, which is faster
                return F.conv2d(x, _for_each_channel(kernel.flip(0, 1), x), padding=around, groups=x.shape[1])
            wide = widened(x) if x.device.type == "cpu" else x
            reached = [(n - 1) * step + a - beyond + 1 for n, step, a, beyond in zip(x.shape[2:], stride, around, padding, strict=True)]
            more = [side - n for side, n in zip(sides, reached, strict=True)]
            weight = _for_each_channel(kernel, wide)
            y = F.conv_transpose2d(wide, weight, stride=stride, padding=padding, output_padding=more, groups=x.shape[1])
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return None if gradient is None else _Filter.apply(gradient, ctx.kernel, *ctx.geometry), None, None, None, None


def _kernels(taps: Taps, x: Tensor, *, gain: float = 1.0) -> list[Tensor]:
    """The kernels to convolve x with one after the other: one of both directions, or one along each axis."""
    if isinstance(taps, Tensor):
        return [taps * gain]
    if len(taps) <= _LARGEST_KERNEL:
        return [kernel_of(taps, dtype=x.dtype, device=x.device) * gain]
    line = _line(taps, dtype=x.dtype, device=x.device) * math.sqrt(gain)
    return [line[:, None], line[None]]


def _line(taps: Sequence[float], *, dtype: torch.dtype | None, device: torch.device | None) -> Tensor:
    if len(taps) % 2:
        raise ValueError(f"got a filter of {len(taps)} taps, expected an even number")
    return torch.tensor([tap / sum(taps) for tap in taps], dtype=dtype, device=device)


def _for_each_channel(kernel: Tensor, x: Tensor) -> Tensor:
    return kernel.to(x.dtype).expand(x.shape[1], 1, -1, -1)
