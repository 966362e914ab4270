"""Weights of SiT, in and out: names, shapes and counts of the published sizes, checkpoints of its training, SiT's own code where it is."""

from __future__ import annotations

import importlib
import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.diffusion import recorded
from triptych.core.batch import DataSpec, LatentSpec
from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.weight_files import read_content
from triptych.diffusion.adm import ADMConfig
from triptych.diffusion.continuous import LevelSamplingConfig
from triptych.diffusion.dit import DiTConfig
from triptych.diffusion.flow_matching import FlowMatching, FlowMatchingConfig
from triptych.diffusion.unet import NO_LABEL, UNetConfig
from triptych.interop.programs import ExportRequest, ImportRequest
from triptych.interop.sit import from_state_dict
from triptych.interop.sit.exporter import exported
from triptych.interop.sit.weights import described, to_state_dict
from triptych.interop.transformers import SIZES, filled, recognised
from triptych.recipes.catalogue import load_recipe
from triptych.runs import import_run, open_run


def names_of(
    *, width: int, depth: int, patch: int, rows: int, classes: int, channels: int = 4, outputs: int = 8
) -> dict[str, tuple[int, ...]]:
    """The original's names and shapes, from the published formulas."""
    named: dict[str, tuple[int, ...]] = {
        "pos_embed": (1, rows**2, width),
        "x_embedder.proj.weight": (width, channels, patch, patch),
        "x_embedder.proj.bias": (width,),
        "y_embedder.embedding_table.weight": (classes + 1, width),
    }
    layers = {"t_embedder.mlp.0": (width, 256), "t_embedder.mlp.2": (width, width)}
    for index in range(depth):
        block = f"blocks.{index}"
        layers |= {f"{block}.attn.qkv": (3 * width, width), f"{block}.attn.proj": (width, width)}
        layers |= {f"{block}.mlp.fc1": (4 * width, width), f"{block}.mlp.fc2": (width, 4 * width)}
        layers[f"{block}.adaLN_modulation.1"] = (6 * width, width)
    layers |= {"final_layer.linear": (patch**2 * outputs, width), "final_layer.adaLN_modulation.1": (2 * width, width)}
    for name, (out, into) in layers.items():
        named |= {f"{name}.weight": (out, into), f"{name}.bias": (out,)}
    return named


XL_2 = names_of(width=1152, depth=28, patch=2, rows=16, classes=1000)
SMALL = names_of(width=384, depth=1, patch=2, rows=4, classes=3)
HEADS = {"num-heads": 6}
PATCHES = "x_embedder.proj.weight"


def table(rows: int, width: int) -> Tensor:
    """Written out once more: sines and cosines of the column, then of the row."""
    quarter = width // 4
    rates = [10_000 ** (-k / quarter) for k in range(quarter)]
    lines = []
    for row in range(rows):
        for column in range(rows):
            angles = [torch.tensor([place * rate for rate in rates]) for place in (column, row)]
            lines.append(torch.cat([function(angle) for angle in angles for function in (torch.sin, torch.cos)]))
    return torch.stack(lines)[None]


def weights(names: dict[str, tuple[int, ...]] = SMALL, *, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = {name: 0.1 * torch.randn(shape, generator=generator) for name, shape in names.items()}
    rows, width = round(names["pos_embed"][1] ** 0.5), names["pos_embed"][2]
    return made | {"pos_embed": table(rows, width)}


def test_names_shapes_and_counts_of_the_largest() -> None:
    """On the meta device: 674,834,720 parameters are trained, and the table has 294,912 numbers."""
    with torch.device("meta"):
        config, spec = described({name: torch.empty(shape) for name, shape in XL_2.items()}, {})
        model = config.build(spec)
    assert config.network == DiTConfig(patch=2, width=1152, depth=28, heads=16, spare_outputs=True)
    assert spec == DataSpec(image_size=32, channels=4, num_classes=1000)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.network.state_dict().items()}
    assert shapes == {name: shape for name, shape in XL_2.items() if name != "pos_embed"}
    assert sum(parameter.numel() for parameter in model.parameters()) == 674_834_720


