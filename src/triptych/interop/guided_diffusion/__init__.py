"""Weights and command lines of guided-diffusion and improved-diffusion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triptych.core.lazy import lazy

if TYPE_CHECKING:
    from triptych.interop.guided_diffusion.weights import from_state_dict, to_state_dict

__all__ = ["from_state_dict", "to_state_dict"]
__getattr__ = lazy(__name__, {"triptych.interop.guided_diffusion.weights": __all__})
