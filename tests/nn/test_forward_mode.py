"""Derivatives in forward mode against the equation, and where they are lost."""

from __future__ import annotations

import pytest
import torch

from triptych.nn.forward_mode import directional_derivative


def test_a_derivative_along_both_inputs() -> None:
    x, y, along, other = torch.arange(12, dtype=torch.float64).view(4, 3)
    torch.testing.assert_close(
        directional_derivative(lambda x, y: x.square() * y, (x, y), (along, other)), 2 * x * y * along + x**2 * other
    )


def test_a_derivative_that_is_lost_is_no_zero() -> None:
    x = torch.ones(3)
    with pytest.raises(RuntimeError, match="loses the derivative"):
        directional_derivative(lambda x: x.detach(), (x,), (x,))
