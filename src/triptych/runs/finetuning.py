"""A model of clips that was trained a little longer on the pictures whose look it shall take.

What it was before stays as it is: a copy is trained, on one of the pictures at a time, and used in its place for one call.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from triptych.core.finetuning import Finetuned, Finetuning
from triptych.core.model import Model, TrainingProgress
from triptych.core.rng import Rng
from triptych.engine.config import OptimConfig
from triptych.engine.optim import make_optimizer
from triptych.engine.progress import Watch
from triptych.runs.weights import load_frozen_networks


def finetuned(model: Model, look: Mapping[str, Tensor], *, how: Finetuning, optim: OptimConfig, seed: int, progress: Watch) -> Model:
    """A copy of the model, which is a `Finetuned`, after some steps of each phase on its style images (1, k, ...).

    The same for the same seed. The steps are those of a training by `optim`, at one rate. `progress` is told of them.
    Raises ConfigError and CheckpointError for a frozen network without its file.
    """
    tuned = copy.deepcopy(model).train()
    assert isinstance(tuned, Finetuned)
    load_frozen_networks(tuned)
    first, *_ = look.values()
    tuned.to(first.device)
    index = torch.zeros(1, dtype=torch.long, device=first.device)
    plain = replace(optim, learning_rate=how.rate or optim.learning_rate)
    weights = tuned.finetuned_weights()
    optimizers = {name: make_optimizer(some, plain, device=first.device) for name, some in weights.items()}
    with torch.enable_grad():
        for step in range(how.steps):
            batch = tuned.of_style(look, Rng(seed, ("finetune", step), index))
            for phase in (one for one in tuned.phases if step % one.every == 0):
                (network,) = phase.networks
                tuned.prepare(phase, TrainingProgress(0, 1, 1))
                loss = tuned.loss(phase, batch, Rng(seed, ("finetune", step, phase.name), index)).loss.mean()
                changed = list(weights[network].values())
                for weight, gradient in zip(changed, torch.autograd.grad(loss, changed, allow_unused=True), strict=True):
                    weight.grad = gradient
                optimizers[network].param_groups[0]["lr"] = plain.learning_rate * phase.rate
                optimizers[network].step()
                tuned.stepped(phase)
            progress(step + 1, how.steps)
    return tuned.eval()
