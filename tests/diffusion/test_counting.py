"""How often samplers ask their network: what is counted without it is what a real network is asked."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch import nn

from tests.contract.shrink import shrunk
from tests.diffusion.test_super_resolution import model as upsampler
from tests.diffusion.test_super_resolution import small_batch
from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError
from triptych.core.model import Stepwise
from triptych.core.rng import Rng
from triptych.diffusion.guidable import Guided
from triptych.diffusion.model import SamplingConfig
from triptych.diffusion.samplers import SamplerName
from triptych.recipes.catalogue import load_recipe
from triptych.runs.stored import build

SPEC = DataSpec(image_size=8, channels=1, num_classes=10)
FAMILIES = ("adm-digits", "edm-digits", "flow-digits", "mean-flow-digits")


def small(recipe: str, **settings: Any) -> Any:
    """The model of a recipe for images of 8 pixels, which guides itself where it can."""
    torch.manual_seed(0)
    config = shrunk(recipe).updated({"data": {"image_size": 8}, "model": {"label_dropout": 0.1} | settings})
    return build(config, SPEC).eval()


def asked(network: nn.Module, sample: Any) -> int:
    """How often a sample of one image asks the network, whose images are told apart where two go at once."""
    calls: list[int] = []
    watching = network.register_forward_pre_hook(lambda module, given: calls.append(len(given[0])))
    sample()
    watching.remove()
    return sum(calls)


def sampled(model: Any, settings: Any) -> Any:
    return lambda: model.sample(Rng(3, ("sample",), torch.zeros(1, dtype=torch.int64)), labels=torch.tensor([1]), settings=settings)


@pytest.mark.parametrize("recipe", FAMILIES)
def test_the_count_is_what_a_network_is_asked(recipe: str) -> None:
    model = small(recipe)
    assert isinstance(model, Stepwise)
    settings = [model.sampling.updated({"steps": 4})]
    if hasattr(model.sampling, "guidance_scale"):
        settings += [model.sampling.updated({"steps": 4, "guidance_scale": 2.0, "guidance_interval": (0.1, 5.0)})]
    for each in settings:
        assert model.network_calls(each) == asked(model.network, sampled(model, each)) >= 4, each
    assert model.image_shape == (1, 8, 8) and next(model.network.parameters()).any(), "the model is as it was"


@pytest.mark.parametrize("sampler", get_args(SamplerName))
def test_each_sampler(sampler: str) -> None:
    for recipe in ("adm-digits", "edm-digits"):
        model = small(recipe)
        settings = model.sampling.updated({"steps": 5, "clip": False} if recipe == "adm-digits" else {"steps": 5})
        try:
            settings = settings.updated({"sampler": sampler})
        except ConfigError:
            assert sampler in ("ancestral", "ddim") and recipe == "edm-digits"
            continue
        assert model.network_calls(settings) == asked(model.network, sampled(model, settings)), recipe


def test_published_numbers_of_calls() -> None:
    for recipe, calls in (("edm-cifar10", 35), ("edm-ffhq64", 79), ("edm-imagenet64", 511), ("edm2-img64-xs", 63)):
        config = load_recipe(recipe)
        with torch.device("meta"):
            model = build(config, DataSpec(image_size=config.data.image_size, channels=3, num_classes=1000))
        assert isinstance(model, Stepwise) and model.network_calls(config.model.sampling) == calls  # pyright: ignore[reportAttributeAccessIssue]


def test_a_weaker_model_is_asked_too_and_a_classifier_is_not_counted() -> None:
    model, weaker = small("edm-digits", label_dropout=0.0), small("edm-digits")
    settings = model.sampling.updated({"steps": 6, "guidance_scale": 2.0, "guidance_interval": (0.5, 4.0)})
    led = model.guided_with(weaker)
    assert isinstance(led, Guided)
    own = asked(model.network, sampled(led, settings))
    theirs = asked(weaker.network, sampled(led, settings))
    assert 0 < theirs < own and model.network_calls(settings, weaker=True) == own + theirs
    adm = small("adm-digits", label_dropout=0.0)
    settings = SamplingConfig(sampler="ddim", steps=6, guidance_scale=2.0)
    assert adm.network_calls(settings, classifier=True) == 6
    with pytest.raises(ConfigError, match="guidance_scale: got 2.0"):
        adm.network_calls(settings)


def test_an_upsampler() -> None:
    model, batch = upsampler(), small_batch(1)
    for settings in (SamplingConfig(steps=4), SamplingConfig(sampler="heun", steps=4, clip=False)):
        found = asked(model.network, lambda of=settings: model.upsample(batch, Rng(9, ("upsample",), batch.index), settings=of))
        assert model.network_calls(settings) == found
