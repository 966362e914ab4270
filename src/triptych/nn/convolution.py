"""Convolutions whose second derivatives are as fast as their first, for networks under a gradient penalty.

A convolution is bilinear, so that everything about its derivatives is in one number, <conv(x, w), g>: by g it is the convolution itself, by
x the input's gradient, by w the weight's. Each of the three is linear in two of x, w and g, and its own derivatives are the other two.
PyTorch takes the second derivative another way, by a convolution of feature maps with feature maps in which the batch stands for the
channels and an image is the kernel; on a CPU that takes up to twice as long (benchmarks/gan_steps.py).

Each of the three is computed by the way that is fastest on the machine: PyTorch's, tiles (winograd.py), rows (winograd_rows.py), or for
the weight's gradient products of matrices (weight_gradient.py). Networks without a penalty have these ways by `FastConv2d`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import Function

from triptych.nn import winograd, winograd_rows
from triptych.nn.few_channels import convolved_together, pixels_together
from triptych.nn.forward_mode import is_transformed
from triptych.nn.precision import autocasted
from triptych.nn.weight_gradient import by_products, weight_gradient
from triptych.nn.winograd import by_tiles
from triptych.nn.winograd_rows import by_rows, rows_before_tiles


class _Geometry(NamedTuple):
    stride: int
    padding: int
    groups: int
    transposed: bool

    @property
    def plain(self) -> bool:
        """Whether each channel of y sees all those of x."""
        return self.groups == 1 and not self.transposed


def convolution(
    x: Float[Tensor, "b i h w"],
    weight: Float[Tensor, "d j kh kw"],
    bias: Float[Tensor, " d"] | None = None,
    *,
    stride: int = 1,
    padding: int = 0,
    groups: int = 1,
) -> Float[Tensor, "b d _ _"]:
    """What `F.conv2d` gives, in the precision of autocast where that is on."""
    return _convolved(x, weight, bias, _Geometry(stride, padding, groups, transposed=False))


def transposed_convolution(
    x: Float[Tensor, "b i h w"], weight: Float[Tensor, "i j kh kw"], *, stride: int = 1, padding: int = 0, groups: int = 1
) -> Float[Tensor, "b d _ _"]:
    """What `F.conv_transpose2d` gives, in the precision of autocast where that is on."""
    return _convolved(x, weight, None, _Geometry(stride, padding, groups, transposed=True))


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: _Geometry) -> Tensor:
    given = (x, weight) if bias is None else (x, weight, bias)
    if torch.compiler.is_compiling() or any(map(is_transformed, given)):  # a compiled network has no second derivatives
        return _plain(x, weight, bias, geometry)
    x, weight, bias = autocasted(x), autocasted(weight), None if bias is None else autocasted(bias)
    y = _plain(x.detach(), weight.detach(), None if bias is None else bias.detach(), geometry)
    if not torch.is_grad_enabled():
        return y
    # The weight and the bias have nodes of their own, so that a gradient by x alone, which a penalty takes first, costs nothing for them.
    by_weight = _Kernel.apply(weight, (x, y.shape, geometry))
    by_bias = None if bias is None else bias.view(1, -1, 1, 1).expand(y.shape)
    return _Output.apply(x, weight, by_weight, by_bias, y, geometry)


def _plain(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: _Geometry) -> Tensor:
    way = fewer_multiplications(x, weight, stride=geometry.stride, padding=geometry.padding) if geometry.plain else None
    if way is not None:
        y = way.convolved(x, weight, padding=geometry.padding)
        return y if bias is None else y.add_(bias[:, None, None])
    kind = F.conv_transpose2d if geometry.transposed else F.conv2d
    return kind(x, weight, bias, stride=geometry.stride, padding=geometry.padding, groups=geometry.groups)


def fewer_multiplications(
    x: Float[Tensor, "b i h w"], weight: Float[Tensor, "o i kh kw"], *, stride: int, padding: int, learning: bool = False
) -> ModuleType | None:
    """The module that computes a convolution faster than PyTorch, or the gradient of its weight with `learning`; None if none does."""
    tiles, rows = (by(x, weight, stride=stride, padding=padding, learning=learning) for by in (by_tiles, by_rows))
    if tiles and rows:
        return winograd_rows if rows_before_tiles(weight, learning=learning) else winograd
    return winograd if tiles else winograd_rows if rows else None


class Conv2d(nn.Conv2d):
    """`nn.Conv2d` with one stride and one padding for both axes, zeros beyond the border and no dilation."""

    def forward(self, input: Float[Tensor, "b i h w"]) -> Float[Tensor, "b d _ _"]:
        assert isinstance(self.padding, tuple)
        return convolution(input, self.weight, self.bias, stride=self.stride[0], padding=self.padding[0], groups=self.groups)


def fast_convolution(
    x: Float[Tensor, "b i h w"],
    weight: Float[Tensor, "d i kh kw"],
    bias: Float[Tensor, " d"] | None = None,
    *,
    stride: int = 1,
    padding: int = 0,
) -> Float[Tensor, "b d _ _"]:
    """What `F.conv2d` gives, with it and its gradients computed in the ways that are fastest."""
    count = pixels_together(x, weight, stride=stride, padding=padding)
    if count > 1:
        return convolved_together(x, weight, bias, padding=padding, count=count)
    learns = torch.is_grad_enabled() and weight.requires_grad and not torch.compiler.is_compiling()
    half = torch.is_autocast_enabled(x.device.type)
    fewer = any(fewer_multiplications(x, weight, stride=stride, padding=padding, learning=learning) for learning in {False, learns})
    if not half and (fewer or (learns and by_products(x, weight, padding=padding))):
        return convolution(x, weight, bias, stride=stride, padding=padding)
    return F.conv2d(x, weight, bias, stride=stride, padding=padding)


class FastConv2d(nn.Conv2d):
    """`nn.Conv2d` by `fast_convolution`: with one stride and one padding for both axes, zeros beyond the border, no groups, no dilation."""

    def forward(self, input: Float[Tensor, "b i h w"]) -> Float[Tensor, "b d _ _"]:
        assert isinstance(self.padding, tuple)
        return fast_convolution(input, self.weight, self.bias, stride=self.stride[0], padding=self.padding[0])


class _Output(Function):
    """y = conv(x, w) + bias, already computed, and its gradients; those by w and by the bias it hands on as they come."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, by_weight: Tensor, by_bias: Tensor | None, y: Tensor, geometry: _Geometry) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry = geometry
        ctx.set_materialize_grads(False)
        ctx.mark_dirty(y)  # else it counts as a view of itself, which no operation may change in place
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        if gradient is None:  # as from a second derivative that is 0
            return (None,) * 6
        x, weight = ctx.saved_tensors
        by_x = _Input.apply(gradient, weight, x.detach(), ctx.geometry) if ctx.needs_input_grad[0] else None
        return by_x, None, gradient, gradient if ctx.needs_input_grad[3] else None, None, None


