"""Networks of StyleGAN2 and R3GAN, in and out: names and shapes of all published ones, images that stay the same, files that do not fit.

No real file is here. The files are made of our models' tensors in the form of NVIDIA's; that the names are the originals' is checked
against lists from the published formulas (`nvidia_names.py`).
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

from tests.interop import nvidia_names as names
from tests.interop.nvidia_files import modules_of_nvidia, network, write_pickle
from triptych import runs
from triptych.cli.main import main
from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.model import Model, seeded_build
from triptych.core.outline import without_weights
from triptych.diffusion.edm import EDMConfig
from triptych.diffusion.edm_networks import SongUNetConfig
from triptych.gans.r3gan import R3GANConfig, R3GANNetworkConfig
from triptych.gans.stylegan2 import StyleGAN2Config
from triptych.gans.stylegan2_layers import StyleGAN2DiscriminatorConfig, StyleGAN2GeneratorConfig
from triptych.interop.nvidia.exporter import exported
from triptych.interop.nvidia.families import FAMILIES
from triptych.interop.nvidia.family import PARTS, check_filter, part_of
from triptych.interop.nvidia.snapshots import LICENCES, Kind, Network, Snapshot
from triptych.interop.programs import ExportRequest
from triptych.recipes.catalogue import load_recipe

CONSTANTS = (".resample_filter", ".Resampler.Kernel")
BUFFERS = (*CONSTANTS, "noise_const", "w_avg")
"""Endings of names of tensors that are not learned."""
KERNEL = torch.tensor([1.0, 3, 3, 1]).outer(torch.tensor([1.0, 3, 3, 1])) / 64


@dataclass(frozen=True)
class Published:
    """Networks of the originals: names and shapes of the generator's and the discriminator's tensors."""

    kind: Kind
    shapes: tuple[names.Shapes, names.Shapes]
    counts: tuple[int, int]
    "Of parameters, as they were published or counted elsewhere."
    settings: tuple[dict[str, Any], dict[str, Any]]
    "What the file says of each."


def _r3gan(
    counts: tuple[int, int], widths: tuple[int, ...], *, groups: tuple[int, ...] | None = None, classes: int = 0, half: int = 4
) -> Published:
    groups, settings = groups or (96,) * len(widths), {"FP16Stages": [-1 - stage for stage in range(half)]}
    shapes = names.r3gan_generator(widths, groups, classes=classes), names.r3gan_discriminator(widths, groups, classes=classes)
    return Published("R3GAN", shapes, counts, (settings, settings))


def _stylegan2(
    counts: tuple[int, int],
    size: int,
    fmaps: float,
    mapping: int,
    group: int | None,
    *,
    classes: int = 0,
    skips: bool = True,
    label_layers: int = 8,
) -> Published:
    base = int(32_768 * fmaps)
    common = {"channel_base": base, "channel_max": 512, "num_fp16_res": 4, "conv_clamp": 256}
    shapes = (
        names.stylegan2_generator(size, base=base, mapping=mapping, classes=classes),
        names.stylegan2_discriminator(size, base=base, classes=classes, skips=skips, statistics=int(group != 1), mapping=label_layers),
    )
    discriminator = {**common, "epilogue_kwargs": {"mbstd_group_size": group}}
    return Published("StyleGAN2", shapes, counts, ({"z_dim": 512, "synthesis_kwargs": common}, discriminator))


PUBLISHED = {
    "r3gan-cifar10-cond": _r3gan((20_781_952, 21_280_512), (768,) * 4, classes=10, half=3),
    "r3gan-cifar10": _r3gan((20_732_160, 20_683_776), (768,) * 4, half=3),
    "r3gan-ffhq64": _r3gan((22_429_824, 22_381_440), (*(768,) * 4, 384), groups=(*(96,) * 4, 48)),
    "r3gan-ffhq256": _r3gan((23_057_952, 23_009_568), (*(768,) * 4, 384, 192, 96), groups=(*(96,) * 4, 48, 24, 12)),
    "r3gan-imagenet32": _r3gan((82_914_304, 86_548_992), (1536,) * 4, classes=1000, half=3),
    "r3gan-imagenet64": _r3gan((103_570_432, 107_205_120), (1536,) * 5, classes=1000),
    "stylegan2-cifar10-cond": _stylegan2((20_215_315, 23_089_664), 32, 1, 2, 32, classes=10, skips=False),
    "stylegan2-cifar10": _stylegan2((19_947_539, 20_720_641), 32, 1, 2, 32, skips=False),
    "stylegan2-auto64": _stylegan2((22_243_608, 23_407_361), 64, 0.5, 2, 4),
    "stylegan2-auto256": _stylegan2((23_191_522, 24_001_089), 256, 0.5, 2, 4),
    "stylegan2-paper256": _stylegan2((24_767_458, 24_001_089), 256, 0.5, 8, 8),
    "stylegan2-auto512": _stylegan2((28_700_647, 28_982_849), 512, 1, 2, 4),
    "stylegan2-ffhq1024": _stylegan2((30_370_060, 29_012_513), 1024, 1, 8, 4),
}
CONVERTED = {
    "no group": _stylegan2((30_370_060, 29_012_513), 1024, 1, 8, None),
    "no layers of labels": _stylegan2((20_215_315, 20_988_416), 32, 1, 2, 32, classes=10, skips=False, label_layers=0),
}
"""Networks of TensorFlow as they are converted: they need not say how many images are compared, and labels are embedded alone."""


def networks_of(published: Published) -> list[Network]:
    with torch.device("meta"):
        tensors = [{key: torch.empty(shape) for key, shape in shapes.items()} for shapes in published.shapes]
    return [Network("", settings, part) for settings, part in zip(published.settings, tensors, strict=True)]


@pytest.mark.parametrize("case", [*PUBLISHED, *CONVERTED])
def test_names_and_shapes_of_published_networks(case: str) -> None:
    """Each tensor of the originals has a partner of its shape in the model here, and each of the model's one in the originals."""
    published = (PUBLISHED | CONVERTED)[case]
    family, networks = FAMILIES[published.kind], networks_of(published)
    model, spec = family.read(networks[0], networks[1])
    with without_weights():
        ours = seeded_build(model, spec, seed=0)
    for part, network_, count in zip(PARTS, networks, published.counts, strict=True):
        partners = family.given(part_of(ours.state_dict(), part), part=part, config=model, spec=spec)
        wanted, found = (
            {key: tuple(tensor.shape) for key, tensor in tensors.items() if not key.endswith(CONSTANTS)}
            for tensors in (network_.tensors, partners)
        )
        assert found == wanted
        assert sum(math.prod(shape) for key, shape in wanted.items() if not key.endswith(BUFFERS)) == count
        assert sum(tensor.numel() for tensor in ours.get_submodule(part).parameters()) == count


