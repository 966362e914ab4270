"""Run by torchrun: the generator's terms under top-k training on this process's share of 7 samples. Argument: a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.float64 import in_float64
from tests.gans.toy_gan import Toy, images_of, toy
from triptych.core.batch import Batch
from triptych.core.model import TrainingProgress
from triptych.core.rng import Rng
from triptych.engine.distributed import open_world
from triptych.gans.model import TopKConfig

COUNT, STEPS = 7, 3
SHARES = (slice(0, 5), slice(5, 7))
SETTINGS: dict[str, Any] = {"top_k": TopKConfig(least=0.3, decay=0.7, round_steps=1)}


def terms_and_gradients(model: Toy, batch: Batch, rng: Rng) -> list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]:
    """The logged terms of some steps of the generator on these samples, and the gradients of the sums of their losses."""
    found = []
    phase = model.phases[-1]
    for step in range(STEPS):
        model.prepare(phase, TrainingProgress(COUNT * step, COUNT, total_images=COUNT * STEPS))
        model.zero_grad()
        terms = model.loss(phase, batch, rng)
        terms.loss.sum().backward()
        gradients = {name: p.grad.clone() for name, p in model.generator.named_parameters() if p.grad is not None}
        found.append((dict(terms.logged), gradients))
    return found


def main(folder: Path) -> None:
    world = open_world("cpu")
    share = SHARES[world.rank]
    with in_float64():
        batch = images_of(COUNT)
        found = terms_and_gradients(toy(**SETTINGS), batch[share], Rng(0, ("generator", 0), batch.index)[share])
    torch.save(found, folder / f"{world.rank}.pt")
