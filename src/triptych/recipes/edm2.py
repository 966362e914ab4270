"""Recipes of EDM2. The settings of the published ones are those of the paper (Karras et al. 2024, appendix B), and its figures theirs.

Images are counted in Mi, 2^20 of them, as there.
"""

from __future__ import annotations

from dataclasses import replace

from triptych.data.config import DataConfig
from triptych.diffusion.edm2 import EDM2Config
from triptych.diffusion.edm2_network import EDM2NetworkConfig
from triptych.engine.config import LogConfig, OptimConfig, TrainConfig
from triptych.recipes.config import RunConfig

_MI = 2**20
_BATCH = 2048


def edm2_digits() -> RunConfig:
    """EDM2 on the built-in 16x16 digits, by class; small enough for two CPU cores."""
    return RunConfig(
        model=EDM2Config(
            network=EDM2NetworkConfig(
                num_channels=32, channel_mult=(1, 2), num_blocks=1, attention_resolutions=(8,), num_head_channels=32, dropout=0.1
            ),
            noise_mean=-0.8,
            noise_std=1.2,
            class_conditional=True,
            sampling=replace(EDM2Config().sampling, steps=18),
        ),
        data=DataConfig(source="digits", image_size=16, flip=False),
        train=TrainConfig(
            total_images=60_000,
            batch_size=64,
            precision="auto",
            ema_rates=(),
            ema_lengths=(0.1, 0.05),
            snapshot_every=6_000,
            checkpoint_every=10_000,
            sample_every=10_000,
            validate_every=10_000,
        ),
        optim=_optim(0.01, decay_start=8_000, warmup_images=6_400, warmup_share=0.1),
        log=LogConfig(every=3_200),
    )


def edm2_photos64() -> RunConfig:
    """EDM2 at 64x64 on your own folder of images, 124M parameters; for one GPU.

    The network and the noise levels of edm2-img64-xs, with an eighth of the batch and a rate that goes with it. data.path is the folder, or
    a .zip, .tar or array; where it has a sub-folder for each class, --model.class-conditional learns them.
    """
    batch, every = _BATCH // 8, 500_000
    return RunConfig(
        model=replace(_pixels(128, dropout=0.1), class_conditional=False),
        data=DataConfig(image_size=64, decode="reduced"),
        train=_train(10_000_000, batch_size=batch, every=every),
        # The rate goes with the root of the batch: so the noise of a step counts alike.
        optim=_optim(0.004, decay_start=1_000_000, warmup_images=64_000, warmup_share=0.1),
        log=LogConfig(every=50 * batch),
    )


def edm2_img64_xs() -> RunConfig:
    """EDM2-XS on ImageNet by class, 64x64, 124.7M parameters.

    The settings of the paper (Karras et al. 2024). data.path is a folder with one sub-folder for each class.
    """
    return _img64(128, 1024, rate=0.012)


def edm2_img64_s() -> RunConfig:
    """EDM2-S on ImageNet by class, 64x64, 280M parameters.

    The settings of the paper (Karras et al. 2024). Published: FID 1.58 with 63 network calls, at EMA length 0.075; guided by XS at 134 Mi
    images, 1.01. data.path is a folder with one sub-folder for each class.
    """
    return _img64(192, 1024, rate=0.010)


def edm2_img64_m() -> RunConfig:
    """EDM2-M on ImageNet by class, 64x64, 498M parameters.

    The settings of the paper (Karras et al. 2024). Published: FID 1.43 with 63 network calls, at EMA length 0.060. data.path is a folder
    with one sub-folder for each class.
    """
    return _img64(256, 2048, rate=0.009, dropout=0.1)


def edm2_img64_l() -> RunConfig:
    """EDM2-L on ImageNet by class, 64x64, 777M parameters.

    The settings of the paper (Karras et al. 2024). Published: FID 1.33 with 63 network calls, at EMA length 0.040. data.path is a folder
    with one sub-folder for each class.
    """
    return _img64(320, 1024, rate=0.008, dropout=0.1)


def edm2_img64_xl() -> RunConfig:
    """EDM2-XL on ImageNet by class, 64x64, 1,119M parameters.

    The settings of the paper (Karras et al. 2024). Published: FID 1.33 with 63 network calls, at EMA length 0.040. data.path is a folder
    with one sub-folder for each class.
    """
    return _img64(384, 640, rate=0.007, dropout=0.1)


def edm2_img512_xxs() -> RunConfig:
    """EDM2-XXS on latents of ImageNet by class, 512x512, 31.3M parameters.

    The settings of the paper (Karras et al. 2024). It was published as a guide of others. data.path is a file of latents with labels,
    of an autoencoder that has 8 times fewer pixels each way and 4 channels.
    """
    return _img512(64, 2048, rate=0.017)


def edm2_img512_xs() -> RunConfig:
    """EDM2-XS on latents of ImageNet by class, 512x512, 124.7M parameters.

    The settings of the paper (Karras et al. 2024). Published: FID 3.53, 103.39 in features of DINOv2, each at its best EMA length.
    data.path is a file of latents with labels, of an autoencoder that has 8 times fewer pixels each way and 4 channels.
    """
    return _img512(128, 2048, rate=0.012)


