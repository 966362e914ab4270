"""Paths that stand for several tars or Parquet files."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.data.pictures import encoded, picture, write_folder
from tests.data.test_shards import NAMES, assert_same, batches, opened, sharded, write
from triptych.core.batch import InputSpec
from triptych.core.errors import DataError
from triptych.data import patterns
from triptych.data.config import DataConfig
from triptych.data.patterns import is_pattern, matched
from triptych.data.source import recognised
from triptych.data.subjects import open_subjects
from triptych.runs.data_look import look
from triptych.runs.doctor import examine
from triptych.runs.given.collection import open_collection
from triptych.runs.given.pictures import open_pictures
from triptych.runs.given.sizes import squares


def touched(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("x-{000..002}.tar", ["x-000.tar", "x-001.tar", "x-002.tar"]),
        ("x-{2..0}.tar", ["x-2.tar", "x-1.tar", "x-0.tar"]),
        ("x-{9..11}.tar", ["x-9.tar", "x-10.tar", "x-11.tar"]),
        ("x-{09..11}.tar", ["x-09.tar", "x-10.tar", "x-11.tar"]),
        ("{b,a}/{0,1}.tar", ["b/0.tar", "b/1.tar", "a/0.tar", "a/1.tar"]),
        ("x-{001,00*}.tar", ["x-001.tar", "x-000.tar", "x-002.tar"]),
        ("x-?.tar", ["x-0.tar", "x-1.tar", "x-2.tar", "x-9.tar"]),
        ("x-[12].tar", ["x-1.tar", "x-2.tar"]),
    ],
)
def test_the_files_of_a_pattern_in_order(tmp_path, pattern, expected):
    touched(tmp_path, *(f"x-00{k}.tar" for k in range(3)), *(f"x-{k}.tar" for k in (0, 1, 2, 9, 10, 11)), "x-09.tar")
    touched(tmp_path, *(f"{folder}/{k}.tar" for folder in "ab" for k in range(2)))
    found = matched(tmp_path / pattern)
    assert found is not None and [str(path.relative_to(tmp_path)) for path in found] == expected


def test_what_is_there_stands_for_itself(tmp_path):
    touched(tmp_path, "x[0].tar", "x0.tar", "a{0,1}.tar")
    assert matched(tmp_path / "x[0].tar") is None and matched(tmp_path / "a{0,1}.tar") is None
    assert matched(tmp_path / "x{[0],0}.tar") == [tmp_path / "x[0].tar", tmp_path / "x0.tar"]
    assert not is_pattern(tmp_path / "nothing.tar") and is_pattern(tmp_path / "{0..1}.tar")


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_the_same_batches_as_from_the_folder(tmp_path, kind):
    folder = write_folder(tmp_path / "files", NAMES)
    if kind == "tar":
        place, last = sharded(folder, tmp_path / "shards"), "part-{002,00[01]}.tar"
    else:
        parquet = pytest.importorskip("tests.data.test_parquet")
        place, rows = tmp_path / "rows", parquet.of_folder(folder)
        labels = [int(name.startswith("dog")) for name, _ in rows]
        for k in range(3):
            parquet.write(place / f"{k}.parquet", rows[k::3], labels[k::3], names=["cat", "dog"])
        last = "{2..0}.parquet"
    pattern = place / last
    assert recognised(pattern) == kind == recognised(place)
    found, expected = opened(pattern), opened(folder)
    assert found.spec == expected.spec
    assert_same(batches(found), batches(expected))
    assert look(pattern).count == len(NAMES)


def test_some_shards_are_some_of_the_images_and_the_doctor_sees_that_they_change(tmp_path):
    for k in range(3):
        write(tmp_path / f"x-{k}.tar", {f"{k}.png": encoded(picture(20, 16, seed=k))})
    config = DataConfig(path=str(tmp_path / "x-{0..1}.tar"), image_size=16, validation_fraction=0.0)
    assert len(config.open().train) == 2
    subjects = open_subjects(config)
    assert len(subjects) == 2 and not subjects.complaints
    before = subjects.fingerprint()
    write(tmp_path / "x-2.tar", {"other.png": b"x"})
    assert open_subjects(config).fingerprint() == before
    write(tmp_path / "x-1.tar", {"1.png": encoded(picture(20, 16, seed=9)), "more.png": encoded(picture(20, 16, seed=10))})
    assert open_subjects(config).fingerprint() != before


def test_patterns_wherever_a_source_of_images_is_named(tmp_path):
    """A reference, images to be encoded, a comparison of the doctor: as the folder of the same files; another shard is other images."""
    shards, spec = tmp_path / "shards", InputSpec(name="x", kind="image", channels=3)
    for k in range(3):
        write(shards / f"x-{k}.tar", {f"{k}.png": encoded(picture(16, 16, seed=k))})
    pattern = shards / "x-{0..2}.tar"
    pictures, expected = open_pictures(pattern), open_pictures(shards)
    assert pictures.identity["sha256"] == expected.identity["sha256"] and len(pictures) == 3
    assert np.array_equal(pictures.images(range(3)), expected.images(range(3)))
    collection = open_collection(pattern, spec, squares(16))
    assert len(collection) == 3 and np.array_equal(collection.read(2)[1], pictures.images([2])[0])
    found = examine(DataConfig(path=str(shards / "x-[01].tar"), image_size=16), against=shards / "x-{1..2}.tar", workers=1)
    assert found.against is not None and (found.count(3), len(found.against)) == (2, 2)
    write(shards / "x-1.tar", {"1.png": encoded(picture(16, 16, seed=7))})
    assert open_pictures(pattern).identity["sha256"] != pictures.identity["sha256"]
    assert open_collection(pattern, spec, squares(16)).origin != collection.origin
    for opened_by in (open_pictures, lambda place: open_collection(place, spec, squares(16))):
        with pytest.raises(DataError, match=r"x-3\.tar: does not exist, but is of .*x-\{2\.\.3\}\.tar$"):
            opened_by(shards / "x-{2..3}.tar")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("x-{0..3}.tar", r"x-2\.tar: does not exist, but is of .*x-\{0\.\.3\}\.tar$"),
        ("y-*.tar", r"y-\*\.tar: finds no file"),
        ("x-{0}.tar", r"\{0\} is no range and no list; expected braces such as \{000\.\.009\}"),
        ("{x-0.tar,z.zip}", r"stands for x-0\.tar and 1 other, which are not all tars, nor all \.parquet; give a folder$"),
        ("{x-0.tar,folder.tar}", r"which are not all tars"),
        ("x-{0..999999999}.tar", r"x-2\.tar: does not exist"),
    ],
)
def test_what_cannot_be_used_is_one_line(tmp_path, pattern, message):
    touched(tmp_path, "x-0.tar", "x-1.tar", "z.zip", "folder.tar/0")
    with pytest.raises(DataError, match=message) as error:
        DataConfig(path=str(tmp_path / pattern)).open()
    assert "\n" not in str(error.value)


def test_other_mistakes(tmp_path, monkeypatch):
    write(tmp_path / "0.tar", {"0.png": encoded(picture(20, 16))})
    with pytest.raises(DataError, match="a pattern stands for tars or Parquet files, but data.source is folder"):
        DataConfig(path=str(tmp_path / "{0..0}.tar"), source="folder").open()
    shutil.copy(tmp_path / "0.tar", tmp_path / "1.tar")
    with pytest.raises(DataError, match=r"0\.png lies in 0\.tar and 1\.tar"):
        DataConfig(path=str(tmp_path / "?.tar"), image_size=16).open()
    monkeypatch.setattr(patterns, "MOST", 1)
    with pytest.raises(DataError, match="stands for more than 1 files; give their folder"):
        matched(tmp_path / "{0,1}.tar")
