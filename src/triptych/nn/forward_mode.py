"""Forward-mode differentiation: how the output of a network changes while its inputs do, in one call."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.autograd.forward_ad as fwd
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


def is_transformed(x: Tensor) -> bool:
    """Whether x is being differentiated forwards, or all this is inside a function that torch.func transforms.

    Fused kernels and autograd nodes of our own know neither.
    """
    return torch._C._are_functorch_transforms_active() or fwd.unpack_dual(x).tangent is not None


@torch.no_grad()
def directional_derivative(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], directions: tuple[Tensor, ...]) -> Tensor:
    """The derivative of function(*inputs) along the directions, of the output's shape, without a graph; attention is computed unfused.

    Raises RuntimeError where it is lost on the way, as in what torch.compile made: else it would be 0 without a word.
    """
    with fwd.dual_level(), sdpa_kernel(SDPBackend.MATH):
        duals = [fwd.make_dual(x, direction) for x, direction in zip(inputs, directions, strict=True)]
        tangent = fwd.unpack_dual(function(*duals)).tangent
    if tangent is None:
        raise RuntimeError(
            "the function loses the derivative: nothing of what it gives depends on its inputs, or a part knows no forward mode"
        )
    return tangent
