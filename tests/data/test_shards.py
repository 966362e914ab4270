"""Several tars as one set, and classes in files beside the images."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.data.pictures import encoded, picture, write_folder, write_tar, write_zip
from triptych.core.errors import ConfigError, DataError
from triptych.data import shards
from triptych.data.config import DataConfig
from triptych.data.images import Data
from triptych.data.loader import Loader
from triptych.data.source import recognised

NAMES = [f"{kind}/{kind}{k}.{'jpg' if k % 3 else 'png'}" for kind in ("cat", "dog") for k in range(10)]


def opened(path: Path, **settings) -> Data:
    return DataConfig(path=str(path), **({"image_size": 16, "validation_fraction": 0.3} | settings)).open()


def write(path: Path, members: Mapping[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def sharded(folder: Path, root: Path, *, shards: int = 3, last: str = ".tar") -> Path:
    """The files of a folder, dealt out among tars; the last one may be compressed."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for k in range(shards):
        members = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files[k::shards]}
        write(root / f"part-{k:03d}{last if k == shards - 1 else '.tar'}", members)
    return root


def batches(data: Data, first: int = 0, count: int = 4) -> list[tuple[np.ndarray, np.ndarray | None]]:
    with closing(Loader(data.train, batch_size=5, seed=3, workers=0)) as loader:
        drawn = loader.batches(5 * first)
        taken = [next(drawn) for _ in range(count)]
    return [(np.asarray(batch.images), None if batch.labels is None else np.asarray(batch.labels)) for batch in taken]


def assert_same(found: list, expected: list) -> None:
    for (images, labels), (other_images, other_labels) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(images, other_images)
        np.testing.assert_array_equal(labels, other_labels)


@pytest.mark.parametrize("last", [".tar", ".tar.gz"])
def test_shards_give_the_batches_of_a_folder_a_tar_and_a_zip(tmp_path, last, monkeypatch):
    monkeypatch.setattr(shards, "_MOST_OPEN", 1)
    folder = write_folder(tmp_path / "files", NAMES)
    place = sharded(folder, tmp_path / "shards", last=last)
    assert recognised(place) == "tar" == recognised(write_tar(tmp_path / "one.tar", folder, prefix=""))
    settings = {"crop": "random", "jitter": 0.1}
    expected = opened(folder, **settings)
    for path in (place, tmp_path / "one.tar", write_zip(tmp_path / "one.zip", folder)):
        data = opened(path, **settings)
        assert data.spec == expected.spec
        assert [data.train.source_key(k).removeprefix("./") for k in range(len(data.train))] == [
            expected.train.source_key(k) for k in range(len(expected.train))
        ]
        assert_same(batches(data), batches(expected))
        assert_same(batches(data, first=2, count=2), batches(expected)[2:])
        np.testing.assert_array_equal(data.validation.batch(np.arange(3)).images, expected.validation.batch(np.arange(3)).images)
    data = opened(place)
    assert str(place / "part-0") in data.train.key(0) and data.train.key(0).endswith(data.train.source_key(0))


def test_few_shards_are_open_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "_MOST_OPEN", 2)
    folder = write_folder(tmp_path / "files", NAMES)
    place = sharded(folder, tmp_path / "shards", shards=8)
    before = len(os.listdir("/dev/fd"))
    data = opened(place)
    for _ in range(2):
        data.train.batch(np.arange(len(data.train)))
        assert len(os.listdir("/dev/fd")) <= before + 2


@pytest.mark.parametrize("missing", [False, True])
def test_a_shard_that_is_gone_is_no_bad_image(missing, tmp_path, monkeypatch):
    """The images of the others would be learned without its own, and without a word in the end."""
    monkeypatch.setattr(shards, "_MOST_OPEN", 1)
    place = sharded(write_folder(tmp_path / "files", NAMES), tmp_path / "shards")
    data = opened(place, on_error="skip", most_errors=1.0, validation_fraction=0.0)
    data.train.batch(np.array([next(k for k in range(len(data.train)) if "part-000" in data.train.key(k))]))  # the others are closed
    shard = place / "part-001.tar"
    shard.unlink() if missing else write(shard, {"x.png": encoded(picture(20, 16))})
    said = r"cannot be opened any more \(No such file or directory\)" if missing else "changed while it was in use"
    with pytest.raises(DataError, match=rf"part-001\.tar: {said}; start again$"):
        data.train.batch(np.arange(len(data.train)))


def test_a_shard_that_is_gone_while_it_is_open_is_read_to_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "_MOST_OPEN", 1)
    place = sharded(write_folder(tmp_path / "files", NAMES), tmp_path / "shards", shards=2)
    files = shards.open_shards(place)
    shard = next(k for k in range(len(files.names)) if "part-000" in files.describe(k))
    other = next(k for k in range(len(files.names)) if "part-001" in files.describe(k))
    content = files.read(shard)
    (place / "part-000.tar").unlink()
    assert files.read(other) and files.read(shard) == content


def test_a_shard_that_is_replaced_meanwhile_is_named(tmp_path):
    place = sharded(write_folder(tmp_path / "files", NAMES), tmp_path / "shards")
    files = shards.open_shards(place)
    write(place / "part-001.tar", {"x.png": encoded(picture(20, 16))})
    with pytest.raises(DataError, match=r"part-001\.tar: changed while it was in use; start again$"):
        for k in range(len(files.names)):
            files.read(k)


