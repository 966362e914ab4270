"""The whole computation in float64: new models, what is drawn, images.

A float32 network rounds differently with the size of the batch, the number of processes and the kind of CPU, and a rectifier or a step
of Adam magnifies that: a bound that holds on one machine says little about another. In float64 what is equal in exact arithmetic agrees
to many digits everywhere, so that bounds can be tight and only a fault passes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from triptych.core.batch import Batch, RawBatch
from triptych.core.rng import Rng


@contextmanager
def in_float64() -> Iterator[None]:
    """Within it new models, what they draw and batches on a device are of float64; the draws have the values of float32."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rng, "normal", _doubled(Rng.normal))
        patch.setattr(Rng, "normals", lambda rng, names, *shape: lambda i: rng.normal(names[i], *shape))
        patch.setattr(Rng, "uniform", _doubled(Rng.uniform))
        patch.setattr(RawBatch, "to", lambda raw, device, to=RawBatch.to: widened(to(raw, device)))
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)


def _doubled(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda rng, *shape: draw(rng, *shape).double()


def widened(batch: Batch) -> Batch:
    """The batch with its images in float64."""
    return replace(batch, images=batch.images.double(), inputs={name: wide(values) for name, values in batch.inputs.items()})


def wide(values: Tensor) -> Tensor:
    """Floats in float64, anything else as it is."""
    return values.double() if values.is_floating_point() else values
