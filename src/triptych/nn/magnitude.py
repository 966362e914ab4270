"""Layers that preserve magnitudes: where what goes in has variance 1, what comes out has (Karras et al. 2024, arXiv 2312.02696).

No layer has a bias. A weight counts only by the direction of each of its filters, which are normalised wherever they are used (`unit`);
`force_unit` writes the normalised ones back, after each step of training, so that the size of a step is that of a turn.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from triptych.nn.convolution import fast_convolution
from triptych.nn.forward_mode import is_transformed
from triptych.nn.linear import linear

EPS = 1e-4
SILU_RMS = 0.596
"""sqrt(E silu(z)^2) of z ~ N(0, 1) (Karras et al. 2024, Eq. 81)."""


def unit(x: Tensor, *, dims: tuple[int, ...]) -> Tensor:
    """x / (eps + the root of the mean of its squares over `dims`), of the shape and type of x; eps = 1e-4, the mean at least in float32.

    It can be differentiated once.
    """
    return _unit(x, dims, 1.0)


def _unit(x: Tensor, dims: tuple[int, ...], gain: Tensor | float) -> Tensor:
    """gain * unit(x)."""
    if torch.compiler.is_compiling() or is_transformed(x):
        return x * (_factor(x, dims)[1] * gain).to(x.dtype)
    return _Unit.apply(x, dims, gain)


def _factor(x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """|x| over the dimensions, and what x is multiplied by."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    norm = torch.linalg.vector_norm(x, dim=dims, keepdim=True, dtype=dtype)
    return norm, (EPS + norm / math.sqrt(x.numel() / max(norm.numel(), 1))).reciprocal()


class _Unit(Function):
    """y = gain x f of f = 1 / (eps + |x| / sqrt(n)), and its gradients: with g that by y,

        gain f g - gain <g, x> f^2 / (sqrt(n) |x|) x   by x,    <g, x> f   by the gain.

    Autograd would go through x nine times for that.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: tuple[int, ...], gain: Tensor | float) -> Tensor:
        norm, factor = _factor(x, dims)
        given = (gain,) if isinstance(gain, Tensor) else ()
        ctx.save_for_backward(x, norm, factor, *given)
        ctx.dims, ctx.gain = dims, gain if not given else None
        return x * (factor * gain).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, Tensor | None]:  # type: ignore[override]
        x, norm, factor, *given = ctx.saved_tensors
        gain, dtype = given[0] if given else ctx.gain, x.dtype
        if dtype == torch.float16:  # what x is multiplied by below can be too large for it where the result is not
            gradient, x = gradient.to(factor.dtype), x.to(factor.dtype)
        along = (gradient * x).sum(ctx.dims, keepdim=True, dtype=factor.dtype)
        by_x = by_gain = None
        if ctx.needs_input_grad[0]:
            root = math.sqrt(x.numel() / max(norm.numel(), 1))
            back = along * factor.square() * -gain / (root * norm).clamp(min=torch.finfo(norm.dtype).tiny)
            by_x = (gradient * (factor * gain).to(x.dtype)).addcmul_(x, back.to(x.dtype)).to(dtype)
        if ctx.needs_input_grad[2]:
            by_gain = (along * factor).sum().to(gain.dtype)
        return by_x, None, by_gain


def mp_silu(x: Tensor) -> Tensor:
    """silu(x) / 0.596."""
    return F.silu(x) / SILU_RMS


def mp_sum(a: Tensor, b: Tensor, *, t: float) -> Tensor:
    """((1 - t) a + t b) / sqrt((1 - t)^2 + t^2): of variance 1 where a and b are, and are uncorrelated (Eq. 88)."""
    return torch.lerp(a, b, t) / math.hypot(1 - t, t)


def mp_sum_with(a: Tensor, layer: UnitConv2d, x: Tensor, *, t: float, gain: float = 1.0) -> Tensor:
    """mp_sum(a, layer(x, gain), t=t) with one pass over a: the layer's filters have the factor of what it gives."""
    whole = math.hypot(1 - t, t)
    return torch.add(layer(x, gain * t / whole), a, alpha=(1 - t) / whole)


def mp_cat(a: Float[Tensor, "b n h w"], b: Float[Tensor, "b m h w"], *, t: float = 0.5) -> Float[Tensor, "b _ h w"]:
    """a and b along the channels, scaled so that they count as 1 - t to t, however many channels each has (Eq. 103)."""
    n, m = a.shape[1], b.shape[1]
    whole = math.sqrt(n + m) / math.hypot(1 - t, t)
    return torch.cat((whole / math.sqrt(n) * (1 - t) * a, whole / math.sqrt(m) * t * b), dim=1)


class _UnitLayer(nn.Module):
    """A linear map without bias, key `weight` [out, in, ...], whose filters have the length 1."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape))
        self.force_unit()

    @torch.no_grad()
    def force_unit(self) -> None:
        """Normalises the weight that is kept (forced weight normalisation, Eq. 66); what the layer does stays the same."""
        if not self.weight.is_meta:
            self.weight.mul_(_factor(self.weight, self._filter)[1])

    def filters(self, gain: Tensor | float = 1.0) -> Tensor:
        """The weight as it is applied: filters of length `gain` (but for eps)."""
        return _unit(self.weight, self._filter, gain / math.sqrt(self.weight[0].numel()))

    @property
    def _filter(self) -> tuple[int, ...]:
        return tuple(range(1, self.weight.ndim))


class UnitLinear(_UnitLayer):
    """y = W x; with `gain` gain times that."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(out_features, in_features)

    def forward(self, x: Float[Tensor, "b i"], gain: Tensor | float = 1.0) -> Float[Tensor, "b o"]:
        return linear(x, self.filters(gain))


class UnitConv2d(_UnitLayer):
    """A convolution of `side` x `side` pixels, an odd number, that keeps the size; with `gain` gain times that."""

    def __init__(self, in_channels: int, out_channels: int, side: int) -> None:
        super().__init__(out_channels, in_channels, side, side)

    def forward(self, x: Float[Tensor, "b i h w"], gain: Tensor | float = 1.0) -> Float[Tensor, "b o h w"]:
        return fast_convolution(x, self.filters(gain), padding=self.weight.shape[-1] // 2)


class UnitFourier(nn.Module):
    """Random Fourier features of a number: sqrt(2) cos(2 pi (f x + phase)), f ~ N(0, 1), phase ~ U(0, 1) (Eq. 75).

    The buffers `freqs` and `phases`, with the factor 2 pi, are drawn once and saved.
    """

    freqs: Tensor
    phases: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("freqs", torch.empty(features).normal_().mul_(2 * math.pi))
        self.register_buffer("phases", torch.empty(features).uniform_().mul_(2 * math.pi))

    def forward(self, x: Float[Tensor, " b"]) -> Float[Tensor, "b f"]:
        return (x.to(self.freqs.dtype)[:, None] * self.freqs + self.phases).cos() * math.sqrt(2)


def force_unit(network: nn.Module) -> None:
    """Normalises the weights that are kept in all layers of a network."""
    for module in network.modules():
        if isinstance(module, _UnitLayer):
            module.force_unit()
