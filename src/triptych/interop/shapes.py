"""The names and shapes of a file's weights, from which a network's settings are read."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from triptych.core.errors import CheckpointError


class Shapes:
    """The tensors of a network, asked by name."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self.state = state

    def has(self, start: str) -> bool:
        """Whether a name begins so."""
        return any(name.startswith(start) for name in self.state)

    def numbers(self, start: str, end: str) -> set[int]:
        """The numbers N of the names that begin with `start`, N and `end`."""
        pattern = re.compile(rf"{re.escape(start)}(\d{{1,6}}){re.escape(end)}")
        return {int(match[1]) for match in map(pattern.match, self.state) if match}

    def count(self, start: str, end: str) -> int:
        return len(self.numbers(start, end))

    def shape(self, name: str, *, axes: int) -> tuple[int, ...]:
        """The shape of a tensor of at least `axes` axes, none of them empty. Raises CheckpointError where there is none."""
        if name not in self.state:
            raise CheckpointError(f"the file is incomplete: it has no {name}")
        shape = tuple(self.state[name].shape)
        if len(shape) < axes or 0 in shape:
            raise CheckpointError(f"{name} has shape {list(shape)}, expected at least {axes} axes, none of them of length 0")
        return shape
