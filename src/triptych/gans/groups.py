"""Images that are the same to the last bit whatever the batch: kernels round differently with the size of a batch, so it is always one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_PIXELS = {"cpu": 2**13, "cuda": 2**19}
"""Of a group, by kind of device: few are wasted where one image is wanted, and few kernels are started where many are."""
_MOST = 32


def in_groups(make: Callable[..., Sequence[Tensor]], *inputs: Tensor, side: int, index: Tensor | None = None) -> list[Tensor]:
    """`make(*inputs)`, tensors with a row for each row of the inputs, made in groups of one size, which are filled up with other rows.

    `side`: pixels of a side of the images, by which the size of a group goes. `index`: the numbers of the samples, which say where in
    their group they are, for kernels may round the last rows differently; None: one after the other.
    """
    first = inputs[0]
    fitting = _PIXELS["cpu" if first.device.type == "cpu" else "cuda"] // side**2
    size = min(_MOST, 1 << max(0, fitting.bit_length() - 1))  # a power of two, so that batches are whole groups
    places = torch.arange(len(first)) if index is None else index.cpu()
    made: list[Sequence[Tensor]] = []
    order: list[Tensor] = []
    for group in torch.unique(places // size):
        rows = torch.nonzero(places // size == group).flatten()
        slots = places[rows] % size
        filled = rows[:1].repeat(size)
        filled[slots] = rows
        made.append([part[slots.to(part.device)] for part in make(*(given[filled.to(given.device)] for given in inputs))])
        order.append(rows)
    back = torch.argsort(torch.cat(order)).to(first.device)
    return [torch.cat(parts)[back] for parts in zip(*made, strict=True)]
