"""Recipes of EDM.

The published ones have the settings of "Elucidating the Design Space of Diffusion-Based Generative Models" (Karras et al. 2022,
https://arxiv.org/abs/2206.00364, Table 7) and its sampler for each data set. Published figures are the least of three runs of 50,000
samples. Mirrored images are among the augmentations, of which the network is told, so data.flip is off where these are on.

What differs in how they are trained here: the loss of a sample is a mean over its numbers, not their sum, and Adam's eps is smaller by as
much, so that each step is the same; bf16 where the original had fp16; and a gradient that is not finite ends the run.
"""

from __future__ import annotations

from dataclasses import replace

from triptych.data.config import DataConfig
from triptych.diffusion.continuous import LevelSamplingConfig
from triptych.diffusion.edm import EDMConfig
from triptych.diffusion.edm_augmentation import NonLeakingConfig
from triptych.diffusion.edm_networks import ADMUNetConfig, SongUNetConfig
from triptych.engine.config import AverageConfig, LogConfig, OptimConfig, TrainConfig
from triptych.nn.filters import BINOMIAL
from triptych.recipes.config import RunConfig


def edm_digits() -> RunConfig:
    """EDM on the built-in 16x16 digits, by class; small enough for two CPU cores."""
    network = SongUNetConfig(num_channels=32, channel_mult=(1, 2, 2), num_blocks=1, attention_resolutions=(8,), dropout=0.1)
    return RunConfig(
        model=EDMConfig(network=network, class_conditional=True, sampling=LevelSamplingConfig(steps=18)),
        data=DataConfig(source="digits", image_size=16, flip=False),
        train=TrainConfig(
            total_images=60_000,
            batch_size=64,
            precision="auto",
            ema_rates=(0.999,),
            checkpoint_every=15_000,
            sample_every=15_000,
            validate_every=15_000,
        ),
        optim=OptimConfig(learning_rate=1e-3, warmup_images=6_400, warmup_share=0.1, schedule="cosine"),
        log=LogConfig(every=3_200),
    )


def edm_photos64() -> RunConfig:
    """EDM at 64x64 on your own folder of images, 62M parameters; for one GPU.

    data.path is the folder, or a .zip, .tar or array. The network sees random changes of the images and is told of them, so that it makes
    images without changes; with few images raise model.augmentation.p and model.network.dropout, and watch the loss on held-out images.
    """
    recipe = _published(SongUNetConfig(dropout=0.1), image_size=64, batch_size=128, learning_rate=2e-4, augmentation=0.15, steps=40)
    return replace(
        recipe,
        data=replace(recipe.data, decode="reduced"),
        train=replace(
            recipe.train,
            total_images=10_000_000,
            precision="bf16",
            checkpoint_every=500_000,
            sample_every=500_000,
            validate_every=500_000,
        ),
        optim=replace(recipe.optim, warmup_images=1_000_000, warmup_share=0.1),
        log=LogConfig(every=6_400),
    )


def edm_cifar10() -> RunConfig:
    """EDM on CIFAR-10, 32x32, 55.7M parameters.

    DDPM++ with non-leaking augmentation, 200,000,000 images in batches of 512. Published: FID 1.97 with 35 network calls (Table 2).
    data.path is the folder of .bin files.
    """
    network = SongUNetConfig(channel_mult=(2, 2, 2), dropout=0.13)
    return _published(network, image_size=32, batch_size=512, learning_rate=1e-3, augmentation=0.12, steps=18)


def edm_cifar10_cond() -> RunConfig:
    """EDM on CIFAR-10 by class, 32x32, 55.7M parameters; as edm-cifar10. Published: FID 1.79 with 35 network calls (Table 2)."""
    return _by_class(edm_cifar10())


def edm_ffhq64() -> RunConfig:
    """EDM on FFHQ, 64x64, 61.8M parameters.

    DDPM++ with non-leaking augmentation, 200,000,000 images in batches of 256. Published: FID 2.39 with 79 network calls (Table 2).
    data.path is a folder or archive of images.
    """
    network = SongUNetConfig(dropout=0.05)
    return _published(network, image_size=64, batch_size=256, learning_rate=2e-4, augmentation=0.15, steps=40)


