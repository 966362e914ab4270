"""Recipes of GANs that make images from noise.

How R3GAN's images are counted: in an iteration the discriminator's step has B real images and the generator's step B others. All of them
are images seen, 2 B an iteration, where the paper's tables count B. So what the tables say in images, the length of a run, its burn-in
and the half-life of the average, is doubled in these recipes (`_seen`); train.batch_size is B.
"""

from __future__ import annotations

from dataclasses import replace

from triptych.core.ramp import Ramp
from triptych.data.config import DataConfig, Source
from triptych.engine.config import AverageConfig, LogConfig, OptimConfig, PhaseOptimConfig, TrainConfig
from triptych.gans.ada import R3GAN_CHANGES, ADAConfig
from triptych.gans.r3gan import R3GANConfig, R3GANNetworkConfig
from triptych.recipes.config import RunConfig
from triptych.recipes.watching import watched, watched_cheaply


def r3gan_digits() -> RunConfig:
    """R3GAN on the built-in 16x16 digits, by class: minutes on two CPU cores."""
    return _small(image_size=16, source="digits", images=80_000, burn_in=50_000)


def r3gan_mnist() -> RunConfig:
    """R3GAN on MNIST, 28x28, by class: an hour on two CPU cores, minutes on one GPU.

    data.path is a folder with the four idx files.
    """
    return _small(image_size=28, source="auto", images=400_000, burn_in=50_000)


def r3gan_photos64() -> RunConfig:
    """R3GAN on your own folder of images, 64x64: a day on one GPU.

    The settings of r3gan-ffhq64 with networks of half the width, half the batch and a tenth of its images. Where the folder has a
    sub-folder for each class, --model.class-conditional learns them.
    """
    recipe = _published(
        _network(384, 384, 384, 384, 192, half_stages=4),
        image_size=64,
        batch_size=128,
        millions=10,
        burn_in=2,
        gamma=2,
        half_life=0.25,
        p=0.3,
    )
    return replace(recipe, data=DataConfig(image_size=64), train=replace(recipe.train, evaluate_every=400_000))


def r3gan_cifar10() -> RunConfig:
    """R3GAN on CIFAR-10, 32x32, 20.7M parameters.

    As r3gan-cifar10-cond, without labels; the paper has no figure for it.
    """
    recipe = r3gan_cifar10_cond()
    assert isinstance(recipe.model, R3GANConfig)
    return replace(recipe, model=replace(recipe.model, class_conditional=False), data=replace(recipe.data, labels="none"))


def r3gan_cifar10_cond() -> RunConfig:
    """R3GAN on CIFAR-10 by class, 32x32, 20.8M parameters.

    The settings of the paper (Huang et al. 2024, appendix D), which take four days on 8 L40. Published: FID 1.96. data.path is the folder
    of .bin files.
    """
    network = _network(768, 768, 768, 768)
    recipe = _published(network, image_size=32, batch_size=512, millions=250, gamma=0.05, half_life=5, p=0.55, class_conditional=True)
    return replace(recipe, data=replace(recipe.data, validation_fraction=_OF_TEST_IMAGES))


def r3gan_ffhq64() -> RunConfig:
    """R3GAN on FFHQ, 64x64, 22.4M parameters.

    The settings of the paper (Huang et al. 2024, appendix D). Published: FID 1.95. data.path is a folder or archive of the 70,000 images.
    """
    network = _network(768, 768, 768, 768, 384, half_stages=4)
    return _published(network, image_size=64, batch_size=256, millions=100, gamma=2, half_life=0.5, p=0.3)


def r3gan_ffhq256() -> RunConfig:
    """R3GAN on FFHQ, 256x256, 23.1M parameters.

    The settings of the paper (Huang et al. 2024, appendix D), but the length, which it does not give: that of r3gan-ffhq64. Published: FID
    2.75. data.path is a folder or archive of the 70,000 images.
    """
    network = _network(768, 768, 768, 768, 384, 192, 96, half_stages=4)
    return _published(network, image_size=256, batch_size=256, millions=100, gamma=150, half_life=0.5, p=0.3)


def r3gan_imagenet32() -> RunConfig:
    """R3GAN on ImageNet by class, 32x32, 82.9M parameters.

    The settings of the paper (Huang et al. 2024, appendix D), on 32 GPUs. Published: FID 1.27. data.path is a folder with one sub-folder
    for each class.
    """
    return _imagenet(_network(1536, 1536, 1536, 1536, group_channels=32), image_size=32, gamma=0.5, p=0.5)


