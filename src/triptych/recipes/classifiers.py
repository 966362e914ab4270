"""Recipes of classifiers of noisy images, for guidance."""

from __future__ import annotations

from dataclasses import replace

from triptych.data.config import AS_STORED, DataConfig
from triptych.diffusion.classifier import ClassifierConfig
from triptych.diffusion.gaussian import NoiseConfig
from triptych.diffusion.schedules import ScheduleName
from triptych.diffusion.unet import EncoderConfig
from triptych.engine.config import LogConfig, OptimConfig, TrainConfig
from triptych.recipes.config import RunConfig


def classifier_digits() -> RunConfig:
    """Classifier of noisy 16x16 digits, to guide an adm-digits model: about two minutes on one CPU core."""
    return RunConfig(
        model=ClassifierConfig(
            network=EncoderConfig(
                num_channels=32,
                num_res_blocks=1,
                channel_mult=(1, 2, 2),
                attention_resolutions=(8,),
                num_head_channels=32,
                resblock_updown=True,
                dropout=0.1,
            ),
            noise=NoiseConfig(schedule="cosine"),
        ),
        data=DataConfig(source="digits", image_size=16, flip=False),
        train=TrainConfig(
            total_images=112_000,
            batch_size=64,
            ema_rates=(0.999,),
            checkpoint_every=16_000,
            validate_every=16_000,
        ),
        optim=OptimConfig(learning_rate=1e-3, weight_decay=0.05, warmup_images=3_200, warmup_share=0.1, schedule="linear"),
        log=LogConfig(every=3_200),
    )


def classifier_imagenet64() -> RunConfig:
    """Classifier of noisy ImageNet, 64x64, 65M parameters.

    The network of the published 64x64_classifier, with the cosine schedule of the model that it guides. Its training is that of the
    paper's Table 12 (Dhariwal and Nichol 2021, arXiv 2105.05233): 300,000 steps of 1024 images at learning rate 6e-4, weight decay 0.2;
    all else as in classifier-imagenet128. data.path is a folder with one sub-folder for each class.
    """
    recipe = _imagenet(64, depth=4, schedule="cosine", batch_size=1024, microbatch=256)
    return replace(recipe, optim=replace(recipe.optim, learning_rate=6e-4, weight_decay=0.2))


def classifier_imagenet128() -> RunConfig:
    """Classifier of noisy ImageNet, 128x128, 43M parameters.

    The network of the published 128x128_classifier and the training that guided-diffusion gives for it: 300,000 steps of 256 random
    crops at learning rate 3e-4 falling to 0 along a line, weight decay 0.05, no average of the weights. data.path is a folder with one
    sub-folder for each class.
    """
    return _imagenet(128)


def classifier_imagenet256() -> RunConfig:
    """Classifier of noisy ImageNet, 256x256, 54M parameters.

    The network of the published 256x256_classifier; the training is that of classifier-imagenet128, but 500,000 steps (the paper's
    Table 12). It guides class-conditional and unconditional models. data.path is a folder with one sub-folder for each class.
    """
    return _imagenet(256, steps=500_000, microbatch=64)


def classifier_imagenet512() -> RunConfig:
    """Classifier of noisy ImageNet, 512x512, 54M parameters.

    The network of the published 512x512_classifier; the training is that of classifier-imagenet128, but 500,000 steps (the paper's
    Table 12). data.path is a folder with one sub-folder for each class.
    """
    return _imagenet(512, steps=500_000, microbatch=16)


def _imagenet(
    size: int,
    *,
    depth: int = 2,
    schedule: ScheduleName = "linear",
    steps: int = 300_000,
    batch_size: int = 256,
    microbatch: int | None = None,
) -> RunConfig:
    return RunConfig(
        model=ClassifierConfig(
            network=EncoderConfig(
                num_channels=128,
                num_res_blocks=depth,
                attention_resolutions=(32, 16, 8),
                num_head_channels=64,
                resblock_updown=True,
            ),
            noise=NoiseConfig(schedule=schedule),
        ),
        data=DataConfig(image_size=size, labels="folder", crop="random").updated(AS_STORED),
        train=TrainConfig(
            total_images=steps * batch_size,
            batch_size=batch_size,
            microbatch=microbatch,
            precision="bf16",
            ema_rates=(),
            checkpoint_every=10_000 * batch_size,
            validate_every=10_000 * batch_size,
        ),
        optim=OptimConfig(learning_rate=3e-4, weight_decay=0.05, schedule="linear"),
        log=LogConfig(every=100 * batch_size),
    )
