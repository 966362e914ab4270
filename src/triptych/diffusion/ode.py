"""The Runge-Kutta method of order 4, for the ordinary differential equations that densities and samples follow."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

State = tuple[Tensor, ...]
"""Tensors that move together: images (b, c, h, w), and perhaps their log-densities (b,)."""


def runge_kutta_4(slope: Callable[[State, float], State], state: State, here: float, there: float) -> State:
    """The state at time `there` from that at `here`; `slope(state, time)` is d state / d time, asked for four times."""
    h, middle = there - here, (here + there) / 2
    a = slope(state, here)
    b = slope(_moved(state, a, h / 2), middle)
    c = slope(_moved(state, b, h / 2), middle)
    d = slope(_moved(state, c, h), there)
    return tuple(x + h / 6 * (p + 2 * q + 2 * r + s) for x, p, q, r, s in zip(state, a, b, c, d, strict=True))


def _moved(state: State, slope: State, h: float) -> State:
    return tuple(x + h * change for x, change in zip(state, slope, strict=True))
