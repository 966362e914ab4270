"""Run.upsample: where small images come from, what becomes of their labels, and what is refused."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from tests.contract.shrink import BATCH, shrunk
from triptych.cli.main import main
from triptych.core.batch import DataSpec, RawBatch
from triptych.core.errors import ConfigError, DataError
from triptych.core.images import to_uint8
from triptych.core.rng import Rng
from triptych.recipes.config import RunConfig
from triptych.runs import Run, sampling, train
from triptych.runs.given.classes import renumbered

SMALL = 4


def config(recipe: str = "upsample-digits", **changes: Any) -> RunConfig:
    """The recipe, shrunk, for one step of training; `changes` by section."""
    return shrunk(recipe).updated({"train": {"total_images": BATCH}}).updated(changes)


def pixels(count: int = 7, *, size: int = SMALL) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 1), dtype=np.uint8)


@pytest.fixture(scope="module")
def upsampler(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(config(), tmp_path_factory.mktemp("runs") / "upsampler", device="cpu")


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(
        config(model={"class_conditional": False}, data={"labels": "none"}), tmp_path_factory.mktemp("runs") / "unlabelled", device="cpu"
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(config("adm-digits", data={"image_size": SMALL}), tmp_path_factory.mktemp("runs") / "base", device="cpu")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven labelled images in an .npz."""
    path = tmp_path_factory.mktemp("small") / "small.npz"
    np.savez(path, arr_0=pixels(), arr_1=np.arange(7))
    return path


def close(made: np.ndarray, other: np.ndarray) -> bool:
    return made.shape == other.shape and np.abs(made.astype(int) - other.astype(int)).max() <= 1


def test_all_images_of_a_file_with_their_labels(upsampler: Run, small: Path) -> None:
    made = upsampler.upsample(small, seed=3, device="cpu")
    assert made.images.shape == (7, 8, 8, 1) and made.images.dtype == np.uint8
    assert made.labels is not None and made.labels.tolist() == list(range(7))
    model = upsampler.load(device="cpu")
    batch = RawBatch(torch.from_numpy(pixels()), torch.arange(7), torch.arange(7)).to("cpu")
    direct = model.upsample(batch, Rng(3, ("upsample",), batch.index), settings=model.sampling)  # type: ignore[operator]
    assert close(made.images, to_uint8(direct).numpy())
    assert not np.array_equal(upsampler.upsample(small, seed=4, device="cpu").images, made.images)


@pytest.mark.slow
def test_image_k_is_the_same_in_any_batch_and_count(upsampler: Run, small: Path) -> None:
    whole = upsampler.upsample(small, device="cpu")
    assert close(upsampler.upsample(small, batch_size=2, device="cpu").images, whole.images)
    first = upsampler.upsample(small, count=3, device="cpu")
    assert close(first.images, whole.images[:3]) and first.labels is not None and first.labels.tolist() == [0, 1, 2]


def test_an_array_and_labels_in_turn(upsampler: Run, small: Path) -> None:
    made = upsampler.upsample(pixels(), labels=[0, 1, 2, 3, 4, 5, 6], device="cpu")
    assert close(made.images, upsampler.upsample(small, device="cpu").images)
    made = upsampler.upsample(small, labels=["9", 3], device="cpu")
    assert made.labels is not None and made.labels.tolist() == [9, 3, 9, 3, 9, 3, 9]


