"""Weights and command lines of guided-diffusion and improved-diffusion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triptych.interop.guided_diffusion.weights import from_state_dict, to_state_dict

__all__ = ["from_state_dict", "to_state_dict"]


def __getattr__(name: str) -> Any:
    """Imports PyTorch and the model when they are asked for, not for the help of a command line."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from triptych.interop.guided_diffusion import weights

    return getattr(weights, name)
