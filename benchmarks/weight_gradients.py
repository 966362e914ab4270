"""The rates of a convolution, of its input's gradient and of its weight's, and of the latter as matrix products, on a CPU.

    python benchmarks/weight_gradients.py [--precision float32] [--threads N] --out FILE.md

Shapes of the U-Nets, Glow and GANs of the recipes, channels last. Of each operation the fastest of some repetitions counts, and
the four take turns. With one thread its processor time counts, so that other programs change little. The last column says what
nn/weight_gradient.py chooses on this machine; exit code 1 where it takes the slower of the two by more than a tenth.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from machine import machine, show_report
from torch import Tensor

from triptych.engine.allocator import keep_freed_memory
from triptych.nn.weight_gradient import by_products, weight_gradient

SHAPES = (
    (16, 128, 128, 32, 3, 1),
    (16, 256, 128, 32, 3, 1),
    (16, 256, 256, 16, 3, 1),
    (16, 512, 256, 16, 3, 1),
    (16, 256, 256, 8, 3, 1),
    (16, 256, 256, 4, 3, 1),
    (8, 192, 192, 64, 3, 1),
    (16, 256, 1024, 8, 2, 1),
    (16, 256, 768, 16, 1, 1),
    (16, 512, 512, 32, 1, 1),
    (16, 12, 512, 16, 3, 1),
    (16, 512, 24, 16, 3, 1),
    (32, 96, 96, 32, 3, 1),
    (32, 64, 64, 32, 3, 1),
    (32, 64, 128, 32, 3, 1),
    (32, 32, 32, 32, 3, 1),
    (4, 64, 128, 128, 4, 2),
    (4, 128, 256, 64, 4, 2),
    (16, 128, 128, 32, 3, 2),
    (16, 256, 256, 16, 3, 2),
)
"""Images, channels in, channels out, side, kernel, stride."""
SLOWER = 1.1


def rates(shape: tuple[int, ...], *, dtype: torch.dtype, repetitions: int, clock: Callable[[], float]) -> tuple[list[float], bool]:
    """GFLOP/s of the convolution, its two gradients and the second one as products; and whether these are chosen."""
    images, ins, outs, side, kernel, stride = shape
    padding = kernel // 2

    def drawn(*sizes: int) -> Tensor:
        return torch.randn(*sizes).to(dtype).to(memory_format=torch.channels_last)

    x, weight = drawn(images, ins, side, side), drawn(outs, ins, kernel, kernel)
    gradient = torch.randn_like(F.conv2d(x, weight, stride=stride, padding=padding))

    def derivative(*wanted: bool) -> Callable[[], object]:
        sizes = ([stride, stride], [padding, padding], [1, 1], False, [0, 0], 1)
        return lambda: torch.ops.aten.convolution_backward(gradient, x, weight, None, *sizes, wanted)

    operations: list[Callable[[], object]] = [
        lambda: F.conv2d(x, weight, stride=stride, padding=padding),
        derivative(True, False, False),
        derivative(False, True, False),
        lambda: weight_gradient(x, gradient, (kernel, kernel), stride=stride, padding=padding),
    ]
    fastest = [float("inf")] * len(operations)
    for turn in range(repetitions + 1):
        for k, operation in enumerate(operations):
            began = clock()
            operation()
            if turn:  # the first one finds out how
                fastest[k] = min(fastest[k], clock() - began)
    work = 2 * gradient.numel() * ins * kernel**2
    return [work / seconds / 1e9 for seconds in fastest], by_products(x, weight, padding=padding)


def main() -> int:
    """0, or 1 where the slower way is chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repetitions", type=int, default=8)
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    clock = time.process_time if options.threads == 1 else time.perf_counter
    dtype = torch.float32 if options.precision == "float32" else torch.bfloat16
    lines = [
        f"# Gradients of convolutions, {options.precision}, {datetime.date.today().isoformat()}",
        "",
        machine(),
        "",
        "GFLOP/s:",
        "",
        "| images, channels in, out, side, kernel, stride | convolution | by the input | by the weight | the same as products | chosen |",
        "|---|---|---|---|---|---|",
    ]
    wrong = 0
    for shape in SHAPES:
        found, products = rates(shape, dtype=dtype, repetitions=options.repetitions, clock=clock)
        kernel, own = found[2:]
        taken, other = (own, kernel) if products else (kernel, own)
        wrong += other > SLOWER * taken
        lines.append(
            f"| {', '.join(map(str, shape))} | {' | '.join(f'{rate:.0f}' for rate in found)} | {'products' if products else 'kernel'} |"
        )
        print(lines[-1], flush=True)
    lines += ["", f"{wrong} of {len(SHAPES)} shapes are taken the way that is slower by more than a tenth."]
    show_report(lines, out=options.out)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
