"""Networks of EDM, in and out: names and shapes of all published ones, outputs that stay the same, files that do not fit.

No real file is here. The files have tensors under the originals' names, from the published formulas (`nvidia_edm_names.py`), and the
runs are held against plain functions of these tensors (`tests/diffusion/edm_reference.py`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.diffusion import edm_reference as reference
from tests.interop import nvidia_edm_names as names
from tests.interop.nvidia_files import Persistent, modules_of_nvidia, network, write_pickle
from triptych import runs
from triptych.cli.main import main
from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError
from triptych.core.model import seeded_build
from triptych.core.outline import without_weights
from triptych.diffusion.edm import EDMConfig
from triptych.diffusion.edm_augmentation import NonLeakingConfig
from triptych.diffusion.edm_networks import ADMUNetConfig, SongUNetConfig
from triptych.interop.nvidia.edm import EDM as FAMILY
from triptych.interop.nvidia.family import part_of
from triptych.interop.nvidia.snapshots import Network, Snapshot
from triptych.nn.filters import BINOMIAL
from triptych.recipes.catalogue import load_recipe

CONSTANT = ".resample_filter"


@dataclass(frozen=True)
class Published:
    """A network of the original: the names and shapes of its tensors, the number of its parameters, what the file says of it."""

    shapes: names.Shapes
    count: int
    settings: dict[str, Any]


def _ffhq(dropout: float) -> Published:
    return Published(names.song_unet(64, 128, (1, 2, 2, 2)), 61_805_571, {"model_type": "SongUNet", "dropout": dropout})


PUBLISHED = {
    "edm-cifar10": Published(names.song_unet(32, 128, (2, 2, 2)), 55_733_891, {"dropout": 0.13}),
    "edm-cifar10-cond": Published(names.song_unet(32, 128, (2, 2, 2), classes=10), 55_735_299, {"dropout": 0.13}),
    "edm-ffhq64": _ffhq(0.05),
    "edm-afhqv2": _ffhq(0.25),
    "edm-imagenet64": Published(names.adm(64, 192, (1, 2, 3, 4), classes=1000), 295_899_267, {"dropout": 0.1, "sigma_data": 0.5}),
}
NCSNPP = Published(names.song_unet(32, 128, (2, 2, 2), classes=10, ncsnpp=True), 56_400_643, {"dropout": 0.13})


def network_of(published: Published) -> Network:
    with torch.device("meta"):
        tensors = {key: torch.empty(shape) for key, shape in published.shapes.items()}
    return Network("EDMPrecond", published.settings, tensors)


@pytest.mark.parametrize("case", [*PUBLISHED, "ncsn++"])
def test_names_and_shapes_of_published_networks(case: str) -> None:
    """Each tensor of the original has a partner of its shape in the model here, and each of the model's one in the original."""
    published = PUBLISHED.get(case, NCSNPP)
    model, spec = FAMILY.read(network_of(published), None)
    with without_weights():
        ours = seeded_build(model, spec, seed=0)
    partners = FAMILY.given(part_of(ours.state_dict(), "network"), part="network", config=model, spec=spec)
    found = {key: tuple(tensor.shape) for key, tensor in partners.items()}
    assert found == {key: shape for key, shape in published.shapes.items() if not key.endswith(CONSTANT)}
    assert sum(parameter.numel() for parameter in ours.parameters()) == published.count
    learned = (shape for key, shape in published.shapes.items() if not key.endswith((CONSTANT, "freqs")))
    assert sum(map(math.prod, learned)) == published.count


@pytest.mark.parametrize("case", PUBLISHED)
def test_a_published_network_has_the_training_of_its_recipe(case: str) -> None:
    network = network_of(PUBLISHED[case])
    config, name = FAMILY.run(*FAMILY.read(network, None), Snapshot("EDM", {"ema": network}))
    assert name == case and config == load_recipe(case)


# Small files ------------------------------------------------------------------------------------------------------------------

SMALL: dict[str, names.Shapes] = {
    "ddpm++": names.song_unet(16, 8, (1, 2), blocks=2, attended=(8,), channels=1),
    "ncsn++": names.song_unet(16, 8, (1, 2, 2), blocks=1, attended=(8,), classes=5, ncsnpp=True),
    "adm": names.adm(16, 128, (1, 2), blocks=1, attended=(8,), classes=5, augment=9),
}


