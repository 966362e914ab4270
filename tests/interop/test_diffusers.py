"""The layout of diffusers: written without it, and tried with it where it is installed."""

from __future__ import annotations

import errno
import importlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.diffusion import recorded
from tests.interop.unet2d_reference import outputs
from triptych.core.batch import DataSpec, LatentSpec
from triptych.core.errors import ConfigError
from triptych.diffusion.adm import ADM, ADMConfig
from triptych.diffusion.classifier import ClassifierConfig
from triptych.diffusion.gaussian import GaussianConfig
from triptych.diffusion.model import SamplingConfig
from triptych.diffusion.samplers import ancestral_step, clipping
from triptych.diffusion.unet import EncoderConfig, UNetConfig
from triptych.gans.kl_autoencoder import KLAutoencoderConfig
from triptych.interop.diffusers.exporter import exported, to_diffusers, write_diffusers
from triptych.interop.programs import ExportRequest, latent_notes

SPEC = DataSpec(image_size=16, channels=3, num_classes=10)
LATENTS = LatentSpec(
    autoencoder="runs/kl",
    checkpoint=1,
    weights="raw",
    sha256="",
    image_size=64,
    channels=3,
    mean=(0.5, -0.25, 0.0),
    std=(1.0, 2.0, 0.125),
)
X, T, Y = recorded.array("x", (2, 3, 16, 16), 1.0), torch.tensor([5, 700]), torch.tensor([1, 9])


def made(spec: DataSpec = SPEC, *, conditional: bool = True, diffusion: GaussianConfig | None = None, **network: Any) -> ADM:
    settings: dict[str, Any] = {"num_channels": 32, "num_res_blocks": 1, "channel_mult": (1, 2, 2), "attention_resolutions": (8,)}
    config = ADMConfig(
        network=UNetConfig(**(settings | {"num_head_channels": 16} | network)),
        diffusion=diffusion or GaussianConfig(schedule="cosine", variance="learned_range"),
        class_conditional=conditional,
    )
    model = config.build(spec).eval()
    model.network.load_state_dict(recorded.weights({name: tensor.shape for name, tensor in model.network.state_dict().items()}))
    return model.requires_grad_(False)


NETWORKS: list[tuple[bool, dict[str, Any]]] = [
    (True, {"attention_order": "legacy", "resblock_updown": True}),
    (False, {"attention_order": "new", "resblock_updown": True, "attention_resolutions": (16, 8, 4), "num_res_blocks": 2}),
    (True, {"attention_order": "new", "resblock_updown": False, "scale_shift_norm": False}),
    (False, {"attention_order": "legacy", "resblock_updown": False, "attention_resolutions": (4,)}),
    (True, {"num_head_channels": None, "num_heads": 1, "attention_resolutions": ()}),
    (False, {"num_head_channels": None, "num_heads": 4, "attention_resolutions": (8, 4)}),
    (False, {"num_head_channels": None, "num_heads": 1, "channel_mult": (1, 2, 3), "attention_resolutions": (8,)}),
    (True, {"channel_mult": (1,), "attention_resolutions": (16,)}),
]


@pytest.mark.peer("diffusers")
@pytest.mark.parametrize(("conditional", "network"), NETWORKS)
def test_outputs(conditional: bool, network: dict[str, Any], tmp_path: Path) -> None:
    diffusers = importlib.import_module("diffusers")
    model = made(conditional=conditional, **network)
    write_diffusers(to_diffusers(model), tmp_path / "out")
    theirs, loading = diffusers.UNet2DModel.from_pretrained(tmp_path / "out", subfolder="unet", output_loading_info=True)
    assert not any(loading.values()), loading
    y = Y if conditional else None
    with torch.no_grad():
        torch.testing.assert_close(theirs(X, T, class_labels=y).sample, model.network(X, T, y), atol=1e-5, rtol=0)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("conditional", "network"), NETWORKS)
def test_outputs_by_the_published_formulas(conditional: bool, network: dict[str, Any]) -> None:
    """All that unet/config.json and the tensors say, without diffusers: which layer is which, rows of q, k and v, waves of the time."""
    model = made(conditional=conditional, **network)
    layout, y = to_diffusers(model), Y if conditional else None
    tensors = {name: tensor.double() for name, tensor in layout.tensors.items()}
    with torch.no_grad():
        expected = model.network(X.double(), T, y)
        torch.testing.assert_close(outputs(layout.unet, tensors, X.double(), T, y), expected, atol=1e-9, rtol=0)
    sizes = (layout.unet["sample_size"], layout.unet["in_channels"], layout.unet["out_channels"], layout.unet["num_class_embeds"])
    assert sizes == (16, 3, 6, 10 if conditional else None) and expected.std() > 0.1


