"""What is opened from a checkpoint is what was saved, for every kind of recipe; nothing is drawn, and nothing stays without values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.contract.kinds import KINDS
from tests.contract.moved import moved_model
from tests.contract.shrink import BATCH, shrunk
from triptych.engine.checkpoint import save_checkpoint
from triptych.engine.run_directory import RunDirectory
from triptych.recipes.config import RunConfig
from triptych.runs import open_run, train
from triptych.runs.document import RunDocument


@pytest.mark.parametrize("name", KINDS)
def test_an_opened_model_is_the_one_that_was_saved(name, tmp_path, monkeypatch):
    config = shrunk(name)
    saved = moved_model(config).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    run = saved_run(saved, config, tmp_path)
    built_on = devices_of_builds(config, monkeypatch)
    theirs = tensors(open_run(run).load(weights="raw", device="cpu"))
    assert built_on == ["meta"]
    for key, tensor in tensors(saved).items():
        if ".frozen_" in key:  # of a perceptual loss, which is for training alone
            continue
        same = theirs.pop(key)
        assert same.device == tensor.device and same.dtype == tensor.dtype and torch.equal(same, tensor), key
        assert same.stride() == tensor.stride() and same.requires_grad == tensor.requires_grad, key
    assert not theirs


@pytest.mark.slow
def test_a_run_that_goes_on_draws_no_weights(tmp_path, monkeypatch):
    config = shrunk("classifier-digits")
    built_on = devices_of_builds(config, monkeypatch)
    train(replace(config, train=replace(config.train, total_images=BATCH)), tmp_path, device="cpu")
    train(replace(config, train=replace(config.train, total_images=2 * BATCH)), tmp_path, device="cpu")
    assert built_on == ["cpu", "meta"]


def devices_of_builds(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where models of the configuration's class are built from here on."""
    kind, found = type(config.model), []
    build = kind.build

    def noted(self: Any, spec: Any) -> Any:
        found.append(torch.empty(()).device.type)
        return build(self, spec)

    monkeypatch.setattr(kind, "build", noted)
    return found


def saved_run(model: Any, config: RunConfig, folder: Any) -> Any:
    directory = RunDirectory(folder / "run")
    directory.create()
    directory.write_config(RunDocument(config, config.data.open().spec, None).to_dict())
    state = {key: tensor.detach() for key, tensor in model.state_dict().items()}
    save_checkpoint(directory.checkpoints, images_seen=0, files={"model": state}, info={"log2_loss_scale": {}, "best": None})
    return directory.root


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor that the model holds: parameters, buffers, saved or not, and those in other attributes."""
    found = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
    for name, module in model.named_modules():
        attributes = {key: value for key, value in vars(module).items() if key not in ("_parameters", "_buffers", "_modules")}
        found |= {f"{name}{path}": tensor for path, tensor in held(attributes)}
    return found


def held(value: Any, depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """The tensors inside containers and plain objects, by where they are."""
    if isinstance(value, Tensor):
        yield "", value
    if isinstance(value, nn.Module | type | Tensor) or depth > 5:
        return
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    parts = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    for key, part in parts.items():
        yield from ((f".{key}{path}", tensor) for path, tensor in held(part, depth + 1))
