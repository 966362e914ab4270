"""Recipes of autoencoders, whose latents other models learn."""

from __future__ import annotations

from dataclasses import replace

from triptych.data.config import DataConfig
from triptych.engine.config import LogConfig, OptimConfig, TrainConfig
from triptych.gans.kl_autoencoder import KLAutoencoderConfig
from triptych.gans.kl_networks import KLNetworksConfig
from triptych.recipes.config import RunConfig


def autoencoder_small() -> RunConfig:
    """KL autoencoder f4 of your own folder of images, 64x64, latents 16x16x4; for two CPU cores.

    Without a perceptual loss, so that no file of weights is needed; the discriminator joins in the middle.
    """
    recipe = autoencoder_photos()
    assert isinstance(recipe.model, KLAutoencoderConfig)
    # Its last layer and its norms are as its figures were measured with.
    shape = {"num_filters": 32, "max_num_filters": 128, "num_layers": 2, "last_kernel_size": 3, "first_norm": True}
    discriminator = replace(recipe.model.discriminator, **shape)
    return replace(
        recipe,
        model=replace(
            recipe.model,
            network=KLNetworksConfig(widths=(32, 64, 64), num_blocks=1, num_groups=16),
            discriminator=discriminator,
            perceptual_weight=0.0,
            adversarial_start=8_000,
        ),
        data=DataConfig(image_size=64),
        train=TrainConfig(
            total_images=16_000,
            batch_size=8,
            ema_rates=(0.999,),
            compile="off",
            checkpoint_every=4_000,
            sample_every=4_000,
            sample_count=16,
            validate_every=4_000,
            validate_images=256,
        ),
        optim=replace(recipe.optim, learning_rate=4e-4),
        log=LogConfig(every=800),
    )


def autoencoder_photos() -> RunConfig:
    """KL autoencoder f8 of your own folder of images, 256x256, latents 32x32x4, 83.7M parameters: days on one GPU.

    The networks of Stable Diffusion's autoencoder; the weights of the loss, the rate and the start of the discriminator are those of
    latent-diffusion's KL-f8, whose perceptual loss is another, LPIPS. The length is ours. The perceptual loss needs the file of VGG19's
    weights, --model.perceptual.weights; --model.perceptual-weight 0 goes without it.
    """
    return RunConfig(
        model=KLAutoencoderConfig(adversarial_start=600_000),
        data=DataConfig(image_size=256, crop="random", labels="none"),
        train=TrainConfig(
            total_images=3_000_000,
            batch_size=12,
            precision="auto",
            checkpoint_every=60_000,
            sample_every=60_000,
            sample_count=16,
            validate_every=60_000,
            validate_images=1_024,
        ),
        optim=OptimConfig(name="adam", learning_rate=5.4e-5, betas=(0.5, 0.9)),  # 4.5e-6 x 12
    )


def autoencoder_photos_f4() -> RunConfig:
    """KL autoencoder f4 of your own folder of images, 256x256, latents 64x64x3, 55.3M parameters: days on one GPU.

    The networks of latent-diffusion's KL-f4; else as autoencoder-photos.
    """
    recipe = autoencoder_photos()
    assert isinstance(recipe.model, KLAutoencoderConfig)
    return replace(recipe, model=replace(recipe.model, network=KLNetworksConfig(widths=(128, 256, 512), latent_channels=3)))
