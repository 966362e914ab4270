"""Sets of images that are evaluated: whatever they are stored in, a few in memory at a time."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.databases import write_database
from tests.data.pictures import encoded, picture, write_folder, write_idx, write_tar, write_zip
from tests.data.records import example, of_bytes, of_ints, record, write_shards
from triptych.core.errors import DataError
from triptych.data.config import AS_STORED, DataConfig
from triptych.runs.given.pictures import Pictures, SplitPictures, open_pictures

IMAGES = np.stack([picture(8, 6, seed=k) for k in range(5)])
"""(5, 6, 8, 3)"""


def all_of(pictures: Pictures) -> np.ndarray:
    return pictures.images(range(len(pictures)))


def content_of(path: Path, **asked: Any) -> dict[str, Any]:
    """The identity of a set without its place."""
    return {name: value for name, value in open_pictures(path, **asked).identity.items() if name not in ("path", "kind")}


def refusal(path: Path, **asked: Any) -> str:
    with pytest.raises(DataError) as refused:
        pictures = open_pictures(path, **asked)
        all_of(pictures)
    message = str(refused.value)
    assert "\n" not in message
    return message


# Where they lie


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_gives_its_images_in_any_order(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "a.npz", arr_0=IMAGES, arr_1=np.arange(5))
    pictures = open_pictures(tmp_path / "a.npz")
    assert (len(pictures), pictures.size, pictures.channels) == (5, (6, 8), 3)
    np.testing.assert_array_equal(all_of(pictures), IMAGES)
    np.testing.assert_array_equal(pictures.images([3, 0, 4, 4, 1]), IMAGES[[3, 0, 4, 4, 1]])
    np.testing.assert_array_equal(pictures.labels, np.arange(5))


def test_files_come_by_name_and_have_one_content_wherever_they_lie(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "in", ["b/1.png", "a/2.png", "a/1.png"], size=(8, 6))
    pictures = open_pictures(folder)
    np.testing.assert_array_equal(all_of(pictures), np.stack([picture(8, 6, seed=k) for k in (2, 1, 0)]))
    np.testing.assert_array_equal(pictures.labels, [0, 0, 1])
    for path in (write_tar(tmp_path / "a.tar.gz", folder), write_zip(tmp_path / "a.zip", folder)):
        np.testing.assert_array_equal(all_of(open_pictures(path)), all_of(pictures))
        assert content_of(path) == content_of(folder)


def test_an_lmdb_has_the_content_of_its_files(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "in", ["b/1.png", "a/2.png", "a/1.png"], size=(8, 6))
    path = write_database(tmp_path / "mdb", folder)
    np.testing.assert_array_equal(all_of(open_pictures(path)), all_of(open_pictures(folder)))
    assert content_of(path) == content_of(folder)


def test_arrays_have_one_content_in_any_file(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", IMAGES)
    np.save(tmp_path / "turned.npy", np.asfortranarray(IMAGES))
    np.savez(tmp_path / "a.npz", images=IMAGES)
    np.savez(tmp_path / "turned.npz", np.asfortranarray(IMAGES))
    np.savez_compressed(tmp_path / "b.npz", IMAGES)
    contents = [content_of(path) for path in sorted(tmp_path.iterdir())]
    assert len(contents) == 5 and contents == contents[:1] * 5
    np.testing.assert_array_equal(all_of(open_pictures(tmp_path / "turned.npz")), IMAGES)
    changed = IMAGES.copy()
    changed[4, 5, 7, 2] ^= 1
    np.savez(tmp_path / "c.npz", changed)
    assert content_of(tmp_path / "c.npz")["sha256"] != contents[0]["sha256"]


def test_images_are_told_from_others_that_are_cut_elsewhere(tmp_path: Path) -> None:
    """The same bytes in another division, and in another order."""
    np.save(tmp_path / "a.npy", IMAGES)
    np.save(tmp_path / "b.npy", IMAGES.reshape(5, 8, 6, 3))
    np.save(tmp_path / "c.npy", IMAGES[::-1])
    assert len({content_of(path)["sha256"] for path in tmp_path.iterdir()}) == 3


def test_mnist_has_its_training_images_before_the_others(tmp_path: Path) -> None:
    grey = IMAGES[..., 0]
    for split, some in (("train", slice(0, 3)), ("t10k", slice(3, 5))):
        write_idx(tmp_path / f"{split}-images-idx3-ubyte", grey[some])
        write_idx(tmp_path / f"{split}-labels-idx1-ubyte", np.arange(5)[some])
    pictures = open_pictures(tmp_path)
    assert (len(pictures), pictures.channels) == (5, 1)
    np.testing.assert_array_equal(all_of(pictures)[..., 0], grey)
    np.testing.assert_array_equal(pictures.labels, np.arange(5))
    np.testing.assert_array_equal(pictures.images([4, 2])[..., 0], grey[[4, 2]])


def test_cifar10_has_its_training_images_before_the_others(tmp_path: Path) -> None:
    images = np.stack([picture(32, 32, seed=k) for k in range(4)])
    records = np.concatenate([np.arange(4, dtype=np.uint8)[:, None], images.transpose(0, 3, 1, 2).reshape(4, -1)], axis=1)
    for name, some in (("data_batch_1", slice(0, 2)), ("data_batch_2", slice(2, 3)), ("test_batch", slice(3, 4))):
        records[some].tofile(tmp_path / f"{name}.bin")
    np.testing.assert_array_equal(all_of(open_pictures(tmp_path)), images)


def test_records_have_their_training_images_before_the_others(tmp_path: Path) -> None:
    """Of several resolutions the largest, or the smallest that is large enough."""
    images = {side: np.stack([picture(side, side, seed=k) for k in range(4)]) for side in (8, 16)}
    for bits, side in ((3, 8), (4, 16)):
        write_shards(tmp_path / "train", images[side][:3], bits=bits)
        write_shards(tmp_path / "validation", images[side][3:], bits=bits, shards=1)
    np.testing.assert_array_equal(all_of(open_pictures(tmp_path)), images[16])
    np.testing.assert_array_equal(all_of(open_pictures(tmp_path, image_size=8)), images[8])


def test_records_need_no_labels(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "train", IMAGES[:, :6, :6], bits=2)
    for path in folder.iterdir():
        path.write_bytes(
            b"".join(record(example({"shape": of_ints(6, 6, 3), "data": of_bytes(IMAGES[k, :6, :6].tobytes())})) for k in range(2))
        )
    pictures = open_pictures(tmp_path)
    assert pictures.labels is None
    np.testing.assert_array_equal(pictures.images([1]), IMAGES[1:2, :6, :6])


# How they are prepared


def test_images_become_the_size_that_is_asked_for(tmp_path: Path) -> None:
    """Of one twice as large the centre, halved: here the mean of 2x2 pixels."""
    large = np.stack([np.kron(picture(12, 8, seed=k), np.ones((2, 2, 1), np.uint8)) for k in range(2)])
    np.save(tmp_path / "a.npy", large)
    square = open_pictures(tmp_path / "a.npy", image_size=8)
    np.testing.assert_array_equal(all_of(square), large[:, ::2, ::2][:, :, 2:10])
    assert square.size == (8, 8)
    wide = open_pictures(tmp_path / "a.npy", image_size=(8, 12))
    np.testing.assert_array_equal(all_of(wide), large[:, ::2, ::2])
    assert square.identity != wide.identity


def test_images_are_prepared_as_held_out_images_of_a_training(tmp_path: Path) -> None:
    """Padded, resized beyond the square and cut, and never mirrored."""
    folder = write_folder(tmp_path / "in", [f"{k}.png" for k in range(6)], size=(25, 20))
    for config in (DataConfig(path=str(folder), image_size=16, resize=18, pad=1), DataConfig(path=str(folder), image_size=16, channels=1)):
        config = replace(config, source="folder", validation_fraction=0.0)
        data = config.open()
        expected = data.train.batch(np.arange(6)).images
        pictures = open_pictures(folder, like=config, channels=config.channels)
        np.testing.assert_array_equal(all_of(pictures), expected)
        np.testing.assert_array_equal(all_of(SplitPictures("own", config, "train", [data.train], data.spec)), expected)


def test_images_that_need_no_preparation_are_the_same_set(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", IMAGES[:, :, :6])
    assert content_of(tmp_path / "a.npy", image_size=6) == content_of(tmp_path / "a.npy")
    padded = DataConfig(image_size=6, pad=1, enlarge=True)
    assert content_of(tmp_path / "a.npy", like=padded) != content_of(tmp_path / "a.npy")


def test_grey_images_among_coloured_ones_become_coloured(tmp_path: Path) -> None:
    grey, coloured = picture(8, 6, channels=1), picture(8, 6, seed=1)
    (tmp_path / "a.png").write_bytes(encoded(grey))
    (tmp_path / "b.png").write_bytes(encoded(grey))
    assert open_pictures(tmp_path).channels == 1
    np.testing.assert_array_equal(open_pictures(tmp_path).images([0]), grey[None])
    np.testing.assert_array_equal(open_pictures(tmp_path, channels=3).images([0]), grey[None].repeat(3, -1))
    (tmp_path / "b.png").write_bytes(encoded(coloured))
    (tmp_path / "c.png").write_bytes(encoded(grey))
    pictures = open_pictures(tmp_path)
    assert pictures.channels == 3
    np.testing.assert_array_equal(all_of(pictures), np.stack([grey.repeat(3, -1), coloured, grey.repeat(3, -1)]))
    assert open_pictures(tmp_path, channels=1).images([1]).shape == (1, 6, 8, 1)


def test_transparent_images_are_seen_as_in_training(tmp_path: Path) -> None:
    pixels = picture(8, 6)
    seen = np.concatenate([pixels, np.zeros((6, 8, 1), np.uint8)], axis=-1)
    for name in "ab":
        Image.fromarray(seen).save(tmp_path / f"{name}.png")
    assert (open_pictures(tmp_path).images([0]) == 255).all()
    as_they_lie = DataConfig(image_size=6).updated(AS_STORED)
    np.testing.assert_array_equal(open_pictures(tmp_path, like=as_they_lie).images([0]), pixels[None, :, 1:7])


def test_files_that_look_like_maps_are_noted(tmp_path: Path) -> None:
    write_folder(tmp_path, [f"{k}{end}.png" for k in range(4) for end in ("", "_mask")])
    (note,) = open_pictures(tmp_path).notes
    assert "4 of 8 files look like the other halves of pairs" in note
    assert note.endswith("which would be counted as images too: give the folder of the photos alone")


# Sets of a training


def test_splits_are_put_end_to_end(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "in", [f"{split}/{k}.png" for split in ("train", "val") for k in range(3)], size=(16, 16))
    config = DataConfig(source="folder", path=str(folder), image_size=16)
    data = config.open()
    assert data.validation is not None
    pictures = SplitPictures("own", config, "all", [data.train, data.validation], data.spec)
    np.testing.assert_array_equal(all_of(pictures), np.stack([picture(16, 16, seed=k) for k in range(6)]))
    np.testing.assert_array_equal(pictures.images([5, 0, 3]), np.stack([picture(16, 16, seed=k) for k in (5, 0, 3)]))
    before = pictures.identity
    (folder / "val/2.png").write_bytes(encoded(picture(16, 16, seed=9)))
    after = SplitPictures("own", config, "all", [data.train, data.validation], data.spec).identity
    assert before["sha256"] != after["sha256"] and {**before, "sha256": ""} == {**after, "sha256": ""}


# What cannot be used


def test_images_of_several_sizes_name_two_files_and_the_flag(tmp_path: Path) -> None:
    write_folder(tmp_path, ["a.png", "b.png"])
    write_folder(tmp_path, ["c.png"], size=(8, 9))
    a, c = tmp_path / "a.png", tmp_path / "c.png"
    assert refusal(tmp_path) == f"{c}: 8x9 pixels, but {a} has 20x16: make them one size by --image-size"
    assert all_of(open_pictures(tmp_path, image_size=8)).shape == (3, 8, 8, 3)
    assert refusal(tmp_path, image_size=9) == f"{c}: 8x9 pixels, too small for 9x9; lower --image-size"
    larger = "give larger ones, or another --image-size"
    assert refusal(tmp_path, like=DataConfig(image_size=9)) == f"{c}: 8x9 pixels, too small for 9x9; {larger}"
    assert all_of(open_pictures(tmp_path, like=DataConfig(image_size=9, enlarge=True))).shape == (3, 9, 9, 3)


def test_too_few_images(tmp_path: Path) -> None:
    said = refusal(tmp_path)
    assert said.startswith(f"{tmp_path}: holds no images (AVIF, ") and said.endswith("are looked for, in sub-folders too)")
    (tmp_path / "walks").mkdir()
    (tmp_path / "walks" / "a.mp4").write_bytes(b"")
    instead = "of videos the frames are measured: give a folder with a sub-folder of them for each"
    assert refusal(tmp_path).endswith(f"are looked for, in sub-folders too); {instead}")
    (tmp_path / "my dog.mp4").write_bytes(b"")
    frames = f"ffmpeg -i '{tmp_path}/my dog.mp4' FOLDER/'my dog'/%06d.png"
    reason = "a video, of which the frames are measured: give a folder with a sub-folder of them for each clip"
    assert refusal(tmp_path / "my dog.mp4") == f"{tmp_path}/my dog.mp4: {reason} ({frames})"
    (tmp_path / "my dog.mp4").unlink()
    write_folder(tmp_path, ["a.png"])
    one = "holds 1 image, but a set has at least 2"
    assert refusal(tmp_path) == f"{tmp_path}: {one}"
    assert refusal(tmp_path / "a.png") == f"{tmp_path / 'a.png'}: {one}"
    assert len(open_pictures(tmp_path, least=1)) == 1
    np.save(tmp_path / "a.npy", IMAGES[:0])
    assert refusal(tmp_path / "a.npy").startswith(f"{tmp_path / 'a.npy'}: holds no images")
    np.savez_compressed(tmp_path / "a.npz", IMAGES[:1])
    assert refusal(tmp_path / "a.npz") == f"{tmp_path / 'a.npz'}: {one}"


def test_what_is_not_there_or_no_image(tmp_path: Path) -> None:
    assert "does not exist; expected a folder, .zip, .tar, .npz or .npy" in refusal(tmp_path / "none")
    write_folder(tmp_path, ["a.png", "b.png"])
    (tmp_path / "c.png").write_bytes(b"no image")
    assert refusal(tmp_path).startswith(f"{tmp_path / 'c.png'}: not an image that can be read")
    (tmp_path / "c.png").write_bytes((tmp_path / "a.png").read_bytes()[:-40])
    assert refusal(tmp_path).startswith(f"{tmp_path / 'c.png'}: ")


NPZ_FAULTS: list[tuple[str, Callable[[Path], object]]] = [
    ("expected uint8 of shape (n, height, width, 1 or 3)", lambda path: np.savez(path, IMAGES.astype(np.float32))),
    ("expected uint8 of shape (n, height, width, 1 or 3)", lambda path: np.savez_compressed(path, IMAGES[0, 0])),
    ("holds x, expected images as arr_0", lambda path: np.savez(path, x=IMAGES)),
    ("is compressed and in Fortran order, and cannot be mapped", lambda path: np.savez_compressed(path, np.asfortranarray(IMAGES))),
    ("Python objects (images of mixed sizes?)", lambda path: np.savez(path, np.array([IMAGES[0], IMAGES[1, :2]], dtype=object))),
    ("arr_1: int64 of shape (4,), expected 5 labels", lambda path: np.savez(path, arr_0=IMAGES, arr_1=np.arange(4))),
    ("arr_1: int64 of shape (5,), expected 5 labels", lambda path: np.savez(path, arr_0=IMAGES, arr_1=np.arange(5) - 1)),
    ("arr_1: float64 of shape (5,), expected 5 labels", lambda path: np.savez(path, arr_0=IMAGES, arr_1=np.arange(5.0))),
]


@pytest.mark.parametrize(("line", "save"), NPZ_FAULTS, ids=[str(k) for k in range(len(NPZ_FAULTS))])
def test_an_npz_that_is_no_set_of_images(tmp_path: Path, line: str, save: Callable[[Path], object]) -> None:
    save(tmp_path / "a.npz")
    message = refusal(tmp_path / "a.npz")
    assert message.startswith(f"{tmp_path / 'a.npz'}") and line in message


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_that_is_damaged_anywhere(tmp_path: Path, save: Any) -> None:
    """Bits that are changed, and ends that are missing: an error of one line, or the same images."""
    path = tmp_path / "a.npz"
    save(path, arr_0=IMAGES)
    whole, refused = path.read_bytes(), 0
    versions = [whole[:end] for end in range(0, len(whole), len(whole) // 20)]
    versions += [whole[:k] + bytes([whole[k] ^ 0x10]) + whole[k + 1 :] for k in range(0, len(whole), len(whole) // 60)]
    for data in versions:
        path.write_bytes(data)
        try:
            np.testing.assert_array_equal(all_of(open_pictures(path)), IMAGES)
        except DataError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > len(versions) * 0.8


# Memory


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_is_never_whole_in_memory(tmp_path: Path, save: Any) -> None:
    """10 MB of images, of which batches of 0.3 MB are taken, in order and also from the middle."""
    save(tmp_path / "a.npz", np.arange(1000, dtype=np.uint8).repeat(10_800).reshape(1000, 60, 60, 3))
    tracemalloc.start()
    try:
        pictures = open_pictures(tmp_path / "a.npz")
        for first in (*range(0, 1000, 32), 500, 0):
            items = range(first, min(first + 32, 1000))
            np.testing.assert_array_equal(pictures.images(items)[:, 59, 59, 2], np.array(items) % 256)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 2**18 < most < 3 * 2**20, most


def test_a_small_file_that_says_it_has_much_is_not_believed(tmp_path: Path) -> None:
    """An array is no larger than its member; nothing is made ready for it before that is known."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (100000, 512, 512, 3)})
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
            archive.writestr("arr_0.npy", head.getvalue() + bytes(1000))
        assert "arr_0 of shape [100000, 512, 512, 3] is cut short" in refusal(tmp_path / "a.npz")
