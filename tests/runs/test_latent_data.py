"""Latents kept in a file, learned in place of their images, and decoded wherever images are shown."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.contract.shrink import shrunk
from triptych.cli.main import main
from triptych.core.batch import DataSpec, LatentSpec
from triptych.core.errors import CheckpointError, ConfigError, DataError, RunError, Stopped
from triptych.core.npz import read_npz
from triptych.core.rng import Rng
from triptych.data.config import DataConfig
from triptych.data.fingerprint import fingerprint
from triptych.data.latents import LatentImages, read_stamp
from triptych.data.loader import Loader
from triptych.diffusion.adm import ADMConfig, EncodingConfig
from triptych.engine.config import TrainConfig
from triptych.engine.distributed import open_world
from triptych.engine.run_directory import RunDirectory
from triptych.gans.discriminators import PatchDiscriminatorConfig
from triptych.gans.kl_autoencoder import KLAutoencoder, KLAutoencoderConfig
from triptych.gans.kl_networks import KLNetworksConfig
from triptych.recipes.config import RunConfig
from triptych.runs import Run, latent_data, open_run, plan_probe, planning, train
from triptych.runs.beginning import same_images
from triptych.runs.data_look import look
from triptych.runs.given.data_images import model_reference
from triptych.runs.latent_data import EncodedData, encode_data
from triptych.runs.latent_space import LatentSpace, autoencoder_of, copy_bytes, keep_autoencoder, shown_by, unlike_latents
from triptych.runs.latents import read_latents
from triptych.runs.loading import Loading
from triptych.runs.model_images import ImageRequest, maker_of
from triptych.runs.packing import pack_data
from triptych.runs.pieces import Pieces
from triptych.runs.plan_probe import Task, measure
from triptych.runs.showing import show_data
from triptych.runs.stored import outline
from triptych.runs.training import _known_without_contents, initialize_from

COUNT, SIDE = 24, 16
TRAINING = {"batch_size": 8, "sample_count": 4, "validate_images": 8, "ema_rates": (0.5,)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images in two classes, a run of an autoencoder, and its latents of them."""
    root = tmp_path_factory.mktemp("latents")
    pixels = np.random.default_rng(0).integers(0, 256, (COUNT, SIDE, SIDE, 3), dtype=np.uint8)
    for k, image in enumerate(pixels):
        place = root / "images" / "ab"[k % 2] / f"{k:03d}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place)
    network = KLNetworksConfig(widths=(4, 8), num_blocks=1, latent_channels=2, num_groups=2)
    patches = PatchDiscriminatorConfig(num_discriminators=1, num_filters=4, num_layers=1)
    config = RunConfig(
        model=KLAutoencoderConfig(network=network, discriminator=patches, perceptual_weight=0.0),
        data=DataConfig(path=str(root / "images"), image_size=SIDE, flip=True, validation_fraction=0.25, workers=0),
        train=TrainConfig(total_images=16, ema_lengths=(0.1,), snapshot_every=8, **TRAINING),
    )
    train(config, root / "kl", device="cpu")
    encoded(root)
    return root


def encoded(root: Path, out: str = "latents.npz", **settings: Any) -> EncodedData:
    return encode_data(root / "images", open_run(root / "kl"), root / out, **({"device": "cpu"} | settings))


def latents_of(root: Path, **settings: Any) -> DataConfig:
    return DataConfig(**({"path": str(root / "latents.npz"), "image_size": SIDE, "validation_fraction": 0.25} | settings))


def autoencoder(root: Path) -> KLAutoencoder:
    model = open_run(root / "kl").load(device="cpu")
    assert isinstance(model, KLAutoencoder)
    return model


# The file -------------------------------------------------------------------------------------------------------------


def test_the_file_holds_the_distributions_of_all_images(folder: Path):
    arrays, model = read_npz(folder / "latents.npz"), autoencoder(folder)
    data = DataConfig(path=str(folder / "images"), image_size=SIDE, validation_fraction=0.25).open()
    assert data.validation is not None and len(data.validation) > 0
    sets = [images.batch(np.arange(len(images))) for images in (data.train, data.validation)]
    pixels = torch.from_numpy(np.concatenate([part.images for part in sets])).permute(0, 3, 1, 2) / 127.5 - 1
    for prefix, images in (("", pixels), ("mirrored_", pixels.flip(3))):
        posterior = model.posterior(images)
        np.testing.assert_allclose(arrays[f"{prefix}mean"], posterior.mean.numpy(), atol=1e-5)
        np.testing.assert_allclose(arrays[f"{prefix}std"], posterior.std.numpy(), rtol=1e-4)
    assert np.array_equal(arrays["labels"], np.concatenate([part.labels for part in sets]))
    assert np.array_equal(arrays["held_out"], np.arange(COUNT) >= len(data.train))


def test_the_stamp_says_by_what_and_has_the_moments_of_draws(folder: Path):
    stamp, arrays = read_stamp(folder / "latents.npz"), read_npz(folder / "latents.npz")
    origin = open_run(folder / "kl").origin()
    assert (stamp.latents.autoencoder, stamp.latents.sha256) == (str(folder / "kl"), origin["hash"])
    assert (stamp.latents.checkpoint, stamp.latents.weights) == (16, "ema-0.5")
    assert (stamp.latents.image_size, stamp.latents.channels, stamp.class_names) == (SIDE, 3, ("a", "b"))
    training = ~arrays["held_out"]
    means, stds = (np.concatenate([arrays[prefix + name][training] for prefix in ("", "mirrored_")]) for name in ("mean", "std"))
    axes = (0, 2, 3)
    np.testing.assert_allclose(stamp.latents.mean, means.mean(axes, dtype=np.float64), rtol=1e-9)
    variance = means.var(axes, dtype=np.float64) + np.square(stds, dtype=np.float64).mean(axes)
    np.testing.assert_allclose(stamp.latents.std, np.sqrt(variance), rtol=1e-9)


