"""How many floating-point operations a computation takes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import conv_flop_count, flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from triptych.nn.cpu import as_defined


def _attention(query: Any, key: Any, value: Any, *_: Any, out_val: Any = None, **__: Any) -> int:
    return sdpa_flop_count(query.shape, key.shape, value.shape)


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, out_val: Any = None, **__: Any) -> int:
    return sdpa_backward_flop_count(gradient.shape, query.shape, key.shape, value.shape)


def _linear(x: Any, weight: Any, *_: Any, out_val: Any = None, **__: Any) -> int:
    return 2 * x.numel() * len(weight)


def _convolution_backward(gradient: Any, x: Any, weight: Any, *rest: Any, out_val: Any = None, **__: Any) -> int:
    *_, transposed, _, _, (by_x, by_weight, _) = rest
    return (by_x + by_weight) * conv_flop_count(x.shape, weight.shape, gradient.shape, transposed=transposed)


_OWN: dict[Any, Callable[..., int]] = {
    # PyTorch's formula counts the gradient of the weight of grouped convolutions as often as there are groups.
    torch.ops.aten.convolution_backward: _convolution_backward,
    # PyTorch's table has the attention of a GPU alone.
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
if torch.backends.mkldnn.is_available():
    _OWN[torch.ops.mkldnn._linear_pointwise] = _linear


class Operations(TorchDispatchMode):
    """Within it products of matrices, convolutions and attention are counted, forward and backward: 2 for a multiplication and a sum.

    The formulas are those of PyTorch's FlopCounterMode. That one follows the modules by hooks too, which gradients of gradients (the
    penalties of GANs) do not allow. Convolutions are computed as they are defined, so that the count is the same on every machine: which
    other way is faster, by fewer or by more products, depends on the CPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self._plainly = ExitStack()

    def __enter__(self) -> Any:
        self._plainly.enter_context(as_defined())
        return super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        self._plainly.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = _OWN.get(func._overloadpacket) or flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.count += formula(*args, **(kwargs or {}), out_val=out)
        return out