@pytest.mark.parametrize(
    ("diffusion", "sampling", "said"),
    [
        (GaussianConfig(schedule="cosine", variance="learned_range"), SamplingConfig(), ("learned_range", "epsilon", True, 1.0)),
        (GaussianConfig(variance="fixed_large"), SamplingConfig(clip=False), ("fixed_large", "epsilon", False, 1.0)),
        (
            GaussianConfig(steps=100, mean="v", variance="fixed_small"),
            SamplingConfig(threshold=0.5),
            ("fixed_small", "v_prediction", True, 0.5),
        ),
        (GaussianConfig(steps=2, betas=(0.1, 0.2), mean="x0"), SamplingConfig(), ("fixed_large", "sample", True, 1.0)),
    ],
)
def test_what_the_scheduler_is_told(diffusion: GaussianConfig, sampling: SamplingConfig, said: tuple[Any, ...]) -> None:
    """Its table of betas, by the schedules' formulas, is that of the diffusion."""
    model = made(conditional=False, diffusion=diffusion)
    model.config = replace(model.config, sampling=sampling)
    told = to_diffusers(model).scheduler
    count, places = told["num_train_timesteps"], np.linspace(0, 1, told["num_train_timesteps"] + 1)
    waves = np.cos((places + 0.008) / 1.008 * np.pi / 2) ** 2
    betas = {
        "linear": np.linspace(told["beta_start"], told["beta_end"], count),
        "squaredcos_cap_v2": np.minimum(1 - waves[1:] / waves[:-1], 0.999),
    }[told["beta_schedule"]]
    np.testing.assert_allclose(told["trained_betas"] or betas, diffusion.table(), rtol=1e-9)
    assert (told["variance_type"], told["prediction_type"], told["clip_sample"], told["clip_sample_range"]) == said
    assert (count, told["timestep_spacing"]) == (diffusion.steps, "linspace")


@pytest.mark.peer("diffusers")
def test_without_the_variance(tmp_path: Path) -> None:
    diffusers = importlib.import_module("diffusers")
    model = made(conditional=False)
    write_diffusers(to_diffusers(model, drop_variance=True), tmp_path / "out")
    pipeline = diffusers.DDIMPipeline.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        torch.testing.assert_close(pipeline.unet(X, T).sample, model.network(X, T)[:, :3], atol=1e-5, rtol=0)
    assert pipeline.scheduler.config.variance_type == "fixed_large"