def r3gan_imagenet64() -> RunConfig:
    """R3GAN on ImageNet by class, 64x64, 103.6M parameters.

    The settings of the paper (Huang et al. 2024, appendix D), some 5,000 hours of an H100 (64 of them were used). Published: FID 2.09.
    data.path is a folder with one sub-folder for each class.
    """
    return _imagenet(_network(1536, 1536, 1536, 1536, 1536, group_channels=32, half_stages=4), image_size=64, gamma=1, p=0.4)


def _imagenet(network: R3GANNetworkConfig, *, image_size: int, gamma: float, p: float) -> RunConfig:
    return _published(
        network,
        image_size=image_size,
        batch_size=4_096,
        millions=1_000,
        burn_in=200,
        gamma=gamma,
        half_life=50,
        p=p,
        class_conditional=True,
    )


def _published(
    network: R3GANNetworkConfig,
    *,
    image_size: int,
    batch_size: int,
    millions: float,
    gamma: float,
    half_life: float,
    p: float,
    burn_in: float = 20,
    class_conditional: bool = False,
) -> RunConfig:
    """A row of the paper's table of settings (appendix D), in its units: millions of images, of which an iteration counts one batch.

    All images are learned, as in the paper: nothing is held out.
    """
    every = _seen(millions / 250)
    return RunConfig(
        model=_model(network, gamma=gamma, ada=R3GAN_CHANGES, p=p, burn_in=_seen(burn_in), class_conditional=class_conditional),
        data=DataConfig(image_size=image_size, labels="auto" if class_conditional else "none", validation_fraction=0.0),
        train=watched(
            TrainConfig(
                total_images=_seen(millions),
                batch_size=batch_size,
                precision="bf16",
                ema_rates=(),
                averages=(AverageConfig(half_life=_ramp(0, _seen(half_life), _seen(burn_in))),),
                checkpoint_every=every,
                sample_every=every,
            )
        ),
        optim=_optim(_seen(burn_in)),
        log=LogConfig(every=50 * batch_size),
    )


def _small(*, image_size: int, source: Source, images: int, burn_in: int) -> RunConfig:
    """A small model of grey digits, by class, over so many images seen. It learns at a higher rate than the large ones do.

    The batch is small, for a game needs steps: with four times the images in a step they came less near to the data.
    """
    return RunConfig(
        model=_model(_network(64, 64, 64, half_stages=2), gamma=0.3, ada=_OF_DIGITS, p=0.3, burn_in=burn_in, class_conditional=True),
        data=DataConfig(source=source, image_size=image_size, flip=False),
        train=watched_cheaply(
            TrainConfig(
                total_images=images,
                batch_size=16,
                precision="auto",
                compile="off",
                ema_rates=(),
                averages=(AverageConfig(half_life=_ramp(0, 8_000, burn_in)),),
                checkpoint_every=images // 10,
                sample_every=images // 10,
            )
        ),
        optim=_optim(burn_in, rate=1e-3, falls_to=0.2),
        log=LogConfig(every=3_200),
    )


_OF_TEST_IMAGES = DataConfig().validation_fraction
"""Holds out the test images of a set that has some, and so none of those that are learned."""

_OF_DIGITS = replace(R3GAN_CHANGES, x_flip=0.0, rotation_90=0.0, rotation=0.0, hue_rotation=0.0, saturation=0.0)
"""Changes that leave a digit what it is; grey images have no colours."""


def _model(network: R3GANNetworkConfig, *, gamma: float, ada: ADAConfig, p: float, burn_in: int, class_conditional: bool) -> R3GANConfig:
    """Both networks alike. Over the burn-in gamma falls to a tenth, on real and on generated images, and augmentation sets in."""
    falling = _ramp(gamma, gamma / 10, burn_in)
    return R3GANConfig(
        generator=network,
        discriminator=network,
        penalty=replace(R3GANConfig().penalty, r1_gamma=falling, r2_gamma=falling),
        ada=replace(ada, p=_ramp(0, p, burn_in)),
        class_conditional=class_conditional,
    )


def _network(*widths: int, group_channels: int = 16, half_stages: int = 3) -> R3GANNetworkConfig:
    return R3GANNetworkConfig(widths=widths, group_channels=group_channels, half_stages=half_stages)


def _optim(burn_in: int, *, rate: float = 2e-4, falls_to: float = 0.25) -> OptimConfig:
    """Adam with the learning rate from `rate` to `falls_to` of it, and beta2 from 0.9 to 0.99."""
    change = PhaseOptimConfig(rate_factor=_ramp(1, falls_to, burn_in), beta2=_ramp(0.9, 0.99, burn_in))
    return OptimConfig(name="adam", learning_rate=rate, betas=(0.0, 0.9), phases=(change,))


def _ramp(start: float, end: float, images: int) -> Ramp:
    return Ramp(start=start, end=end, images=images)


def _seen(millions: float) -> int:
    """Images seen where the paper counts so many million."""
    return round(2_000_000 * millions)
