"""Recipes shrunk in size only: never in dropout, norms, losses or optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from tests.contract.small_data import DOUBLE_EVERY, FIRST_LAYER, feature_weights, small_data
from triptych.core.model import ModelConfig
from triptych.diffusion.unet import EncoderConfig, UNetConfig
from triptych.engine.config import LogConfig, TrainConfig
from triptych.recipes.catalogue import load_recipe, recipes
from triptych.recipes.config import RunConfig

RECIPES = sorted(recipes())
BATCH = 6
CLIPS = 2
"""The batch of clips in tests of runs: each has several frames, and each frame is a step."""


def _with_ramps(document: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """The document of a configuration with each of its ramps changed."""
    if isinstance(document, dict):
        ramp = document.keys() == {"start", "end", "images", "shape"}
        return change(document) if ramp else {name: _with_ramps(value, change) for name, value in document.items()}
    return [_with_ramps(value, change) for value in document] if isinstance(document, list) else document


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
    """The shrunk recipe with half the channels of its U-Net, or fewer clips at once, for tests of runs.

    Where gradients are looked at, a norm has to take two channels.
    """
    config = shrunk(name)
    if hasattr(config.data, "length"):
        length = {"double_every": DOUBLE_EVERY * CLIPS // BATCH}
        return config.updated({"train": {"batch_size": CLIPS, "validate_images": CLIPS}, "data": {"length": length}})
    wide = isinstance(getattr(config.model, "network", None), EncoderConfig | UNetConfig)
    return config.updated({"model": {"network": {"num_channels": 32}}}) if wide else config


def _without_photos(model: Any) -> ModelConfig:
    """The model with a perceptual loss, where it has one, of SqueezeNet's first layer with random weights."""
    if not hasattr(model, "perceptual"):
        return model
    features = {"weights": str(feature_weights()), "preprocessing": None, "layers": FIRST_LAYER, "layer_weights": (1.0,)}
    return replace(model, perceptual=replace(model.perceptual, network="squeezenet1_0", **features))
