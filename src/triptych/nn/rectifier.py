"""Leaky rectifiers for networks under a gradient penalty."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function


def leaky_rectifier(x: Float[Tensor, " *s"], slope: float, limit: float | None = None) -> Float[Tensor, " *s"]:
    """x, or slope * x where x is negative; with a `limit` clipped to plus and minus that. `slope`: above 0.

    As `F.leaky_relu` and `torch.clamp`, but what is kept for the gradient is the result, which the next layer keeps anyway, and the second
    derivative by x, which is 0, is left out: PyTorch makes zeros of it and sends them back through the whole network.
    """
    return _Rectifier.apply(x, slope, limit)


class _Rectifier(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float, limit: float | None) -> Tensor:
        y = F.leaky_relu(x, slope)
        # As y can have it: in half precision 181.02 is kept as 181, which would count as not clipped.
        limit = None if limit is None else torch.tensor(limit, dtype=x.dtype).item()
        y = y if limit is None else F.hardtanh_(y, -limit, limit)
        ctx.save_for_backward(y)
        ctx.slope, ctx.limit = slope, limit
        ctx.set_materialize_grads(False)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (y,) = ctx.saved_tensors
        return None if gradient is None else _Slope.apply(gradient, y.detach(), ctx.slope, ctx.limit), None, None


class _Slope(Function):
    """A gradient times the rectifier's slope at the result y; linear, so that its own gradient is the same."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, y: Tensor, slope: float, limit: float | None) -> Tensor:
        ctx.save_for_backward(y)
        ctx.slope, ctx.limit = slope, limit
        ctx.set_materialize_grads(False)
        # The gradient of hardtanh takes a quarter of the time of that of clamp on a CPU.
        gradient = gradient if limit is None else torch.ops.aten.hardtanh_backward(gradient, y, -limit, limit)
        return torch.ops.aten.leaky_relu_backward(gradient, y, slope, True)  # True: y is the result

    @staticmethod
    def backward(ctx: Any, tangent: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (y,) = ctx.saved_tensors
        return None if tangent is None else _Slope.apply(tangent, y, ctx.slope, ctx.limit), None, None, None
