"""Recipes of the flow family.

The published models of Glow are those of openai/glow's README: eight processes of 64 images at 32 pixels (16 at 64 pixels), learning rate
0.001. What differs in how they are trained here: Adamax is the standard one, where the original multiplies its step by
sqrt(1 - beta2^t), which makes the first steps smaller; the warm-up is given in real images; nothing shifts the images of CIFAR-10; and
the moving average of the weights, which the original computes and does not use, is what validates and samples.
"""

from __future__ import annotations

from dataclasses import replace

from triptych.data.config import DataConfig
from triptych.engine.config import LogConfig, OptimConfig, TrainConfig
from triptych.flows.glow import GlowConfig, GlowSamplingConfig
from triptych.recipes.config import RunConfig

_BETAS = (0.9, 0.9898)  # of eight processes: 1 - 1 / (steps in 50,000 images)


def glow_digits() -> RunConfig:
    """Glow on the built-in 16x16 digits: minutes on two CPU cores.

    Held-out digits cost 2.5 bits per dimension at the end; they are enlarged from 8x8, so a value tells far less than one of a photograph.
    """
    return RunConfig(
        model=GlowConfig(levels=3, depth=10, width=96, sampling=GlowSamplingConfig(temperature=0.7)),
        data=DataConfig(source="digits", image_size=16, flip=False),
        train=TrainConfig(
            total_images=200_000,
            batch_size=64,
            ema_rates=(0.999,),
            checkpoint_every=20_000,
            sample_every=20_000,
            validate_every=20_000,
        ),
        optim=OptimConfig(name="adamax", learning_rate=1e-3, warmup_images=12_800, betas=(0.9, 0.99)),
        log=LogConfig(every=3_200),
    )


def glow_mnist() -> RunConfig:
    """Glow on MNIST, 28x28, grey: an hour on two CPU cores, minutes on one GPU.

    The original pads the images to 32x32 and repeats them in three channels, so its bits per dimension are not comparable. data.path is a
    folder with the four idx files.
    """
    return RunConfig(
        model=GlowConfig(levels=2, depth=12, width=96, sampling=GlowSamplingConfig(temperature=0.7)),
        data=DataConfig(source="mnist", image_size=28, labels="none", flip=False),
        train=TrainConfig(total_images=1_500_000, batch_size=64, ema_rates=(0.999,), checkpoint_every=100_000, sample_every=100_000),
        optim=OptimConfig(name="adamax", learning_rate=1e-3, warmup_images=64_000, betas=(0.9, 0.99)),
        log=LogConfig(every=6_400),
    )


def glow_cifar10() -> RunConfig:
    """Glow on CIFAR-10, 32x32, for likelihood, 44.6M parameters.

    Published: 3.35 bits per dimension (Kingma and Dhariwal 2018, Table 2) on the test images, after 1,800 of the original's epochs of
    50,000 images, which took eight GPUs days. data.path is the folder of .bin files.
    """
    return RunConfig(
        model=GlowConfig(),
        data=DataConfig(source="cifar10", image_size=32, labels="none", flip=False),
        train=TrainConfig(
            total_images=90_000_000,
            batch_size=512,
            ema_rates=(0.999,),
            checkpoint_every=1_000_000,
            sample_every=1_000_000,
            validate_every=1_000_000,
            validate_images=10_000,
        ),
        optim=OptimConfig(name="adamax", learning_rate=1e-3, warmup_images=500_000, betas=_BETAS),
        log=LogConfig(every=12_800),
    )


def glow_cifar10_cond() -> RunConfig:
    """Glow on CIFAR-10 by class, in 5 bits, additive, for samples, 38.4M parameters.

    The original's conditional model: classes set the distribution of the last latent, and are predicted from it with weight 0.01. Its
    README gives no figure. data.path is the folder of .bin files.
    """
    recipe = glow_cifar10()
    return replace(
        recipe,
        model=GlowConfig(coupling="additive", bits=5, class_conditional=True, class_weight=0.01),
        data=replace(recipe.data, labels="auto"),
    )


def glow_imagenet32() -> RunConfig:
    """Glow on ImageNet, 32x32, for likelihood, 66.9M parameters.

    Published: 4.09 bits per dimension (Kingma and Dhariwal 2018, Table 2) on the 50,000 validation images of the downsampled
    ImageNet of van den Oord et al. (2016). For how long, the original's README does not say. data.path is a folder, archive or array of
    those images.
    """
    return _imagenet(32, levels=3, batch_size=512, warmup_images=500_000)


def glow_imagenet64() -> RunConfig:
    """Glow on ImageNet, 64x64, for likelihood, 112.4M parameters.

    Published: 3.81 bits per dimension (Kingma and Dhariwal 2018, Table 2) on the 50,000 validation images of the downsampled
    ImageNet of van den Oord et al. (2016). For how long, the original's README does not say. data.path is a folder, archive or array of
    those images.
    """
    return _imagenet(64, levels=4, batch_size=128, warmup_images=125_000)


def _imagenet(image_size: int, *, levels: int, batch_size: int, warmup_images: int) -> RunConfig:
    recipe = glow_cifar10()
    return replace(
        recipe,
        model=GlowConfig(levels=levels, depth=48, init_images=256 * 32**2 // image_size**2, memory="inversion"),
        data=DataConfig(image_size=image_size, labels="none", flip=False),
        train=replace(recipe.train, batch_size=batch_size),
        optim=replace(recipe.optim, warmup_images=warmup_images),
    )