def write_pictures(folder: Path, names: list[str], *, size: int = SMALL) -> np.ndarray:
    images = pixels(len(names), size=size)
    for name, image in zip(names, images, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(folder / name)
    return images


def test_a_folder_or_zip_has_classes_by_name(upsampler: Run, tmp_path: Path) -> None:
    names = ["3/a.png", "7/b.png", "7/c.png"]
    images = write_pictures(tmp_path / "pictures", names)
    made = upsampler.upsample(tmp_path / "pictures", device="cpu")
    assert made.labels is not None and made.labels.tolist() == [3, 7, 7]  # not 0, 1, 1: the numbers of this folder's own classes
    assert close(made.images, upsampler.upsample(images, labels=[3, 7, 7], device="cpu").images)
    with zipfile.ZipFile(tmp_path / "pictures.zip", "w") as archive:
        for name in names:
            archive.write(tmp_path / "pictures" / name, name)
    assert close(upsampler.upsample(tmp_path / "pictures.zip", device="cpu").images, made.images)
    write_pictures(tmp_path / "others", ["3/a.png", "cat/b.png"])
    with pytest.raises(DataError, match='others: class "cat" is none of this model\'s'):
        upsampler.upsample(tmp_path / "others", device="cpu")


def test_larger_pictures_are_cut_and_smaller_ones_named(upsampler: Run, tmp_path: Path) -> None:
    write_pictures(tmp_path / "large", ["a.png", "b.png"], size=11)
    assert upsampler.upsample(tmp_path / "large", labels=[1], device="cpu").images.shape == (2, 8, 8, 1)
    write_pictures(tmp_path / "tiny", ["b.png"], size=3)
    with pytest.raises(DataError, match=r"tiny/b\.png: 3x3 pixels, expected at least 4x4$"):
        upsampler.upsample(tmp_path / "tiny", labels=[1], device="cpu")


@pytest.mark.slow
def test_a_base_run_draws_the_small_images(upsampler: Run, base: Run, tmp_path: Path) -> None:
    made = upsampler.upsample(base.directory, count=5, seed=2, labels=[7, 3], device="cpu")
    assert made.labels is not None and made.labels.tolist() == [7, 3, 7, 3, 7]
    base.sample(5, seed=2, labels=[7, 3], device="cpu", out=tmp_path / "small.npz")
    # One level of a small pixel, by the order of floating-point sums, is a few of a large one in a network that has hardly been trained.
    other = upsampler.upsample(tmp_path / "small.npz", seed=2, device="cpu")
    assert np.abs(made.images.astype(int) - other.images).max() <= 4 and np.array_equal(made.labels, other.labels)  # type: ignore[arg-type]
    parts = upsampler.upsample(base.directory, count=5, seed=2, labels=[7, 3], batch_size=2, device="cpu")
    assert np.abs(made.images.astype(int) - parts.images).max() <= 4
    assert upsampler.inputs(base.directory).count == 64


def test_the_base_and_the_upsampler_do_not_share_noise(upsampler: Run, base: Run) -> None:
    streams = []
    normal = Rng.normal

    def spy(self: Rng, name: str, *shape: int) -> torch.Tensor:
        streams.append((self.stream, name))
        return normal(self, name, *shape)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rng, "normal", spy)
        upsampler.upsample(base.directory, count=2, device="cpu")
    assert (("sample",), "initial") in streams and (("upsample",), "initial") in streams
    assert len(streams) == len(set(streams))
    with pytest.raises(ConfigError, match="count: got 0, expected a whole number from 1 on"):
        upsampler.upsample(base.directory, count=0, device="cpu")


@pytest.mark.slow
def test_labels_where_only_one_of_the_two_knows_classes(upsampler: Run, unlabelled: Run, base: Run, small: Path, tmp_path: Path) -> None:
    kept = unlabelled.upsample(small, device="cpu")
    assert kept.labels is not None and kept.labels.tolist() == list(range(7))  # not used, but not lost
    assert unlabelled.upsample(pixels(), device="cpu").labels is None
    drawn = unlabelled.upsample(base.directory, count=3, labels=[5], device="cpu")
    assert drawn.labels is not None and drawn.labels.tolist() == [5, 5, 5]
    with pytest.raises(ConfigError, match="labels: this run's model was trained without labels"):
        unlabelled.upsample(small, labels=[1], device="cpu")
    changes = {"model": {"class_conditional": False}, "data": {"image_size": SMALL, "labels": "none"}}
    plain = train(config("adm-digits", **changes), tmp_path / "plain", device="cpu")
    with pytest.raises(ConfigError, match="labels: .*plain draws images without labels, but this model needs them; give some"):
        upsampler.upsample(plain.directory, count=2, device="cpu")
    given = upsampler.upsample(plain.directory, count=2, labels=[8], device="cpu")
    assert given.labels is not None and given.labels.tolist() == [8, 8]


