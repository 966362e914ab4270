"""Models that are divided between processes (train.shard) train as in one, and any number of processes goes on with them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.float64 import in_float64
from tests.processes import run_together
from tests.runs.sharding_worker import BATCH, CHANGING, RECIPES, four, go_on, train_all, two
from triptych.core.errors import CheckpointError
from triptych.engine.checkpoint import load_checkpoint
from triptych.engine.sharding import blocks
from triptych.evaluation.bits_per_dim import BitsPerDimConfig
from triptych.runs import open_run
from triptych.runs.interchange import export_run

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("torchrun"), pytest.mark.timeout(900)]
WHICH = ("raw", "ema-0.9", "ema-length-0.1")
TRAINED = [("full-2", 2, name) for name in RECIPES] + [("hybrid", 4, name) for name in (RECIPES[0], CHANGING)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharding")
    train_all(folder / "none", {})
    go_on(folder / "one", 4 * BATCH)
    run_together(4, four, folder, timeout_seconds=600)
    run_together(2, two, folder, timeout_seconds=600)
    go_on(folder / "changing", 3 * BATCH)
    run_together(4, go_on, folder / "changing", 4 * BATCH, timeout_seconds=600)
    return folder


def check_same(one: Path, other: Path) -> None:
    """The same weights and averages, up to rounding."""
    for which in WHICH:
        expected, found = (open_run(path).tensors(weights=which) for path in (one, other))
        assert expected.keys() == found.keys()
        for name, tensor in expected.items():
            # Measured: 4e-14 of a weight's norm at most.
            assert (found[name] - tensor).double().norm() <= 1e-10 * tensor.double().norm() + 1e-12, (which, name)


@pytest.mark.parametrize(("kind", "processes", "name"), TRAINED)
def test_divided_models_have_the_gradients_weights_and_images_of_one_process(folder, kind, processes, name):
    expected = torch.load(folder / f"none/{name}-0.pt")
    parts = [torch.load(folder / kind / f"{name}-{rank}.pt") for rank in range(processes)]
    copies = [parts[:2], parts[2:]] if kind == "hybrid" else [parts]
    for copy in copies:
        for step, gradients in enumerate(expected):
            for parameter, gradient in gradients.items():
                pieces = [part[step][parameter] for part in copy]
                found = torch.cat(pieces) if gradient.ndim else pieces[0]
                assert found.shape == gradient.shape
                assert (found - gradient).norm() <= 1e-10 * gradient.norm() + 1e-13, (step, parameter)
    check_same(folder / "none" / name, folder / kind / name)
    image = f"samples/{2 * BATCH:09d}.png"
    assert kind == "hybrid" or (folder / "none" / name / image).read_bytes() == (folder / kind / name / image).read_bytes()


def test_each_process_keeps_a_part(folder):
    kept = [sum(g.numel() for g in torch.load(folder / f"full-2/adm-digits-{rank}.pt")[0].values()) for rank in range(2)]
    whole = sum(g.numel() for g in torch.load(folder / "none/adm-digits-0.pt")[0].values())
    assert sum(kept) == whole and max(kept) <= 0.51 * whole


def test_any_number_of_processes_goes_on(folder):
    check_same(folder / "one", folder / "changing")  # 4, then 2, then 1, then 4 processes
    formats = {path.parent.name: json.loads(path.read_text())["format"] for path in folder.glob("changing/checkpoints/*/state.json")}
    assert formats == {f"{BATCH:09d}": 2, f"{2 * BATCH:09d}": 2, f"{3 * BATCH:09d}": 1, f"{4 * BATCH:09d}": 2}


def test_four_processes_go_on_to_the_bit(folder):
    for which in WHICH:
        unbroken, broken = (open_run(folder / name).tensors(weights=which) for name in ("unbroken", "broken"))
        assert all(torch.equal(tensor, broken[name]) for name, tensor in unbroken.items())
    states = [load_checkpoint(folder / name / f"checkpoints/{2 * BATCH:09d}").files["optimizer"] for name in ("unbroken", "broken")]
    assert states[0].keys() == states[1].keys() and all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(name.endswith("exp_avg_sq") for name in states[0])


def test_nothing_is_pickled_and_damage_is_named(folder, tmp_path):
    place = tmp_path / f"{BATCH:09d}"
    shutil.copytree(folder / "kept" / place.name, place)
    files = sorted(path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file())
    assert {Path(name).suffix for name in files} == {".safetensors", ".json"}
    assert [name for name in files if name.startswith("model/")] == [
        f"model/shard-{k:05d}-model-00001-of-00001.safetensors" for k in range(1, 5)
    ]
    (place / "model/stray.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"model has a file stray\.safetensors, which was not written there"):
        load_checkpoint(place)
    (place / "model/stray.safetensors").unlink()
    part = place / [name for name in files if name != "state.json"][-1]
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"is damaged or cut short"):
        load_checkpoint(place)
    part.unlink()
    with pytest.raises(CheckpointError, match=r"is missing"):
        load_checkpoint(place)


def test_one_process_samples(folder):
    with in_float64():
        images = [open_run(folder / kind / CHANGING).sample(2, seed=3, device="cpu").images for kind in ("none", "hybrid")]
    assert (images[0] == images[1]).all()


def test_one_process_evaluates_and_exports(folder, tmp_path):
    measured, states = [], []
    for kind in ("none", "hybrid"):
        out = tmp_path / f"{kind}.pt"
        with in_float64():
            run = open_run(folder / kind / "adm-digits")
            measured.append(run.evaluate(count=3, device="cpu", settings=BitsPerDimConfig(steps=2)).arrays)
        export_run(folder / kind / CHANGING, to="nvidia", out=out)
        states.append(torch.load(out, weights_only=True))
    for one, divided in (measured, states):
        assert one.keys() == divided.keys() != set()
    for name, values in measured[0].items():
        np.testing.assert_allclose(measured[1][name], values, rtol=1e-7, err_msg=name)
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, rtol=1e-5, atol=1e-6, msg=name)


class _Runs(nn.ModuleList):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_blocks_are_the_elements_of_lists_that_do_not_run_themselves():
    inner, alone, third = nn.Linear(1, 1), _Runs([nn.Linear(1, 1)]), _Runs()
    lists = nn.ModuleList([nn.ModuleList([inner]), alone, nn.Linear(1, 1)])
    network = nn.Module()
    network.add_module("first", nn.Linear(1, 1))
    network.add_module("second", nn.Sequential(nn.Linear(1, 1), lists))
    network.add_module("third", third)
    assert list(blocks(network)) == [inner, alone, lists[2], third]
