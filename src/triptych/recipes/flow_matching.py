"""Recipes of flow matching and mean flows."""

from __future__ import annotations

from dataclasses import replace

from triptych.data.config import DataConfig
from triptych.diffusion.adm import ADMConfig
from triptych.diffusion.continuous import LevelSamplingConfig
from triptych.diffusion.dit import DiTConfig
from triptych.diffusion.flow_matching import FlowMatchingConfig
from triptych.diffusion.mean_flow import MeanFlowConfig, MeanFlowSamplingConfig
from triptych.diffusion.unet import UNetConfig
from triptych.engine.config import LogConfig, OptimConfig, TrainConfig
from triptych.recipes.config import RunConfig
from triptych.recipes.diffusion import adm_digits

_SMALL_DIT = DiTConfig(patch=4, width=128, depth=6, heads=4)
_XL_2 = DiTConfig(patch=2, width=1152, depth=28, heads=16)
_SIT_BATCH = 256
_IMAGENET_EPOCH = 1_281_167 // _SIT_BATCH * _SIT_BATCH  # of whole batches


def flow_digits() -> RunConfig:
    """Flow matching with a transformer on the built-in 16x16 digits, by class; small enough for two CPU cores."""
    return RunConfig(
        model=FlowMatchingConfig(
            network=_SMALL_DIT,
            times="logit-normal",
            time_scale=1000,
            class_conditional=True,
            label_dropout=0.1,
            sampling=LevelSamplingConfig(sampler="ode-heun", steps=25, guidance_scale=1.5),
        ),
        data=DataConfig(source="digits", image_size=16, flip=False),
        train=TrainConfig(
            total_images=160_000,
            batch_size=64,
            precision="auto",
            ema_rates=(0.999,),
            checkpoint_every=40_000,
            sample_every=40_000,
            validate_every=40_000,
        ),
        optim=OptimConfig(learning_rate=1e-3, warmup_images=6_400, warmup_share=0.1, schedule="cosine"),
        log=LogConfig(every=3_200),
    )


def flow_digits_unet() -> RunConfig:
    """Flow matching with the U-Net of adm-digits on the built-in 16x16 digits, by class; small enough for two CPU cores."""
    unet = adm_digits().model
    assert isinstance(unet, ADMConfig)
    recipe = flow_digits()
    assert isinstance(recipe.model, FlowMatchingConfig)
    every = 10_000
    train = replace(recipe.train, total_images=40_000, checkpoint_every=every, sample_every=every, validate_every=every)
    return replace(recipe, model=replace(recipe.model, network=unet.network), train=train)


def flow_small() -> RunConfig:
    """Flow matching with a U-Net on your own folder of images, 32x32, 1.3M parameters; for two CPU cores.

    Of what was tried on photos for a short time, it came nearest to them (benchmarks/first_hour.py). Samples take 20 network calls.
    --data.image-size 64 makes larger ones; the latents of autoencoder-small are learned as images are.
    """
    recipe = flow_digits()
    assert isinstance(recipe.model, FlowMatchingConfig)
    network = UNetConfig(
        num_channels=32,
        num_res_blocks=1,
        channel_mult=(1, 2, 2),
        attention_resolutions=(),  # but in the middle, so that sides may be any multiples of 4
        num_head_channels=32,
        resblock_updown=True,
        dropout=0.1,
    )
    every = 100_000
    return replace(
        recipe,
        model=FlowMatchingConfig(
            network=network, times="logit-normal", time_scale=1000, sampling=LevelSamplingConfig(sampler="unipc", steps=20)
        ),
        data=DataConfig(image_size=32, decode="reduced"),
        train=replace(recipe.train, total_images=400_000, checkpoint_every=every, sample_every=every, validate_every=every),
    )


def flow_photos64() -> RunConfig:
    """Flow matching with a transformer on your own folder of images, 64x64, 32.5M parameters; for one GPU.

    DiT-S/4 with logit-normal times. Where the folder has a sub-folder for each class, --model.class-conditional learns them, and
    --model.label-dropout 0.1 lets samples be guided.
    """
    return RunConfig(
        model=FlowMatchingConfig(network=DiTConfig(patch=4), times="logit-normal", time_scale=1000),
        data=DataConfig(image_size=64),
        train=TrainConfig(total_images=20_000_000, batch_size=256, precision="auto"),
        optim=OptimConfig(learning_rate=2e-4, warmup_images=256_000, warmup_share=0.1),
    )


