"""Recipes of diffusion models that enlarge images."""

from __future__ import annotations

from dataclasses import replace

from triptych.data.config import AS_STORED, DataConfig
from triptych.diffusion.adm import ADMConfig
from triptych.diffusion.gaussian import GaussianConfig
from triptych.diffusion.model import SamplingConfig
from triptych.diffusion.super_resolution import SuperResolutionConfig
from triptych.diffusion.unet import UNetConfig
from triptych.engine.config import LogConfig, OptimConfig, TrainConfig
from triptych.recipes.config import RunConfig
from triptych.recipes.diffusion import adm_digits


def upsample_digits() -> RunConfig:
    """Super-resolution of the built-in digits, class-conditional, from 8x8 to 16x16: minutes on two CPU cores."""
    recipe = adm_digits()
    base = recipe.model
    assert isinstance(base, ADMConfig) and isinstance(base.network, UNetConfig)
    return replace(
        recipe,
        model=SuperResolutionConfig(
            small_size=8,
            network=replace(base.network, dropout=0.0),
            diffusion=base.diffusion,
            class_conditional=True,
            sampling=SamplingConfig(sampler="ddim", steps=50),
        ),
        train=replace(recipe.train, total_images=60_000),
    )


def adm_upsample_64_256() -> RunConfig:
    """ADM's upsampler on ImageNet, class-conditional, from 64x64 to 256x256, 312M parameters.

    The network of the published 64_256_upsampler, and its training by the paper's Table 13 (Dhariwal and Nichol 2021, arXiv
    2105.05233): 500,000 steps of 256 images at learning rate 1e-4. Published: FID 3.94, precision 0.83, recall 0.53 for ImageNet 256x256
    behind the guided 64x64 model at 250 steps. data.path is a folder of large images with one sub-folder for each class.
    `train.microbatch` is for a GPU of 80 GB.
    """
    return RunConfig(
        model=SuperResolutionConfig(
            small_size=64,
            network=UNetConfig(
                num_channels=192,
                num_res_blocks=2,
                channel_mult=(1, 1, 2, 2, 4, 4),
                attention_resolutions=(32, 16, 8),
                num_heads=4,
                resblock_updown=True,
            ),
            diffusion=GaussianConfig(schedule="linear", variance="learned_range"),
            class_conditional=True,
            sampling=SamplingConfig(steps=250),
        ),
        data=DataConfig(image_size=256, labels="folder").updated(AS_STORED),
        train=TrainConfig(
            total_images=500_000 * 256,
            batch_size=256,
            microbatch=8,
            precision="bf16",
            sample_count=16,
            checkpoint_every=2_560_000,
            sample_every=2_560_000,
            validate_every=2_560_000,
        ),
        optim=OptimConfig(learning_rate=1e-4),
        log=LogConfig(every=25_600),
    )


def adm_upsample_64_256_improved() -> RunConfig:
    """Improved DDPM's upsampler on ImageNet, class-conditional, from 64x64 to 256x256, 280M parameters.

    The settings published with improved-diffusion's upsample_cond_500K: T = 4000, linear, 500,000 steps of 256 images at learning rate
    3e-4, no mirroring. Published: FID 12.3 behind the 64x64 model, adm-imagenet64-improved (Dhariwal and Nichol 2021, Table 5). data.path
    is a folder of large images with one sub-folder for each class. `train.microbatch` is for a GPU of 80 GB.
    """
    recipe = adm_upsample_64_256()
    model = recipe.model
    assert isinstance(model, SuperResolutionConfig)
    return replace(
        recipe,
        model=replace(
            model,
            network=replace(model.network, attention_resolutions=(16, 8), resblock_updown=False),
            diffusion=replace(model.diffusion, steps=4000),
        ),
        data=replace(recipe.data, flip=False),
        train=replace(recipe.train, precision="float32", microbatch=4),
        optim=OptimConfig(learning_rate=3e-4),
    )


def adm_upsample_128_512() -> RunConfig:
    """ADM's upsampler on ImageNet, class-conditional, from 128x128 to 512x512, 309M parameters.

    The network of the published 128_512_upsampler; its training is that of adm-upsample-64-256, but 1,050,000 steps (the paper's Table
    13). Published: FID 3.85, precision 0.84, recall 0.53 for ImageNet 512x512 behind the guided 128x128 model at 250 steps. data.path is
    a folder of large images with one sub-folder for each class.
    """
    recipe = adm_upsample_64_256()
    model = recipe.model
    assert isinstance(model, SuperResolutionConfig)
    network = replace(model.network, attention_resolutions=(32, 16), num_head_channels=64)
    return replace(
        recipe,
        # Stated in full: the table by image size has the narrower levels of the model that draws 512x512 by itself.
        model=replace(model, small_size=128, network=replace(network, channel_mult=(1, 1, 2, 2, 4, 4))),
        data=replace(recipe.data, image_size=512),
        train=replace(recipe.train, total_images=1_050_000 * 256, microbatch=2),
    )
