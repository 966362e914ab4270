"""Milliseconds of convolutions to few channels, several pixels together and PyTorch's: forward, and both gradients.

    python benchmarks/few_channels.py [--threads 2] [--out FILE.md]

The best of several calls each, which take turns. A ratio above 1 is for several pixels together.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from machine import show_kernels
from torch import Tensor

from triptych.nn.few_channels import convolved_together

SHAPES = {  # images, their channels, those of the result, taps, pixels
    "UNIT, the image": (1, 24, 3, 7, 256, 256),
    "SPADE, the image": (4, 64, 3, 5, 256, 256),
    "pix2pixHD, the image": (1, 64, 3, 7, 256, 512),
    "vid2vid, the image": (1, 8, 3, 3, 256, 512),
    "ADM, the noise": (16, 64, 3, 3, 32, 32),
}
COUNTS = (2, 4)


def timed(convolve: Callable[[Tensor, Tensor, Tensor], Tensor], given: list[Tensor], gradient: Tensor) -> tuple[float, float]:
    """Seconds of the forward and of the backward pass."""
    for each in given:
        each.grad = None
    start = time.perf_counter()
    y = convolve(*given)
    middle = time.perf_counter()
    y.backward(gradient)
    return middle - start, time.perf_counter() - middle


def row(name: str, precision: torch.dtype, rounds: int) -> str:
    """The line of a shape."""
    b, i, o, taps, height, width = SHAPES[name]
    torch.manual_seed(0)
    shapes = ((b, i, height + taps - 1, width + taps - 1), (o, i, taps, taps), (b, o, height, width))
    x, weight, gradient = (torch.randn(shape).to(precision, memory_format=torch.channels_last) for shape in shapes)
    given = [x.requires_grad_(), weight.requires_grad_(), torch.randn(o).to(precision).requires_grad_()]
    ways: dict[int, Callable[[Tensor, Tensor, Tensor], Tensor]] = {1: F.conv2d}
    for count in COUNTS:
        ways[count] = lambda x, weight, bias, count=count: convolved_together(x, weight, bias, padding=0, count=count)
    best = dict.fromkeys(ways, (float("inf"), float("inf")))
    for _ in range(rounds):
        for count, convolve in ways.items():
            found = timed(convolve, given, gradient)
            best[count] = (min(best[count][0], found[0]), min(best[count][1], found[1]))
    plain = best[1]
    cells = [f"{1000 * plain[0]:.2f}, {1000 * plain[1]:.2f}"]
    cells += [f"{plain[0] / best[count][0]:.2f}, {plain[1] / best[count][1]:.2f}" for count in COUNTS]
    return f"| {name} ({i} to {o}, {taps}x{taps}) | {str(precision).removeprefix('torch.')} | {' | '.join(cells)} |"


if __name__ == "__main__":
    show_kernels(__doc__, ["", "", "PyTorch, ms forward and backward", *(f"{count} together" for count in COUNTS)], SHAPES, row)