def test_there_and_back() -> None:
    given = weights()
    model = from_state_dict(given, HEADS)
    back, own = to_state_dict(model), model.network.state_dict()
    assert next(iter(back)) == "pos_embed" and set(back) == set(given)
    assert not [name for name in own if back[name].data_ptr() == own[name].data_ptr()], "copies"
    for name, tensor in given.items():
        torch.testing.assert_close(back[name], tensor, atol=1e-6 if name == "pos_embed" else 0, rtol=0)


def test_a_checkpoint_of_its_training_becomes_a_run(tmp_path: Path) -> None:
    args = Namespace(model="SiT-S/2", image_size=64, num_classes=3, path_type="GVP", prediction="noise", epochs=1400)
    file = tmp_path / "0100000.pt"
    torch.save({"model": weights(seed=1), "ema": weights(seed=2), "opt": {"state": {}, "param_groups": []}, "args": args}, file)
    with pytest.raises(CheckpointError, match="holds more than tensors"):
        read_content(file)
    with pytest.raises(ConfigError, match="--model: the file has width 384, depth 1 and patches of 2, got SiT-S/2"):
        import_run(file, tmp_path / "run", program="sit")
    del args.model
    args.num_heads = 6
    torch.save({"model": weights(seed=1), "ema": weights(seed=2), "opt": {}, "args": args}, file)
    lines: list[str] = []
    run = import_run(file, tmp_path / "run", program="sit", report=lines.append)
    config = run.config.model
    assert isinstance(config, FlowMatchingConfig) and (config.path, config.prediction) == ("gvp", "noise")
    assert "is a checkpoint of a training of SiT: latents of 4 x 8 x 8" in lines[0]
    origin = json.loads((tmp_path / "run/checkpoints/000000000/state.json").read_text())["imported"]
    assert origin["flags"] == "--image-size 64 --num-classes 3 --path-type GVP --prediction noise"
    assert not [line for line in lines if "licence" in line], "of a size that nobody published"
    for name, seed in (("raw", 1), ("ema-0.9999", 2)):
        model = open_run(tmp_path / "run").load(weights=name, device="cpu")
        assert torch.equal(model.network.blocks[0].attn.qkv.weight, weights(seed=seed)["blocks.0.attn.qkv.weight"]), name


def test_settings_of_a_training_that_are_none_or_no_settings(tmp_path: Path) -> None:
    """The first are as good as not there; of the others the message says that they are in the file."""
    file = tmp_path / "a.pt"
    torch.save({"model": weights(), "args": Namespace(model=None, image_size=None, num_heads=6)}, file)
    assert import_run(file, tmp_path / "run", program="sit").spec.num_classes == 3
    torch.save({"model": weights(), "args": {"num_heads": "6"}}, file)
    with pytest.raises(
        CheckpointError, match=r"a\.pt: its settings \(args\) are none of this program: --num-heads: got '6', expected a whole"
    ):
        import_run(file, tmp_path / "other", program="sit")


@pytest.mark.parametrize(
    ("width", "depth", "channels", "classes", "published"),
    [(384, 12, 4, 1000, True), (1152, 28, 4, 1000, True), (384, 11, 4, 1000, False), (384, 12, 1, 1000, False), (384, 12, 4, 10, False)],
)
def test_the_licence_is_that_of_published_sizes(width: int, depth: int, channels: int, classes: int, published: bool) -> None:
    network = DiTConfig(patch=2, width=width, depth=depth, heads=6 if width == 384 else 16)
    spec, lines = DataSpec(image_size=32, channels=channels, num_classes=classes), list[str]()
    request = ImportRequest(Path("a.pt"), None, "sit", None, None, lines.append)
    assert recognised(request, network, spec, {}, program="SiT", average=False, licence="MIT (SiT)") == ("MIT (SiT)" if published else None)
    assert ("licence of the published weights: MIT (SiT)" in lines) == published


