"""Recipes of the flow family.

The published models of Glow are those of openai/glow's README: eight processes of 64 images at 32 pixels (16 at 64 pixels), learning rate
0.001, its variant of Adamax. What differs in how they are trained here: the warm-up is given in real images, and the moving average of
the weights, which the original computes and does not use, is what validates and samples. Nothing is compiled: with a hundred steps, each a
network of its own, that would take longer than it saves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from triptych.data.config import AS_STORED, DataConfig
from triptych.engine.config import LogConfig, OptimConfig, TrainConfig
from triptych.flows.glow import GlowConfig, GlowSamplingConfig
from triptych.recipes.config import RunConfig

_BETAS = (0.9, 0.9898)  # of eight processes: 1 - 1 / (steps in 50,000 images)


def glow_digits() -> RunConfig:
    """Glow on the built-in 16x16 digits: minutes on two CPU cores.

    Held-out digits cost 2.5 bits per dimension at the end; they are enlarged from 8x8, so a value tells far less than one of a photograph.
    """
    return RunConfig(
        model=GlowConfig(levels=3, depth=10, width=96, memory="autograd", sampling=GlowSamplingConfig(temperature=(0.7,))),
        data=DataConfig(source="digits", image_size=16, flip=False),
        train=TrainConfig(
            total_images=200_000,
            batch_size=64,
            compile="off",
            ema_rates=(0.999,),
            checkpoint_every=20_000,
            sample_every=20_000,
            validate_every=20_000,
        ),
        optim=OptimConfig(name="adamax-glow", learning_rate=1e-3, warmup_images=12_800, warmup_share=0.1, betas=(0.9, 0.99)),
        log=LogConfig(every=3_200),
    )


def glow_mnist() -> RunConfig:
    """Glow on MNIST, 28x28, grey: an hour on two CPU cores, minutes on one GPU.

    The original pads the images to 32x32 and repeats them in three channels, so its bits per dimension are not comparable. data.path is a
    folder with the four idx files.
    """
    return RunConfig(
        model=GlowConfig(levels=2, depth=12, width=96, memory="autograd", sampling=GlowSamplingConfig(temperature=(0.7,))),
        data=DataConfig(image_size=28, labels="none", flip=False),
        train=TrainConfig(
            total_images=1_500_000,
            batch_size=64,
            compile="off",
            ema_rates=(0.999,),
            checkpoint_every=100_000,
            sample_every=100_000,
            validate_every=100_000,
            validate_images=10_000,
        ),
        optim=OptimConfig(name="adamax-glow", learning_rate=1e-3, warmup_images=64_000, warmup_share=0.1, betas=(0.9, 0.99)),
        log=LogConfig(every=6_400),
    )


def glow_cifar10() -> RunConfig:
    """Glow on CIFAR-10, 32x32, for likelihood, 44.6M parameters.

    Published: 3.35 bits per dimension (Kingma and Dhariwal 2018, Table 2) on the test images, after 1,800 of the original's epochs of
    50,000 images, which took eight GPUs days. data.path is the folder of .bin files.
    """
    return RunConfig(
        model=GlowConfig(),
        data=DataConfig(image_size=32, labels="none", flip=False, augment="shift"),
        train=TrainConfig(
            total_images=90_000_000,
            batch_size=512,
            compile="off",
            ema_rates=(0.999,),
            checkpoint_every=1_000_000,
            sample_every=1_000_000,
            validate_every=1_000_000,
            validate_images=10_000,
        ),
        optim=OptimConfig(name="adamax-glow", learning_rate=1e-3, warmup_images=500_000, betas=_BETAS),
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
    return _at_size(32, levels=3, batch_size=512)


def glow_imagenet32_cond() -> RunConfig:
    """Glow on ImageNet by class, 32x32, in 5 bits, additive, for samples, 57.7M parameters.

    The original's conditional model: classes set the distribution of the last latent, and are predicted from it with weight 0.01. Its
    README gives no figure, nor for how long it trains. data.path is a folder with one sub-folder for each class, or of the original's
    TFRecord files (imagenet).
    """
    recipe = _at_size(32, levels=3, batch_size=512, coupling="additive", bits=5, class_conditional=True, class_weight=0.01)
    return replace(recipe, data=replace(recipe.data, labels="auto"))


def glow_imagenet64() -> RunConfig:
    """Glow on ImageNet, 64x64, for likelihood, 112.4M parameters.

    Published: 3.81 bits per dimension (Kingma and Dhariwal 2018, Table 2) on the 50,000 validation images of the downsampled
    ImageNet of van den Oord et al. (2016). For how long, the original's README does not say. data.path is a folder, archive or array of
    those images.
    """
    return _at_size(64, levels=4, batch_size=128)


def glow_lsun_bedroom() -> RunConfig:
    """Glow on LSUN bedrooms, 64x64, for likelihood, 66.9M parameters.

    Published: 2.38 bits per dimension (Kingma and Dhariwal 2018, Table 2; the figure is taken from secondary sources) on 300 images. The
    squares of 64x64 are cut anywhere out of images whose short side is 96; those held out have the middle, where the original's have a
    random place too, which makes its figure vary. data.path is a folder of images, or of the original's TFRecord files (lsun_realnvp).
    """
    return _lsun()


def glow_lsun_church() -> RunConfig:
    """Glow on LSUN churches from outside, 64x64, for likelihood, 66.9M parameters.

    Published: 2.67 bits per dimension; all else as for glow-lsun-bedroom.
    """
    return _lsun()


def glow_lsun_tower() -> RunConfig:
    """Glow on LSUN towers, 64x64, for likelihood, 66.9M parameters.

    Published: 2.46 bits per dimension; all else as for glow-lsun-bedroom.
    """
    return _lsun()


def glow_lsun128() -> RunConfig:
    """Glow on LSUN, 128x128, in 5 bits, additive, for samples, 200.4M parameters.

    The original's README gives no figure, nor for how long it trains. data.path is a folder of bedrooms, churches or towers, or of the
    original's TFRecord files (lsun); the middle square of each image is made smaller. Memory does not grow with depth.
    """
    recipe = _at_size(128, levels=5, batch_size=160, depth=64, coupling="additive", bits=5, sampling=GlowSamplingConfig(temperature=(0.7,)))
    return replace(
        recipe,
        train=replace(recipe.train, validate_images=300, sample_count=16),
        optim=replace(recipe.optim, betas=(0.9, 0.95)),  # of 40 processes
    )


def glow_celebahq256() -> RunConfig:
    """Glow on CelebA-HQ, 256x256, in 5 bits, additive, for samples, 175.1M parameters.

    The original gives no figure in bits; on 40 GPUs its samples are decent after two days and it trains for a week, as its authors say
    (openai/glow, issue 37), which total_images is a guess at. Memory does not grow with depth (model.memory inversion). data.path is a
    folder of images, or of the original's TFRecord files (celeba).
    """
    recipe = _at_size(256, levels=6, batch_size=40, depth=32, coupling="additive", bits=5, sampling=GlowSamplingConfig(temperature=(0.7,)))
    train = replace(recipe.train, total_images=20_000_000, checkpoint_every=200_000, sample_every=200_000, validate_every=200_000)
    return replace(
        recipe,
        train=replace(train, validate_images=3_000, sample_count=16),
        optim=replace(recipe.optim, betas=(0.9, 0.95)),  # of 40 processes
    )


def _lsun() -> RunConfig:
    recipe = _at_size(64, levels=3, batch_size=128)
    return replace(recipe, data=replace(recipe.data, crop="random", resize=96), train=replace(recipe.train, validate_images=300))


def _at_size(image_size: int, *, levels: int, batch_size: int, depth: int = 48, **settings: Any) -> RunConfig:
    """glow-cifar10 at another size; what the original counts in images of 32x32, `init_images` and `warmup_images`, is rescaled."""
    recipe = glow_cifar10()
    area = (image_size // 32) ** 2
    return replace(
        recipe,
        model=GlowConfig(levels=levels, depth=depth, init_images=256 // area, memory="inversion", **settings),
        data=DataConfig(image_size=image_size, labels="none", flip=False).updated(AS_STORED),
        train=replace(recipe.train, batch_size=batch_size, validate_images=50_000),
        optim=replace(recipe.optim, warmup_images=recipe.optim.warmup_images // area),
    )
