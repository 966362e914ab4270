"""Recipes of diffusion, flow matching and mean flows against the tables of the papers, in the papers' own units."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from triptych.core.batch import DataSpec
from triptych.core.model import TrainingProgress
from triptych.diffusion.adm import ADMConfig
from triptych.diffusion.dit import DiTConfig
from triptych.diffusion.edm import EDMConfig
from triptych.diffusion.edm_networks import ADMUNetConfig, SongUNetConfig
from triptych.diffusion.flow_matching import FlowMatchingConfig
from triptych.diffusion.mean_flow import MeanFlowConfig
from triptych.diffusion.super_resolution import SuperResolutionConfig
from triptych.diffusion.unet import UNetConfig
from triptych.engine.config import OptimConfig
from triptych.engine.schedule import scheduled_rate
from triptych.recipes.catalogue import find_recipe, load_recipe, recipes
from triptych.recipes.config import RunConfig


def parameters(recipe: RunConfig, *, size: int, channels: int = 3, classes: int | None = None) -> int:
    """How many the model has that learns such images."""
    with torch.device("meta"):
        model: Any = recipe.model.build(DataSpec(image_size=size, channels=channels, num_classes=classes))
    return sum(parameter.numel() for parameter in model.parameters())


class EDMRow(NamedTuple):
    """Of Table 7 and of the options that the published networks were trained with (github.com/NVlabs/edm, README)."""

    image_size: int
    classes: int | None
    batch: int
    rate: float
    dropout: float
    augment: float
    half_life: float
    "Of the average, in millions of images."
    duration: int
    "In millions of images."
    calls: int
    "Of the network, for a sample."
    parameters: int


EDM = {
    "edm-cifar10": EDMRow(32, None, 512, 1e-3, 0.13, 0.12, 0.5, 200, 35, 55_733_891),
    "edm-cifar10-cond": EDMRow(32, 10, 512, 1e-3, 0.13, 0.12, 0.5, 200, 35, 55_735_299),
    "edm-ffhq64": EDMRow(64, None, 256, 2e-4, 0.05, 0.15, 0.5, 200, 79, 61_805_571),
    "edm-afhqv2": EDMRow(64, None, 256, 2e-4, 0.25, 0.15, 0.5, 200, 79, 61_805_571),
    "edm-imagenet64": EDMRow(64, 1000, 4096, 1e-4, 0.10, 0.0, 50, 2500, 511, 295_899_267),
}
EDM |= {
    f"{name}-ve": EDM[name]._replace(parameters=count) for name, count in (("edm-cifar10", 56_397_827), ("edm-cifar10-cond", 56_400_643))
}
EDM |= {f"{name}-ve": EDM[name]._replace(parameters=62_761_091) for name in ("edm-ffhq64", "edm-afhqv2")}
"""VE: the same training with NCSN++."""


@pytest.mark.parametrize("name", EDM)
def test_edm(name: str) -> None:
    """Besides its row: Adam (0.9, 0.999), a rate that rises over 10 million images, an average of at most 5 % of those seen."""
    recipe, row = load_recipe(name), EDM[name]
    model, train, optim, (average,) = recipe.model, recipe.train, recipe.optim, recipe.train.all_averages
    assert isinstance(model, EDMConfig) and isinstance(model.network, SongUNetConfig | ADMUNetConfig)
    assert (train.batch_size, train.total_images) == (row.batch, row.duration * 1_000_000)
    for seen in (0, 1_000_000, 9_999_360, 50_000_000, row.duration * 1_000_000 - row.batch):
        progress = TrainingProgress(seen, row.batch, train.total_images)
        assert scheduled_rate(optim.learning_rate, optim, progress) == pytest.approx(row.rate * min((seen + row.batch) / 10e6, 1))
        half_life = min(row.half_life * 1e6, 0.05 * seen)
        assert average.rate_at(seen, images=row.batch) == pytest.approx(0.5 ** (row.batch / half_life) if half_life else 0)
    assert (optim.name, optim.betas, optim.weight_decay, optim.clip_norm) == ("adam", (0.9, 0.999), 0, None)
    # There the loss is a sum over the numbers of an image, here a mean: the same steps of Adam need an eps that is smaller by as much.
    assert optim.eps * 3 * row.image_size**2 == pytest.approx(1e-8)
    assert (model.noise_mean, model.noise_std, model.sigma_data) == (-1.2, 1.2, 0.5)
    assert (model.network.dropout, model.augmentation.p, model.class_conditional) == (row.dropout, row.augment, row.classes is not None)
    # Mirrored images are among the changes that the network is told of, and ImageNet's were not mirrored.
    assert not recipe.data.flip and recipe.data.image_size == row.image_size
    sampling = model.sampling
    assert (sampling.sampler, 2 * sampling.steps - 1, sampling.sigma_min, sampling.sigma_max, sampling.rho) == (
        "heun",
        row.calls,
        0.002,
        80,
        7,
    )
    churn = (40, 0.05, 50, 1.003) if row.classes == 1000 else (0, 0, None, 1)
    assert (sampling.churn, sampling.churn_min, sampling.churn_max, sampling.churn_noise) == churn
    assert parameters(recipe, size=row.image_size, classes=row.classes) == row.parameters


@pytest.mark.parametrize("name", [name for name in EDM if name.endswith("-ve")])
def test_edm_with_ncsnpp_differs_in_its_network_alone(name: str) -> None:
    recipe, other = load_recipe(name), load_recipe(name.removesuffix("-ve"))
    network = recipe.model.network  # type: ignore[attr-defined]
    assert isinstance(network, SongUNetConfig)
    assert (network.embedding, network.embedding_mult, network.encoder, network.resample_filter) == ("fourier", 2, "residual", (1, 3, 3, 1))
    same = {"embedding": "positional", "embedding_mult": 1, "encoder": "standard", "resample_filter": [1.0, 1.0]}
    assert recipe.updated({"model": {"network": same}}) == other


ADM = {
    "adm-imagenet64": (540_000, 2048, 3e-4, 0.1, "cosine", 192, 3),
    "adm-imagenet128": (4_360_000, 256, 1e-4, 0.0, "linear", 256, 2),
    "adm-imagenet256": (1_980_000, 256, 1e-4, 0.0, "linear", 256, 2),
    "adm-imagenet512": (1_940_000, 256, 1e-4, 0.0, "linear", 256, 2),
    "adm-lsun-bedroom": (500_000, 256, 1e-4, 0.1, "linear", 256, 2),
    "adm-lsun-cat": (200_000, 256, 1e-4, 0.1, "linear", 256, 2),
    "adm-lsun-horse": (250_000, 256, 1e-4, 0.1, "linear", 256, 2),
}
"""Iterations, batch, learning rate, dropout, schedule, channels and depth (Dhariwal and Nichol 2021, Table 11 and its note)."""


@pytest.mark.parametrize("name", ADM)
def test_adm(name: str) -> None:
    """Besides its row: AdamW (0.9, 0.999) at a constant rate, an average at 0.9999, 1000 steps, both halves of the output learned."""
    recipe, (iterations, batch, rate, dropout, schedule, channels, depth) = load_recipe(name), ADM[name]
    model, train, optim = recipe.model, recipe.train, recipe.optim
    assert isinstance(model, ADMConfig)
    assert (train.total_images, train.batch_size, train.ema_rates) == (iterations * batch, batch, (0.9999,))
    assert (optim.name, optim.learning_rate, optim.betas, optim.weight_decay) == ("adamw", rate, (0.9, 0.999), 0)
    assert (optim.schedule, optim.warmup_images, optim.clip_norm) == ("constant", 0, None)
    network: Any = model.network
    assert (network.dropout, network.num_channels, network.num_res_blocks) == (dropout, channels, depth)
    assert network.attention_resolutions == (32, 16, 8) and network.resblock_updown and network.scale_shift_norm
    diffusion = model.diffusion
    assert (diffusion.steps, diffusion.schedule, diffusion.mean, diffusion.variance) == (1000, schedule, "epsilon", "learned_range")
    assert (diffusion.loss, model.sampling.steps) == ("mse", None if "lsun" in name else 250) and recipe.data.flip


IMPROVED = {
    "adm-cifar10": (32, 500_000, 0.3, "rescaled_mse", 52_546_438),
    "adm-cifar10-vlb": (32, 500_000, 0.3, "rescaled_kl", 52_546_438),
    "adm-imagenet64-uncond": (64, 1_500_000, 0.0, "rescaled_mse", 121_063_942),
    "adm-imagenet64-uncond-vlb": (64, 1_500_000, 0.0, "rescaled_kl", 121_063_942),
}
"""Size, iterations, dropout, loss and parameters of the files that improved-diffusion publishes, which are called after these."""


@pytest.mark.parametrize("name", IMPROVED)
def test_improved_diffusion(name: str) -> None:
    """Flags that its README gives: 128 channels, 3 blocks, 4000 steps, cosine, learning rate 1e-4, batch 128; --use_kl draws by losses."""
    recipe, (size, iterations, dropout, loss, count) = load_recipe(name), IMPROVED[name]
    model, train, optim = recipe.model, recipe.train, recipe.optim
    assert isinstance(model, ADMConfig)
    assert (train.total_images, train.batch_size, train.ema_rates) == (iterations * 128, 128, (0.9999,))
    assert (optim.name, optim.learning_rate, optim.schedule, optim.weight_decay) == ("adamw", 1e-4, "constant", 0)
    diffusion, network = model.diffusion, model.network
    assert (diffusion.steps, diffusion.schedule, diffusion.variance, diffusion.loss) == (4000, "cosine", "learned_range", loss)
    assert diffusion.rescale_timesteps and model.timestep_sampler == ("uniform" if loss == "rescaled_mse" else "loss-second-moment")
    assert network.dropout == dropout and not recipe.data.flip, "its loader mirrors nothing"  # type: ignore[union-attr]
    assert recipe.data.image_size == size and recipe.data.labels == "none"
    assert parameters(recipe, size=size) == count


CLASS_CONDITIONAL_OR_LARGE = {
    # size, iterations, batch, rate, T, schedule, channels, blocks, heads, attention, classes, parameters
    "adm-imagenet64-improved": (64, 250_000, 2048, 3e-4, 4000, "cosine", 192, 3, 4, (16, 8), 1000, 273_049_350),
    "adm-upsample-64-256-improved": (256, 500_000, 256, 3e-4, 4000, "linear", 192, 2, 4, (16, 8), 1000, 279_792_390),
    "adm-lsun-bedroom-improved": (256, 1_200_000, 128, 1e-4, 1000, "linear", 128, 2, 1, (16,), None, 113_676_678),
}
"""Flags of three further files of improved-diffusion's README; the names of the files say how long they were trained."""


