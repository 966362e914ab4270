"""Sinusoidal embedding of a scalar."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def timestep_embedding(t: Tensor, channels: int) -> Tensor:
    """cos(t f_i) and then sin(t f_i), f_i = 10000^(-i / half), i < half = channels // 2; a 0 more when `channels` is odd.

    `t` (b,) integers or floats; (b, channels), float64 where `t` is, else float32.
    """
    half = channels // 2
    dtype = torch.float64 if t.dtype == torch.float64 else torch.float32
    frequencies = torch.exp(torch.arange(half, dtype=dtype, device=t.device) * (-math.log(10_000) / half))
    angles = t.to(dtype)[:, None] * frequencies
    return F.pad(torch.cat((angles.cos(), angles.sin()), dim=1), (0, channels % 2))
