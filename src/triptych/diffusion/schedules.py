"""Tables of betas, the variances of the noise that each step of the diffusion adds."""

from __future__ import annotations

from typing import Literal

import numpy as np

from triptych.core.errors import ConfigError

ScheduleName = Literal["linear", "cosine"]


def linear_betas(steps: int) -> np.ndarray:
    """From 1e-4 to 0.02 at 1000 steps, scaled so that other counts add the same noise (Ho et al. 2020): float64 (steps,).

    Raises ConfigError for fewer than 21 steps, the last of which would add noise alone.
    """
    scale = 1000 / steps
    if 0.02 * scale >= 1:
        raise ConfigError("steps", f"got {steps}, expected at least 21 with the linear schedule: its last beta would be {0.02 * scale:.3g}")
    return np.linspace(1e-4 * scale, 0.02 * scale, steps, dtype=np.float64)


def cosine_betas(steps: int) -> np.ndarray:
    """Those of alpha_bar(u) = cos^2((u + 0.008) / 1.008 * pi / 2), at most 0.999 (Nichol and Dhariwal 2021, Eq. 17): float64 (steps,)."""
    alpha_bar = np.cos((np.arange(steps + 1, dtype=np.float64) / steps + 0.008) / 1.008 * np.pi / 2) ** 2
    return np.minimum(1 - alpha_bar[1:] / alpha_bar[:-1], 0.999)


def named_betas(name: ScheduleName, *, steps: int) -> np.ndarray:
    """The table of a schedule: float64 (steps,)."""
    return linear_betas(steps) if name == "linear" else cosine_betas(steps)