def tensors_of(case: str) -> dict[str, Tensor]:
    """Random ones; filters are what they are."""
    generator = torch.Generator().manual_seed(0)

    def filled(name: str, shape: tuple[int, ...]) -> Tensor:
        if name.endswith(CONSTANT):
            line = torch.tensor(BINOMIAL if shape[-1] == 4 else (1.0, 1.0))
            return line.outer(line)[None, None] / line.sum() ** 2
        return torch.randn(shape, generator=generator) * 0.3 + name.endswith(".weight") * ("norm" in name)

    return {name: filled(name, shape) for name, shape in SMALL[case].items()}


def write(path: Path, tensors: Mapping[str, Tensor], *, settings: Mapping[str, Any] = {}, class_name: str = "EDMPrecond") -> Path:
    with modules_of_nvidia():
        return write_pickle(path, {"ema": network(class_name, tensors, settings={"dropout": 0.2, "sigma_data": 0.6} | dict(settings))})


@pytest.mark.parametrize("case", SMALL)
def test_an_imported_run_denoises_as_the_original(case: str, tmp_path: Path) -> None:
    said: list[str] = []
    tensors = tensors_of(case)
    run = runs.import_run(write(tmp_path / "x.pkl", tensors), tmp_path / "run", program="nvidia", report=said.append)
    assert any("CC BY-NC-SA 4.0" in line for line in said) and "CC BY-NC-SA 4.0" in (tmp_path / "run/log.txt").read_text()
    model: Any = run.load(device="cpu").double().eval()
    assert model.config.sigma_data == 0.6 and model.config.network.dropout == 0.2
    channels, size, _ = model.image_shape
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, channels, size, size, generator=generator, dtype=torch.float64) * 2
    sigma = torch.tensor([0.05, 0.7, 9.0], dtype=torch.float64)
    labels = None if model.num_classes is None else torch.tensor([4, 0, 2])
    one_hot = None if labels is None else torch.eye(5, dtype=torch.float64)[labels]
    state = {name.removeprefix("model."): tensor.double() for name, tensor in tensors.items()}
    total = (sigma**2 + 0.6**2)[:, None, None, None]
    function = reference.adm_unet if case == "adm" else reference.song_unet
    more = {"taps": BINOMIAL} if case == "ncsn++" else {}
    output = function(state, x / total.sqrt(), sigma.log() / 4, one_hot=one_hot, **more)
    wide = sigma[:, None, None, None]
    expected = 0.6**2 / total * x + wide * 0.6 / total.sqrt() * output
    with torch.no_grad():
        found = model.predict(x, wide, labels)
    assert output.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)  # the file is of float32
    assert run.config.model.augmentation.p == 0.12  # type: ignore[attr-defined]


@pytest.mark.parametrize(("case", "suffix"), [("ddpm++", ".pt"), ("ncsn++", ".safetensors"), ("adm", ".pt")])
def test_what_was_read_is_what_is_written(case: str, suffix: str, tmp_path: Path) -> None:
    tensors = tensors_of(case)
    runs.import_run(write(tmp_path / "x.pkl", tensors), tmp_path / "run", program="nvidia")
    out = tmp_path / f"out{suffix}"
    assert main(["export", str(tmp_path / "run"), "--to", "nvidia", "--out", str(out)]) == 0
    found = (load_file if suffix == ".safetensors" else torch.load)(out)
    wanted = {name: tensor for name, tensor in tensors.items() if not name.endswith(CONSTANT)}
    assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)
    settings = json.loads((tmp_path / "out.json").read_text())["network"]
    again = write(tmp_path / "y.pkl", tensors, settings=settings)
    config = runs.import_run(again, tmp_path / "again", program="nvidia").config.model
    assert config == runs.open_run(tmp_path / "run").config.model
    assert (settings["label_dim"], settings["augment_dim"]) == (0 if case == "ddpm++" else 5, 9)
    assert settings["model_type"] == ("DhariwalUNet" if case == "adm" else "SongUNet")
    assert settings["resample_filter" if case != "adm" else "num_blocks"] == {"ddpm++": [1, 1], "ncsn++": [1, 3, 3, 1], "adm": 1}[case]


