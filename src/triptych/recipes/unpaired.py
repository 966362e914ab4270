"""Recipes of GANs that learn two domains of images without pairs.

The published ones are imaginaire's: its iterations times its images for each GPU, so on one process. Where it trains in float16 they
have bf16, which needs no scaling of the loss. Its images are resized to squares whatever their shape; here they are cut to squares.
"""

from __future__ import annotations

from dataclasses import replace

from triptych.data.config import AS_STORED
from triptych.data.domains import UnpairedDataConfig
from triptych.engine.config import LogConfig, OptimConfig, TrainConfig
from triptych.gans.discriminators import PatchDiscriminatorConfig, ResidualDiscriminatorConfig
from triptych.gans.init import InitConfig
from triptych.gans.losses import AdversarialConfig
from triptych.gans.munit import MUNITConfig, MUNITGeneratorConfig, MUNITTranslationConfig
from triptych.gans.unit import UNITConfig, UNITGeneratorConfig
from triptych.recipes.config import RunConfig

_MNIST_DISCRIMINATOR = PatchDiscriminatorConfig(num_discriminators=2, num_filters=24, max_num_filters=96, num_layers=2)


def unit_mnist() -> RunConfig:
    """UNIT between two kinds of 32x32 images, such as digits and coloured ones: a quarter of an hour on two CPU cores.

    data.path is a folder with images_a and images_b, or with train/images_a and so on; each may also be a .zip, .npz or other source
    (data.a, data.b). Images that are smaller are enlarged, and none is mirrored.
    """
    return RunConfig(
        model=UNITConfig(
            generator=UNITGeneratorConfig(num_filters=12, num_res_blocks=2),
            discriminator=_MNIST_DISCRIMINATOR,
            adversarial=AdversarialConfig(kind="least_square"),
            image_recon_weight=10.0,
            cycle_weight=10.0,
            initial=InitConfig(kind="normal", gain=0.02),
        ),
        data=UnpairedDataConfig(image_size=32, channels=3, flip=False, enlarge=True),
        train=TrainConfig(
            total_images=24_000,
            batch_size=8,
            compile="off",
            ema_rates=(0.999,),
            checkpoint_every=8_000,
            sample_every=8_000,
            sample_count=16,
            validate_every=8_000,
            validate_images=512,
        ),
        optim=OptimConfig(name="adam", learning_rate=2e-4, betas=(0.5, 0.999)),
        log=LogConfig(every=800),
    )


def munit_mnist() -> RunConfig:
    """MUNIT between two kinds of 32x32 images, such as digits and coloured ones: a quarter of an hour on two CPU cores.

    A digit has one content and a colour for each style. The data is that of unit-mnist.
    """
    recipe = unit_mnist()
    return replace(
        recipe,
        model=MUNITConfig(
            generator=MUNITGeneratorConfig(num_filters=12, num_res_blocks=2, num_downsamples_style=3, mlp_filters=64),
            discriminator=_MNIST_DISCRIMINATOR,
            image_recon_weight=10.0,
            cycle_weight=10.0,
            discriminator_rate=4.0,
            initial=InitConfig(kind="orthogonal", gain=1.0),
        ),
        train=replace(recipe.train, total_images=20_000),
        optim=replace(recipe.optim, learning_rate=1e-4),
    )


def unit_winter2summer() -> RunConfig:
    """UNIT between winter and summer, 512x512, 12.6M + 5.3M parameters.

    The settings published with imaginaire: 500,000 iterations of one image of each domain. The rate halves every 100 epochs, for which
    optim.decay_every supposes 1,200 images in the larger domain: give 100 times your own number. The average of the weights is taken there
    too, with default values: a rate of 0.9999 from step 1,000 on. data.path is a folder with images_a (winter) and images_b (summer), or
    with train/images_a and so on.
    """
    return RunConfig(
        model=UNITConfig(
            discriminator=PatchDiscriminatorConfig(num_discriminators=3, shared=True, num_filters=48),
            adversarial=AdversarialConfig(kind="least_square"),
            initial=InitConfig(kind="normal", gain=0.02),
        ),
        data=UnpairedDataConfig(image_size=512, channels=3, crop="random", resize=512, scale=0.2).updated(AS_STORED),
        train=TrainConfig(
            total_images=500_000,
            batch_size=1,
            ema_warmup=False,
            ema_start=1_000,
            checkpoint_every=20_000,
            sample_every=5_000,
            sample_count=8,
            validate_every=20_000,
            validate_images=256,
        ),
        optim=OptimConfig(name="adam", betas=(0.0, 0.999), schedule="step", decay_every=120_000, decay_factor=0.5),
        log=LogConfig(every=50),
    )


def munit_dog2cat() -> RunConfig:
    """MUNIT between dogs and cats, 256x256, 30.3M + 32.3M parameters.

    The settings published with imaginaire for AFHQ: 200,000 iterations of 16 images of each domain, the discriminator's rate four times the
    generator's. data.path is a folder with images_a (dogs) and images_b (cats), or with train/images_a and so on.
    """
    return _munit(
        MUNITConfig(
            discriminator=ResidualDiscriminatorConfig(),
            image_recon_weight=0.1,
            cycle_weight=0.0,
            discriminator_rate=4.0,
            initial=InitConfig(kind="orthogonal", gain=1.0),
        ),
        image_size=256,
        batch_size=16,
        sample_count=16,
    )


def munit_edges2shoes() -> RunConfig:
    """MUNIT between shoes and their edges, 256x256, 30.3M + 32.3M parameters.

    The settings published with imaginaire, with images from b to a as its examples have it: images_b of data.path are the edges, images_a
    the shoes. Else as munit-dog2cat.
    """
    recipe = munit_dog2cat()
    assert isinstance(recipe.model, MUNITConfig)
    translation = MUNITTranslationConfig(direction="b-to-a")
    return replace(recipe, model=replace(recipe.model, image_recon_weight=1.0, cycle_weight=1.0, translation=translation))


def munit_summer2winter_hd() -> RunConfig:
    """MUNIT between summer and winter, 1024x1024, 32.5M + 63.7M parameters.

    The settings published with imaginaire: 200,000 iterations of one image of each domain, else as munit-dog2cat. data.path is a folder
    with images_a (summer) and images_b (winter), or with train/images_a and so on.
    """
    recipe = munit_dog2cat()
    assert isinstance(recipe.model, MUNITConfig)
    return _munit(
        replace(
            recipe.model,
            generator=MUNITGeneratorConfig(num_downsamples_content=3),
            discriminator=PatchDiscriminatorConfig(num_discriminators=3, num_filters=48, max_num_filters=1024, num_layers=5),
            image_recon_weight=10.0,
            cycle_weight=10.0,
        ),
        image_size=1024,
        batch_size=1,
        sample_count=4,
    )


def _munit(model: MUNITConfig, *, image_size: int, batch_size: int, sample_count: int) -> RunConfig:
    """A published model and its training."""
    every = 5_000 * batch_size
    return RunConfig(
        model=model,
        data=UnpairedDataConfig(image_size=image_size, channels=3).updated(AS_STORED),
        train=TrainConfig(
            total_images=200_000 * batch_size,
            batch_size=batch_size,
            precision="bf16",
            ema_warmup=False,
            ema_start=1_000 * batch_size,
            checkpoint_every=every,
            sample_every=every,
            sample_count=sample_count,
            validate_every=every,
            validate_images=256,
        ),
        optim=OptimConfig(name="adam", betas=(0.5, 0.999)),
        log=LogConfig(every=100 * batch_size),
    )
