"""Linear maps in float32 by the library that uses all of a CPU's vectors.

PyTorch has two libraries that multiply matrices in float32. MKL, which it takes for linear maps, uses half of the vectors of AMD's Zen 5.
oneDNN, which it takes for convolutions, uses all of them and is twice as fast there (benchmarks/linear.py). On Zen 4 it is a tenth faster;
of the gradients of weights only some are.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import Function

from triptych.nn.cpu import multiplies_fast, multiplies_in_halves, vectors
from triptych.nn.forward_mode import is_transformed

_FEWEST_NUMBERS, _FEWEST_PRODUCTS = 2**15, 2**22  # of the result and in all, on Zen 5
_FEWEST_IN_HALVES = 2**24  # products on Zen 4
_FEW_ROWS, _FEWEST_LEARNED = 128, 2**17  # gradients of weights on Zen 4


def linear(x: Float[Tensor, "*n i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None = None) -> Float[Tensor, "*n o"]:
    """What `F.linear` gives, x W^T + bias, and derivatives of any order."""
    if not by_onednn(x, weight) or (bias is not None and is_transformed(bias)):
        return F.linear(x, weight, bias)
    rows = x.flatten(0, -2)
    learns = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad))
    y = _Linear.apply(rows, weight, bias) if learns else computed(rows, weight, bias)
    # No view, which no one could change in place where it was made without gradients.
    return y if x.ndim == 2 else torch.ops.aten._unsafe_view(y, (*x.shape[:-1], len(weight)))


class Linear(nn.Linear):
    """`nn.Linear` by `linear`."""

    def forward(self, input: Float[Tensor, "*n i"]) -> Float[Tensor, "*n o"]:
        return linear(input, self.weight, self.bias)


def by_onednn(x: Float[Tensor, "*n i"], weight: Float[Tensor, "o i"]) -> bool:
    """Whether oneDNN is faster: for float32 on Zen 4 and 5. With small results or few products its calls cost more than they save."""
    if torch.compiler.is_compiling() or x.device.type != "cpu" or not (x.dtype == weight.dtype == torch.float32):
        return False
    if not (vectors() == "AVX512" and torch.backends.mkldnn.is_available() and (multiplies_fast() or multiplies_in_halves())):
        return False
    if x.ndim < 2 or torch.is_autocast_enabled("cpu") or is_transformed(x) or is_transformed(weight):
        return False
    numbers = x.numel() // max(1, x.shape[-1]) * len(weight)
    products = numbers * x.shape[-1]
    return products >= _FEWEST_IN_HALVES if multiplies_in_halves() else numbers >= _FEWEST_NUMBERS and products >= _FEWEST_PRODUCTS


def learns_by_onednn(gradient: Float[Tensor, "n o"], x: Float[Tensor, "n i"]) -> bool:
    """Whether oneDNN is faster at gradient^T x, by the weight: on Zen 4 of few rows, or where x has twice as many features."""
    (rows, o), i = gradient.shape, x.shape[1]
    pays = rows <= _FEW_ROWS or (i >= 2 * o and i * o >= _FEWEST_LEARNED)
    return by_onednn(gradient.t(), x.t()) and (pays or not multiplies_in_halves())


def computed(x: Float[Tensor, "n i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None) -> Float[Tensor, "n o"]:
    """x W^T + bias by oneDNN, without derivatives. The matrices may be views of any layout."""
    # oneDNN reads the numbers of a bias as if they lay one behind the other, and beyond its end where they do not.
    return torch.ops.mkldnn._linear_pointwise(x, weight, None if bias is None else bias.contiguous(), "none", [], "")


class _Linear(Function):
    """y = x W^T + bias. Its gradients are linear maps too: g W by x, and g^T x by the weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return computed(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        by_x, by_weight, by_bias = ctx.needs_input_grad
        multiplied = linear if by_weight and learns_by_onednn(gradient, x) else F.linear
        return (
            linear(gradient, weight.t()) if by_x else None,
            multiplied(gradient.t(), x.t()) if by_weight else None,
            gradient.sum(0) if by_bias else None,
        )
