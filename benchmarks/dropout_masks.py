"""Milliseconds of a mask of dropout on a CPU: by PyTorch, as on a GPU and in what is compiled, and by NumPy (core/rng.py).

    python benchmarks/dropout_masks.py [--threads 2] [--out FILE.md]

The best of several calls each, which take turns. A ratio above 1 is for NumPy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from unittest.mock import patch

import torch
from machine import show_kernels
from torch import Tensor

from triptych.core.rng import MASK_WORDS, Rng

SHAPES = {  # samples, pixels and channels
    "ADM, 16x192x32x32": (16, 32, 32, 192),
    "ADM, 16x384x8x8": (16, 8, 8, 384),
    "flow-small, 64x32x16x16": (64, 16, 16, 32),
    "flow-small, 64x64x8x8": (64, 8, 8, 64),
    "flow-small, 64x64x4x4": (64, 4, 4, 64),
}


def row(name: str, _: torch.dtype, rounds: int) -> str:
    """The line of a shape."""
    count, *shape = SHAPES[name]
    rng = Rng(0, ("benchmark",), torch.arange(count)).ahead(["mask"], MASK_WORDS)

    def mask() -> Tensor:
        return rng.keep("mask", *shape, drop=0.1)

    def by_pytorch() -> Tensor:
        with patch("torch.compiler.is_compiling", lambda: True):
            return mask()

    assert torch.equal(mask(), by_pytorch())
    ways: tuple[Callable[[], Tensor], ...] = by_pytorch, mask
    best = [float("inf")] * len(ways)
    for _round in range(rounds):
        for k, way in enumerate(ways):
            start = time.perf_counter()
            way()
            best[k] = min(best[k], time.perf_counter() - start)
    plain, ours = best
    return f"| {name} | {1000 * plain:.2f} | {1000 * ours:.2f} | {plain / ours:.2f} |"


if __name__ == "__main__":
    show_kernels(__doc__, ("mask", "PyTorch", "NumPy", "times"), SHAPES, row, precisions=(torch.uint8,))
