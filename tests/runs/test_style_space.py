"""StyleGAN2's styles from the command line and from Python: walks, mixed styles and projections, on a small run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.contract.shrink import BATCH, shrunk
from tests.runs.glow import moved_run
from triptych.cli.main import main
from triptych.core.errors import ConfigError
from triptych.core.rng import Rng
from triptych.gans.projection import ProjectionConfig
from triptych.gans.r3gan import R3GANConfig
from triptych.gans.stylegan2 import StyleGAN2, StyleGAN2Config, StyleGAN2Sampling
from triptych.nn.feature_networks import required_tensors
from triptych.recipes.config import RunConfig
from triptych.runs import Latents, Run, train
from triptych.runs.directions import read_directions
from triptych.runs.latents import read_latents
from triptych.runs.mixing import first_style, mixed

FAST = ProjectionConfig(steps=4)


def gan(model: Any) -> RunConfig:
    """On 8x8 digits, in the batches of the contract tests."""
    digits = shrunk("adm-digits")
    return replace(digits, model=replace(model, class_conditional=True).shrunk(), train=replace(digits.train, total_images=2 * BATCH))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(gan(StyleGAN2Config()), tmp_path_factory.mktemp("runs") / "styles", device="cpu")


def samples(run: Run, count: int = 12, **settings: Any) -> np.ndarray:
    """The plain samples of seed 3."""
    return run.sample(count, seed=3, settings=StyleGAN2Sampling(**settings), device="cpu").images


def command(*arguments: str | Path) -> int:
    return main([*map(str, arguments), "--device", "cpu"])


# The latents of samples -------------------------------------------------------------------------------------------------


def test_the_ends_of_a_walk_are_the_samples(run: Run) -> None:
    settings = StyleGAN2Sampling(truncation=0.7)
    way = run.edit(None, between=(11, 4), count=5, seed=3, settings=settings, device="cpu")
    plain = samples(run, truncation=0.7)
    assert way.images.shape == (5, 8, 8, 1) and way.labels is None  # of the classes 1 and 4
    np.testing.assert_array_equal(way.images[[0, 4]], plain[[11, 4]])
    assert (way.images[1:4] != plain[4]).any() and (way.images[1:4] != plain[11]).any()
    halfway = run.edit(None, between=(11, 4), path="linear", count=3, seed=3, settings=settings, device="cpu").images[1]
    np.testing.assert_array_equal(halfway, way.images[2])


def test_the_noise_of_a_walk_stays_noise(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halfway the styles are the mean of those of both ends, and each noise map the middle of an arc."""
    rng, labels = Rng(3, ("sample",), torch.tensor([11, 4])), torch.tensor([1, 4])
    model = run.coder(device="cpu").model
    assert isinstance(model, StyleGAN2)
    styles, *maps = model.sampled_latents(rng, labels=labels, settings=StyleGAN2Sampling())
    decoded, decode = [], StyleGAN2.decode
    monkeypatch.setattr(StyleGAN2, "decode", lambda self, latents, **more: decoded.append(latents) or decode(self, latents, **more))
    for path in (None, "linear"):
        run.edit(None, between=(11, 4), count=3, path=path, seed=3, device="cpu")  # type: ignore[arg-type]
        found_styles, *found = decoded.pop()
        torch.testing.assert_close(found_styles[1], styles.mean(0))
        for noise, (first, last) in zip(found, maps, strict=True):
            cosine = torch.cosine_similarity(first.flatten(), last.flatten(), dim=0)
            torch.testing.assert_close(noise[1], (first + last) / (2 + 2 * cosine).sqrt(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_samples_by_number_are_those_that_are_drawn(run: Run) -> None:
    for noise in ("random", "fixed", "none"):
        picked = run.edit(None, pick=[7, 0, 10], seed=3, settings=StyleGAN2Sampling(noise=noise), device="cpu", batch_size=2)  # type: ignore[arg-type]
        np.testing.assert_array_equal(picked.images, samples(run, noise=noise)[[7, 0, 10]])
        assert picked.labels is not None and picked.labels.tolist() == [7, 0, 0]
    named = run.edit(None, pick=[1, 2], seed=3, labels=[5, "7"], device="cpu")
    np.testing.assert_array_equal(named.images, run.sample(3, seed=3, labels=[5, "7"], device="cpu").images[1:])
    assert len(run.edit(None, count=3, device="cpu").images) == 3


def test_a_flow_has_latents_of_its_samples_too(tmp_path: Path) -> None:
    glow = moved_run(tmp_path / "glow")
    plain = glow.sample(6, seed=2, device="cpu").images
    way = glow.edit(None, between=(5, 1), count=3, seed=2, device="cpu").images
    assert np.abs(way[[0, 2]].astype(int) - plain[[5, 1]]).max() <= 1  # of another batch


def test_directions_move_styles_and_no_noise(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "images.npz", arr_0=samples(run), arr_1=np.arange(12) % 2)
    encode = ["encode", run.directory, tmp_path / "images.npz", "--steps", 3, "--directions", "--out", tmp_path / "latents.npz"]
    for more in ((), ("--noise-maps",)):
        assert command(*encode, *more) == 0
        assert [array.shape for array in read_directions(run.directory / "directions.npz").arrays] == [(2, 4, 6)]
        for noise in ("random", "fixed", "none"):
            out = tmp_path / "moved.npz"
            flags = ["--direction", "1=-2:2", "--count", 3, "--pick", "0,5", "--seed", 3, "--noise", noise]
            assert command("sample", run.directory, *flags, "--out", out) == 0
            with np.load(out) as made:
                moved = made["arr_0"].reshape(2, 3, 8, 8, 1)
            np.testing.assert_array_equal(moved[:, 1], samples(run, noise=noise)[[0, 5]])
            assert (moved[:, 0] != moved[:, 2]).any()
    assert command("sample", run.directory, "--from", tmp_path / "latents.npz", "--direction", "1=1", "--out", tmp_path / "a.npz") == 0


# Mixed styles -----------------------------------------------------------------------------------------------------------


def test_a_grid_of_mixed_styles(run: Run) -> None:
    settings = StyleGAN2Sampling(noise="fixed")
    made = run.edit(None, mix=(2, 3), mix_at=8, seed=3, settings=settings, device="cpu").images.reshape(3, 4, 8, 8, 1)
    plain = samples(run, noise="fixed")
    assert (made[0, 0] == 255).all()
    np.testing.assert_array_equal(made[1:, 0], plain[:2])
    np.testing.assert_array_equal(made[0, 1:], plain[2:5])
    coder, settings_of_all = run.coder(device="cpu"), {"labels": torch.arange(5), "settings": settings}
    (ws,) = coder.model.sampled_latents(Rng(3, ("sample",), torch.arange(5)), **settings_of_all)  # type: ignore[operator]
    crossed = torch.cat((ws[1, :1], ws[4, 1:]))[None]  # the 4x4 layer of sample 1, the others of sample 4
    expected = coder.decode(Latents((crossed.numpy(),), None)).images[0]
    assert np.abs(made[2, 3].astype(int) - expected).max() <= 1  # that one is rounded, samples are cut off
    other = run.edit(None, mix=(1, 1), pick=[1, 4], mix_at=8, seed=3, settings=settings, device="cpu").images
    np.testing.assert_array_equal(other[3], made[2, 3])


def test_what_is_mixed() -> None:
    styles = np.arange(5 * 4).reshape(5, 4, 1).astype(np.float32)
    made = mixed(Latents((styles, np.arange(5, dtype=np.float32)), np.arange(5)), (2, 3), first_fine=3)
    assert made.labels is None
    grid = made.arrays[0][..., 0].reshape(3, 4, 4)
    np.testing.assert_array_equal(grid[1:, 0], styles[:2, :, 0])
    np.testing.assert_array_equal(grid[0, 1:], styles[2:, :, 0])
    np.testing.assert_array_equal(grid[2, 1], [4, 5, 6, 11])  # coarse of the second row, fine of the first column
    assert made.arrays[1].reshape(3, 4)[1:].tolist() == [[0] * 4, [1] * 4] and made.arrays[1].reshape(3, 4)[0, 1:].tolist() == [2, 3, 4]


def test_where_styles_change() -> None:
    sizes = (4, 8, 8, 16, 16, 32, 32, 32)
    assert [first_style(sizes, at) for at in (8, 16, 32, None)] == [1, 3, 5, 3]
    assert first_style((4, 8, 8, 8), None) == 1
    for at in (4, 12):
        with pytest.raises(ConfigError, match=f"mix_at: got {at}, expected one of 8, 16, 32, the pixels of the layers"):
            first_style(sizes, at)


def test_one_command_draws_the_grid(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mix.png"
    assert command("sample", run.directory, "--mix", "2,3", "--seed", 3, "--truncation", 0.7, "--labels", "1,2", "--out", out) == 0
    assert capsys.readouterr().out == f"12 images in {out}\n"
    with Image.open(out) as picture:
        assert picture.size == (6 * (4 * 10 + 2), 6 * (3 * 10 + 2)) and picture.getpixel((30, 30)) == 255


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--mix 0,3", "--mix: got 0, 3, expected rows and columns, 1 or more of each"),
        ("--mix 100000,1", "--mix: got 100000, 1, expected rows and columns of at most 65,536 images"),
        ("--pick 1 --count 5", "--count: got 5, expected 1 to 1, the samples of --pick"),
        ("--mix 2,3 --mix-at 16", "--mix-at: got 16, expected one of 8, the pixels of the layers"),
        ("--mix 2,3 --count 4", "--mix: got 2, 3 beside --count, expected one of the two"),
        ("--mix 2,3 --between 0,1", "--mix: got 2, 3 beside --between, expected one of the two"),
        ("--mix 2,3 --pick 0,1", "--pick: got 2 latents, expected 5, one for each row and column of --mix"),
        ("--direction a=-1:1", "--pick: got None, expected the numbers of the samples that are moved"),
        ("--truncation much", "--truncation: got 'much', expected a number"),
        ("--truncation-layers -1", "--truncation-layers: got -1, expected 0 or more, or nothing"),
        ("--labels 11 --pick 0", "--labels: got 11, expected 0 to 9"),
        ("--labels dog", '--labels: unknown class "dog"'),
    ],
)
def test_mistakes(arguments: str, line: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("sample", run.directory, *arguments.split(), "--out", tmp_path / "a.png") == 2
    assert capsys.readouterr().err.startswith(f"triptych: error: {line}".replace('"dog"', "'dog'"))


@pytest.mark.slow
def test_models_without_styles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A GAN that encodes no images says what it can do instead, a diffusion model where latents come from, and all what --mix needs."""
    train(gan(R3GANConfig()), tmp_path / "r3gan", device="cpu")
    train(shrunk("adm-digits").updated({"train": {"total_images": BATCH}}), tmp_path / "adm", device="cpu")
    glow = moved_run(tmp_path / "glow")
    np.savez(tmp_path / "images.npz", arr_0=np.zeros((1, 8, 8, 1), np.uint8), arr_1=np.zeros(1, int))
    capsys.readouterr()
    asked = [
        (
            ("sample", "r3gan", "--between", "0,1"),
            "--labels: samples 0 and 1 are of the classes 0 and 1; give one class, which all images between them have",
        ),
        (("encode", "r3gan", str(tmp_path / "images.npz")), "model: R3GAN encodes no images; triptych sample draws images with it"),
        (
            ("sample", "adm", "--between", "0,1"),
            "--from: missing: ADM does not tell the latents of its samples; triptych encode writes those of images",
        ),
        *(
            (
                ("sample", name.lower(), "--mix", "1,1"),
                f"--mix: {name} has no style for each layer, as StyleGAN2 has; --between shows what lies between two images",
            )
            for name in ("R3GAN", "ADM", "Glow")
        ),
    ]
    assert glow.directory.name == "glow"
    for (verb, name, *rest), line in asked:
        assert command(verb, tmp_path / name, *rest) == 2
        assert capsys.readouterr().err == f"triptych: error: {line}\n"


@pytest.mark.parametrize("conditional", [True, False])
def test_a_gan_without_styles_walks_in_its_noise(conditional: bool, tmp_path: Path) -> None:
    """On the sphere, between the samples themselves; the class is told."""
    config = gan(R3GANConfig())
    made = train(replace(config, model=replace(config.model, class_conditional=conditional)), tmp_path / "run", device="cpu")
    labels = [3] if conditional else None
    plain = made.sample(12, seed=3, labels=labels, device="cpu").images
    way = made.edit(None, between=(11, 4), count=5, seed=3, labels=labels, device="cpu")
    np.testing.assert_array_equal(way.images[[0, 4]], plain[[11, 4]])
    z = Rng(3, ("sample",), torch.tensor([11, 4])).normal("z", 8).numpy()
    middle = z.sum(0) / np.sqrt(2 + 2 * z[0] @ z[1] / np.linalg.norm(z[0]) / np.linalg.norm(z[1]))  # (z1 + z2) / (2 cos(angle / 2))
    found = made.coder(device="cpu").decode(Latents((middle[None].astype(np.float32),), None), labels=labels).images
    assert np.abs(way.images[2].astype(int) - found[0]).max() <= 1 and (way.images[2] != plain[4]).any()
    with pytest.raises(ConfigError, match=r"^latents: got the shapes \[\(7,\)\], expected \(8,\) alone, which is z"):
        made.coder(device="cpu").decode(Latents((np.zeros((1, 7), np.float32),), None), labels=labels)
    with pytest.raises(ConfigError, match="^model: R3GAN encodes no images; triptych sample draws"):
        made.coder(device="cpu").encode(np.zeros((1, 8, 8, 1), np.uint8))


# Projection -------------------------------------------------------------------------------------------------------------


def test_images_become_styles_and_images_again(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "images.npz", arr_0=samples(run, 3, noise="fixed"))
    out = tmp_path / "latents.npz"
    assert command("encode", run.directory, tmp_path / "images.npz", "--steps", 30, "--check", "--out", out) == 0
    assert capsys.readouterr().out.startswith(f"3 images encoded in {out}; decoded they are ")
    latents = read_latents(out)
    assert [array.shape for array in latents.arrays] == [(3, 4, 6)] and latents.labels is None
    assert command("encode", run.directory, out, "--decode", "--out", tmp_path / "decoded.npz") == 0
    assert command("sample", run.directory, "--from", out, "--between", "0,2", "--count", 3, "--out", tmp_path / "way.npz") == 0
    assert command("sample", run.directory, "--from", out, "--mix", "1,2", "--out", tmp_path / "mix.npz") == 0
    with np.load(tmp_path / "decoded.npz") as decoded, np.load(tmp_path / "way.npz") as way, np.load(tmp_path / "mix.npz") as grid:
        np.testing.assert_array_equal(way["arr_0"][[0, 2]], decoded["arr_0"][[0, 2]])
        np.testing.assert_array_equal(grid["arr_0"][[1, 2, 3]], decoded["arr_0"][[1, 2, 0]])
    assert command("sample", run.directory, "--from", out, "--mix", "2,2", "--out", tmp_path / "mix.npz") == 2
    assert capsys.readouterr().err.endswith("--mix: got 2, 2, which needs at least 4 latents, one for each; there are 3\n")


def test_the_same_command_goes_on_where_it_was_interrupted(run: Run, tmp_path: Path) -> None:
    images, whole = samples(run, 5), run.coder(settings=FAST, batch_size=2, device="cpu").encode(samples(run, 5))
    told: list[float] = []

    def stop(done: float, total: float) -> None:
        told.append(done)
        if done > 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.coder(settings=FAST, batch_size=2, device="cpu", progress=stop).encode(images, out=tmp_path / "l.npz")
    assert told == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5]  # a step of four is half an image of two
    told.clear()
    rest = run.coder(settings=FAST, batch_size=2, device="cpu", progress=lambda done, total: told.append(done))
    again = rest.encode(images, out=tmp_path / "l.npz")
    assert told[0] == 2 and told[-1] == 5
    np.testing.assert_array_equal(again.arrays[0], whole.arrays[0])


def test_noise_maps_are_stored_beside_the_styles(run: Run, tmp_path: Path) -> None:
    made = run.coder(settings=replace(FAST, noise_maps=True), device="cpu").encode(samples(run, 2), out=tmp_path / "l.npz")
    assert [array.shape[1:] for array in made.arrays] == [(4, 6), (1, 4, 4), (1, 8, 8), (1, 8, 8)]
    assert len(run.decode(tmp_path / "l.npz", device="cpu").images) == 2


def test_labels_are_in_the_styles(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So images need none, and those that they have are kept; a direction of a class is one of styles."""
    coder = run.coder(settings=FAST, device="cpu")
    np.savez(tmp_path / "images.npz", arr_0=samples(run, 4), arr_1=np.array([1, 1, 7, 7]))
    kept = coder.encode(tmp_path / "images.npz").labels
    assert kept is not None and kept.tolist() == [1, 1, 7, 7]
    directions, _ = coder.directions(tmp_path / "images.npz")
    assert directions.names == ("1", "7") and directions.arrays[0].shape == (2, 4, 6)
    assert command("encode", run.directory, tmp_path / "images.npz", "--labels", "3", "--steps", 1, "--out", tmp_path / "l.npz") == 2
    assert "--labels: the latents of StyleGAN2 hold the class of an image; leave them out" in capsys.readouterr().err


def test_images_of_another_size(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "images.npz", arr_0=np.zeros((1, 16, 16, 1), np.uint8))
    assert command("encode", run.directory, tmp_path / "images.npz", "--out", tmp_path / "l.npz") == 2
    assert "16" in capsys.readouterr().err


def test_files_of_feature_networks(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    np.savez(tmp_path / "images.npz", arr_0=samples(run, 1))
    asked = ["encode", run.directory, tmp_path / "images.npz", "--steps", 2, "--out", tmp_path / "l.npz", "--distance", "features"]
    first = ["--perceptual.network", "squeezenet1_0", "--perceptual.layers", "relu_1", "--perceptual.layer-weights", "1"]
    assert command(*asked, *first) == 2
    line = "--perceptual.weights: missing: give the file of weights of squeezenet1_0 (.pth or .safetensors)"
    assert capsys.readouterr().err == f"triptych: error: {line}\n"
    vgg = ["--perceptual.network", "vgg16", "--perceptual.layers", "relu_1_1", "--perceptual.layer-weights", "1"]
    assert command(*asked, *vgg) == 2
    assert f"there is no {tmp_path / 'cache' / 'networks' / 'vgg16-397923af.pth'}" in capsys.readouterr().err
    shapes = required_tensors("vgg16", ("relu_1_1",))
    generator = torch.Generator().manual_seed(0)
    (tmp_path / "cache" / "networks").mkdir(parents=True)
    torch.save(
        {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}, tmp_path / "cache/networks/vgg16-397923af.pth"
    )
    assert command(*asked, *vgg) == 0
    assert command(*asked, *first, "--perceptual.weights", tmp_path / "cache/networks/vgg16-397923af.pth") == 2
    assert "as those of squeezenet1_0" in capsys.readouterr().err
