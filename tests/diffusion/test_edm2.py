"""EDM2: its preconditioning and loss against their formulas, its weights, averages and rates."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from triptych.core.batch import Batch, DataSpec
from triptych.core.errors import ConfigError
from triptych.core.model import TrainingProgress
from triptych.core.rng import Rng
from triptych.data.config import DataConfig
from triptych.diffusion.edm2 import EDM2, EDM2Config
from triptych.diffusion.edm2_network import EDM2NetworkConfig
from triptych.diffusion.preconditioned import preconditioned
from triptych.diffusion.unet import NO_LABEL
from triptych.engine.config import OptimConfig, TrainConfig
from triptych.engine.schedule import scheduled_rate
from triptych.recipes.catalogue import load_recipe
from triptych.recipes.config import RunConfig
from triptych.runs import train

SMALL = EDM2Config(network=EDM2NetworkConfig().shrunk(), class_conditional=True)


def built(settings: EDM2Config = SMALL, *, channels: int = 4) -> EDM2:
    """A model of latents (4 channels) of 8 pixels, with gains that are not 0."""
    torch.manual_seed(0)
    model = settings.build(DataSpec(image_size=8, channels=channels, num_classes=3))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_gain"):
                parameter.fill_(0.7)
    return model


def batch_of(count: int, *, channels: int = 4) -> Batch:
    images = torch.randn(count, channels, 8, 8, generator=torch.Generator().manual_seed(1)) / 2
    return Batch(images, torch.arange(count) % 3, torch.arange(count))


class Given:
    """A network that gives 0 and keeps what it was told."""

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        self.told = x, t
        return torch.zeros_like(x)


def test_inputs_and_targets_have_variance_1(float64):
    """Of images of deviation sigma_data, at every noise level: those of the network F, which D is made of."""
    data, count = 0.3, 200_000
    x0 = data * torch.randn(count, 1, 1, 1)
    for sigma in (0.002, 0.1, 0.3, 2.0, 80.0):
        level = torch.full((count, 1, 1, 1), sigma)
        x, given = x0 + level * torch.randn(count, 1, 1, 1), Given()
        zero = preconditioned(given, x, level, sigma_data=data)
        scale = preconditioned(lambda x, t: torch.ones_like(x), x, level, sigma_data=data) - zero
        inputs, t = given.told
        target = (x0 - zero) / scale
        assert inputs.std() == pytest.approx(1, abs=0.01) and target.std() == pytest.approx(1, abs=0.01)
        assert t.shape == (count,) and t[0] == pytest.approx(math.log(sigma) / 4)
        # And it is the target that suppresses least of what the network says: c_skip is the best linear guess.
        assert (target * x).mean() == pytest.approx(0, abs=0.02 * max(1.0, sigma))


def test_labels_are_dropped_in_training_alone():
    model, seen = built(replace(SMALL, label_dropout=0.5), channels=1), []
    model.network.register_forward_pre_hook(lambda module, given: seen.append(given[2]))
    batch, rng = batch_of(100, channels=1), Rng(0, ("denoise", 0), torch.arange(100))
    for training in (True, False):
        model.train(training).loss(model.phases[0], batch, rng)
    assert 30 < int((seen[0] == NO_LABEL).sum()) < 70 and torch.equal(seen[1], batch.labels)


def test_loss_by_hand(float64):
    model = built().eval()
    batch, rng = batch_of(5), Rng(0, ("denoise", 0), torch.arange(5))
    images = batch.images.double()
    sigma = (-0.4 + 1.0 * rng.normal("level", 1, 1, 1)).exp()
    noisy = images + sigma * rng.normal("noise", 4, 8, 8)
    d = model.predict(noisy, sigma, batch.labels)
    u = model.network.uncertainty(sigma.flatten().log() / 4)
    weight = (sigma**2 + 0.25) / (sigma * 0.5) ** 2
    wanted = (weight / u.exp().view(-1, 1, 1, 1) * (d - images) ** 2 + u.view(-1, 1, 1, 1)).sum((1, 2, 3))
    terms = model.loss(model.phases[0], replace(batch, images=images), rng)
    torch.testing.assert_close(terms.loss, wanted)
    torch.testing.assert_close(terms.logged["loss"], wanted / 256)
    torch.testing.assert_close(terms.logged["uncertainty"], u)
    torch.testing.assert_close(terms.logged["weighted_mse"], (weight * (d - images) ** 2).mean((1, 2, 3)))
    torch.testing.assert_close(terms.logged["x0_mse"], (d - images).square().mean((1, 2, 3)))
    assert terms.loss.requires_grad and not any(term.requires_grad for term in terms.logged.values())
    assert u.abs().max() > 0.05, "it matters"


def test_weights_stay_on_their_spheres_and_averages_off(tmp_path: Path):
    """After each step every filter has the length of its fan-in; averages are shorter, for they lie between such weights."""
    model = replace(SMALL, network=replace(SMALL.network, dropout=0.1))
    recipe = RunConfig(
        model=replace(model, class_conditional=False),
        data=DataConfig(source="digits", image_size=8, labels="none", workers=0),
        train=TrainConfig(total_images=48, batch_size=8, ema_rates=(0.8,), ema_warmup=False, sample_count=0, validate_images=0),
        optim=OptimConfig(name="adam", learning_rate=0.3, betas=(0.9, 0.99)),
    )
    run = train(recipe, tmp_path / "run", device="cpu")
    (folder,) = (run.directory / "checkpoints").iterdir()
    lengths = {}
    for name in ("model", "ema-0.8"):
        state = load_file(folder / f"{name}.safetensors")
        weights = [tensor for key, tensor in state.items() if key.endswith(".weight")]
        assert len(weights) > 20
        lengths[name] = torch.cat([weight.flatten(1).square().mean(1).sqrt() for weight in weights])
    assert (lengths["model"] - 1).abs().max() < 1e-3
    assert lengths["ema-0.8"].min() < 0.98 and lengths["ema-0.8"].max() < 1.001


def test_a_step_that_only_lengthens_changes_nothing(float64):
    model = built().eval()
    x, sigma, labels = batch_of(2).images.double(), torch.full((2, 1, 1, 1), 0.7), torch.tensor([0, 2])
    before = model.predict(x, sigma, labels)
    kept = {name: p.detach().clone() for name, p in model.named_parameters() if name.endswith("weight")}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("weight"):
                parameter.mul_(3)
    model.stepped(model.phases[0])
    for name, weight in kept.items():
        torch.testing.assert_close(model.get_parameter(name).detach(), weight, rtol=1e-3, atol=0)
    torch.testing.assert_close(model.predict(x, sigma, labels), before, rtol=1e-2, atol=1e-2)


def test_images_that_are_no_squares():
    with pytest.raises(ConfigError, match="^network: a U-Net takes squares, not images of 8 x 16 pixels; leave out data.width$"):
        SMALL.build(DataSpec(image_size=8, width=16, channels=3, num_classes=3))


@pytest.mark.parametrize(
    ("name", "channels", "rate", "dropout", "length"),
    [
        ("xs", 128, 0.012, 0.0, 1024),
        ("s", 192, 0.010, 0.0, 1024),
        ("m", 256, 0.009, 0.1, 2048),
        ("l", 320, 0.008, 0.1, 1024),
        ("xl", 384, 0.007, 0.1, 640),
    ],
)
def test_published_settings_of_64_pixels(name, channels, rate, dropout, length):
    recipe = load_recipe(f"edm2-img64-{name}")
    model = recipe.model
    assert isinstance(model, EDM2Config)
    assert model.network == EDM2NetworkConfig(num_channels=channels, dropout=dropout)
    assert (model.noise_mean, model.noise_std, model.sigma_data, model.class_conditional) == (-0.8, 1.6, 0.5, True)
    assert (recipe.train.total_images, recipe.train.batch_size) == (length * 2**20, 2048)
    assert set(recipe.train.ema_lengths) == {0.05, 0.1} and recipe.train.snapshot_every == 2**23
    optim = recipe.optim
    assert (optim.name, optim.learning_rate, optim.betas, optim.eps, optim.weight_decay) == ("adam", rate, (0.9, 0.99), 1e-8, 0.0)
    for images in (0, 5_000_000, 35_000 * 2048, 400_000_000):
        found = scheduled_rate(optim.learning_rate, optim, TrainingProgress(images, 2048, recipe.train.total_images))
        wanted = rate / math.sqrt(max(images / (35_000 * 2048), 1)) * min((images + 2048) / 10e6, 1)
        assert found == pytest.approx(wanted)
    assert (model.sampling.sampler, model.sampling.steps, model.sampling.sigma_max) == ("heun", 32, 80)


@pytest.mark.parametrize(
    ("name", "channels", "rate", "dropout", "length"),
    [
        ("xxs", 64, 0.017, 0.0, 2048),
        ("xs", 128, 0.012, 0.0, 2048),
        ("s", 192, 0.010, 0.0, 2048),
        ("m", 256, 0.009, 0.1, 2048),
        ("l", 320, 0.008, 0.1, 1792),
        ("xl", 384, 0.007, 0.1, 1280),
        ("xxl", 448, 0.0065, 0.1, 896),
    ],
)
def test_published_settings_of_latents(name, channels, rate, dropout, length):
    recipe = load_recipe(f"edm2-img512-{name}")
    model = recipe.model
    assert isinstance(model, EDM2Config)
    assert model.network == EDM2NetworkConfig(num_channels=channels, dropout=dropout)
    assert (model.noise_mean, model.noise_std, recipe.data.source, recipe.data.image_size) == (-0.4, 1.0, "latents", 512)
    assert (recipe.train.total_images, recipe.train.batch_size) == (length * 2**20, 2048)
    assert (recipe.optim.learning_rate, recipe.optim.decay_start) == (rate, 70_000 * 2048)


def test_latents_have_no_bounds():
    model, rng = built().eval(), Rng(0, ("sample",), torch.arange(4))
    settings = replace(model.sampling, steps=4, sigma_max=5.0)
    assert model.sample(rng, labels=torch.arange(4) % 3, settings=settings).abs().max() > 1
    images = built(channels=3).eval().sample(rng, labels=torch.arange(4) % 3, settings=settings)
    assert images.abs().max() <= 1