@pytest.mark.peer("diffusers")
@pytest.mark.parametrize(
    ("diffusion", "sampling"),
    [
        (GaussianConfig(schedule="cosine", variance="learned_range"), SamplingConfig()),
        (GaussianConfig(variance="fixed_large"), SamplingConfig(clip=False)),
        (GaussianConfig(steps=100, schedule="cosine", mean="v", variance="fixed_small"), SamplingConfig(threshold=0.5)),
        (GaussianConfig(steps=4, betas=(0.1, 0.2, 0.3, 0.4), mean="x0", variance="fixed_large"), SamplingConfig()),
    ],
)
def test_a_step_of_the_scheduler(diffusion: GaussianConfig, sampling: SamplingConfig, tmp_path: Path) -> None:
    """The step of the DDPM scheduler is ours: its table, its parametrization, its clipping and its variance."""
    diffusers = importlib.import_module("diffusers")
    model = made(conditional=False, diffusion=diffusion)
    model.config = ADMConfig(network=model.config.network, diffusion=diffusion, sampling=sampling)
    write_diffusers(to_diffusers(model), tmp_path / "out")
    pipeline = diffusers.DDPMPipeline.from_pretrained(tmp_path / "out")
    scheduler, process = pipeline.scheduler, model.diffusion
    scheduler.set_timesteps(diffusion.steps)
    for step in (diffusion.steps - 2, diffusion.steps // 3, 0):
        output = recorded.array(f"output/{step}", (2, model.network.out_channels, 16, 16), 0.5)
        c = process.at_step(step)
        drawn = torch.randn(X.shape, generator=torch.Generator().manual_seed(7)) if step else torch.zeros_like(X)
        moments = process.moments(output, X, c, clipping(sampling.threshold if sampling.clip else None))
        theirs = scheduler.step(output, torch.tensor(step), X, generator=torch.Generator().manual_seed(7)).prev_sample
        torch.testing.assert_close(theirs, ancestral_step(moments, c, drawn), atol=2e-4, rtol=1e-3)


@pytest.mark.peer("diffusers")
def test_a_pipeline_draws(tmp_path: Path) -> None:
    diffusers = importlib.import_module("diffusers")
    write_diffusers(to_diffusers(made(conditional=False)), tmp_path / "out")
    pipeline = diffusers.DDPMPipeline.from_pretrained(tmp_path / "out")
    pipeline.set_progress_bar_config(disable=True)
    assert pipeline(batch_size=2, num_inference_steps=3, output_type="np").images.shape == (2, 16, 16, 3)
    assert torch.equal(pipeline.scheduler.timesteps, torch.tensor([999, 500, 0])), "spread over all of them, as ours are"


def test_the_folder(tmp_path: Path) -> None:
    out, model = tmp_path / "out", made()
    write_diffusers(to_diffusers(model), out)
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    weights = "unet/diffusion_pytorch_model.safetensors"
    assert files == {"model_index.json", "unet/config.json", weights, "scheduler/scheduler_config.json"}
    assert json.loads((out / "model_index.json").read_text())["unet"] == ["diffusers", "UNet2DModel"]
    unet = json.loads((out / "unet/config.json").read_text())
    assert unet["down_block_types"] == ["DownBlock2D", "AttnDownBlock2D", "DownBlock2D"]
    assert unet["up_block_types"] == ["UpBlock2D", "AttnUpBlock2D", "UpBlock2D"]
    assert (unet["block_out_channels"], unet["attention_head_dim"], unet["num_class_embeds"]) == ([32, 64, 64], 16, 10)
    assert unet["norm_eps"] == model.network.get_submodule("out.0").eps
    tensors = load_file(out / weights)
    assert sum(tensor.numel() for tensor in tensors.values()) == sum(p.numel() for p in model.parameters())
    first = model.network.state_dict()["input_blocks.0.0.weight"]
    assert torch.equal(tensors["conv_in.weight"], first)


def test_an_earlier_export_is_replaced_and_other_files_are_not(tmp_path: Path) -> None:
    layout = to_diffusers(made())
    write_diffusers(layout, tmp_path / "out")
    write_diffusers(layout, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (tmp_path / "mine").mkdir()
    write_diffusers(layout, tmp_path / "mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.txt").write_text("")
    for name in ("other", "other/thesis.txt"):
        with pytest.raises(ConfigError, match=f"out: .*{name} is there and is no earlier export of this model; choose another"):
            write_diffusers(layout, tmp_path / name)
    with pytest.raises(ConfigError, match="out is there and is no earlier export of this model"):
        write_diffusers(to_diffusers(made(), drop_variance=True), tmp_path / "out")
    write_diffusers(layout, tmp_path / "out")
    assert (tmp_path / "other/thesis.txt").exists()
    (tmp_path / "out/NOTES.md").write_text("mine")
    with pytest.raises(ConfigError, match=r"out is there and also holds NOTES\.md, which no export wrote; choose another"):
        write_diffusers(layout, tmp_path / "out")
    assert (tmp_path / "out/NOTES.md").read_text() == "mine"


def test_an_export_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **settings: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    layout, out = to_diffusers(made()), tmp_path / "out"
    write_diffusers(layout, out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    monkeypatch.setattr("triptych.interop.diffusers.folder.save_file", full)
    for folder in (out, tmp_path / "new"):
        with pytest.raises(OSError, match="No space left"):
            write_diffusers(layout, folder)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("name", "ending"), [("a.pt", ".pt"), ("photos.Safetensors", ".safetensors"), ("..", "")])
def test_a_name_of_a_file_is_refused_before_the_weights_are_read(name: str, ending: str, tmp_path: Path) -> None:
    model = made()
    for config in (model.config, KLAutoencoderConfig()):
        request = ExportRequest(tmp_path / name, config, SPEC, lambda: pytest.fail("was read"), drop_variance=False)
        with pytest.raises(ConfigError) as raised:
            exported(request)
        meant = f", not of a file ({ending})" if ending else ""
        assert str(raised.value) == f"out: got '{tmp_path / name}', expected the name of a folder{meant}"
    assert not list(tmp_path.iterdir())
    exported(ExportRequest(tmp_path / "photos-v1.5", model.config, SPEC, lambda: model, drop_variance=False))
    assert (tmp_path / "photos-v1.5/model_index.json").is_file()


def test_a_link_to_a_folder_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    layout, link = to_diffusers(made()), tmp_path / "link"
    write_diffusers(layout, tmp_path / "out")
    link.symlink_to("out")
    before = (tmp_path / "out/unet").stat().st_ino
    write_diffusers(layout, link)
    assert link.is_symlink() and (tmp_path / "out/unet").stat().st_ino != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "out"]


def test_a_model_of_latents_says_what_they_are_and_has_no_pipeline(tmp_path: Path) -> None:
    model = made()
    request = ExportRequest(tmp_path / "out", model.config, replace(SPEC, latents=LATENTS), lambda: model, drop_variance=False)
    *_, note = exported(request).notes
    assert note == "it makes latents z, of the autoencoder in runs/kl, which decodes z * scale + mean, channel by channel: " + (
        "scale 2, 4, 0.25; mean 0.5, -0.25, 0"
    )
    assert not (tmp_path / "out/model_index.json").exists() and (tmp_path / "out/unet/config.json").exists()
    assert latent_notes(replace(SPEC, latents=replace(LATENTS, darkest=0.0)))[0] == f"{note}; in what that decodes black is 0 and white 1"
    exported(replace(request, spec=SPEC, out=tmp_path / "images"))
    assert (tmp_path / "images/model_index.json").exists()


@pytest.mark.parametrize(
    ("network", "line"),
    [
        ({"conv_resample": False}, "model.network.conv_resample: false"),
        ({"channel_mult": (2, 2)}, "model.network.channel_mult: its first number is not 1 (the timestep is embedded in 32 numbers"),
        ({"num_head_channels": None, "num_heads": 2, "channel_mult": (1, 2, 3)}, "model.network.num_heads: heads of several widths"),
        ({"num_head_channels": None, "num_heads": 2, "num_heads_upsample": 4}, "model.network.num_heads: heads of several widths"),
    ],
)
def test_networks_that_it_cannot_express(network: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        to_diffusers(made(**network))
    assert str(raised.value).startswith(f"diffusers cannot express this model: {line}")


def test_other_things_that_it_cannot_express() -> None:
    with pytest.raises(ConfigError, match=r"model\.diffusion\.mean: previous_x \(its schedulers know epsilon, x0, v\)"):
        to_diffusers(made(diffusion=GaussianConfig(mean="previous_x")))
    learned = made(diffusion=GaussianConfig(variance="learned"))
    with pytest.raises(ConfigError, match=r"model\.diffusion\.variance: learned \(its schedulers want the variance, not its logarithm"):
        to_diffusers(learned)
    whole, dropped = to_diffusers(made()), to_diffusers(learned, drop_variance=True)
    assert (dropped.scheduler["variance_type"], dropped.unet["out_channels"]) == ("fixed_large", 3)
    for name in ("conv_out.weight", "conv_out.bias"):
        assert torch.equal(dropped.tensors[name], whole.tensors[name][:3])
    with pytest.raises(ConfigError, match="drop_variance: this model learns no variance"):
        to_diffusers(made(diffusion=GaussianConfig()), drop_variance=True)
    classifier = ClassifierConfig(network=EncoderConfig(num_channels=32, num_head_channels=32, channel_mult=(1,), attention_resolutions=()))
    with pytest.raises(ConfigError, match="diffusers cannot express this model: its UNet2DModel has no counterpart of NoisyClassifier"):
        to_diffusers(classifier.build(SPEC))


def test_notes() -> None:
    conditional = to_diffusers(made())
    assert "DDPMPipeline gives no class labels" in conditional.notes[0] and "for the variance" in conditional.notes[1]
    assert conditional.index is not None and len(conditional.notes) == 2
    dropped = made()
    dropped.config = replace(dropped.config, label_dropout=0.1)
    assert to_diffusers(dropped).notes[2:] == ["UNet2DModel always takes a label: there is no guidance without labels"]
    rescaled = to_diffusers(made(conditional=False, diffusion=GaussianConfig(steps=4000, schedule="cosine", rescale_timesteps=True)))
    assert rescaled.index is None, "a pipeline would draw nonsense from it without a word"
    assert rescaled.notes == [
        "the network takes t * 1000 / 4000, which no scheduler gives: there is no model_index.json; call UNet2DModel with that"
    ]
    assert to_diffusers(made(conditional=False), drop_variance=True).notes == []