@pytest.mark.parametrize("case", PUBLISHED)
def test_a_published_network_has_the_training_of_its_recipe(case: str) -> None:
    published = PUBLISHED[case]
    family, (generator, discriminator) = FAMILIES[published.kind], networks_of(published)
    config, name = family.run(*family.read(generator, discriminator), Snapshot(published.kind, {"G_ema": generator}))
    assert name == case and config == load_recipe(case)


# Small runs and files ---------------------------------------------------------------------------------------------------------

_R3GAN = R3GANNetworkConfig(widths=(8, 8, 4), group_channels=4, half_stages=3)
SMALL: dict[str, tuple[Kind, Any, DataSpec]] = {
    "r3gan": ("R3GAN", R3GANConfig(generator=_R3GAN, discriminator=_R3GAN, latent_dims=5), DataSpec(image_size=16, channels=3)),
    "r3gan-cond": (
        "R3GAN",
        R3GANConfig(
            generator=_R3GAN,
            discriminator=replace(_R3GAN, widths=(12, 8, 4), num_blocks=1, expansion=1),
            latent_dims=5,
            class_dims=3,
            class_conditional=True,
        ),
        DataSpec(image_size=16, channels=1, num_classes=7),
    ),
    "stylegan2": (
        "StyleGAN2",
        StyleGAN2Config(
            latent_dims=5,
            generator=StyleGAN2GeneratorConfig(base_channels=64, max_channels=8, mapping_layers=2, style_dims=6, conv_clamp=256.0),
            discriminator=StyleGAN2DiscriminatorConfig(base_channels=96, max_channels=12, group_size=2, half_stages=1),
        ),
        DataSpec(image_size=16, channels=3),
    ),
    "stylegan2-cond": (
        "StyleGAN2",
        StyleGAN2Config(
            latent_dims=6,
            class_conditional=True,
            generator=StyleGAN2GeneratorConfig(base_channels=32_768, max_channels=8, mapping_layers=3, style_dims=6, mapping_rate=0.02),
            discriminator=StyleGAN2DiscriminatorConfig(base_channels=32, max_channels=6, group_size=1, architecture="plain"),
        ),
        DataSpec(image_size=16, channels=1, num_classes=7),
    ),
    "stylegan2-cond-unmapped": (
        "StyleGAN2",
        StyleGAN2Config(
            latent_dims=5,
            class_conditional=True,
            generator=StyleGAN2GeneratorConfig(base_channels=64, max_channels=8, mapping_layers=2, style_dims=6),
            discriminator=StyleGAN2DiscriminatorConfig(base_channels=64, max_channels=8, mapping_layers=0),
        ),
        DataSpec(image_size=16, channels=3, num_classes=7),
    ),
}


def settings_of(case: str, part: Any) -> dict[str, Any]:
    """What a file says of a network."""
    kind, config, spec = SMALL[case]
    return FAMILIES[kind].built_with(config, spec)[part] if kind == "StyleGAN2" else {"FP16Stages": [-1, -2, -3]}


