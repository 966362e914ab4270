"""Models that are too large are refused before they take memory or time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from triptych.core import limits
from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError
from triptych.core.limits import bounded_size
from triptych.core.model import seeded_build
from triptych.recipes.catalogue import load_recipe

SPEC = DataSpec(image_size=32, channels=3)


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("adm-cifar10", {"network": {"num_channels": 10**9}}),
        ("adm-cifar10", {"network": {"num_channels": 2**62}}),
        ("adm-cifar10", {"network": {"num_res_blocks": 10**7}}),
        ("adm-cifar10", {"network": {"channel_mult": [1] * 10**5}}),
        ("glow-cifar10", {"depth": 10**7}),
        ("glow-cifar10", {"width": 10**9}),
    ],
)
def test_a_model_that_is_too_large(monkeypatch, recipe, settings):
    monkeypatch.setattr(limits, "MOST_LAYERS", 200)  # else this takes seconds
    with pytest.raises(ConfigError, match="larger than 10,000,000,000 parameters or 200 layers; lower") as caught:
        seeded_build(load_recipe(recipe).model.updated(settings), SPEC, seed=0)
    assert len(str(caught.value)) < 300
    assert caught.value.setting in ("", "network")


def test_the_limits_are_those_that_are_stated(monkeypatch):
    assert (limits.MOST_PARAMETERS, limits.MOST_LAYERS) == (10**10, 20_000)
    monkeypatch.setattr(limits, "MOST_PARAMETERS", 12)
    monkeypatch.setattr(limits, "MOST_LAYERS", 2)
    with bounded_size():
        nn.Linear(4, 3, bias=False)
        nn.Sequential(nn.ReLU(), nn.ReLU())
    for make in (
        lambda: nn.Linear(4, 3, bias=True),
        lambda: torch.empty(13),
        lambda: torch.zeros((13, 1)),
        lambda: torch.ones(size=(1, 13)),
        lambda: nn.Sequential(nn.ReLU(), nn.ReLU(), nn.ReLU()),
    ):
        with pytest.raises(ConfigError, match="larger than 12 parameters or 2 layers"), bounded_size():
            make()
    nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.ReLU())  # outside there is no limit
