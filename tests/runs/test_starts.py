"""What a start of a training looks at: where it goes on, what is there already, whose licence it has, what the model lacks."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.contract.shrink import BATCH, light
from tests.engine.toys import Denoiser
from triptych.core.errors import ConfigError
from triptych.engine.config import LogConfig, OptimConfig, TrainConfig
from triptych.engine.distributed import World
from triptych.engine.run_directory import RunDirectory
from triptych.recipes.config import RunConfig
from triptych.runs import open_run, train, training
from triptych.runs.training import _reporting, prepare_model


def config() -> RunConfig:
    return light("adm-digits-uncond").updated({"train": {"total_images": BATCH, "validate_images": 0}})


@pytest.mark.parametrize("images", [0, 40])
def test_progress_begins_where_the_run_goes_on(tmp_path: Path, images: int) -> None:
    document: Any = SimpleNamespace(
        config=SimpleNamespace(train=SimpleNamespace(total_images=80), log=LogConfig()), to_dict=dict[str, object]
    )
    checkpoint: Any = SimpleNamespace(images_seen=images) if images else None
    with ExitStack() as stack:
        progress = _reporting(RunDirectory(tmp_path), document, stack, checkpoint).progress
        progress.update(images)
        assert progress.images_per_second == 0, "none were seen in this start"
        progress.update(images + 8)
        assert progress.images_per_second > 0


@pytest.mark.parametrize("line", ["", '{"images": 6, "time": 1.0}\n'])
def test_a_log_with_figures_and_no_checkpoint_is_said_to_begin_again_and_an_empty_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").write_text(line)
    monkeypatch.setattr(training, "_run", lambda *given: True)  # no step is taken
    train(config(), tmp_path / "run", device="cpu")
    log = (tmp_path / "run/log.txt").read_text("utf-8")
    assert ("has figures of a training, but no checkpoint to go on from: it begins again at 0 images" in log) == bool(line)


def test_a_run_that_goes_on_keeps_its_licence_whatever_it_is_told_to_begin_with(tmp_path: Path) -> None:
    train(config(), tmp_path / "run", device="cpu")
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    for name in ("other", "run"):
        place = tmp_path / name / "config.json"
        place.write_text(json.dumps(json.loads(place.read_text("utf-8")) | {"licence": f"of the {name}"}))
    assert train(config(), tmp_path / "run", init_from=tmp_path / "other", device="cpu").licence == "of the run"
    assert open_run(tmp_path / "other").licence == "of the other"


def test_a_frozen_network_without_its_file_is_named_before_anything_is_written() -> None:
    model = Denoiser()
    model.frozen_networks = {"vgg": None}
    settings: Any = SimpleNamespace(train=TrainConfig(total_images=64, batch_size=8), optim=OptimConfig())
    spec: Any = SimpleNamespace(clip_length=None)
    with pytest.raises(ConfigError, match=r"^model\.vgg\.weights: missing: give the file of weights of the vgg network"):
        prepare_model(model, settings, spec, World(0, 1, torch.device("cpu")))
