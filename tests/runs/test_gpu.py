"""Training and sampling on a CUDA device."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.contract.kinds import KINDS
from tests.contract.moved import first_batch, gradients, moved_model
from tests.contract.shrink import BATCH, light, shrunk
from tests.float64 import widened
from triptych.engine.checkpoint import checkpoint_path, load_checkpoint
from triptych.engine.metric_log import read_metrics
from triptych.runs import train

pytestmark = pytest.mark.gpu
each_kind = pytest.mark.parametrize("name", KINDS)


def config(**changes):
    """adm-digits, shrunk, with a constant learning rate; `changes` by section."""
    shrunk_config = shrunk("adm-digits")
    constant = replace(shrunk_config, optim=replace(shrunk_config.optim, schedule="constant"))
    return constant.updated(changes)


@pytest.mark.parametrize("compile_", ["off", "on"])
@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_losses_are_those_of_a_cpu(tmp_path, precision, compile_):
    settings = {"precision": precision, "compile": compile_, "loss_scale": 2.0**10}
    runs = [
        train(config(train=settings, log={"every": BATCH}), tmp_path / "cuda", device="cuda"),
        train(config(train={"compile": "off"}, log={"every": BATCH}), tmp_path / "cpu", device="cpu"),
    ]
    losses = [[line["denoise/loss"] for line in read_metrics(run.directory / "metrics.jsonl") if "denoise/loss" in line] for run in runs]
    assert len(losses[0]) == len(losses[1]) == 4
    assert np.allclose(*losses, rtol=1e-3 if precision == "float32" else 5e-2)


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_a_resume_ends_with_the_same_bytes(tmp_path, precision):
    start = config(train={"precision": precision})
    whole = train(start, tmp_path / "whole", device="cuda")
    train(start.updated({"train": {"total_images": 2 * BATCH}}), tmp_path / "parts", device="cuda")
    parts = train(start, tmp_path / "parts", device="cuda")
    ends = [load_checkpoint(checkpoint_path(run.directory / "checkpoints", 4 * BATCH)) for run in (whole, parts)]
    assert ends[0].hashes == ends[1].hashes


def test_samples_are_those_of_a_cpu(tmp_path):
    run = train(config(), tmp_path / "run", device="cuda")
    on_gpu, on_cpu = (run.sample(5, seed=1, batch_size=2, device=device).images.astype(int) for device in ("cuda", "cpu"))
    assert np.abs(on_gpu - on_cpu).max() <= 2


@each_kind
def test_gradients_of_each_kind_are_those_of_a_cpu(name, float64):
    settings = shrunk(name)
    on_cpu, on_gpu = moved_model(settings).train(), moved_model(settings).train()
    on_gpu.to("cuda", memory_format=torch.channels_last)
    batches = {device: widened(first_batch(settings, device=device)) for device in ("cpu", "cuda")}
    for phase in on_cpu.phases:
        expected, found = gradients(on_cpu, phase, batches["cpu"]), gradients(on_gpu, phase, batches["cuda"])
        assert expected.keys() == found.keys()
        # Normal draws are of float32, rounded by each device in its way.
        scale = max(gradient.norm() for gradient in expected.values())
        for key, gradient in expected.items():
            assert (found[key].cpu() - gradient).norm() <= 1e-4 * gradient.norm() + 1e-6 * scale, key


@each_kind
def test_a_resume_of_each_kind_ends_with_the_same_bytes(name, tmp_path):
    half = (1 if hasattr(light(name).data, "length") else 2) * light(name).train.batch_size  # clips take long
    settings = light(name).updated({"train": {"compile": "off", "total_images": 2 * half, "checkpoint_every": half}})
    whole = train(settings, tmp_path / "whole", device="cuda")
    shutil.copytree(whole.directory, tmp_path / "parts")
    shutil.rmtree(checkpoint_path(tmp_path / "parts/checkpoints", 2 * half))
    parts = train(settings, tmp_path / "parts", device="cuda")
    ends = [load_checkpoint(checkpoint_path(run.directory / "checkpoints", 2 * half)) for run in (whole, parts)]
    assert ends[0].hashes == ends[1].hashes


@each_kind
def test_compiled_networks_of_each_kind_have_the_same_losses(name, tmp_path):
    batch = light(name).train.batch_size
    settings = light(name).updated({"train": {"total_images": batch}, "log": {"every": batch}})
    lines = []
    for wish in ("off", "on"):
        run = train(settings.updated({"train": {"compile": wish}}), tmp_path / wish, device="cuda")
        lines.append(next(line for line in read_metrics(run.directory / "metrics.jsonl") if any(name.endswith("/loss") for name in line)))
    names = [name for name in lines[0] if name.endswith("/loss") and not name.startswith("validation")]
    assert names
    for loss in names:
        # The convolutions of float32 are those of TF32.
        assert lines[1][loss] == pytest.approx(lines[0][loss], rel=2e-2, abs=1e-3), loss
