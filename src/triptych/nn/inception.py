"""Inception-v3, of torchvision and of the Frechet Inception distance.

"Rethinking the Inception Architecture", Szegedy et al. 2015, https://arxiv.org/abs/1512.00567. The network of the distance (Heusel et al.
2017, https://arxiv.org/abs/1706.08500) is the one that Google published in December 2015; it differs from torchvision's in some pools and
in its classes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.nn.frozen import Layers, Operations

Pool: TypeAlias = Callable[[Tensor], Tensor]
"""A pool of 3x3 pixels that keeps the size."""

_average: Pool = functools.partial(F.avg_pool2d, kernel_size=3, stride=1, padding=1)
_average_inside: Pool = functools.partial(_average, count_include_pad=False)
_maximum: Pool = functools.partial(F.max_pool2d, kernel_size=3, stride=1, padding=1)


def inception_v3(net: Operations, x: Tensor) -> Layers:
    """torchvision's Inception-v3, without its auxiliary classes."""
    return _layers(net, x, average=_average, last=_average)


def fid_inception(net: Operations, x: Tensor) -> Layers:
    """The network of the Frechet Inception distance: averages leave the border out, the last block has a maximum, 1008 classes.

    Layers have the names that their users know: "64", "192", "768" and "2048" are means over the pixels, of so many channels;
    "spatial" the first 7 channels of Mixed_6d.branch1x1, TensorFlow's mixed_6/conv, flattened row, column, channel (sFID: Nash et al. 2021,
    arXiv 2103.03841); "logits_unbiased" the classes without their bias, of which the Inception Score is made, and "logits" those with it.
    """
    names = {"pool_1": "64", "pool_2": "192", "mixed_6e": "768", "mixed_7c": "2048"}
    for layer, feature in _layers(net, x, average=_average_inside, last=_maximum):
        if layer in names:
            yield names[layer], feature.mean((2, 3))
        if layer == "mixed_6d":
            yield "spatial", feature[:, :7].permute(0, 2, 3, 1).flatten(1)
        x = feature
    logits = F.linear(x.mean((2, 3)), net.take("fc.weight", (1008, 2048)))
    yield "logits_unbiased", logits
    yield "logits", logits + net.take("fc.bias", (1008,))


def _layers(net: Operations, x: Tensor, *, average: Pool, last: Pool) -> Layers:
    """The layers up to the last pool; `last` is the pool within the last block."""
    x = _branch(net, x, "Conv2d_1a_3x3", (32, 3), stride=2)
    x = _branch(net, x, "Conv2d_2a_3x3", (32, 3), border=False)
    x = F.max_pool2d(_branch(net, x, "Conv2d_2b_3x3", (64, 3)), 3, 2)
    yield "pool_1", x
    x = _branch(net, x, "Conv2d_3b_1x1", (80, 1))
    x = F.max_pool2d(_branch(net, x, "Conv2d_4a_3x3", (192, 3), border=False), 3, 2)
    yield "pool_2", x
    for letter, pooled in (("b", 32), ("c", 64), ("d", 64)):
        x = torch.cat(_mixed_5(net, x, f"Mixed_5{letter}", pooled, average), dim=1)
        yield f"mixed_5{letter}", x
    narrow = _branch(net, x, "Mixed_6a.branch3x3dbl", (64, 1), (96, 3), (96, 3), stride=2)
    x = torch.cat((_branch(net, x, "Mixed_6a.branch3x3", (384, 3), stride=2), narrow, F.max_pool2d(x, 3, 2)), dim=1)
    yield "mixed_6a", x
    for letter, channels in (("b", 128), ("c", 160), ("d", 160), ("e", 192)):
        x = torch.cat(_mixed_6(net, x, f"Mixed_6{letter}", channels, average), dim=1)
        yield f"mixed_6{letter}", x
    long = _branch(net, x, "Mixed_7a.branch7x7x3", (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3), stride=2)
    x = torch.cat((_branch(net, x, "Mixed_7a.branch3x3", (192, 1), (320, 3), stride=2), long, F.max_pool2d(x, 3, 2)), dim=1)
    yield "mixed_7a", x
    for letter, pool in (("b", average), ("c", last)):
        x = torch.cat(_mixed_7(net, x, f"Mixed_7{letter}", pool), dim=1)
        yield f"mixed_7{letter}", x


def _mixed_5(net: Operations, x: Tensor, name: str, pooled: int, pool: Pool) -> tuple[Tensor, ...]:
    return (
        _branch(net, x, f"{name}.branch1x1", (64, 1)),
        _branch(net, x, f"{name}.branch5x5", (48, 1), (64, 5)),
        _branch(net, x, f"{name}.branch3x3dbl", (64, 1), (96, 3), (96, 3)),
        _branch(net, pool(x), f"{name}.branch_pool", (pooled, 1)),
    )


def _mixed_6(net: Operations, x: Tensor, name: str, c: int, pool: Pool) -> tuple[Tensor, ...]:
    return (
        _branch(net, x, f"{name}.branch1x1", (192, 1)),
        _branch(net, x, f"{name}.branch7x7", (c, 1), (c, (1, 7)), (192, (7, 1))),
        _branch(net, x, f"{name}.branch7x7dbl", (c, 1), (c, (7, 1)), (c, (1, 7)), (c, (7, 1)), (192, (1, 7))),
        _branch(net, pool(x), f"{name}.branch_pool", (192, 1)),
    )


def _mixed_7(net: Operations, x: Tensor, name: str, pool: Pool) -> tuple[Tensor, ...]:
    short = _branch(net, x, f"{name}.branch3x3_1", (384, 1))
    long = _branch(net, x, f"{name}.branch3x3dbl", (448, 1), (384, 3))
    return (
        _branch(net, x, f"{name}.branch1x1", (320, 1)),
        _branch(net, short, f"{name}.branch3x3_2a", (384, (1, 3))),
        _branch(net, short, f"{name}.branch3x3_2b", (384, (3, 1))),
        _branch(net, long, f"{name}.branch3x3dbl_3a", (384, (1, 3))),
        _branch(net, long, f"{name}.branch3x3dbl_3b", (384, (3, 1))),
        _branch(net, pool(x), f"{name}.branch_pool", (192, 1)),
    )


def _branch(
    net: Operations, x: Tensor, name: str, *units: tuple[int, int | tuple[int, int]], stride: int = 1, border: bool = True
) -> Tensor:
    """Convolutions (channels, kernel) with batch norm and ReLU; the last has the stride, and then no border, the others keep the size."""
    for number, (channels, kernel) in enumerate(units, start=1):
        last = number == len(units)
        step = stride if last else 1
        rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (rows // 2, columns // 2) if border and step == 1 else 0
        part = f"{name}_{number}" if len(units) > 1 else name
        x = net.conv(x, f"{part}.conv", channels, (rows, columns), stride=step, padding=padding, bias=False)
        x = F.relu(net.norm(x, f"{part}.bn", eps=1e-3))
    return x
