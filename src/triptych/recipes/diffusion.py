"""Recipes of the diffusion family."""

from __future__ import annotations

from dataclasses import replace

from triptych.data.config import AS_STORED, DataConfig
from triptych.diffusion.adm import ADMConfig
from triptych.diffusion.blocks import AttentionOrder
from triptych.diffusion.gaussian import GaussianConfig
from triptych.diffusion.model import SamplingConfig
from triptych.diffusion.schedules import ScheduleName
from triptych.diffusion.unet import UNetConfig
from triptych.engine.config import LogConfig, OptimConfig, TrainConfig
from triptych.recipes.config import RunConfig


def adm_digits() -> RunConfig:
    """Class-conditional diffusion on the built-in 16x16 digits: minutes on two CPU cores."""
    return RunConfig(
        model=ADMConfig(
            network=UNetConfig(
                num_channels=32,
                num_res_blocks=1,
                channel_mult=(1, 2, 2),
                attention_resolutions=(8,),
                num_head_channels=32,
                resblock_updown=True,
                dropout=0.1,
            ),
            # v weighs the noisy steps, which decide the shape, more than epsilon does: recognisable digits after half as many images.
            diffusion=GaussianConfig(schedule="cosine", mean="v", variance="fixed_small"),
            class_conditional=True,
            sampling=SamplingConfig(sampler="ddim", steps=50, clip_guided=True),
        ),
        data=DataConfig(source="digits", image_size=16, flip=False),
        train=TrainConfig(
            total_images=40_000,
            batch_size=64,
            precision="auto",
            ema_rates=(0.999,),
            checkpoint_every=10_000,
            sample_every=10_000,
            validate_every=10_000,
        ),
        optim=OptimConfig(learning_rate=1e-3, warmup_images=6_400, warmup_share=0.1, schedule="cosine"),
        log=LogConfig(every=3_200),
    )


def adm_digits_uncond() -> RunConfig:
    """Diffusion on the built-in 16x16 digits without their labels, to be guided by classifier-digits: minutes on two CPU cores."""
    recipe = adm_digits()
    assert isinstance(recipe.model, ADMConfig)
    return replace(recipe, model=replace(recipe.model, class_conditional=False))


def adm_mnist() -> RunConfig:
    """Class-conditional diffusion on MNIST, 28x28: an hour on one GPU.

    data.path is a folder with the four idx files.
    """
    return RunConfig(
        model=ADMConfig(
            network=UNetConfig(num_channels=64, attention_resolutions=(14, 7), num_head_channels=32, resblock_updown=True, dropout=0.1),
            diffusion=GaussianConfig(schedule="cosine", variance="learned_range", loss="rescaled_mse"),
            class_conditional=True,
            sampling=SamplingConfig(sampler="ddim", steps=50, clip_guided=True),
        ),
        data=DataConfig(image_size=28, flip=False),
        train=TrainConfig(total_images=3_000_000, batch_size=128, precision="auto", ema_rates=(0.999, 0.9999)),
        optim=OptimConfig(learning_rate=3e-4, warmup_images=64_000, warmup_share=0.1),
    )


def adm_cifar10() -> RunConfig:
    """Improved DDPM on CIFAR-10, unconditional, 32x32, hybrid loss, 52.5M parameters.

    The settings published with improved-diffusion's cifar10_uncond_50M_500K: T = 4000, cosine, 500,000 steps of 128 images at
    learning rate 1e-4 without decay of it, dropout 0.3, average of the weights at 0.9999, no mirroring. Published: FID 3.19
    and 3.17 bits per dimension with all 4000 steps (Nichol and Dhariwal 2021, Table 2). data.path is the folder of .bin files.
    """
    return RunConfig(
        model=ADMConfig(
            network=UNetConfig(num_channels=128, num_res_blocks=3, attention_resolutions=(16, 8), num_heads=4, dropout=0.3),
            diffusion=GaussianConfig(steps=4000, schedule="cosine", variance="learned_range", loss="rescaled_mse", rescale_timesteps=True),
            sampling=SamplingConfig(steps=250),
        ),
        data=DataConfig(image_size=32, labels="none", flip=False),
        train=TrainConfig(total_images=64_000_000, batch_size=128, checkpoint_every=2_000_000, sample_every=2_000_000),
        optim=OptimConfig(learning_rate=1e-4),
        log=LogConfig(every=12_800),
    )


