"""Imported models of latents: the autoencoder that is given decodes them, by the scale of the program that they are from."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.data.pairs import write
from tests.data.pictures import encoded, picture
from tests.interop.nvidia_files import modules_of_nvidia, network, write_pickle
from tests.interop.test_sit import HEADS, weights
from triptych.cli.main import main
from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError
from triptych.core.model import Sampler, seeded_build
from triptych.core.rng import Rng
from triptych.data.config import DataConfig
from triptych.data.latents import read_stamp
from triptych.diffusion.continuous import LevelSamplingConfig
from triptych.diffusion.edm2 import EDM2Config
from triptych.diffusion.edm2_network import EDM2NetworkConfig
from triptych.engine.checkpoint import save_checkpoint
from triptych.engine.config import TrainConfig
from triptych.engine.distributed import open_world
from triptych.engine.run_directory import RunDirectory
from triptych.gans.kl_autoencoder import KLAutoencoder, KLAutoencoderConfig
from triptych.gans.kl_networks import KLNetworksConfig
from triptych.recipes.config import RunConfig
from triptych.runs import Run, export_run, import_run, open_run, sampling, train
from triptych.runs.document import RunDocument
from triptych.runs.latent_data import encode_data
from triptych.runs.latent_space import LatentSpace, shown_by

MEAN, STD = torch.tensor([5.81, 3.25, 0.12, -2.15]), torch.tensor([4.17, 4.62, 3.71, 3.28])
"""Of the latents that EDM2's published networks learned."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of SiT's form and of EDM2's, and untrained autoencoders to half the side: "kl" of 4 channels, "kl-2" of 2.

    The latents are of images of 16 pixels, the autoencoders learned larger ones.
    """
    root = tmp_path_factory.mktemp("imported")
    torch.save(weights(), root / "sit.pt")
    config = EDM2Config(
        network=EDM2NetworkConfig(num_channels=8, channel_mult=(1,), num_blocks=1, attention_resolutions=(), num_head_channels=8)
    )
    spec = DataSpec(image_size=8, channels=4)
    tensors = {name: tensor.half() for name, tensor in seeded_build(config, spec, seed=0).network.state_dict().items()}  # type: ignore[union-attr]
    with modules_of_nvidia():
        settings = {"img_resolution": 8, "img_channels": 4, "label_dim": 0, "channels_per_head": 8}
        write_pickle(root / "edm2.pkl", {"ema": network("Precond", tensors, settings=settings), "loss_fn": None})
    for name, channels in (("kl", 4), ("kl-2", 2)):
        autoencoder_run(root / name, channels)
    return root


def autoencoder_run(place: Path, channels: int) -> None:
    model = KLAutoencoderConfig(
        network=KLNetworksConfig(widths=(4, 8), num_blocks=1, latent_channels=channels, num_groups=2), perceptual_weight=0.0
    )
    config = RunConfig(model=model, data=DataConfig(path="x", image_size=32), train=TrainConfig(total_images=8, batch_size=8, ema_rates=()))
    spec, directory = DataSpec(image_size=32, channels=3), RunDirectory(place)
    directory.create()
    state = {name: tensor.clone() for name, tensor in seeded_build(model, spec, seed=0).state_dict().items()}
    save_checkpoint(directory.checkpoints, images_seen=8, files={"model": state}, info={"log2_loss_scale": {}, "best": None})
    directory.write_config(RunDocument(config, spec, None).to_dict())


def imported(folder: Path, name: str, place: Path, **settings: Any) -> tuple[Run, list[str]]:
    said: list[str] = []
    file = {"nvidia": "edm2.pkl"}.get(name, "sit.pt")
    run = import_run(folder / file, place, program=name, report=said.append, **({"flags": HEADS} if file == "sit.pt" else {}), **settings)  # type: ignore[arg-type]
    return run, said


def space(run: Run) -> LatentSpace:
    assert run.spec.latents is not None
    return LatentSpace(run.spec.latents, open_world("cpu"), RunDirectory(run.directory))


def decoder(folder: Path) -> KLAutoencoder:
    model = open_run(folder / "kl").load(device="cpu")
    assert isinstance(model, KLAutoencoder)
    return model


def latents() -> Tensor:
    return torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))


def images() -> Tensor:
    return torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1)) * 2 - 1


@pytest.mark.parametrize("program", ["sit", "dit"])
def test_sit_and_dit_have_latents_times_a_factor(program: str, folder: Path, tmp_path: Path) -> None:
    run, said = imported(folder, program, tmp_path / "run", autoencoder=folder / "kl")
    assert any("latents are decoded by" in line for line in said)
    assert (run.spec.pictured.height_and_width, run.spec.pictured.channels) == ((16, 16), 3)
    ours, model = space(run), decoder(folder)
    torch.testing.assert_close(ours.images(latents()), model.decode([latents() / 0.18215]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.samples(images()), model.posterior(images()).mean * 0.18215, atol=1e-6, rtol=1e-5)


def test_edm2_has_moments_and_black_is_0(folder: Path, tmp_path: Path) -> None:
    run, _ = imported(folder, "nvidia", tmp_path / "run", autoencoder=folder / "kl")
    ours, model = space(run), decoder(folder)
    mean, std = MEAN[:, None, None], STD[:, None, None]
    decoded = model.decode([latents() * std / 0.5 + mean])
    torch.testing.assert_close(ours.images(latents()), (2 * decoded - 1).clamp(-1, 1), atol=1e-5, rtol=1e-5)
    seen = model.posterior((images() + 1) / 2).mean
    torch.testing.assert_close(ours.samples(images()), (seen - mean) * 0.5 / std, atol=1e-5, rtol=1e-5)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images in three classes."""
    root = tmp_path_factory.mktemp("photos")
    for k in range(9):
        write(root / "abc"[k % 3] / f"{k}.png", encoded(picture(16, 16, seed=k)))
    return root