@pytest.mark.parametrize("name", CLASS_CONDITIONAL_OR_LARGE)
def test_improved_diffusion_by_class_and_at_256_pixels(name: str) -> None:
    """Besides its row: both halves of the output learned, nothing rescaled, no dropout, no mirroring, float32, an average at 0.9999."""
    recipe, row = load_recipe(name), CLASS_CONDITIONAL_OR_LARGE[name]
    size, iterations, batch, rate, steps, schedule, channels, blocks, heads, attention, classes, count = row
    model, train, optim = recipe.model, recipe.train, recipe.optim
    assert isinstance(model, ADMConfig | SuperResolutionConfig)
    assert (train.total_images, train.batch_size, train.ema_rates, train.precision) == (iterations * batch, batch, (0.9999,), "float32")
    assert optim == OptimConfig(name="adamw", learning_rate=rate, betas=(0.9, 0.999), weight_decay=0, schedule="constant", clip_norm=None)
    diffusion, network = model.diffusion, model.network
    assert isinstance(network, UNetConfig)
    assert (diffusion.steps, diffusion.schedule, diffusion.mean, diffusion.variance) == (steps, schedule, "epsilon", "learned_range")
    assert (diffusion.loss, diffusion.rescale_timesteps, model.sampling.steps) == ("mse", False, 250)
    assert (network.num_channels, network.num_res_blocks, network.num_heads, network.num_head_channels) == (channels, blocks, heads, None)
    assert (network.attention_resolutions, network.attention_order, network.resblock_updown) == (attention, "legacy", False)
    assert (network.dropout, network.scale_shift_norm) == (0, "lsun" not in name)
    assert (recipe.data.image_size, recipe.data.labels, recipe.data.flip) == (size, "folder" if classes else "none", False)
    assert getattr(model, "small_size", None) == (64 if "upsample" in name else None)
    assert parameters(recipe, size=size, classes=classes) == count


