"""SiT (https://github.com/willisma/SiT): transformers that learn flows of latents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triptych.core.lazy import lazy

if TYPE_CHECKING:
    from triptych.interop.sit.weights import from_state_dict

__all__ = ["from_state_dict"]
__getattr__ = lazy(__name__, {"triptych.interop.sit.weights": __all__})
