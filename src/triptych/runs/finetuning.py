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
from triptych.engine.schedule import step_settings
from triptych.runs.weights import load_frozen_networks

_AT_THE_END = TrainingProgress(2**60, 1, 2**60)
"""Where whatever changes over a run has arrived."""


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
    plain = _at_one_rate(optim, how)
    weights = model.finetuned_weights()
    optimizers = {name: make_optimizer(some, plain, device=first.device) for name, some in weights.items()}
    with torch.enable_grad():
        for step in range(how.steps):
            batch = model.of_style(look, Rng(seed, ("finetune", step), index))
            for phase in (one for one in model.phases if step % one.every == 0):
                (network,) = phase.networks
                model.prepare(phase, _AT_THE_END)
                loss = model.loss(phase, batch, Rng(seed, ("finetune", step, phase.name), index)).loss.mean()
                changed = list(weights[network].values())
                for weight, gradient in zip(changed, torch.autograd.grad(loss, changed, allow_unused=True), strict=True):
                    weight.grad = gradient
                settings, optimizer = step_settings(plain, phase, _AT_THE_END), optimizers[network]
                if settings.clip_norm is not None:
                    torch.nn.utils.clip_grad_norm_(changed, settings.clip_norm)
                settings.set(optimizer)
                optimizer.step()
                model.stepped(phase)
            progress(step + 1, how.steps)
    model.eval()


def _at_one_rate(optim: OptimConfig, how: Finetuning) -> OptimConfig:
    """The optimizer without warm-up and schedule; a rate that is given takes the place of those of all phases."""
    optim = replace(optim, schedule="constant", warmup_images=0, warmup_share=None)
    if how.rate is None:
        return optim
    phases = tuple(replace(each, learning_rate=None, rate_factor=None) for each in optim.phases)
    return replace(optim, learning_rate=how.rate, phases=phases)