class _Kernel(Function):
    """Takes the gradient of y = conv(x, w) and makes that of w of it."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, rest: tuple[Tensor, torch.Size, _Geometry]) -> Tensor:
        x, shape, ctx.geometry = rest
        ctx.save_for_backward(weight, x)  # x with its own graph
        ctx.set_materialize_grads(False)
        return weight.new_zeros(()).expand(shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        if gradient is None:
            return None, None
        weight, x = ctx.saved_tensors
        return _Weight.apply(x, gradient, weight.detach(), ctx.geometry), None


class _Input(Function):
    """The gradient of <conv(x, w), g> by x."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, weight: Tensor, x: Tensor, geometry: _Geometry) -> Tensor:
        ctx.save_for_backward(gradient, weight)
        ctx.geometry = geometry
        return _derivatives(gradient, x, weight, geometry, (True, False, False))[0]

    @staticmethod
    def backward(ctx: Any, tangent: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        gradient, weight = ctx.saved_tensors
        by_gradient, by_weight, _, _ = ctx.needs_input_grad
        return (
            _convolved(tangent, weight, None, ctx.geometry) if by_gradient else None,
            _Weight.apply(tangent, gradient, weight.detach(), ctx.geometry) if by_weight else None,
            None,
            None,
        )


class _Weight(Function):
    """The gradient of <conv(x, w), g> by w."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gradient: Tensor, weight: Tensor, geometry: _Geometry) -> Tensor:
        ctx.save_for_backward(x, gradient)
        ctx.geometry = geometry
        return _derivatives(gradient, x, weight, geometry, (False, True, False))[1]

    @staticmethod
    def backward(ctx: Any, tangent: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, gradient = ctx.saved_tensors
        by_x, by_gradient, _, _ = ctx.needs_input_grad
        return (
            _Input.apply(gradient, tangent, x.detach(), ctx.geometry) if by_x else None,
            _convolved(x, tangent, None, ctx.geometry) if by_gradient else None,
            None,
            None,
        )


def _derivatives(gradient: Tensor, x: Tensor, weight: Tensor, geometry: _Geometry, wanted: tuple[bool, bool, bool]) -> Any:
    """Those by x, weight and bias. Of the one that the derivative is taken by, only the shape and the memory layout matter."""
    stride, padding = geometry.stride, geometry.padding
    if geometry.plain and wanted in ((True, False, False), (False, True, False)):
        way = fewer_multiplications(x, weight, stride=stride, padding=padding, learning=wanted[1])
        kernel = (weight.shape[2], weight.shape[3])
        if way is not None and not wanted[1]:
            return way.input_gradient(gradient, weight, padding=padding), None, None
        if way is not None:
            return None, way.weight_gradient(x, gradient, kernel=kernel[0], padding=padding), None
        if wanted[1] and by_products(x, weight, padding=padding):
            return None, weight_gradient(x, gradient, kernel, stride=stride, padding=padding), None
    shape = [geometry.stride] * 2, [geometry.padding] * 2, [1, 1], geometry.transposed, [0, 0], geometry.groups
    return torch.ops.aten.convolution_backward(gradient, x, weight, None, *shape, wanted)
