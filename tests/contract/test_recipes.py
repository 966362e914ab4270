"""What every recipe must do; a new recipe is tested the moment it exists."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.kinds import KINDS, able
from tests.contract.moved import first_batch, gradients, moved_model
from tests.contract.shrink import BATCH, RECIPES, light, shrunk
from tests.contract.small_data import full_spec
from tests.engine.toys import START
from tests.float64 import in_float64, widened
from triptych.core.batch import Batch
from triptych.core.config import modules_that_name
from triptych.core.errors import ConfigError
from triptych.core.model import VERBS
from triptych.core.rng import Rng
from triptych.engine.checkpoint import checkpoint_path, load_checkpoint
from triptych.engine.distributed import open_world
from triptych.engine.metric_log import read_metrics
from triptych.engine.schedule import refuse_impossible
from triptych.recipes.catalogue import load_recipe
from triptych.recipes.config import RunConfig
from triptych.runs import Run, open_run, train
from triptych.runs.stored import outline

NAMES = Path(__file__).parent / "state_names.json"
every_recipe = pytest.mark.parametrize("name", RECIPES)
SAMPLERS, UPSAMPLERS, TRANSLATORS = able("sample"), able("upsample"), able("translate")


def each(*names: str) -> pytest.MarkDecorator:
    """The test for each of these recipes; all tests of a recipe in one process, which trains it once."""
    return pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in names])


each_kind = each(*KINDS)


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory) -> Callable[[str], Run]:
    """What trains a shrunk recipe, once, with a checkpoint in the middle."""
    folder = tmp_path_factory.mktemp("whole")
    return functools.cache(lambda name: train(halting(name), folder / name, device="cpu"))


def halting(name: str) -> RunConfig:
    """It has a checkpoint before its last iteration: after two, or the first of clips, which grow in their second batch."""
    config = light(name)
    step = config.train.batch_size * outline(config, config.data.open().spec).slices
    half = step if hasattr(config.data, "length") else 2 * step
    return replace(config, train=replace(config.train, total_images=half + step, checkpoint_every=half))


@every_recipe
def test_json_round_trip(name):
    recipe = load_recipe(name)
    document = json.loads(json.dumps(recipe.to_dict()))
    assert RunConfig.from_dict(document) == recipe
    kind = document["model"]["kind"]
    assert ":" not in kind, "give the configuration a kind_name: files keep it, wherever the class moves"
    assert type(recipe.model).__module__ in modules_that_name(kind), "a run is opened before anything imports the model"


@every_recipe
def test_state_names_are_unchanged(name, request):
    """Names and shapes of the whole state at full size: checkpoints of earlier versions load. --write-state-names notes them."""
    recipe = load_recipe(name)
    model = outline(recipe, full_spec(recipe.data))
    lines = [f"{key} {list(tensor.shape)}" for key, tensor in model.state_dict().items()]
    found = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "tensors": len(lines),
        "sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
    }
    if request.config.getoption("write_state_names"):
        note_state_names(name, found)
    else:
        compare_state_names(name, found)


def compare_state_names(name: str, found: dict[str, Any]) -> None:
    noted = json.loads(NAMES.read_text())
    how = "run `pytest tests/contract --write-state-names` and commit the file"
    assert name in noted, f"{NAMES.name} does not have {name} yet: {how}"
    assert noted[name] == found, f"tensors of {name} differ from {NAMES.name}, so no earlier run opens; if that is meant, {how}"


def note_state_names(name: str, found: dict[str, Any]) -> None:
    """Writes them into the file, and leaves out recipes that are no more."""
    with NAMES.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the tests may run in several processes
        noted = {**json.load(file), name: found}
        file.seek(0)
        file.write(json.dumps({name: noted[name] for name in RECIPES if name in noted}, indent=1) + "\n")
        file.truncate()


def test_state_names_are_noted_when_asked(tmp_path, monkeypatch):
    file = tmp_path / "names.json"
    file.write_text('{"glow-digits": {"parameters": 1}, "glow-removed": {}}')
    monkeypatch.setattr(f"{__name__}.NAMES", file)
    found = {"parameters": 2, "tensors": 1, "sha256": ""}
    for name, reason in (("adm-digits", "does not have adm-digits yet: run"), ("glow-digits", "differ from names.json.*, run")):
        with pytest.raises(AssertionError, match=f"{reason} `pytest tests/contract --write-state-names`"):
            compare_state_names(name, found)
        note_state_names(name, found)
        compare_state_names(name, found)
    assert list(json.loads(file.read_text())) == ["adm-digits", "glow-digits"]


@every_recipe
def test_the_configuration_says_what_the_model_can_do(name):
    config = shrunk(name)
    model = outline(config, config.data.open().spec)
    assert config.model.verbs() == {verb for verb, protocols in VERBS.items() if isinstance(model, protocols)}
    assert config.model.verbs(), "it can do something"


@each_kind
def test_resumed_is_uninterrupted_bit_for_bit(name, tmp_path, whole_run):
    """The run goes on from its checkpoint in the middle as if nothing had come after that."""
    whole = whole_run(name)
    half, end = whole.config.train.checkpoint_every, whole.config.train.total_images
    shutil.copytree(whole.directory, tmp_path / "run")
    shutil.rmtree(checkpoint_path(tmp_path / "run/checkpoints", end))
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == [f"{half:09d}"]
    parts = train(halting(name), tmp_path / "run", device="cpu")
    ends = [load_checkpoint(checkpoint_path(run.directory / "checkpoints", end)) for run in (whole, parts)]
    assert ends[0].hashes == ends[1].hashes
    # What has no loss on held-out images has no best checkpoint, unless an evaluation chooses it.
    assert (ends[0].info["best"] is not None) == bool(whole.load(device="cpu").validated)


@each_kind
def test_a_phase_changes_only_its_own_networks(name):
    """Not a weight, running statistic or vector of spectral norm of another network, nor a gradient."""
    config = shrunk(name)
    model = moved_model(config).train()
    batch = first_batch(config)
    for phase in model.phases:
        model.zero_grad()
        before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        own = tuple(f"{network}." for network in phase.networks)
        for key, parameter in model.named_parameters():
            parameter.requires_grad_(key.startswith(own))
        model.prepare(phase, START)
        model.loss(phase, batch, Rng(0, (phase.name, 0), batch.index)).loss.sum().backward()
        model.stepped(phase)
        for key, tensor in model.state_dict().items():
            assert key.startswith(own) or "." not in key or torch.equal(tensor, before[key]), key
        for key, parameter in model.named_parameters():
            assert (parameter.grad is not None) == key.startswith(own) or (phase.partial and parameter.grad is None), key


@each_kind
def test_microbatches_give_the_gradient_of_the_whole_batch(name, float64):
    config = shrunk(name)
    model = moved_model(config).train()
    if model.couples_samples:
        with pytest.raises(ConfigError, match="samples of a batch affect each other"):
            refuse_impossible(model, replace(config.train, microbatch=4), open_world("cpu"))
        return
    batch = widened(first_batch(config))
    for phase in model.phases:
        whole, parts = (gradients(model, phase, batch, size=size) for size in (BATCH, 4))
        own = {n for n, _ in model.named_parameters() if n.startswith(tuple(f"{network}." for network in phase.networks))}
        assert set(whole) == own or (phase.partial and set(whole) < own)
        assert any(gradient.norm() > 0 for gradient in whole.values())
        for key, gradient in whole.items():
            # Inside the margins of a hinge what real and generated images say to the discriminator's last bias cancels.
            assert gradient.norm() > 0 or phase.partial or (phase.name == "discriminator" and gradient.numel() == 1), key
            assert (parts[key] - gradient).norm() <= 1e-9 * gradient.norm() + 1e-12, key


@each(*SAMPLERS)
def test_image_k_is_the_same_in_every_batch(name, float64):
    config = shrunk(name)
    model = moved_model(config).eval()
    labels = None if getattr(model, "num_classes", None) is None else torch.arange(5)
    rng = Rng(7, ("sample",), torch.arange(5))
    whole = model.sample(rng, labels=labels, settings=model.sampling)
    parts = [model.sample(rng[s], labels=None if labels is None else labels[s], settings=model.sampling) for s in PARTS]
    assert (torch.cat(parts) - whole).abs().max() <= AS_GOOD_AS_EQUAL
    assert whole.shape == (5, config.data.channels, 8, 8) and whole.abs().max() <= 1
    assert whole.std(0).mean() > 0.01, "all samples are alike"


PARTS = slice(0, 1), slice(1, 5)
AS_GOOD_AS_EQUAL = 1e-9
"""Of images in [-1, 1] in float64; measured: 5e-14."""


@each(*UPSAMPLERS)
def test_enlargement_k_is_the_same_in_every_batch(name, float64):
    config = shrunk(name)
    model = moved_model(config).eval()
    size = model.input_size
    images = torch.rand(5, config.data.channels or 3, size, size, generator=torch.Generator().manual_seed(3)) * 2 - 1
    batch, rng = Batch(images, torch.arange(5), torch.arange(5)), Rng(7, ("upsample",), torch.arange(5))
    whole = model.upsample(batch, rng, settings=model.sampling)
    parts = [model.upsample(batch[s], rng[s], settings=model.sampling) for s in PARTS]
    assert (torch.cat(parts) - whole).abs().max() <= AS_GOOD_AS_EQUAL
    assert whole.shape == (5, config.data.channels, 8, 8) and whole.abs().max() <= 1
    other = model.upsample(Batch(images.flip(0), batch.labels, batch.index), rng, settings=model.sampling)
    assert ((other - whole)[:2].abs().amax((1, 2, 3)) > 0.01).all(), "the images that it is given do not matter"


@each(*TRANSLATORS)
def test_translation_k_is_the_same_in_every_batch(name, float64):
    config = shrunk(name)
    model = moved_model(config).eval()
    settings = model.translation
    inputs = model.example(widened(first_batch(config))[:5], settings=settings).inputs
    rng = Rng(7, ("translate",), torch.arange(5))
    with torch.no_grad():
        whole = model.translate(inputs, rng, settings=settings)
        parts = [model.translate({key: tensor[s] for key, tensor in inputs.items()}, rng[s], settings=settings) for s in PARTS]
        other = model.translate({key: tensor.flip(0) for key, tensor in inputs.items()}, rng, settings=settings)
    assert (torch.cat(parts) - whole).abs().max() <= AS_GOOD_AS_EQUAL
    side = config.data.image_size
    assert whole.shape == (5, model.output_channels, side, side) and whole.abs().max() <= 1
    assert ((other - whole)[:2].abs().amax((1, 2, 3)) > 0.01).all(), "what it is given does not matter"


@each(*SAMPLERS)
def test_samples_come_from_the_run_alone(name, whole_run):
    run = whole_run(name)
    opened = open_run(run.directory)
    with in_float64():
        first, second = (opened.sample(3, seed=1, batch_size=size, device="cpu") for size in (3, 2))
    assert first.images.dtype == np.uint8 and first.images.shape == (3, 8, 8, run.config.data.channels)
    assert np.array_equal(first.images, second.images)


def test_clips_grow_from_single_frames_and_a_run_is_as_long_as_that(tmp_path):
    """A batch of single frames, then clips of three; a run that would end before these is refused, and nothing is written."""
    config = shrunk("vid2vid-maps64")
    length = replace(config.data.length, alone=BATCH, double_every=None)
    config = config.updated({"log": {"every": BATCH}, "train": {"total_images": BATCH}, "data": {"length": length.to_dict()}})
    for more, total, last in ((0, BATCH, 0), (1, 2 * BATCH, BATCH)):
        late = config.updated({"train": {"total_images": total}, "data": {"length": replace(length, alone=BATCH + more).to_dict()}})
        with pytest.raises(
            ConfigError, match=f"data.length.alone: got {BATCH + more}, expected at most {last}, where the last step of {total}"
        ):
            train(late, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
    run = train(replace(config, train=replace(config.train, total_images=2 * BATCH)), tmp_path / "run", device="cpu")
    losses = [line for line in read_metrics(run.directory / "metrics.jsonl") if "generator/loss" in line]
    assert ["generator/flow_l1" in line for line in losses] == [False, True]
