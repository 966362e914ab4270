"""A model of clips that was trained a little longer on the pictures whose look it shall take.

It is trained on one of the pictures at a time, in memory, for one call: the run that it was opened from stays as it is.
"""

from __future__ import annotations

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


def finetune(model: Model, look: Mapping[str, Tensor], *, how: Finetuning, optim: OptimConfig, seed: int, progress: Watch) -> None:
    """Some steps of each phase of the model, which is a `Finetuned`, on its style images (1, k, ...); it ends in evaluation mode.

    The same for the same seed. The steps are those of a training by `optim`, at one rate. `progress` is told of them.
    Raises ConfigError and CheckpointError for a frozen network without its file.
    """
    assert isinstance(model, Finetuned)
    model.train()
    load_frozen_networks(model)
    first, *_ = look.values()
    model.to(first.device)
    index = torch.zeros(1, dtype=torch.long, device=first.device)
    plain = replace(optim, learning_rate=how.rate or optim.learning_rate)
    weights = model.finetuned_weights()
    optimizers = {name: make_optimizer(some, plain, device=first.device) for name, some in weights.items()}
    with torch.enable_grad():
        for step in range(how.steps):
            batch = model.of_style(look, Rng(seed, ("finetune", step), index))
            for phase in (one for one in model.phases if step % one.every == 0):
                (network,) = phase.networks
                model.prepare(phase, TrainingProgress(0, 1, 1))
                loss = model.loss(phase, batch, Rng(seed, ("finetune", step, phase.name), index)).loss.mean()
                changed = list(weights[network].values())
                for weight, gradient in zip(changed, torch.autograd.grad(loss, changed, allow_unused=True), strict=True):
                    weight.grad = gradient
                optimizers[network].param_groups[0]["lr"] = plain.learning_rate * phase.rate
                optimizers[network].step()
                model.stepped(phase)
            progress(step + 1, how.steps)
    model.eval()
