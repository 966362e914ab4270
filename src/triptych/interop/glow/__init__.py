"""Checkpoints and the command line of openai/glow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triptych.interop.glow.weights import from_variables

__all__ = ["from_variables"]


def __getattr__(name: str) -> Any:
    """Imports PyTorch and the model when they are asked for, not for the help of a command line."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from triptych.interop.glow import weights

    return getattr(weights, name)
