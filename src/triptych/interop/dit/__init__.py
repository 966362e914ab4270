"""DiT (https://github.com/facebookresearch/DiT): transformers that learn the diffusion of latents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triptych.core.lazy import lazy

if TYPE_CHECKING:
    from triptych.interop.dit.weights import from_state_dict

__all__ = ["from_state_dict"]
__getattr__ = lazy(__name__, {"triptych.interop.dit.weights": __all__})
