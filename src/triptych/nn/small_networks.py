"""Small networks to measure small images with."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.core.rng import Rng
from triptych.nn.frozen import Layers, Operations


def random_network(net: Operations, x: Tensor) -> Layers:
    """Three convolutions with stride 2 and the mean over the pixels of what they give: 64 features."""
    for number, channels in enumerate((16, 32, 64), start=1):
        x = F.leaky_relu(net.conv(x, f"conv{number}", channels, 3, stride=2, padding=1), 0.2)
    yield "features", x.mean((2, 3))


def random_weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The same weights for the same names and shapes on every machine; activations keep their size through a convolution."""
    drawn = Rng(0, ("random network",), torch.zeros(1, dtype=torch.int64))
    sizes = {name: math.sqrt(2 / math.prod(shape[1:])) if len(shape) > 1 else 0.1 for name, shape in shapes.items()}
    return {name: drawn.normal(name, *shape)[0] * sizes[name] for name, shape in shapes.items()}