def test_a_finished_file_is_left_alone_and_another_one_is_not(folder: Path):
    before = (folder / "latents.npz").stat().st_mtime_ns
    again = encoded(folder)
    assert again.already and (folder / "latents.npz").stat().st_mtime_ns == before
    assert (again.count, again.shape, again.stamp) == (COUNT, (2, SIDE // 2, SIDE // 2), read_stamp(folder / "latents.npz"))
    made = encoded(folder, "plain.npz", flip=False)
    assert not made.already and (made.count, made.shape) == (COUNT, (2, SIDE // 2, SIDE // 2))
    assert set(read_npz(folder / "plain.npz")) == {"latents", "held_out", "labels", "mean", "std"}
    assert not encoded(folder, "plain.npz", flip=True).already, "with mirrored images"


def test_a_damaged_file_and_one_of_another_version_are_encoded_anew(folder: Path):
    """As a training advises that refuses them."""
    place = folder / "damaged.npz"
    encoded(folder, place.name)
    content = bytearray(place.read_bytes())
    content[content.find(b"mean.npy") + 1000] ^= 255
    place.write_bytes(content)
    with pytest.raises(DataError, match=r"damaged.npz: its latents are damaged, .*; encode the images again"):
        latents_of(folder, path=str(place)).open()
    assert not encoded(folder, place.name).already and len(latents_of(folder, path=str(place)).open().train)
    np.savez(place, **(read_npz(place) | {"latents": np.array('{"latents": {}}')}))
    assert not encoded(folder, place.name).already and encoded(folder, place.name).already


def test_arrays_get_the_channels_of_the_autoencoder(folder: Path, tmp_path: Path):
    pixels = np.random.default_rng(1).integers(0, 256, (6, SIDE, SIDE), dtype=np.uint8)
    np.savez(tmp_path / "grey.npz", arr_0=pixels)
    made = encode_data(tmp_path / "grey.npz", open_run(folder / "kl"), tmp_path / "made.npz", device="cpu", validation_fraction=0.0)
    images = torch.from_numpy(pixels)[:, None].repeat(1, 3, 1, 1) / 127.5 - 1
    np.testing.assert_allclose(read_npz(tmp_path / "made.npz")["mean"], autoencoder(folder).posterior(images).mean.numpy(), atol=1e-5)
    assert made.stamp.data.channels == 3
    pack_data(DataConfig(path=str(tmp_path / "grey.npz"), image_size=SIDE), tmp_path / "pack.npz")
    with pytest.raises(DataError, match=r"pack.npz: a pack of images of 1 channel, but the autoencoder takes 3; pack them again with"):
        encode_data(tmp_path / "pack.npz", open_run(folder / "kl"), tmp_path / "made.npz", device="cpu")
    with pytest.raises(ConfigError, match=r"^image_size: got 8, but the images of pack.npz were packed with 16"):
        encode_data(tmp_path / "pack.npz", open_run(folder / "kl"), tmp_path / "made.npz", device="cpu", image_size=8)


def test_latents_that_are_not_finite_are_named_by_their_image(folder: Path, monkeypatch: pytest.MonkeyPatch):
    posterior = KLAutoencoder.posterior

    def overflown(self: KLAutoencoder, images: torch.Tensor) -> Any:
        found = posterior(self, images)
        found.log_variance[1:2, 0, 0, 0] = torch.nan  # of one image alone there is no second one
        return found

    monkeypatch.setattr(KLAutoencoder, "posterior", overflown)
    second = DataConfig(path=str(folder / "images"), image_size=SIDE, validation_fraction=0.25).open().train.key(1)
    with pytest.raises(RunError, match=rf"^{second}: its latents are not finite in float32; take another --checkpoint$"):
        encoded(folder, "overflown.npz", batch_size=4)
    assert not (folder / "overflown.npz").exists()


def test_an_average_of_snapshots_encodes_and_decodes(folder: Path, tmp_path: Path):
    """At images of which there is no checkpoint."""
    latents = encoded(folder, "average.npz", ema_length=0.1, checkpoint="8").stamp.latents
    assert (latents.checkpoint, latents.weights) == (8, "ema-length-0.1") and open_run(folder / "kl").checkpoints() == [16]
    found = autoencoder_of(latents, RunDirectory(tmp_path))
    assert (found.run.directory, found.weights) == (folder / "kl", "ema-length-0.1")
    assert LatentSpace(latents, open_world("cpu"), RunDirectory(tmp_path)).shown(torch.zeros(1, 2, 4, 4)).shape == (1, 8, 8, 3)
    spec = DataSpec(image_size=8, channels=2, latents=latents)
    other = replace(spec, latents=replace(latents, weights="ema-length-0.15", sha256="0" * 64))
    expected = [f"sha256 {latents.sha256[:12]} in place of 000000000000", "weights ema-length-0.1 in place of ema-length-0.15"]
    assert sorted(unlike_latents(other, spec)) == expected


@pytest.mark.slow
def test_changed_images_and_classes_are_encoded_anew(folder: Path, tmp_path: Path):
    shutil.copytree(folder / "images", tmp_path / "images")
    out = tmp_path / "latents.npz"

    def made() -> tuple[bool, dict[str, np.ndarray]]:
        already = encode_data(tmp_path / "images", open_run(folder / "kl"), out, device="cpu").already
        return already, dict(read_npz(out))

    _, before = made()
    path = tmp_path / "images/a/000.png"
    Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
    already, after = made()
    assert not already and np.abs(after["mean"] - before["mean"]).max() > 1e-3 and made()[0]
    for one, other in (("a/002", "b/001"),):
        kept = [(tmp_path / "images" / f"{name}.png").read_bytes() for name in (one, other)]
        for name, content in zip((f"b/{one[2:]}", f"a/{other[2:]}"), kept, strict=True):
            (tmp_path / "images" / f"{name}.png").write_bytes(content)
        for name in (one, other):
            (tmp_path / "images" / f"{name}.png").unlink()
    already, moved = made()
    assert not already and not np.array_equal(moved["mean"], after["mean"])


def test_latents_of_a_changed_image_are_others(folder: Path, tmp_path: Path):
    shutil.copytree(folder / "images", tmp_path / "images")

    def already() -> bool:
        return encode_data(tmp_path / "images", open_run(folder / "kl"), tmp_path / "made.npz", device="cpu").already

    assert (already(), already()) == (False, True)
    Image.new("RGB", (SIDE, SIDE)).save(tmp_path / "images/a/000.png")
    assert not already()


def test_the_fingerprint_of_latents_knows_the_images_and_not_the_batch(folder: Path):
    """Two images that change their places leave the moments and the keys as they were, which are numbers."""
    one, other = sorted((folder / "images/a").glob("*.png"))[:2]
    contents = one.read_bytes(), other.read_bytes()
    encoded(folder, "batch.npz", batch_size=5)
    try:
        one.write_bytes(contents[1])
        other.write_bytes(contents[0])
        encoded(folder, "swapped.npz")
    finally:
        one.write_bytes(contents[0])
        other.write_bytes(contents[1])
    first, batch, swapped = (latents_of(folder, path=str(folder / f"{name}.npz")).open() for name in ("latents", "batch", "swapped"))
    assert same_images(first.spec, swapped.spec) == first.spec
    assert fingerprint(first) == fingerprint(batch) != fingerprint(swapped)


def test_pieces_of_a_call_that_was_killed_at_its_end_are_removed(folder: Path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pieces, "remove_all", lambda self: None)
        encoded(folder, "killed.npz")
    assert list(folder.glob(".killed.npz.partial-*"))
    assert encoded(folder, "killed.npz").already
    assert not list(folder.glob(".killed.npz.partial-*"))


def test_pieces_of_another_call_that_was_cut_short_are_removed_and_nothing_else(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*given: Any, **named: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(latent_data, "_write", full)
        with pytest.raises(DataError, match=r"cannot write .*other\.npz: No space left on device .*; what was encoded is kept"):
            encoded(folder, "other.npz")
    assert [path.name.rpartition("-")[0] for path in folder.glob(".other.npz*")] == [".other.npz.partial"]
    (folder / ".other.npz.partial-notes").mkdir()
    assert not encoded(folder, "other.npz", validation_fraction=0.5).already
    assert [path.name for path in folder.glob(".other.npz*")] == [".other.npz.partial-notes"]


def test_an_interrupted_call_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch):
    calls: list[int] = []
    posterior = KLAutoencoder.posterior

    def counted(self: KLAutoencoder, images: torch.Tensor) -> Any:
        if len(images) > 1:
            calls.append(len(images))
            if len(calls) == 4:
                raise KeyboardInterrupt
        return posterior(self, images)

    monkeypatch.setattr(KLAutoencoder, "posterior", counted)
    with pytest.raises(Stopped, match="what was encoded is kept"):
        encoded(folder, "stopped.npz", batch_size=8)
    assert not (folder / "stopped.npz").exists()
    encoded(folder, "stopped.npz", batch_size=8)
    assert len(calls) == 4 + 2 * 2, "a piece of two passes was there, two are made"
    whole, taken_up = (read_npz(folder / name) for name in ("latents.npz", "stopped.npz"))
    for name, array in whole.items():
        if name != "latents":
            np.testing.assert_allclose(taken_up[name], array, atol=1e-5)
    assert not list(folder.glob(".stopped*"))


def test_images_of_another_size_and_other_runs(folder: Path):
    assert encoded(folder, "small.npz", image_size=8).shape == (2, 4, 4)
    with pytest.raises(ConfigError, match="image_size: got 3 channels and 9x9 pixels, expected 3 channels and sides of multiples of 2"):
        encoded(folder, "odd.npz", image_size=9)
    with pytest.raises(ConfigError, match="out: .*ends with .npz"):
        encoded(folder, "latents.npy")
    np.savez(folder / "mine.npz", images=np.zeros(3))
    before = (folder / "mine.npz").read_bytes()
    said = "cannot write .*mine.npz: it is there, and is no file of latents that a run learns; choose another --out, or remove it"
    with pytest.raises(DataError, match=said):
        encoded(folder, "mine.npz")
    assert (folder / "mine.npz").read_bytes() == before


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]):
    words = ["data", "encode", str(folder / "images"), "--with", str(folder / "kl"), "--device", "cpu"]
    assert main([*words, "--out", str(folder / "command.npz"), "--flip", "False", "--labels", "none"]) == 0
    said = capsys.readouterr().out
    assert "24 images as latents of 8x8x2 (deviations " in said and "command.npz" in said
    assert set(read_npz(folder / "command.npz")) == {"latents", "held_out", "mean", "std"}
    assert main([*words, "--out", str(folder / "none-out.npz"), "--validation-fraction", "0", "--flip", "False"]) == 0
    assert not read_npz(folder / "none-out.npz")["held_out"].any()
    capsys.readouterr()
    for given, problem in (
        (words, "--out: missing; usage: triptych data encode IMAGES"),
        ([*words[:3], "--out", "x.npz"], "--with: missing"),
        ([*words[:4], str(folder / "none"), "--out", "x.npz"], "none"),
        ([*words, "--out", str(folder / "odd.npz"), "--image-size", "9"], "--image-size: got 3 channels and 9x9 pixels"),
        (
            [*words, "--out", str(folder / "large.npz"), "--image-size", "32"],
            "lower --image-size, or set --enlarge to true",
        ),
        ([*words[:2], f"{folder}/images/a", *words[3:], "--out", "x.npz", "--labels", "folder"], "set --labels to"),
        ([*words, "--out", "x.npz", "--validation-fraction", "1"], "--validation-fraction: got 1.0, expected 0 or more and below 1"),
        ([*words[:2], str(folder / "command.npz"), *words[3:], "--out", str(folder / "twice.npz")], "command.npz: holds latents already"),
        ([*words[:4], f"{folder}/kl/checkpoints/16", "--checkpoint", "8", "--out", "x.npz"], "--checkpoint: got one beside"),
        ([*words[:4], f"{folder}/kl/checkpoints/99", "--out", str(folder / "none.npz")], "99"),
    ):
        assert main(given) == 2
        assert problem in capsys.readouterr().err, given


def test_a_checkpoint_small_images_and_bad_ones_by_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    images = shutil.copytree(folder / "images", tmp_path / "images")
    (images / "a/000.png").write_bytes(b"no image")
    words = ["data", "encode", str(images), "--with", f"{folder}/kl/checkpoints/16", "--device", "cpu", "--out", str(tmp_path / "made.npz")]
    assert main([*words, "--image-size", "32", "--enlarge", "True"]) == 2
    assert "or set --on-error to skip" in capsys.readouterr().err
    assert main([*words, "--image-size", "32", "--enlarge", "True", "--on-error", "skip"]) == 0
    said = capsys.readouterr()
    assert "23 images as latents of 16x16x2" in said.out and "is left out: a/000.png" in said.err
    assert read_stamp(tmp_path / "made.npz").latents.checkpoint == 16


# As data --------------------------------------------------------------------------------------------------------------


def test_samples_are_normalised_draws_that_depend_on_their_position_alone(folder: Path):
    data, arrays = latents_of(folder).open(), read_npz(folder / "latents.npz")
    spec = data.spec.latents
    assert spec is not None and isinstance(data.train, LatentImages)
    assert (data.spec.height_and_width, data.spec.channels, data.spec.class_names) == ((8, 8), 2, ("a", "b"))
    assert (data.spec.pictured.height_and_width, data.spec.pictured.channels) == ((SIDE, SIDE), 3)
    items, positions = np.array([3, 0, 3, 5]), np.array([7, 2**33, 11, 12])
    made = data.train.batch(items, positions, seed=5)
    noise = Rng(5, ("data", "latents"), torch.from_numpy(positions)).normal("z", 2, 8, 8).numpy()
    mirrored = []
    for k, item in enumerate(items):
        options = []
        for prefix in ("", "mirrored_"):
            drawn = arrays[f"{prefix}mean"][item] + arrays[f"{prefix}std"][item] * noise[k]
            options.append((drawn - np.array(spec.mean)[:, None, None]) / np.array(spec.std)[:, None, None] * 0.5)
        near = [np.abs(made.images[k] - option).max() < 1e-5 for option in options]
        assert sum(near) == 1
        mirrored.append(near[1])
    images = DataConfig(path=str(folder / "images"), image_size=SIDE, validation_fraction=0.25).open().train
    plain, varied = images.batch(items), images.batch(items, positions, seed=5)
    assert mirrored == [not np.array_equal(a, b) for a, b in zip(plain.images, varied.images, strict=True)], "as the images are mirrored"
    assert set(mirrored) == {False, True}
    assert np.array_equal(made.labels, plain.labels)
    alone = data.train.batch(items[2:3], positions[2:3], seed=5)
    assert np.array_equal(alone.images[0], made.images[2]) and not np.array_equal(made.images[0], made.images[2])


def test_held_out_latents_are_always_the_same_and_the_batch_is_as_a_model_takes_it(folder: Path):
    data = latents_of(folder, latent_std=1.0).open()
    assert data.validation is not None and len(data.train) + len(data.validation) == COUNT
    first, second = (data.validation.batch(np.arange(2)).images for _ in range(2))
    assert np.array_equal(first, second) and first.dtype == np.float32
    batch = next(Loader(data.train, batch_size=8, seed=0, workers=0).batches(0)).to("cpu")
    assert batch.images.shape == (8, 2, 8, 8) and batch.images.dtype == torch.float32
    many = data.train.batch(np.arange(len(data.train)).repeat(20), np.arange(20 * len(data.train))).images
    np.testing.assert_allclose(many.std((0, 2, 3)), 1.0, rtol=0.1)
    np.testing.assert_allclose(many.mean((0, 2, 3)), 0.0, atol=0.1)
    assert latents_of(folder, validation_fraction=0.0).open().validation is None


def test_normalised_and_restored_are_inverse(float64):
    spec = LatentSpec(autoencoder="x", checkpoint=0, weights="raw", sha256="", image_size=8, channels=3, mean=(1.0, -2.0), std=(0.5, 4.0))
    latents = torch.randn(3, 2, 4, 4)
    samples = spec.normalised(latents)
    torch.testing.assert_close(samples[:, 1], (latents[:, 1] + 2) / 4 * 0.5)
    torch.testing.assert_close(spec.restored(samples), latents)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"image_size": 32}, "data.image_size: got 32, but latents.npz keeps latents of images of 16 pixels; set it to that"),
        ({"channels": 1}, "data.channels: got 1, but the images of latents.npz have 3"),
        ({"crop": "random"}, "data.crop: got 'random', .* prepared when they were encoded; set it to 'center'"),
        ({"augment": "shift"}, "data.augment: got 'shift'"),
        ({"jitter": 0.1}, "data.jitter: got 0.1"),
        ({"labels": "prefix"}, "data.labels: got 'prefix'"),
        ({"path": "plain", "flip": True}, "data.flip: got true, but plain.npz has no mirrored images; encode them with --flip True"),
        ({"validation_fraction": 0.4}, r"fraction: got 0.4, but \d of 24 images of latents.npz were held out when they were encoded"),
    ],
)
def test_settings_that_latents_do_not_have_are_refused(folder: Path, settings: dict[str, Any], said: str):
    if settings.get("path") == "plain":
        (folder / "plain.npz").unlink(missing_ok=True)
        encoded(folder, "plain.npz", flip=False)
        settings = settings | {"path": str(folder / "plain.npz")}
    with pytest.raises(ConfigError, match=said):
        latents_of(folder, **settings).open()


