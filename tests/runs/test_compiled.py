"""Compiled networks: the first iteration compiles them, and none after it does so again, which on a GPU would take minutes each time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.contract.shrink import BATCH, light
from triptych.engine.loop import Loop
from triptych.runs import train

SLOW = ["adm-mnist", "dit-b-2", "edm2-digits", "stylegan2-digits"]


@pytest.mark.parametrize("name", ["glow-digits", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_only_the_first_iteration_compiles(name, tmp_path, monkeypatch):
    graphs = [0]

    def backend(module: Any, _: Any) -> Any:
        graphs[-1] += 1
        return module.forward

    def iteration(loop: Any, batches: Any, iteration: Any = Loop._iteration) -> None:
        iteration(loop, batches)
        graphs.append(0)

    torch._dynamo.reset()
    monkeypatch.setattr(nn.Module, "compile", lambda module, compile=nn.Module.compile: compile(module, backend=backend))
    monkeypatch.setattr(Loop, "_iteration", iteration)
    settings = light(name).updated({"train": {"compile": "on", "total_images": 3 * BATCH, "validate_images": 0}})
    train(settings, tmp_path / "run", device="cpu")
    first, *others, _ = graphs  # the last ones are of what comes after the training
    assert first > 0 and others == [0, 0]
