"""float32 where less would not do: for what came in half precision, and on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def widened(x: Tensor) -> Tensor:
    """The tensor, of any shape, in float32 where its precision is lower."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def autocast_dtype(x: Tensor) -> torch.dtype:
    """The precision in which autocast has a tensor of any shape where it is on; float64 stays as it is."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) and x.dtype != torch.float64 else x.dtype


def autocasted(x: Tensor) -> Tensor:
    """The tensor, of any shape, in that precision."""
    return x.to(autocast_dtype(x))


@contextmanager
def without_tf32() -> Iterator[None]:
    """Within it a GPU convolves float32 in float32: by default it rounds what it multiplies to TF32, which has 10 bits after the point."""
    convolutions = torch.backends.cudnn.conv  # pyright: ignore[reportAttributeAccessIssue]
    before, convolutions.fp32_precision = convolutions.fp32_precision, "ieee"
    try:
        yield
    finally:
        convolutions.fp32_precision = before


@contextmanager
def stage_precision(x: Tensor, *, half: bool) -> Iterator[Tensor]:
    """x, of any shape, as a stage takes it that is `half` or not: in autocast's precision where that is on, else in float32 without it."""
    device = x.device.type
    if half and torch.is_autocast_enabled(device):
        yield x.to(torch.get_autocast_dtype(device))
    else:
        with torch.autocast(device, enabled=False):
            yield widened(x)
