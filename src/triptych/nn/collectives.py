"""Sums over the processes of a training, for layers and losses whose samples affect each other."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """The number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def summed(x: Tensor) -> Tensor:
    """The sum of x, of any shape, over all processes, in each of them; differentiable. All of them call it, in the same order."""
    return _Sum.apply(x) if world_size() > 1 else x  # pyright: ignore[reportReturnType]


class _Sum(torch.autograd.Function):
    """What each process adds to the sum reaches the losses of all of them: the gradients are summed too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


def gathered(x: Tensor) -> Tensor:
    """The values (n,) of all processes, each of which has some: (sum of n,), in the order of the processes. Without gradients."""
    if world_size() == 1:
        return x.detach()
    counts = torch.zeros(world_size(), dtype=torch.int64, device=x.device)
    counts[dist.get_rank()] = len(x)
    dist.all_reduce(counts)
    every = x.new_zeros(int(counts.sum()))
    start = int(counts[: dist.get_rank()].sum())
    every[start : start + len(x)] = x.detach()
    dist.all_reduce(every)
    return every
