"""The Runge-Kutta method against equations whose solutions are known."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from triptych.diffusion.ode import State, runge_kutta_4


def turning(state: State, time: float) -> State:
    """x turns, faster and faster; y gathers its square."""
    x, _ = state
    return 2 * time * torch.stack((-x[:, 1], x[:, 0]), dim=1), time * x[:, 0] ** 2


def end(steps: int) -> State:
    state: State = (torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
    for here, there in pairwise(np.linspace(0, 1.5, steps + 1).tolist()):
        state = runge_kutta_4(turning, state, here, there)
    return state


def error(steps: int) -> float:
    """From the solution: x has turned by time^2, and half the integral of its square is over that angle."""
    angle = 1.5**2
    x, y = end(steps)
    turned = torch.tensor([[math.cos(angle), math.sin(angle)], [-2 * math.sin(angle), 2 * math.cos(angle)]], dtype=torch.float64)
    wave = math.sin(2 * angle) / 2
    gathered = torch.tensor([(angle + wave) / 4, 4 * (angle - wave) / 4], dtype=torch.float64)
    return max((x - turned).abs().max().item(), (y - gathered).abs().max().item())


def test_the_error_falls_with_the_fourth_power_of_the_steps() -> None:
    errors = [error(steps) for steps in (20, 40, 80)]
    assert errors[0] < 1e-3
    for coarse, fine in pairwise(errors):
        assert 3.7 < math.log2(coarse / fine) < 4.3


@pytest.mark.parametrize("power", [0, 1, 2, 3])
def test_polynomials_of_time_up_to_the_third_are_exact(power: int) -> None:
    """Simpson's rule, of which a step is one where the slope does not depend on the state; backward in time too."""
    (x,) = runge_kutta_4(lambda state, time: (torch.full((1,), time**power, dtype=torch.float64),), (torch.zeros(1),), 2.0, 0.5)
    assert x.item() == pytest.approx((0.5 ** (power + 1) - 2.0 ** (power + 1)) / (power + 1), rel=1e-12)
