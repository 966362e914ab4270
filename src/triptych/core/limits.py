"""How large a model may be: a setting with a few zeros too many is refused, rather than fill the memory or build for days."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook, register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from triptych.core.errors import ConfigError

MOST_PARAMETERS = 10**10
"""40 GB in float32; training takes four times that."""
MOST_LAYERS = 20_000
"""Modules; the largest recipe has about 1,000."""
_FACTORIES = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn}


class _BoundedTensors(TorchFunctionMode):
    """Looks at the size of new tensors before they take memory."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func in _FACTORIES:
            size = (kwargs or {}).get("size", args[0] if args and isinstance(args[0], tuple | list) else args)
            if math.prod(side for side in size if isinstance(side, int)) > MOST_PARAMETERS:
                raise _too_large()
        return func(*args, **(kwargs or {}))


@contextmanager
def bounded_size() -> Iterator[None]:
    """Within it a model that becomes larger than the limits is a ConfigError."""
    parameters = layers = 0

    def count_parameter(module: nn.Module, name: str, parameter: Tensor | None) -> None:
        nonlocal parameters
        if parameter is not None:
            parameters += parameter.numel()
        if parameters > MOST_PARAMETERS:
            raise _too_large()

    def count_layer(module: nn.Module, name: str, layer: nn.Module | None) -> None:
        nonlocal layers
        layers += 1
        if layers > MOST_LAYERS:
            raise _too_large()

    hooks = [register_module_parameter_registration_hook(count_parameter), register_module_module_registration_hook(count_layer)]
    try:
        with _BoundedTensors():
            yield
    except (OverflowError, ValueError) as error:
        if isinstance(error, OverflowError) or "integer string conversion" in str(error):  # 2^levels, and the message about it
            raise _too_large() from None
        raise
    finally:
        for hook in hooks:
            hook.remove()


def _too_large() -> ConfigError:
    return ConfigError(
        "", f"larger than {MOST_PARAMETERS:,} parameters or {MOST_LAYERS:,} layers; lower the settings of its channels, blocks or classes"
    )
