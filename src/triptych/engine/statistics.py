"""What averaged weights need from training batches: statistics of batch norm above all.

The running statistics of training belong to other weights, and an average of them fits no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from triptych.core.batch import Batch
from triptych.core.errors import UserError
from triptych.core.model import Averaged, Model
from triptych.core.rng import Rng
from triptych.nn.batch_norm import batch_norms, statistics_of_all


def needs_batches(model: Model) -> bool:
    """Whether its averages need training batches."""
    return (isinstance(model, Averaged) and model.collects) or has_batch_norm(model)


def has_batch_norm(model: Model) -> bool:
    """Whether the averaged networks have batch norms."""
    return any(batch_norms(getattr(model, name)) for name in model.averaged)


@torch.no_grad()
def estimate_statistics(model: Model, batches: Callable[[], Iterable[Batch]], *, seed: int) -> None:
    """Sets the running statistics of the averaged networks' batch norms to their means over the batches, with the present weights.

    Then the model collects what it needs. `batches` gives this process's share of at least one batch, the same ones at every call. Where
    one of them cannot be read, the statistics are those of before.
    """
    training = model.training
    try:
        if has_batch_norm(model):
            model.train()
            _average_statistics(model, batches(), seed=seed)
        if isinstance(model, Averaged) and model.collects:
            model.eval()
            model.collect(batches())
    finally:
        model.train(training)


def _average_statistics(model: Model, batches: Iterable[Batch], *, seed: int) -> None:
    if not isinstance(model, Averaged):
        raise TypeError(f"{type(model).__name__} has batch norm and is not Averaged, so it does not say how its networks run")
    layers = [layer for name in model.averaged for layer in batch_norms(getattr(model, name))]
    before = [(layer, layer.momentum, [(buffer, buffer.clone()) for buffer in layer.buffers()]) for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain mean of all that comes
    try:
        with statistics_of_all(layers):
            for batch in batches:
                model.run_averaged(batch, Rng(seed, ("statistics",), batch.index))
    except UserError:
        for buffer, values in (pair for *_, buffers in before for pair in buffers):
            buffer.copy_(values)
        raise
    finally:
        for layer, momentum, _ in before:
            layer.momentum = momentum
