"""Recipes shrunk in size only: never in dropout, norms, losses or optimizer."""

from __future__ import annotations

from dataclasses import replace

from triptych.core.model import ModelConfig
from triptych.diffusion.adm import ADMConfig
from triptych.diffusion.classifier import ClassifierConfig
from triptych.diffusion.super_resolution import SuperResolutionConfig
from triptych.flows.glow import GlowConfig
from triptych.recipes.catalogue import load_recipe, recipes
from triptych.recipes.config import RunConfig

RECIPES = sorted(recipes())
BATCH = 6


def shrunk(name: str) -> RunConfig:
    """The recipe on 8x8 digits, in batches of 6, with a small network of its kind.

    Two channels to a group of its norms: with one, the biases before them have no effect.
    """
    recipe = load_recipe(name)
    labels = "none" if recipe.data.labels == "none" else "auto"
    channels = 1 if recipe.data.source in ("digits", "mnist") else 3
    data = replace(recipe.data, source="digits", path=None, image_size=8, channels=channels, labels=labels, decode="exact", workers=0)
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
    )
    return replace(recipe, model=_shrunk_model(recipe.model), data=data, train=train)


def _shrunk_model(model: ModelConfig) -> ModelConfig:
    if isinstance(model, ADMConfig | SuperResolutionConfig):
        heads = {"num_head_channels": 16} if model.network.num_head_channels else {"num_heads": 2}
        network = replace(model.network, num_channels=64, num_res_blocks=1, channel_mult=(1, 2), attention_resolutions=(4,), **heads)
        size = {"small_size": 4} if isinstance(model, SuperResolutionConfig) else {}
        return replace(model, network=network, sampling=replace(model.sampling, steps="4"), **size)
    if isinstance(model, ClassifierConfig):
        small = {"num_channels": 64, "num_res_blocks": 1, "channel_mult": (1, 2), "attention_resolutions": (4,), "num_head_channels": 16}
        return replace(model, network=replace(model.network, **small))
    if isinstance(model, GlowConfig):
        return replace(model, levels=2, depth=2, width=16, init_images=32)
    raise TypeError(f"say in tests/contract/shrink.py how {type(model).__name__} is made small")
