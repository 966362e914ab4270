"""Checkpoints and the command line of openai/glow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triptych.core.lazy import lazy

if TYPE_CHECKING:
    from triptych.interop.glow.weights import from_variables

__all__ = ["from_variables"]
__getattr__ = lazy(__name__, {"triptych.interop.glow.weights": __all__})