def test_what_says_how_files_are_read_may_be_as_of_images(folder: Path):
    """As in recipes for photographs, which decode at a reduced size."""
    assert len(latents_of(folder, decode="reduced").open().train) > 0


def test_runs_whose_fingerprint_left_out_what_latents_are_of_are_not_warned(folder: Path):
    def noted(images: str) -> Any:
        return SimpleNamespace(images=images)

    data = latents_of(folder).open()
    now, before, other = fingerprint(data), fingerprint(replace(data, contents="")), fingerprint(replace(data, contents="x"))
    assert data.contents and len({now, before, other}) == 3
    for known, whether in ((before, True), (now, False), (other, False)):
        assert _known_without_contents(noted(known), data, open_world("cpu")) == whether
    assert not _known_without_contents(noted(before), replace(data, contents=""), open_world("cpu"))


def test_damaged_files_and_latents_where_images_are_wanted_are_refused(folder: Path, tmp_path: Path):
    arrays = read_npz(folder / "latents.npz")
    for change, said in (
        ({"mean": arrays["mean"][:3]}, "expected float32|do not belong together"),
        ({"held_out": arrays["held_out"][:3]}, "do not belong together"),
        ({"labels": arrays["labels"] + 1}, "do not belong together"),
        ({"labels": arrays["labels"] - 1}, "do not belong together"),
        ({"labels": arrays["labels"].astype(np.float32)}, "do not belong together"),
        ({"mean": arrays["mean"].astype(np.float64)}, "mean is float64"),
        ({"latents": np.array("{")}, "damaged, or of another version"),
        ({"latents": np.array('{"latents": {}}')}, "damaged, or of another version"),
    ):
        np.savez(tmp_path / "broken.npz", **(arrays | change))
        with pytest.raises(DataError, match=said):
            latents_of(folder, path=str(tmp_path / "broken.npz")).open()
    with pytest.raises(DataError, match="holds latents, and images are wanted here"):
        open_run(folder / "kl").encode(folder / "latents.npz")
    for settings in ({}, {"image_size": 64}):  # whatever else is asked for
        with pytest.raises(DataError, match=r"latents.npz: holds latents, and a sheet shows images; give images$"):
            show_data(latents_of(folder, **settings), tmp_path / "sheet.png")
        with pytest.raises(DataError, match=r"latents.npz: holds latents, which are packed already; give images$"):
            pack_data(latents_of(folder, **settings), tmp_path / "pack.zip")
    with pytest.raises(DataError, match=r"latents.npz: holds latents that triptych data encode wrote, for triptych train to learn; give"):
        read_latents(folder / "latents.npz")
    with pytest.raises(DataError, match=r"latents.npz: holds latents; init chooses for images"):
        look(folder / "latents.npz")