def adm_cifar10_vlb() -> RunConfig:
    """Improved DDPM on CIFAR-10 trained on the variational bound alone, for likelihood.

    As adm-cifar10, with the bound as the loss and timesteps drawn by their losses, improved-diffusion's cifar10_uncond_vlb_50M_500K.
    Published: 2.94 bits per dimension, FID 11.47 (Nichol and Dhariwal 2021, Table 2).
    """
    return _on_the_bound(adm_cifar10())


def adm_imagenet64_uncond() -> RunConfig:
    """Improved DDPM on ImageNet without labels, 64x64, hybrid loss, 121M parameters.

    The settings published with improved-diffusion's imagenet64_uncond_100M_1500K: T = 4000, cosine, 1,500,000 steps of 128 images at
    learning rate 1e-4, no dropout, else as adm-cifar10. Published: FID 19.2 and 3.57 bits per dimension with all 4000 steps (Nichol and
    Dhariwal 2021), on the downsampled ImageNet of van den Oord et al. (2016). data.path is a folder, archive or array of those images.
    """
    recipe = adm_cifar10()
    model = recipe.model
    assert isinstance(model, ADMConfig) and isinstance(model.network, UNetConfig)
    return replace(
        recipe,
        model=replace(model, network=replace(model.network, dropout=0.0)),
        data=replace(recipe.data, image_size=64).updated(AS_STORED),
        train=replace(recipe.train, total_images=1_500_000 * 128),
    )


def adm_imagenet64_uncond_vlb() -> RunConfig:
    """Improved DDPM on ImageNet without labels, 64x64, trained on the variational bound alone, for likelihood.

    As adm-imagenet64-uncond, with the bound as the loss and timesteps drawn by their losses, improved-diffusion's
    imagenet64_uncond_vlb_100M_1500K. Published: 3.53 bits per dimension, FID 40.1 (Nichol and Dhariwal 2021).
    """
    return _on_the_bound(adm_imagenet64_uncond())


def adm_imagenet64_improved() -> RunConfig:
    """Improved DDPM on ImageNet by class, 64x64, 273M parameters.

    The settings published with improved-diffusion's imagenet64_cond_270M_250K: T = 4000, cosine, 250,000 steps of 2048 images at learning
    rate 3e-4; unlike adm-cifar10 without dropout, and with neither the timesteps nor the bound's term of the loss rescaled. Published: FID
    2.92 (Nichol and Dhariwal 2021). data.path is a folder with one sub-folder for each class. `train.microbatch` is for a GPU of 80 GB.
    """
    recipe = adm_imagenet64_uncond()
    model = recipe.model
    assert isinstance(model, ADMConfig)
    batch_size = 2_048
    return replace(
        recipe,
        model=replace(
            model,
            network=replace(model.network, num_channels=192),
            diffusion=replace(model.diffusion, loss="mse", rescale_timesteps=False),
            class_conditional=True,
        ),
        data=replace(recipe.data, labels="folder"),
        train=replace(
            recipe.train,
            total_images=250_000 * batch_size,
            batch_size=batch_size,
            microbatch=32,
            checkpoint_every=2_500 * batch_size,
            sample_every=2_500 * batch_size,
            validate_every=2_500 * batch_size,
        ),
        optim=OptimConfig(learning_rate=3e-4),
        log=LogConfig(every=100 * batch_size),
    )


def adm_imagenet64() -> RunConfig:
    """ADM on ImageNet, class-conditional, 64x64, 296M parameters.

    The network of the published 64x64_diffusion, and its training (Dhariwal and Nichol 2021, appendix I): 540,000 steps of 2048
    images at learning rate 3e-4 in half precision. Published: FID 2.07, precision 0.74, recall 0.63 on 50,000 samples with 250 steps,
    guided at scale 1 (classifier-imagenet64). data.path is a folder with one sub-folder for each class. `train.microbatch` is for a
    GPU of 80 GB.
    """
    network = _network(num_channels=192, num_res_blocks=3, attention_order="new", dropout=0.1)
    return _published(network, image_size=64, schedule="cosine", steps=540_000, batch_size=2_048, learning_rate=3e-4, microbatch=64)


