"""Autoencoders in the layout of diffusers: out, in, and tried with it where it is installed."""

from __future__ import annotations

import importlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.files import temporary_path
from triptych.data.config import DataConfig
from triptych.engine.config import TrainConfig
from triptych.gans.discriminators import PatchDiscriminatorConfig
from triptych.gans.kl_autoencoder import KLAutoencoder, KLAutoencoderConfig
from triptych.gans.kl_networks import KLNetworksConfig
from triptych.interop.diffusers.autoencoder import CONFIG, WEIGHTS, exported, to_document, to_run, to_state, to_tensors
from triptych.interop.diffusers.folder import write_folder
from triptych.interop.programs import ExportRequest
from triptych.recipes.config import RunConfig
from triptych.runs import export_run, import_run, train

SPEC = DataSpec(image_size=32, channels=3)
PUBLISHED = {  # of Stable Diffusion's, as its config.json has it
    "_class_name": "AutoencoderKL",
    "_diffusers_version": "0.2.2",
    "act_fn": "silu",
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "in_channels": 3,
    "latent_channels": 4,
    "layers_per_block": 2,
    "out_channels": 3,
    "sample_size": 512,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
}


def small(**network: Any) -> KLAutoencoder:
    torch.manual_seed(0)
    settings = KLNetworksConfig(**({"widths": (8, 8, 16), "num_blocks": 1, "latent_channels": 3, "num_groups": 4} | network))
    model = KLAutoencoderConfig(network=settings, perceptual_weight=0.0, scaling_factor=0.18215).build(SPEC)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval().requires_grad_(False)


def written(model: KLAutoencoder, folder: Path) -> Path:
    document = to_document(model.config, SPEC)
    write_folder(folder, {CONFIG: document}, {WEIGHTS: to_tensors(model)}, known=(CONFIG, WEIGHTS), head=CONFIG)
    return folder


def test_what_a_killed_export_left_is_removed_by_the_next(tmp_path: Path) -> None:
    left, own = (temporary_path(tmp_path / "out") for _ in range(2))
    left = left.with_name(left.name.replace(f"-{os.getpid()}-", "-9999999999-"))  # no process has that number
    for folder in (left, own):
        (folder / "unet").mkdir(parents=True)
    written(small(), tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"out", own.name}


@pytest.mark.peer("diffusers")
@pytest.mark.parametrize("network", [{}, {"widths": (8, 16), "num_blocks": 2}, {"widths": (8,), "latent_channels": 4}])
def test_outputs(network: dict[str, Any], tmp_path: Path) -> None:
    diffusers = importlib.import_module("diffusers")
    model = small(**network)
    theirs, loading = diffusers.AutoencoderKL.from_pretrained(written(model, tmp_path / "out"), output_loading_info=True)
    assert not any(loading.values()), loading
    assert theirs.config.scaling_factor == 0.18215
    images = torch.rand(2, 3, 32, 24, generator=torch.Generator().manual_seed(1)) * 2 - 1
    with torch.no_grad():
        posterior, expected = model.posterior(images), theirs.encode(images).latent_dist
        torch.testing.assert_close(posterior.mean, expected.mean, atol=1e-4, rtol=0)
        torch.testing.assert_close(posterior.std, expected.std, atol=1e-4, rtol=1e-4)
        made = theirs.decode(posterior.mean).sample
        torch.testing.assert_close(model.generator.decoded(posterior.mean), made, atol=1e-4, rtol=0)


@pytest.mark.peer("diffusers")
def test_the_published_names() -> None:
    """Of diffusers' own model with the published settings, on the meta device: names, shapes and number."""
    diffusers = importlib.import_module("diffusers")
    with torch.device("meta"):
        theirs = diffusers.AutoencoderKL(**{name: value for name, value in PUBLISHED.items() if not name.startswith("_")})
        config, spec = to_run(PUBLISHED)
        ours = config.model.build(spec)
    shapes = {name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()}
    assert shapes == {name: tuple(tensor.shape) for name, tensor in ours.generator.state_dict().items()}
    assert sum(parameter.numel() for parameter in theirs.parameters()) == 83_653_863


def test_the_published_configuration() -> None:
    config, spec = to_run(PUBLISHED)
    assert isinstance(config.model, KLAutoencoderConfig)
    assert config.model.network == KLNetworksConfig() and config.model.scaling_factor == 0.18215
    assert (spec.image_size, spec.channels, config.data.image_size) == (512, 3, 512)
    with torch.device("meta"):
        model = config.model.build(spec)
    assert sum(parameter.numel() for parameter in model.generator.parameters()) == 83_653_863
    back = to_document(config.model, spec)
    assert {name: back[name] for name in PUBLISHED if name != "_diffusers_version"} == {
        name: value for name, value in PUBLISHED.items() if name != "_diffusers_version"
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"act_fn": "relu"}, "act_fn is 'relu', expected 'silu'"),
        ({"mid_block_add_attention": False}, "mid_block_add_attention is False"),
        ({"up_block_types": ["AttnUpDecoderBlock2D"] * 4}, "up_block_types .* expected UpDecoderBlock2D"),
        ({"block_out_channels": 8}, "block_out_channels is 8, expected the channels of each resolution"),
        ({"block_out_channels": None, "down_block_types": [], "up_block_types": []}, "block_out_channels is None"),
        ({"layers_per_block": 0}, "num_blocks: got 0"),
        ({"norm_num_groups": 48}, "num_groups: got 48"),
        ({"out_channels": 4}, "out_channels is 4, expected 3"),
        ({"in_channels": 4, "out_channels": 4}, "in_channels is 4"),
        ({"sample_size": 100}, "images of 100x100 pixels"),
        ({"sample_size": [512, 256]}, r"sample_size is \[512, 256\], expected a number, or height and width alike"),
        ({"scaling_factor": -1}, "scaling_factor: got -1"),
    ],
)
def test_settings_that_are_not_known_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        to_run(PUBLISHED | change)