@pytest.mark.parametrize("given", [{}, {"latent-mean": "0,0,0,0"}, {"latent-darkest": 0.0}])
def test_the_scale_that_is_taken_for_ones_own_latents_is_said_unless_it_is_given(given: dict[str, Any]) -> None:
    lines = list[str]()
    request, network = ImportRequest(Path("a.pt"), None, "sit", None, None, lines.append), DiTConfig(width=384, depth=11, heads=6)
    recognised(
        request, network, DataSpec(image_size=32, channels=4, num_classes=9), given, program="SiT", average=False, licence="MIT (SiT)"
    )
    assert any(line.startswith("latents are taken to be multiplied by 0.18215") for line in lines) == (not given)


def test_sizes_that_were_published_are_those_of_the_recipes() -> None:
    for size, numbers in SIZES.items():
        for program in ("sit", "dit"):
            network: Any = load_recipe(f"{program}-{size.lower()}-2").model.network  # type: ignore[attr-defined]
            assert (network.width, network.depth, network.heads) == numbers


@pytest.mark.parametrize("flags", ["--path-type VP --image-size 64 --num-heads 6", {"path_type": "VP", "image_size": 64, "num-heads": 6}])
def test_published_files_are_bare_state_dicts(flags: str | dict[str, Any], tmp_path: Path) -> None:
    """The flags are words or a table, whose names may have either dash."""
    file = tmp_path / "SiT-XL-2-256x256.pt"
    torch.save(weights(), file)
    run = import_run(file, tmp_path / "run", program="sit", flags=flags)
    config = run.config.model
    assert isinstance(config, FlowMatchingConfig) and config.path == "vp" and config.label_dropout == 0.1
    assert config.sampling == load_recipe("sit-xl-2").model.sampling  # type: ignore[attr-defined]
    assert run.spec.num_classes == 3


@pytest.mark.parametrize(
    ("change", "flags", "message"),
    [
        ({}, {"image-size": 256}, "--image-size: the file has 64, got 256"),
        ({}, {"num-classes": 1000}, "--num-classes: the file has 3, got 1000"),
        ({}, {"path-type": "Lienar"}, "--path-type: got 'Lienar', expected one of Linear, GVP, VP"),
        ({}, {"num-heads": 7}, "--num-heads: got 7, expected a divisor of the width 384"),
        ({}, {"num-heads": 0}, "--num-heads: got 0, expected a divisor of the width 384"),
        ({}, {"model": "SiT-M/2"}, "--model: got 'SiT-M/2', expected one of SiT-S/2"),
        ({"pos_embed": torch.zeros(1, 16, 384)}, {}, "pos_embed is not the table of sines and cosines"),
        ({"pos_embed": torch.zeros(1, 15, 384)}, {}, "the file is of another network: 15 positions"),
        ({"blocks.0.attn.q_norm.weight": torch.zeros(64)}, {}, "the file is of another network: it has blocks.0.attn.q_norm.weight"),
        ({PATCHES: torch.zeros(384, 4, 2, 2, 1)}, {}, rf"{PATCHES} has shape \[384, 4, 2, 2, 1\], expected \[384, 4, 2, 2\]"),
        ({"blocks.0.mlp.fc1.bias": torch.zeros(3)}, {}, r"blocks.0.mlp.fc1.bias has shape \[3\], expected \[1536\]"),
        ({"y_embedder.embedding_table.weight": None}, {}, "the file is incomplete: it has no y_embedder"),
        ({"y_embedder.embedding_table.weight": torch.zeros(1, 384)}, {}, "y_embedder.embedding_table has a row for no class alone"),
    ],
)
def test_errors(change: dict[str, Tensor | None], flags: dict[str, Any], message: str) -> None:
    given = {name: tensor for name, tensor in (weights() | change).items() if tensor is not None}
    with pytest.raises((ConfigError, CheckpointError), match=message):
        from_state_dict(given, HEADS | flags)


@pytest.mark.parametrize(
    ("width", "depth", "fault"), [(6, 1, "width: got 6, expected a multiple of 4"), (8, 0, "depth: got 0, expected at least 1")]
)
def test_shapes_of_no_network_are_faults_of_the_file(width: int, depth: int, fault: str, tmp_path: Path) -> None:
    """Not of a setting, for the command has none of that name."""
    torch.save(weights(names_of(width=width, depth=depth, patch=2, rows=4, classes=3)), tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=rf"a\.pt: the file is of another network: {fault}"):
        import_run(tmp_path / "a.pt", tmp_path / "run", program="sit", flags="--num-heads 2")


