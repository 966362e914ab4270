"""Recipes of Glow, StyleGAN2 and autoencoders against what their papers and programs say, in their own units."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from triptych.core.batch import DataSpec
from triptych.engine.config import TrainConfig
from triptych.flows.glow import GlowConfig
from triptych.gans.kl_autoencoder import KLAutoencoderConfig
from triptych.gans.stylegan2 import StyleGAN2Config
from triptych.interop.glow.commands import training
from triptych.interop.glow.flags import read_flags
from triptych.recipes.catalogue import load_recipe

GLOW = {
    "glow-cifar10": (8, 32, 3, 32, "affine", 8, None, 44_603_604),
    "glow-cifar10-cond": (8, 32, 3, 32, "additive", 5, 10, 38_397_320),
    "glow-imagenet32": (8, 32, 3, 48, "affine", 8, None, 66_861_588),
    "glow-imagenet32-cond": (8, 32, 3, 48, "additive", 5, 1000, 57_695_876),
    "glow-imagenet64": (8, 64, 4, 48, "affine", 8, None, 112_377_540),
    "glow-lsun-bedroom": (8, 64, 3, 48, "affine", 8, None, 66_861_588),
    "glow-lsun-church": (8, 64, 3, 48, "affine", 8, None, 66_861_588),
    "glow-lsun-tower": (8, 64, 3, 48, "affine", 8, None, 66_861_588),
    "glow-lsun128": (40, 128, 5, 64, "additive", 5, None, 200_432_868),
    "glow-celebahq256": (40, 256, 6, 32, "additive", 5, None, 175_099_620),
}
"""Processes, image size, levels, depth, coupling, bits, classes (openai/glow, README) and parameters."""


@pytest.mark.parametrize("name", GLOW)
def test_glow(name: str) -> None:
    """A process has 64 images of 32 pixels a step, 256 for the first one, or as many pixels of others; the rate rises over ten epochs.

    An epoch is 50,000 images of 32 pixels, whatever the data; in it, beta2 of Adamax forgets once.
    """
    recipe, (processes, size, levels, depth, coupling, bits, classes, count) = load_recipe(name), GLOW[name]
    model, optim, area = recipe.model, recipe.optim, (size // 32) ** 2
    assert isinstance(model, GlowConfig) and recipe.data.image_size == size
    assert (model.levels, model.depth, model.width, model.coupling, model.bits) == (levels, depth, 512, coupling, bits)
    assert (model.learn_top, model.permutation, model.class_conditional, model.class_weight) == (
        True,
        "conv",
        *((True, 0.01) if classes else (False, 0)),
    )
    assert (recipe.train.batch_size, model.init_images) == (processes * 64 // area, 256 // area)
    assert optim.warmup_images == 10 * 50_000 // area
    steps = math.ceil(50_000 / (64 * processes))
    assert optim.betas == (0.9, pytest.approx(1 - 1 / steps, abs=1e-5))
    assert (optim.name, optim.learning_rate, optim.schedule, optim.weight_decay) == ("adamax-glow", 0.001, "constant", 0)
    assert not recipe.data.flip and recipe.data.augment == ("shift" if "cifar10" in name else "none")
    with torch.device("meta"):
        made = model.build(DataSpec(image_size=size, channels=3, num_classes=classes))
    assert sum(parameter.numel() for parameter in made.parameters()) == count


def test_glow_of_128_pixels_is_what_the_command_of_the_readme_becomes() -> None:
    """On its 40 processes; memory, average and length are our own."""
    words = "--problem lsun --category tower --image_size 128 --n_level 5 --depth 64 --flow_permutation 2 --flow_coupling 0 --seed 0"
    flags = read_flags([*words.split(), "--learntop", "--lr", "0.001", "--n_bits_x", "5", "--data_dir", "x"], processes=40)
    theirs, ours = training(flags, lambda note: None).rescaled(40), load_recipe("glow-lsun128")
    assert isinstance(ours.model, GlowConfig) and isinstance(theirs.model, GlowConfig)
    assert replace(ours.model, memory=theirs.model.memory, sampling=theirs.model.sampling) == theirs.model
    assert replace(ours.data, channels=3, path="x/tower") == theirs.data and ours.optim == theirs.optim
    for name in ("batch_size", "precision", "compile", "validate_images", "sample_count", "seed"):
        assert getattr(ours.train, name) == getattr(theirs.train, name), name


STYLEGAN2 = {
    # batch, group, channels (times 32768), rate, gamma, half-life (thousand images), layers, length (million images), mirrored
    "stylegan2-ffhq1024": (32, 4, 1, 0.002, 10, 10, 8, 25, True),
    "stylegan2-paper256": (64, 8, 0.5, 0.0025, 1, 20, 8, 25, True),
    "stylegan2-paper512": (64, 8, 1, 0.0025, 0.5, 20, 8, 25, True),
    "stylegan2-paper1024": (32, 4, 1, 0.002, 2, 10, 8, 25, True),
    "stylegan2-cifar10": (64, 32, 1, 0.0025, 0.01, 500, 2, 100, False),
    "stylegan2-cifar10-cond": (64, 32, 1, 0.0025, 0.01, 500, 2, 100, False),
    "stylegan2-auto1024": (4, 4, 1, 0.002, 0.0002 * 1024**2 / 4, 1.25, 2, 25, False),
}
"""The configurations of StyleGAN2-ADA's program: its `stylegan2`, `paper...`, `cifar`, and `auto` of one GPU."""


