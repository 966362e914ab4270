"""How far the gradient of a trained Glow is off where its backward pass goes by the inverses (`model.memory inversion`).

    python benchmarks/glow_gradients.py --out FILE.md

A flow of 96 steps (32 at each of 3 levels) learns the built-in digits; then the gradient of a batch by all parameters is computed three
times: with all activations kept in float32, by the inverses in float32, and with all kept in float64. Target: the inverses change less
than float32 does. Exit code 1 when it is missed.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from machine import machine, show_report
from torch import Tensor

from triptych.core.batch import Batch
from triptych.core.rng import Rng
from triptych.recipes.flows import glow_digits
from triptych.runs import open_run, train

DEPTH, WIDTH, BATCH = 32, 32, 16


def gradient(model: Any, batch: Batch, memory: str, dtype: torch.dtype) -> Tensor:
    """Of the mean loss of a batch, by all parameters: a vector in float64."""
    model.to(dtype)
    for level in model.network.levels:
        level.memory = memory
    model.zero_grad()
    images = replace(batch, images=batch.images.to(dtype))
    model.loss(model.phases[0], images, Rng(0, ("gradient",), batch.index)).loss.mean().backward()
    return torch.cat([parameter.grad.double().flatten() for parameter in model.parameters() if parameter.grad is not None])


def main() -> int:
    """0, or 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2_000, help="optimizer steps of the training before")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args()

    recipe = glow_digits()
    config = replace(
        recipe,
        model=replace(recipe.model, depth=DEPTH, width=WIDTH, memory="inversion"),  # type: ignore[call-arg]
        data=replace(recipe.data, workers=0),
        train=replace(recipe.train, total_images=options.steps * BATCH, batch_size=BATCH, sample_count=0),
    )
    with tempfile.TemporaryDirectory() as folder:
        train(config, f"{folder}/run", device="cpu")
        run = open_run(f"{folder}/run")
        model = run.load(weights="raw").train()
    data = run.config.data.open().train.batch(torch.arange(BATCH).numpy())
    images = torch.from_numpy(data.images).permute(0, 3, 1, 2).float() / 127.5 - 1
    batch = Batch(images=images, labels=None, index=torch.arange(BATCH))
    kept, inverses = (gradient(model, batch, memory, torch.float32) for memory in ("autograd", "inversion"))
    exact = gradient(model, batch, "autograd", torch.float64)
    changed, rounded = float((inverses - kept).norm() / kept.norm()), float((kept - exact).norm() / exact.norm())
    lines = [
        f"# Gradients of Glow by its inverses, {datetime.date.today().isoformat()}",
        "",
        machine(),
        "",
        f"{3 * DEPTH} steps at 3 levels, width {WIDTH}, the built-in digits (16x16); after {options.steps:,} training steps of {BATCH} "
        f"images; {len(exact):,} parameters. Differences of gradients of one batch, divided by the gradient.",
        "",
        "| in float32 | beside | difference |",
        "|---|---|---|",
        f"| by the inverses | all activations kept, in float32 | {changed:.1e} |",
        f"| all activations kept | the same in float64 | {rounded:.1e} |",
        f"| by the inverses | all activations kept, in float64 | {float((inverses - exact).norm() / exact.norm()):.1e} |",
        "",
        f"Target, the first below the second: {'reached' if changed < rounded else 'MISSED'}.",
    ]
    show_report(lines, out=options.out)
    return 0 if changed < rounded else 1


if __name__ == "__main__":
    sys.exit(main())