@pytest.mark.slow
def test_an_interrupted_translation_goes_on(upsampler: Run, small: Path, tmp_path: Path) -> None:
    def stop(*_: float) -> None:
        if len(list(tmp_path.glob(".a.npz.partial-*/[0-9]*.npz"))) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        upsampler.upsample(small, batch_size=2, device="cpu", out=tmp_path / "a.npz", progress=stop)
    drawn: list[tuple[float, float]] = []
    upsampler.upsample(small, batch_size=2, device="cpu", out=tmp_path / "a.npz", progress=lambda *now: drawn.append(now))
    assert drawn[0] == (4, 7) and drawn[-1] == (7, 7)
    with np.load(tmp_path / "a.npz") as arrays:
        assert close(arrays["arr_0"], upsampler.upsample(small, device="cpu").images) and arrays["arr_1"].tolist() == list(range(7))
    with pytest.raises(KeyboardInterrupt):
        upsampler.upsample(small, batch_size=2, device="cpu", out=tmp_path / "a.npz", progress=stop)
    drawn.clear()
    upsampler.upsample(
        pixels()[::-1], labels=[0], batch_size=7, device="cpu", out=tmp_path / "a.npz", progress=lambda *now: drawn.append(now)
    )
    assert drawn[0] == (0, 7) and drawn[-1] == (7, 7)  # pieces of other images are not taken up


@pytest.mark.slow
def test_what_does_not_fit_is_refused(upsampler: Run, base: Run, small: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "large.npz", arr_0=pixels(size=5))
    np.savez(tmp_path / "classes.npz", arr_0=pixels(), arr_1=np.arange(7) + 5)
    np.save(tmp_path / "plain.npy", pixels())
    cases: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (tmp_path / "large.npz", {}, DataError, r"large\.npz: images of 5x5 pixels, expected 4x4"),
        (tmp_path / "classes.npz", {}, DataError, r"classes\.npz: holds class 11, expected 0 to 9"),
        (tmp_path / "plain.npy", {}, ConfigError, r"labels: .*plain\.npy has none, but this model needs one for each image, from 0 to 9"),
        (tmp_path / "nothing", {}, DataError, "nothing: does not exist; expected a run, or a folder"),
        (pixels().astype(np.float32), {}, DataError, r"the array\[0\]: float32 of shape .*, expected uint8"),
        (upsampler.directory, {}, ConfigError, "model: SuperResolution makes images from images of 4 pixels; give some by --base"),
        (small, {"count": 8}, ConfigError, "count: got 8, expected 1 to 7"),
        (small, {"count": 0}, ConfigError, "count: got 0"),
        (small, {"count": 1.5}, ConfigError, "count: got 1.5, expected a whole number"),
        (small, {"seed": -1}, ConfigError, "seed: got -1, expected a whole number from 0 on"),
        (small, {"settings": 3}, ConfigError, "settings: int are not the settings wanted here"),
        (small, {"out": ""}, ConfigError, "out: got '', expected a path"),
        ("", {}, ConfigError, "images: got '', expected a path"),
        (3, {}, ConfigError, "images: got 3, expected a path"),
        (small, {"batch_size": 0}, ConfigError, "batch_size: got 0"),
        (small, {"labels": [10]}, ConfigError, "labels: got 10, expected 0 to 9"),
    ]
    for images, named, error, message in cases:
        with pytest.raises(error, match=message):
            upsampler.upsample(images, device="cpu", **named)
    with pytest.raises(ConfigError, match="model: ADM takes no images; leave out --base"):
        base.upsample(small, device="cpu")
    with pytest.raises(ConfigError, match="model: SuperResolution makes images from images of 4 pixels"):
        upsampler.sample(2, device="cpu")
    write_pictures(tmp_path / "pictures", ["3_0.png"])
    before = small.read_bytes()
    assert main(["sample", str(upsampler.directory), "--base", str(small), "--out", str(small), "--device", "cpu"]) == 2
    assert small.read_bytes() == before
    for images, out, why in (
        (small, small, "it is the file that is read"),
        (tmp_path / "pictures", tmp_path / "pictures", "it lies in .*pictures, which is read"),
        (tmp_path / "pictures", tmp_path / "pictures/more", "it lies in .*pictures, which is read"),
    ):
        with pytest.raises(DataError, match=f"cannot write .*: {why}; choose another --out"):
            upsampler.upsample(images, labels=[3], out=out, device="cpu")
    larger = train(config("adm-digits"), tmp_path / "larger", device="cpu")
    with pytest.raises(DataError, match="larger: draws grey images of 8 pixels, expected grey ones of 4"):
        upsampler.inputs(larger.directory)


