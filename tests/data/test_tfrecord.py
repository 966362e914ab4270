from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.data.pictures import picture
from tests.data.records import crc, example, features_of, field, of_bytes, of_ints, record, shard, write_shards
from triptych.core.errors import ConfigError, DataError
from triptych.data import tfrecord
from triptych.data.config import DataConfig
from triptych.data.images import Data
from triptych.data.source import recognised

# Five images of 8x8, written by TensorFlow 2.21 with
#
#     ints = lambda *values: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
#     with tf.io.TFRecordWriter("glow.tfrecords") as writer:
#         for k in range(5):
#             pixels = (np.arange(8 * 8 * 3) * (k + 1) % 256).astype(np.uint8).reshape(8, 8, 3)
#             data = tf.train.Feature(bytes_list=tf.train.BytesList(value=[pixels.tobytes()]))
#             feature = {"shape": ints(8, 8, 3), "data": data, "label": ints(300 * k), "attr": ints(*[(-1) ** j for j in range(40)])}
#             writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
GOLDEN = Path(__file__).parents[1] / "golden" / "glow.tfrecords"


def opened(path: Path, **settings) -> Data:
    return DataConfig(path=str(path), **({"image_size": 8, "validation_fraction": 0.05, "flip": False} | settings)).open()


def everything(images) -> np.ndarray:
    return images.batch(np.arange(len(images))).images


def pictures(count: int, *, side: int = 8, first: int = 0) -> list[np.ndarray]:
    return [picture(side, side, seed=first + k) for k in range(count)]


def one_file(folder: Path, content: bytes) -> Path:
    """A data set of one file with that content."""
    (folder / "train").mkdir(parents=True)
    shard(folder / "train").write_bytes(content)
    return folder


def test_a_file_written_by_tensorflow(tmp_path):
    data = opened(one_file(tmp_path / "x", GOLDEN.read_bytes()), validation_fraction=0)
    expected = np.stack([(np.arange(192) * (k + 1) % 256).astype(np.uint8).reshape(8, 8, 3) for k in range(5)])
    np.testing.assert_array_equal(everything(data.train), expected)
    assert data.train.labels.tolist() == [0, 300, 600, 900, 1200] and data.train.labels.dtype == np.int64
    assert (data.spec.num_classes, data.spec.channels, data.spec.class_names[-1]) == (1201, 3, "1200")


