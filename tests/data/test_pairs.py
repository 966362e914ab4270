"""Pairs: layouts, one cut for all members, and what is said of pairs that do not fit."""

from __future__ import annotations

import dataclasses
import io
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.databases import write_database
from tests.data.pairs import COUNT, SETTINGS, as_map, assert_same, joined, only_maps, opened, settings, taken, write, write_pairs
from tests.data.pictures import encoded, picture
from triptych.cli.settings import parse
from triptych.core.batch import DataSpec, InputSpec
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError, DataError
from triptych.data.config import DataConfig
from triptych.data.cut import Cut
from triptych.data.database import open_database
from triptych.data.loader import evaluation_batches
from triptych.data.pairs import PairedDataConfig
from triptych.gans.label_maps import LabelMaps
from triptych.recipes.catalogue import load_recipe
from triptych.recipes.config import RunConfig

CAMVID = Path(__file__).resolve().parents[3] / "shared" / "data" / "camvid"


# What a batch holds


def test_spec_and_types(tmp_path):
    data = opened(write_pairs(tmp_path))
    assert data.spec == DataSpec(
        image_size=8,
        width=12,
        channels=3,
        inputs=(
            InputSpec(name="labels", kind="classes", num_classes=2),
            InputSpec(name="objects", kind="instances"),
            InputSpec(name="edges", kind="image", channels=1),
            InputSpec(name="night", kind="image", channels=3),
        ),
    )
    assert data.spec.height_and_width == (8, 12)
    assert DataSpec.from_dict(data.spec.to_dict()) == data.spec
    (raw,) = evaluation_batches(data.train, batch_size=COUNT)
    kinds = {name: (values.dtype, tuple(values.shape[1:])) for name, values in raw.inputs.items()}
    assert kinds == {
        "labels": (torch.int64, (8, 12)),
        "objects": (torch.int64, (8, 12)),
        "edges": (torch.uint8, (8, 12, 1)),
        "night": (torch.uint8, (8, 12, 3)),
    }
    batch = raw.to("cpu")
    assert batch.images.shape == (COUNT, 3, 8, 12) and batch.inputs["edges"].shape == (COUNT, 1, 8, 12)
    assert torch.allclose(batch.inputs["night"], -batch.images, atol=0.02)
    assert opened(tmp_path, width=8).spec.width is None


@pytest.mark.parametrize(("crop", "flip"), [("center", False), ("center", True), ("random", False), ("random", True)])
def test_members_are_cut_and_mirrored_alike_to_the_pixel(tmp_path, crop, flip):
    # At scale 1 no pixel is interpolated, so the map is the image's threshold wherever it was cut out.
    cut = {"image_size": 16, "width": 24} if crop == "center" else {"image_size": 9, "width": 13, "resize": 16}
    images = opened(write_pairs(tmp_path), crop=crop, flip=flip, **cut)
    drawn = images.train.batch(np.tile(np.arange(COUNT), 6), np.arange(6 * COUNT), seed=3)
    assert set(np.unique(drawn.images)) == {0, 255}
    threshold = drawn.images[..., 0] > 127
    np.testing.assert_array_equal(drawn.inputs["labels"], threshold)
    np.testing.assert_array_equal(drawn.inputs["objects"], 26000 + threshold)
    np.testing.assert_array_equal(drawn.inputs["edges"], drawn.images[..., :1])
    np.testing.assert_array_equal(drawn.inputs["night"], 255 - drawn.images)
    plain = images.train.batch(np.tile(np.arange(COUNT), 6))
    changed = (drawn.images != plain.images).any(axis=(1, 2, 3)).mean()
    assert changed == 0 if (crop, flip) == ("center", False) else changed > 0.3
    places = {image.tobytes() for image in drawn.images[::COUNT]}
    assert len(places) == (1 if crop == "center" and not flip else 2 if crop == "center" else len(places))
    assert crop == "center" or len(places) > 3


