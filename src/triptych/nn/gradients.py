"""Gradients that are part of what is computed, and not of a training's step backwards."""

from __future__ import annotations

import torch
from torch import Tensor


def gradient(
    of: Tensor, x: Tensor, direction: Tensor | None = None, *, create_graph: bool = False, retain_graph: bool | None = None
) -> Tensor:
    """The gradient by `x` of a number, or of a tensor along `direction`; of the shape of x.

    Each part of the way back is in the precision of the part of the way there: autocast, which is on within a step, would round products
    that were computed in float32.
    """
    with torch.autocast(of.device.type, enabled=False):
        return torch.autograd.grad(of, x, direction, create_graph=create_graph, retain_graph=retain_graph)[0]