def trained(case: str, *, seed: int) -> Model:
    """A small model whose tensors are all random, as those of a trained one are."""
    _, config, spec = SMALL[case]
    model = seeded_build(config, spec, seed=seed)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point() and tensor.numel() and not name.endswith(CONSTANTS):
                tensor.add_(torch.randn(tensor.shape, generator=rng), alpha=0.1)
    return model


def named(model: Model, case: str, part: Any) -> dict[str, Tensor]:
    """A network's tensors under the original's names."""
    kind, config, spec = SMALL[case]
    return FAMILIES[kind].given(part_of(model.state_dict(), part), part=part, config=config, spec=spec)


def tensors_of(model: Model, case: str, part: Any) -> dict[str, Tensor]:
    """The same with a constant of the original's that ours does not have."""
    kernel = f"Model.MainLayers.{'1.Layers.0' if part == 'generator' else '0.Layers.2'}.Resampler.Kernel"
    return named(model, case, part) | ({kernel: 4 * KERNEL} if SMALL[case][0] == "R3GAN" else {})


def write(
    path: Path,
    case: str,
    parts: Mapping[str, tuple[Model, Any]],
    change: Callable[[str, dict[str, Tensor]], None] = lambda name, tensors: None,
    *,
    others: Mapping[str, dict[str, Tensor]] | None = None,
    more: Mapping[str, Any] | None = None,
) -> Path:
    """A file with networks of models by their names in it, and `others` of these tensors.

    `change` may change the tensors of each; `more`: settings beside those of the networks.
    """
    with modules_of_nvidia():
        content: dict[str, Any] = {"training_set_kwargs": {"path": "x.zip"}, "augment_pipe": None}
        content |= {name: network("AugmentPipe", tensors, settings={}) for name, tensors in (others or {}).items()}
        for name, (model, part) in parts.items():
            tensors = tensors_of(model, case, part)
            change(name, tensors)
            settings = settings_of(case, part) | dict(more or {})
            content[name] = network(part.capitalize(), tensors, settings=settings)
        return write_pickle(path, content)


@torch.no_grad()
def images(model: Model) -> Tensor:
    """What the generator makes, in float64; StyleGAN2's with the noise that came with the weights."""
    z = torch.randn(4, model.config.latent_dims, dtype=torch.float64, generator=torch.Generator().manual_seed(3))  # type: ignore[union-attr]
    labels = None if model.num_classes is None else torch.tensor([0, 1, 2, 0])
    return model.double().eval().generator(z, labels)  # type: ignore[operator]


@pytest.mark.parametrize("case", SMALL)
def test_images_of_an_imported_run(case: str, tmp_path: Path) -> None:
    spec = SMALL[case][2]
    average, last = trained(case, seed=1), trained(case, seed=2)
    path = write(tmp_path / "x.pkl", case, {"G": (last, "generator"), "D": (last, "discriminator"), "G_ema": (average, "generator")})
    said: list[str] = []
    run = runs.import_run(path, tmp_path / "run", program="nvidia", report=said.append)
    kind, config, _ = SMALL[case]
    assert all(getattr(run.config.model, name) == getattr(config, name) for name in FAMILIES[kind].architecture)
    (kept,) = run.config.train.all_averages
    assert kept.rate_at(0, images=8) > 0.99, "which a new run reaches later"
    assert f"its average is the run's {kept.name}, and is used unless --weights raw is given" in said
    wanted = images(average)
    assert wanted.std() > 0.05 and (wanted - images(last)).abs().max() > 0.1
    torch.testing.assert_close(images(run.load(device="cpu")), wanted, rtol=1e-12, atol=1e-12)
    raw = run.load(weights="raw", device="cpu")
    torch.testing.assert_close(images(raw), images(last), rtol=1e-12, atol=1e-12)
    x = torch.randn(4, spec.channels, 16, 16, dtype=torch.float64)
    labels = None if spec.num_classes is None else torch.tensor([0, 1, 2, 0])
    (score,), (other,) = (model.discriminator(x, labels).outputs for model in (raw, last))  # type: ignore[operator]
    torch.testing.assert_close(score, other, rtol=1e-12, atol=1e-12)
    assert any("licence" in line for line in said) and "licence" in (tmp_path / "run/log.txt").read_text()
    assert "licence" in json.loads((tmp_path / "run/checkpoints/000000000/state.json").read_text())["imported"]


@pytest.mark.parametrize("case", SMALL)
def test_a_file_of_an_average_alone(case: str, tmp_path: Path) -> None:
    average = trained(case, seed=1)
    said: list[str] = []
    path = write(tmp_path / "x.pkl", case, {"G_ema": (average, "generator")})
    run = runs.import_run(path, tmp_path / "run", program="nvidia", report=said.append)
    drawn, wanted = (images(model) for model in (run.load(device="cpu"), average))
    torch.testing.assert_close(drawn, wanted, rtol=1e-12, atol=1e-12)
    assert "it has no discriminator, which begins anew" in said
    stored = {file.name for file in (tmp_path / "run/checkpoints/000000000").iterdir()}
    assert stored == {"model.safetensors", "state.json"}, "once, as the weights"