def test_scaled_maps_stay_with_their_images(tmp_path):
    # Blocks of 8 pixels: after any resize, all but the pixels at their borders agree.
    cells = np.random.default_rng(0).random((6, 9)) < 0.5
    pixels = np.where(cells.repeat(8, 0).repeat(8, 1), 255, 0).astype(np.uint8)[..., None].repeat(3, axis=-1)
    for k in range(2):
        write(tmp_path / "images" / f"{k}.png", encoded(pixels))
        write(tmp_path / "labels" / f"{k}.png", as_map(pixels[..., 0] // 255))
    images = only_maps(tmp_path, image_size=32, width=48, crop="random", scale=0.5).train
    drawn = images.batch(np.zeros(40, dtype=np.int64), np.arange(40), seed=0)
    threshold, labels = drawn.images[..., 0] > 127, drawn.inputs["labels"]
    assert (threshold == labels).mean() > 0.97
    assert (np.roll(threshold, 1, axis=2) == labels).mean() < 0.93  # one pixel beside it would show


def test_pixels_of_no_class(tmp_path):
    write_pairs(tmp_path)
    numbers = np.zeros((16, 24), dtype=np.uint8)
    numbers[:, :12] = 200
    write(tmp_path / "labels" / "drive" / "3.png", as_map(numbers))
    with pytest.raises(
        DataError, match=r"labels/drive/3.png: holds class 200, expected 0 to 1: raise data.num_classes, or set data.dont_c"
    ):
        only_maps(tmp_path)
    images = only_maps(tmp_path, dont_care=True).train
    assert np.unique(images.batch(np.array([3])).inputs["labels"]).tolist() == [0, 2]
    assert 200 not in np.unique(images.batch(np.arange(COUNT)).inputs["labels"])


def test_pixels_of_no_class_may_have_no_channel(tmp_path):
    write_pairs(tmp_path)
    numbers = np.ones((16, 24), dtype=np.uint8)
    numbers[:, :12] = 200
    write(tmp_path / "labels" / "drive" / "3.png", as_map(numbers))
    data = only_maps(tmp_path, blank=True)
    assert data.spec.inputs == (InputSpec(name="labels", kind="classes", num_classes=2, blank=True),)
    labels = LabelMaps(data.spec.inputs)
    maps = torch.from_numpy(data.train.batch(np.array([3])).inputs["labels"])
    assert labels.channels == 2 and maps.unique().tolist() == [1, 2]
    torch.testing.assert_close(labels({"labels": maps}), torch.stack([torch.zeros(1, 8, 12), (maps == 1).float()], dim=1))


def test_conditions_may_be_resized_to_the_nearest_pixel(tmp_path):
    for crop in ("center", "random"):
        data = opened(write_pairs(tmp_path), crop=crop, nearest=("edges",), image_size=11, width=15, enlarge=True)
        assert [spec.nearest for spec in data.spec.inputs] == [False, False, True, False]
        drawn = data.train.batch(np.arange(COUNT), np.arange(COUNT), seed=3)
        assert set(np.unique(drawn.inputs["edges"])) == {0, 255} and len(np.unique(drawn.inputs["night"])) > 2
        np.testing.assert_array_equal(drawn.inputs["edges"][..., 0], 255 * drawn.inputs["labels"], err_msg="as a map of the same pixels")


def test_photos_alone_without_maps(tmp_path):
    data = opened(write_pairs(tmp_path), maps=(), num_classes=(), instances=None)
    data.train.probe()  # as training does
    assert list(data.train.batch(np.arange(COUNT)).inputs) == ["edges", "night"]
    Image.fromarray(np.zeros((16, 20, 3), np.uint8)).save(tmp_path / "night" / "drive" / "3.png")
    with pytest.raises(DataError, match="20x16 pixels, but .*3.png has 24x16; make them one size"):
        data.train.probe()


def test_nearest_pixels_of_arrays_and_of_turned_files():
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 3), dtype=np.uint8)
    cut = Cut(6, 4)
    expected = pixels[1::2, 1::2]
    np.testing.assert_array_equal(cut.nearest(pixels, 3), expected)
    np.testing.assert_array_equal(cut.nearest(encoded(pixels), 3), expected)
    np.testing.assert_array_equal(cut.nearest(pixels[..., :1], 3), expected[..., :1].repeat(3, axis=-1))
    assert cut.nearest(encoded(pixels), 1).shape == (6, 4, 1)


