"""Weights of DiT: names, shapes and counts of the published sizes, checkpoints of its training, and what is drawn from them."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.interop.test_sit import HEADS, SMALL, XL_2, names_of, weights
from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.rng import Rng
from triptych.diffusion.adm import ADMConfig
from triptych.diffusion.dit import DiTConfig
from triptych.diffusion.gaussian import GaussianConfig
from triptych.diffusion.model import SamplingConfig
from triptych.diffusion.unet import NO_LABEL
from triptych.interop.diffusers.exporter import to_diffusers
from triptych.interop.dit import from_state_dict
from triptych.interop.dit.weights import described
from triptych.interop.guided_diffusion.configs import original_flags
from triptych.recipes.catalogue import load_recipe
from triptych.runs import import_run, open_run


def test_names_shapes_and_counts_of_the_largest() -> None:
    """On the meta device: 674,834,720 parameters are trained."""
    with torch.device("meta"):
        config, spec = described({name: torch.empty(shape) for name, shape in XL_2.items()}, {})
        model = config.build(spec)
    assert config.network == DiTConfig(patch=2, width=1152, depth=28, heads=16)
    assert config.diffusion == GaussianConfig(steps=1000, schedule="linear", mean="epsilon", variance="learned_range", loss="mse")
    assert (config.label_dropout, config.sampling) == (0.1, SamplingConfig(steps=250, clip=False))
    assert spec == DataSpec(image_size=32, channels=4, num_classes=1000)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.network.state_dict().items()}
    assert shapes == {name: shape for name, shape in XL_2.items() if name != "pos_embed"}
    assert sum(parameter.numel() for parameter in model.parameters()) == 674_834_720


@pytest.mark.parametrize(
    ("name", "width", "depth", "heads", "steps"),
    [("s-2", 384, 12, 6, 400_000), ("b-2", 768, 12, 12, 400_000), ("l-2", 1024, 24, 16, 400_000), ("xl-2", 1152, 28, 16, 7_000_000)],
)
def test_published_settings(name: str, width: int, depth: int, heads: int, steps: int) -> None:
    recipe = load_recipe(f"dit-{name}")
    model, train, optim = recipe.model, recipe.train, recipe.optim
    assert isinstance(model, ADMConfig)
    assert model.network == DiTConfig(patch=2, width=width, depth=depth, heads=heads)
    assert model.diffusion == GaussianConfig(steps=1000, schedule="linear", mean="epsilon", variance="learned_range", loss="mse")
    assert (model.class_conditional, model.label_dropout, model.sampling) == (True, 0.1, SamplingConfig(steps=250, clip=False))
    assert (recipe.data.source, recipe.data.image_size, recipe.data.latent_std, recipe.data.flip) == ("latents", 256, 1.0, True)
    assert (train.total_images, train.batch_size, train.ema_rates, train.ema_warmup) == (steps * 256, 256, (0.9999,), False)
    assert (optim.name, optim.learning_rate, optim.schedule, optim.weight_decay, optim.warmup_images) == ("adamw", 1e-4, "constant", 0, 0)


def test_a_checkpoint_of_its_training_becomes_a_run(tmp_path: Path) -> None:
    args = Namespace(image_size=64, num_classes=3, num_heads=6, epochs=1400, vae="ema")
    file = tmp_path / "0100000.pt"
    torch.save({"model": weights(seed=1), "ema": weights(seed=2), "opt": {}, "args": args}, file)
    lines: list[str] = []
    run = import_run(file, tmp_path / "run", program="dit", report=lines.append)
    assert isinstance(run.config.model, ADMConfig) and run.spec.num_classes == 3
    recipe, train = load_recipe("dit-xl-2"), run.config.train
    assert (run.config.optim, train.batch_size, train.ema_rates) == (recipe.optim, 256, recipe.train.ema_rates)
    assert (train.ema_warmup, train.total_images) == (False, 1_800_000_000), "the 7,000,000 steps of the largest, and some"
    assert (run.config.model.label_dropout, run.config.model.sampling) == (recipe.model.label_dropout, recipe.model.sampling)  # type: ignore[attr-defined]
    assert "is a checkpoint of a training of DiT: latents of 4 x 8 x 8" in lines[0]
    assert not [line for line in lines if "licence" in line], "of a size that nobody published"
    origin = json.loads((tmp_path / "run/checkpoints/000000000/state.json").read_text())["imported"]
    assert origin["flags"] == "--image-size 64 --num-classes 3"
    for name, seed in (("raw", 1), ("ema-0.9999", 2)):
        model = open_run(tmp_path / "run").load(weights=name, device="cpu")
        assert torch.equal(model.network.blocks[0].attn.qkv.weight, weights(seed=seed)["blocks.0.attn.qkv.weight"]), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_files_in_half_precision(dtype: torch.dtype) -> None:
    """Their table of positions is rounded too."""
    whole = weights(SMALL)
    found = from_state_dict({name: tensor.to(dtype) for name, tensor in whole.items()}, HEADS)
    torch.testing.assert_close(
        dict(found.network.state_dict())["final_layer.linear.weight"], whole["final_layer.linear.weight"].to(dtype).float()
    )
    with pytest.raises(CheckpointError, match="is not the table of sines and cosines"):
        from_state_dict({name: (tensor + 0.01 * (name == "pos_embed")).to(dtype) for name, tensor in whole.items()}, HEADS)


def test_settings_of_a_training_may_be_a_table(tmp_path: Path) -> None:
    for args in (Namespace(image_size=128), {"image_size": 128}):
        torch.save({"model": weights(seed=1), "ema": weights(seed=2), "opt": {}, "args": args}, tmp_path / "0100000.pt")
        with pytest.raises(ConfigError, match="--image-size: the file has 64, got 128"):
            import_run(tmp_path / "0100000.pt", tmp_path / "run", program="dit")


def test_errors() -> None:
    with pytest.raises(CheckpointError, match="4 output channels, where DiT has twice as many as latents have"):
        from_state_dict(weights(names_of(width=384, depth=1, patch=2, rows=4, classes=3, outputs=4)), HEADS)
    with pytest.raises(ConfigError, match="--model: got 'SiT-S/2', expected one of DiT-S/2"):
        from_state_dict(weights(SMALL), {"model": "SiT-S/2"})


def test_the_first_half_of_the_outputs_is_the_noise() -> None:
    """The biases of the last layer, which are counted pixel by pixel and in each by channel, are all that is said."""
    state = weights(SMALL)
    state["final_layer.linear.weight"].zero_()
    state["final_layer.linear.bias"] = torch.arange(8.0).repeat(4)
    model = from_state_dict(state, HEADS)
    with torch.no_grad():
        said = model.network(torch.randn(1, 4, 8, 8), torch.tensor([7]), torch.tensor([2]))
    assert torch.equal(said, torch.arange(8.0)[None, :, None, None].expand(1, 8, 8, 8))
    noise, variance = model.diffusion.split(said)
    assert variance is not None and noise[0, :, 0, 0].tolist() == [0, 1, 2, 3] and variance[0, :, 0, 0].tolist() == [4, 5, 6, 7]


def test_guided_samples_by_the_formulas_of_ddim() -> None:
    """Two steps, at the timesteps 999 and 0: all four channels are guided, nothing is clipped."""
    model = from_state_dict(weights(SMALL), HEADS)
    rng, labels = Rng(0, ("sample",), torch.arange(2)), torch.tensor([0, 2])
    settings = SamplingConfig(sampler="ddim", steps=2, clip=False, guidance_scale=4.0)
    drawn = model.sample(rng, labels=labels, settings=settings)

    abar = np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))
    x = rng.normal("initial", 4, 8, 8)
    with torch.no_grad():
        for t, before, after in ((999, abar[999], abar[0]), (0, abar[0], 1.0)):
            time = torch.tensor([t, t])
            told, alone = (model.network(x, time, y)[:, :4] for y in (labels, torch.full((2,), NO_LABEL)))
            noise = alone + 4 * (told - alone)
            x0 = (x - (1 - before) ** 0.5 * noise) / before**0.5
            x = after**0.5 * x0 + (1 - after) ** 0.5 * noise
    assert x.abs().max() > 2
    torch.testing.assert_close(drawn, x, atol=1e-3, rtol=1e-3)


def test_other_programs_cannot_express_it() -> None:
    model = from_state_dict(weights(SMALL), HEADS)
    with pytest.raises(ConfigError, match="guided-diffusion cannot express this model: .*model.network: a transformer"):
        original_flags(model.config, DataSpec(image_size=8, channels=4, num_classes=3))
    with pytest.raises(ConfigError, match="diffusers cannot express this model: its transformers embed the time"):
        to_diffusers(model)


def test_latents_need_no_square() -> None:
    spec = DataSpec(image_size=4, width=8, channels=4)
    network = DiTConfig(width=32, depth=1, heads=2)
    model = ADMConfig(network=network, diffusion=GaussianConfig(variance="learned_range")).build(spec).eval()
    drawn = model.sample(Rng(0, ("sample",), torch.arange(1)), labels=None, settings=SamplingConfig(sampler="ddim", steps=1, clip=False))
    assert drawn.shape == (1, 4, 4, 8)
    with pytest.raises(ConfigError, match="a U-Net takes squares, not images of 4 x 8 pixels"):
        ADMConfig().build(spec)