NO_GROUP = "it does not say how many images its discriminator compares: groups of 4 are taken, as is usual"


@pytest.mark.parametrize(
    ("case", "stated", "group"),
    [
        ("stylegan2", {"mbstd_group_size": None}, 4),
        ("stylegan2", {}, 4),
        ("stylegan2", {"mbstd_group_size": 2}, 2),
        ("stylegan2-cond", {}, 1),
    ],
)
def test_how_many_images_a_discriminator_compares(case: str, stated: dict[str, Any], group: int, tmp_path: Path) -> None:
    """The shapes show whether it compares any."""
    model = trained(case, seed=1)
    parts: dict[str, tuple[Model, Any]] = {"D": (model, "discriminator"), "G_ema": (model, "generator")}
    path = write(tmp_path / "x.pkl", case, parts, more={"epilogue_kwargs": stated})
    said: list[str] = []
    run = runs.import_run(path, tmp_path / "run", program="nvidia", report=said.append)
    assert run.config.model.discriminator.group_size == group  # type: ignore[attr-defined]
    assert (NO_GROUP in said) == (group == 4)
    settings = FAMILIES["StyleGAN2"].built_with(run.config.model, run.spec)["discriminator"]
    assert settings["epilogue_kwargs"] == {"mbstd_group_size": group, "mbstd_num_channels": 0 if group == 1 else 1}
    found = part_of(run.load(device="cpu").state_dict(), "discriminator")
    assert all(torch.equal(found[name], tensor) for name, tensor in part_of(model.state_dict(), "discriminator").items())


def test_a_discriminator_of_labels_that_are_embedded_alone(tmp_path: Path) -> None:
    """Its map of a label is the column of the embedding and its bias, divided by the root of their mean square."""
    case = "stylegan2-cond-unmapped"
    mapping = trained(case, seed=1).double().get_submodule("discriminator.mapping")
    state = mapping.state_dict()
    assert state.keys() == {"embed.weight", "embed.bias"}
    assert settings_of(case, "discriminator")["mapping_kwargs"]["num_layers"] == 0
    embedded = state["embed.weight"][:, [4, 0]].T / math.sqrt(7) + state["embed.bias"]
    wanted = embedded / embedded.square().mean(dim=1, keepdim=True).sqrt()
    torch.testing.assert_close(mapping(None, torch.tensor([4, 0])), wanted, rtol=1e-6, atol=1e-6)
    assert SMALL[case][1].discriminator.shrunk().mapping_layers == 0
    with pytest.raises(ConfigError, match="mapping_layers: got 0, expected at least 1"):
        StyleGAN2GeneratorConfig(mapping_layers=0)


@pytest.mark.parametrize(("stored", "taken"), [(0.375, 0.375), (0.0, 0.0), (-1.0, 0.0), (math.nan, 0.0), (None, 0.0)])
def test_the_probability_of_augmentations(stored: float | None, taken: float, tmp_path: Path) -> None:
    model = trained("stylegan2", seed=1)
    pipe = {} if stored is None else {"augment_pipe": {"p": torch.tensor(stored), "Hz_geom": torch.ones(12)}}
    path = write(tmp_path / "x.pkl", "stylegan2", {"G_ema": (model, "generator")}, others=pipe)
    said: list[str] = []
    run = runs.import_run(path, tmp_path / "run", program="nvidia", report=said.append)
    assert run.config.model.ada.target == 0.6  # type: ignore[attr-defined]
    state = load_file(tmp_path / "run/checkpoints/000000000/model.safetensors")
    assert state["ada.p"] == taken
    assert ("its p of the augmentations is no number from 0 on, and begins anew" in said) == (stored is not None and stored != taken)


@pytest.mark.parametrize("stored", [None, 0.55])
def test_a_probability_that_the_run_does_not_steer_is_said(stored: float | None, tmp_path: Path) -> None:
    pipe = {} if stored is None else {"augment_pipe": {"p": torch.tensor(stored)}}
    path = write(tmp_path / "x.pkl", "r3gan", {"G_ema": (trained("r3gan", seed=1), "generator")}, others=pipe)
    said: list[str] = []
    runs.import_run(path, tmp_path / "run", program="nvidia", report=said.append)
    assert "ada.p" not in load_file(tmp_path / "run/checkpoints/000000000/model.safetensors")
    line = "its p of the augmentations, 0.55, is not taken: this run's is what --model.ada.p says"
    assert (line in said) == (stored is not None) and sum("augmentations" in line for line in said) == (stored is not None)


# Files that do not fit --------------------------------------------------------------------------------------------------------


def refusal(case: str, tmp_path: Path, change: Callable[[str, dict[str, Tensor]], None]) -> str:
    """What is said of a file whose tensors were changed; no run is left."""
    model = trained(case, seed=1)
    path = write(tmp_path / "x.pkl", case, {"D": (model, "discriminator"), "G_ema": (model, "generator")}, change)
    with pytest.raises(CheckpointError) as caught:
        runs.import_run(path, tmp_path / "run", program="nvidia")
    assert not (tmp_path / "run").exists() and "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path}: ")