# Layouts


def test_splits_sub_folders_and_other_endings(tmp_path):
    write_pairs(tmp_path / "train")
    write_pairs(tmp_path / "val", count=3, first=10)
    write_pairs(tmp_path / "test", count=2, first=20)
    for path in (tmp_path / "train" / "images" / "drive").iterdir():
        Image.open(path).save(path.with_suffix(".bmp"))
        path.unlink()
    write(tmp_path / "train" / "images" / "notes.txt", b"no image")
    data = opened(tmp_path, validation_fraction=0.5, image_size=16, width=24)
    assert (len(data.train), len(data.validation)) == (COUNT, 3)
    assert data.train.key(6) == str(tmp_path / "train" / "images" / "drive" / "6.bmp")
    assert data.validation.key(0) == str(tmp_path / "val" / "images" / "drive" / "10.png")
    assert opened(tmp_path).validation is None
    held = data.validation.batch(np.array([1]))
    np.testing.assert_array_equal(held.inputs["labels"] > 0, held.images[..., 0] > 127)


@pytest.mark.parametrize("split", [False, True])
def test_without_held_out_images_stems_decide(tmp_path, split):
    write_pairs(tmp_path / "train" if split else tmp_path, count=20)
    data = opened(tmp_path, validation_fraction=0.3)
    train, held = ({Path(part.key(k)).stem for k in range(len(part))} for part in (data.train, data.validation))
    assert held and not train & held and train | held == set(map(str, range(20)))
    write_pairs(tmp_path / "train" if split else tmp_path, count=10, first=20)
    more = opened(tmp_path, validation_fraction=0.3).validation
    assert held == {stem for stem in (Path(more.key(k)).stem for k in range(len(more))) if int(stem) < 20}


def test_databases_equal_folders(tmp_path):
    write_pairs(tmp_path / "folders" / "train")
    write_pairs(tmp_path / "folders" / "val", count=2, first=10)
    for split, kind in itertools.product(("train", "val"), ("images", "labels", "objects", "edges", "night")):
        write_database(tmp_path / "lmdb" / split / kind, tmp_path / "folders" / split / kind)
    one, other = (opened(tmp_path / name, validation_fraction=0.1) for name in ("folders", "lmdb"))
    for database in (tmp_path / "lmdb" / "train").glob("*/"):
        (database / "lock.mdb").unlink(missing_ok=True)  # of the writer; a reader needs none, for the folder may be read-only
    assert one.spec == other.spec
    for name in ("train", "validation"):
        expected, found = getattr(one, name), getattr(other, name)
        items = np.arange(len(expected))
        assert len(found) == len(expected)
        left, right = expected.batch(items, items, seed=1), found.batch(items, items, seed=1)
        np.testing.assert_array_equal(left.images, right.images)
        for kind in left.inputs:
            np.testing.assert_array_equal(left.inputs[kind], right.inputs[kind])
    assert other.train.key(0) == str(tmp_path / "lmdb" / "train" / "images" / "drive" / "0")
    assert not list(tmp_path.glob("lmdb/train/*/lock.mdb"))
    assert_same(taken(other.train, workers=2), taken(one.train))


def test_a_database_is_a_path_of_images_too(tmp_path):
    write_pairs(tmp_path / "files")
    write_database(tmp_path / "lmdb", tmp_path / "files" / "images")
    configs = (DataConfig(path=str(tmp_path / place), image_size=16, validation_fraction=0.0) for place in ("files/images", "lmdb"))
    one, other = (config.open() for config in configs)
    np.testing.assert_array_equal(one.train.batch(np.arange(3)).images, other.train.batch(np.arange(3)).images)


