"""How many copies of tensors a training step in half precision makes: casts, changes of layout, clones. More than now is a step back."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from triptych.core.batch import Batch, DataSpec
from triptych.core.model import seeded_build
from triptych.core.rng import Rng
from triptych.engine.precision import autocast
from triptych.recipes.catalogue import load_recipe

_COPIES = ("aten._to_copy.default", "aten.copy_.default", "aten.clone.default")
_LARGE = 512
"""Numbers of a tensor that counts: not those of scales, statistics and times."""
MOST = {"adm-digits": 221, "edm-digits": 190, "edm2-digits": 90, "flow-digits": 42, "glow-digits": 17}
"""Copies in a step of each shrunk recipe: casts of weights, of norms' inputs and outputs there and back, and what attention needs."""


class _Counting(TorchDispatchMode):
    """Counts the copies of large tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.found = Counter[str]()

    def __torch_dispatch__(self, operation: Any, types: Any, given: tuple[Any, ...] = (), named: dict[str, Any] | None = None) -> Any:
        made = operation(*given, **(named or {}))
        if str(operation) in _COPIES and isinstance(made, torch.Tensor) and made.numel() >= _LARGE:
            self.found[str(operation)] += 1
        return made


@pytest.mark.parametrize("recipe", MOST)
def test_a_step_in_half_precision_copies_no_more_than_it_did(recipe: str) -> None:
    model = seeded_build(load_recipe(recipe).model.shrunk(), DataSpec(image_size=8, channels=1, num_classes=10), seed=0).train()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    index, phase = torch.arange(4), model.phases[0]
    batch = Batch(torch.rand(4, 1, 8, 8) * 2 - 1, torch.arange(4), index, {})
    with _Counting() as counting:
        with autocast("bf16", device=torch.device("cpu")):
            loss = model.loss(phase, batch, Rng(0, ("test",), index)).loss.sum()
        loss.backward()
    assert sum(counting.found.values()) <= MOST[recipe], dict(counting.found)