def adm_imagenet128() -> RunConfig:
    """ADM on ImageNet, class-conditional, 128x128, 422M parameters.

    The network of the published 128x128_diffusion, and its training (Dhariwal and Nichol 2021, appendix I): 4,360,000 steps of 256
    images. Published: FID 2.97, precision 0.78, recall 0.59 on 50,000 samples with 250 steps, guided at scale 0.5
    (classifier-imagenet128); also with 25 steps of DDIM ("ddim25") at scale 1. data.path is a folder with one sub-folder for each class.
    """
    return _published(_network(num_head_channels=None), image_size=128, steps=4_360_000, microbatch=32)


def adm_imagenet256() -> RunConfig:
    """ADM on ImageNet, class-conditional, 256x256, 554M parameters.

    The network of the published 256x256_diffusion, and its training (Dhariwal and Nichol 2021, appendix I): 1,980,000 steps of 256
    images. Published: FID 4.59, precision 0.82, recall 0.52 on 50,000 samples with 250 steps, guided at scale 1
    (classifier-imagenet256). data.path is a folder with one sub-folder for each class.
    """
    return _published(_network(), image_size=256, steps=1_980_000, microbatch=8)


def adm_imagenet256_uncond() -> RunConfig:
    """ADM on ImageNet without labels, 256x256, 553M parameters.

    The network of the published 256x256_diffusion_uncond, to be guided at scale 10 by classifier-imagenet256; no figures were published
    for it, and its training settings are those of adm-imagenet256. data.path is a folder of images.
    """
    return _published(_network(), image_size=256, steps=1_980_000, microbatch=8, labelled=False)


def adm_imagenet512() -> RunConfig:
    """ADM on ImageNet, class-conditional, 512x512, 559M parameters.

    The network of the published 512x512_diffusion, and its training (Dhariwal and Nichol 2021, appendix I): 1,940,000 steps of 256
    images. Published: FID 7.72, precision 0.87, recall 0.42 on 50,000 samples with 250 steps, guided at scale 4
    (classifier-imagenet512). data.path is a folder with one sub-folder for each class.
    """
    return _published(_network(), image_size=512, steps=1_940_000, microbatch=2)


def adm_lsun_bedroom() -> RunConfig:
    """ADM on LSUN bedrooms, 256x256, 553M parameters.

    The network of the published lsun_bedroom, and its training (Dhariwal and Nichol 2021, appendix I): 500,000 steps of 256 images.
    Published: FID 1.90, precision 0.66, recall 0.51 on 50,000 samples with all 1000 steps, unguided. data.path is a folder of images.
    """
    return _lsun(steps=500_000)


def adm_lsun_bedroom_improved() -> RunConfig:
    """Improved DDPM on LSUN bedrooms, 256x256, 113.7M parameters.

    The settings published with improved-diffusion's lsun_uncond_100M_1200K_bs128: the network of DDPM, of which the variance is learned
    too, T = 1000, linear, 1,200,000 steps of 128 images at learning rate 1e-4, no dropout, no mirroring. data.path is a folder of images.
    """
    recipe = adm_imagenet64_uncond()
    network = UNetConfig(num_channels=128, num_res_blocks=2, attention_resolutions=(16,), num_heads=1, scale_shift_norm=False)
    return replace(
        recipe,
        model=ADMConfig(network=network, diffusion=GaussianConfig(variance="learned_range"), sampling=SamplingConfig(steps=250)),
        data=replace(recipe.data, image_size=256),
        train=replace(recipe.train, total_images=1_200_000 * 128, microbatch=8),
    )


