"""Moving averages: their rates by the formulas, their files, and a resume."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.engine.toys import Denoiser, make_loop, resumed, run, seeded, stop_after
from triptych.core.ramp import Ramp
from triptych.engine.checkpoint import checkpoint_path, load_checkpoint
from triptych.engine.config import AverageConfig, TrainConfig
from triptych.engine.ema import Average

BATCH = 10
RISING = AverageConfig(half_life=Ramp(start=0, end=40, images=80))
"""As R3GAN's: along half a cosine from 0."""


@pytest.mark.parametrize(
    ("average", "images_seen", "expected"),
    [
        (AverageConfig(rate=0.9), 0, 0.9),
        (AverageConfig(rate=0.9, warmup=True), 0, 0.1),
        (AverageConfig(rate=0.9, warmup=True), 40, 5 / 14),
        (AverageConfig(rate=0.9, warmup=True), 10_000, 0.9),
        (AverageConfig(rate=0.9, start=20), 10, 0.0),
        (AverageConfig(rate=0.9, start=20, warmup=True), 20, 0.1),
        (AverageConfig(rate=0.9, start=29), 10, 0.0),  # rounded down to whole iterations
        (AverageConfig(rate=0.9, start=29), 20, 0.9),
        (AverageConfig(half_life=BATCH), 0, 0.5),
        (AverageConfig(half_life=2 * BATCH), 70, math.sqrt(0.5)),
        (AverageConfig(half_life=2 * BATCH, ramp_up=0.1), 0, 0.0),
        (AverageConfig(half_life=2 * BATCH, ramp_up=0.1), 50, 0.25),
        (AverageConfig(half_life=2 * BATCH, ramp_up=0.1), 500, math.sqrt(0.5)),
        (RISING, 0, 0.0),
        (RISING, 40, math.sqrt(0.5)),
        (RISING, 20, 0.5 ** (BATCH / (20 - 20 * math.sqrt(0.5)))),
        (RISING, 100, 0.5 ** (1 / 4)),
    ],
)
def test_the_rate_of_an_update(average, images_seen, expected):
    assert average.rate_at(images_seen, images=BATCH) == pytest.approx(expected, abs=1e-12)


def test_an_average_moves_by_its_rate():
    model = seeded(Denoiser)
    weight, name = next(model.network.parameters()), "network.0.weight"
    averages = [Average(model, AverageConfig(rate=0.9, warmup=warmup, start=BATCH)) for warmup in (True, False)]
    for updates, rates in ((0, (0.1, 0.9)), (4, (5 / 14, 0.9)), (1000, (0.9, 0.9)), (-1, (0.0, 0.0))):
        with torch.no_grad():
            weight.normal_()
        for average, rate in zip(averages, rates, strict=True):
            expected = rate * average.tensors[name] + (1 - rate) * weight.detach()
            average.update((updates + 1) * BATCH, images=BATCH)
            torch.testing.assert_close(average.tensors[name], expected)


def test_the_flags_of_old_come_first_and_names_are_those_of_files():
    settings = TrainConfig(
        total_images=1, batch_size=1, ema_rates=(0.999,), ema_warmup=False, ema_start=7, averages=(AverageConfig(half_life=500_000), RISING)
    )
    assert settings.all_averages[0] == AverageConfig(rate=0.999, start=7)
    assert [average.name for average in settings.all_averages] == ["ema-0.999", "ema-500000", "ema-40"]
    document = json.loads(json.dumps(settings.to_dict()))
    assert document["averages"][0] == AverageConfig(half_life=500_000).to_dict(), "without a kind"
    assert TrainConfig.from_dict(document) == settings
    assert TrainConfig.from_dict({name: value for name, value in document.items() if name != "averages"}).averages == ()


def test_averages_by_half_life_are_saved_and_resumed(tmp_path: Path):
    settings = {"ema_rates": (0.9,), "averages": (AverageConfig(half_life=16), RISING)}
    run(make_loop(seeded(Denoiser), tmp_path / "unbroken", **settings))
    first = make_loop(seeded(Denoiser), tmp_path / "broken", **settings)
    assert first.run(stop_after(first, 24)) is False
    run(resumed(tmp_path / "broken", Denoiser(), **settings))
    ends = [load_checkpoint(checkpoint_path(tmp_path / name / "checkpoints", 64)) for name in ("unbroken", "broken")]
    assert ends[0].hashes == ends[1].hashes
    assert {"model", "optimizer", "ema-0.9", "ema-16", "ema-40"} == ends[0].files.keys()
    name = "network.0.weight"
    assert len({float(ends[0].files[stem][name].sum()) for stem in ends[0].files if stem != "optimizer"}) == 4


def test_a_model_with_averages_of_its_own_says_so():
    class Half(Denoiser):
        def effective(self):
            return {}

    with pytest.raises(AssertionError, match="Half has to inherit from Averaged"):
        Average(seeded(Half), AverageConfig(rate=0.9))


def test_a_tensor_of_two_names_has_its_own_values_again() -> None:
    model = seeded(Denoiser)
    model.network[2].bias = nn.Parameter(torch.zeros(3))
    model.network.register_parameter("again", model.network[2].bias)
    average = Average(model, AverageConfig(rate=0.9))
    before = model.network[2].bias.detach().clone()
    for tensor in average.tensors.values():
        tensor.add_(1)
    with average.applied():
        assert not torch.equal(model.network[2].bias, before)
    assert torch.equal(model.network[2].bias, before)