@pytest.mark.parametrize(("width", "depth"), [(64, 12), (384, 1)])
def test_a_size_of_ones_own_needs_the_heads(width: int, depth: int) -> None:
    """A width that was published says nothing with another depth."""
    given = weights(names_of(width=width, depth=depth, patch=2, rows=4, classes=3))
    wanted = f"has width {width} and depth {depth}, and nothing in the file says how many heads that has: give --flags '--num-heads N' "
    with pytest.raises(CheckpointError, match=wanted):
        from_state_dict(given)
    assert from_state_dict(given, {"num-heads": 4}).config.network == DiTConfig(width=width, depth=depth, heads=4, spare_outputs=True)


def test_heads_of_a_published_size_may_be_named_too() -> None:
    with torch.device("meta"):
        given = {name: torch.empty(shape) for name, shape in XL_2.items()}
    assert described(given, {"num-heads": 16})[0].network == described(given, {"model": "SiT-XL/2"})[0].network
    with pytest.raises(ConfigError, match="--num-heads: got 8, but the model that --model names has 16: leave one of them out"):
        described(given, {"num-heads": 8, "model": "SiT-XL/2"})
    for patch in (4, 8):
        with pytest.raises(ConfigError, match=f"--model: the file has width 1152, depth 28 and patches of 2, got SiT-XL/{patch}"):
            described(given, {"model": f"SiT-XL/{patch}"})
    network, _ = described(given, {"num-heads": 8})
    assert isinstance(network.network, DiTConfig) and network.network.heads == 8, "a network of one's own of that width and depth"


def own(**settings: Any) -> tuple[FlowMatchingConfig, DataSpec, FlowMatching]:
    network = DiTConfig(width=48, depth=2, heads=4)
    config = FlowMatchingConfig(**({"network": network, "class_conditional": True, "label_dropout": 0.1} | settings))
    spec = DataSpec(image_size=8, channels=3, num_classes=5 if config.class_conditional else None)
    model = config.build(spec).eval()
    model.network.load_state_dict(recorded.weights({name: tensor.shape for name, tensor in model.network.state_dict().items()}))
    return config, spec, model.requires_grad_(False)


def request(path: Path, config: Any, spec: DataSpec, model: Any, *, drop_variance: bool = False) -> ExportRequest:
    return ExportRequest(path, config, spec, lambda: model, drop_variance)


def test_export(tmp_path: Path) -> None:
    config, spec, model = own(path="gvp")
    done = exported(request(tmp_path / "own.pt", config, spec, model))
    assert done.flags == "--path-type GVP --prediction velocity"
    assert "hidden_size=48, depth=2, num_heads=4, num_classes=5, learn_sigma=False" in done.notes[0] and len(done.notes) == 1
    assert done.paths == (tmp_path / "own.pt", tmp_path / "own.sit.txt")
    flags, arguments, here = done.paths[1].read_text().splitlines()
    assert here == "triptych: --path-type GVP --prediction velocity --num-heads 4"
    assert flags == "--path-type GVP --prediction velocity" and arguments.startswith("SiT(input_size=8, ")
    state = torch.load(tmp_path / "own.pt", weights_only=True)
    names = names_of(width=48, depth=2, patch=2, rows=4, classes=5, channels=3, outputs=3)
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == names


def test_an_earlier_export_is_replaced_and_other_files_are_not(tmp_path: Path) -> None:
    ours = request(tmp_path / "own.pt", *own())
    for _ in range(2):
        exported(ours)
    for other in (own(path="gvp"), own(network=DiTConfig(width=48, depth=1, heads=4))):
        with pytest.raises(
            ConfigError, match=r"own.pt is there and is no earlier export of this model \(own.sit.txt does not say just the"
        ):
            exported(request(tmp_path / "own.pt", *other))
    (tmp_path / "theirs.pt").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"theirs.pt is there and is no earlier export .* \(theirs.sit.txt is not beside it\)"):
        exported(request(tmp_path / "theirs.pt", *own()))
    assert (tmp_path / "theirs.pt").read_bytes() == b"x" and not (tmp_path / "theirs.sit.txt").exists()


