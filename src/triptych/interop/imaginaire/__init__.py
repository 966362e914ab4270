"""Settings, weights and the command line of imaginaire's models of images and of clips."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triptych.core.lazy import lazy

if TYPE_CHECKING:
    from triptych.interop.imaginaire.state_dicts import from_state_dict

__all__ = ["from_state_dict"]
__getattr__ = lazy(__name__, {"triptych.interop.imaginaire.state_dicts": __all__})