PATCHES = {
    "s": (32_920_448, 33_142_016),
    "b": (130_426_496, 130_869_248),
    "l": (457_988_224, 458_578_432),
    "xl": (675_000_704, 675_664_640),
}
"""Parameters with patches of 4 and of 8, of DiT and of SiT on 32x32x4 latents of 1,000 classes."""


@pytest.mark.parametrize("family", ["dit", "sit"])
@pytest.mark.parametrize("size", PATCHES)
def test_patches_of_4_and_8(family: str, size: str) -> None:
    """They are a setting of the recipes with patches of 2; those that have a name of their own are the same."""
    for patch, count in zip((4, 8), PATCHES[size], strict=True):
        recipe = load_recipe(f"{family}-{size}-2").updated({"model": {"network": {"patch": patch}}})
        assert parameters(recipe, size=32, channels=4, classes=1000) == count
        name = f"{family}-{size}-{patch}"
        assert (name in recipes()) == (name in {"dit-s-4", "dit-s-8", "dit-b-4", "sit-b-4"})
        assert name not in recipes() or load_recipe(name) == recipe


@pytest.mark.parametrize(("name", "fid"), [("sit-xl-2-512", "2.62"), ("dit-xl-2-512", "3.04")])
def test_transformers_of_512_pixels(name: str, fid: str) -> None:
    """Those of 256 pixels for 3 million steps of 256 images (Peebles and Xie 2023; Ma et al. 2024)."""
    recipe, small = load_recipe(name), load_recipe(name.removesuffix("-512"))
    assert (recipe.train.total_images, recipe.train.batch_size, recipe.data.image_size) == (3_000_000 * 256, 256, 512)
    same = {"train": {"total_images": small.train.total_images}, "data": {"image_size": 256}}
    assert recipe.updated(same) == small and f"FID {fid}," in find_recipe(name).description
    assert parameters(recipe, size=64, channels=4, classes=1000) == 674_834_720