@pytest.mark.parametrize("program", ["sit", "nvidia"])
def test_a_training_goes_on_with_latents_of_other_images(program: str, folder: Path, photos: Path, tmp_path: Path) -> None:
    """They are encoded and scaled as those that the weights are of; the weights are the imported ones, a little further."""
    run, _ = imported(folder, program, tmp_path / "run", autoencoder=folder / "kl")
    labels, file = "auto" if program == "sit" else "none", tmp_path / "latents.npz"
    arguments = ["data", "encode", str(photos), "--with", str(run.directory), "--out", str(file), "--labels", labels, "--device", "cpu"]
    assert main(arguments) == 0 and encode_data(photos, run, file, labels=labels, device="cpu").already
    config = replace(
        run.config, data=replace(run.config.data, path=str(file), workers=0, validation_fraction=read_stamp(file).data.validation_fraction)
    )
    opened = config.data.open()
    assert opened.spec.latents == run.spec.latents and opened.validation is not None
    originals = read_stamp(file).data.open()
    pixels = torch.from_numpy(originals.train.batch(np.arange(2)).images).movedim(-1, 1) / 127.5 - 1
    means = torch.stack([torch.from_numpy(opened.train.content(k)[0]) for k in range(2)])
    assert run.spec.latents is not None
    torch.testing.assert_close(run.spec.latents.normalised(means), space(run).samples(pixels), atol=1e-5, rtol=1e-5)
    train_config = replace(config.train, total_images=4, batch_size=2, sample_count=0, validate_images=2, ema_rates=(), compile="off")
    before = run.tensors(weights="raw")
    longer = train(replace(config, train=train_config, optim=replace(config.optim, learning_rate=1e-5)), run.directory, device="cpu")
    after = longer.tensors(weights="raw")
    assert longer.checkpoints()[-1] == 4 and longer.spec.latents == run.spec.latents
    apart = [float((after[name] - before[name]).abs().max()) for name in before if before[name].is_floating_point()]
    assert 0 < max(apart) < 1e-3


