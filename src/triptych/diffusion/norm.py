"""Group normalisation in float32, fused with what follows it in a residual block: scale and shift, SiLU, dropout.

The chain is bound by memory traffic. On a CPU it is one autograd node that saves its input and two numbers a group, works in
place, and recomputes the rest in its backward pass: less memory than the separate operations, and several times faster in
bfloat16, whose fused kernel has a slow backward. Where groups are narrow and maps small, sums over the pixels take the place of
PyTorch's kernel, which goes channel by channel there (benchmarks/group_norms.py). On other devices plain operations are used, for
torch.compile to fuse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from triptych.nn.forward_mode import is_transformed
from triptych.nn.precision import widened

NUM_GROUPS = 32
_NARROWEST, _FEWEST_PIXELS = 5, 2**10  # channels of a group and pixels from which PyTorch's kernel is the faster one in channels last
_CACHED_VALUES = 2**19  # of samples that are worked on at a time, so that the operations find them in a CPU's cache


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
        if input.device.type != "cpu" or torch.compiler.is_compiling() or is_transformed(input):
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
    """By operations that leave the layout of x as it is: on a GPU F.group_norm gives no channels last, as attention wants them."""
    with torch.autocast(x.device.type, enabled=False):
        wide, groups = widened(x), (norm.num_groups, -1)
        # The numbers of a channel lie at equal distances in any layout; those of a group do not.
        variance, mean = (values.unflatten(1, groups) for values in torch.var_mean(wide, dim=(2, 3), correction=0))
        between, mean = torch.var_mean(mean, dim=2, correction=0, keepdim=True)
        factor = norm.weight.unflatten(0, groups) * (variance.mean(2, keepdim=True) + between + norm.eps).rsqrt()
        factor, offset = factor.flatten(1), norm.bias - (mean * factor).flatten(1)
        if m.scale is not None and m.shift is not None:
            gain = 1 + m.scale
            factor, offset = factor * gain, offset * gain + m.shift
        y = wide * factor[:, :, None, None] + offset[:, :, None, None]
        y = F.silu(y) if m.silu else y
        y = y if m.keep is None else y * m.keep * m.gain
        return y.to(x.dtype)


def _parts(x: Tensor) -> list[slice]:
    """The samples, as many at a time as a cache holds: ten passes over memory take half as long again."""
    count = max(1, _CACHED_VALUES // max(1, x.shape[1:].numel()))
    return [slice(start, start + count) for start in range(0, max(1, len(x)), count)]


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor | None, shift: Tensor | None, m: Modulation, norm: nn.GroupNorm
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and the mean and the inverse standard deviation of every group (b, groups)."""
    parts = _parts(x)
    if len(parts) == 1:
        y, mean, rstd = _forward_part(x, weight, bias, scale, shift, m.keep, m, norm)
        return y.to(x.dtype), mean, rstd
    y, stats = torch.empty_like(x), []
    for part in parts:
        own_scale, own_shift, keep = (_of(part, values) for values in (scale, shift, m.keep))
        wide, *both = _forward_part(x[part], weight, bias, own_scale, own_shift, keep, m, norm)
        y[part] = wide
        stats.append(both)
    mean, rstd = (torch.cat(found) for found in zip(*stats, strict=True))
    return y, mean, rstd


def _of(part: slice, values: Tensor | None) -> Tensor | None:
    return None if values is None else values[part]


def _forward_part(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    keep: Tensor | None,
    m: Modulation,
    norm: nn.GroupNorm,
) -> tuple[Tensor, Tensor, Tensor]:
    """What `_forward` gives for some samples, whose `scale`, `shift` and `keep` these are; the output in float32."""
    b, c, h, w = x.shape
    wide, groups = widened(x), norm.num_groups
    if not x.is_contiguous() and c // groups < _NARROWEST and h * w < _FEWEST_PIXELS:
        mean = _group_means(wide.sum((2, 3)), groups, pixels=h * w)
        y = wide - _spread(_by_channel(mean, c))
        squares = torch.mul(y, y, out=None if wide is x else wide)
        rstd = (_group_means(squares.sum((2, 3)), groups, pixels=h * w) + norm.eps).rsqrt()
        gain, offset = _affine(weight, bias, scale, shift, b)
        torch.addcmul(_spread(offset), y, _spread((rstd[..., None] * gain.unflatten(1, (groups, -1))).flatten(1)), out=y)
    else:
        y, mean, rstd = torch.native_group_norm(wide, weight, bias, b, c, h * w, groups, norm.eps)
        if scale is not None and shift is not None:
            torch.addcmul(_spread(shift), y, _spread(1 + scale), out=y)
    if m.silu:
        F.silu(y, inplace=True)
    if keep is not None:
        y.mul_(_bytes(keep)).mul_(m.gain)
    return y, mean, rstd