def snapshot_of(path: Path, tensors: Mapping[str, Tensor], *, settings: Mapping[str, Any], loss: Any, pipe: Any) -> Path:
    """As EDM's training writes it: its loss and its augmentation beside the network."""
    with modules_of_nvidia():
        parts = {"loss_fn": Persistent("EDMLoss", loss), "augment_pipe": Persistent("AugmentPipe", pipe)}
        return write_pickle(path, {"ema": network("EDMPrecond", tensors, settings=settings), **parts, "dataset_kwargs": {}})


def test_what_a_training_says_is_taken(tmp_path: Path) -> None:
    pipe = {"p": 0.3, "xflip": 0, "yflip": 1, "scale": 0.5, "rotate_frac": 0.25, "aniso": 2, "translate_frac": 0, "brightness": 0}
    loss = {"P_mean": -0.8, "P_std": 1.6, "sigma_data": 0.5}
    path = snapshot_of(tmp_path / "x.pkl", tensors_of("adm"), settings={"label_dropout": 0.2}, loss=loss, pipe=pipe)
    config = runs.import_run(path, tmp_path / "run", program="nvidia").config.model
    assert isinstance(config, EDMConfig) and config.label_dropout == 0.2
    assert (config.noise_mean, config.noise_std) == (-0.8, 1.6)
    assert config.augmentation == NonLeakingConfig(
        p=0.3, x_flip=False, y_flip=1.0, scaling=0.5, rotation=0.25, anisotropy=2.0, translation=0.0
    )


def test_whole_numbers_where_fractions_are_expected(tmp_path: Path) -> None:
    settings, loss, pipe = {"dropout": 0, "sigma_data": 1, "label_dropout": 0}, {"P_mean": -1, "P_std": 2}, {"p": 1, "scale": 1}
    path = snapshot_of(tmp_path / "x.pkl", tensors_of("adm"), settings=settings, loss=loss, pipe=pipe)
    config = runs.import_run(path, tmp_path / "run", program="nvidia").config.model
    assert isinstance(config, EDMConfig)
    found = (config.network.dropout, config.sigma_data, config.label_dropout, config.noise_mean, config.noise_std, config.augmentation.p)
    assert found == (0, 1, 0, -1, 2, 1) and all(type(value) is float for value in found)
    assert config.augmentation == NonLeakingConfig(p=1.0, scaling=1.0), "flipped, as the original does where a file does not say it"
    assert runs.open_run(tmp_path / "run").config.model == config


@pytest.mark.parametrize(
    "settings",
    [
        {},
        *({"dropout": value} for value in (1, 1.5, -0.5, True, "0.2", None)),
        *({"sigma_data": value} for value in (-1, False, 1e6, "1", None)),
        *({"label_dropout": value} for value in (1, 2.0, -0.5, True, None)),
    ],
    ids=str,
)
def test_what_says_nothing_of_a_network(settings: dict[str, Any]) -> None:
    """Values that no network has, and augmentations that it is not told of, are as good as not there."""
    network = network_of(Published(names.adm(16, 128, (1, 2), blocks=1, attended=(8,), classes=5), 0, settings))
    config, spec = FAMILY.read(network, None)
    config = FAMILY.training(config, Snapshot("EDM", {"ema": network}, {"augment_pipe": {"p": 0.3}}))
    assert isinstance(config, EDMConfig) and (spec.num_classes, config.class_conditional) == (5, True)
    assert (config.network.dropout, config.sigma_data, config.label_dropout) == (0.1, 0.5, 0.0)
    assert config.augmentation == NonLeakingConfig()


def test_how_often_images_were_changed_is_a_probability() -> None:
    """Another number is as good as not there: then it is that of the published networks of this size."""
    network = network_of(Published(names.adm(16, 128, (1, 2), blocks=1, attended=(8,), classes=5, augment=9), 0, {}))
    config, _ = FAMILY.read(network, None)
    for p in (-0.3, 0, 1.5):
        found = FAMILY.training(config, Snapshot("EDM", {"ema": network}, {"augment_pipe": {"p": p, "scale": 1}}))
        assert isinstance(found, EDMConfig) and found.augmentation == NonLeakingConfig(p=0.12)


