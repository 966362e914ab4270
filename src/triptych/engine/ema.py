"""Moving averages of the weights: e <- r e + (1 - r) w after each iteration.

A model may name effective values for some parameters (`Averaged.effective`). A weight that spectral norm divides is averaged as it
is applied: the average of quotients is not the quotient of averages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from triptych.core.model import Averaged, Model
from triptych.engine.config import AverageConfig
from triptych.engine.sharding import own_part


def averaged_state(model: Model) -> dict[str, Tensor]:
    """The live parameters and buffers of the model's averaged networks, under their names in the model."""
    prefixes = tuple(f"{name}." for name in model.averaged)
    return {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if name.startswith(prefixes)}


class Average:
    """One average. It starts at the weights."""

    def __init__(self, model: Model, settings: AverageConfig) -> None:
        self.settings = settings
        self.begun = 0
        "Images seen when it began, at the weights of then."
        state = averaged_state(model)
        learned = [name for name, tensor in state.items() if isinstance(tensor, nn.Parameter)]
        self._divided = {name for name, tensor in state.items() if hasattr(tensor, "to_local")}
        live = {name: own_part(tensor) if name in self._divided else tensor for name, tensor in state.items()}
        self.tensors = {name: tensor.detach().clone() for name, tensor in live.items()}
        self._live, self._model = live, model if isinstance(model, Averaged) else None
        assert self._model is not None or not hasattr(model, "effective"), f"{type(model).__name__} has to inherit from Averaged"
        self._sources = {name: live[name].detach() for name in learned}
        self._moved = [self.tensors[name] for name in learned]
        self._copied = [name for name in live if name not in set(learned)]
        self._move(0.0)

    def update(self, images_seen: int, *, images: int) -> None:
        """Moves towards the weights after the iteration of so many images that began at `images_seen`. Buffers are copied."""
        self._move(self.settings.rate_at(images_seen, images=images))

    @torch.no_grad()
    def _move(self, rate: float) -> None:
        sources = self._sources if self._model is None else self._sources | dict(self._model.effective())
        torch._foreach_lerp_(self._moved, [sources[name] for name in self._sources], 1 - rate)  # pyright: ignore[reportPrivateImportUsage]
        for name in self._copied:
            self.tensors[name].copy_(self._live[name])
        if self._model is not None:
            self._model.recompute_buffers(self.tensors)

    @property
    def learned(self) -> frozenset[str]:
        """The names of those of its tensors that are averaged; the others are copies."""
        return frozenset(self._sources)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes the values of a checkpoint; names and shapes must be the model's (KeyError, RuntimeError)."""
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])

    @contextmanager
    @torch.no_grad()
    def applied(self) -> Iterator[None]:
        """The context in which the model has the averaged weights. The tensors are exchanged, not copied, but where they are divided."""
        self._exchange(list(self.tensors))
        try:
            yield
        finally:
            self._exchange(list(reversed(self.tensors)))  # a tensor of two names has its own values again

    def _exchange(self, names: Sequence[str]) -> None:
        for name in names:
            average = self.tensors[name]
            live = self._live[name]
            if name in self._divided:  # FSDP keeps to its memory
                kept = live.clone()
                live.copy_(average)
                average.copy_(kept)
            else:
                live.data, average.data = average.data, live.data