def flow_cifar10() -> RunConfig:
    """Flow matching on CIFAR-10, unconditional, 32x32, with a U-Net of 55.7M parameters.

    The network and the training published with facebookresearch/flow_matching: batches of 512, times as in EDM, 3,000 epochs. Published:
    FID 2.07, after 1,800 of them, with 50 steps of Heun at EDM's noise levels. data.path is the folder of .bin files.
    """
    network = UNetConfig(
        num_channels=128,
        num_res_blocks=4,
        channel_mult=(2, 2, 2),
        attention_resolutions=(16,),
        num_heads=1,
        attention_order="new",
        dropout=0.3,
        conv_resample=False,
    )
    return RunConfig(
        model=FlowMatchingConfig(
            network=network, times="edm-skewed", sampling=LevelSamplingConfig(sampler="ode-heun", steps=50, grid="edm")
        ),
        data=DataConfig(image_size=32, labels="none"),
        train=TrainConfig(total_images=150_000_000, batch_size=512, ema_rates=(0.999,), checkpoint_every=2_000_000, sample_every=2_000_000),
        optim=OptimConfig(learning_rate=1e-4, betas=(0.9, 0.95), weight_decay=0.01),  # PyTorch's default, which that program takes
        log=LogConfig(every=12_800),
    )


def sit_s_2() -> RunConfig:
    """SiT-S/2 on latents of ImageNet by class, 256x256, 32.9M parameters.

    The settings of the paper (Ma et al. 2024), for 400,000 steps. data.path is a file of latents with labels, of an autoencoder that has
    8 times fewer pixels each way and 4 channels, encoded with --flip.
    """
    return _sit(DiTConfig(patch=2, width=384, depth=12, heads=6), steps=400_000)


def sit_b_2() -> RunConfig:
    """SiT-B/2 on latents of ImageNet by class, 256x256, 130.3M parameters.

    The settings of the paper (Ma et al. 2024), for 400,000 steps. data.path is a file of latents with labels, of an autoencoder that has
    8 times fewer pixels each way and 4 channels, encoded with --flip.
    """
    return _sit(DiTConfig(patch=2, width=768, depth=12, heads=12), steps=400_000)


def sit_b_4() -> RunConfig:
    """SiT-B/4 on latents of ImageNet by class, 256x256, 130.4M parameters: a quarter of the tokens of sit-b-2, all else as there.

    The paper trained patches of 2 alone; its program has those of 4 and 8 too, as `model.network.patch` of any of these recipes.
    """
    return _sit(DiTConfig(patch=4, width=768, depth=12, heads=12), steps=400_000)


def sit_l_2() -> RunConfig:
    """SiT-L/2 on latents of ImageNet by class, 256x256, 457.8M parameters.

    The settings of the paper (Ma et al. 2024), for 400,000 steps. data.path is a file of latents with labels, of an autoencoder that has
    8 times fewer pixels each way and 4 channels, encoded with --flip.
    """
    return _sit(DiTConfig(patch=2, width=1024, depth=24, heads=16), steps=400_000)


def sit_xl_2() -> RunConfig:
    """SiT-XL/2 on latents of ImageNet by class, 256x256, 674.8M parameters.

    The settings of the paper (Ma et al. 2024), for 7 million steps. Published: FID 2.06, with guidance. data.path is a file of latents
    with labels, of an autoencoder that has 8 times fewer pixels each way and 4 channels, encoded with --flip.
    """
    return _sit(_XL_2, steps=7_000_000)


def sit_xl_2_512() -> RunConfig:
    """SiT-XL/2 on latents of ImageNet by class, 512x512, 674.8M parameters.

    The settings of the paper (Ma et al. 2024), for 3 million steps. Published: FID 2.62, with guidance. data.path is a file of latents
    with labels, of an autoencoder that has 8 times fewer pixels each way and 4 channels, encoded with --flip.
    """
    recipe = sit_xl_2()
    return replace(recipe, data=replace(recipe.data, image_size=512), train=replace(recipe.train, total_images=3_000_000 * _SIT_BATCH))


def mean_flow_digits() -> RunConfig:
    """Mean flows with a transformer on the built-in 16x16 digits, by class, sampled in one network call; small enough for two CPU cores."""
    recipe = flow_digits()
    return replace(
        recipe,
        model=MeanFlowConfig(
            network=_SMALL_DIT,
            class_conditional=True,
            label_dropout=0.1,
            guidance_scale=1.5,
            # One call begins at t = 1, where the published deviation of 1 puts hardly any training image: 1 % lie above 0.9.
            time_deviation=2.0,
            equal_share=0.5,
        ),
        train=replace(recipe.train, total_images=120_000),
        optim=replace(recipe.optim, betas=(0.9, 0.95)),
    )


def mean_flow_b_4() -> RunConfig:
    """Mean flows with a transformer on latents of ImageNet by class, 256x256, 131M parameters, sampled in one network call.

    MF-B/4, the ablations' model of the paper (Geng et al. 2025), with the settings that its program gives: 240 epochs, guidance of scale
    2 in the training. Published: FID 11.4 with one network call. data.path is a file of latents with labels, of an autoencoder that has 8
    times fewer pixels each way and 4 channels, encoded with --flip.
    """
    return _mean_flow(DiTConfig(patch=4, width=768, depth=12, heads=12), scale=1.0, mix=0.5)


