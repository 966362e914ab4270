"""Images that are left out of a data set, by a list or because they cannot be read."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.databases import write_database
from tests.data.pairs import assert_same, joined, only_maps, taken, write_pairs
from tests.data.pictures import encoded, picture, write_folder, write_idx, write_tar, write_zip
from tests.data.records import write_shards
from triptych.core.errors import ConfigError, DataError
from triptych.core.rng import permutation
from triptych.data.config import DataConfig
from triptych.data.domains import UnpairedDataConfig
from triptych.data.few_shot import FewShotDataConfig
from triptych.data.images import Data, ImageSet
from triptych.data.loader import Loader
from triptych.data.skipping import Chosen, read_skip, readable, spread, write_skip

NAMES = [f"{kind}/{kind}_{k}.png" for kind in ("cat", "dog") for k in range(4)]


def opened(path: Path, **settings):
    return DataConfig(path=str(path), **({"image_size": 16, "validation_fraction": 0.0} | settings)).open()


def keys(images: ImageSet) -> list[str]:
    return [images.source_key(k) for k in range(len(images))]


# The file


def test_a_list_is_read_as_it_was_written(tmp_path):
    reasons = {"a/b.png": "truncated", "ü \udcff.png": "", "3": "equal to 2"}
    write_skip(tmp_path / "bad.json", reasons)
    assert read_skip(tmp_path / "bad.json") == reasons
    assert json.loads((tmp_path / "bad.json").read_text())["skip"][0] == {"key": "a/b.png", "why": "truncated"}
    with pytest.raises(DataError, match="no/bad.json: cannot be written"):
        write_skip(tmp_path / "no" / "bad.json", reasons)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[" * 100_000,
        "[]",
        '{"skip": []}',
        '{"format": "triptych-skip-2", "skip": []}',
        '{"format": "triptych-skip-1", "skip": ["a.png"]}',
        '{"format": "triptych-skip-1", "skip": [{"why": "x"}]}',
    ],
)
def test_another_file_is_no_list(tmp_path, content):
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(DataError, match=r"bad\.json: .*(triptych-skip-1|triptych data doctor|a/b\.png)"):
        read_skip(tmp_path / "bad.json")


def test_a_list_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"bad\.json: cannot be read \(No such file"):
        read_skip(tmp_path / "bad.json")


# Keys


def test_keys_are_paths_inside_the_source(tmp_path):
    folder = write_folder(tmp_path / "photos", NAMES)
    assert keys(opened(folder).train) == keys(opened(write_zip(tmp_path / "x.zip", folder)).train) == sorted(NAMES)


def test_keys_of_arrays_are_numbers(tmp_path):
    write_idx(tmp_path / "train-images-idx3-ubyte", np.zeros((3, 16, 16)))
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.arange(3))
    write_idx(tmp_path / "t10k-images-idx3-ubyte", np.zeros((2, 16, 16)))
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.arange(2))
    data = opened(tmp_path, validation_fraction=0.5)
    assert keys(data.train) == ["0", "1", "2"] and data.validation is not None
    assert keys(data.validation) == ["test/0", "test/1"]


# Images of a list


def as_shards(folder: Path, place: Path) -> Path:
    from tests.data.test_shards import sharded

    return sharded(folder, place)


def as_parquet(folder: Path, place: Path) -> Path:
    from tests.data.test_parquet import of_folder, write

    return write(place / "x.parquet", list(of_folder(folder)))


SOURCES: dict[str, Callable[[Path, Path], Path]] = {
    "folder": lambda folder, place: folder,
    "zip": lambda folder, place: write_zip(place / "x.zip", folder),
    "tar": lambda folder, place: write_tar(place / "x.tar.gz", folder, prefix=""),
    "lmdb": lambda folder, place: write_database(place / "x", folder),
    "shards": as_shards,
    "parquet": as_parquet,
}


@pytest.mark.parametrize("source", SOURCES)
def test_the_rest_is_as_if_what_is_listed_had_never_been_there(tmp_path, source):
    names = [f"{kind}/{kind}_{k}.png" for kind in ("ant", "cat", "dog") for k in range(6)]
    gone = [*names[:6], "cat/cat_0.png", "dog/dog_5.png"]
    folder = write_folder(tmp_path / "all", names)
    fewer = shutil.copytree(folder, tmp_path / "fewer")
    for name in gone:
        (fewer / name).unlink()
    (fewer / "ant").rmdir()
    keys_of = [name.removesuffix(".png") if source == "lmdb" else name for name in gone]
    write_skip(tmp_path / "bad.json", dict.fromkeys(keys_of, "by hand"))
    for place in ("one", "other"):
        (tmp_path / place).mkdir()
    listed = opened(SOURCES[source](folder, tmp_path / "one"), skip=str(tmp_path / "bad.json"), validation_fraction=0.3)
    without = opened(SOURCES[source](fewer, tmp_path / "other"), validation_fraction=0.3)
    assert listed.spec == without.spec and listed.spec.class_names == ("cat", "dog")
    for one, other in ((listed.train, without.train), (listed.validation, without.validation)):
        assert one is not None and other is not None and keys(one) == keys(other)
    assert_same(taken(listed.train), taken(without.train))
    assert listed.notes == (f"data.skip {tmp_path / 'bad.json'}: 8 images are left out",)


def test_what_is_not_in_the_source_is_named(tmp_path):
    write_folder(tmp_path / "photos", NAMES)
    write_skip(tmp_path / "bad.json", dict.fromkeys([NAMES[0], "x.png", *(f"y{k:02}.png" for k in range(12))], ""))
    data = opened(tmp_path / "photos", skip=str(tmp_path / "bad.json"))
    assert data.notes[-1].endswith("not in the source: x.png, " + ", ".join(f"y{k:02}.png" for k in range(9)) + " and 3 more")
    assert keys(data.train) == sorted(NAMES[1:])


def test_labels_of_a_file_may_be_of_images_that_are_left_out(tmp_path):
    write_folder(tmp_path / "photos", ["a.png", "b.png", "c.png"])
    (tmp_path / "photos" / "dataset.json").write_text(json.dumps({"labels": [["a.png", 2], ["b.png", 0], ["c.png", 1]]}))
    write_skip(tmp_path / "bad.json", {"b.png": ""})
    assert opened(tmp_path / "photos", skip=str(tmp_path / "bad.json")).train.labels.tolist() == [2, 1]


def test_rows_of_an_array_keep_their_sides(tmp_path):
    pixels = np.stack([picture(16, 16, seed=k) for k in range(20)])
    np.savez(tmp_path / "x.npz", pixels, np.arange(20))
    write_skip(tmp_path / "bad.json", {"3": "flat", "11": "flat", "20": "?"})
    before, after = (opened(tmp_path / "x.npz", validation_fraction=0.4, skip=skip) for skip in (None, str(tmp_path / "bad.json")))
    for one, other in ((before.train, after.train), (before.validation, after.validation)):
        assert [key for key in keys(one) if key not in ("3", "11")] == keys(other)
        np.testing.assert_array_equal(pixels[[int(key) for key in keys(other)]], other.batch(np.arange(len(other))).images)
    assert after.notes[-1].endswith("not in the source: 20")


def test_one_listed_half_leaves_out_the_pair(tmp_path):
    write_pairs(tmp_path / "pairs" / "train")
    write_pairs(tmp_path / "pairs" / "val", count=3, first=20)
    write_skip(tmp_path / "bad.json", {"train/labels/drive/2.png": "", "train/images/drive/4.png": "", "val/images/drive/21.png": ""})
    data = only_maps(tmp_path / "pairs", skip=str(tmp_path / "bad.json"), validation_fraction=0.05)
    assert data.validation is not None
    assert keys(data.train) == [f"train/images/drive/{k}.png" for k in (0, 1, 3, 5, 6)]
    assert keys(data.validation) == ["val/images/drive/20.png", "val/images/drive/22.png"]


def test_domains_and_classes_of_a_few_images(tmp_path):
    write_folder(tmp_path / "two", [f"images_{domain}/{k}.png" for domain in "ab" for k in range(4)])
    write_skip(tmp_path / "bad.json", {"images_a/1.png": "", "images_b/2.png": "", "0.png": ""})
    settings = {"image_size": 16, "validation_fraction": 0.0, "skip": str(tmp_path / "bad.json")}
    data = UnpairedDataConfig(path=str(tmp_path / "two"), **settings).open()
    a, b = data.train.domains  # type: ignore[attr-defined]
    assert keys(a) == ["0.png", "2.png", "3.png"] and keys(b) == ["0.png", "1.png", "3.png"]
    assert data.notes[-1].endswith("not in the source: 0.png")
    for split in ("train", "test"):
        write_folder(tmp_path / "split" / split, [f"images_{domain}/{k}.png" for domain in "ab" for k in range(2)])
    write_skip(tmp_path / "bad.json", {"train/images_a/1.png": "", "test/images_b/0.png": "", "images_a/0.png": ""})
    data = UnpairedDataConfig(path=str(tmp_path / "split"), **settings | {"validation_fraction": 0.1}).open()
    lists = [[keys(domain) for domain in images.domains] for images in (data.train, data.validation)]  # type: ignore[union-attr]
    assert lists == [[["0.png"], ["0.png", "1.png"]], [["0.png", "1.png"], ["1.png"]]]
    assert data.notes[-1].endswith("not in the source: images_a/0.png")
    write_folder(tmp_path / "many", [f"{kind}/{k}.png" for kind in "xyz" for k in range(3)])
    write_skip(tmp_path / "bad.json", {"x/0.png": "", **{f"z/{k}.png": "" for k in range(3)}})
    data = FewShotDataConfig(path=str(tmp_path / "many"), image_size=16, held_out=0, skip=str(tmp_path / "bad.json")).open()
    assert data.spec.class_names == ("x", "y") and keys(data.train) == ["x/1.png", "x/2.png", "y/0.png", "y/1.png", "y/2.png"]


def test_latents_have_no_list(tmp_path):
    assert DataConfig().to_dict().keys().isdisjoint({"skip", "on_error", "most_errors"}), "config.json of other runs is as it was"
    with pytest.raises(ConfigError, match="most_errors"):
        DataConfig(most_errors=1.5)


# Images that cannot be read

COUNT = 40
BAD = {1: "empty", 7: "text", 8: "truncated", 9: "bomb", 20: "gone", 21: "fractions", 33: "loop", 39: "small"}


def damage(path: Path, kind: str) -> None:
    whole = path.read_bytes()
    path.unlink()
    if kind == "gone":
        path.symlink_to("nowhere.png")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "fractions":
        Image.fromarray(np.zeros((16, 20), np.float32)).save(path, "TIFF")
    elif kind == "small":
        path.write_bytes(encoded(picture(4, 4)))
    elif kind == "bomb":
        Image.new("1", (20_000, 10_000)).save(path)
    else:
        path.write_bytes({"empty": b"", "text": b"<html>not found</html>", "truncated": whole[: len(whole) // 2]}[kind])


@pytest.fixture(scope="module")
def damaged(tmp_path_factory) -> Path:
    """A class for each image; those of BAD cannot be read."""
    root = write_folder(tmp_path_factory.mktemp("damaged"), [f"{k:02}/x.png" for k in range(COUNT)])
    for k, kind in BAD.items():
        damage(root / f"{k:02}/x.png", kind)
    return root


def lenient(path: Path, **settings) -> Data:
    return opened(path, **({"on_error": "skip", "most_errors": 0.2, "crop": "random"} | settings))


def test_the_next_image_of_the_order_takes_the_place(damaged):
    images = lenient(damaged).train
    order = [item for epoch in range(4) for item in permutation(COUNT, seed=3, epoch=epoch)]
    expected = [next(item for item in order[position:] if item not in BAD) for position in range(3 * COUNT)]
    assert expected != order[: 3 * COUNT]
    batch = taken(images, count=3 * COUNT // 8, batch_size=8)
    assert batch.labels.tolist() == expected, "and the class is that of the image that is there"
    whole = write_folder(damaged.parent / "whole", [f"{k:02}/x.png" for k in range(COUNT)])
    unharmed = opened(whole, crop="random").train
    np.testing.assert_array_equal(batch.images, unharmed.batch(np.array(expected), np.arange(3 * COUNT), seed=3).images)


def test_neither_processes_nor_batches_nor_resumes_change_a_sample(damaged):
    whole = taken(lenient(damaged).train, count=12, batch_size=10)
    for workers in (1, 3):
        assert_same(taken(lenient(damaged).train, count=12, batch_size=10, workers=workers), whole)
    assert_same(taken(lenient(damaged).train, count=24, batch_size=5), whole)
    later = taken(lenient(damaged).train, start=60, count=6, batch_size=10)
    assert torch.equal(later.images, whole.images[60:])
    shares = [taken(lenient(damaged).train, start=60, count=1, batch_size=10, rank=rank, world_size=3) for rank in range(3)]
    assert torch.equal(joined(shares).images, whole.images[60:70])


@pytest.mark.parametrize("workers", [0, 2])
def test_each_is_named_by_the_batches_that_wanted_it(damaged, workers):
    bad: dict[str, str] = {}
    with contextlib.closing(Loader(lenient(damaged).train, batch_size=8, seed=3, workers=workers, bad=bad)) as loader:
        batches = loader.batches(0)
        next(batches)
        order = permutation(COUNT, seed=3, epoch=0)[:8]
        met = {f"{item:02}/x.png" for item in order if item in BAD}
        assert met <= bad.keys() and len(bad) < len(BAD), "not what was loaded ahead"
        for _ in itertools.islice(batches, 7):
            pass
    assert sorted(bad) == [f"{k:02}/x.png" for k in BAD]
    assert bad["01/x.png"] == "an empty file" and bad["20/x.png"] == "No such file or directory"
    assert bad["07/x.png"].startswith("not an image that can be read")
    assert bad["09/x.png"] == "more than 178,956,970 pixels" and "smaller than data.image_size 16" in bad["39/x.png"]


def test_too_many_end_it(damaged):
    for most_errors, workers in ((0.1, 0), (0.0, 1)):
        with pytest.raises(DataError, match=rf"[45] of 40 images cannot be read, more than data.most_errors {most_errors:g} allows"):
            taken(lenient(damaged, most_errors=most_errors).train, count=10, batch_size=8, workers=workers)


def test_three_are_never_too_many(tmp_path):
    write_folder(tmp_path, [f"{k}.png" for k in range(8)])
    for k in range(3):
        (tmp_path / f"{k}.png").write_bytes(b"")
    assert len(taken(lenient(tmp_path, most_errors=0.0).train)) == 20
    (tmp_path / "3.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"4 of 8 images cannot be read"):
        taken(lenient(tmp_path, most_errors=0.0).train)


def test_a_folder_of_other_files_is_refused_at_once(tmp_path):
    write_folder(tmp_path, [f"{k}.png" for k in range(9)], size=(8, 8))
    with pytest.raises(DataError, match=r"0\.png: 8x8 pixels, smaller .*\(9 of the 9 that were looked at"):
        lenient(tmp_path)


def test_stop_names_the_file_and_the_setting(damaged):
    with pytest.raises(DataError, match=r"01/x\.png: an empty file; repair or remove the file, or set data.on_error to skip$"):
        opened(damaged)


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.EIO, "Input/output error"), OSError(errno.EMFILE, "Too many open files")])
def test_what_the_machine_fails_at_is_no_bad_image(tmp_path, monkeypatch, error):
    write_folder(tmp_path, ["a.png", "b.png", "c.png"])
    images = lenient(tmp_path).train

    def fail(*_: object, **__: object) -> bytes:
        raise error

    monkeypatch.setattr("triptych.data.files.read_regular", fail)
    with pytest.raises(DataError, match=r"[abc]\.png: ") as caught:
        taken(images)
    assert "on_error" not in str(caught.value)


def test_images_as_they_are_have_the_next_by_number(damaged):
    images = lenient(damaged, crop="center").train
    assert images.batch(np.array([0, 7, 39])).labels.tolist() == [0, 10, 0]
    bad: dict[str, str] = {}
    numbers = readable(images, range(5, 25), bad)
    assert numbers == [k for k in range(5, 25) if k not in BAD] and len(bad) == 5
    chosen = Chosen(images, np.array(numbers))
    assert chosen.batch(np.arange(4)).labels.tolist() == [5, 6, 10, 11] and keys(chosen)[2] == "10/x.png"


@pytest.mark.parametrize(("count", "available", "expected"), [(3, 10, [0, 3, 6]), (4, 4, [0, 1, 2, 3]), (2, 5, [0, 2]), (1, 7, [0])])
def test_some_of_many_are_spread_over_all(count: int, available: int, expected: list[int]) -> None:
    assert spread(count, available).tolist() == expected


@pytest.mark.parametrize("source", [source for source in SOURCES if source != "folder"])
def test_images_in_archives(tmp_path, source):
    folder = write_folder(tmp_path / "all", [f"{k:02}/x.png" for k in range(12)])
    for k in (3, 8):
        (folder / f"{k:02}/x.png").write_bytes((folder / f"{k:02}/x.png").read_bytes()[:100])
    place = tmp_path / "place"
    place.mkdir()
    bad: dict[str, str] = {}
    with contextlib.closing(Loader(lenient(SOURCES[source](folder, place)).train, batch_size=12, seed=3, workers=0, bad=bad)) as loader:
        batch = next(loader.batches(0))
    assert set(batch.labels.tolist()) == set(range(12)) - {3, 8}
    assert sorted(bad) == (["03/x", "08/x"] if source == "lmdb" else ["03/x.png", "08/x.png"])


def test_a_record_that_is_damaged(tmp_path):
    write_shards(tmp_path / "train", [picture(16, 16, seed=k) for k in range(6)], bits=4, labels=range(6), shards=1)
    (path,) = (tmp_path / "train").iterdir()
    content = bytearray(path.read_bytes())
    content[len(content) * 4 // 6 - 100] ^= 1  # among the pixels of the fourth
    path.write_bytes(bytes(content))
    bad: dict[str, str] = {}
    assert readable(lenient(tmp_path).train, range(6), bad) == [0, 1, 2, 4, 5]
    assert bad == {f"train/{path.name}: record 3": "damaged, its checksum is wrong; copy or make the file again"}
    write_skip(tmp_path / "bad.json", bad)
    assert opened(tmp_path, skip=str(tmp_path / "bad.json")).train.labels.tolist() == [0, 1, 2, 4, 5]


def test_a_pair_with_a_bad_half_is_bad(tmp_path):
    write_pairs(tmp_path, count=12)
    (tmp_path / "labels" / "drive" / "4.png").write_bytes(encoded(picture(24, 16)))
    (tmp_path / "images" / "drive" / "6.png").write_bytes(b"")
    (tmp_path / "images" / "drive" / "9.png").write_bytes(encoded(picture(16, 16)))
    data = only_maps(tmp_path, on_error="skip", image_size=16, width=24)
    bad: dict[str, str] = {}
    with contextlib.closing(Loader(data.train, batch_size=12, seed=3, workers=0, bad=bad)) as loader:
        batch = next(loader.batches(0))
    assert sorted(bad) == [f"images/drive/{k}.png" for k in (4, 6, 9)]
    assert "labels/drive/4.png: a picture in colour" in bad["images/drive/4.png"]
    white = (batch.images.float().mean(-1) > 127).long()
    assert torch.equal(white, batch.inputs["labels"]), "halves of the same pair"


def test_each_domain_has_an_order_of_its_own(tmp_path):
    write_folder(tmp_path, [f"images_{domain}/{k}.png" for domain in "ab" for k in range(9)])
    for name in ("images_a/2.png", "images_b/2.png", "images_b/5.png"):
        (tmp_path / name).write_bytes(b"")
    settings = {"path": str(tmp_path), "image_size": 16, "validation_fraction": 0.0, "flip": False}
    data = UnpairedDataConfig(**settings, on_error="skip").open()
    bad: dict[str, str] = {}
    with contextlib.closing(Loader(data.train, batch_size=9, seed=3, workers=0, bad=bad)) as loader:
        batches = list(itertools.islice(loader.batches(0), 6))
    assert sorted(bad) == ["images_a/2.png", "images_b/2.png", "images_b/5.png"]
    whole = [picture(20, 16, seed=k)[:, 2:18] for k in range(18)]
    for images, numbers in ((batches[0].images, range(9)), (batches[0].inputs["images_b"], range(9, 18))):
        assert all(any(np.array_equal(image, whole[number]) for number in numbers) for image in images.numpy())
    assert_same(taken(data.train, start=9, count=9, batch_size=5, workers=1), taken(data.train, start=9, count=5, batch_size=9))


def test_a_style_stays_in_its_class(tmp_path):
    for c, k in itertools.product(range(3), range(4)):
        path = tmp_path / f"class{c}" / f"{k}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"" if (c, k) in ((1, 0), (2, 3)) else encoded(np.full((16, 16, 3), [40 * c, 10 * k, 0], dtype=np.uint8)))
    data = FewShotDataConfig(path=str(tmp_path), image_size=16, held_out=0, on_error="skip").open()
    batch = taken(data.train, count=8, batch_size=12)
    np.testing.assert_array_equal(batch.images[:, 0, 0, 0] // 40, batch.labels)
    np.testing.assert_array_equal(batch.inputs["style"][:, 0, 0, 0] // 40, batch.inputs["style_labels"])
    assert (batch.labels != batch.inputs["style_labels"]).all()