def test_what_no_training_has_is_said(tmp_path: Path) -> None:
    path = snapshot_of(tmp_path / "x.pkl", tensors_of("adm"), settings={}, loss={"P_std": -1.0}, pipe={"p": 7.0})
    with pytest.raises(CheckpointError, match="its networks have no model here: noise_std: got -1.0, expected a positive number"):
        runs.import_run(path, tmp_path / "run", program="nvidia")


def test_the_first_level_of_adm_may_be_wider(tmp_path: Path) -> None:
    """Its time is told by as many waves as model_channels says, whatever the levels have."""
    published = Published(names.adm(16, 128, (2, 3), blocks=1, attended=(8,)), 0, {})
    model, spec = FAMILY.read(network_of(published), None)
    assert isinstance(model.network, ADMUNetConfig) and (model.network.num_channels, model.network.channel_mult) == (128, (2, 3))
    with without_weights():
        ours = seeded_build(model, spec, seed=0)
    partners = FAMILY.given(part_of(ours.state_dict(), "network"), part="network", config=model, spec=spec)
    assert {key: tuple(tensor.shape) for key, tensor in partners.items()} == {
        key: shape for key, shape in published.shapes.items() if not key.endswith(CONSTANT)
    }


CONV = "model.enc.8x8_block0.conv1.weight"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors.pop(CONV), f"ema: the file is incomplete: it has no {CONV}"),
        (lambda tensors: tensors.update({CONV: torch.ones(8, 8, 3, 3)}), f"ema: {CONV} has shape [8, 8, 3, 3], expected [16, 16, 3, 3]"),
        (lambda tensors: tensors.update({"model.other": torch.ones(1)}), "ema: the file is of another network: it has model.other"),
        (lambda tensors: tensors.update({"model.enc.8x8_aux_skip.weight": torch.ones(1)}), "has layers aux_skip, which no network here"),
        (lambda tensors: tensors.update({"model.map_augment.weight": torch.ones(8, 6)}), "is told 6 numbers of augmentation, expected 9"),
        (
            lambda tensors: tensors.update({"model.enc.8x8_down.conv0.resample_filter": torch.tensor([[[[1.0, 2], [2, 1]]]])}),
            "ema: model.enc.8x8_down.conv0.resample_filter is another filter than 1 1, which is the one here",
        ),
        (lambda tensors: tensors.pop("model.enc.16x16_conv.weight"), "the file is incomplete: it has no model.enc.16x16_conv.weight"),
        (
            lambda tensors: tensors.update({"model.enc.8192x8192_conv.weight": torch.ones(1)}),
            "the file is incomplete: it has no model.enc.RxR of a size R up to 4096",
        ),
        (
            lambda tensors: [tensors.pop(name) for name in list(tensors) if "16x16_block" in name],
            "has 0 blocks model.enc.16x16_blockN, expected 1 to 100",
        ),
    ],
)
def test_files_that_do_not_fit(change: Callable[[dict[str, Tensor]], Any], said: str, tmp_path: Path) -> None:
    tensors = tensors_of("ddpm++")
    change(tensors)
    path = write(tmp_path / "x.pkl", tensors)
    with pytest.raises(CheckpointError) as caught:
        runs.import_run(path, tmp_path / "run", program="nvidia")
    assert str(caught.value).removeprefix(f"{path}: ").startswith(said) and not (tmp_path / "run").exists()