def edm2_img512_s() -> RunConfig:
    """EDM2-S on latents of ImageNet by class, 512x512, 280M parameters.

    The settings of the paper (Karras et al. 2024). Published: FID 2.56, 68.64 in features of DINOv2, each at its best EMA length.
    data.path is a file of latents with labels, of an autoencoder that has 8 times fewer pixels each way and 4 channels.
    """
    return _img512(192, 2048, rate=0.01)


def edm2_img512_m() -> RunConfig:
    """EDM2-M on latents of ImageNet by class, 512x512, 498M parameters.

    The settings of the paper (Karras et al. 2024). Published: FID 2.25, 58.44 in features of DINOv2, each at its best EMA length.
    data.path is a file of latents with labels, of an autoencoder that has 8 times fewer pixels each way and 4 channels.
    """
    return _img512(256, 2048, rate=0.009, dropout=0.1)


def edm2_img512_l() -> RunConfig:
    """EDM2-L on latents of ImageNet by class, 512x512, 777M parameters.

    The settings of the paper (Karras et al. 2024). Published: FID 2.06, 52.25 in features of DINOv2, each at its best EMA length.
    data.path is a file of latents with labels, of an autoencoder that has 8 times fewer pixels each way and 4 channels.
    """
    return _img512(320, 1792, rate=0.008, dropout=0.1)


def edm2_img512_xl() -> RunConfig:
    """EDM2-XL on latents of ImageNet by class, 512x512, 1,119M parameters.

    The settings of the paper (Karras et al. 2024). Published: FID 1.96, 45.96 in features of DINOv2, each at its best EMA length.
    data.path is a file of latents with labels, of an autoencoder that has 8 times fewer pixels each way and 4 channels.
    """
    return _img512(384, 1280, rate=0.007, dropout=0.1)


def edm2_img512_xxl() -> RunConfig:
    """EDM2-XXL on latents of ImageNet by class, 512x512, 1,523M parameters.

    The settings of the paper (Karras et al. 2024). Published: FID 1.91, 42.84 in features of DINOv2, each at its best EMA length.
    data.path is a file of latents with labels, of an autoencoder that has 8 times fewer pixels each way and 4 channels.
    """
    return _img512(448, 896, rate=0.0065, dropout=0.1)


def _pixels(channels: int, *, dropout: float) -> EDM2Config:
    """The network and the noise levels of the paper for ImageNet in pixels."""
    network = EDM2NetworkConfig(num_channels=channels, dropout=dropout)
    return EDM2Config(network=network, noise_mean=-0.8, noise_std=1.6, class_conditional=True)


def _img64(channels: int, length: int, *, rate: float, dropout: float = 0.0) -> RunConfig:
    """A row of the paper's table for ImageNet in pixels; `length` in Mi."""
    data = DataConfig(image_size=64, labels="folder", flip=False)
    return _published(_pixels(channels, dropout=dropout), data, length=length, rate=rate, reference_batches=35_000)


def _img512(channels: int, length: int, *, rate: float, dropout: float = 0.0) -> RunConfig:
    """A row of the paper's table for latents of ImageNet at 512 pixels; `length` in Mi."""
    model = EDM2Config(
        network=EDM2NetworkConfig(num_channels=channels, dropout=dropout), noise_mean=-0.4, noise_std=1.0, class_conditional=True
    )
    data = DataConfig(source="latents", image_size=512, flip=False)
    return _published(model, data, length=length, rate=rate, reference_batches=70_000)


def _published(model: EDM2Config, data: DataConfig, *, length: int, rate: float, reference_batches: int) -> RunConfig:
    return RunConfig(
        model=model,
        data=data,
        train=_train(length * _MI, batch_size=_BATCH, microbatch=64, every=8 * _MI),
        optim=_optim(rate, decay_start=reference_batches * _BATCH),
        log=LogConfig(every=50 * _BATCH),
    )


def _train(images: int, *, batch_size: int, every: int, microbatch: int | None = None) -> TrainConfig:
    """In bf16, with averages of two lengths; `every`: images between snapshots of them, checkpoints, grids and validations."""
    return TrainConfig(
        total_images=images,
        batch_size=batch_size,
        microbatch=microbatch,
        precision="bf16",
        ema_rates=(),
        ema_lengths=(0.1, 0.05),
        snapshot_every=every,
        checkpoint_every=every,
        sample_every=every,
        validate_every=every,
    )


def _optim(rate: float, *, decay_start: int, warmup_images: int = 10_000_000, warmup_share: float | None = None) -> OptimConfig:
    return OptimConfig(
        name="adam",
        learning_rate=rate,
        betas=(0.9, 0.99),
        schedule="inverse-sqrt",
        decay_start=decay_start,
        warmup_images=warmup_images,
        warmup_share=warmup_share,
    )