BASIS = "Model.MainLayers.0.Layers.0.Basis"
CONV = "Model.MainLayers.0.Layers.2.LinearLayer3.Layer.weight"
FIRST, LABELS = "Model.MainLayers.0.Layers.0.LinearLayer.weight", "Model.EmbeddingLayer.weight"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors.pop(CONV), f"G_ema: the file is incomplete: it has no {CONV}"),
        (lambda tensors: tensors.update({CONV: torch.ones(8, 8, 1, 1)}), f"G_ema: {CONV} has shape [8, 8, 1, 1], expected [8, 16, 1, 1]"),
        (lambda tensors: tensors.update({"Model.Other": torch.ones(1)}), "G_ema: the file is of another network: it has Model.Other"),
        (lambda tensors: tensors[CONV].fill_(math.nan), f"G_ema: {CONV} holds values that are not finite"),
        (lambda tensors: tensors.update({CONV: tensors[CONV].int()}), f"G_ema: {CONV} has type torch.int32"),
        (
            lambda tensors: tensors.update({"Model.MainLayers.1.Layers.0.Resampler.Kernel": torch.ones(4, 4)}),
            "G_ema: Model.MainLayers.1.Layers.0.Resampler.Kernel is another filter than 1 3 3 1, which is the one here",
        ),
        (
            lambda tensors: tensors.update({"Model.AggregationLayer.Layer.weight": torch.ones(4, 4, 1, 1)}),
            "makes images of 4 channels, expected 1 (grey) or 3 (RGB)",
        ),
        (
            lambda tensors: tensors.update({FIRST: torch.ones(8, 3)}),
            "its networks have no model here: latent_dims: got 0",
        ),
        (
            lambda tensors: [tensors.pop(name) for name in list(tensors) if ".Layers.1.LinearLayer1." in name],
            "has 0 MainLayers with blocks, expected 1 to 12",
        ),
        (
            lambda tensors: tensors.update({BASIS: torch.ones(8, 4)}),
            f"{BASIS} has shape [8, 4], expected at least 3 axes, none of them of length 0",
        ),
        (lambda tensors: tensors.update({BASIS: torch.ones(8, 3, 4)}), f"G_ema: {BASIS} has shape [8, 3, 4], expected [8, 3, 3]"),
        (lambda tensors: tensors.update({BASIS: torch.ones(8, 3, 3, 1)}), f"G_ema: {BASIS} has shape [8, 3, 3, 1], expected [8, 3, 3]"),
        (lambda tensors: tensors[FIRST].unsqueeze_(2), f"G_ema: {FIRST} has shape [8, 8, 1], expected [8, 8]"),
        (lambda tensors: tensors[LABELS].unsqueeze_(2), f"G_ema: {LABELS} has shape [3, 7, 1], expected [3, 7]"),
    ],
)
def test_tensors_that_do_not_fit(change: Callable[[dict[str, Tensor]], Any], said: str, tmp_path: Path) -> None:
    assert refusal("r3gan-cond", tmp_path, lambda name, tensors: change(tensors) if name == "G_ema" else None).startswith(said)


INPUTS = "mapping.fc0.weight"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda tensors: tensors.pop("synthesis.b8.conv0.noise_const"),
            "G_ema: the file is incomplete: it has no synthesis.b8.conv0.noise_const",
        ),
        (lambda tensors: tensors.pop("synthesis.b8.conv1.weight"), "G_ema: the file is incomplete: it has no synthesis.b8.conv1.weight"),
        (lambda tensors: tensors.pop(INPUTS), f"the file is incomplete: it has no {INPUTS}"),
        (
            lambda tensors: [tensors.pop(name) for name in list(tensors) if name.endswith(".conv1.weight")],
            "the file is incomplete: it has no synthesis.b4.conv1.weight",
        ),
        (lambda tensors: tensors.update({"mapping.w_avg": torch.ones(7)}), "G_ema: mapping.w_avg has shape [7], expected [6]"),
        (lambda tensors: tensors[INPUTS].unsqueeze_(2), f"G_ema: {INPUTS} has shape [6, 5, 1], expected [6, 5]"),
        (
            lambda tensors: tensors.update({"synthesis.b8.conv0.resample_filter": torch.eye(4)}),
            "G_ema: synthesis.b8.conv0.resample_filter is another filter than 1 3 3 1, which is the one here",
        ),
        (
            lambda tensors: tensors.update({"synthesis.b8192.conv1.weight": torch.ones(8, 8, 3, 3)}),
            "the file is incomplete: it has no synthesis.b8192.torgb.weight",
        ),
        (
            lambda tensors: tensors.update({"synthesis.b0.conv1.weight": torch.ones(8, 8, 3, 3)}),
            "G_ema: the file is of another network: it has synthesis.b0.conv1.weight, which this one lacks",
        ),
    ],
)
def test_tensors_of_stylegan2_that_do_not_fit(change: Callable[[dict[str, Tensor]], Any], said: str, tmp_path: Path) -> None:
    assert refusal("stylegan2", tmp_path, lambda name, tensors: change(tensors) if name == "G_ema" else None) == said