def test_a_height_and_a_width_that_are_alike() -> None:
    assert to_run(PUBLISHED | {"sample_size": [512, 512]}) == to_run(PUBLISHED)


def test_the_images_of_a_configuration_that_names_no_size_and_of_a_grey_one() -> None:
    config, spec = to_run({name: value for name, value in PUBLISHED.items() if name != "sample_size"})
    assert (spec.image_size, spec.channels, config.data.image_size, config.data.channels) == (256, 3, 256, 3)
    config, spec = to_run(PUBLISHED | {"in_channels": 1, "out_channels": 1})
    assert (spec.image_size, spec.channels, config.data.channels) == (512, 1, 1)


def test_images_that_are_small_for_the_usual_losses() -> None:
    """They are none of the file's, which says nothing of them: 24 pixels are the fewest for three layers of the discriminator, 12 for two.

    The perceptual loss looks at a layer of VGG19 that has halved the sides four times.
    """
    found = {}
    for side in (32, 16, 8):
        config, _ = to_run(PUBLISHED | {"sample_size": side})
        assert isinstance(config.model, KLAutoencoderConfig)
        found[side] = config.model.discriminator.num_layers, config.model.perceptual_weight
    assert found == {32: (3, 1.0), 16: (2, 1.0), 8: (1, 0.0)}


def test_a_folder_becomes_a_run_and_a_folder_again(tmp_path: Path) -> None:
    model, lines = small(), []
    written(model, tmp_path / "vae")
    run = import_run(tmp_path / "vae", tmp_path / "run", program="diffusers", report=lines.append)
    assert not run.config.train.ema_warmup, "its average goes on from the imported weights"
    loaded = run.load(device="cpu")
    assert isinstance(loaded, KLAutoencoder) and loaded.config.scaling_factor == 0.18215
    for name, tensor in model.generator.state_dict().items():
        assert torch.equal(loaded.generator.state_dict()[name], tensor), name
    assert any("discriminator, which begins anew" in line for line in lines)
    done = export_run(tmp_path / "run", "diffusers", tmp_path / "again")
    assert done.notes == () and done.paths == (tmp_path / "again",)
    for name in (CONFIG, WEIGHTS):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "vae" / name).read_bytes()


def test_the_file_of_weights_may_be_named(tmp_path: Path) -> None:
    """Where a folder has several."""
    model = small()
    folder = written(model, tmp_path / "vae")
    save_file({name: tensor + 1 for name, tensor in to_tensors(model).items()}, folder / "later.safetensors")
    loaded = import_run(folder / "later.safetensors", tmp_path / "run", program="diffusers").load(device="cpu")
    found = loaded.get_submodule("generator").state_dict()
    assert all(torch.equal(found[name], tensor + 1) for name, tensor in model.generator.state_dict().items())