def test_latents_that_do_not_fit_an_imported_model_are_refused(folder: Path, photos: Path, tmp_path: Path) -> None:
    run, _ = imported(folder, "sit", tmp_path / "run", autoencoder=folder / "kl")
    encode_data(photos, open_run(folder / "kl"), tmp_path / "own.npz", image_size=16, device="cpu")
    config = replace(run.config, data=replace(run.config.data, path=str(tmp_path / "own.npz"), workers=0))
    with pytest.raises(
        ConfigError, match=r"mean .* in place of 0, 0, 0, 0, std .*give its own, encoded by triptych data encode IMAGES --with"
    ):
        train(config, run.directory, device="cpu")
    file = tmp_path / "latents.npz"
    with pytest.raises(ConfigError, match="image_size: got 32, but the run learned latents of images of 16 pixels; leave it out"):
        encode_data(photos, run, file, image_size=32, device="cpu")
    with pytest.raises(ConfigError, match="weights: got raw, but .*run says which weights of its autoencoder encode; leave it out"):
        encode_data(photos, run, file, weights="raw", device="cpu")
    encode_data(photos, run, file, device="cpu")
    for name, same in (("own.npz", True), ("latents.npz", False)):  # measured moments are found, those that a model learned are asked for
        stamp = read_stamp(tmp_path / name)
        assert (replace(stamp, latents=replace(stamp.latents, mean=(1.0,) * 4)).asked == stamp.asked) == same
    with pytest.raises(
        ConfigError, match=r"latent_std: got 2, but latents.npz has latents on the scale of a model that learned them, 1; leave"
    ):
        replace(config.data, path=str(file), latent_std=2.0).open()
    bare, _ = imported(folder, "sit", tmp_path / "bare")
    with pytest.raises(ConfigError, match="a run of FlowMatching, which has no latents of images; give the run of an autoencoder"):
        encode_data(photos, bare, tmp_path / "bare.npz", device="cpu")


