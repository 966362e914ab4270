"""A machine that rounds otherwise, as a plugin of pytest (-p tests.other_rounding).

Products of matrices and convolutions in float32 get an error of a few units in the last place that differs with the shapes of what they
are given, so with the batch, and is the same for the same shapes. Which kernel a CPU takes for which batch differs so between kinds of CPU.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

PRODUCTS = ("convolution", "convolution_backward", "mm", "addmm", "bmm", "baddbmm")
ERROR = 3e-7
"""Of the root mean square of an output: five units of 2^-24, what sums of hundreds of products differ by from one order to another."""


class OtherRounding(TorchDispatchMode):
    """Within it products are rounded otherwise."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ not in PRODUCTS:
            return out
        shapes = [tuple(tensor.shape) for tensor in args if isinstance(tensor, Tensor)]
        generator = torch.Generator().manual_seed(zlib.crc32(repr((func, shapes)).encode()))
        return tree_map_only(Tensor, lambda tensor: disturbed(tensor, generator), out)


def disturbed(x: Tensor, generator: torch.Generator) -> Tensor:
    """The tensor with the error, where it is float32 and not 0."""
    if x.dtype != torch.float32 or x.device.type != "cpu" or not x.numel():
        return x
    error = torch.rand(x.shape, generator=generator, dtype=x.dtype).sub_(0.5).mul_(2 * 3**0.5 * ERROR * x.square().mean().sqrt())
    return x + error.where(x != 0, 0)


NOT_SO = ("test_profiling.py", "test_autocast_and_no_grad_have_no_say", "test_groups.py")
"""Tests that count operations, of which this makes more; that change types below autocast, where this stands; or whose samples have
other neighbours, by which the size of the error goes."""


@pytest.fixture(autouse=True)
def other_rounding(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test is run so, but for those that this itself would break."""
    with nullcontext() if any(name in request.node.nodeid for name in NOT_SO) else OtherRounding():
        yield
