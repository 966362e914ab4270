"""What every recipe must do; a new recipe is tested the moment it exists."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.contract.moved import first_batch, gradients, moved_model
from tests.contract.shrink import BATCH, RECIPES, shrunk
from tests.contract.small_data import SIDE, full_spec
from triptych.core.batch import Batch
from triptych.core.model import Sampler, Translator, Upsampler
from triptych.core.rng import Rng
from triptych.engine.checkpoint import checkpoint_path, load_checkpoint
from triptych.gans.model import GANConfig
from triptych.recipes.catalogue import load_recipe
from triptych.recipes.config import RunConfig
from triptych.runs import open_run, train

NAMES = Path(__file__).parent / "state_names.json"
pytestmark = pytest.mark.parametrize("name", RECIPES)


def test_json_round_trip(name):
    recipe = load_recipe(name)
    document = json.loads(json.dumps(recipe.to_dict()))
    assert RunConfig.from_dict(document) == recipe
    assert "kind" in document["model"]


def test_state_names_are_unchanged(name):
    """Names and shapes of the whole state at full size: checkpoints of earlier versions load. A new recipe is added to the file."""
    recipe = load_recipe(name)
    with torch.device("meta"):
        model = recipe.model.build(full_spec(recipe.data))
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
        model.prepare(phase)
        model.loss(phase, batch, Rng(0, (phase.name, 0), batch.index)).loss.sum().backward()
        model.stepped(phase)
        for key, tensor in model.state_dict().items():
            assert key.startswith(own) or "." not in key or torch.equal(tensor, before[key]), key
        for key, parameter in model.named_parameters():
            assert (parameter.grad is not None) == key.startswith(own), key


def test_microbatches_give_the_gradient_of_the_whole_batch(name, monkeypatch):
    config = shrunk(name)
    if isinstance(config.model, GANConfig):
        # In float32 a rectifier may turn its sign with the batch it is computed in, and what real and generated images say nearly cancels.
        in_float64(monkeypatch)
    model = moved_model(config).train()
    if model.couples_samples:
        pytest.skip("its samples affect each other")
    batch = widened(first_batch(config))
    for phase in model.phases:
        whole, parts = (gradients(model, phase, batch, size=size) for size in (BATCH, 4))
        assert set(whole) == {n for n, _ in model.named_parameters() if n.startswith(tuple(f"{network}." for network in phase.networks))}
        for key, gradient in whole.items():
            # Inside the margins of a hinge what real and generated images say to the discriminator's last bias cancels.
            assert gradient.norm() > 0 or (phase.name == "discriminator" and gradient.numel() == 1), key
            assert (parts[key] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-9, key


def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """New models and what is drawn are of float64 from here to the end of the test."""
    monkeypatch.setattr(Rng, "normal", lambda self, *shape, drawn=Rng.normal: drawn(self, *shape).double())
    torch.set_default_dtype(torch.float64)


@pytest.fixture(autouse=True)
def float32_again():
    yield
    torch.set_default_dtype(torch.float32)


def widened(batch: Batch) -> Batch:
    """The batch with its images in the type of new models."""
    wide = torch.get_default_dtype()
    inputs = {key: values.to(wide) if values.is_floating_point() else values for key, values in batch.inputs.items()}
    return replace(batch, images=batch.images.to(wide), inputs=inputs)


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


def test_enlargement_k_is_the_same_in_every_batch(name):
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


def test_translation_k_is_the_same_in_every_batch(name):
    config = shrunk(name)
    model = moved_model(config).eval()
    if not isinstance(model, Translator):
        pytest.skip("it translates no images")
    settings = model.translation
    inputs = model.example(first_batch(config)[:5], settings=settings).inputs
    rng = Rng(7, ("translate",), torch.arange(5))
    with torch.no_grad():
        whole = model.translate(inputs, rng, settings=settings)
        parts = [
            model.translate({key: tensor[s] for key, tensor in inputs.items()}, rng[s], settings=settings)
            for s in (slice(0, 1), slice(1, 5))
        ]
        other = model.translate({key: tensor.flip(0) for key, tensor in inputs.items()}, rng, settings=settings)
    assert (torch.cat(parts) - whole).abs().max() <= 2 / 255
    assert whole.shape == (5, model.output_channels, SIDE, SIDE) and whole.abs().max() <= 1
    assert ((other - whole)[:2].abs().amax((1, 2, 3)) > 0.01).all(), "what it is given does not matter"


def test_samples_come_from_the_run_alone(name, tmp_path):
    config = shrunk(name)
    run = train(replace(config, train=replace(config.train, total_images=BATCH)), tmp_path / "run", device="cpu")
    if not isinstance(run.load(device="cpu"), Sampler):
        pytest.skip("it makes no samples")
    opened = open_run(tmp_path / "run")
    first, second = (opened.sample(3, seed=1, batch_size=size, device="cpu") for size in (3, 2))
    assert first.images.dtype == np.uint8 and first.images.shape == (3, 8, 8, config.data.channels)
    assert np.abs(first.images.astype(int) - second.images.astype(int)).max() <= 1
