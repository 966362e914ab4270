"""How often a sampler asks its network: counted by a sample of one pixel, for which something that answers 0 is in the network's place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from triptych.core.rng import Rng
from triptych.diffusion.guided import Guide


class Counted(nn.Module):
    """In the place of a network: 0 for every number, and how often it was asked for the images of one x."""

    def __init__(self, out_channels: int) -> None:
        super().__init__()
        self.out_channels, self.calls = out_channels, 0

    def forward(self, x: Tensor, *told: Any, **further: Any) -> Tensor:
        """(b, out_channels, h, w) for x (b, c, h, w), whatever it is told."""
        self.calls += 1
        return x.new_zeros(len(x), self.out_channels, *x.shape[2:])

    def weaker(self) -> Guide:
        """A guide whose model counts here too."""
        return Guide(weak=lambda x, c: self(x)[:, : x.shape[1]])


Steps = Callable[[Any, Rng, Tensor | None, Guide | None], Iterable[object]]
"""What goes through the steps of a sample: handed a model, a generator, labels (b,) and a guide."""


def network_calls(model: nn.Module, steps: Steps, *, weaker: bool = False, classifier: bool = False) -> int:
    """How often `steps` ask the network of the model.

    `weaker`: a weaker model guides, which is asked too. `classifier`: a classifier does, whose calls do not count.
    """
    channels: int = model.image_shape[0]  # pyright: ignore[reportIndexIssue, reportAssignmentType] (of a Module)
    counted = Counted(getattr(model.network, "out_channels", channels))
    twin: Any = copy.copy(model)
    twin._modules = {**model._modules, "network": counted}
    twin.image_shape = (channels, 1, 1)
    labels = None if twin.num_classes is None else torch.zeros(1, dtype=torch.int64)
    guide = counted.weaker() if weaker else Guide() if classifier else None
    with torch.no_grad():
        for _ in steps(twin, Rng(0, ("calls",), torch.zeros(1, dtype=torch.int64)), labels, guide):
            pass
    return counted.calls