def test_a_narrow_adm_has_other_norms(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is ADM's network of 64 channels, whose norms have fewer groups than here"):
        FAMILY.read(network_of(Published(names.adm(16, 64, (1, 2), blocks=1, attended=(8,)), 0, {})), None)


def test_networks_of_another_preconditioning(tmp_path: Path) -> None:
    path = write(tmp_path / "x.pkl", tensors_of("ddpm++"), class_name="VPPrecond")
    with pytest.raises(CheckpointError, match="is a network of the class VPPrecond, whose preconditioning is not EDM's"):
        runs.import_run(path, tmp_path / "run", program="nvidia")


@torch.no_grad()
def test_both_orders_of_attention_become_the_original_one() -> None:
    """What a network of the newer order is exported as is read as one of the older order, and gives the same."""
    spec = DataSpec(image_size=8, channels=1)
    newer, older = (
        EDMConfig(
            network=ADMUNetConfig(num_channels=128, channel_mult=(1,), num_res_blocks=1, attention_resolutions=(8,), attention_order=order)
        )
        for order in ("new", "legacy")
    )
    made, read = (seeded_build(config, spec, seed=seed).eval() for seed, config in enumerate((newer, older)))
    for name, tensor in made.state_dict().items():
        tensor.add_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(len(name))), alpha=0.1)
    theirs = FAMILY.given(part_of(made.state_dict(), "network"), part="network", config=newer, spec=spec)
    ours = FAMILY.taken(theirs, part_of(read.state_dict(), "network"), part="network", config=older, spec=spec)
    read.get_submodule("network").load_state_dict(ours)
    x, sigma = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.full((1, 1, 1, 1), 0.5)
    expected = made.predict(x, sigma, None)  # type: ignore[operator]
    torch.testing.assert_close(read.predict(x, sigma, None), expected, atol=1e-5, rtol=1e-5)  # type: ignore[operator]


def test_what_the_original_is_built_with() -> None:
    """The arguments of EDMPrecond, each another number."""
    song = SongUNetConfig(
        num_channels=8,
        channel_mult=(1, 2),
        num_blocks=3,
        attention_resolutions=(8,),
        embedding="fourier",
        embedding_mult=2,
        encoder="residual",
        resample_filter=BINOMIAL,
        dropout=0.2,
    )
    config = EDMConfig(
        network=song, sigma_data=0.6, augmentation=NonLeakingConfig(p=0.1), class_conditional=True, label_dropout=0.3, noise_mean=-1.0
    )
    images = {"img_resolution": 16, "img_channels": 1, "label_dim": 5, "sigma_data": 0.6, "augment_dim": 9}
    common = {"model_channels": 8, "num_blocks": 3, "channel_mult": [1, 2], "attn_resolutions": [8], "dropout": 0.2, "label_dropout": 0.3}
    own = {"model_type": "SongUNet", "embedding_type": "fourier", "channel_mult_noise": 2, "encoder_type": "residual"}
    own |= {"decoder_type": "standard", "resample_filter": [1, 3, 3, 1]}
    assert FAMILY.built_with(config, DataSpec(image_size=16, channels=1, num_classes=5)) == {"network": images | common | own}
    adm = ADMUNetConfig(num_channels=128, channel_mult=(2, 3), num_res_blocks=1, attention_resolutions=(8, 16), dropout=0.4)
    images = {"img_resolution": 16, "img_channels": 3, "label_dim": 0, "sigma_data": 0.5, "augment_dim": 0}
    common = {"model_channels": 128, "num_blocks": 1, "channel_mult": [2, 3], "attn_resolutions": [8, 16], "dropout": 0.4}
    own = {"model_type": "DhariwalUNet", "label_dropout": 0.0}
    assert FAMILY.built_with(EDMConfig(network=adm), DataSpec(image_size=16, channels=3)) == {"network": images | common | own}


def test_networks_that_the_original_cannot_build() -> None:
    spec = DataSpec(image_size=16, channels=3)
    with pytest.raises(Exception, match="to: EDM's DDPM\\+\\+ and NCSN\\+\\+ have one attention head, this run's network has 2"):
        FAMILY.built_with(EDMConfig(network=SongUNetConfig(num_heads=2, channel_mult=(1,))), spec)
    for settings in ({"num_head_channels": 32}, {"resblock_updown": False}, {"num_channels": 64}, {"channel_mult": (1, 1.5)}):
        adm = replace(ADMUNetConfig(num_channels=128, channel_mult=(1, 2), attention_resolutions=(8,)), **settings)  # type: ignore[arg-type]
        with pytest.raises(Exception, match="to: EDM's ADM has heads of 64 channels, 128 channels or more"):
            FAMILY.built_with(EDMConfig(network=adm), spec)
