"""Sinusoidal embedding of a scalar."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor


def timestep_embedding(t: Shaped[Tensor, " b"], channels: int) -> Float[Tensor, "b {channels}"]:
    """cos(t f_i) and then sin(t f_i), f_i = 10000^(-i / half), i < half = channels // 2; a 0 more when `channels` is odd.

    In the type of `t`, PyTorch's default one for integers, and at least float32.
    """
    half = channels // 2
    dtype = torch.promote_types(t.dtype if t.is_floating_point() else torch.get_default_dtype(), torch.float32)
    frequencies = torch.exp(torch.arange(half, dtype=dtype, device=t.device) * (-math.log(10_000) / half))
    angles = t.to(dtype)[:, None] * frequencies
    return F.pad(torch.cat((angles.cos(), angles.sin()), dim=1), (0, channels % 2))
