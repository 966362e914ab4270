"""Networks of EDM2, in and out: names and shapes of all published ones, a file in their form, files that do not fit."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.diffusion.test_edm2_network import COUNTED, WIDTHS
from tests.interop import nvidia_names as names
from tests.interop.nvidia_files import Persistent, modules_of_nvidia, network, write_pickle
from triptych import runs
from triptych.cli.main import main
from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError
from triptych.core.model import seeded_build
from triptych.core.outline import without_weights
from triptych.diffusion.edm import EDMConfig
from triptych.diffusion.edm2 import EDM2, EDM2Config
from triptych.diffusion.edm2_network import EDM2NetworkConfig
from triptych.interop.nvidia.families import FAMILIES
from triptych.interop.nvidia.family import part_of
from triptych.interop.nvidia.snapshots import Network, Snapshot
from triptych.recipes.catalogue import load_recipe

BUFFERS = (".freqs", ".phases")


def published(size: str, channels: int, classes: int, **settings: Any) -> Network:
    shapes = names.edm2(WIDTHS[size], channels=channels, classes=classes)
    with torch.device("meta"):
        tensors = {name: torch.empty(shape) for name, shape in shapes.items()}
    given = {"img_resolution": 64, "img_channels": channels, "label_dim": classes, "use_fp16": True, "model_channels": WIDTHS[size]}
    return Network("Precond", given | settings, tensors)


@pytest.mark.parametrize(("size", "channels"), COUNTED)
@pytest.mark.parametrize("classes", [1000, 0])
def test_names_and_shapes_of_published_networks(size: str, channels: int, classes: int) -> None:
    count = COUNTED[size, channels][0 if classes else 1]
    file = published(size, channels, classes)
    family = FAMILIES["EDM2"]
    model, spec = family.read(file, None)
    assert (spec.image_size, spec.channels, spec.num_classes) == (64, channels, classes or None)
    with without_weights():
        ours = seeded_build(model, spec, seed=0)
    partners = family.given(part_of(ours.state_dict(), "network"), part="network", config=model, spec=spec)
    wanted = {name: tuple(tensor.shape) for name, tensor in file.tensors.items()}
    assert {name: tuple(tensor.shape) for name, tensor in partners.items()} == wanted
    if count is not None:
        assert sum(math.prod(shape) for name, shape in wanted.items() if not name.endswith(BUFFERS)) == count


@pytest.mark.parametrize(("size", "dropout"), [("xs", 0.0), ("s", 0.0), ("m", 0.1), ("l", 0.1), ("xl", 0.1)])
def test_a_published_network_has_the_training_of_its_recipe(size: str, dropout: float) -> None:
    family = FAMILIES["EDM2"]
    network = published(size, 3, 1000, dropout=dropout)
    _, name = family.run(*family.read(network, None), Snapshot("EDM2", {"ema": network}))
    assert name == f"edm2-img64-{size}"


# A small run and its file -----------------------------------------------------------------------------------------------------

SMALL = EDM2Config(
    network=EDM2NetworkConfig(
        num_channels=8, channel_mult=(1, 3), num_blocks=1, attention_resolutions=(8,), num_head_channels=4, dropout=0.1
    ),
    class_conditional=True,
    sigma_data=0.4,
)
SETTINGS = {"img_resolution": 16, "img_channels": 3, "label_dim": 7, "dropout": 0.1, "channels_per_head": 4, "sigma_data": 0.4}


def trained() -> EDM2:
    """A model whose tensors are all random, as those of a trained one are; half precision holds them."""
    model = seeded_build(SMALL, DataSpec(image_size=16, channels=3, num_classes=7), seed=0)
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.add_(torch.randn(tensor.shape, generator=rng), alpha=0.5)
            tensor.copy_(tensor.half())
    assert isinstance(model, EDM2)
    return model


def write(path: Path, tensors: dict[str, Tensor], **settings: Any) -> Path:
    with modules_of_nvidia():
        ema = network("Precond", tensors, settings=SETTINGS | settings)
        return write_pickle(path, {"ema": ema, "dataset_kwargs": {"path": "x.zip"}, "loss_fn": None})


def test_what_a_training_says_is_taken(tmp_path: Path) -> None:
    """The noise levels of loss_fn, and the width that the levels are multiples of, which may be none of theirs."""
    with modules_of_nvidia():
        ema = network("Precond", tensors_of(trained()), settings=SETTINGS | {"model_channels": 4})
        loss = Persistent("EDM2Loss", {"P_mean": -0.9, "P_std": 1.3, "sigma_data": 0.4})
        path = write_pickle(tmp_path / "x.pkl", {"ema": ema, "loss_fn": loss})
    config = runs.import_run(path, tmp_path / "run", program="nvidia").config.model
    assert isinstance(config, EDM2Config) and (config.noise_mean, config.noise_std) == (-0.9, 1.3)
    assert (config.network.num_channels, config.network.channel_mult) == (4, (2, 6))


def tensors_of(model: EDM2) -> dict[str, Tensor]:
    return {name: tensor.detach().half() for name, tensor in model.network.state_dict().items()}


@torch.no_grad()
def predicted(model: EDM2) -> Tensor:
    x = torch.randn(3, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    sigma = torch.tensor([0.01, 0.7, 20.0], dtype=torch.float64).view(-1, 1, 1, 1)
    return model.double().eval().predict(sigma * x, sigma, torch.tensor([0, 6, -1]))


def test_a_file_in_their_form(tmp_path: Path) -> None:
    model, said = trained(), []
    path = write(tmp_path / "edm2-small-0.130.pkl", tensors_of(model))
    run = runs.import_run(path, tmp_path / "run", program="nvidia", report=said.append)
    config = run.config.model
    assert isinstance(config, EDM2Config)
    assert (config.network, config.sigma_data, config.class_conditional) == (SMALL.network, 0.4, True)
    loaded = run.load(device="cpu")
    assert isinstance(loaded, EDM2)
    phases = model.network.unet.emb_fourier.phases
    assert torch.equal(loaded.network.unet.emb_fourier.phases, phases), "not drawn anew"
    assert torch.equal(loaded.network.logvar_linear.weight, model.network.logvar_linear.weight)
    wanted = predicted(model)
    torch.testing.assert_close(predicted(loaded), wanted, rtol=1e-12, atol=1e-12)
    assert wanted.std() > 0.1
    assert any("CC BY-NC-SA 4.0" in line for line in said), "the licence is said"
    out = tmp_path / "out.safetensors"
    assert main(["export", str(tmp_path / "run"), "--to", "nvidia", "--out", str(out)]) == 0
    found = load_file(out)
    assert found.keys() == tensors_of(model).keys()
    assert all(torch.equal(found[name].half(), tensor) for name, tensor in tensors_of(model).items())
    assert f'"channels_per_head": {SMALL.network.num_head_channels}' in out.with_suffix(".json").read_text()


@pytest.mark.parametrize(("conditional", "classes", "told"), [(True, 7, 7), (False, 7, 0), (False, None, 0)])
def test_the_classes_that_the_original_is_built_with(conditional: bool, classes: int | None, told: int) -> None:
    spec = DataSpec(image_size=16, channels=3, num_classes=classes)
    for kind, config in (("EDM2", SMALL), ("EDM", EDMConfig())):
        settings = FAMILIES[kind].built_with(replace(config, class_conditional=conditional), spec)["network"]  # type: ignore[index]
        assert settings["label_dim"] == told


def test_what_the_original_is_built_with() -> None:
    """The arguments of Precond, each another number."""
    spec = DataSpec(image_size=16, channels=3, num_classes=7)
    more = {"model_channels": 8, "channel_mult": [1, 3], "num_blocks": 1, "attn_resolutions": [8]}
    assert FAMILIES["EDM2"].built_with(SMALL, spec) == {"network": SETTINGS | more}


def test_whole_numbers_where_fractions_are_expected(tmp_path: Path) -> None:
    path = write(tmp_path / "x.pkl", tensors_of(trained()), dropout=0, sigma_data=1)
    config = runs.import_run(path, tmp_path / "run", program="nvidia").config.model
    assert isinstance(config, EDM2Config) and (config.network.dropout, config.sigma_data) == (0.0, 1.0)
    assert type(config.network.dropout) is float and type(config.sigma_data) is float
    assert runs.open_run(tmp_path / "run").config.model == config


@pytest.mark.parametrize(
    ("change", "settings", "said"),
    [
        ({"unet.emb_fourier.phases": None}, {}, "ema: the file is incomplete: it has no unet.emb_fourier.phases"),
        ({"unet.other.weight": torch.ones(1)}, {}, "ema: the file is of another network: it has unet.other.weight"),
        ({"unet.emb_noise.weight": torch.ones(24, 9)}, {}, r"ema: unet.emb_noise.weight has shape \[24, 9\], expected \[24, 8\]"),
        ({"unet.enc.16x16_conv.weight": torch.ones(7, 4, 3, 3)}, {}, "has levels of 8, 24 channels, expected multiples of 7"),
        ({"unet.enc.16x16_conv.weight": torch.ones(8, 1, 3, 3)}, {}, "takes 1 channel, expected 2 to 65, one of them of ones"),
        ({"unet.enc.8192x8192_block0.conv_res0.weight": torch.ones(1)}, {}, "it has no unet.enc.RxR_block0 of a size R up to 4096"),
        (
            {f"unet.enc.16x16_block{number}.conv_res0.weight": torch.ones(1) for number in range(101)},
            {},
            "has 101 blocks unet.enc.16x16_blockN, expected 1 to 100",
        ),
        ({}, {"res_balance": 0.5}, "has res_balance 0.5, expected 0.3, which is what every network here has"),
        ({}, {"dropout": "much"}, "has dropout 'much', expected a number"),
        ({}, {"channels_per_head": 5}, "num_head_channels: got 5, expected a divisor of 24"),
    ],
)
def test_files_that_do_not_fit(change: dict[str, Any], settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in (tensors_of(trained()) | change).items() if tensor is not None}
    path = write(tmp_path / "x.pkl", tensors, **settings)
    with pytest.raises(CheckpointError, match=said):
        runs.import_run(path, tmp_path / "run", program="nvidia")
    assert not (tmp_path / "run").exists()


CONSTANT = {"label_balance": 0.5, "concat_balance": 0.5, "res_balance": 0.3, "attn_balance": 0.3}
CONSTANT |= {"clip_act": 256, "logvar_channels": 128, "resample_filter": [1, 1]}
"""What networks_edm2.py has where nothing is given."""


def test_settings_that_are_the_same_in_every_network() -> None:
    read = FAMILIES["EDM2"].read
    assert read(published("xs", 3, 1000, **CONSTANT), None) == read(published("xs", 3, 1000), None)
    for name, value in CONSTANT.items():
        other = [1, 3, 3, 1] if isinstance(value, list) else value * 2
        said = re.escape(f"has {name} {other!r}, expected {value!r}, which is what every network here has")
        with pytest.raises(CheckpointError, match=f"^{said}$"):
            read(published("xs", 3, 1000, **CONSTANT | {name: other}), None)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dropout": True}, "has dropout True, expected a number"),
        ({"sigma_data": -0.5}, "has sigma_data -0.5, expected a number"),
        ({"channels_per_head": 1e6}, "has channels_per_head 1000000.0, expected a number"),
        ({"model_channels": None}, "has model_channels None, expected a number"),
        ({"model_channels": 0.5}, "has levels of 128, 256, 384, 512 channels, expected multiples of 0"),
    ],
)
def test_settings_that_are_no_numbers(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=f"^{re.escape(said)}"):
        FAMILIES["EDM2"].read(published("xs", 3, 1000, **settings), None)


def test_a_file_of_large_images_trains_on_as_the_published_ones_of_images() -> None:
    """Not as one of latents of images as large, whose noise levels are lower."""
    with torch.device("meta"):
        tensors = {name: torch.empty(shape) for name, shape in names.edm2(128, channels=3, size=512).items()}
    network, family = Network("Precond", {"img_channels": 3, "model_channels": 128}, tensors), FAMILIES["EDM2"]
    config, _ = family.run(*family.read(network, None), Snapshot("EDM2", {"ema": network}))
    assert (config.model.noise_mean, config.model.noise_std) == (-0.8, 1.6)  # type: ignore[attr-defined]
    assert config.data.source != "latents"


@pytest.mark.parametrize("size", ["xxs", "xs", "s", "m"])
def test_files_of_latents_train_on_as_the_published_ones_of_latents(size: str) -> None:
    family = FAMILIES["EDM2"]
    recipe = load_recipe(f"edm2-img512-{size}")
    dropout = recipe.model.network.dropout  # type: ignore[attr-defined]
    network = published(size, 4, 1000, dropout=dropout)
    config, name = family.run(*family.read(network, None), Snapshot("EDM2", {"ema": network}))
    assert name is None, "its data are of the autoencoder that the user names"
    assert (config.model.noise_mean, config.model.noise_std) == (-0.4, 1.0)  # type: ignore[attr-defined]
    assert (config.optim, config.train.total_images) == (recipe.optim, recipe.train.total_images)
