"""What averaged weights need from training batches: statistics of batch norm above all.

Those of training are of other weights, and an average of them fits none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from triptych.core.batch import Batch
from triptych.core.model import Model
from triptych.core.rng import Rng
from triptych.nn.batch_norm import batch_norms


def needs_batches(model: Model) -> bool:
    """Whether its averages need training batches."""
    return model.collects or has_batch_norm(model)


def has_batch_norm(model: Model) -> bool:
    """Whether the averaged networks have batch norms."""
    return any(batch_norms(getattr(model, name)) for name in model.averaged)


@torch.no_grad()
def estimate_statistics(model: Model, batches: Callable[[], Iterable[Batch]], *, seed: int) -> None:
    """Sets the running statistics of the averaged networks' batch norms to their means over the batches, with the weights of now.

    Then the model collects what it needs from them. At least one batch, each this process's share of it; every call gives the same ones.
    """
    training = model.training
    if has_batch_norm(model):
        model.train()
        _average_statistics(model, batches(), seed=seed)
    if model.collects:
        model.eval()
        model.collect(batches())
    model.train(training)


def _average_statistics(model: Model, batches: Iterable[Batch], *, seed: int) -> None:
    layers = [layer for name in model.averaged for layer in batch_norms(getattr(model, name))]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain mean of all that comes
    for batch in batches:
        model.run_averaged(batch, Rng(seed, ("statistics",), batch.index))
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
