"""What several layers make of one tensor, made once."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

_KEPT = "derived"


def derived(x: Tensor, name: Hashable, make: Callable[[Tensor], Tensor]) -> Tensor:
    """make(x), which is kept with x under that name where x needs no gradient. x must not be changed in place."""
    if x.requires_grad or torch.compiler.is_compiling():
        return make(x)
    kept: dict[Hashable, Tensor] | None = getattr(x, _KEPT, None)
    if kept is None:
        kept = {}
        setattr(x, _KEPT, kept)
    if name in kept:
        return kept[name]
    made = make(x)
    if made is not x:  # which would never go
        kept[name] = made
    return made