def test_damaged_databases(tmp_path):
    write_pairs(tmp_path / "files")
    database = write_database(tmp_path / "set" / "images", tmp_path / "files" / "images")
    write_database(tmp_path / "set" / "labels", tmp_path / "files" / "labels")
    only_maps(tmp_path / "set")
    whole = (database / "data.mdb").read_bytes()
    for content, message in (
        (whole[: len(whole) // 2], "cut short"),
        (b"no database" * 1000, "not an LMDB, or one of a machine that writes numbers otherwise"),
        (b"", "cut short"),
        (whole[:40] + (511).to_bytes(4, "little") + whole[44:], "its pages cannot have 511 bytes"),
        (whole[:40] + (512).to_bytes(4, "little") + whole[44:], "not an LMDB"),
    ):
        (database / "data.mdb").write_bytes(content)
        with pytest.raises(DataError, match=message) as caught:
            only_maps(tmp_path / "set")
        assert "set/images" in str(caught.value) and "\n" not in str(caught.value)


def test_a_database_needs_no_package(tmp_path, monkeypatch):
    """One of more than a page of keys, with values of all sizes, as the package lmdb wrote it."""
    lmdb = pytest.importorskip("lmdb")
    values = {f"{k % 7}/{'x' * (k % 40)}{k:04d}": bytes([k % 256]) * (k * 37 % 9000) for k in range(500)}
    with lmdb.open(str(tmp_path), map_size=2**24, sync=False) as environment:
        for k, (name, value) in enumerate(values.items()):
            with environment.begin(write=True) as transaction:
                transaction.put(name.encode(), value)
                if k % 3 == 0:
                    transaction.delete(name.encode())
    monkeypatch.setitem(sys.modules, "lmdb", None)
    files = open_database(tmp_path)
    kept = {name: value for k, (name, value) in enumerate(values.items()) if k % 3}
    assert {files.names[k]: files.read(k) for k in range(len(files.names))} == kept


def test_an_empty_database(tmp_path):
    lmdb = pytest.importorskip("lmdb")
    lmdb.open(str(tmp_path), map_size=2**20).close()
    assert len(open_database(tmp_path).names) == 0


@pytest.mark.parametrize("kind", ["named", "repeated"])
def test_other_kinds_of_databases(tmp_path, kind):
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path), map_size=2**20, max_dbs=2) as environment:
        part = environment.open_db(b"part", dupsort=kind == "repeated")
        with environment.begin(write=True) as transaction:
            transaction.put(b"a", b"b", db=part)
    with pytest.raises(DataError, match="holds something else than a value; copy or make it again"):
        open_database(tmp_path)


# What is wrong with pairs


def test_missing_members_are_named(tmp_path):
    write_pairs(tmp_path)
    (tmp_path / "labels" / "drive" / "2.png").unlink()
    expected = rf"^{tmp_path}/images/drive/2.png: {tmp_path}/labels has no file drive/2.\* to go with it; add it, or remove this one$"
    with pytest.raises(DataError, match=expected):
        opened(tmp_path)
    write_pairs(tmp_path)
    for k in (2, 3, 4):
        (tmp_path / "images" / "drive" / f"{k}.png").unlink()
    with pytest.raises(DataError, match=rf"^{tmp_path}/labels/drive/2.png: {tmp_path}/images has no file .* \(nor to 2 more\)"):
        opened(tmp_path)


def test_members_whose_names_have_another_form_of_unicode(tmp_path):
    """As macOS and Linux write them: the eye sees no difference."""
    write_pairs(tmp_path)
    for folder, name in (("images", "cafe\u0301"), ("labels", "caf\u00e9")):
        (tmp_path / folder / "drive" / "2.png").rename(tmp_path / folder / "drive" / f"{name}.png")
    with pytest.raises(DataError, match=r"labels has no file drive/cafe\u0301\.\* to go with it; it is there in another form of Unicode"):
        opened(tmp_path)


def test_two_files_of_one_stem(tmp_path):
    write_pairs(tmp_path)
    write(tmp_path / "images" / "drive" / "2.jpg", b"")
    with pytest.raises(DataError, match=r"images/drive/2.png: drive/2.jpg has the same name but for its ending; remove one"):
        opened(tmp_path)