def test_settings_of_stylegan2(tmp_path: Path) -> None:
    """Later versions have the settings of the parts in one dictionary; another activation has no model here."""
    model = trained("stylegan2", seed=1)
    flat = {"synthesis_kwargs": None, "channel_base": 64, "conv_clamp": 128, "num_fp16_res": 2}
    path = write(tmp_path / "x.pkl", "stylegan2", {"G_ema": (model, "generator")}, more=flat)
    config = runs.import_run(path, tmp_path / "run", program="nvidia").config.model.generator  # type: ignore[attr-defined]
    assert (config.base_channels, config.conv_clamp, config.half_stages) == (64, 128.0, 2)
    path = write(tmp_path / "x.pkl", "stylegan2", {"G_ema": (model, "generator")}, more={"synthesis_kwargs": None, "num_fp16_res": True})
    config = runs.import_run(path, tmp_path / "true", program="nvidia").config.model.generator  # type: ignore[attr-defined]
    assert config.half_stages == 0, "a run with another value could not be opened"
    path = write(tmp_path / "x.pkl", "stylegan2", {"G_ema": (model, "generator")}, more={"activation": "swish"})
    with pytest.raises(CheckpointError, match="has the activation 'swish', expected 'lrelu'"):
        runs.import_run(path, tmp_path / "other", program="nvidia")


def test_widths_that_are_rounded_down() -> None:
    """Of images of 16 pixels 100 // 16 channels are six, which 96 // 16 are too; but of four pixels it is 25. The file says it."""
    part = StyleGAN2GeneratorConfig(base_channels=100, max_channels=32, mapping_layers=1, style_dims=6)
    with without_weights():
        model = seeded_build(StyleGAN2Config(generator=part, latent_dims=5), DataSpec(image_size=16, channels=3), seed=0)
    tensors = part_of(model.state_dict(), "generator")
    assert [len(tensors[f"synthesis.b{side}.conv1.weight"]) for side in (4, 8, 16)] == [25, 12, 6]
    for said, base in (({"channel_base": 100}, 100), ({"synthesis_kwargs": {"channel_base": 100}}, 100), ({}, 96)):
        config, _ = FAMILIES["StyleGAN2"].read(Network("", said, tensors), None)
        assert isinstance(config, StyleGAN2Config) and (config.generator.base_channels, config.generator.max_channels) == (base, 25)


IMAGES = DataSpec(image_size=16, channels=1, num_classes=7)


def test_what_stylegan2_is_built_with() -> None:
    """The arguments of Generator and Discriminator, each another number."""
    generator = StyleGAN2GeneratorConfig(
        base_channels=64, max_channels=8, mapping_layers=2, style_dims=6, mapping_rate=0.02, half_stages=2, conv_clamp=256.0
    )
    discriminator = StyleGAN2DiscriminatorConfig(
        base_channels=96, max_channels=12, mapping_layers=3, mapping_rate=0.05, half_stages=1, conv_clamp=None, group_size=4
    )
    config = StyleGAN2Config(latent_dims=5, class_conditional=True, generator=generator, discriminator=discriminator)
    common = {"c_dim": 7, "img_resolution": 16, "img_channels": 1}
    stages = {"channel_base": 64, "channel_max": 8, "num_fp16_res": 2, "conv_clamp": 256.0}
    other = {"channel_base": 96, "channel_max": 12, "num_fp16_res": 1, "conv_clamp": None}
    own = {"z_dim": 5, "w_dim": 6, "synthesis_kwargs": stages, "mapping_kwargs": {"num_layers": 2, "lr_multiplier": 0.02}}
    group = {"mbstd_group_size": 4, "mbstd_num_channels": 1}
    judge = {"architecture": "resnet", "epilogue_kwargs": group, "mapping_kwargs": {"num_layers": 3, "lr_multiplier": 0.05}}
    built = FAMILIES["StyleGAN2"].built_with(config, IMAGES)
    assert built == {"generator": {**common, **own}, "discriminator": {**common, **other, **judge}}
    plain = replace(config, discriminator=replace(discriminator, architecture="plain", group_size=1))
    found = FAMILIES["StyleGAN2"].built_with(plain, IMAGES)["discriminator"]
    assert (found["architecture"], found["epilogue_kwargs"]) == ("orig", {"mbstd_group_size": 1, "mbstd_num_channels": 0})


