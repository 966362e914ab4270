"""Models whose weights are still to come: made at once, of names and shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_FILLS = {fill for name, fill in vars(nn.init).items() if name.endswith("_") and not name.startswith("_")}
_FILLS |= {Tensor.normal_, Tensor.uniform_, Tensor.mul_, Tensor.div_}


class _Unfilled(TorchFunctionMode):
    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func in _FILLS:
            return next(iter((*args, *(kwargs or {}).values())))
        return (torch.empty if func is torch.randn else func)(*args, **(kwargs or {}))


@contextmanager
def without_weights() -> Iterator[None]:
    """Within it new tensors are on the meta device, and what would fill or scale them does nothing.

    The meta device alone would do, but for some operations it has a reference written in Python, whose first call imports PyTorch's
    compiler, for a second or more. A tensor that is not saved with a run has to be made on the CPU by name.
    """
    with torch.device("meta"), _Unfilled():
        yield