def edm_afhqv2() -> RunConfig:
    """EDM on AFHQv2, 64x64, 61.8M parameters.

    As edm-ffhq64 with more dropout, for it has fewer images. Published: FID 1.96 with 79 network calls (Table 2).
    """
    network = SongUNetConfig(dropout=0.25)
    return _published(network, image_size=64, batch_size=256, learning_rate=2e-4, augmentation=0.15, steps=40)


def edm_cifar10_ve() -> RunConfig:
    """EDM on CIFAR-10 with NCSN++, 32x32, 56.4M parameters; as edm-cifar10. Published: FID 1.98 with 35 network calls (Table 2)."""
    return _with_ncsnpp(edm_cifar10())


def edm_cifar10_cond_ve() -> RunConfig:
    """EDM on CIFAR-10 by class with NCSN++, 32x32, 56.4M parameters; as edm-cifar10. Published: FID 1.79, 35 network calls (Table 2)."""
    return _with_ncsnpp(edm_cifar10_cond())


def edm_ffhq64_ve() -> RunConfig:
    """EDM on FFHQ with NCSN++, 64x64, 62.8M parameters; as edm-ffhq64. Published: FID 2.53 with 79 network calls (Table 2)."""
    return _with_ncsnpp(edm_ffhq64())


def edm_afhqv2_ve() -> RunConfig:
    """EDM on AFHQv2 with NCSN++, 64x64, 62.8M parameters; as edm-afhqv2. Published: FID 2.16 with 79 network calls (Table 2)."""
    return _with_ncsnpp(edm_afhqv2())


def edm_imagenet64() -> RunConfig:
    """EDM on ImageNet by class, 64x64, 296M parameters.

    ADM's network without augmentation, 2,500,000,000 images in batches of 4096. Published: FID 1.36 with the stochastic sampler and 511
    network calls (Figure 5), which is the default here; 2.23 with 79 calls without noise. data.path is a folder with one sub-folder for
    each class. `train.microbatch` is for a GPU of 80 GB.
    """
    recipe = _by_class(_published(ADMUNetConfig(), image_size=64, batch_size=4096, learning_rate=1e-4, augmentation=0.0, steps=256))
    model, train = recipe.model, recipe.train
    assert isinstance(model, EDMConfig)
    sampling = replace(model.sampling, churn=40.0, churn_min=0.05, churn_max=50.0, churn_noise=1.003)
    train = replace(
        train,
        total_images=2_500_000_000,
        microbatch=64,
        precision="bf16",
        averages=(AverageConfig(half_life=50_000_000, ramp_up=0.05),),
        checkpoint_every=10_000_000,
        sample_every=10_000_000,
        validate_every=10_000_000,
    )
    return replace(recipe, model=replace(model, sampling=sampling), data=replace(recipe.data, flip=False), train=train)


def _published(
    network: SongUNetConfig | ADMUNetConfig, *, image_size: int, batch_size: int, learning_rate: float, augmentation: float, steps: int
) -> RunConfig:
    """What the published runs have in common; without labels."""
    every = 5_000_000
    return RunConfig(
        model=EDMConfig(network=network, augmentation=NonLeakingConfig(p=augmentation), sampling=LevelSamplingConfig(steps=steps)),
        data=DataConfig(image_size=image_size, labels="none", flip=False),
        train=TrainConfig(
            total_images=200_000_000,
            batch_size=batch_size,
            ema_rates=(),
            averages=(AverageConfig(half_life=500_000, ramp_up=0.05),),
            checkpoint_every=every,
            sample_every=every,
            validate_every=every,
        ),
        optim=OptimConfig(name="adam", learning_rate=learning_rate, eps=1e-8 / (3 * image_size**2), warmup_images=10_000_000),
        log=LogConfig(every=100 * batch_size),
    )


def _with_ncsnpp(recipe: RunConfig) -> RunConfig:
    """The same with the other network of the paper; its runs differ in nothing else."""
    assert isinstance(recipe.model, EDMConfig) and isinstance(recipe.model.network, SongUNetConfig)
    network = replace(recipe.model.network, embedding="fourier", embedding_mult=2, encoder="residual", resample_filter=BINOMIAL)
    return replace(recipe, model=replace(recipe.model, network=network))


def _by_class(recipe: RunConfig) -> RunConfig:
    assert isinstance(recipe.model, EDMConfig)
    return replace(recipe, model=replace(recipe.model, class_conditional=True), data=replace(recipe.data, labels="auto"))