def test_members_of_other_sizes_are_named(tmp_path):
    write_pairs(tmp_path)
    write(tmp_path / "labels" / "drive" / "5.png", as_map(np.zeros((16, 23))))
    message = rf"^{tmp_path}/labels/drive/5.png: 23x16 pixels, but {tmp_path}/images/drive/5.png has 24x16; make them one size"
    with pytest.raises(DataError, match=message):
        opened(tmp_path)
    write_pairs(tmp_path)
    images = opened(tmp_path).train
    write(tmp_path / "labels" / "drive" / "5.png", as_map(np.zeros((16, 23))))  # since the run began
    with pytest.raises(DataError, match=message):
        images.batch(np.arange(COUNT))


def test_pairs_that_are_too_small(tmp_path):
    write_pairs(tmp_path)
    message = r"24x16 pixels, smaller than data.image_size 16 \(with data.width: 30x16\): lower data.image_size, or set data.enlarge"
    with pytest.raises(DataError, match=message):
        opened(tmp_path, image_size=16, width=30)
    with pytest.raises(DataError, match=r"smaller than data.resize 17 \(with data.width: 26x17\): lower data.resize"):
        opened(tmp_path, resize=17)
    assert opened(tmp_path, image_size=16, width=30, enlarge=True).train.batch(np.arange(2)).inputs["labels"].shape == (2, 16, 30)
    assert opened(tmp_path, image_size=16, width=24).spec.width == 24


def as_fractions(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.zeros((height, width), dtype=np.float32)).save(file, "TIFF")
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (encoded(picture(24, 16)), r"a picture in colour \(RGB\) as a map: save one number for each pixel, as a PNG in grey"),
        (as_fractions(24, 16), r"fractions \(F\) as a map: save one number for each pixel"),
        (encoded(picture(24, 16, channels=1), "JPEG"), "a JPEG, which alters numbers, as a map: save maps as PNG"),
        (as_map(picture(24, 16)[..., 0])[:150], "repair or remove the file"),
        (b"no picture", "not an image that can be read"),
        (b"", "an empty file"),
    ],
)
@pytest.mark.parametrize("folder", ["labels", "objects"])
def test_files_that_are_no_maps(tmp_path, folder, data, message):
    write_pairs(tmp_path)
    write(tmp_path / folder / "drive" / "4.png", data)
    with pytest.raises(DataError, match=rf"^{tmp_path}/{folder}/drive/4.png: .*{message}") as caught:
        opened(tmp_path)
    assert "\n" not in str(caught.value)


