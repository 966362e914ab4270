"""Recipes shrunk in size only: never in dropout, norms, losses or optimizer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.contract.small_data import FIRST_LAYER, feature_weights, small_data
from triptych.core.config import Config
from triptych.core.model import ModelConfig
from triptych.diffusion.adm import ADMConfig
from triptych.diffusion.classifier import ClassifierConfig
from triptych.diffusion.super_resolution import SuperResolutionConfig
from triptych.flows.glow import GlowConfig
from triptych.gans.discriminators import ResidualDiscriminatorConfig
from triptych.gans.model import GANConfig
from triptych.gans.spade import SPADEDiscriminatorConfig
from triptych.recipes.catalogue import load_recipe, recipes
from triptych.recipes.config import RunConfig

RECIPES = sorted(recipes())
BATCH = 6


def kinds() -> list[str]:
    """A recipe of each kind: those that differ in size and data alone are the same when they are shrunk."""
    found: list[tuple[str, RunConfig]] = []
    for name in RECIPES:
        config = shrunk(name)
        if all(config != other for _, other in found):
            found.append((name, config))
    return [name for name, _ in found]


def able(verb: str) -> list[str]:
    """The recipes, one of each kind, whose model serves that verb."""
    return [name for name in KINDS if verb in shrunk(name).model.verbs()]


def shrunk(name: str) -> RunConfig:
    """The recipe on 8x8 digits (a GAN on 32x32 noise), in batches of 6, with a small network of its kind.

    Two channels to a group of its norms: with one, the biases before them have no effect.
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
        statistics_batches=min(2, recipe.train.statistics_batches),
    )
    # Tests compare runs of different lengths, so the length must not decide how the rate rises.
    optim = replace(recipe.optim, warmup_share=None)
    return replace(recipe, model=_shrunk_model(recipe.model), data=small_data(recipe.data), train=train, optim=optim)


def _shrunk_model(model: ModelConfig) -> ModelConfig:
    if isinstance(model, ADMConfig | SuperResolutionConfig):
        heads = {"num_head_channels": 16} if model.network.num_head_channels else {"num_heads": 2}
        network = replace(model.network, num_channels=64, num_res_blocks=1, channel_mult=(1, 1), attention_resolutions=(4,), **heads)
        size = {"small_size": 4} if isinstance(model, SuperResolutionConfig) else {}
        return replace(model, network=network, sampling=replace(model.sampling, steps="4"), **size)
    if isinstance(model, ClassifierConfig):
        small = {"num_channels": 64, "num_res_blocks": 1, "channel_mult": (1, 1), "attention_resolutions": (4,), "num_head_channels": 16}
        return replace(model, network=replace(model.network, **small))
    if isinstance(model, GlowConfig):
        return replace(model, levels=2, depth=2, width=16, init_images=32)
    if isinstance(model, GANConfig):
        return _shrunk_gan(model)
    raise TypeError(f"say in tests/contract/shrink.py how {type(model).__name__} is made small")


def _shrunk_gan(model: Any) -> GANConfig:
    """With perceptual losses of SqueezeNet's first layer, of random weights."""
    generator = replace(model.generator, **{name: size for name, size in SMALL_GENERATOR.items() if hasattr(model.generator, name)})
    changes = {"generator": generator, "discriminator": _shrunk_discriminator(model.discriminator)}
    if hasattr(model, "perceptual"):
        perceptual = replace(
            model.perceptual,
            network="squeezenet1_0",
            weights=str(feature_weights()),
            preprocessing=None,
            layers=FIRST_LAYER,
            layer_weights=(1.0,),
        )
        changes["perceptual"] = perceptual
    return replace(model, **changes)


SMALL_GENERATOR = {
    "resolution": 256,
    "num_filters": 4,
    "max_num_filters": 8,
    "style_dims": 8,
    "spade_filters": 4,
    "encoder_filters": 4,
    "encoder_size": 64,
    "num_downsamples": 1,
    "num_downsamples_content": 1,
    "num_downsamples_style": 2,
    "num_res_blocks": 1,
    "num_enhancer_res_blocks": 1,
    "mlp_filters": 16,
    "style_bias_dims": 4,
}
SMALL_DISCRIMINATOR = {"num_discriminators": 2, "num_filters": 4, "max_num_filters": 8, "num_layers": 2}


def _shrunk_discriminator(discriminator: Any) -> Config:
    if isinstance(discriminator, SPADEDiscriminatorConfig):
        return replace(discriminator, patch=replace(discriminator.patch, **SMALL_DISCRIMINATOR))
    if isinstance(discriminator, ResidualDiscriminatorConfig):
        return replace(discriminator, num_filters=4, max_num_filters=8, num_layers=3)  # which takes images of 32 pixels
    return replace(discriminator, **{name: size for name, size in SMALL_DISCRIMINATOR.items() if hasattr(discriminator, name)})


KINDS = kinds()
