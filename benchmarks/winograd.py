"""A convolution and its two gradients as PyTorch and as triptych compute them plainly, by tiles and by rows, on a CPU: time and errors.

    python benchmarks/winograd.py [--threads N] [--repetitions N] [--precision bf16] --out FILE.md

Shapes of the U-Nets, GANs and VGG-19 of the recipes: 3x3 kernels, channels last. The ways take turns, and of each the fastest of
some repetitions counts; of one thread by processor time, so that other programs change little. "Plainly" is for the weight's gradient
the faster of PyTorch's kernel and the products of nn/weight_gradient.py. The error is that of the convolution, the root of its mean
square by that of PyTorch's, by tiles and by rows. A star marks what nn/convolution.py chooses on this machine; exit code 1 where it
makes something slower by more than a tenth. In bf16 it always chooses PyTorch's: the others are there to be measured alone.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from machine import machine, show_report
from torch import Tensor

from triptych.engine.allocator import keep_freed_memory
from triptych.nn import weight_gradient, winograd, winograd_rows
from triptych.nn.convolution import fewer_multiplications

SHAPES = (
    (1, 64, 64, 256),
    (1, 64, 128, 128),
    (1, 128, 128, 128),
    (1, 256, 256, 64),
    (1, 512, 512, 32),
    (1, 512, 512, 16),
    (16, 64, 64, 32),
    (64, 64, 64, 16),
    (16, 96, 96, 32),
    (16, 128, 128, 32),
    (16, 256, 128, 32),
    (16, 384, 128, 32),
    (16, 128, 128, 16),
    (16, 256, 256, 16),
    (16, 512, 256, 16),
    (16, 256, 256, 8),
    (16, 512, 256, 8),
    (32, 256, 256, 8),
    (16, 512, 512, 8),
    (16, 512, 512, 4),
    (8, 192, 192, 14),
)
"""Images, channels in, channels out, side."""
SLOWER = 1.1
WAYS = ("convolution", "by the input", "by the weight")
FEWER = (winograd, winograd_rows)
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}


def measured(
    shape: tuple[int, ...], *, precision: str, repetitions: int, clock: Callable[[], float]
) -> tuple[list[tuple[float, float, float, int]], list[float]]:
    """Of the convolution and both gradients the seconds plainly, by tiles and by rows, and which is chosen; and the errors."""
    images, ins, outs, side = shape

    def drawn(*sizes: int) -> Tensor:
        return torch.randn(*sizes).to(DTYPES[precision], memory_format=torch.channels_last)

    x, weight, gradient = drawn(images, ins, side, side), drawn(outs, ins, 3, 3) / (3 * ins**0.5), drawn(images, outs, side, side)

    def derivative(*wanted: bool) -> Callable[[], object]:
        return lambda: torch.ops.aten.convolution_backward(gradient, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, wanted)

    ways: Sequence[Callable[[], object]] = (
        lambda: F.conv2d(x, weight, padding=1),
        lambda: winograd.convolved(x, weight, padding=1),
        lambda: winograd_rows.convolved(x, weight, padding=1),
        derivative(True, False, False),
        lambda: winograd.input_gradient(gradient, weight, padding=1),
        lambda: winograd_rows.input_gradient(gradient, weight, padding=1),
        derivative(False, True, False),
        lambda: winograd.weight_gradient(x, gradient, kernel=3, padding=1),
        lambda: winograd_rows.weight_gradient(x, gradient, kernel=3, padding=1),
        lambda: weight_gradient.weight_gradient(x, gradient, (3, 3), padding=1),
    )
    fastest = [float("inf")] * len(ways)
    for turn in range(repetitions + 1):
        for k, way in enumerate(ways):
            began = clock()
            way()
            if turn:  # the first one finds out how
                fastest[k] = min(fastest[k], clock() - began)
    fastest[6] = min(fastest[6], fastest.pop())
    ways_there = (None, *FEWER)
    chosen = [
        ways_there.index(fewer_multiplications(x, weight, stride=1, padding=1, learning=learning)) for learning in (False, False, True)
    ]
    exact = F.conv2d(x.double(), weight.double(), padding=1)
    found = F.conv2d(x, weight, padding=1), *(way.convolved(x, weight, padding=1) for way in FEWER)
    plain, *errors = (float((y - exact).square().mean().sqrt()) for y in found)
    return list(zip(fastest[::3], fastest[1::3], fastest[2::3], chosen, strict=True)), [error / plain for error in errors]


def main() -> int:
    """0, or 1 where the slower way is chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=8)
    parser.add_argument("--precision", choices=DTYPES, default="float32")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    keep_freed_memory()
    lines = [
        f"# Convolutions by tiles and by rows in {options.precision}, {datetime.date.today().isoformat()}",
        "",
        machine(),
        "",
        "Milliseconds plainly: how many times as fast by tiles, and by rows; a star at what is chosen:",
        "",
        f"| images, channels in, out, side | {' | '.join(WAYS)} | error |",
        "|---|---|---|---|---|",
    ]
    wrong = 0
    for shape in SHAPES:
        found, errors = measured(shape, precision=options.precision, repetitions=options.repetitions, clock=clock)
        cells = []
        for *seconds, chosen in found:
            wrong += seconds[chosen] > SLOWER * seconds[0]
            ratios = (f"{seconds[0] / seconds[way]:.2f}{'*' if way == chosen else ''}" for way in (1, 2))
            cells.append(f"{1000 * seconds[0]:.1f}: {', '.join(ratios)}")
        lines.append(f"| {', '.join(map(str, shape))} | {' | '.join(cells)} | {', '.join(f'{error:.1f}' for error in errors)} |")
        print(lines[-1], flush=True)
    lines += ["", f"{wrong} of {len(SHAPES) * len(WAYS)} are made slower by more than a tenth."]
    show_report(lines, out=options.out)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
