"""Small networks to measure small images with."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.core.rng import Rng
from triptych.nn.frozen import Layers, Operations


def lenet(net: Operations, x: Tensor) -> Layers:
    """LeNet-5 (LeCun et al. 1998) with ReLU and maxima, of grey images of 32x32: the last hidden layer, (b, 84), and 10 classes."""
    for name, channels in (("c1", 6), ("c3", 16)):
        x = F.max_pool2d(F.relu(net.conv(x, f"convnet.{name}", channels, 5)), 2)
    x = F.relu(net.conv(x, "convnet.c5", 120, 5)).flatten(1)
    x = F.relu(net.linear(x, "fc.f6", 84))
    yield "features", x
    yield "logits", net.linear(x, "fc.f7", 10)


def resnet20(net: Operations, x: Tensor) -> Layers:
    """ResNet-20 for CIFAR-10 (He et al. 2015, arXiv 1512.03385, section 4.2): the mean of its last layer, (b, 64), and 10 classes."""
    x = F.relu(net.norm(net.conv(x, "conv1", 16, 3, padding=1, bias=False), "bn1"))
    for stage, channels in enumerate((16, 32, 64), start=1):
        for block in range(3):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            # Option A of the paper: no weights in a shortcut, whose new channels are zeros, half of them on either side.
            shortcut = F.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, *((channels - x.shape[1]) // 2,) * 2))
            x = F.relu(net.norm(net.conv(x, f"{name}.conv1", channels, 3, stride=stride, padding=1, bias=False), f"{name}.bn1"))
            x = F.relu(net.norm(net.conv(x, f"{name}.conv2", channels, 3, padding=1, bias=False), f"{name}.bn2") + shortcut)
    x = x.mean((2, 3))
    yield "features", x
    yield "logits", net.linear(x, "linear", 10)


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
