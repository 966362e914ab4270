"""Training and sampling on a CUDA device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.contract.shrink import BATCH, shrunk
from triptych.engine.checkpoint import checkpoint_path, load_checkpoint
from triptych.engine.metric_log import read_metrics
from triptych.runs import train

pytestmark = pytest.mark.gpu


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
