"""What the tests put around functions of the families: a check of the shapes that their annotations give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from beartype import beartype


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a check of its arguments and its result, where it gives shapes of tensors (`Float[Tensor, "b c h w"]`)."""
    annotations = getattr(function, "__annotations__", {}).values()
    return beartype(function) if any("[Tensor, " in str(annotation) for annotation in annotations) else function
