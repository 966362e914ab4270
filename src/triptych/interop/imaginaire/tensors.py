"""The weights of a network, asked by name, and the network that they are of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from triptych.gans.weight_norms import WeightNorm
from triptych.interop.shapes import Shapes


class Weights(Shapes):
    """The tensors of a network, asked by name, and how its weights are normalised."""

    def weight(self, stem: str, *, axes: int = 4) -> tuple[int, ...]:
        """The shape of a layer's weight (out, in, ...), whatever normalises it."""
        names: dict[WeightNorm, str] = {"none": "weight", "spectral": "weight_orig", "weight": "weight_v"}
        return self.shape(f"{stem}.{names[self.norm_of(stem)]}", axes=axes)

    @cached_property
    def weight_norm(self) -> WeightNorm:
        """How most layers' weights are normalised."""
        if any(name.endswith("weight_orig") for name in self.state):
            return "spectral"
        return "weight" if any(name.endswith("weight_g") for name in self.state) else "none"

    def norm_of(self, stem: str) -> WeightNorm:
        return "spectral" if f"{stem}.weight_u" in self.state else "weight" if f"{stem}.weight_g" in self.state else "none"

    def norm_first(self, block: str) -> bool | None:
        """Whether a block's norm comes before its convolution, as the order of the names tells; None: it has no norm."""
        names = [name for name in self.state if name.startswith(f"{block}.layers.")]
        return names[0].startswith(f"{block}.layers.norm.") if any(".layers.norm." in name for name in names) else None


@dataclass(frozen=True)
class Network:
    """A network that weights are of."""

    make: Callable[..., nn.Module]
    config: Any
    image_channels: int
    label_channels: int | None = None
    "Of the label maps of paired models; None: of another model."
    num_classes: int | None = None
    "That a few-shot discriminator knows; None: of another network."

    def build(self) -> nn.Module:
        numbers = {"image_channels": self.image_channels, "label_channels": self.label_channels, "num_classes": self.num_classes}
        return self.make(self.config, **{name: number for name, number in numbers.items() if number is not None})
