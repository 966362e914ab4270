"""Recipes shrunk in size only: never in dropout, norms, losses or optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from tests.contract.small_data import FIRST_LAYER, feature_weights, small_data
from triptych.core.model import ModelConfig
from triptych.diffusion.unet import EncoderConfig, UNetConfig
from triptych.engine.config import LogConfig, TrainConfig
from triptych.recipes.catalogue import load_recipe, recipes
from triptych.recipes.config import RunConfig

RECIPES = sorted(recipes())
BATCH = 6


def kinds(counts: Callable[[str, str], bool] = lambda path, value: True) -> list[str]:
    """Recipes in which every value occurs that a setting has in any recipe, once all are shrunk: few recipes, but every kind of them.

    The class of the model and of its networks are such values. Sizes and strengths are none: those are alike when recipes are shrunk.
    `counts`: which settings and values have to occur.
    """
    documents = {name: _without_strengths(shrunk(name).to_dict()) for name in RECIPES}
    settings = {name: {found for found in _settings(document) if counts(*found)} for name, document in documents.items()}
    found, left = list[str](), set[tuple[str, str]]().union(*settings.values())
    while left:
        name = max(settings, key=lambda name: len(settings[name] & left))  # the first of several
        found.append(name)
        left -= settings[name]
    for name in list(found):  # those that came first may have nothing of their own now
        others = set[tuple[str, str]]().union(*(settings[other] for other in found if other != name))
        if settings[name] <= others:
            found.remove(name)
    return sorted(found)


def _settings(document: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The settings of a document, by their paths, and their values as text."""
    if isinstance(document, dict) and document.keys() == {"start", "end", "images", "shape"}:
        yield path, document["shape"]
    elif isinstance(document, dict):
        for name, value in document.items():
            yield from _settings(value, f"{path}.{name}")
    else:
        yield path, repr(document)


def _with_ramps(document: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """The document of a configuration with each of its ramps changed."""
    if isinstance(document, dict):
        ramp = document.keys() == {"start", "end", "images", "shape"}
        return change(document) if ramp else {name: _with_ramps(value, change) for name, value in document.items()}
    return [_with_ramps(value, change) for value in document] if isinstance(document, list) else document


_IMAGES = {"warmup_images", "decay_start", "decay_every", "ema_start", "snapshot_every", "half_life", "ramp_up", "start"}
_FILES = {"flip", "pad", "resize", "class_folder", "path"}
"""Settings of data that no model knows of; they have tests of their own."""


def _without_strengths(document: Any) -> Any:
    """The document of a configuration without its strengths, moments and files: of each number that is no count, whether it is zero."""
    if isinstance(document, dict):
        return {name: not value if name in _IMAGES else _without_strengths(value) for name, value in document.items() if name not in _FILES}
    if isinstance(document, list):
        numbers = document and all(isinstance(value, int | float) for value in document)
        return len(document) if numbers else [_without_strengths(value) for value in document]
    return int(document == 0) if isinstance(document, float) else document


def able(verb: str) -> list[str]:
    """The recipes, one of each kind, whose model serves that verb."""
    return [name for name in KINDS if verb in shrunk(name).model.verbs()]


_WATCHING = ("evaluate_every", "evaluate_metrics", "evaluate_features", "evaluate_count", "best_by")
_UNWATCHED = {field.name: field.default for field in fields(TrainConfig) if field.name in _WATCHING}
"""Evaluations have tests of their own (tests/runs/test_training_scores.py)."""


@functools.cache
def shrunk(name: str) -> RunConfig:
    """The recipe on 8x8 digits (a translating GAN on 32x32 noise), in batches of 6, with the small networks of `ModelConfig.shrunk`.

    What a ramp changes arrives after three batches.
    """
    recipe = load_recipe(name)
    train = replace(
        recipe.train,
        total_images=4 * BATCH,
        batch_size=BATCH,
        microbatch=None,
        precision="float32",
        checkpoint_every=None,
        sample_every=None,
        sample_count=0,
        validate_every=None,
        validate_images=8,
        **_UNWATCHED,
        statistics_batches=min(2, recipe.train.statistics_batches),
    )
    # Tests compare runs of different lengths, so the length must not decide how the rate rises.
    optim = replace(recipe.optim, warmup_share=None)
    model, data = _without_photos(recipe.model.shrunk()), small_data(recipe.data)
    config = replace(recipe, model=model, data=data, train=train, optim=optim, log=LogConfig(report=False))
    return RunConfig.from_dict(_with_ramps(config.to_dict(), lambda ramp: ramp | {"images": 3 * BATCH}))


def light(name: str) -> RunConfig:
    """The shrunk recipe with half the channels of its U-Net, for tests of runs; where gradients are looked at, a norm has to take two."""
    config = shrunk(name)
    wide = isinstance(getattr(config.model, "network", None), EncoderConfig | UNetConfig)
    return config.updated({"model": {"network": {"num_channels": 32}}}) if wide else config


def _without_photos(model: Any) -> ModelConfig:
    """The model with a perceptual loss, where it has one, of SqueezeNet's first layer with random weights."""
    if not hasattr(model, "perceptual"):
        return model
    features = {"weights": str(feature_weights()), "preprocessing": None, "layers": FIRST_LAYER, "layer_weights": (1.0,)}
    return replace(model, perceptual=replace(model.perceptual, network="squeezenet1_0", **features))


KINDS = kinds()
_OF_A_SAMPLE = (".model.sampling.", ".model.translation.", ".model.encoding.", ".model.diffusion.", ".model.noise.", ".model.augmentation.")
_OF_A_SAMPLE += (".model.network.", ".model.times.")
"""How a sample is drawn, encoded and weighed, and a network for which a batch is so many samples: no other process can matter to them."""


def _matters_to_processes(path: str, value: str) -> bool:
    counts = path.startswith(".model.") and not value[0].isdigit()
    return counts and (path.endswith(".kind") or not f"{path}.".startswith(_OF_A_SAMPLE))


MODELS = kinds(_matters_to_processes)
"""For several processes: the settings of the model that are no numbers, nor of one sample alone, occur with each value."""
