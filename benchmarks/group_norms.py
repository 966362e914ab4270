"""Milliseconds of a group norm with scale and shift, channels last: by PyTorch's kernel, and by sums over the pixels (diffusion/norm.py).

    python benchmarks/group_norms.py [--threads 2] [--out FILE.md]

The best of several calls each, which take turns. A ratio above 1 is for sums; a star marks where they are taken. Then whole steps of small
recipes, with PyTorch's kernel alone and with sums where they are taken: medians, in turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from unittest.mock import patch

import torch
from machine import show_kernels
from torch import Tensor

from triptych.core.batch import Batch, DataSpec
from triptych.core.model import TrainingProgress, seeded_build
from triptych.core.rng import Rng
from triptych.diffusion import norm
from triptych.diffusion.norm import ModulatedGroupNorm, Modulation
from triptych.recipes.catalogue import load_recipe

NEVER, ALWAYS = {"_NARROWEST": 0}, {"_NARROWEST": 2**20, "_FEWEST_PIXELS": 2**40}
TAKEN = {"_NARROWEST": norm._NARROWEST}
MAPS = {
    f"{c} channels, {side}x{side}": (b, c, side, side)
    for side, b in ((32, 16), (16, 32), (8, 64), (4, 64))
    for c in (32, 64, 128, 192, 256)
}
STEPS = {
    "a step of flow-small on latents, batch 64": ("flow-small", DataSpec(image_size=16, channels=4)),
    "a step of adm-digits, batch 64": ("adm-digits", DataSpec(image_size=16, channels=1, num_classes=10)),
    "a step of edm-digits, batch 64": ("edm-digits", DataSpec(image_size=16, channels=1, num_classes=10)),
}
BATCH = 64


def row(name: str, precision: torch.dtype, rounds: int) -> str:
    """The line of a map, or of a step."""
    kernel, sums, taken = mapped(MAPS[name], precision, rounds) if name in MAPS else stepped(*STEPS[name], precision, rounds)
    cells = [str(precision).removeprefix("torch."), f"{1000 * kernel:.2f}", f"{1000 * sums:.2f}", f"{kernel / sums:.2f}{taken}"]
    return f"| {name} | {' | '.join(cells)} |"


def mapped(shape: tuple[int, int, int, int], precision: torch.dtype, rounds: int) -> tuple[float, float, str]:
    """Seconds by the kernel and by sums, and the star."""
    torch.manual_seed(0)
    x = torch.randn(shape).to(precision, memory_format=torch.channels_last)
    b, c, h, w = shape
    scale, shift = torch.randn(2, b, c)
    of = ModulatedGroupNorm(c).requires_grad_(False)
    kernel, sums = by_turns(lambda: of(x, Modulation(scale=scale, shift=shift)), rounds, ALWAYS)
    few = c // norm.NUM_GROUPS < norm._NARROWEST and h * w < norm._FEWEST_PIXELS
    return min(kernel), min(sums), "*" if few else ""


def stepped(recipe: str, spec: DataSpec, precision: torch.dtype, rounds: int) -> tuple[float, float, str]:
    """Seconds of a step by the kernel alone and by what is taken."""
    model = seeded_build(load_recipe(recipe).model, spec, seed=0).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    index, (phase,) = torch.arange(BATCH), model.phases
    labels = None if spec.num_classes is None else index % spec.num_classes
    batch = Batch(images=torch.randn(BATCH, spec.channels, spec.image_size, spec.image_size), labels=labels, index=index)

    def step() -> Tensor:
        model.prepare(phase, TrainingProgress(0, BATCH, 10**9))
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
            loss = model.loss(phase, batch, Rng(0, (phase.name, 0), index)).loss.mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    kernel, taken = by_turns(step, rounds, TAKEN)
    return statistics.median(kernel), statistics.median(taken), ""


def by_turns(run: Callable[[], Tensor], rounds: int, other: dict[str, int]) -> tuple[list[float], list[float]]:
    """Seconds of the calls by the kernel alone, and with the `other` limits."""
    found: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 2):
        for limits, seconds in zip((NEVER, other), found, strict=True):
            with patch.multiple(norm, **limits):
                start = time.perf_counter()
                run()
                if turn > 1:  # the first ones warm up
                    seconds.append(time.perf_counter() - start)
    return found


if __name__ == "__main__":
    show_kernels(__doc__, ("", "", "PyTorch's kernel, ms", "sums, ms", "times"), [*MAPS, *STEPS], row)
