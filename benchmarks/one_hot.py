"""Milliseconds of convolutions of label maps, looked up and PyTorch's of the dense maps: forward, and the gradient by the weight.

    python benchmarks/one_hot.py [--threads 2] [--out FILE.md]

Maps are of classes in squares of a sixteenth of their side, and of edges. The best of several calls each, which take turns. Finding the
places that are looked up is counted apart: convolutions of one map with the same taps and strides share them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from machine import show_kernels
from torch import Tensor

from triptych.nn.one_hot import OneHot, convolved

SHAPES = {  # maps, channels, those of the result, pixels of a side, taps, stride
    "SPADE, a norm at 128 pixels": (4, 185, 32, 128, 5, 1),
    "SPADE, at its full width": (4, 185, 128, 128, 5, 1),
    "SPADE, a norm at 32 pixels": (4, 185, 32, 32, 5, 1),
    "SPADE, the discriminator": (4, 185, 32, 256, 4, 2),
    "Cityscapes, 64 filters": (1, 36, 64, 256, 3, 1),
    "Cityscapes, 8 filters": (1, 36, 8, 256, 3, 1),
    "CamVid, a norm": (6, 12, 24, 64, 3, 1),
}
SQUARES = 16


def seconds(work: Callable[[], object]) -> float:
    """Of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def map_of(maps: int, channels: int, side: int) -> tuple[OneHot, Tensor]:
    """The map by its ones, and dense."""
    classes = torch.randint(0, channels - 1, (maps, 1, SQUARES, SQUARES))
    classes = classes.repeat_interleave(side // SQUARES, 2).repeat_interleave(side // SQUARES, 3)
    edges = torch.full_like(classes, -1)
    edges[..., :: side // SQUARES, :] = edges[..., :: side // SQUARES] = channels - 1
    index = torch.cat((classes, edges), dim=1)
    dense = torch.zeros(maps, side, side, channels + 1)
    dense.scatter_(3, (index % (channels + 1)).permute(0, 2, 3, 1), 1.0)
    return OneHot(index.int(), channels), dense[..., :channels].contiguous().permute(0, 3, 1, 2)


def row(name: str, precision: torch.dtype, rounds: int) -> str:
    """The line of a shape."""
    maps, channels, outputs, side, taps, stride = SHAPES[name]
    torch.manual_seed(0)
    ones, dense = map_of(maps, channels, side)
    weight = torch.randn(outputs, channels, taps, taps).to(memory_format=torch.channels_last).requires_grad_()
    geometry = {"stride": stride, "padding": (taps - 1) // 2}

    def looked_up(ones: OneHot = ones) -> Tensor:
        with torch.autocast("cpu", precision, enabled=precision != torch.float32):
            return convolved(ones, weight, **geometry)

    def plain() -> Tensor:
        with torch.autocast("cpu", precision, enabled=precision != torch.float32):
            return F.conv2d(dense, weight, **geometry)

    best = {way: [float("inf")] * 2 for way in (looked_up, plain)}
    known, fresh = float("inf"), float("inf")
    for _ in range(rounds):
        for way, found in best.items():
            y = way()
            gradient = torch.ones_like(y)
            found[0] = min(found[0], seconds(way))
            found[1] = min(found[1], seconds(lambda y=y, gradient=gradient: torch.autograd.grad(y, weight, gradient)))
        known = min(known, seconds(lambda: torch.autograd.grad(looked_up().sum(), weight)))
        fresh = min(fresh, seconds(lambda: torch.autograd.grad(looked_up(OneHot(ones.index, channels)).sum(), weight)))
    figures = [1000 * value for way in (plain, looked_up) for value in best[way]] + [1000 * (fresh - known)]
    cells = f"{figures[0]:.1f}, {figures[1]:.1f} | {figures[2]:.1f}, {figures[3]:.1f} | {figures[4]:.1f}"
    shape = f"{channels} to {outputs}, {taps}x{taps}{', every second pixel' if stride > 1 else ''}"
    return f"| {name} ({shape}) | {str(precision).removeprefix('torch.')} | {cells} |"


if __name__ == "__main__":
    show_kernels(__doc__, ["", "", "PyTorch, dense, ms forward and backward", "looked up", "finding the places, once"], SHAPES, row)