def test_a_folder_of_images_in_the_place_of_latents_is_told_how_to_encode(folder: Path):
    said = "images: a folder, but latents are learned, which lie in an .npz; triptych data encode .*images --with AUTOENCODER_RUN --out"
    with pytest.raises(DataError, match=said):
        latents_of(folder, path=str(folder / "images"), source="latents").open()


def test_a_start_from_weights_of_other_latents_says_so_first(run: Run):
    assert run.spec.latents is not None
    other = replace(run.spec, latents=replace(run.spec.latents, scaled_to=1.0))
    plain, warned = (initialize_from(outline(run.config, run.spec), run.directory, spec) for spec in (run.spec, other))
    assert len(plain) == 1 and warned[0] == plain[0] and len(warned) == 2
    assert f"warning: {run.directory} learned others (scaled_to 1.0 in place of 0.5); triptych data encode IMAGES" in warned[1]


@pytest.mark.slow
def test_weights_of_other_latents_are_warned_of(folder: Path, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The same latents say nothing; those of another scale, and images, do."""
    config, said = latent_config(folder), list[str]()
    pixels = replace(config, data=DataConfig(path=str(folder / "images"), image_size=8, workers=0))
    for name, start in (("same", config), ("other", replace(config, data=replace(config.data, latent_std=1.0)))):
        train(start, tmp_path / name, init_from=run.directory, device="cpu")
        said += [line for line in (tmp_path / name / "log.txt").read_text().splitlines() if "learned others" in line]
    (line,) = said
    assert f"warning: {run.directory} learned others (scaled_to 1.0 in place of 0.5)" in line
    assert f"triptych data encode IMAGES --with {run.directory} makes latents as it learned them" in line
    train(pixels, tmp_path / "pixels", device="cpu")
    train(config, tmp_path / "from-pixels", init_from=tmp_path / "pixels", device="cpu")
    assert "learned others (latents in place of images)" in (tmp_path / "from-pixels" / "log.txt").read_text()


def test_a_size_that_does_not_fit_says_that_it_is_of_latents(folder: Path, tmp_path: Path):
    config = latent_config(folder).updated({"model": {"network": {"channel_mult": [1, 1, 1, 1, 1, 1], "attention_resolutions": []}}})
    with pytest.raises(
        ConfigError, match=r"latents of images of 16x16 pixels, for which triptych data encode --image-size chooses another"
    ):
        train(config, tmp_path / "run", device="cpu")


def test_a_guide_of_other_latents_is_refused(folder: Path, run: Run, tmp_path: Path):
    other = shutil.copytree(run.directory, tmp_path / "other")
    document = json.loads((other / "config.json").read_text())
    document["spec"]["latents"]["scaled_to"] *= 2
    (other / "config.json").write_text(json.dumps(document))
    settings = replace(run.config.model.sampling, guidance_scale=2.0)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"guide_with: the images of .*other are not those of .*adm \(scaled_to 1\.0 in place of 0\.5\)"):
        run.sample(1, guide_with=other, settings=settings, device="cpu")


def test_images_that_are_gone_are_named_with_what_to_do(folder: Path, run: Run):
    (folder / "images").rename(folder / "gone")
    try:
        with pytest.raises(DataError, match=r"images: does not exist; the latents in .*latents.npz are of the images there: put"):
            run.score(metrics=["frechet"], count=2, device="cpu")
    finally:
        (folder / "gone").rename(folder / "images")


# Runs on them ---------------------------------------------------------------------------------------------------------


def latent_config(root: Path, **train_settings: Any) -> RunConfig:
    recipe = shrunk("adm-digits")
    assert isinstance(recipe.model, ADMConfig)
    model = replace(recipe.model, sampling=replace(recipe.model.sampling, clip=False))
    return replace(recipe, model=model, data=latents_of(root), train=TrainConfig(**({"total_images": 16} | TRAINING | train_settings)))


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return train(latent_config(folder), folder / "adm", device="cpu")


def test_a_latent_run_shows_images(folder: Path, run: Run):
    samples = run.sample(4, seed=1, device="cpu", batch_size=3)
    assert samples.images.shape == (4, SIDE, SIDE, 3) and samples.images.dtype == np.uint8
    model, decoder, spec = run.load(device="cpu"), autoencoder(folder), run.spec.latents
    assert spec is not None
    labels = torch.arange(4) % 2 if model.num_classes else None
    latents = model.sample(Rng(1, ("sample",), torch.arange(4)), labels=labels, settings=model.sampling)  # type: ignore[operator]
    restored = latents / spec.scaled_to * torch.tensor(spec.std)[:, None, None] + torch.tensor(spec.mean)[:, None, None]
    expected = ((decoder.decode([restored.float()]) + 1) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()
    assert np.abs(samples.images.astype(int) - expected).max() <= 1
    grid = np.asarray(Image.open(run.directory / "samples/000000016.png"))
    assert grid.ndim == 3 and grid.shape[0] % (2 * SIDE + 6) == 0, "2 by 2 images of the full size, with white around them"


def test_a_latent_run_is_measured_by_its_images(folder: Path, run: Run):
    made = maker_of(run, ImageRequest(seed=1)).made(run.open(Loading(device="cpu")), 4)
    assert (made.size, made.channels) == ((SIDE, SIDE), 3)
    np.testing.assert_allclose(made.images(range(4)).astype(int), run.sample(4, seed=1, device="cpu").images, atol=1)
    real = model_reference(run)
    assert (real.size, real.channels) == ((SIDE, SIDE), 3)
    stored = DataConfig(path=str(folder / "images"), image_size=SIDE, validation_fraction=0.25).open().train
    assert np.array_equal(real.images([0, 3]), stored.batch(np.array([0, 3])).images)
    assert len(model_reference(run, split="validation")) + len(real) == COUNT


@pytest.mark.slow
def test_a_latent_run_goes_on_and_can_be_guided(folder: Path, run: Run):
    guided = run.sample(2, device="cpu", guide_with=run.directory, settings=replace(run.load(device="cpu").sampling, guidance_scale=2.0))  # type: ignore[arg-type]
    assert guided.images.shape == (2, SIDE, SIDE, 3)
    shutil.copytree(run.directory, folder / "more")
    longer = train(latent_config(folder, total_images=24), folder / "more", device="cpu")
    assert longer.checkpoints()[-1] == 24


def test_an_autoencoder_that_is_not_what_it_was_is_one_line(folder: Path, run: Run, tmp_path: Path):
    spec, world, none = run.spec.latents, open_world("cpu"), RunDirectory(tmp_path)
    assert spec is not None and shown_by(DataSpec(image_size=8, channels=3), world, none)(torch.ones(1, 3, 8, 8)).max() == 255
    for change, said in (
        ({"autoencoder": str(tmp_path / "gone")}, "gone: the autoencoder of the latents is not there; put it back"),
        ({"checkpoint": 8}, "its checkpoint at 8 images, which encoded the latents, is gone"),
        ({"sha256": "0" * 64}, r"its weights \(ema-0.5\) are others than those that encoded the latents"),
    ):
        with pytest.raises(CheckpointError, match=said) as found:
            LatentSpace(replace(spec, **change), world, none)
        assert "\n" not in str(found.value)


def test_a_copy_of_an_autoencoder_that_was_cut_short_is_removed(run: Run, tmp_path: Path):
    left = tmp_path / "autoencoder/checkpoints/.tmp-000000016-1"
    left.mkdir(parents=True)
    assert run.spec.latents is not None and keep_autoencoder(run.spec.latents, RunDirectory(tmp_path)) == []
    assert [path.name for path in left.parent.iterdir()] == ["000000016"]


def test_a_plan_counts_the_copy_of_an_autoencoder_until_it_is_there(run: Run, tmp_path: Path):
    assert run.spec.latents is not None
    assert copy_bytes(run.spec.latents, RunDirectory(run.directory)) == 0 < copy_bytes(run.spec.latents, RunDirectory(tmp_path))


@pytest.mark.parametrize("other", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_plan_draws_by_the_copy_of_an_autoencoder_that_is_gone(
    folder: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: bool
):
    """And where there is none it refuses before anything is measured."""
    monkeypatch.setattr(planning, "measured_apart", None)
    monkeypatch.setattr(plan_probe, "_LOADER_SECONDS", 0.0)
    (folder / "kl").rename(folder / "kl-gone")
    try:
        found = measure(Task(run.config.to_dict(), "cpu", (2,), None, 0.0, other, str(run.directory)))
        with pytest.raises(CheckpointError, match="kl: the autoencoder of the latents is not there; put it back"):
            planning.plan(latent_config(folder), directory=tmp_path / "new", device="cpu")
    finally:
        (folder / "kl-gone").rename(folder / "kl")
    assert len(found["seconds"]) == 1 and (found["grid_seconds"] > 0 if other else "grid_seconds" not in found)


def moved(run: Run, place: Path, *, autoencoder: Path, copy: bool = True) -> Path:
    """The run's folder alone at another place, told that the autoencoder is elsewhere."""
    shutil.copytree(run.directory, place, ignore=None if copy else shutil.ignore_patterns("autoencoder"))
    document = json.loads((place / "config.json").read_text())
    document["spec"]["latents"]["autoencoder"] = str(autoencoder)
    (place / "config.json").write_text(json.dumps(document))
    return place


@pytest.mark.slow
def test_a_latent_run_has_its_autoencoder_with_it(folder: Path, run: Run, tmp_path: Path):
    place = moved(run, tmp_path / "alone", autoencoder=tmp_path / "gone")
    assert np.array_equal(open_run(place).sample(3, device="cpu").images, run.sample(3, device="cpu").images)
    assert train(latent_config(folder, total_images=24), place, device="cpu").checkpoints()[-1] == 24
    kept = place / "autoencoder/checkpoints/000000016"
    assert sorted(path.name for path in kept.iterdir()) == ["model.safetensors", "state.json"], "the weights that encoded, and no others"
    assert run.spec.latents is not None
    planned = copy_bytes(run.spec.latents, RunDirectory(tmp_path / "a new run"))
    assert planned <= (kept / "model.safetensors").stat().st_size < planned + 20_000  # a header, beside the tensors
    assert copy_bytes(run.spec.latents, RunDirectory(place)) == 0, "it is there"
    (kept / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="autoencoder/checkpoints/000000016/model.safetensors"):
        open_run(place).sample(1, device="cpu")
    bare = moved(run, tmp_path / "bare", autoencoder=tmp_path / "gone", copy=False)
    with pytest.raises(CheckpointError, match=r"gone: the autoencoder of the latents is not there; put it back, or write where it is into"):
        open_run(bare).sample(1, device="cpu")
    longer = train(latent_config(folder, total_images=24, sample_count=0), bare, device="cpu")
    assert "warning: no copy of the autoencoder is kept in the run" in (longer.directory / "log.txt").read_text()


def test_a_copy_of_another_autoencoder_does_not_decode(run: Run, tmp_path: Path):
    place = moved(run, tmp_path / "alone", autoencoder=tmp_path / "gone")
    document = json.loads((place / "config.json").read_text())
    document["spec"]["latents"]["sha256"] = "0" * 64
    (place / "config.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match="gone: the autoencoder of the latents is not there"):
        open_run(place).sample(1, device="cpu")


def test_a_run_goes_on_where_its_autoencoder_was_moved_to(folder: Path, run: Run, tmp_path: Path):
    shutil.copytree(folder / "kl", tmp_path / "kl")
    place = moved(run, tmp_path / "run", autoencoder=tmp_path / "kl", copy=False)
    longer = train(latent_config(folder, total_images=24), place, device="cpu")
    assert longer.spec.latents is not None and longer.spec.latents.autoencoder == str(tmp_path / "kl"), "not where the file says it was"
    assert (place / "autoencoder/config.json").exists()


def test_moments_of_other_sums_are_those_of_the_run_and_others_are_refused(run: Run):
    """As of the same images encoded in batches of another size."""
    latents = run.spec.latents
    assert latents is not None

    def moved_by(share: float) -> DataSpec:
        mean = tuple(value + share * std for value, std in zip(latents.mean, latents.std, strict=True))
        return replace(run.spec, latents=replace(latents, autoencoder="elsewhere", mean=mean))

    assert same_images(run.spec, moved_by(1e-8)) == run.spec
    with pytest.raises(ConfigError, match=r"^data: the images are not those of this run \(mean "):
        same_images(run.spec, moved_by(1e-5))


def test_latents_by_another_autoencoder_are_refused(folder: Path, run: Run, tmp_path: Path):
    place = moved(run, tmp_path / "run", autoencoder=folder / "kl")
    encoded(folder, "raw.npz", weights="raw")
    config = latent_config(folder, total_images=24)
    config = replace(config, data=replace(config.data, path=str(folder / "raw.npz")))
    with pytest.raises(
        ConfigError, match=r"data: the images are not those of this run \(weights model in place of ema-0.5, sha256 \w{12} in place of"
    ):
        train(config, place, device="cpu")
    document = json.loads((place / "config.json").read_text())
    document["data"]["path"] = str(folder / "raw.npz")
    (place / "config.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match="no longer the latents of this run .*sha256"):
        model_reference(open_run(place))


def test_a_new_run_that_could_not_decode_is_refused_before_anything_is_written(folder: Path, tmp_path: Path):
    shutil.copytree(folder / "kl", tmp_path / "kl")
    encode_data(folder / "images", open_run(tmp_path / "kl"), tmp_path / "latents.npz", device="cpu")
    shutil.rmtree(tmp_path / "kl")
    config = latent_config(folder)
    with pytest.raises(CheckpointError, match="kl: the autoencoder of the latents is not there; put it back, or encode the images again"):
        train(replace(config, data=replace(config.data, path=str(tmp_path / "latents.npz"))), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_clipped_samples_of_latents_are_refused(folder: Path, tmp_path: Path):
    config = latent_config(folder)
    assert isinstance(config.model, ADMConfig)
    clipped = replace(config, model=replace(config.model, sampling=replace(config.model.sampling, clip=True)))
    with pytest.raises(ConfigError, match="model.sampling.clip: got true, but the samples are latents"):
        train(clipped, tmp_path / "run", device="cpu")


@pytest.mark.parametrize("recipe", ["r3gan-digits", "stylegan2-digits", "glow-mnist", "upsample-digits"])
def test_models_of_images_within_bounds_are_refused(folder: Path, tmp_path: Path, recipe: str):
    config = replace(latent_config(folder), model=replace(shrunk(recipe).model, class_conditional=False))
    with pytest.raises(ConfigError, match="data.path: got latents, but this model makes images within"):
        train(config, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_images_go_to_noise_and_back_by_way_of_the_latents(folder: Path, run: Run):
    coder = run.coder(settings=EncodingConfig(steps=50), device="cpu")
    images = np.stack([np.asarray(Image.open(path)) for path in sorted((folder / "images/a").glob("*.png"))[:2]])
    latents = coder.encode(images, labels=[0, 0] if run.outline.num_classes else None)
    assert latents.arrays[0].shape == (2, 2, 8, 8)
    decoder = autoencoder(folder)
    mean = decoder.posterior(torch.from_numpy(images).permute(0, 3, 1, 2) / 127.5 - 1).mean
    through = ((decoder.decode([mean]) + 1) * 127.5).round().permute(0, 2, 3, 1).numpy()
    assert np.abs(coder.decode(latents).images - through).mean() < 4, "the way there and back of DDIM"
    assert np.abs(through[0] - through[1]).mean() > 4


@pytest.mark.slow
def test_a_run_without_latents_of_images_does_not_encode(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = latent_config(folder)
    data = replace(config.data, path=str(folder / "images"), image_size=8)
    train(replace(config, data=data), tmp_path / "images", device="cpu")
    words = ["data", "encode", str(folder / "images"), "--with", str(tmp_path / "images"), "--out", str(tmp_path / "x.npz")]
    assert main([*words, "--device", "cpu"]) == 2
    assert "error: --with: got " in (said := capsys.readouterr().err) and "a run of ADM, which has no latents of images" in said


def test_bits_per_dim_of_latents_are_refused(run: Run):
    with pytest.raises(ConfigError, match="bits-per-dim, which are of images, but this run learns latents"):
        run.evaluate()