def test_what_an_export_writes_beside_a_file_is_read_with_it(tmp_path: Path) -> None:
    config, spec, model = own(path="gvp", prediction="noise")
    exported(request(tmp_path / "own.pt", config, spec, model))
    lines = list[str]()
    run = import_run(tmp_path / "own.pt", tmp_path / "run", program="sit", report=lines.append)
    assert isinstance(run.config.model, FlowMatchingConfig) and run.config.model.network == config.network
    assert (run.config.model.path, run.config.model.prediction) == ("gvp", "noise")
    assert f"flags of {tmp_path}/own.sit.txt: --path-type GVP --prediction noise --num-heads 4" in lines
    given = import_run(tmp_path / "own.pt", tmp_path / "given", program="sit", flags="--path-type VP").config.model
    assert isinstance(given, FlowMatchingConfig) and (given.path, given.prediction) == ("vp", "noise"), "what is given counts more"
    (tmp_path / "own.sit.txt").write_text("--path-type GVP\nSiT(...)\n")
    with pytest.raises(CheckpointError, match="nothing in the file says how many heads that has"):
        import_run(tmp_path / "own.pt", tmp_path / "bare", program="sit")
    for text, reason in (("triptych: --num-haeds 4", "--num-haeds: unknown flag"), (" " * 70_000, "larger than 65,536 bytes")):
        (tmp_path / "own.sit.txt").write_text(text)
        with pytest.raises(CheckpointError, match=rf"cannot use .*own\.sit\.txt, which lies beside .*own\.pt: {reason}"):
            import_run(tmp_path / "own.pt", tmp_path / "bare", program="sit")


def test_a_model_of_images_comes_back_as_one(tmp_path: Path) -> None:
    config, spec, model = own()
    exported(request(tmp_path / "own.pt", config, spec, model))
    lines = list[str]()
    run = import_run(tmp_path / "own.pt", tmp_path / "run", program="sit", report=lines.append)
    assert f"{tmp_path}/own.pt is weights alone of SiT: images, or latents, of 3 x 8 x 8" in lines
    assert "no --autoencoder is given: samples are taken for images" in lines
    assert run.spec == spec
    assert run.sample(1, settings=LevelSamplingConfig(steps=1), device="cpu").images.dtype == "uint8", "pictures"


def test_a_published_width_and_depth_with_other_heads_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "S", (48, 2, 6))
    config, spec, model = own()
    exported(request(tmp_path / "own.pt", config, spec, model))
    run = import_run(tmp_path / "own.pt", tmp_path / "run", program="sit")
    assert isinstance(run.config.model, FlowMatchingConfig) and run.config.model.network == config.network
    x, t, y = torch.randn(2, 3, 8, 8), torch.tensor([0.2, 0.9]), torch.tensor([1, 4])
    with torch.no_grad():
        found = run.load(device="cpu").get_submodule("network")(x, t, y)
    torch.testing.assert_close(found, model.network(x, t, y), atol=1e-5, rtol=0)


