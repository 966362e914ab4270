"""The loss on held-out images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch

from triptych.core.batch import RawBatch
from triptych.core.model import LossTerms, Model
from triptych.core.rng import Rng
from triptych.engine.distributed import World
from triptych.engine.measurements import TermSums, totals
from triptych.engine.precision import autocast
from triptych.engine.signals import made_by_all

STANDARD_ERROR = "_standard_error"
"""What the name of a figure's standard error ends with."""


@torch.no_grad()
def validation_loss(
    model: Model, batches: Iterable[RawBatch], *, seed: int, precision: str, world: World, seen: Callable[[int], None] = lambda images: None
) -> dict[str, float]:
    """Means of the loss terms of the model's `validated` phases, as "phase/term", with the same noise at every call.

    After each term come its standard error over the images, "phase/term_standard_error", and its groups, "phase/term_q0" to
    "phase/term_q3", where the model has groups; the first value is the loss of the first phase. `batches` are this process's images,
    maybe none; the figures are over those of all processes. `seen` is told after each batch how many of them are done; where it raises
    Stopped in one process, all do.
    """
    phases = [phase for phase in model.phases if phase.name in model.validated]
    sums = {phase.name: (TermSums(dtype=torch.float64), TermSums(dtype=torch.float64)) for phase in phases}

    def add_all() -> dict[str, tuple[str, ...]]:
        done = 0
        for raw in batches:
            if not len(raw):
                continue  # the last batch may have fewer images than there are processes
            batch = raw.to(world.device)
            for phase in phases:
                with autocast(precision, device=world.device):
                    terms = model.loss(phase, batch, Rng(seed, ("validation", phase.name), batch.index))
                values, squares = sums[phase.name]
                values.add(terms)
                logged = {name: value.double().square() for name, value in terms.logged.items()}
                squares.add(LossTerms(terms.loss.double().square(), logged))
            done += len(raw)
            seen(done)
        return {name: values.names for name, (values, _) in sums.items()} if done else {}

    model.eval()
    names_of = next(found for found in made_by_all(world, add_all) if found)
    model.train()
    vectors = [part.flat(names_of[phase.name], device=world.device) for phase in phases for part in sums[phase.name]]
    parts = iter(world.sum(torch.cat(vectors)).split([len(vector) for vector in vectors]))
    figures: dict[str, float] = {}
    for phase in phases:
        names, values, squares = names_of[phase.name], next(parts).tolist(), next(parts).tolist()
        squared = {name: total for name, total, _ in totals(names, squares)}
        for name, total, count in totals(names, values):
            figures[f"{phase.name}/{name}"] = mean = total / count
            if name in names and count > 1:
                variance = max(squared[name] / count - mean**2, 0.0)
                figures[f"{phase.name}/{name}{STANDARD_ERROR}"] = math.sqrt(variance / (count - 1))
    return figures
