"""What a training asks of PyTorch: compiled networks where that pays, sums in a fixed order on a GPU, and a line for what has none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from tests.contract.shrink import BATCH, light
from triptych.core.errors import RunError
from triptych.engine.distributed import World
from triptych.runs import train
from triptych.runs.stored import build
from triptych.runs.training import prepare_backend


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.backends.cudnn.deterministic = before[1]


@pytest.fixture
def compiled_networks(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """Those that are compiled, without PyTorch's compiler, whose import takes long."""
    found: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda module: found.append(module))
    return found


@pytest.mark.parametrize(
    ("device", "compile_", "iterations", "shard", "compiled"),
    [
        ("cuda", "auto", 5000, "none", True),
        ("cuda", "auto", 4999, "none", False),
        ("cuda", "auto", 5000, "full", False),
        ("cuda", "on", 1, "none", True),
        ("cuda", "off", 5000, "none", False),
        ("cpu", "auto", 5000, "none", False),
        ("cpu", "on", 1, "none", True),
    ],
)
def test_networks_are_compiled_where_it_pays(device, compile_, iterations, shard, compiled, compiled_networks):
    changes = {"compile": compile_, "total_images": iterations * BATCH, "shard": shard}
    config = light("adm-digits").updated({"train": changes})
    model = build(config, config.data.open().spec)
    said = prepare_backend(model, config, World(0, 1 if shard == "none" else 2, torch.device(device)))
    assert compiled_networks == ([model.network] if compiled else []) and bool(said) == compiled


@pytest.mark.parametrize(("slices", "compiled"), [(1, True), (2, False)])
def test_iterations_are_counted_by_all_images_that_they_draw(slices, compiled, monkeypatch, compiled_networks):
    config = light("adm-digits").updated({"train": {"compile": "auto", "total_images": 5000 * BATCH}})
    model = build(config, config.data.open().spec)
    monkeypatch.setattr(type(model), "slices", slices)
    prepare_backend(model, config, World(0, 1, torch.device("cuda")))
    assert bool(compiled_networks) == compiled


@pytest.mark.parametrize("wish", [True, False])
def test_sums_have_a_fixed_order_on_a_gpu_where_it_is_wished(wish):
    config = light("adm-digits").updated({"train": {"compile": "off", "deterministic": wish}})
    model = build(config, config.data.open().spec)
    torch.use_deterministic_algorithms(not wish)
    prepare_backend(model, config, World(0, 1, torch.device("cpu")))
    assert torch.are_deterministic_algorithms_enabled() != wish, "a CPU is left as it is"
    prepare_backend(model, config, World(0, 1, torch.device("cuda")))
    assert torch.are_deterministic_algorithms_enabled() == torch.backends.cudnn.deterministic == wish


def test_an_operation_without_a_fixed_order_is_explained(tmp_path, monkeypatch):
    said = "put_ does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True)'. You can turn off"

    def fail(*_):
        raise RuntimeError(said)

    monkeypatch.setattr("triptych.engine.loop.Loop._iteration", fail)
    with pytest.raises(RunError, match="put_ adds in no fixed order on this device: --train.no-deterministic trains with it"):
        train(light("adm-digits"), tmp_path / "run", device="cpu")
