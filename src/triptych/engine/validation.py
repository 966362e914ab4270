"""The loss on held-out images."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from triptych.core.batch import RawBatch
from triptych.core.model import Model
from triptych.core.rng import Rng
from triptych.engine.distributed import World
from triptych.engine.precision import autocast


@torch.no_grad()
def validation_loss(model: Model, batches: Iterable[RawBatch], *, seed: int, precision: str, world: World) -> dict[str, float]:
    """Means of the loss terms of the model's `validated` phases, as "phase/term", with the same noise at every call.

    `batches` are this process's images; the means are over those of all processes.
    """
    phases = [phase for phase in model.phases if phase.name in model.validated]
    sums: dict[str, torch.Tensor] = {}
    count = torch.zeros((), dtype=torch.float64, device=world.device)
    model.eval()
    for raw in batches:
        if not len(raw):
            continue  # the last batch may have fewer images than there are processes
        batch = raw.to(world.device)
        count += len(batch)
        for phase in phases:
            with autocast(precision, device=world.device):
                terms = model.loss(phase, batch, Rng(seed, ("validation", phase.name), batch.index))
            for name, value in {"loss": terms.loss, **terms.logged}.items():
                key = f"{phase.name}/{name}"
                sums[key] = sums.get(key, 0.0) + value.double().sum()
    model.train()
    totals = world.sum(torch.stack([*sums.values(), count])).tolist()
    return {name: total / totals[-1] for name, total in zip(sums, totals, strict=False)}
