"""Recipes of StyleGAN2 with ADA.

The published ones have the settings of "Training Generative Adversarial Networks with Limited Data" (Karras et al. 2020,
https://arxiv.org/abs/2006.06676): its `auto` for any images, and those that its figures were made with. Where a phase is lazy, every k
iterations, the optimizer's settings are those of so many more steps: the learning rate times k / (k + 1), and beta2 to that power. Those
of `optim` itself are before this correction.

What differs in how they are trained here: bf16 where the original had fp16, in the same four resolutions; and a gradient that is not finite
ends the run, where the original took it for 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from triptych.data.config import DataConfig
from triptych.engine.config import AverageConfig, LogConfig, OptimConfig, PhaseOptimConfig, TrainConfig
from triptych.gans.ada import ADAConfig
from triptych.gans.model import DISCRIMINATOR, GENERATOR, PENALTY
from triptych.gans.penalties import PenaltyConfig
from triptych.gans.stylegan2 import PATH, PathConfig, StyleGAN2Config
from triptych.gans.stylegan2_layers import StyleGAN2DiscriminatorConfig, StyleGAN2GeneratorConfig
from triptych.recipes.config import RunConfig
from triptych.recipes.watching import watched, watched_cheaply

_ADA = ADAConfig(target=0.6)


def stylegan2_digits() -> RunConfig:
    """StyleGAN2 on the built-in 16x16 digits: minutes on two CPU cores.

    Without classes: by class, with 170 images of each, the images of a class become all alike.
    """
    recipe = _small(DataConfig(source="digits", image_size=16, flip=False), images=200_000)
    return replace(recipe, model=replace(recipe.model, class_conditional=False))


def stylegan2_mnist() -> RunConfig:
    """StyleGAN2 on MNIST, 28x28 with a border of 2, by class: an hour on two CPU cores, minutes on one GPU.

    The networks double sizes from 4x4 on, so the images are padded to 32x32. data.path is a folder with the four idx files.
    """
    return _small(DataConfig(image_size=32, pad=2, channels=1, flip=False), images=400_000)


def stylegan2_photos64() -> RunConfig:
    """StyleGAN2 with ADA on your own folder of images, 64x64: a day on one GPU.

    The settings of stylegan2-auto64, with mirrored images, for a fifth of its length. Where the folder has a sub-folder for each class,
    --model.class-conditional learns them.
    """
    recipe = _auto(64)
    train = replace(recipe.train, total_images=5_000_000, checkpoint_every=100_000, sample_every=100_000, evaluate_every=100_000)
    return replace(recipe, data=DataConfig(image_size=64), train=train)


def stylegan2_auto64() -> RunConfig:
    """StyleGAN2 with ADA on any images, 64x64, for one GPU, 22.2M parameters.

    The `auto` of StyleGAN2-ADA, which chooses batch, learning rate and weight of R1 by resolution and number of GPUs. data.path is a folder
    or archive of images.
    """
    return _auto(64)


def stylegan2_auto128() -> RunConfig:
    """StyleGAN2 with ADA on any images, 128x128, for one GPU, 22.9M parameters; as stylegan2-auto64."""
    return _auto(128)


def stylegan2_auto256() -> RunConfig:
    """StyleGAN2 with ADA on any images, 256x256, for one GPU, 23.2M parameters; as stylegan2-auto64."""
    return _auto(256)


def stylegan2_auto512() -> RunConfig:
    """StyleGAN2 with ADA on any images, 512x512, for one GPU, 28.7M parameters; as stylegan2-auto64."""
    return _auto(512)


def stylegan2_auto1024() -> RunConfig:
    """StyleGAN2 with ADA on any images, 1024x1024, for one GPU, 28.8M parameters; as stylegan2-auto64."""
    return _auto(1024)


def stylegan2_ffhq1024() -> RunConfig:
    """StyleGAN2 on FFHQ, 1024x1024, 30.4M parameters.

    Configuration F of the paper (Karras et al. 2020, Table 1), without ADA, on eight GPUs. Published: FID 2.84. data.path is a folder or
    archive of the 70,000 images.
    """
    recipe = _published(1024, batch_size=32, group=4, rate=0.002, gamma=10, half_life=10_000, flip=True)
    return replace(recipe, model=replace(recipe.model, ada=ADAConfig()))


def stylegan2_paper256() -> RunConfig:
    """StyleGAN2 with ADA, 256x256, 24.8M parameters.

    The settings of the figures on FFHQ and LSUN Cat of ADA's paper, on eight GPUs. Images are mirrored, as in the figures on all of FFHQ;
    LSUN Cat's were not: --data.flip False. data.path is a folder or archive of images.
    """
    return _published(256, batch_size=64, group=8, rate=0.0025, gamma=1, half_life=20_000, flip=True)


def stylegan2_paper512() -> RunConfig:
    """StyleGAN2 with ADA, 512x512, 30.3M parameters.

    The settings of the figures on AFHQ and BreCaHAD of ADA's paper, on eight GPUs. data.path is a folder or archive of images.
    """
    return _published(512, batch_size=64, group=8, rate=0.0025, gamma=0.5, half_life=20_000, flip=True)


def stylegan2_paper1024() -> RunConfig:
    """StyleGAN2 with ADA, 1024x1024, 30.4M parameters.

    The settings of the figures on MetFaces of ADA's paper, on eight GPUs. data.path is a folder or archive of images.
    """
    return _published(1024, batch_size=32, group=4, rate=0.002, gamma=2, half_life=10_000, flip=True)


def stylegan2_cifar10() -> RunConfig:
    """StyleGAN2 with ADA on CIFAR-10, 32x32, 19.9M parameters.

    As stylegan2-cifar10-cond, without labels. Published: FID 2.92.
    """
    recipe = stylegan2_cifar10_cond()
    data = replace(recipe.data, labels="none")
    return replace(recipe, model=replace(recipe.model, class_conditional=False), data=data)


def stylegan2_cifar10_cond() -> RunConfig:
    """StyleGAN2 with ADA on CIFAR-10 by class, 32x32, 20.2M parameters.

    The settings tuned for it in ADA's paper: no path length regularization, no style mixing, a discriminator without residual connections.
    Published: FID 2.42. data.path is the folder of .bin files.
    """
    recipe = _published(
        32, batch_size=64, group=32, rate=0.0025, gamma=0.01, half_life=500_000, ramp_up=0.05, layers=2, architecture="plain", millions=100
    )
    model = recipe.model
    assert isinstance(model, StyleGAN2Config)
    # The path's phase did nothing in the original, and the optimizer's settings were those of a run with it.
    model = replace(model, class_conditional=True, path=PathConfig(weight=0.0), style_mixing=0.0)
    # CIFAR-10 has test images of its own, which are held out: all others are learned.
    return replace(recipe, model=model, data=replace(recipe.data, validation_fraction=DataConfig().validation_fraction))


def _auto(image_size: int, *, gpus: int = 1) -> RunConfig:
    """StyleGAN2-ADA's choice for images of that size on so many GPUs."""
    batch = max(min(gpus * min(4096 // image_size, 32), 64), gpus)
    return _published(
        image_size,
        batch_size=batch,
        group=min(batch // gpus, 4),
        rate=0.002 if image_size >= 1024 else 0.0025,
        gamma=0.0002 * image_size**2 / batch,
        half_life=round(10_000 * batch / 32),
        ramp_up=0.05,
        layers=2,
    )


def _published(
    image_size: int,
    *,
    batch_size: int,
    group: int,
    rate: float,
    gamma: float,
    half_life: int,
    ramp_up: float | None = None,
    layers: int = 8,
    architecture: Literal["residual", "plain"] = "residual",
    millions: int = 25,
    flip: bool = False,
) -> RunConfig:
    """A row of the table of settings. `layers`: of the mapping network; `group`: of minibatch deviation; half_life: of the average.

    All images are learned, as in the original: nothing is held out.
    """
    base = 16_384 if 32 < image_size < 512 else 32_768
    return RunConfig(
        model=StyleGAN2Config(
            generator=StyleGAN2GeneratorConfig(base_channels=base, mapping_layers=layers, conv_clamp=256.0),
            discriminator=StyleGAN2DiscriminatorConfig(base_channels=base, group_size=group, architecture=architecture, conv_clamp=256.0),
            penalty=PenaltyConfig(r1_gamma=gamma, every=16, at="original"),
            ada=_ADA,
        ),
        data=DataConfig(image_size=image_size, flip=flip, validation_fraction=0.0),
        train=watched(
            TrainConfig(
                total_images=millions * 1_000_000,
                batch_size=batch_size,
                precision="bf16",
                ema_rates=(),
                averages=(AverageConfig(half_life=half_life, ramp_up=ramp_up),),
                checkpoint_every=200_000,
                sample_every=200_000,
            )
        ),
        optim=_lazy(rate),
        log=LogConfig(every=100 * batch_size),
    )


def _small(data: DataConfig, *, images: int) -> RunConfig:
    """A small model of grey digits, by class, over so many images seen."""
    base = 32 * data.image_size
    return RunConfig(
        model=StyleGAN2Config(
            latent_dims=64,
            class_conditional=True,
            generator=StyleGAN2GeneratorConfig(base_channels=base, max_channels=64, mapping_layers=2, style_dims=64),
            discriminator=StyleGAN2DiscriminatorConfig(base_channels=base, max_channels=64, mapping_layers=2),
            penalty=PenaltyConfig(r1_gamma=0.5, every=16, at="original"),
            # Changes that leave a digit what it is; grey images have no colours.
            ada=replace(_ADA, x_flip=0.0, rotation_90=0.0, rotation=0.0, hue_rotation=0.0, saturation=0.0, images=50_000),
        ),
        data=data,
        train=watched_cheaply(
            TrainConfig(
                total_images=images,
                batch_size=32,
                precision="auto",
                compile="off",
                ema_rates=(),
                averages=(AverageConfig(half_life=5_000, ramp_up=0.05),),
                checkpoint_every=images // 10,
                sample_every=images // 10,
            )
        ),
        optim=_lazy(0.0025),
        log=LogConfig(every=3_200),
    )


def _lazy(rate: float) -> OptimConfig:
    """Adam with a path length every 4 iterations, for the generator's phases, and R1 every 16, for the discriminator's."""
    corrections = {DISCRIMINATOR: 16 / 17, PENALTY: 16 / 17, GENERATOR: 4 / 5, PATH: 4 / 5}
    phases = tuple(PhaseOptimConfig(phase=phase, rate_factor=share, beta2_power=share) for phase, share in corrections.items())
    return OptimConfig(name="adam", learning_rate=rate, betas=(0.0, 0.99), phases=phases)