def adm_lsun_cat() -> RunConfig:
    """ADM on LSUN cats, 256x256, 553M parameters.

    The network of the published lsun_cat, and its training (Dhariwal and Nichol 2021, appendix I): 200,000 steps of 256 images.
    Published: FID 5.57, precision 0.63, recall 0.52 on 50,000 samples with all 1000 steps, unguided. data.path is a folder of images.
    """
    return _lsun(steps=200_000)


def adm_lsun_horse() -> RunConfig:
    """ADM on LSUN horses, 256x256, 553M parameters.

    The network of the published lsun_horse, and its training (Dhariwal and Nichol 2021, appendix I): 250,000 steps of 256 images.
    Published: FID 2.57, precision 0.71, recall 0.55 on 50,000 samples with all 1000 steps, unguided. data.path is a folder of images;
    the published lsun_horse_nodropout is this with model.network.dropout 0.
    """
    return _lsun(steps=250_000)


def adm_photos64() -> RunConfig:
    """Diffusion at 64x64 on your own folder of images, 100M parameters: a day on one GPU.

    data.path is the folder, or a .zip, .tar or array. A small set of images needs fewer of them seen and more dropout: watch the
    loss on held-out images.
    """
    return RunConfig(
        model=ADMConfig(
            network=UNetConfig(attention_resolutions=(16, 8), num_head_channels=64, resblock_updown=True, dropout=0.1),
            diffusion=GaussianConfig(schedule="cosine", variance="learned_range"),
            sampling=SamplingConfig(sampler="ddim", steps=50, clip_guided=True),
        ),
        data=DataConfig(image_size=64, labels="none", decode="reduced"),
        train=TrainConfig(total_images=10_000_000, batch_size=64, precision="bf16"),
        optim=OptimConfig(learning_rate=1e-4, warmup_images=64_000, warmup_share=0.1),
        log=LogConfig(every=6_400),
    )


def _on_the_bound(recipe: RunConfig) -> RunConfig:
    """The same with the variational bound as the loss, and timesteps drawn by their losses."""
    model = recipe.model
    assert isinstance(model, ADMConfig)
    diffusion = replace(model.diffusion, loss="rescaled_kl")
    return replace(recipe, model=replace(model, diffusion=diffusion, timestep_sampler="loss-second-moment"))


def _network(
    *,
    num_channels: int = 256,
    num_res_blocks: int = 2,
    num_head_channels: int | None = 64,
    attention_order: AttentionOrder = "legacy",
    dropout: float = 0.0,
) -> UNetConfig:
    """What the published networks have in common."""
    return UNetConfig(
        num_channels=num_channels,
        num_res_blocks=num_res_blocks,
        attention_resolutions=(32, 16, 8),
        num_head_channels=num_head_channels,
        attention_order=attention_order,
        resblock_updown=True,
        dropout=dropout,
    )


def _published(
    network: UNetConfig,
    *,
    image_size: int,
    steps: int,
    microbatch: int,
    schedule: ScheduleName = "linear",
    batch_size: int = 256,
    learning_rate: float = 1e-4,
    labelled: bool = True,
) -> RunConfig:
    """A published model and its training."""
    every = 10_000 * batch_size
    return RunConfig(
        model=ADMConfig(
            network=network,
            diffusion=GaussianConfig(schedule=schedule, variance="learned_range"),
            class_conditional=labelled,
            sampling=SamplingConfig(steps=250),
        ),
        data=DataConfig(image_size=image_size, labels="folder" if labelled else "none").updated(AS_STORED),
        train=TrainConfig(
            total_images=steps * batch_size,
            batch_size=batch_size,
            microbatch=microbatch,
            precision="bf16",
            checkpoint_every=every,
            sample_every=every,
            validate_every=every,
        ),
        optim=OptimConfig(learning_rate=learning_rate),
        log=LogConfig(every=100 * batch_size),
    )


def _lsun(*, steps: int) -> RunConfig:
    recipe = _published(_network(dropout=0.1), image_size=256, steps=steps, microbatch=8, labelled=False)
    assert isinstance(recipe.model, ADMConfig)
    return replace(recipe, model=replace(recipe.model, sampling=SamplingConfig()))
