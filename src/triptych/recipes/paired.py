"""Recipes of the GANs that learn from pairs: SPADE and pix2pixHD.

The published models are those of NVlabs/imaginaire. Its counts are in epochs and iterations, of eight processes; here they are images:
118,000 in an epoch of COCO-Stuff, 2,975 of Cityscapes. Its sum of the divergence over a process's batch of 4, with weight 0.05, is a mean
with weight 0.2. It trains in float16, these in float32. data.path holds train/ and val/ with a folder for each type, files of one name
belonging together; model.perceptual.weights is a file of VGG-19's weights with the names of torchvision.
"""

from __future__ import annotations

from dataclasses import replace

from triptych.data.config import AS_STORED
from triptych.data.pairs import PairedDataConfig
from triptych.engine.config import LogConfig, OptimConfig, TrainConfig
from triptych.gans.discriminators import PatchDiscriminatorConfig
from triptych.gans.init import InitConfig
from triptych.gans.pix2pixhd import Pix2PixHDConfig, Pix2PixHDGeneratorConfig
from triptych.gans.spade import SPADEConfig, SPADEDiscriminatorConfig, SPADEGeneratorConfig
from triptych.recipes.config import RunConfig

_COCO, _CITYSCAPES = 118_000, 2_975
"""Training images."""
_PROCESSES = 8

_INITIAL = InitConfig(gain=1.0)
"""The usual gain of 0.02 gives weights so small that the first steps, at learning rate 0.0004, would be larger than the weights."""


def spade_camvid() -> RunConfig:
    """SPADE on the street scenes of CamVid, 64x96, without a perceptual network: under twenty minutes on two CPU cores.

    data.path holds train/ and val/, each with images/ (photos) and labels/ (maps of the classes 0 to 11).
    """
    return RunConfig(
        model=SPADEConfig(
            generator=SPADEGeneratorConfig(
                num_filters=12, style_dims=32, spade_filters=24, spade_kernel_size=3, encoder_filters=16, encoder_size=64
            ),
            discriminator=SPADEDiscriminatorConfig(patch=PatchDiscriminatorConfig(kernel_size=4, num_filters=24, num_layers=3)),
            perceptual_weight=0.0,
            l1_weight=5.0,
            kl_weight=0.05,
            discriminator_rate=2.0,
            initial=_INITIAL,
        ),
        data=PairedDataConfig(maps=("labels",), num_classes=(12,), image_size=64, width=96, crop="random", scale=0.2),
        train=TrainConfig(
            total_images=12_000,
            batch_size=6,
            compile="off",
            ema_rates=(0.999,),
            ema_start=6 * 200,
            checkpoint_every=6_000,
            sample_every=3_000,
            sample_count=8,
            validate_every=3_000,
        ),
        optim=OptimConfig(name="adam", learning_rate=4e-4, betas=(0.0, 0.999), schedule="linear", decay_start=6_000),
        log=LogConfig(every=600),
    )


def pix2pixhd_camvid() -> RunConfig:
    """pix2pixHD on the street scenes of CamVid, 64x96, without a perceptual network: under twenty minutes on two CPU cores.

    data.path holds train/ and val/, each with images/ (photos) and labels/ (maps of the classes 0 to 11).
    """
    recipe = spade_camvid()
    return replace(
        recipe,
        model=Pix2PixHDConfig(
            generator=Pix2PixHDGeneratorConfig(num_filters=24, num_downsamples=3, num_res_blocks=4),
            discriminator=PatchDiscriminatorConfig(num_filters=24, num_layers=3, norm="instance"),
            perceptual_weight=0.0,
            l1_weight=5.0,
            initial=_INITIAL,
        ),
        optim=replace(recipe.optim, betas=(0.5, 0.999)),
    )


