"""How many floating-point operations a computation takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count


def _attention(query: Any, key: Any, value: Any, *_: Any, out_val: Any = None, **__: Any) -> int:
    return sdpa_flop_count(query.shape, key.shape, value.shape)


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, out_val: Any = None, **__: Any) -> int:
    return sdpa_backward_flop_count(gradient.shape, query.shape, key.shape, value.shape)


def _linear(x: Any, weight: Any, *_: Any, out_val: Any = None, **__: Any) -> int:
    return 2 * x.numel() * len(weight)


_ON_CPU: dict[Any, Callable[..., int]] = {  # PyTorch's table has those of a GPU alone
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
if torch.backends.mkldnn.is_available():
    _ON_CPU[torch.ops.mkldnn._linear_pointwise] = _linear


class Operations(TorchDispatchMode):
    """Within it products of matrices, convolutions and attention are counted, forward and backward: 2 for a multiplication and a sum.

    The formulas are those of PyTorch's FlopCounterMode. That one follows the modules by hooks too, which gradients of gradients (the
    penalties of GANs) do not allow.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = _ON_CPU.get(func._overloadpacket) or flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.count += formula(*args, **(kwargs or {}), out_val=out)
        return out
