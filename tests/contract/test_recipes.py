"""What every recipe must do; a new recipe is tested the moment it exists."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.contract.shrink import BATCH, RECIPES, shrunk
from triptych.core.batch import Batch, DataSpec
from triptych.core.model import Model, Sampler, Upsampler
from triptych.core.rng import Rng
from triptych.data.loader import Loader
from triptych.data.source import open_data
from triptych.engine.checkpoint import checkpoint_path, load_checkpoint
from triptych.recipes.catalogue import load_recipe
from triptych.recipes.config import RunConfig
from triptych.runs import open_run, train
from triptych.runs.run import build

NAMES = Path(__file__).parent / "state_names.json"
pytestmark = pytest.mark.parametrize("name", RECIPES)


def moved_model(config: RunConfig) -> Model:
    """The model with every parameter moved off its initial value, so that no gradient is zero by construction."""
    model = build(config, open_data(config.data).spec)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def first_batch(config: RunConfig):
    loader = Loader(open_data(config.data).train, batch_size=BATCH, seed=0, workers=0)
    return next(loader.batches(0)).to("cpu")


def test_json_round_trip(name):
    recipe = load_recipe(name)
    document = json.loads(json.dumps(recipe.to_dict()))
    assert RunConfig.from_dict(document) == recipe
    assert "kind" in document["model"]


def test_state_names_are_unchanged(name):
    """Names and shapes of the whole state at full size: checkpoints of earlier versions load. A new recipe is added to the file."""
    recipe = load_recipe(name)
    classes = 10 if recipe.data.source in ("digits", "mnist", "cifar10") else 1000
    labelled = recipe.data.labels != "none"
    grey = recipe.data.source in ("digits", "mnist")
    spec = DataSpec(
        image_size=recipe.data.image_size,
        channels=recipe.data.channels or (1 if grey else 3),
        num_classes=classes if labelled else None,
        class_names=tuple(map(str, range(classes))) if labelled else None,
    )
    with torch.device("meta"):
        model = recipe.model.build(spec)
    lines = [f"{key} {list(tensor.shape)}" for key, tensor in model.state_dict().items()]
    found = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "tensors": len(lines),
        "sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
    }
    known = json.loads(NAMES.read_text())
    assert known.get(name) == found, f"{name}: {json.dumps(found)}"


def test_resumed_is_uninterrupted_bit_for_bit(name, tmp_path):
    config = shrunk(name)
    # The length of the run is part of a decaying schedule; the shorter run must not decay sooner.
    config = replace(config, optim=replace(config.optim, schedule="constant"))
    whole = train(config, tmp_path / "whole", device="cpu")
    train(replace(config, train=replace(config.train, total_images=2 * BATCH)), tmp_path / "parts", device="cpu")
    parts = train(config, tmp_path / "parts", device="cpu")
    ends = [load_checkpoint(checkpoint_path(run.directory / "checkpoints", 4 * BATCH)) for run in (whole, parts)]
    assert ends[0].hashes == ends[1].hashes
    assert ends[0].info["best"] is not None


def test_microbatches_give_the_gradient_of_the_whole_batch(name):
    config = shrunk(name)
    model = moved_model(config).train()
    if model.couples_samples:
        pytest.skip("its samples affect each other")
    batch = first_batch(config)
    for phase in model.phases:
        gradients = []
        for size in (BATCH, 4):
            model.zero_grad()
            rng = Rng(0, (phase.name, 0), batch.index)
            for start in range(0, BATCH, size):
                part = slice(start, start + size)
                (model.loss(phase, batch[part], rng[part]).loss.sum() / BATCH).backward()
            own = [f"{network}." for network in phase.networks]
            gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if n.startswith(tuple(own))})
        for key, gradient in gradients[0].items():
            assert gradient.norm() > 0, key
            assert (gradients[1][key] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-9, key


def test_image_k_is_the_same_in_every_batch(name, tmp_path):
    config = shrunk(name)
    model = moved_model(config).eval()
    if not isinstance(model, Sampler):
        pytest.skip("it makes no samples")
    labels = None if getattr(model, "num_classes", None) is None else torch.arange(5)
    rng = Rng(7, ("sample",), torch.arange(5))
    whole = model.sample(rng, labels=labels, settings=model.sampling)
    parts = [
        model.sample(rng[s], labels=None if labels is None else labels[s], settings=model.sampling) for s in (slice(0, 1), slice(1, 5))
    ]
    assert (torch.cat(parts) - whole).abs().max() <= 2 / 255
    assert whole.shape == (5, config.data.channels, 8, 8) and whole.abs().max() <= 1
    assert whole.std(0).mean() > 0.01, "all samples are alike"


def test_translation_k_is_the_same_in_every_batch(name):
    config = shrunk(name)
    model = moved_model(config).eval()
    if not isinstance(model, Upsampler):
        pytest.skip("it takes no images")
    size = model.input_size
    images = torch.rand(5, config.data.channels or 3, size, size, generator=torch.Generator().manual_seed(3)) * 2 - 1
    batch, rng = Batch(images, torch.arange(5), torch.arange(5)), Rng(7, ("upsample",), torch.arange(5))
    whole = model.upsample(batch, rng, settings=model.sampling)
    parts = [model.upsample(batch[s], rng[s], settings=model.sampling) for s in (slice(0, 1), slice(1, 5))]
    assert (torch.cat(parts) - whole).abs().max() <= 2 / 255
    assert whole.shape == (5, config.data.channels, 8, 8) and whole.abs().max() <= 1
    other = model.upsample(Batch(images.flip(0), batch.labels, batch.index), rng, settings=model.sampling)
    assert ((other - whole)[:2].abs().amax((1, 2, 3)) > 0.01).all(), "the images that it is given do not matter"


def test_samples_come_from_the_run_alone(name, tmp_path):
    config = shrunk(name)
    run = train(replace(config, train=replace(config.train, total_images=BATCH)), tmp_path / "run", device="cpu")
    if not isinstance(run.load(device="cpu"), Sampler):
        pytest.skip("it makes no samples")
    opened = open_run(tmp_path / "run")
    first, second = (opened.sample(3, seed=1, batch_size=size, device="cpu") for size in (3, 2))
    assert first.images.dtype == np.uint8 and first.images.shape == (3, 8, 8, config.data.channels)
    assert np.abs(first.images.astype(int) - second.images.astype(int)).max() <= 1