def test_samples_are_images_also_where_the_autoencoder_is_gone(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(folder / "kl", tmp_path / "kl")
    arguments = ["import", "nvidia", str(folder / "edm2.pkl"), "--run", str(tmp_path / "run"), "--autoencoder", str(tmp_path / "kl")]
    assert main(arguments) == 0
    assert "EDM2, 16x16, no classes" in capsys.readouterr().out
    settings = LevelSamplingConfig(steps=1)
    before = open_run(tmp_path / "run").sample(2, settings=settings, device="cpu").images
    assert before.shape == (2, 16, 16, 3)
    shutil.rmtree(tmp_path / "kl")
    assert (open_run(tmp_path / "run").sample(2, settings=settings, device="cpu").images == before).all()


def test_without_an_autoencoder_samples_are_latents(folder: Path, photos: Path, tmp_path: Path) -> None:
    run, said = imported(folder, "nvidia", tmp_path / "run")
    assert "no --autoencoder is given: samples are latents, not images" in said
    assert run.spec == DataSpec(image_size=8, channels=4)
    for out in ("a.png", "folder"):
        with pytest.raises(ConfigError, match=f"out: got '.*{out}', but samples of this run are latents of 4 channels, .*ends with .npz"):
            run.sample(1, out=tmp_path / out, settings=LevelSamplingConfig(steps=1), device="cpu")
        assert not (tmp_path / out).exists()
    with pytest.raises(ConfigError, match="makes latents of 4 channels, and was imported without .*import it again with --autoencoder RUN"):
        run.score(photos, metrics=("frechet",), device="cpu")
    with pytest.raises(ConfigError, match="makes latents of 4 channels, and was imported without .*import it again with --autoencoder RUN"):
        run.coder(device="cpu")


def test_the_command_writes_latents_that_nothing_decodes(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the network made them, and the same command may write them again."""
    run, _ = imported(folder, "nvidia", tmp_path / "run")
    for _ in range(2):
        assert main(["sample", str(tmp_path / "run"), "--count", "2", "--steps", "1", "--device", "cpu"]) == 0
        assert "2 images in " in capsys.readouterr().out
    with np.load(tmp_path / "run" / "samples.npz") as file:
        latents = file["arr_0"]
    model = run.load(device="cpu")
    assert isinstance(model, Sampler) and isinstance(run.config.model, EDM2Config)
    settings = replace(run.config.model.sampling, steps=1)
    with torch.no_grad():
        made = model.sample(Rng(0, ("sample",), torch.arange(2)), labels=None, settings=settings)
    assert latents.dtype == np.float32 and latents.shape == (2, 8, 8, 4)
    np.testing.assert_allclose(latents, made.permute(0, 2, 3, 1).numpy(), atol=1e-6, rtol=1e-4)
    assert np.abs(latents).max() > 1e-3
    far = torch.linspace(-3, 3, 40).reshape(1, 4, 5, 2)
    shown = shown_by(run.spec, open_world("cpu"), RunDirectory(run.directory))(far.bfloat16())
    assert torch.equal(shown, far.bfloat16().float().movedim(1, -1)), "nothing is clipped"


def test_the_room_for_latents_is_that_of_their_float_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "available_memory", lambda: 10 * 8 * 8 * 4 * 4)
    sampling.require_room(10, DataSpec(image_size=8, channels=4))
    with pytest.raises(ConfigError, match="count: got 11, but so many images of 8x8 pixels take 11.3 KB of memory"):
        sampling.require_room(11, DataSpec(image_size=8, channels=4))


def test_a_training_without_the_autoencoder_says_what_to_do(folder: Path, photos: Path, tmp_path: Path) -> None:
    run, _ = imported(folder, "sit", tmp_path / "run")
    encode_data(photos, open_run(folder / "kl"), tmp_path / "own.npz", image_size=16, device="cpu")
    config = replace(run.config, data=replace(run.config.data, path=str(tmp_path / "own.npz"), image_size=16, workers=0))
    with pytest.raises(ConfigError, match="imported without the autoencoder of its latents, .*; import it again with --autoencoder RUN"):
        train(config, run.directory, device="cpu")


def test_an_export_and_an_import_are_the_same_run(folder: Path, tmp_path: Path) -> None:
    """The scale of the latents is beside the file, to the last digit."""
    run, said = imported(folder, "sit", tmp_path / "run", autoencoder=folder / "kl")
    assert [line for line in said if "taken to be multiplied by 0.18215" in line]
    flags = HEADS | {"latent-mean": [0.1, -0.2, 1 / 3, 0], "latent-std": [1.08, 0.92, 0.87, 2 / 3], "latent-scaled-to": 0.5}
    scaled = import_run(folder / "sit.pt", tmp_path / "scaled", program="sit", flags=flags, autoencoder=folder / "kl")
    assert scaled.spec.latents is not None and run.spec.latents is not None
    assert (scaled.spec.latents.mean, scaled.spec.latents.std, scaled.spec.latents.scaled_to) == (
        (0.1, -0.2, 1 / 3, 0.0),
        (1.08, 0.92, 0.87, 2 / 3),
        0.5,
    )
    export_run(scaled.directory, "sit", tmp_path / "there.pt")
    said.clear()
    back = import_run(tmp_path / "there.pt", tmp_path / "back", program="sit", autoencoder=folder / "kl", report=said.append)
    assert back.spec == scaled.spec and not [line for line in said if "taken to be" in line]
    settings = LevelSamplingConfig(steps=2)
    drawn = [each.sample(2, settings=settings, device="cpu").images for each in (run, scaled, back)]
    assert (drawn[1] == drawn[2]).all() and (drawn[0] != drawn[1]).any()


def test_what_does_not_decode_is_refused_before_anything_is_written(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"kl-2', which has other latents: got the shapes \(4, 8, 8\), expected one level of 2 channels"):
        imported(folder, "nvidia", tmp_path / "run", autoencoder=folder / "kl-2")
    latent, _ = imported(folder, "nvidia", tmp_path / "latent")
    with pytest.raises(ConfigError, match="EDM2 gives no distribution of latents; give the run of an autoencoder"):
        imported(folder, "nvidia", tmp_path / "run", autoencoder=latent.directory)
    said = list[str]()
    with pytest.raises(ConfigError, match="gives no distribution of latents"):  # before the weights are read
        import_run(tmp_path / "none.pt", tmp_path / "run", program="sit", autoencoder=latent.directory, report=said.append)
    with pytest.raises(ConfigError, match="which has other latents"):
        import_run(folder / "sit.pt", tmp_path / "run", program="sit", flags=HEADS, autoencoder=folder / "kl-2", report=said.append)
    assert not said, "nothing is said of what cannot be used"
    assert not (tmp_path / "run").exists()