def test_shards_of_a_split(tmp_path):
    image = encoded(picture(20, 16))
    for name in ("set-train-000.tar", "set-train-001.tar", "set-val-000.tar"):
        write(tmp_path / name, {f"{name[4:-4]}-{k}.png": image for k in range(2)})
    data = opened(tmp_path)
    assert (len(data.train), len(data.validation)) == (4, 2)
    assert "val-000" in data.validation.key(0)
    write(tmp_path / "more-000.tar", {"more.png": image})
    assert len(opened(tmp_path, validation_fraction=0.0).train) == 7
    (tmp_path / "more-000.tar").unlink()
    (tmp_path / "set-val-000.tar").rename(tmp_path / "set-more-000.tar")
    data = opened(tmp_path, validation_fraction=0.0)
    assert len(data.train) == 6 and data.spec.num_classes is None


def test_one_path_in_two_shards(tmp_path):
    image = encoded(picture(20, 16))
    for name in ("a.tar", "b.tar"):
        write(tmp_path / name, {"000.png": image})
    with pytest.raises(DataError, match=r"000\.png lies in a\.tar and b\.tar; give each image a path of its own$"):
        opened(tmp_path)


def test_what_is_said_of_one_shard_is_said_of_all(tmp_path):
    content = encoded(picture(16, 16, seed=1))
    for k in range(2):
        with tarfile.open(tmp_path / f"{k}.tar", "w") as archive:
            for name in (f"{k}.png", f"{k}.png"):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    notes = opened(tmp_path).notes
    assert [note for note in notes if "later" in note] == [
        f"{tmp_path}/{k}.tar: 1 of its files has the name of a later one, which counts alone" for k in range(2)
    ]


def test_a_folder_of_images_with_a_tar_is_a_folder(tmp_path):
    write_folder(tmp_path, ["1.png", "2.png"])
    write(tmp_path / "more.tar", {"x.png": b""})
    assert recognised(tmp_path) == "folder" and len(opened(tmp_path, validation_fraction=0.0).train) == 2
    with pytest.raises(DataError, match="not a file, nor a folder of tars, but data.source is tar"):
        opened(write_folder(tmp_path / "none", ["1.png"]), source="tar")


def test_a_damaged_shard_is_named(tmp_path):
    place = sharded(write_folder(tmp_path / "files", NAMES), tmp_path / "shards")
    path = place / "part-002.tar"
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(DataError, match=r"part-002\.tar"):
        opened(place)


# Classes beside the images


def beside(root: Path, kind: str, *, compressed: bool = False) -> Path:
    """Images 0.jpg to 5.jpg of the classes 0, 1, 2, 0 ..., each with a file of that."""
    for shard in range(2):
        members: dict[str, bytes] = {}
        for k in range(3 * shard, 3 * shard + 3):
            label = k % 3
            said = {"cls": f"{label}\n", "json": json.dumps({"label": label, "url": "x"}), "json cls": json.dumps({"cls": label})}[kind]
            members |= {f"{k}.seg.png" if k == 5 else f"{k}.jpg": encoded(picture(20, 16, seed=k), "PNG" if k == 5 else "JPEG")}
            members |= {f"{k}.{kind.split()[0]}": said.encode(), f"{k}.txt": b"a caption"}
        write(root / f"{shard}.tar{'.gz' if compressed else ''}", members)
    return root


@pytest.mark.parametrize("kind", ["cls", "json", "json cls"])
@pytest.mark.parametrize("compressed", [False, True])
def test_classes_in_files_beside(tmp_path, kind, compressed):
    data = opened(beside(tmp_path, kind, compressed=compressed), validation_fraction=0.0)
    assert data.train.labels.tolist() == [0, 1, 2, 0, 1, 2] and data.spec.class_names == ("0", "1", "2")
    assert any("3 classes by the files beside the images" in note for note in data.notes)
    assert any("passed over 6 files that are no images: 6 .txt" in note for note in data.notes)
    single = opened(next(tmp_path.glob("1.tar*")), validation_fraction=0.0)
    assert single.train.labels.tolist() == [0, 1, 2]
    assert opened(tmp_path, validation_fraction=0.0, labels="none").train.labels is None


def test_a_number_counts_before_what_is_said_beside_it(tmp_path):
    image = encoded(picture(20, 16))
    write(tmp_path / "x.tar", {"a.json": b'{"label": 0}', "a.cls": b"1", "a.png": image, "b.png": image, "b.cls": b"0", "b.json": b"[]"})
    assert opened(tmp_path / "x.tar", validation_fraction=0.0).train.labels.tolist() == [1, 0]


def test_files_beside_that_say_no_class(tmp_path):
    image = encoded(picture(20, 16))
    write(tmp_path / "x.tar", {"a.png": image, "a.json": b'{"caption": "x"}', "b.png": image, "b.json": b'{"label": "x"}'})
    assert opened(tmp_path / "x.tar", validation_fraction=0.0).train.labels is None


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.cls": b"0"}, r"x\.tar/b\.png: no \.cls or \.json beside it has its class: mend the file, or set data\.labels to"),
        ({"a.cls": b"0", "b.cls": b"-1"}, r"x\.tar/b\.cls: has the label -1 for its image, expected one class, a whole number from 0"),
        ({"a.cls": b"0", "b.cls": b"cat"}, r"x\.tar/b\.cls: holds no class \("),
        ({"a.cls": b"0", "b.cls": b"99999999"}, r"x\.tar/b\.cls: has the label 99999999"),
        ({"a.json": b'{"label": 1}', "b.json": b"{}"}, r'x\.tar/b\.json: holds no class as "label" or "cls", as those of other images do'),
        ({"a.cls": b"0", "b.cls": b"[" * 60000}, r"x\.tar/b\.cls: holds no class \(nested too deeply\)"),
    ],
)
def test_classes_that_are_none(tmp_path, members, message):
    image = encoded(picture(20, 16))
    write(tmp_path / "x.tar", {"a.png": image, "b.png": image, **members})
    with pytest.raises((DataError, ConfigError), match=message):
        opened(tmp_path / "x.tar", validation_fraction=0.0)
