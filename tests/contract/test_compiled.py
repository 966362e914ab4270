"""What torch.compile makes of the networks of each kind of model has the gradients of the networks themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.contract.kinds import KINDS
from tests.contract.moved import first_batch, gradients, moved_model
from tests.contract.shrink import shrunk
from tests.float64 import widened
from triptych.engine.distributed import open_world
from triptych.runs.training import prepare_backend


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch.compile with graphs as the usual backend gets them, which then run as they are: no compiler of C++ is needed."""
    compile_module = torch.nn.Module.compile

    def compiled(module: torch.nn.Module, **given: Any) -> None:
        compile_module(module, backend="aot_eager", **given)

    monkeypatch.setattr(torch.nn.Module, "compile", compiled)
    yield
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.parametrize("name", {type(shrunk(name).model): name for name in KINDS}.values())
def test_compiled_networks_have_the_same_gradients(name: str, float64: None, backend: None) -> None:
    settings = shrunk(name)
    plain, compiled = moved_model(settings).train(), moved_model(settings).train()
    prepare_backend(compiled, settings.updated({"train": {"compile": "on"}}), open_world("cpu"))
    batch = widened(first_batch(settings))
    for phase in plain.phases:
        expected, found = gradients(plain, phase, batch), gradients(compiled, phase, batch)
        assert expected.keys() == found.keys()
        scale = max(float(gradient.norm()) for gradient in expected.values())
        for key, gradient in expected.items():
            assert float((found[key] - gradient).norm()) <= 1e-9 * float(gradient.norm()) + 1e-11 * scale, key
