"""Group normalisation in float32, fused with what follows it in a residual block: scale and shift, SiLU, dropout.

The chain is bound by memory traffic. On a CPU it is one autograd node that saves its input and two numbers a group, works in
place, and recomputes the rest in its backward pass: less memory than the separate operations, and several times faster in
bfloat16, whose fused kernel has a slow backward. Elsewhere the plain operations are used, for torch.compile to fuse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from triptych.nn.forward_mode import has_tangent
from triptych.nn.precision import widened

NUM_GROUPS = 32


@dataclass(frozen=True)
class Modulation:
    """What comes after the normalisation, in this order; x is (b, c, h, w)."""

    scale: Tensor | None = None
    "x * (1 + scale) + shift: (b, c), given with `shift`."
    shift: Tensor | None = None
    "See `scale`: (b, c)."
    silu: bool = False
    "x * sigmoid(x)."
    keep: Tensor | None = None
    "Dropout: bool (b, c, h, w); the others become 0."
    gain: float = 1.0
    "Factor of those that dropout keeps, 1 / (1 - drop)."


class ModulatedGroupNorm(nn.GroupNorm):
    """Group normalisation, computed in float32 whatever the input's type, which the output has again."""

    def __init__(self, channels: int, *, groups: int = NUM_GROUPS, eps: float = 1e-5) -> None:
        super().__init__(groups, channels, eps=eps)

    def forward(self, input: Float[Tensor, "b c h w"], modulation: Modulation = Modulation()) -> Float[Tensor, "b c h w"]:
        """The normalised input, modulated."""
        if input.device.type != "cpu" or torch.compiler.is_compiling() or has_tangent(input):
            return _plain(input, self, modulation)
        if not (input.is_contiguous() or input.is_contiguous(memory_format=torch.channels_last)):
            input = input.contiguous(memory_format=torch.channels_last)  # the kernel takes nothing else
        if len(input) == 1 and not input.is_contiguous() and input.stride(0) != input.numel():
            # The stride of an axis of 1 means nothing, convolutions may give any, and the kernel refuses small ones.
            input = input.clone(memory_format=torch.channels_last)
        m = modulation
        if not torch.is_grad_enabled():
            return _forward(input, self.weight, self.bias, m.scale, m.shift, m, self)[0]
        return _Fused.apply(input, self.weight, self.bias, m.scale, m.shift, m, self)


def _plain(x: Tensor, norm: ModulatedGroupNorm, m: Modulation) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        # Forwards, group_norm does not take channels last.
        y = _by_moments(widened(x), norm) if has_tangent(x) else F.group_norm(widened(x), norm.num_groups, norm.weight, norm.bias, norm.eps)
        if m.scale is not None and m.shift is not None:
            y = y * (1 + m.scale[:, :, None, None]) + m.shift[:, :, None, None]
        y = F.silu(y) if m.silu else y
        y = y if m.keep is None else y * m.keep * m.gain
        return y.to(x.dtype)


def _by_moments(x: Tensor, norm: ModulatedGroupNorm) -> Tensor:
    grouped = x.reshape(len(x), norm.num_groups, -1)
    variance, mean = torch.var_mean(grouped, dim=2, correction=0, keepdim=True)
    return ((grouped - mean) * (variance + norm.eps).rsqrt()).reshape(x.shape) * _spread(norm.weight) + _spread(norm.bias)


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor | None, shift: Tensor | None, m: Modulation, norm: nn.GroupNorm
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and the mean and the inverse standard deviation of every group (b, groups)."""
    b, c, h, w = x.shape
    y, mean, rstd = torch.native_group_norm(widened(x), weight, bias, b, c, h * w, norm.num_groups, norm.eps)
    if scale is not None and shift is not None:
        torch.addcmul(shift[:, :, None, None], y, (1 + scale)[:, :, None, None], out=y)
    if m.silu:
        F.silu(y, inplace=True)
    if m.keep is not None:
        y.mul_(_bytes(m.keep)).mul_(m.gain)
    return y.to(x.dtype), mean, rstd


def _bytes(keep: Tensor) -> Tensor:
    return keep.view(torch.uint8)  # three times faster as a factor than bool


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, scale: Any, shift: Any, m: Modulation, norm: Any) -> Tensor:
        y, mean, rstd = _forward(x, weight, bias, scale, shift, m, norm)
        ctx.save_for_backward(x, weight, bias, scale, shift, m.keep, mean, rstd)
        ctx.silu, ctx.gain = m.silu, m.gain
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, scale, shift, keep, mean, rstd = ctx.saved_tensors
        b, c, h, w = x.shape
        per_channel = c // mean.shape[1]
        mean, rstd = (stat.repeat_interleave(per_channel, dim=1) for stat in (mean, rstd))
        gain, offset = (weight.expand(b, c), bias.expand(b, c))
        if scale is not None:
            gain, offset = weight * (1 + scale), bias * (1 + scale) + shift
        # Below, normal is the normalised input and dy the gradient of gain * normal + offset.
        wide = widened(x)
        normal = torch.addcmul(_spread(-mean * rstd), wide, _spread(rstd), out=torch.empty_like(wide))
        dy = widened(grad)
        if keep is not None:
            dy = (dy * _bytes(keep)).mul_(ctx.gain)
        if ctx.silu:
            y = torch.addcmul(_spread(offset), normal, _spread(gain), out=torch.empty_like(normal))
            dy = torch.ops.aten.silu_backward.grad_input(dy, y, grad_input=y)
        sum_dy, sum_dy_normal = dy.sum((2, 3)), (dy * normal).sum((2, 3))
        centre, slope = (
            (gain * total).view(b, -1, per_channel).mean(2).div_(h * w).repeat_interleave(per_channel, dim=1)
            for total in (sum_dy, sum_dy_normal)
        )
        dx = torch.addcmul(_spread(-rstd * centre), normal, _spread(-rstd * slope), out=normal)
        dx = dx.addcmul_(dy, _spread(rstd * gain)).to(x.dtype)
        if scale is None:
            return dx, sum_dy_normal.sum(0), sum_dy.sum(0), None, None, None, None
        d_weight, d_bias = ((1 + scale) * sum_dy_normal).sum(0), ((1 + scale) * sum_dy).sum(0)
        return dx, d_weight, d_bias, weight * sum_dy_normal + bias * sum_dy, sum_dy, None, None


def _spread(values: Tensor) -> Tensor:
    return values[..., None, None]