def test_what_r3gan_is_built_with() -> None:
    _, config, spec = SMALL["r3gan-cond"]
    noise = {"numbers of z": 5, "numbers of the class": 3}
    common = {"image channels": 1, "classes": 7}
    generator = {"widths, the lowest resolution first": [8, 8, 4], "groups": [4, 4, 2], "blocks of a resolution": 2, "expansion": 2}
    discriminator = {"widths, the lowest resolution first": [12, 8, 4], "groups": [3, 2, 1], "blocks of a resolution": 1, "expansion": 1}
    assert FAMILIES["R3GAN"].built_with(config, spec) == {
        "generator": {**generator, **common, **noise},
        "discriminator": {**discriminator, **common},
    }


@pytest.mark.parametrize(("conditional", "classes", "told"), [(True, 7, 7), (False, 7, 0), (False, None, 0)])
def test_the_classes_that_the_originals_are_built_with(conditional: bool, classes: int | None, told: int) -> None:
    spec = DataSpec(image_size=16, channels=3, num_classes=classes)
    for kind, name in (("StyleGAN2", "c_dim"), ("R3GAN", "classes")):
        config = replace(SMALL[kind.lower()][1], class_conditional=conditional)
        built = FAMILIES[kind].built_with(config, spec)  # type: ignore[index]
        assert [built[part][name] for part in PARTS] == [told, told]


@pytest.mark.parametrize(
    ("said", "half", "clamp"),
    [
        ({"channel_base": 64}, 4, 256.0),
        ({"channel_base": 64, "num_fp16_res": 0, "conv_clamp": None}, 0, None),
        ({"synthesis_kwargs": {"channel_base": 64}}, 0, None),
    ],
)
def test_what_stylegan3_leaves_out_of_its_stylegan2(said: dict[str, Any], half: int, clamp: float | None) -> None:
    """Its classes have defaults of their own, which its training does not write down; those of stylegan2-ada-pytorch have none."""
    model = trained("stylegan2", seed=1)
    generator, discriminator = (Network("", said, tensors_of(model, "stylegan2", part)) for part in ("generator", "discriminator"))
    config, _ = FAMILIES["StyleGAN2"].read(generator, replace(discriminator, settings={**said, "synthesis_kwargs": None}))
    assert isinstance(config, StyleGAN2Config)
    found = {(part.half_stages, part.conv_clamp) for part in (config.generator, config.discriminator)}
    assert found == {(half, clamp)}


def test_a_discriminator_of_another_network(tmp_path: Path) -> None:
    """The generator is taken, and a line says why the other begins anew."""

    def change(name: str, tensors: dict[str, Tensor]) -> None:
        if name == "D":
            tensors["Model.EmbeddingLayer.weight"] = torch.ones(12, 5)

    model = trained("r3gan-cond", seed=1)
    path = write(tmp_path / "x.pkl", "r3gan-cond", {"D": (model, "discriminator"), "G_ema": (model, "generator")}, change)
    said: list[str] = []
    run = runs.import_run(path, tmp_path / "run", program="nvidia", report=said.append)
    fault = "D: Model.EmbeddingLayer.weight has shape [12, 5], expected [12, 7]"
    assert f"its discriminator cannot be taken, and begins anew: {fault}" in said and not any("no discriminator" in line for line in said)
    torch.testing.assert_close(images(run.load(device="cpu")), images(model), rtol=1e-12, atol=1e-12)


def test_a_discriminator_whose_settings_are_of_no_model_here(tmp_path: Path) -> None:
    def change(name: str, tensors: dict[str, Tensor]) -> None:
        tensors.pop("b4.conv.weight", None)

    model = trained("stylegan2", seed=1)
    parts: dict[str, tuple[Model, Any]] = {"D": (model, "discriminator"), "G_ema": (model, "generator")}
    path = write(tmp_path / "x.pkl", "stylegan2", parts, change)
    said: list[str] = []
    runs.import_run(path, tmp_path / "run", program="nvidia", report=said.append)
    assert "its discriminator cannot be taken, and begins anew: the file is incomplete: it has no b4.conv.weight" in said


@pytest.mark.parametrize(
    "kernel", [torch.ones(3, 3), torch.zeros(4, 4), -KERNEL, torch.tensor([1.0, 3, 3, 2]), torch.full((4, 4), math.nan), torch.ones(0)]
)
def test_other_filters(kernel: Tensor) -> None:
    for factor in (1, 4, 64):
        check_filter("x", factor * KERNEL, (1, 3, 3, 1))
        check_filter("x", factor * KERNEL.half(), (1, 3, 3, 1))
    check_filter("x", torch.tensor([1.0, 3, 3, 1]), (1, 3, 3, 1))
    for factor in (1, 2**-12, 2**12):
        with pytest.raises(CheckpointError, match="x is another filter than 1 3 3 1"):
            check_filter("x", factor * kernel, (1, 3, 3, 1))


