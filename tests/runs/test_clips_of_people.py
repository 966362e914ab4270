"""Runs with a discriminator of faces: training from files, resumed as if it had not stopped, and what the data has to show."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.shrink import BATCH, shrunk
from tests.contract.small_data import small_data
from triptych.core.errors import ConfigError
from triptych.data.clips import ClipDataConfig
from triptych.engine.checkpoint import checkpoint_path, load_checkpoint
from triptych.gans.crops import CropConfig
from triptych.gans.fs_vid2vid import FewShotVid2VidConfig
from triptych.recipes.catalogue import load_recipe
from triptych.recipes.config import RunConfig
from triptych.runs import train


def config(*, pictures: str = "densepose") -> RunConfig:
    """The small few-shot recipe on clips of label images of such a name, with a discriminator of faces."""
    recipe, data = shrunk("fs-vid2vid-maps64"), load_recipe("fs-vid2vid-maps64").data
    assert isinstance(recipe.model, FewShotVid2VidConfig) and isinstance(data, ClipDataConfig)
    model = replace(recipe.model, discriminator=replace(recipe.model.discriminator, face=CropConfig(weight=10.0).shrunk()))
    data = small_data(replace(data, maps=(), num_classes=(), conditions=(pictures,)))
    schedule = replace(recipe.train, total_images=2 * BATCH, checkpoint_every=BATCH)
    return replace(recipe, model=model, data=data, train=schedule)


@pytest.mark.slow
def test_a_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    whole = train(config(), tmp_path / "whole", device="cpu")
    shutil.copytree(whole.directory, tmp_path / "run")
    shutil.rmtree(checkpoint_path(tmp_path / "run/checkpoints", 2 * BATCH))
    parts = train(config(), tmp_path / "run", device="cpu")
    ends = [load_checkpoint(checkpoint_path(run.directory / "checkpoints", 2 * BATCH)) for run in (whole, parts)]
    assert ends[0].hashes == ends[1].hashes
    before = load_checkpoint(checkpoint_path(whole.directory / "checkpoints", BATCH)).files["model"]
    after = ends[0].files["model"]
    name = "discriminator.net_D_face.discriminator_0.layer0.0.layers.conv.weight_orig"
    assert (after[name] != before[name]).any()


def test_data_that_show_no_face_are_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.discriminator.face.weight: got 10, but no label map shows where a face is"):
        train(config(pictures="sketches"), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run" / "checkpoints").exists()
