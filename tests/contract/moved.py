"""A recipe's model off its initial values, and what its gradients tell."""

from __future__ import annotations

import copy
import functools

import torch
from torch import Tensor

from tests.contract.shrink import BATCH
from triptych.core.batch import Batch
from triptych.core.model import Model, Phase
from triptych.core.rng import Rng
from triptych.core.weight_files import read_weights
from triptych.data.loader import Loader
from triptych.gans.weight_norms import find_singular_vectors
from triptych.recipes.config import RunConfig
from triptych.runs.stored import build


def moved_model(config: RunConfig) -> Model:
    """The model with every parameter moved off its initial value, so that no gradient is zero by construction: a copy for the caller."""
    return copy.deepcopy(_moved(config, torch.get_default_dtype()))


@functools.lru_cache(maxsize=64)
def _moved(config: RunConfig, dtype: torch.dtype) -> Model:
    model = build(config, config.data.open().spec)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert parameters < 2e6, f"{parameters:,} parameters are too many for these tests: override shrunk in {type(config.model).__name__}"
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        find_singular_vectors(model)
    for network, path in model.frozen_networks.items():
        assert path is not None
        getattr(model, network).load(read_weights(path))
    return model.to(dtype)


def first_batch(config: RunConfig, *, device: str = "cpu") -> Batch:
    loader = Loader(config.data.open().train, batch_size=BATCH, seed=0, workers=0)
    return next(loader.batches(0)).to(device)


def gradients(model: Model, phase: Phase, batch: Batch, *, size: int = BATCH) -> dict[str, Tensor]:
    """The gradients of the phase's networks, `size` samples at a time."""
    model.zero_grad()
    rng = Rng(0, (phase.name, 0), batch.index)
    for start in range(0, len(batch), size):
        part = slice(start, start + size)
        (model.loss(phase, batch[part], rng[part]).loss.sum() / len(batch)).backward()
    own = tuple(f"{network}." for network in phase.networks)
    return {name: p.grad.clone() for name, p in model.named_parameters() if name.startswith(own) and p.grad is not None}
