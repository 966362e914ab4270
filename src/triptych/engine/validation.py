"""The loss on held-out images."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from triptych.core.batch import RawBatch
from triptych.core.model import Model
from triptych.core.rng import Rng
from triptych.engine.distributed import World
from triptych.engine.measurements import TermSums, totals
from triptych.engine.precision import autocast


@torch.no_grad()
def validation_loss(model: Model, batches: Iterable[RawBatch], *, seed: int, precision: str, world: World) -> dict[str, float]:
    """Means of the loss terms of the model's `validated` phases, as "phase/term", with the same noise at every call.

    After each term come its groups, "phase/term_q0" to "phase/term_q3", where the model has groups; the first value is the loss of the
    first phase. `batches` are this process's images, at least one; the means are over those of all processes.
    """
    phases = [phase for phase in model.phases if phase.name in model.validated]
    sums = {phase.name: TermSums(dtype=torch.float64) for phase in phases}
    model.eval()
    for raw in batches:
        if not len(raw):
            continue  # the last batch may have fewer images than there are processes
        batch = raw.to(world.device)
        for phase in phases:
            with autocast(precision, device=world.device):
                sums[phase.name].add(model.loss(phase, batch, Rng(seed, ("validation", phase.name), batch.index)))
    model.train()
    vectors = [sums[phase.name].flat() for phase in phases]
    parts = world.sum(torch.cat(vectors)).split([len(vector) for vector in vectors])
    return {
        f"{phase.name}/{name}": total / count
        for phase, part in zip(phases, parts, strict=True)
        for name, total, count in totals(sums[phase.name].names, part.tolist())
    }