def spec(names: str | None, count: int) -> DataSpec:
    return DataSpec(image_size=4, channels=3, num_classes=count, class_names=None if names is None else tuple(names.split()))


def test_classes_go_by_name() -> None:
    ours = spec("bird cat dog", 3)
    assert renumbered(spec("bird cat dog", 3), ours, name="X").tolist() == [0, 1, 2]
    assert renumbered(spec("dog bird cat", 3), ours, name="X").tolist() == [2, 0, 1]
    assert renumbered(spec("cat dog", 2), ours, name="X", some=True).tolist() == [1, 2]
    for nameless in (spec(None, 3), spec("0 1 2", 3)):
        assert renumbered(nameless, ours, name="X").tolist() == renumbered(ours, nameless, name="X").tolist() == [0, 1, 2]
    with pytest.raises(DataError, match='X: class "dot" is none of this model\'s; did you mean "dog"'):
        renumbered(spec("bird cat dot", 3), ours, name="X")
    with pytest.raises(DataError, match="X: has 2 classes, this model 3; they have to be the same"):
        renumbered(spec("cat dog", 2), ours, name="X")
    thousand = spec(" ".join(map(str, range(1000))), 1000)
    with pytest.raises(DataError, match="X: has 10 classes, this model 1000; they have to be the same"):
        renumbered(spec(" ".join(map(str, range(10))), 10), thousand, name="X")


def test_training_shows_what_becomes_of_held_out_images(tmp_path: Path) -> None:
    run = train(config(train={"sample_count": 20, "sample_every": BATCH}), tmp_path / "run", device="cpu")
    (path,) = (run.directory / "samples").glob("*.png")
    with Image.open(path) as picture:
        sheet = np.asarray(picture)
    data = run.config.data.open()
    assert data.validation is not None
    originals = data.validation.batch(np.arange(20)).images
    scale = 6  # cells of 48 pixels
    assert sheet.shape == ((6 * 10 + 2) * scale, (16 * 10 + 2) * scale)
    cells = sheet[::scale, ::scale]

    def cell(row: int, column: int) -> np.ndarray:
        return cells[2 + 10 * row : 10 + 10 * row, 2 + 10 * column : 10 + 10 * column]

    assert np.array_equal(cell(2, 1), originals[1, ..., 0]) and np.array_equal(cell(5, 3), originals[19, ..., 0])
    assert (cell(5, 4) == 255).all()
    tiny = F.interpolate(torch.from_numpy(originals[17]).permute(2, 0, 1)[None].float(), size=SMALL, mode="area")[0, 0].numpy()
    assert np.abs(cell(3, 1)[::2, ::2] - tiny).max() <= 0.5 and np.array_equal(cell(3, 1)[::2], cell(3, 1)[1::2])
    made = cell(4, 1)
    assert made.std() > 0 and not np.array_equal(made, originals[17, ..., 0])


def test_all_processes_open_the_same_checkpoint(upsampler: Run, together: type[Exception]) -> None:
    with pytest.raises(together):
        upsampler.upsample(pixels(), labels=[3], device="cpu")


def test_a_base_that_draws_latents_is_refused(upsampler: Run, base: Run, tmp_path: Path) -> None:
    """As one that was imported without its autoencoder."""
    place = shutil.copytree(base.directory, tmp_path / "latents")
    document = json.loads((place / "config.json").read_text())
    document["spec"]["channels"] = 4
    (place / "config.json").write_text(json.dumps(document))
    message = "model: .*latents makes latents of 4 channels, and was imported without their autoencoder; import it again with --autoencoder"
    with pytest.raises(ConfigError, match=message):
        upsampler.inputs(place)


def test_more_images_of_a_base_than_the_memory_holds_are_refused(upsampler: Run, base: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "available_memory", lambda: 10 * 8 * 8)
    with pytest.raises(ConfigError, match="count: got 11, but so many images of 8x8 pixels"):
        upsampler.upsample(base.directory, count=11, device="cpu")