@pytest.mark.parametrize(
    ("tensor", "name", "kind"),
    [
        ("synthesis.input.freqs", "G_ema", "StyleGAN3"),
    ],
)
def test_networks_that_no_model_takes(tensor: str, name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with modules_of_nvidia():
        path = write_pickle(tmp_path / "x.pkl", {name: network("Precond", {tensor: torch.ones(2)}, settings={})})
    assert main(["import", "nvidia", str(path), "--run", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert f"{path}: is a network of {kind} (Precond), which no model here takes; those of StyleGAN2, R3GAN, EDM and EDM2 are taken" in said


@pytest.mark.parametrize("content", [{}, [], {"G_ema": None}, {"optimizer": {"state": {}}}, 3])
def test_files_without_networks(content: Any, tmp_path: Path) -> None:
    with modules_of_nvidia():
        path = write_pickle(tmp_path / "x.pkl", content)
    with pytest.raises(CheckpointError, match="holds no networks; expected the G_ema of StyleGAN2 or R3GAN"):
        runs.import_run(path, tmp_path / "run", program="nvidia")


def test_settings_that_the_file_says(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="flags: NVIDIA's pickles say it all: leave it out"):
        runs.import_run(tmp_path / "x.pkl", tmp_path / "run", program="nvidia", flags="--a 1")


# Out --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", SMALL)
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_an_export(case: str, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was read is what is written, under the names in the file."""
    average, last = trained(case, seed=1), trained(case, seed=2)
    path = write(tmp_path / "x.pkl", case, {"G": (last, "generator"), "D": (last, "discriminator"), "G_ema": (average, "generator")})
    runs.import_run(path, tmp_path / "run", program="nvidia")
    out = tmp_path / f"out{suffix}"
    assert main(["export", str(tmp_path / "run"), "--to", "nvidia", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert str(out) in said
    assert f"note: licence of the published weights that the run began with: {LICENCES[SMALL[case][0]]}\n" in said
    read = load_file if suffix == ".safetensors" else torch.load
    for file, model, part in ((out, average, "generator"), (tmp_path / f"out-discriminator{suffix}", last, "discriminator")):
        wanted, found = named(model, case, part), read(file)
        assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert set(json.loads((tmp_path / "out.json").read_text())) == {"generator", "discriminator"}
    assert main(["export", str(tmp_path / "run"), "--to", "nvidia", "--out", str(out), "--weights", "raw"]) == 0
    raw = named(last, case, "generator")
    assert all(torch.equal(tensor, raw[name]) for name, tensor in read(out).items())
    out.write_text("my own")
    assert main(["export", str(tmp_path / "run"), "--to", "nvidia", "--out", str(out)]) == 2
    assert f"{out} is there and holds no weights, so no export wrote it" in capsys.readouterr().err and out.read_text() == "my own"


def test_images_that_are_no_squares_are_not_exported(tmp_path: Path) -> None:
    """The originals have one resolution for both sides."""
    network = SongUNetConfig(num_channels=8, channel_mult=(1, 2), num_blocks=1, attention_resolutions=())
    for width, refused in ((32, True), (16, False), (None, False)):
        config, spec = EDMConfig(network=network), DataSpec(image_size=16, width=width, channels=3)
        request = ExportRequest(tmp_path / f"{width}.pt", config, spec, lambda made=config, of=spec: made.build(of), False)
        if refused:
            with pytest.raises(ConfigError, match="NVIDIA's programs cannot express this model: data: images that are not squares"):
                exported(request)
            assert not list(tmp_path.iterdir())
        else:
            assert exported(request).paths[0].is_file()


def test_other_models_are_not_exported(tmp_path: Path) -> None:
    def load() -> Model:
        raise AssertionError("was read")

    request = ExportRequest(tmp_path / "x.pt", load_recipe("adm-digits").model, DataSpec(image_size=16, channels=1), load, False)
    with pytest.raises(ConfigError, match="to: NVIDIA's names are those of StyleGAN2, R3GAN, EDM and EDM2; this run is of ADM$"):
        exported(request)


def test_exports_that_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "x.pkl", "r3gan", {"G_ema": (trained("r3gan", seed=1), "generator")})
    run = str(runs.import_run(path, tmp_path / "run", program="nvidia").directory)
    theirs = [tmp_path / name for name in ("mine.pt", "z-discriminator.pt", "w.json")]
    for file in theirs:
        file.write_bytes(b"x")
    for flags, said in (
        (["--out", str(tmp_path / "x.pth")], "expected the name of a file that ends with .pt or .safetensors"),
        (["--out", str(tmp_path / "mine.pt")], "mine.pt is there and is no earlier export"),
        (["--out", str(tmp_path / "z.pt")], "z-discriminator.pt is there and is no earlier export of this model (z.json is not beside it)"),
        (["--out", str(tmp_path / "w.pt")], "w.json is there and is no earlier export of this model (w.json does not say just the same)"),
        (["--out", str(tmp_path / "y.pt"), "--drop-variance"], "--drop-variance: goes with diffusers"),
    ):
        assert main(["export", run, "--to", "nvidia", *flags]) == 2
        assert said in capsys.readouterr().err
    assert all(file.read_bytes() == b"x" for file in theirs)
    assert sorted(file.name for file in tmp_path.iterdir() if file.is_file()) == sorted(["x.pkl", *(file.name for file in theirs)])
