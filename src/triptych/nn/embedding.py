"""Sinusoidal embedding of a scalar."""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor


@functools.lru_cache(maxsize=16)
def _frequencies(half: int, device: torch.device) -> Tensor:
    return torch.exp(-math.log(10_000) * torch.arange(half, dtype=torch.float32) / half).to(device)


def timestep_embedding(t: Tensor, channels: int) -> Tensor:
    """cos(t f_i) and then sin(t f_i), f_i = 10000^(-i / half), i < half = channels // 2; a 0 more when `channels` is odd.

    `t` (b,) integers or floats; float32 (b, channels).
    """
    angles = t.float()[:, None] * _frequencies(channels // 2, t.device)
    return F.pad(torch.cat((angles.cos(), angles.sin()), dim=1), (0, channels % 2))