@pytest.mark.parametrize("name", STYLEGAN2)
def test_stylegan2(name: str) -> None:
    recipe, (batch, group, channels, rate, gamma, half_life, layers, millions, mirrored) = load_recipe(name), STYLEGAN2[name]
    model, train, (average,) = recipe.model, recipe.train, recipe.train.all_averages
    assert isinstance(model, StyleGAN2Config)
    assert (train.batch_size, train.total_images, recipe.optim.learning_rate) == (batch, millions * 1_000_000, rate)
    assert (model.generator.base_channels, model.discriminator.base_channels) == (channels * 32_768, channels * 32_768)
    assert (model.discriminator.group_size, model.generator.mapping_layers, model.discriminator.mapping_layers) == (group, layers, 8)
    assert model.penalty.r1_gamma == pytest.approx(gamma) and model.penalty.every == 16
    ramped = "cifar10" in name or "auto" in name
    assert (average.half_life, average.ramp_up) == (half_life * 1000, 0.05 if ramped else None)
    assert (model.path.weight, model.path.every, model.style_mixing) == ((0, 4, 0) if "cifar10" in name else (2, 4, 0.9))
    assert model.discriminator.architecture == ("plain" if "cifar10" in name else "residual")
    assert (model.ada.target, model.ada.every, model.ada.images) == (None if name == "stylegan2-ffhq1024" else 0.6, 4, 500_000)
    assert recipe.data.flip == mirrored


@pytest.mark.parametrize(("name", "factor", "channels"), [("autoencoder-photos", 8, 4), ("autoencoder-photos-f4", 4, 3)])
def test_autoencoders(name: str, factor: int, channels: int) -> None:
    """latent-diffusion's KL-f8 and KL-f4: rate 4.5e-6 times the batch, KL 1e-6, the discriminator from step 50,001 on with weight 0.5."""
    recipe = load_recipe(name)
    model, train, optim = recipe.model, recipe.train, recipe.optim
    assert isinstance(model, KLAutoencoderConfig)
    assert (model.network.factor, model.network.latent_channels, model.network.num_blocks) == (factor, channels, 2)
    assert optim.learning_rate == pytest.approx(4.5e-6 * train.batch_size)
    assert (optim.name, optim.betas, optim.schedule) == ("adam", (0.5, 0.9), "constant")
    assert (model.kl_weight, model.adversarial_weight, model.adaptive) == (1e-6, 0.5, True)
    assert model.adversarial_start == 50_000 * train.batch_size
    assert (recipe.data.image_size, recipe.data.crop) == (256, "random") and isinstance(train, TrainConfig)


@pytest.mark.parametrize("name", ["stylegan2-auto64", "stylegan2-ffhq1024", "stylegan2-cifar10", "r3gan-ffhq256", "r3gan-imagenet64"])
def test_gans_from_noise_are_watched_by_the_best_network_that_is_there(name: str) -> None:
    train = load_recipe(name).train
    watched = train.evaluate_every, train.evaluate_metrics[0], train.evaluate_features, train.evaluate_count, train.best_by
    assert watched == (train.checkpoint_every, "frechet", "any", 5_000, "frechet")
