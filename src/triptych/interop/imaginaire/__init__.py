"""Settings, weights and the command line of imaginaire's image models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triptych.interop.imaginaire.state_dicts import from_state_dict

__all__ = ["from_state_dict"]


def __getattr__(name: str) -> Any:
    """Imports PyTorch and the model when they are asked for, not for the help of a command line."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from triptych.interop.imaginaire import state_dicts

    return getattr(state_dicts, name)