def test_pipelines_and_older_names_are_read(tmp_path: Path) -> None:
    model = small()
    written(model, tmp_path / "pipeline/vae")
    file = tmp_path / "pipeline/vae" / WEIGHTS
    older = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}

    def renamed(name: str, tensor: Tensor) -> tuple[str, Tensor]:
        match = re.search(r"attentions\.0\.(to_[qkv]|to_out\.0)\.(\w+)$", name)
        if match is None:
            return name, tensor
        return name.replace(match[1], older[match[1]]), tensor[..., None, None] if match[2] == "weight" else tensor

    save_file(dict(renamed(name, tensor.half()) for name, tensor in load_file(file).items()), file)
    run = import_run(tmp_path / "pipeline", tmp_path / "run", program="diffusers")
    loaded = run.load(device="cpu")
    assert isinstance(loaded, KLAutoencoder)
    for name, tensor in model.generator.state_dict().items():
        assert torch.equal(loaded.generator.state_dict()[name], tensor.half().float()), name
    stored = load_file(tmp_path / "run/checkpoints/000000000/model.safetensors")
    assert {tensor.dtype for name, tensor in stored.items() if name.startswith("generator.")} == {torch.float32}


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    folder = written(small(), tmp_path / "vae")
    config, spec = to_run(json.loads((folder / CONFIG).read_text()))
    tensors = load_file(folder / WEIGHTS)
    for broken, said in (
        ({name: tensor for name, tensor in tensors.items() if name != "quant_conv.bias"}, "it has no quant_conv.bias"),
        (tensors | {"quant_conv.bias": torch.zeros(4)}, r"quant_conv.bias has shape \[4\], expected \[6\]"),
        (tensors | {"extra.weight": torch.zeros(4)}, "it has extra.weight"),
    ):
        with pytest.raises(CheckpointError, match=said):
            to_state(broken, config, spec)
    with pytest.raises(CheckpointError, match=r"config.json: is no file of weights; give the folder that it lies in, .*vae$"):
        import_run(folder / CONFIG, tmp_path / "run", program="diffusers")
    (folder / CONFIG).write_text('{"_class_name": "VQModel"}')
    with pytest.raises(CheckpointError, match="config.json: is of 'VQModel', expected AutoencoderKL"):
        import_run(folder, tmp_path / "run", program="diffusers")
    for text, reason in (("[" * 100_000, "nested too deeply"), (" " * 2**21, "larger than 1,048,576 bytes")):
        (folder / CONFIG).write_text(text)
        with pytest.raises(CheckpointError, match=f"config.json cannot be read, or is no JSON .*{reason}"):
            import_run(folder, tmp_path / "run", program="diffusers")
    (folder / CONFIG).write_text("[]")
    with pytest.raises(CheckpointError, match=r"config.json holds no settings by name"):
        import_run(folder, tmp_path / "run", program="diffusers")
    (folder / CONFIG).write_text(json.dumps(PUBLISHED | {"block_out_channels": [10**9] * 4}))
    with pytest.raises(CheckpointError, match=r"config.json beside it has no model here: larger than 10,000,000,000 parameters"):
        import_run(folder, tmp_path / "run", program="diffusers")
    (folder / CONFIG).unlink()
    with pytest.raises(CheckpointError, match="there is no such file; it has to lie beside the weights"):
        import_run(folder, tmp_path / "run", program="diffusers")
    with pytest.raises(CheckpointError, match="holds no diffusion_pytorch_model.safetensors"):
        import_run(tmp_path, tmp_path / "run", program="diffusers")
    with pytest.raises(CheckpointError, match=f"^there is no folder {tmp_path}/nowhere$"):
        import_run(tmp_path / "nowhere", tmp_path / "run", program="diffusers")
    folder = written(small(), tmp_path / "parts")
    (folder / WEIGHTS).rename(folder / "diffusion_pytorch_model-00001-of-00002.safetensors")
    (folder / f"{WEIGHTS}.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="parts: its weights lie in several files; save it again in one, with max_shard_size"):
        import_run(folder, tmp_path / "run", program="diffusers")
    with pytest.raises(ConfigError, match="flags: config.json says it all"):
        import_run(folder, tmp_path / "run", program="diffusers", flags="--x 1")


@pytest.mark.parametrize(("height", "width"), [(32, 64), (64, 32)])
def test_images_that_are_no_squares_have_their_longer_side(height: int, width: int, tmp_path: Path) -> None:
    """diffusers makes tiles of it, one number, where it is asked to: images of the training's size are not to be cut up."""
    model, spec = small(), DataSpec(image_size=height, width=width, channels=3)
    done = exported(ExportRequest(tmp_path / "out", model.config, spec, lambda: model, drop_variance=False))
    assert json.loads((tmp_path / "out" / CONFIG).read_text())["sample_size"] == 64
    assert len(done.notes) == 1 and f"the longer side of the {height}x{width} images" in done.notes[0]


def test_an_own_run_is_exported_without_its_discriminator(tmp_path: Path) -> None:
    patches = PatchDiscriminatorConfig(num_discriminators=1, num_filters=4, num_layers=1)
    network = KLNetworksConfig(widths=(4, 8), num_blocks=1, latent_channels=2, num_groups=2)
    config = RunConfig(
        model=KLAutoencoderConfig(network=network, discriminator=patches, perceptual_weight=0.0),
        data=DataConfig(source="digits", image_size=8, workers=0),
        train=TrainConfig(total_images=8, batch_size=8, sample_count=0, validate_images=0, ema_rates=(0.5,)),
    )
    run = train(config, tmp_path / "run", device="cpu")
    done = export_run(tmp_path / "run", "diffusers", tmp_path / "out")
    assert len(done.notes) == 1 and "model.scaling_factor" in done.notes[0]
    tensors, document = load_file(tmp_path / "out" / WEIGHTS), json.loads((tmp_path / "out" / CONFIG).read_text())
    assert document["scaling_factor"] == 1.0 and document["in_channels"] == 1
    average = run.tensors(weights="ema-0.5")
    assert tensors.keys() == {name.removeprefix("generator.") for name in average if name.startswith("generator.")}
    assert all(torch.equal(tensor, average[f"generator.{name}"]) for name, tensor in tensors.items())
    with pytest.raises(ConfigError, match="drop_variance: an autoencoder has no output channels to drop"):
        export_run(tmp_path / "run", "diffusers", tmp_path / "out", drop_variance=True)