def mean_flow_b_2() -> RunConfig:
    """Mean flows, MF-B/2, on latents of ImageNet by class, 256x256, 131M parameters, sampled in one network call.

    The settings of the paper (Geng et al. 2025, Table 4): 240 epochs, guidance of scale 2 in the training. Published: FID 6.17 with one
    network call (Table 2). data.path is a file of latents with labels, of an autoencoder that has 8 times fewer pixels each way and 4
    channels, encoded with --flip.
    """
    return _mean_flow(DiTConfig(patch=2, width=768, depth=12, heads=12), scale=1.0, mix=0.5)


def mean_flow_m_2() -> RunConfig:
    """Mean flows, MF-M/2, on latents of ImageNet by class, 256x256, 308M parameters, sampled in one network call.

    All but the network as mean-flow-b-2 (Geng et al. 2025, Table 4). Published: FID 5.01 with one network call (Table 2).
    """
    return _mean_flow(DiTConfig(patch=2, width=1024, depth=16, heads=16), scale=1.0, mix=0.5)


def mean_flow_l_2() -> RunConfig:
    """Mean flows, MF-L/2, on latents of ImageNet by class, 256x256, 459M parameters, sampled in one network call.

    As mean-flow-b-2, with guidance of scale 2.5 where t is below 0.8 (Geng et al. 2025, Table 4). Published: FID 3.84 with one network
    call (Table 2).
    """
    return _mean_flow(DiTConfig(patch=2, width=1024, depth=24, heads=16), scale=0.2, mix=0.92, until=0.8)


def mean_flow_xl_2() -> RunConfig:
    """Mean flows, MF-XL/2, on latents of ImageNet by class, 256x256, 676M parameters, sampled in one network call.

    As mean-flow-b-2, with guidance of scale 2.5 where t is below 0.75 (Geng et al. 2025, Table 4). Published: FID 3.43 with one network
    call, 2.93 with two (Table 2).
    """
    return _mean_flow(_XL_2, scale=0.2, mix=0.92, until=0.75)


def mean_flow_xl_2_long() -> RunConfig:
    """Mean flows, MF-XL/2+, on latents of ImageNet by class, 256x256, 676M parameters, sampled in two network calls.

    mean-flow-xl-2 for 1,000 epochs, with guidance of scale 2 where t is from 0.3 to 0.8 (Geng et al. 2025, Table 4). Published: FID 2.20
    with two network calls (Table 2).
    """
    recipe = _mean_flow(_XL_2, scale=1.0, mix=0.5, since=0.3, until=0.8, epochs=1_000)
    assert isinstance(recipe.model, MeanFlowConfig)
    return replace(recipe, model=replace(recipe.model, sampling=MeanFlowSamplingConfig(steps=2)))


def _mean_flow(network: DiTConfig, *, scale: float, mix: float, since: float = 0.0, until: float = 1.0, epochs: int = 240) -> RunConfig:
    """A model of the paper with its guidance, w and kappa and the times of it, in training for so many epochs."""
    recipe = sit_b_2()
    every = 10 * _IMAGENET_EPOCH
    model = MeanFlowConfig(
        network=network,
        class_conditional=True,
        label_dropout=0.1,
        guidance_scale=scale,
        guidance_mix=mix,
        guidance_times=(since, until),
    )
    return replace(
        recipe,
        model=model,
        train=replace(
            recipe.train, total_images=epochs * _IMAGENET_EPOCH, checkpoint_every=every, sample_every=every, validate_every=every
        ),
        optim=replace(recipe.optim, betas=(0.9, 0.95)),
    )


def _sit(network: DiTConfig, *, steps: int) -> RunConfig:
    """A model of the paper, in training for so many steps."""
    every = 50_000 * _SIT_BATCH
    return RunConfig(
        model=FlowMatchingConfig(
            network=replace(network, spare_outputs=True),
            class_conditional=True,
            label_dropout=0.1,
            sampling=LevelSamplingConfig(sampler="sde-euler", steps=250),
        ),
        data=DataConfig(source="latents", image_size=256, latent_std=1.0),
        train=TrainConfig(
            total_images=steps * _SIT_BATCH,
            batch_size=_SIT_BATCH,
            precision="auto",
            ema_warmup=False,
            checkpoint_every=every,
            sample_every=every,
            validate_every=every,
        ),
        optim=OptimConfig(learning_rate=1e-4),
        log=LogConfig(every=50 * _SIT_BATCH),
    )
