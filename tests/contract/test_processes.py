"""Every recipe on two processes is the recipe on one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.contract.shrink import BATCH, RECIPES
from tests.processes import run_torchrun
from triptych.engine.metric_log import read_metrics
from triptych.gans.model import GANConfig
from triptych.runs import open_run
from triptych.runs.run import build


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    made = []
    for processes in (1, 2):
        made.append(tmp_path_factory.mktemp(f"processes{processes}"))
        done = run_torchrun(processes, "tests/contract/processes_worker.py", str(made[-1]))
        assert done.returncode == 0, done.stderr[-3000:]
    return made[0], made[1]


@pytest.mark.xdist_group("torchrun")
@pytest.mark.parametrize("name", RECIPES)
def test_two_processes_train_as_one(folders, name):
    one, two = (open_run(folder / name) for folder in folders)
    model = build(one.config, one.spec)
    fresh = model.state_dict()
    weights, other = one.tensors(weights="raw"), two.tensors(weights="raw")
    moved = {key: (tensor - fresh[key]).double().norm() for key, tensor in weights.items()}
    # What moves no further than this moves by rounding: biases that norms take out again.
    floor = 1e-7 + 1e-4 * max(moved[key] for key, _ in model.named_parameters())
    for key, tensor in weights.items():
        # Rounding moves a step of Adam by far less than the step itself, but where a gradient is next to nothing: there its sign may
        # turn. One such element of 64 is worth 1/40 of a bias's movement (seen in classifier-imagenet64); other noise would be worth all.
        assert (other[key] - tensor).double().norm() <= 5e-2 * moved[key] + floor, key
    lines = [read_metrics(run.directory / "metrics.jsonl") for run in (one, two)]
    names, other_names = ([name for line in part for name in line if "/loss" in name] for part in lines)  # by group too, and validation's
    losses, other_losses = ([line[name] for line in part for name in line if "/loss" in name] for part in lines)
    assert names and names == other_names
    # Scores of a GAN go both ways from 0, and its losses are small differences of them.
    np.testing.assert_allclose(losses, other_losses, rtol=1e-3 if isinstance(one.config.model, GANConfig) else 1e-4)


@pytest.mark.xdist_group("torchrun")
@pytest.mark.parametrize("name", RECIPES)
def test_two_processes_sample_as_one(folders, name):
    if not (folders[0] / f"{name}.npz").exists():
        pytest.skip("it makes no samples")
    one, two = (np.load(folder / f"{name}.npz") for folder in folders)
    assert one["arr_0"].shape[0] == BATCH + 1
    assert np.abs(one["arr_0"].astype(int) - two["arr_0"]).max() <= 1
    assert ("arr_1" in one) == ("arr_1" in two) and ("arr_1" not in one or (one["arr_1"] == two["arr_1"]).all())
