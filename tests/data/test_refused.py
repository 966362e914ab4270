"""Sources that are refused when they are opened, or when an image of them is read: each in one line that names it and says what to do."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.data import pairs as paired
from tests.data.databases import write_database
from tests.data.pictures import encoded, picture, write_folder, write_zip
from tests.data.test_shards import opened, sharded, write
from triptych.core.errors import DataError
from triptych.data import archives, database, parquet
from triptych.data.database import open_database
from triptych.data.shards import open_shards
from triptych.data.skipping import write_skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "images", [f"{kind}/{kind}{k}.png" for kind in ("cat", "dog") for k in range(4)])


def refusal(act: Callable[[], Any], kind: type[Exception] = DataError) -> str:
    with pytest.raises(kind) as caught:
        act()
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_zips_with_a_password(tmp_path, folder):
    path = write_zip(tmp_path / "a.zip", folder)
    content = bytearray(path.read_bytes())
    content[content.rindex(b"PK\x01\x02") + 8] |= 1  # the flags of its last entry
    path.write_bytes(content)
    assert refusal(lambda: opened(path)) == f"{path}/dog/dog3.png: encrypted; make the archive without a password"


def test_zips_of_other_methods(tmp_path, folder):
    path = write_zip(tmp_path / "a.zip", folder, method=zipfile.ZIP_BZIP2)
    said = f"{path}/cat/cat0.png: compressed by a method other than deflate; make the archive again with deflate"
    assert refusal(lambda: opened(path)) == said


def test_tars_that_unpack_to_too_much(tmp_path, monkeypatch):
    data = encoded(picture(20, 16))
    path = write(tmp_path / "a.tar.gz", {"x.png": data, "y.png": data + bytes(1000)})
    monkeypatch.setattr(archives, "MOST_BYTES", len(data))
    assert refusal(lambda: opened(path)) == f"{path}/y.png: larger than {len(data):,} bytes; leave it out of the archive"
    monkeypatch.undo()
    monkeypatch.setattr(archives, "_COPY_BYTES", 100)
    assert "headers of more than 100 bytes" in refusal(lambda: opened(path))


def test_shards_with_a_table_of_labels(tmp_path, folder):
    root = sharded(folder, tmp_path / "shards", shards=2)
    write(root / "part-001.tar", {"x.png": encoded(picture(20, 16)), "dataset.json": b'{"labels": [["x.png", 0]]}'})
    said = "part-001.tar/dataset.json: labels of shards are beside each image (x.cls beside x.jpg); leave it out"
    assert refusal(lambda: open_shards(root)).endswith(said)


def test_parquet_files_of_one_name_and_none(tmp_path):
    pytest.importorskip("pyarrow")
    paths = [tmp_path / kind / "a.parquet" for kind in ("cat", "dog")]
    said = f"{tmp_path}: stands for files of one name in several folders, which tells their rows apart; rename them"
    assert refusal(lambda: parquet.open_parquet(tmp_path, paths)) == said
    said = f"{tmp_path}: not a file, nor a folder of .parquet files, but data.source is parquet"
    assert refusal(lambda: parquet.open_parquet(tmp_path)) == said


def test_parquet_rows_that_are_too_large(tmp_path, monkeypatch):
    pa: Any = pytest.importorskip("pyarrow")
    pq: Any = pytest.importorskip("pyarrow.parquet")
    path, rows = tmp_path / "a.parquet", [encoded(picture(20, 16, seed=k)) for k in range(2)]
    pq.write_table(pa.table({"image": pa.array([{"bytes": row} for row in rows])}), path)
    table = parquet.open_parquet(path)
    monkeypatch.setattr(parquet, "MOST_BYTES", len(rows[1]) - 1)
    assert refusal(lambda: table.read(1)) == f"{path}: row 1: larger than {len(rows[1]) - 1:,} bytes; leave it out"
    monkeypatch.setattr(parquet, "_MOST_IN_A_GROUP", 1)
    said = f"{path}: a row group of more than 1 bytes; write the file with fewer rows to a group"
    assert refusal(lambda: parquet.open_parquet(path).read(0)) == said


def test_pairs_that_are_all_left_out(tmp_path):
    root = paired.write_pairs(tmp_path)
    write_skip(tmp_path / "skip.jsonl", {f"images/drive/{k}.png": "blurred" for k in range(paired.COUNT)})
    said = refusal(lambda: paired.opened(root, skip=str(tmp_path / "skip.jsonl")))
    assert said.endswith("no pairs to train on, for data.skip leaves all of them out")


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("entries", 7, "8 entries where 7 should be"),
        ("flags", 4, "it is no database of images: its keys may come twice, or are numbers"),
        ("root", 999, "it leads to page 999 of"),
    ],
)
def test_damaged_databases(tmp_path, folder, place, value, said):
    path = write_database(tmp_path / "db", folder) / database._FILE
    content = bytearray(path.read_bytes())
    for start in (0, database._META.unpack_from(content)[2]):
        fields = list(database._META.unpack_from(content, start))
        fields[{"flags": 4, "entries": -4, "root": -3}[place]] = value
        database._META.pack_into(content, start, *fields)
    path.write_bytes(content)
    assert refusal(lambda: open_database(path.parent)).startswith(f"{path}: {said}")