def spade_coco256() -> RunConfig:
    """SPADE on COCO-Stuff, 256x256, 415.3M parameters, as imaginaire published it.

    183 classes and one for what has none, and the edges of the instances: data.path has the folders images, labels and instances. 400
    epochs of 118,000 images took eight V100 of 32 GB two to three weeks, in float16; here in float32, and --train.precision bf16 is nearer.
    """
    total = 400 * _COCO
    return RunConfig(
        model=SPADEConfig(discriminator_rate=4.0),
        data=PairedDataConfig(
            maps=("labels",), num_classes=(183,), dont_care=True, instances="instances", image_size=256, crop="random", scale=0.2
        ).updated(AS_STORED),
        train=TrainConfig(
            total_images=total,
            batch_size=4 * _PROCESSES,
            compile="off",
            ema_rates=(0.9999,),
            ema_warmup=False,
            ema_start=1_000 * 4 * _PROCESSES,
            statistics_batches=30,
            checkpoint_every=5 * _COCO,
            sample_every=160_000,
            sample_count=16,
            validate_every=5 * _COCO,
        ),
        optim=OptimConfig(name="adam", learning_rate=1e-4, betas=(0.0, 0.999), schedule="step", decay_every=total),
        log=LogConfig(every=3_200),
    )


def spade_lhq512() -> RunConfig:
    """SPADE for landscapes, 512x512, 424.7M parameters: the network that imaginaire published, which taught GANcraft.

    183 classes and one for what has none, no instances: data.path has the folders images and labels. It was published for use alone; how
    it is trained here is taken from spade-coco256.
    """
    recipe = spade_coco256()
    return replace(
        recipe,
        model=SPADEConfig(generator=SPADEGeneratorConfig(resolution=512, output_multiplier=0.5), discriminator_rate=4.0),
        data=replace(recipe.data, instances=None, image_size=512),
    )


def pix2pixhd_cityscapes() -> RunConfig:
    """pix2pixHD on Cityscapes, 512x1024, 182.6M parameters, as imaginaire published it.

    35 classes and the edges of the instances: data.path has the folders images, labels and instances. 200 epochs of 2,975 images took
    eight V100 of 16 GB about ten hours, in float16; here it is float32, and --train.precision bf16 is nearer.
    """
    return RunConfig(
        model=Pix2PixHDConfig(),
        data=PairedDataConfig(
            maps=("labels",), num_classes=(35,), instances="instances", image_size=512, width=1024, crop="random", scale=0.2
        ).updated(AS_STORED),
        train=TrainConfig(
            total_images=200 * _CITYSCAPES,
            batch_size=2 * _PROCESSES,
            compile="off",
            ema_rates=(0.999,),
            ema_warmup=False,
            ema_start=500 * 2 * _PROCESSES,
            checkpoint_every=20 * _CITYSCAPES,
            sample_every=8_000,
            sample_count=8,
            validate_every=20 * _CITYSCAPES,
        ),
        optim=OptimConfig(name="adam", learning_rate=2e-4, betas=(0.5, 0.999), schedule="step", decay_every=100 * _CITYSCAPES),
        log=LogConfig(every=1_600),
    )


def pix2pixhd_cityscapes_2k() -> RunConfig:
    """pix2pixHD on Cityscapes, 1024x2048, 182.9M parameters: a local enhancer and a third discriminator over pix2pixhd-cityscapes.

    100 epochs, to be started with --init-from a run of pix2pixhd-cityscapes; from nothing the original has 200.
    """
    recipe = pix2pixhd_cityscapes()
    model = recipe.model
    assert isinstance(model, Pix2PixHDConfig)
    return replace(
        recipe,
        model=replace(
            model,
            generator=replace(model.generator, num_enhancers=1),
            discriminator=replace(model.discriminator, num_discriminators=3),
        ),
        data=replace(recipe.data, image_size=1024, width=2048),  # pyright: ignore[reportCallIssue]
        train=replace(recipe.train, total_images=100 * _CITYSCAPES),
    )
