"""Parquet files, laid out as Hugging Face's data sets are."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.pictures import encoded, picture, write_folder
from tests.data.test_shards import NAMES, assert_same, batches, opened, sharded
from triptych.core.errors import DataError
from triptych.data import parquet
from triptych.data.skipping import write_skip
from triptych.data.source import recognised
from triptych.runs.given.pictures import open_pictures

pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")


def write(path: Path, rows: list[tuple[str | None, bytes | None]], labels: list[int | None] | None = None, **options: Any) -> Path:
    """Rows of path and bytes, perhaps with labels; `names`: of the classes; `plain`: without the struct."""
    names, plain = options.pop("names", None), options.pop("plain", False)
    images = [data for _, data in rows] if plain else [{"bytes": data, "path": name} for name, data in rows]
    kind = pa.binary() if plain else pa.struct({"bytes": pa.binary(), "path": pa.string()})
    columns = {"image": pa.array(images, kind), "text": pa.array(["x"] * len(rows))}
    features: dict[str, Any] = {"image": {"_type": "Image"}}
    if labels is not None:
        columns["label"] = pa.array(labels, pa.int64())
        features["label"] = {"names": names, "_type": "ClassLabel"} if names else {"dtype": "int64", "_type": "Value"}
    table = pa.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **({"row_group_size": 4} | options))
    return path


def of_folder(folder: Path) -> list[tuple[str, bytes]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(path.relative_to(folder).as_posix(), path.read_bytes()) for path in files]


ROWS = [(None, encoded(picture(20, 16, seed=k))) for k in range(10)]


@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_the_same_images_in_every_source(tmp_path, compression, monkeypatch):
    """A folder, shards, one Parquet file and several: the same batches to the bit, and on from anywhere."""
    monkeypatch.setattr(parquet, "_CACHED", 1)
    monkeypatch.setattr(parquet, "_MOST_OPEN", 1)
    folder = write_folder(tmp_path / "files", NAMES)
    rows = of_folder(folder)
    labels = [int(name.startswith("dog")) for name, _ in rows]
    write(tmp_path / "one.parquet", rows, labels, names=["cat", "dog"], compression=compression)
    for k in range(3):
        write(tmp_path / "several" / f"{k}.parquet", rows[k::3], labels[k::3], names=["cat", "dog"], compression=compression)
    expected = opened(folder, crop="random")
    for path in (tmp_path / "one.parquet", tmp_path / "several", sharded(folder, tmp_path / "shards")):
        data = opened(path, crop="random")
        assert data.spec == expected.spec and data.spec.class_names == ("cat", "dog")
        keys = [[images.source_key(k) for k in range(len(images))] for images in (data.train, expected.train)]
        assert keys[0] == keys[1]
        assert_same(batches(data), batches(expected))
        assert_same(batches(data, first=2, count=2), batches(expected)[2:])
    assert recognised(tmp_path / "several") == "parquet" == recognised(tmp_path / "one.parquet")


@pytest.mark.parametrize("plain", [False, True])
def test_rows_without_paths_have_numbers(tmp_path, plain):
    path = write(tmp_path / "x.parquet", ROWS, list(range(10)), plain=plain)
    data = opened(path, validation_fraction=0.0)
    assert data.train.labels.tolist() == list(range(10)) and data.spec.num_classes == 10
    for k, (_, image) in enumerate(ROWS):
        assert data.train.content(k) == image
    assert data.train.key(7) == f"{path}: row 7" and data.train.source_key(7) == "x-000000007"
    pictures = open_pictures(path)
    assert len(pictures) == 10 and pictures.labels.tolist() == list(range(10))


def test_paths_that_come_twice_are_no_names(tmp_path):
    write(tmp_path / "x.parquet", [("same.png", data) for _, data in ROWS])
    data = opened(tmp_path / "x.parquet", validation_fraction=0.0)
    assert len(data.train) == 10 and data.spec.num_classes is None and data.train.source_key(0) == "x-000000000"


def test_splits_by_the_names_of_the_files(tmp_path):
    write(tmp_path / "train-00000-of-00001.parquet", ROWS[:6])
    write(tmp_path / "test-00000-of-00001.parquet", ROWS[6:])
    data = opened(tmp_path)
    assert (len(data.train), len(data.validation)) == (6, 4)
    assert data.validation.content(0) == ROWS[6][1]


def test_classes_that_are_secret_and_classes_that_are_none(tmp_path):
    path = tmp_path / "x.parquet"
    assert opened(write(path, ROWS, [-1] * 10, names=["a", "b"])).train.labels is None
    for wrong, labels in ((-1, [0] * 9 + [None]), (2, [0] * 9 + [2])):
        with pytest.raises(DataError, match=rf"x\.parquet: holds the class {wrong}, expected 0 to 1: set data\.labels to none"):
            opened(write(path, ROWS, labels, names=["a", "b"]))
    assert opened(path, labels="none").train.labels is None


def test_rows_may_be_left_out(tmp_path):
    """Of a list of images to leave out: what remains keeps its bytes and its class."""
    path = write(tmp_path / "x.parquet", ROWS, [k % 3 for k in range(10)], names=["a", "b", "c"])
    write_skip(tmp_path / "skip.json", {"x-000000002": "blurred", "x-000000007": "twice"})
    data = opened(path, validation_fraction=0.0, skip=str(tmp_path / "skip.json"))
    rest = [0, 1, 3, 4, 5, 6, 8, 9]
    assert data.train.labels.tolist() == [k % 3 for k in rest]
    assert [data.train.content(k) for k in range(8)] == [ROWS[k][1] for k in rest]


def test_files_that_hold_no_images(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": [1, 2], "b": ["x", "y"]}), path)
    with pytest.raises(DataError, match=r"x\.parquet: holds a \(int64\), b \(string\), expected one with images, image: a struct of bytes"):
        opened(path)
    write(path, [("a.png", ROWS[0][1]), ("b.png", None)])
    with pytest.raises(DataError, match=r"x\.parquet: row 1: has no bytes in its column image; write the images themselves into the file"):
        opened(path, validation_fraction=0.0)


def test_pyarrow_is_asked_for(tmp_path, monkeypatch):
    path = write(tmp_path / "x.parquet", ROWS)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r"read by pyarrow, which is not installed: pip install 'triptych\[parquet\]'"):
        opened(path)


def test_damage_is_one_line(tmp_path):
    path = write(tmp_path / "x.parquet", of_folder(write_folder(tmp_path / "files", NAMES)), compression="snappy")
    whole, refused = path.read_bytes(), 0
    for seed in range(60):
        chance, data = random.Random(seed), bytearray(whole)
        if seed % 4 == 0:
            data = data[: chance.randrange(len(data))]
        for _ in range(4):
            data[chance.randrange(len(data) // 2 if seed % 2 else 0, len(data))] = chance.randrange(256)
        path.write_bytes(data)
        try:
            images = opened(path, validation_fraction=0.0).train
            images.batch(np.arange(len(images)))
        except DataError as error:
            assert "\n" not in str(error) and "x.parquet" in str(error)
            refused += 1
    assert refused > 20


def test_columns_of_one_name_are_named(tmp_path):
    table = pq.read_table(write(tmp_path / "0.parquet", ROWS))
    for name in table.schema.names:
        pq.write_table(table.append_column(name, table.column(name)), tmp_path / "1.parquet")
        for path in (tmp_path / "1.parquet", tmp_path):
            with pytest.raises(DataError, match=rf"1\.parquet: has several columns called {name}; give each a name of its own"):
                opened(path)


def test_files_of_other_columns_are_named(tmp_path):
    write(tmp_path / "label/0.parquet", ROWS[:5], [0, 1, 0, 1, 0])
    write(tmp_path / "label/1.parquet", ROWS[5:])
    with pytest.raises(DataError, match=r"1\.parquet: has no column label, unlike that of 0\.parquet; give files of the same columns"):
        opened(tmp_path / "label")
    write(tmp_path / "text/0.parquet", ROWS[:5], [0, 1, 0, 1, 0])
    table = pq.read_table(tmp_path / "text/0.parquet")
    words = table.set_column(table.schema.get_field_index("label"), "label", pa.array(["a"] * 5))
    pq.write_table(words, tmp_path / "text/1.parquet")
    with pytest.raises(DataError, match=r"1\.parquet: its column label is of another type than that of 0\.parquet"):
        opened(tmp_path / "text")
    (tmp_path / "image").mkdir()
    write(tmp_path / "image/0.parquet", ROWS[:5])
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "image/1.parquet")
    with pytest.raises(DataError, match=r"1\.parquet: has no column image"):
        opened(tmp_path / "image")
    large = table.set_column(table.schema.get_field_index("label"), "label", pa.array([2**63] * 5, pa.uint64()))
    (tmp_path / "large").mkdir()
    pq.write_table(large, tmp_path / "large/0.parquet")
    with pytest.raises(DataError, match="holds the class 9223372036854775808, expected 0 to"):
        opened(tmp_path / "large")
