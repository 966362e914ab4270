"""The recipes of R3GAN against the paper's table of settings, in its units, and the published numbers of parameters."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch

from triptych.core.batch import DataSpec
from triptych.core.model import Phase, TrainingProgress
from triptych.core.ramp import Ramp, value_at
from triptych.engine.config import OptimConfig, PhaseOptimConfig
from triptych.engine.schedule import step_settings
from triptych.gans.ada import ADAConfig
from triptych.gans.r3gan import R3GANConfig
from triptych.recipes.catalogue import load_recipe


class Row(NamedTuple):
    """Of the table (arXiv 2501.05441, appendix D): images in millions, of which an iteration counts one batch."""

    batch: int
    duration: float
    burn_in: float
    gamma: float
    half_life: float
    p: float
    half_stages: int
    parameters: tuple[int, int]
    "Of the generator and of the discriminator."


TABLE = {
    "r3gan-cifar10": Row(512, 250, 20, 0.05, 5, 0.55, 3, (20_732_160, 20_683_776)),
    "r3gan-cifar10-cond": Row(512, 250, 20, 0.05, 5, 0.55, 3, (20_781_952, 21_280_512)),
    "r3gan-ffhq64": Row(256, 100, 20, 2, 0.5, 0.3, 4, (22_429_824, 22_381_440)),
    "r3gan-ffhq256": Row(256, 100, 20, 150, 0.5, 0.3, 4, (23_057_952, 23_009_568)),
    "r3gan-imagenet32": Row(4096, 1000, 200, 0.5, 50, 0.5, 3, (82_914_304, 86_548_992)),
    "r3gan-imagenet64": Row(4096, 1000, 200, 1, 50, 0.4, 4, (103_570_432, 107_205_120)),
}


@pytest.mark.parametrize("name", TABLE)
def test_published_settings(name: str) -> None:
    config, row = load_recipe(name), TABLE[name]
    model, (average,) = config.model, config.train.all_averages
    assert isinstance(model, R3GANConfig) and model.fresh_images, "an iteration draws two batches of real images, the table counts one"
    phase = next(phase for phase in on_meta(name).phases if phase.name == "generator")
    assert config.train.batch_size == row.batch and config.train.total_images == 2e6 * row.duration
    assert config.data.flip and config.train.precision == "bf16" and config.optim.betas[0] == 0 and config.optim.eps == 1e-8
    for share in (0, 0.1, 0.5, 1, 2):  # of the burn-in
        seen = round(2e6 * share * row.burn_in)
        way = 0.5 * (1 - math.cos(math.pi * min(share, 1)))
        progress = TrainingProgress(images_seen=seen, iteration_images=2 * row.batch, total_images=config.train.total_images)
        step = step_settings(config.optim, phase, progress)
        assert step.learning_rate == pytest.approx(2e-4 + way * (5e-5 - 2e-4))
        assert (step.beta1, step.beta2) == (0, pytest.approx(0.9 + way * 0.09)) and step.clip_norm is None
        for gamma in (model.penalty.r1_gamma, model.penalty.r2_gamma):
            assert value_at(gamma, seen) == pytest.approx(row.gamma + way * (row.gamma / 10 - row.gamma))
        assert value_at(model.ada.p, seen) == pytest.approx(way * row.p)
        # The average of the paper: 0.5^(batch / half-life), and the weights themselves at first.
        rate = 0.5 ** (row.batch / (1e6 * way * row.half_life)) if way else 0
        assert average.rate_at(seen, images=2 * row.batch) == pytest.approx(rate)


RATES = {name: (2e-4, 5e-5, round(2e6 * row.burn_in)) for name, row in TABLE.items()}
RATES |= {"r3gan-digits": (1e-3, 2e-4, 50_000), "r3gan-mnist": (1e-3, 2e-4, 50_000), "r3gan-photos64": (2e-4, 5e-5, 4_000_000)}
"""The first and the last learning rate of each recipe, and the images seen between them."""


@pytest.mark.parametrize("name", RATES)
def test_the_learning_rate_is_that_of_both_networks(name: str) -> None:
    """To the last bit what the ramp of the rates themselves, as earlier versions wrote it, gives; a flag scales it in both phases."""
    optim, (start, end, images) = load_recipe(name).optim, RATES[name]
    absolute = PhaseOptimConfig(learning_rate=Ramp(start=start, end=end, images=images), beta2=Ramp(start=0.9, end=0.99, images=images))
    written = {"name": "adam", "learning_rate": start, "betas": [0.0, 0.9], "phases": [absolute.to_dict()]}
    lower = replace(optim, learning_rate=optim.learning_rate / 8)
    for phase in (Phase("discriminator", ("discriminator",)), Phase("generator", ("generator",))):
        for seen in (0, 1, images // 3, images - 1, images, 2 * images):
            progress = TrainingProgress(images_seen=seen, iteration_images=512, total_images=10**9)
            step = step_settings(optim, phase, progress)
            assert step == step_settings(OptimConfig.from_dict(written), phase, progress)
            assert step_settings(lower, phase, progress) == replace(step, learning_rate=step.learning_rate / 8)
    assert {setting for each in optim.phases for setting, value in each.to_dict().items() if value is not None} == {"rate_factor", "beta2"}


def test_published_recipes_learn_all_images() -> None:
    """Those of sets with test images of their own hold out these, and the small ones a twentieth."""
    fractions = {name: load_recipe(name).data.validation_fraction for name in RATES}
    assert {name for name, fraction in fractions.items() if fraction == 0} == {name for name in TABLE if "cifar10" not in name}
    assert set(fractions.values()) == {0.0, 0.05}


@pytest.mark.parametrize("name", TABLE)
def test_published_networks(name: str) -> None:
    model = on_meta(name)
    counts = [sum(p.numel() for p in network.parameters()) for network in (model.generator, model.discriminator)]
    assert tuple(counts) == TABLE[name].parameters
    assert {stage.may_be_half for stage in model.generator.stages[: -TABLE[name].half_stages]} == {False}
    assert {stage.may_be_half for stage in model.generator.stages[-TABLE[name].half_stages :]} == {True}
    assert model.generator.basis.shape[1:] == (4, 4), "the published ones begin at 4x4 pixels"


def test_changes_of_the_discriminators_images() -> None:
    """The multipliers of the paper; digits are neither mirrored nor turned, and have no colours."""
    config = load_recipe("r3gan-cifar10").model
    assert isinstance(config, R3GANConfig)
    halves = {"brightness", "contrast", "luma_flip", "hue_rotation", "saturation"}
    expected = dict.fromkeys(ADAConfig.changes(), 1.0) | dict.fromkeys(halves, 0.5) | {"image_filter": 0.0, "noise": 0.0}
    assert {change: getattr(config.ada, change) for change in ADAConfig.changes()} == expected
    assert config.ada.target is None and not config.augment_alike and config.penalty.at == "original"
    digits = load_recipe("r3gan-digits").model
    assert isinstance(digits, R3GANConfig)
    off = {"x_flip", "rotation_90", "rotation", "hue_rotation", "saturation"}
    assert {change for change in ADAConfig.changes() if not getattr(digits.ada, change)} == off | {"image_filter", "noise"}


def on_meta(name: str) -> Any:
    config = load_recipe(name)
    classes = None if config.data.labels == "none" else 1000 if "imagenet" in name else 10
    with torch.device("meta"):
        return config.model.build(DataSpec(image_size=config.data.image_size, channels=3, num_classes=classes))