def test_flow_matching_on_cifar10() -> None:
    """facebookresearch/flow_matching, examples/image: 8 processes of 64 images, 3,000 epochs of 50,000, AdamW as PyTorch has it."""
    recipe = load_recipe("flow-cifar10")
    model, train, optim = recipe.model, recipe.train, recipe.optim
    assert isinstance(model, FlowMatchingConfig)
    assert (train.batch_size, train.total_images) == (8 * 64, 3_000 * 50_000)
    (average,), steps = train.all_averages, (0, 100, 10_000, 200_000)
    assert [average.rate_at(512 * n, images=512) for n in steps] == pytest.approx([min(0.999, (1 + n) / (10 + n)) for n in steps])
    decay = torch.optim.AdamW([torch.zeros(1)]).defaults["weight_decay"]
    assert (optim.name, optim.learning_rate, optim.betas, optim.weight_decay) == ("adamw", 1e-4, (0.9, 0.95), decay)
    assert (optim.schedule, optim.warmup_images, recipe.data.flip, model.times) == ("constant", 0, True, "edm-skewed")
    assert (model.sampling.sampler, model.sampling.steps, model.sampling.grid) == ("ode-heun", 50, "edm")
    assert round(parameters(recipe, size=32) / 1e6, 1) == 55.7


MEAN_FLOWS = {
    # patch, width, depth, heads, epochs, effective scale of guidance, omega, times of it, millions of parameters, (calls, FID)
    "mean-flow-b-4": (4, 768, 12, 12, 240, 2.0, 1.0, (0.0, 1.0), 131, (1, "11.4")),
    "mean-flow-b-2": (2, 768, 12, 12, 240, 2.0, 1.0, (0.0, 1.0), 131, (1, "6.17")),
    "mean-flow-m-2": (2, 1024, 16, 16, 240, 2.0, 1.0, (0.0, 1.0), 308, (1, "5.01")),
    "mean-flow-l-2": (2, 1024, 24, 16, 240, 2.5, 0.2, (0.0, 0.8), 459, (1, "3.84")),
    "mean-flow-xl-2": (2, 1152, 28, 16, 240, 2.5, 0.2, (0.0, 0.75), 676, (1, "3.43")),
    "mean-flow-xl-2-long": (2, 1152, 28, 16, 1000, 2.0, 1.0, (0.3, 0.8), 676, (2, "2.20")),
}
"""Geng et al. 2025, Tables 2 and 4; B/4 as the paper's program has it (configs/run_b4.yml over default.py)."""


@pytest.mark.parametrize("name", MEAN_FLOWS)
def test_mean_flows(name: str) -> None:
    """Besides its row: kappa is 1 - omega / the effective scale; Adam (0.9, 0.95) at a constant rate, an average at 0.9999."""
    recipe, row = load_recipe(name), MEAN_FLOWS[name]
    patch, width, depth, heads, length, effective, omega, times, millions, (calls, fid) = row
    model, train, optim = recipe.model, recipe.train, recipe.optim
    assert isinstance(model, MeanFlowConfig) and model.network == DiTConfig(patch=patch, width=width, depth=depth, heads=heads)
    epochs = train.total_images / (1_281_167 // 256 * 256)
    assert (epochs, train.batch_size, train.ema_rates, train.ema_warmup) == (length, 256, (0.9999,), False)
    assert (optim.name, optim.learning_rate, optim.betas, optim.weight_decay) == ("adamw", 1e-4, (0.9, 0.95), 0)
    assert (optim.schedule, optim.warmup_images) == ("constant", 0)
    assert (model.time_mean, model.time_deviation, model.equal_share, model.label_dropout) == (-0.4, 1.0, 0.75, 0.1)
    assert (model.guidance_scale, model.guidance_mix, model.guidance_times) == (omega, pytest.approx(1 - omega / effective), times)
    assert (model.weight_power, model.weight_constant) == (1.0, 0.01)
    assert (model.sampling.steps, recipe.data.source, recipe.data.image_size, recipe.data.flip) == (calls, "latents", 256, True)
    assert parameters(recipe, size=32, channels=4, classes=1000) // 10**6 == millions
    assert f"FID {fid} with {'two' if calls == 2 else 'one'}" in " ".join(find_recipe(name).description.split())