def _bytes(keep: Tensor) -> Tensor:
    return keep.view(torch.uint8)  # three times faster as a factor than bool


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, scale: Any, shift: Any, m: Modulation, norm: Any) -> Tensor:
        y, mean, rstd = _forward(x, weight, bias, scale, shift, m, norm)
        ctx.save_for_backward(x, weight, bias, scale, shift, m.keep, mean, rstd)
        ctx.silu, ctx.gain, ctx.groups = m.silu, m.gain, norm.num_groups
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, scale, shift, keep, mean, rstd = ctx.saved_tensors
        b, c = x.shape[:2]
        mean, rstd = _by_channel(mean, c), _by_channel(rstd, c)
        gain, offset = _affine(weight, bias, scale, shift, b)
        given, parts = (grad, x, keep, mean, rstd, gain, offset), _parts(x)
        if len(parts) == 1:
            dx, sum_dy, sum_dy_normal = _backward_part(*given, ctx=ctx)
            dx = dx.to(x.dtype)
        else:
            dx, sums = torch.empty_like(x), []
            for part in parts:
                dx[part], *both = _backward_part(*(_of(part, values) for values in given), ctx=ctx)
                sums.append(both)
            sum_dy, sum_dy_normal = (torch.cat(found) for found in zip(*sums, strict=True))
        if scale is None:
            return dx, sum_dy_normal.sum(0), sum_dy.sum(0), None, None, None, None
        d_weight, d_bias = ((1 + scale) * sum_dy_normal).sum(0), ((1 + scale) * sum_dy).sum(0)
        return dx, d_weight, d_bias, weight * sum_dy_normal + bias * sum_dy, sum_dy, None, None


def _backward_part(
    grad: Any, x: Any, keep: Any, mean: Any, rstd: Any, gain: Any, offset: Any, *, ctx: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Of some samples the gradient of x, in float32, and the sums over pixels of dy and dy * normal, (b, c) each.

    The numbers of a channel are (b, c). `normal` is the normalised input and dy the gradient of gain * normal + offset.
    """
    wide, dy = widened(x), widened(grad)
    h, w = wide.shape[2:]
    # What is no one else's is written over: memory that is in the cache takes half the time of other.
    normal = torch.addcmul(_spread(-mean * rstd), wide, _spread(rstd), out=torch.empty_like(wide) if wide is x else wide)
    spare, free = None if dy is grad else dy, None
    if keep is not None:
        spare = dy = torch.mul(dy, _bytes(keep), out=spare).mul_(ctx.gain)
    if ctx.silu:
        y = torch.addcmul(_spread(offset), normal, _spread(gain), out=torch.empty_like(normal))
        free, dy = spare, torch.ops.aten.silu_backward.grad_input(dy, y, grad_input=y)
    sum_dy, sum_dy_normal = dy.sum((2, 3)), torch.mul(dy, normal, out=free).sum((2, 3))
    sums = torch.stack((sum_dy, sum_dy_normal)) * gain
    means = _group_means(sums.flatten(0, 1), ctx.groups, pixels=h * w).view(2, -1, ctx.groups, 1)
    centre, slope = (-rstd.unflatten(1, (ctx.groups, -1)) * means).flatten(2)
    dx = torch.addcmul(_spread(centre), normal, _spread(slope), out=normal)
    return dx.addcmul_(dy, _spread(rstd * gain)), sum_dy, sum_dy_normal


def _affine(weight: Tensor, bias: Tensor, scale: Tensor | None, shift: Tensor | None, b: int) -> tuple[Tensor, Tensor]:
    """What the normalised input is multiplied by, and what is added then: (b, c) each."""
    if scale is None or shift is None:
        return weight.expand(b, -1), bias.expand(b, -1)
    return weight * (1 + scale), bias * (1 + scale) + shift


def _group_means(sums: Float[Tensor, "b c"], groups: int, *, pixels: int) -> Float[Tensor, "b g"]:
    """The means over the channels and pixels of groups, from the sums over the pixels."""
    return sums.view(len(sums), groups, -1).mean(2).div_(pixels)


def _by_channel(of_groups: Float[Tensor, "b g"], c: int) -> Float[Tensor, "b c"]:
    return of_groups[..., None].expand(-1, -1, c // of_groups.shape[1]).reshape(len(of_groups), c)


def _spread(values: Tensor) -> Tensor:
    return values[..., None, None]
