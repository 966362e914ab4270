"""Lengths of power-function averages of the weights: their exponents, and what their files are called."""

from __future__ import annotations

import math

SHORTEST, LONGEST = 0.001, 0.288
"""Lengths that are allowed. At sqrt(1/12), 0.2887, gamma is 0, and all images count alike."""
LENGTHS = f"from {SHORTEST} to {LONGEST}"
"""The same in words."""
_BY_LENGTH = "ema-length-"


def exponent_of(length: float) -> float:
    """gamma of an average of that length: the largest root of g^3 + 7 g^2 + (16 - l^-2) g + (12 - l^-2) = 0."""
    inverse = length**-2
    linear, constant = -(inverse + 1 / 3), 4 / 3 * inverse + 2 / 27  # of the cubic in g + 7/3, which has no square
    angle = math.acos(1.5 * constant / linear * math.sqrt(-3 / linear))
    return 2 * math.sqrt(-linear / 3) * math.cos(angle / 3) - 7 / 3


def length_name(length: float) -> str:
    """What the file of the power-function average of that length is called."""
    return f"{_BY_LENGTH}{length}"


def length_in(name: str) -> float | None:
    """The inverse of `length_name`; None: the name is that of no such average."""
    try:
        length = float(name.removeprefix(_BY_LENGTH)) if name.startswith(_BY_LENGTH) else math.nan
    except ValueError:
        return None
    return length if SHORTEST <= length <= LONGEST else None