def test_memory_is_taken_once_the_file_is_known_to_fill_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A width that the few tensors which show it claim would ask for any amount."""
    taken: list[str] = []
    monkeypatch.setattr(torch.nn.Module, "to_empty", lambda self, **settings: taken.append("to_empty"))
    monkeypatch.setattr("triptych.interop.transformers.position_table", lambda *given: taken.append("table"))
    named = names_of(width=100_000, depth=1, patch=2, rows=4, classes=3)
    shown = ("pos_embed", "x_embedder.proj.weight", "y_embedder.embedding_table.weight", "final_layer.linear.weight")
    given = {name: torch.zeros(1).expand(named[name]) for name in shown} | {"blocks.0.attn.qkv.weight": torch.zeros(1)}
    with pytest.raises(CheckpointError, match="the file is incomplete: it has no x_embedder.proj.bias"):
        filled(*described(given, {"num-heads": 4}), given)
    assert not taken


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--latent-mean 1,2", "--latent-mean: got 1,2, expected 4 numbers, one for each channel"),
        ("--latent-std 1,2,3,0", "--latent-std: got '1,2,3,0', expected positive numbers, separated by commas"),
        ("--latent-mean 1,2,3,x", "--latent-mean: got '1,2,3,x', expected numbers, separated by commas"),
        ("--latent-std 1,2,3,inf", "--latent-std"),
        ("--latent-darkest nan", "--latent-darkest: got nan, expected a number from -1 to below 1"),
        ("--latent-darkest 1", "--latent-darkest: got 1.0, expected a number from -1 to below 1"),
        ("--latent-scaled-to 0", "--latent-scaled-to: got 0.0, expected numbers above 0"),
    ],
)
def test_scales_of_latents_that_are_none(tmp_path: Path, flags: str, message: str) -> None:
    torch.save(weights(), tmp_path / "sit.pt")
    with pytest.raises(ConfigError, match=message):
        import_run(tmp_path / "sit.pt", tmp_path / "run", program="sit", flags=f"--num-heads 6 {flags}")


def test_latents_are_named(tmp_path: Path) -> None:
    config, spec, model = own()
    latents = LatentSpec(
        autoencoder="runs/kl",
        checkpoint=1,
        weights="raw",
        sha256="",
        image_size=64,
        channels=3,
        mean=(0.0,) * 3,
        std=(5.49,) * 3,
        scaled_to=1.0,
    )
    *_, note = exported(request(tmp_path / "own.pt", config, replace(spec, latents=latents), model)).notes
    assert note.endswith(
        "of the autoencoder in runs/kl, which decodes z * scale + mean, channel by channel: scale 5.49, 5.49, 5.49; mean 0, 0, 0"
    )


@pytest.mark.parametrize(
    ("settings", "path", "message"),
    [
        ({"class_conditional": False, "label_dropout": 0.0}, "x.pt", "model.class_conditional: false"),
        ({"time_scale": 1000.0}, "x.pt", "model.time_scale: 1000"),
        ({}, "x.safetensors", "out: got .*, expected the name of a file that ends with .pt"),
    ],
)
def test_what_sit_cannot_express(settings: dict[str, Any], path: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        exported(request(tmp_path / path, *own(**settings)))


def test_sit_has_no_variance_to_drop(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="drop_variance: goes with diffusers: leave it out"):
        exported(request(tmp_path / "x.pt", *own(), drop_variance=True))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("config", "kind"), [(FlowMatchingConfig(network=UNetConfig()), "FlowMatching with a U-Net"), (ADMConfig(network=DiTConfig()), "ADM")]
)
def test_other_models_are_not_sit(config: FlowMatchingConfig | ADMConfig, kind: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"to: SiT is flow matching with a transformer; this run is of {kind}$"):
        exported(request(tmp_path / "x.pt", config, DataSpec(image_size=8, channels=3, num_classes=5), None))


@pytest.mark.peer("transport")
@pytest.mark.parametrize("spare_outputs", [False, True])
def test_outputs_of_sit_itself(spare_outputs: bool, tmp_path: Path) -> None:
    """SiT's own code on PYTHONPATH (its models.py and timm), with weights of ours: equal to 1e-5, with and without a label."""
    theirs = importlib.import_module("models")
    config, spec, model = own(network=DiTConfig(width=48, depth=2, heads=4, spare_outputs=spare_outputs))
    exported(request(tmp_path / "own.pt", config, spec, model))
    original = theirs.SiT(
        input_size=8, patch_size=2, in_channels=3, hidden_size=48, depth=2, num_heads=4, num_classes=5, learn_sigma=spare_outputs
    ).eval()
    original.load_state_dict(torch.load(tmp_path / "own.pt", weights_only=True))
    x, t, y = recorded.array("x", (2, 3, 8, 8), 1.0), torch.tensor([0.1, 0.8]), torch.tensor([1, NO_LABEL])
    with torch.no_grad():
        expected = original(x, t, torch.tensor([1, 5]))
        torch.testing.assert_close(model.network(x, t, y), expected, atol=1e-5, rtol=0)
    assert expected.std() > 0.05
