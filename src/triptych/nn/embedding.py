"""Sinusoidal embedding of a scalar."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def timestep_embedding(t: Tensor, channels: int) -> Tensor:
    """cos(t f_i) and then sin(t f_i), f_i = 10000^(-i / half), i < half = channels // 2; a 0 more when `channels` is odd.

    `t` (b,) integers or floats; float32 (b, channels).
    """
    half = channels // 2
    frequencies = torch.exp(torch.arange(half, dtype=torch.float32, device=t.device) * (-math.log(10_000) / half))
    angles = t.float()[:, None] * frequencies
    return F.pad(torch.cat((angles.cos(), angles.sin()), dim=1), (0, channels % 2))
