"""Statistics of batch norm for averaged weights: those of training are of other weights, and an average of them fits none."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from triptych.core.batch import Batch
from triptych.core.model import Model
from triptych.core.rng import Rng
from triptych.nn.batch_norm import batch_norms


def has_batch_norm(model: Model) -> bool:
    """Whether the averaged networks have batch norms."""
    return any(batch_norms(getattr(model, name)) for name in model.averaged)


@torch.no_grad()
def estimate_statistics(model: Model, batches: Iterable[Batch], *, seed: int) -> None:
    """Sets the running statistics of the averaged networks' batch norms to their means over the batches, with the weights of now.

    At least one batch, each this process's share of it.
    """
    layers = [layer for name in model.averaged for layer in batch_norms(getattr(model, name))]
    momenta = [layer.momentum for layer in layers]
    training = model.training
    model.train()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain mean of all that comes
    for batch in batches:
        model.run_averaged(batch, Rng(seed, ("statistics",), batch.index))
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    model.train(training)
