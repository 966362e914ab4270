"""A run with averages by half-life: it goes on, and its weights are asked for by the names of their files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.contract.shrink import BATCH, shrunk
from triptych.core.errors import ConfigError
from triptych.core.ramp import Ramp
from triptych.engine.checkpoint import load_newest
from triptych.engine.config import AverageConfig, PhaseOptimConfig
from triptych.runs import open_run, train


def test_weights_are_found_by_the_name_of_their_average(tmp_path: Path) -> None:
    config = shrunk("classifier-digits")
    averages = (AverageConfig(half_life=2 * BATCH, ramp_up=0.5), AverageConfig(half_life=Ramp(start=0, end=90, images=60)))
    settings = replace(config.train, total_images=BATCH, ema_rates=(), averages=averages)
    optim = replace(config.optim, schedule="constant", phases=(PhaseOptimConfig(beta2=Ramp(start=0.9, end=0.99, images=4 * BATCH)),))
    config = replace(config, train=settings, optim=optim)
    train(config, tmp_path / "run", device="cpu")
    run = train(replace(config, train=replace(settings, total_images=2 * BATCH)), tmp_path / "run", device="cpu")
    assert open_run(run.directory).config.train.averages == averages
    checkpoint = load_newest(run.directory / "checkpoints", warn=pytest.fail)
    assert checkpoint is not None and set(checkpoint.files) == {"model", "optimizer", f"ema-{2 * BATCH}", "ema-90"}
    for weights, stem in ((None, f"ema-{2 * BATCH}"), ("ema-90", "ema-90"), ("raw", "model")):
        loaded = run.tensors(weights=weights)
        assert all(torch.equal(loaded[key], tensor) for key, tensor in checkpoint.files[stem].items())
    sums = {stem: sum(tensor.double().sum().item() for tensor in files.values()) for stem, files in checkpoint.files.items()}
    assert len(set(sums.values())) == 4, "all of them differ"
    with pytest.raises(ConfigError, match=f'weights: got "ema-0.99", expected one of raw, ema-{2 * BATCH}, ema-90'):
        run.tensors(weights="ema-0.99")


def test_a_phase_that_the_model_lacks_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    config = shrunk("classifier-digits")
    config = replace(config, optim=replace(config.optim, phases=(PhaseOptimConfig(phase="denoise"),)))
    with pytest.raises(ConfigError, match="optim.phases: got the phase 'denoise', expected one of classify"):
        train(config, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
