"""The rows of an attention's qkv, which programs count in different orders.

Rows are counted (heads, 3, channels of a head) in "legacy", (3, heads, channels of a head) in "new"; weights of one order in the other
make a network that runs and gives nonsense.
"""

from __future__ import annotations

import torch
from torch import Tensor

from triptych.diffusion.blocks import AttentionOrder


def split_rows(qkv: Tensor, *, heads: int, order: AttentionOrder) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of the queries, keys and values, each (channels, ...) and counted (heads, channels of a head)."""
    channels = len(qkv) // 3
    if order == "legacy":
        parts = qkv.reshape(heads, 3, channels // heads, *qkv.shape[1:]).transpose(0, 1)
    else:
        parts = qkv.reshape(3, heads, channels // heads, *qkv.shape[1:])
    q, k, v = parts.reshape(3, channels, *qkv.shape[1:]).unbind(0)
    return q, k, v


def legacy_rows(qkv: Tensor, *, heads: int, order: AttentionOrder) -> Tensor:
    """The rows in the legacy order."""
    parts = torch.stack(split_rows(qkv, heads=heads, order=order))
    return parts.reshape(3, heads, -1, *qkv.shape[1:]).transpose(0, 1).reshape(qkv.shape)
