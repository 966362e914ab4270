"""Initial weights other than PyTorch's own."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def zeroed(module: M) -> M:
    """The module, all its parameters 0."""
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module