def test_the_tests_write_as_tensorflow_does():
    data = GOLDEN.read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert record(data[12 : 12 + length]) == data[: length + 16]
    assert crc(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF  # the check value of CRC-32C


def test_splits_shards_and_labels(tmp_path):
    write_shards(tmp_path / "train", pictures(7), bits=3, labels=[2, 0, 1, 2, 0, 1, 1], shards=3)
    write_shards(tmp_path / "validation", pictures(4, first=50), bits=3, labels=[1, 2, 0, 3], shards=2)
    assert recognised(tmp_path) == "tfrecord"
    for source in ("auto", "tfrecord"):
        data = opened(tmp_path, source=source)
        np.testing.assert_array_equal(everything(data.train), pictures(7))
        np.testing.assert_array_equal(everything(data.validation), pictures(4, first=50))
        assert data.train.labels.tolist() == [2, 0, 1, 2, 0, 1, 1] and data.validation.labels.tolist() == [1, 2, 0, 3]
        assert data.spec.class_names == ("0", "1", "2", "3")
    assert data.train.key(5) == f"{tmp_path}/train/train-r03-s-0002-of-0003.tfrecords: record 0"
    plain = opened(tmp_path, labels="none", validation_fraction=0)
    assert (plain.spec.num_classes, plain.train.labels, plain.validation) == (None, None, None)


def test_labels_that_are_all_0_are_none(tmp_path):
    write_shards(tmp_path / "train", pictures(3), bits=3)
    data = opened(tmp_path)
    assert (data.spec.num_classes, data.train.labels) == (None, None)
    assert len(data.train) + len(data.validation) == 3 and len(data.validation) >= 1  # held out: there is no folder of them


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("order", list(itertools.permutations(("shape", "data", "label", "attr"))))
def test_features_in_any_order(tmp_path, order, packed):
    pixels = picture(8, 8)
    features = features_of(pixels, label=7, packed=packed) | {"attr": of_ints(*[(-1) ** k for k in range(40)], packed=packed)}
    data = opened(one_file(tmp_path, record(example({name: features[name] for name in order}))), validation_fraction=0)
    np.testing.assert_array_equal(everything(data.train), pixels[None])
    assert data.train.labels.tolist() == [7]


@pytest.mark.parametrize(("image_size", "used"), [(4, 8), (8, 8), (9, 16), (16, 16), (17, 32), (32, 32)])
def test_the_next_larger_resolution_is_used(tmp_path, image_size, used):
    for bits in (3, 4, 5):
        write_shards(tmp_path / "train", pictures(3, side=2**bits, first=bits), bits=bits, shards=1)
    np.save(tmp_path / "x.npy", np.stack(pictures(3, side=used, first=used.bit_length() - 1)))
    for crop in ("center", "random"):
        settings = {"image_size": image_size, "crop": crop, "validation_fraction": 0}
        records, array = opened(tmp_path, **settings).train, opened(tmp_path / "x.npy", **settings).train
        for positions in (None, np.array([5, 6, 7])):
            found, expected = (images.batch(np.arange(3), positions, seed=1).images for images in (records, array))
            np.testing.assert_array_equal(found, expected)
    assert opened(tmp_path, image_size=64, enlarge=True).train.batch(np.array([0])).images.shape == (1, 64, 64, 3)
    with pytest.raises(DataError, match=r"train: images of 32x32 pixels, smaller than data.image_size 64: lower"):
        opened(tmp_path, image_size=64)


def test_a_given_short_side_chooses_the_resolution(tmp_path):
    for bits in (3, 4):
        write_shards(tmp_path / "train", pictures(3, side=2**bits, first=bits), bits=bits, shards=1)
    data = opened(tmp_path, image_size=8, resize=12, validation_fraction=0)
    np.save(tmp_path / "x.npy", np.stack(pictures(3, side=16, first=4)))
    expected = opened(tmp_path / "x.npy", image_size=8, resize=12, validation_fraction=0)
    np.testing.assert_array_equal(everything(data.train), everything(expected.train))
    np.save(tmp_path / "y.npy", np.stack(pictures(3, side=8, first=3)))
    padded, expected = (opened(path, image_size=12, pad=2, validation_fraction=0) for path in (tmp_path, tmp_path / "y.npy"))
    np.testing.assert_array_equal(everything(padded.train), everything(expected.train))
    with pytest.raises(DataError, match=r"train: images of 16x16 pixels, smaller than data.resize 24: lower data.resize"):
        opened(tmp_path, image_size=8, resize=24)


def test_pictures_of_other_shapes_than_their_resolution(tmp_path):
    """openai/glow keeps the LSUN images of the RealNVP protocol, 96 pixels high or wide, under the number of 64."""
    shapes = [(12, 9), (9, 20), (10, 10)]
    images = [picture(*shape, seed=k) for k, shape in enumerate(shapes)]
    write_shards(tmp_path / "train", images, bits=3)
    data = opened(tmp_path, image_size=9, validation_fraction=0)
    np.testing.assert_array_equal(data.train.batch(np.array([0])).images[0], images[0][:, 1:10])
    assert everything(data.train).shape == (3, 9, 9, 3)
    data = opened(tmp_path, image_size=10, validation_fraction=0, enlarge=True)
    assert everything(data.train).shape == (3, 10, 10, 3)


def test_channels_and_padding(tmp_path):
    images = [picture(6, 6, seed=k, channels=1) for k in range(3)]
    write_shards(tmp_path / "train", images, bits=2, shards=1)
    assert opened(tmp_path, image_size=4).spec.channels == 1
    data = opened(tmp_path, image_size=8, pad=1, channels=3, validation_fraction=0)
    expected = np.pad(np.stack(images), ((0, 0), (1, 1), (1, 1), (0, 0)), mode="minimum").repeat(3, axis=-1)
    np.testing.assert_array_equal(everything(data.train), expected)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts open files in /proc")
def test_few_files_are_open_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(tfrecord, "_MOST_OPEN", 3)
    write_shards(tmp_path / "train", pictures(20), bits=3, shards=10)
    before = len(os.listdir("/proc/self/fd"))
    data = opened(tmp_path, validation_fraction=0)
    chosen = np.random.default_rng(0).integers(0, 20, 60)
    np.testing.assert_array_equal(data.train.batch(chosen).images, np.stack(pictures(20))[chosen])
    assert len(os.listdir("/proc/self/fd")) == before + 3
    del data
    assert len(os.listdir("/proc/self/fd")) == before


# What cannot be used

GOOD = record(example(features_of(picture(8, 8), label=1)))


def changed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def with_features(**features: bytes | None) -> bytes:
    whole = features_of(picture(8, 8), label=1) | features
    return record(example({name: feature for name, feature in whole.items() if feature is not None}))


HUGE = (2**40).to_bytes(8, "little")
UNUSABLE = {
    "cut in the pixels": (GOOD[:-50], r"s-0000-of-0001.tfrecords: cut short in record 1; copy or make the file again"),
    "cut in the header": (GOOD[:7], r"tfrecords: cut short in record 1"),
    "a length beyond the file": (HUGE + crc(HUGE).to_bytes(4, "little") + GOOD, r"tfrecords: cut short in record 1"),
    "a damaged length": (changed(GOOD, 2), r"tfrecords: record 1 is damaged, or this is no TFRecord file, or a compressed one"),
    "text": (b"hello " * 20, r"tfrecords: record 1 is damaged, or this is no TFRecord file"),
    "a damaged pixel": (changed(GOOD, 60), r"tfrecords: record 1: damaged, its checksum is wrong"),
    "fewer pixels": (
        with_features(data=of_bytes(b"x" * 191)),
        r"record 1: 191 bytes of pixels where its shape is 8x8x3 \(height, width, 1 or 3 expected\)",
    ),
    "two axes": (with_features(shape=of_ints(8, 24)), r"record 1: 192 bytes of pixels where its shape is 8x24 "),
    "two channels": (with_features(shape=of_ints(8, 12, 2)), r"record 1: 192 bytes of pixels where its shape is 8x12x2 "),
    "a negative side": (with_features(shape=of_ints(-8, -8, 3)), r"record 1: 192 bytes of pixels where its shape is -8x-8x3 "),
    "an empty shape": (with_features(shape=of_ints()), r"record 1: 192 bytes of pixels where its shape is empty "),
    "another shape": (with_features(shape=of_ints(4, 16, 3)), r"record 1: an image of 4x16x3 among those of 8x8x3 or more"),
    "grey": (record(example(features_of(picture(8, 8, channels=1)))), r"record 1: an image of 8x8x1 among those of 8x8x3 or more"),
    "no pixels": (with_features(data=None), r"record 1: not an image as openai/glow writes it \(it lacks 'data'\)"),
    "pixels as numbers": (with_features(data=of_ints(1)), r"record 1: not an image .* \('data' holds 0 strings of bytes\)"),
    "no message": (record(b"\xff" * 30), r"record 1: not an image .*\(a number of more than 64 bits\)"),
    "a cut message": (record(example(features_of(picture(8, 8)))[:100]), r"record 1: not an image .*\(a field beyond the end\)"),
    "a cut number": (record(b"\x80"), r"record 1: not an image as openai/glow writes it"),
    "a group": (record(b"\x0b\x0c"), r"record 1: not an image .*\(a field of kind 3\)"),
    "an empty message": (record(b""), r"record 1: not an image .*\(it lacks 'shape'\)"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_unusable_records(tmp_path, name):
    content, message = UNUSABLE[name]
    with pytest.raises(DataError, match=message) as caught:
        everything(opened(one_file(tmp_path, GOOD + content), labels="none", validation_fraction=0).train)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (with_features(label=None), r"record 1: has no label: set data.labels to none"),
        (with_features(label=of_ints(1, 2)), r"record 1: label 1, 2, expected one number from 0"),
        (with_features(label=of_bytes(b"cat")), r"record 1: label none, expected one number from 0"),
        (with_features(label=of_ints(-1)), r"record 1: label -1, expected one number from 0"),
        (with_features(label=of_ints(2**40)), r"train: label 1099511627776, expected less than 1048576: set data.labels to none"),
        (with_features(label=field(3, field(1, b"\xff" * 9 + b"\x7e"))), r"label 9223372036854775807, expected less than"),  # 70 bits
        (record(b"\x80"), r"record 1: not an image as openai/glow writes it"),
    ],
)
def test_unusable_labels(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        opened(one_file(tmp_path, GOOD + content))


def test_any_damaged_byte_is_found(tmp_path):
    """No change of one byte gives other pixels or any error but DataError."""
    path = one_file(tmp_path, GOOD)
    for at in range(len(GOOD)):
        shard(path / "train").write_bytes(changed(GOOD, at))
        with pytest.raises(DataError, match="record 0"):
            opened(path)


def test_a_file_that_shrinks_while_it_is_used(tmp_path):
    data = opened(one_file(tmp_path, GOOD * 3), validation_fraction=0)
    os.truncate(shard(tmp_path / "train"), 2 * len(GOOD))
    with pytest.raises(DataError, match=r"record 2: cut short"):
        everything(data.train)


def test_missing_and_odd_shards(tmp_path):
    folder = write_shards(tmp_path / "train", pictures(6), bits=3, shards=3)
    for number in (0, 1, 2):
        path = shard(folder, number=number, count=3)
        path.rename(tmp_path / "away")
        with pytest.raises(DataError, match=rf"{path}: missing; all 3 shards have to be there"):
            opened(tmp_path)
        (tmp_path / "away").rename(path)
    shutil.copy(path, shard(folder, number=0, count=2))
    with pytest.raises(DataError, match=r"s-0000-of-0003.tfrecords: does not go with train-r03-s-0000-of-0002.tfrecords"):
        opened(tmp_path)
    shard(folder, number=0, count=2).unlink()
    assert len(opened(tmp_path, validation_fraction=0).train) == 6


def test_folders_that_hold_no_data_set(tmp_path):
    write_shards(tmp_path / "x" / "validation", pictures(2), bits=3)
    with pytest.raises(DataError, match=r"x: holds no train/train-rRR-s-SSSS-of-SSSS.tfrecords"):
        opened(tmp_path / "x")
    with pytest.raises(DataError, match=r"validation: one split of a set of TFRecord files: give the folder above it"):
        opened(tmp_path / "x" / "validation")
    with pytest.raises(DataError, match=r"holds no train/train-r"):
        opened(tmp_path, source="tfrecord")
    with pytest.raises(DataError, match=r"train: its TFRecord files of resolution 8 hold no records"):
        opened(one_file(tmp_path / "y", b""))
    with pytest.raises(DataError, match=r"not a folder, but data.source is tfrecord"):
        opened(GOLDEN, source="tfrecord")
    with pytest.raises(ConfigError, match=r"data.labels: got 'prefix', but x is not made of image files and it has labels of its own"):
        opened(tmp_path / "x", labels="prefix")