def test_folders_that_are_missing(tmp_path):
    write_pairs(tmp_path / "train")
    for changes, message in (
        ({"target": "image"}, r"holds neither image/ nor train/image/ with the images to be made \(data.target\)"),
        ({"maps": ("label",)}, r'train: holds no folder label \(data.maps\); did you mean "labels"\?$'),
        ({"instances": "things"}, r"holds no folder things \(data.instances\)"),
        ({"conditions": ("sketches",)}, r"holds no folder sketches \(data.conditions\)"),
    ):
        with pytest.raises(DataError, match=message):
            opened(tmp_path, **changes)
    with pytest.raises(DataError, match=r'did you mean "images"\?$'):
        opened(tmp_path / "train", target="image")
    for path in (tmp_path / "train" / "images" / "drive").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="train/images: holds no images"):
        opened(tmp_path)
    with pytest.raises(DataError, match=r"notes.txt: not a folder; give the one that holds images, or train/images \(data.target\)$"):
        (tmp_path / "notes.txt").write_text("no folder")
        opened(tmp_path / "notes.txt")
    with pytest.raises(DataError, match="nowhere: does not exist"):
        opened(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="data.path: missing"):
        PairedDataConfig(**SETTINGS).open()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"maps": ("labels", "labels"), "num_classes": (2, 2)}, "maps: .*folders that differ from one another"),
        ({"maps": ("images",)}, "maps: .*differ"),
        ({"num_classes": ()}, r"num_classes: got nothing, expected the number of classes of each of data.maps, 1 in all"),
        ({"num_classes": (0,)}, "num_classes"),
        ({"num_classes": (1, 1)}, "num_classes: got 1, 1, expected the number of classes of each of data.maps, 1 in all"),
        (
            {"maps": (), "num_classes": (), "instances": None, "conditions": ()},
            "maps: .*unless there are data.instances, data.conditions or other maps",
        ),
        ({"conditions": ("../x",)}, "conditions: .*without a slash"),
        ({"target": ""}, "target: .*without a slash"),
        ({"instances": "a/b"}, "instances: .*without a slash"),
        ({"width": 0}, "width: got 0, expected at least 1"),
        ({"augment": "shift"}, "augment: got 'shift', expected none"),
        ({"pad": 1}, "pad: got 1, expected 0"),
        ({"source": "zip"}, "source: got 'zip', expected auto, folder or lmdb"),
        ({"labels": "prefix"}, "labels: got 'prefix'"),
        ({"scale": 0.2}, "scale: got 0.2, expected nothing, unless data.crop is random"),
        ({"scale": -0.2, "crop": "random"}, "scale: got -0.2, expected 0 to 8"),
        ({"nearest": ("edges", "labels")}, "nearest: got edges, labels, expected some of data.conditions"),
        ({"blank": True, "dont_care": True}, "blank: got True, expected false with data.dont_care"),
        ({"jitter": 1.0}, "jitter: got 1.0, expected 0 or more and below 1"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(ConfigError, match=message):
        PairedDataConfig(**(SETTINGS | changes))


def test_a_map_may_have_one_class():
    assert PairedDataConfig(**(SETTINGS | {"num_classes": (1,)})).num_classes == (1,)


# Runs


@config
class NoOptions(Config):
    """A verb without options."""


def test_a_run_keeps_the_kind_of_its_data():
    run = dataclasses.replace(load_recipe("adm-digits"), data=settings(Path("somewhere"), crop="random", scale=0.2))
    assert RunConfig.from_dict(run.to_dict()) == run
    assert run.to_dict()["data"]["kind"] == "paired"
    flags = ["--data.maps", "labels", "parts", "--data.num-classes", "12", "3", "--data.width", "None", "--data.jitter", "0.1"]
    _, changed = parse(flags, prog="", description="", options=NoOptions(), settings=run)
    wanted = dataclasses.replace(run.data, maps=("labels", "parts"), num_classes=(12, 3), width=None, jitter=0.1)
    assert changed.data == wanted
    with pytest.raises(ConfigError, match="--data.num-classes: .*the number of classes of each of data.maps"):
        parse(["--data.maps", "a", "b"], prog="", description="", options=NoOptions(), settings=run)


# The loader


def test_workers_resume_ranks_and_batch_size_change_nothing(tmp_path):
    images = opened(write_pairs(tmp_path), crop="random", scale=0.3, jitter=0.2).train
    whole = taken(images)
    assert_same(taken(images, workers=2), whole)
    assert_same(joined([taken(images, count=2), taken(images, start=8, count=3)]), whole)
    assert_same(taken(images, count=4, batch_size=5), whole)
    ranks = [taken(images, count=1, rank=rank, world_size=2) for rank in range(2)]
    assert_same(joined(ranks), taken(images, count=1))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_map_that_breaks_during_training_is_named(tmp_path, workers):
    images = opened(write_pairs(tmp_path)).train
    (tmp_path / "labels" / "drive" / "3.png").write_bytes(b"gone")
    with pytest.raises(DataError, match=r"labels/drive/3.png: not an image that can be read .*; repair or remove the file") as caught:
        taken(images, workers=workers)
    assert "\n" not in str(caught.value)


@pytest.mark.real_data(CAMVID)
def test_camvid():
    data = PairedDataConfig(path=str(CAMVID), maps=("labels",), num_classes=(11,), dont_care=True, image_size=64, width=96).open()
    assert (len(data.train), len(data.validation)) == (367, 101)
    batch = data.train.batch(np.arange(6))
    assert batch.images.shape == (6, 64, 96, 3) and batch.inputs["labels"].shape == (6, 64, 96)
    assert np.unique(batch.inputs["labels"]).max() == 11
    sky, road = (batch.images[batch.inputs["labels"] == k].mean() for k in (0, 3))
    assert sky > road + 50
