"""Collections: whatever a user brings is read one by one, alike, and named where it cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import encoded, picture, write_idx, write_tar, write_zip
from tests.data.records import write_shards
from tests.runs.glow import folder
from triptych.core.batch import InputSpec
from triptych.core.errors import ConfigError, DataError
from triptych.data.config import ClassesFrom
from triptych.data.made import STAMP, mark
from triptych.runs.given.collection import Collection, ImagesLike, open_collection, open_squares
from triptych.runs.given.sizes import Proportional

COLOUR = InputSpec(name="images", kind="image", channels=3)
OWN_SIZE = Proportional(None, stride=1, least=1)


def opened(source: ImagesLike, classes: ClassesFrom | None = None) -> Collection:
    return open_collection(source, COLOUR, OWN_SIZE, classes=classes)


def test_items_of_any_size_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [(20, 12), (7, 30), (16, 16), (16, 16), (9, 9)]
    pixels = [picture(*size, seed=k) for k, size in enumerate(sizes)]
    for k, image in enumerate(pixels):
        folder(tmp_path / "images", image[None], [f"{'ab'[k % 2]}/{k}.png"])
    read: list[str] = []
    os_open = os.open

    def noted(path: str | Path, *arguments: int, **named: int) -> int:
        if Path(path).suffix == ".png":
            read.append(Path(path).name)
        return os_open(path, *arguments, **named)

    monkeypatch.setattr(os, "open", noted)
    images = opened(tmp_path / "images", "folder")
    assert len(images) == 5 and images.names == ["a/0", "a/2", "a/4", "b/1", "b/3"] and not read
    assert images.class_names == ("a", "b") and images.labels is not None and images.labels.tolist() == [0, 0, 0, 1, 1]
    assert [images.measure(k)[0] for k in range(5)] == [sizes[k] for k in (0, 2, 4, 1, 3)]
    read.clear()
    assert np.array_equal(images.load(range(1, 2))[0], pixels[2]) and read == ["2.png"]
    assert [images.read(k)[1].shape for k in (0, 3)] == [(12, 20, 3), (30, 7, 3)]
    (tmp_path / "images/b/3.png").write_bytes(b"no image")
    assert np.array_equal(images.load([2])[0], pixels[4])
    with pytest.raises(DataError, match=r"images/b/3\.png: not an image that can be read"):
        images.load(range(3, 5))


def published(root: Path, kind: str, images: np.ndarray) -> Path:
    """A data set of that kind with these images (n, h, w, 3), which have as many classes."""
    root.mkdir()
    if kind == "mnist":
        write_idx(root / "train-images-idx3-ubyte", images[..., 0])
        write_idx(root / "train-labels-idx1-ubyte", np.arange(len(images)))
    elif kind == "cifar10":
        rows = [bytes([k]) + image.transpose(2, 0, 1).tobytes() for k, image in enumerate(images)]
        (root / "data_batch_1.bin").write_bytes(b"".join(rows))
    else:
        write_shards(root / "train", images, bits=5, labels=range(len(images)), shards=1)
    return root


@pytest.mark.parametrize("kind", ["folder", "zip", "tar", "npz", "npy", "list", "mnist", "cifar10", "tfrecord"])
def test_all_that_images_are_stored_in_is_read_alike(kind: str, tmp_path: Path) -> None:
    pixels = np.stack([picture(32, 32, seed=k) for k in range(3)])
    if kind == "mnist":
        pixels = pixels[..., :1].repeat(3, -1)
    source: ImagesLike = folder(tmp_path / "images", pixels, [f"{k}/{k}.png" for k in range(3)])
    if kind in ("zip", "tar"):
        source = (write_zip if kind == "zip" else write_tar)(tmp_path / f"images.{kind}", source)
    elif kind == "npz":
        source = tmp_path / "images.npz"
        np.savez(source, arr_0=pixels, arr_1=np.arange(3))
    elif kind == "npy":
        source = tmp_path / "images.npy"
        np.save(source, pixels)
    elif kind == "list":
        source = list(pixels)
    elif kind != "folder":
        source = published(tmp_path / kind, kind, pixels)
    images = opened(source, "auto")
    assert len(images) == 3 and np.array_equal(images.load(range(3)), pixels) and images.measure(1)[0] == (32, 32)
    expected = None if kind in ("npy", "list") else [0, 1, 2]
    assert (None if images.labels is None else images.labels.tolist()) == expected
    assert opened(source).labels is None and opened(source).origin == images.origin
    stems = {"folder": "{0}/{0}", "zip": "{0}/{0}", "tar": "wrapped/{0}/{0}"}
    assert images.names == [stems.get(kind, "{:06d}").format(k) for k in range(3)]


def test_arrays_of_the_same_bytes_are_others_in_another_form_or_order() -> None:
    pixels = np.stack([picture(8, 4, seed=k) for k in range(2)])
    others = [pixels.reshape(2, 8, 4, 3), pixels[::-1], pixels[:1]]
    assert opened(pixels.copy()).origin == opened(list(pixels)).origin
    assert len({opened(images).origin for images in (pixels, *others)}) == 4
    whole = np.arange(32).reshape(2, 4, 4)
    spec = InputSpec(name="maps", kind="classes", num_classes=32)
    origins = {
        open_collection(maps, spec, OWN_SIZE).origin for maps in (whole.astype(np.uint8), whole.astype(np.int64), whole.reshape(1, 4, 8))
    }
    assert len(origins) == 3


def test_one_file_and_one_published_data_set_do_for_every_verb(tmp_path: Path) -> None:
    pixels = np.stack([picture(32, 32, seed=k) for k in range(3)])
    folder(tmp_path / "images", pixels, ["a.png", "b.png", "c.png"])
    one = open_squares(tmp_path / "images/b.png", side=32, channels=3)
    assert len(one) == 1 and np.array_equal(one.load([0])[0], pixels[1])
    images = published(tmp_path / "cifar", "cifar10", pixels)
    small = open_squares(images, side=16, channels=3)
    with Image.fromarray(pixels[2]) as image:
        assert np.array_equal(small.load([2])[0], np.asarray(image.resize((16, 16), Image.Resampling.BOX)))
    with pytest.raises(DataError, match=r"cifar\[0\]: 32x32 pixels, expected at least 64x64$"):
        open_squares(images, side=64, channels=3)


def test_of_several_resolutions_the_one_that_suffices_is_read(tmp_path: Path) -> None:
    for bits in (3, 4, 5):
        write_shards(tmp_path / "train", [picture(2**bits, 2**bits, seed=bits)], bits=bits, shards=1)
    assert opened(tmp_path).measure(0)[0] == (32, 32)
    assert open_squares(tmp_path, side=8, channels=3).measure(0)[0] == (8, 8)
    assert np.array_equal(open_squares(tmp_path, side=16, channels=3).load([0])[0], picture(16, 16, seed=4))


def test_a_split_folder_gives_its_training_images_where_labels_are_read(tmp_path: Path) -> None:
    names = ["train/a/0.png", "train/b/1.png", "val/a/2.png", "val/b/3.png"]
    folder(tmp_path / "images", np.stack([picture(8, 8, seed=k) for k in range(4)]), names)
    assert opened(tmp_path / "images").names == [name.removesuffix(".png") for name in names]
    schemes: list[ClassesFrom] = ["auto", "none"]
    for classes in schemes:
        assert opened(tmp_path / "images", classes).names == ["train/a/0", "train/b/1"]


def test_what_classes_lack_is_said_in_the_words_of_the_verb(tmp_path: Path) -> None:
    loose = folder(tmp_path / "loose", np.stack([picture(8, 8), picture(8, 8)]), ["a/0.png", "1.png"])
    with pytest.raises(DataError, match=r"1\.png lies in no sub-folder, so it has no class: move it, or set classes to prefix or none$"):
        opened(loose, "folder")
    (tmp_path / "loose/1.png").rename(tmp_path / "loose/a/1.png")
    (tmp_path / "loose/empty").mkdir()
    with pytest.raises(
        DataError, match="loose/empty: a sub-folder without images, but sub-folders are classes: move it elsewhere, or set classes$"
    ):
        opened(loose, "folder")
    unlabelled, images = tmp_path / "records", np.stack([picture(8, 8)])
    write_shards(unlabelled / "train", images, bits=3, labels=[2**40], shards=1)
    with pytest.raises(DataError, match="label 1099511627776, expected less than 1048576: set classes to none$"):
        opened(unlabelled, "auto")
    assert len(opened(unlabelled, "none")) == 1
    np.save(tmp_path / "a.npy", images)
    cases: list[tuple[ClassesFrom, Path]] = [("prefix", unlabelled), ("folder", tmp_path / "a.npy")]
    for classes, source in cases:
        with pytest.raises(ConfigError, match=f"classes: got '{classes}', but .* is not made of files; leave it out"):
            opened(source, classes)


def test_a_data_error_names_the_setting_by_which_its_reader_knows_it() -> None:
    error = DataError("x: has no class", advice="rename it, or set {} to none", setting="data.labels")
    assert str(error) == "x: has no class: rename it, or set data.labels to none"
    assert str(error.renamed("classes")) == "x: has no class: rename it, or set classes to none"
    assert str(DataError("x: {odd} name").renamed("classes")) == "x: {odd} name"


def test_hidden_files_are_none_of_a_collection_but_the_stamp_that_says_what_is_left_out(tmp_path: Path) -> None:
    """The lock that a killed command left, where its output lies among the images, makes these no others."""
    (tmp_path / "deep").mkdir()
    for name in ("a.png", "deep/b.png"):
        (tmp_path / name).write_bytes(encoded(picture(8, 8)))

    def origin() -> str:
        return opened(tmp_path).origin

    before = origin()
    for name in (".latents.npz.lock", "deep/._b.png"):
        (tmp_path / name).write_bytes(b"x")
    assert origin() == before
    mark(tmp_path / "deep", ["b.png"], request="x", overview="b.png")
    assert origin() != before
    (tmp_path / "deep" / STAMP).unlink()
    assert origin() == before
    (tmp_path / "c.png").write_bytes(encoded(picture(8, 8)))
    assert origin() != before
