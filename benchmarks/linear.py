"""Milliseconds of linear maps in float32 by oneDNN and by PyTorch: forward, and the gradients of input and weight.

    python benchmarks/linear.py [--threads 2] [--out FILE.md]

The best of several calls each, which take turns. A ratio above 1 is for oneDNN; a star marks what nn/linear.py chooses on this machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from machine import show_kernels
from torch import Tensor

from triptych.nn.linear import by_onednn, computed, learns_by_onednn

SHAPES = {  # rows, features of the input and of the result
    "a batch's vectors": (16, 128, 512),
    "ADM, of the time": (16, 512, 512),
    "DiT-B, modulation": (8, 768, 4608),
    "DiT-S, modulation": (32, 384, 2304),
    "a small one": (128, 128, 128),
    "Glow, a pixel's channels": (16384, 12, 12),
    "autoencoder, attention": (1024, 64, 64),
    "DiT-S/4, qkv": (1024, 384, 1152),
    "DiT-S/4, fc1": (1024, 384, 1536),
    "DiT-S/4, fc2": (1024, 1536, 384),
    "DiT-B/4, proj": (512, 768, 768),
    "DiT-B/4, fc1": (512, 768, 3072),
    "DiT-B/4, fc2": (512, 3072, 768),
    "CLIP ViT-B/32, fc1": (3200, 768, 3072),
    "CLIP ViT-B/32, fc2": (3200, 3072, 768),
    "many rows, few columns": (16384, 128, 128),
    "fewer columns": (16384, 256, 128),
}


def row(name: str, precision: torch.dtype, rounds: int) -> str:
    """The line of a shape."""
    n, i, o = SHAPES[name]
    torch.manual_seed(0)
    x, weight, gradient = (torch.randn(shape, dtype=precision) for shape in ((n, i), (o, i), (n, o)))
    cells = []
    for a, b in ((x, weight), (gradient, weight.t()), (gradient.t(), x.t())):
        chosen = learns_by_onednn(gradient, x) if len(cells) == 2 else by_onednn(a, b)
        ways: list[Callable[[Tensor, Tensor], Tensor]] = [F.linear, lambda a, b: computed(a, b, None)]
        best = [float("inf")] * 2
        for turn in range(rounds + 1):
            for k, way in enumerate(ways):
                start = time.perf_counter()
                way(a, b)
                if turn:  # the first one finds out how
                    best[k] = min(best[k], time.perf_counter() - start)
        plain, ours = best
        cells.append(f"{1000 * plain:.3f} / {1000 * ours:.3f} = {plain / ours:.2f}{'*' if chosen else ''}")
    return f"| {name} ({n} rows, {i} to {o}) | {' | '.join(cells)} |"


if __name__ == "__main__":
    show_kernels(__doc__, ("", "forward", "by the input", "by the weight"), SHAPES, row, precisions=(torch.float32,))
