"""Gradients within a step: in the precision of the way there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from triptych.nn.gradients import gradient


def products(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Products in float32, whatever is around them."""
    with torch.autocast("cpu", enabled=False):
        return (x @ a).tanh() @ b


@pytest.mark.parametrize("direction", [None, "given"])
def test_what_was_computed_in_float32_goes_back_in_float32(direction: str | None) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(16, 16), torch.randn(16, 16)
    x = torch.randn(4, 16, requires_grad=True)
    along = None if direction is None else torch.randn(4, 16)

    def found() -> tuple[Tensor, Tensor]:
        y = products(x, a, b)
        first = gradient(y.sum() if along is None else y, x, along, create_graph=True)
        return first, gradient(first.square().sum(), x)

    plain = found()
    with torch.autocast("cpu", torch.bfloat16):
        within = found()
    for one, other in zip(plain, within, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)  # bf16 is off by 1e-2
    torch.testing.assert_close(plain[0], torch.autograd.grad(products(x, a, b), x, torch.ones(4, 16) if along is None else along)[0])
