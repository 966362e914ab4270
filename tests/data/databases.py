"""LMDBs for tests, laid out as imaginaire lays out its data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def write_database(folder: Path, source: Path) -> Path:
    """The files of a folder under the keys "sequence/stem"."""
    lmdb = pytest.importorskip("lmdb")
    folder.mkdir(parents=True)
    names = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
    with lmdb.open(str(folder), map_size=2**24) as environment, environment.begin(write=True) as transaction:
        for name in names:
            transaction.put(name.with_suffix("").as_posix().encode(), (source / name).read_bytes())
    (folder.parent / "metadata.json").write_text(json.dumps({"extensions": {folder.name: "png"}}))
    (folder.parent / "all_filenames.json").write_text(json.dumps({"": [name.stem for name in names]}))
    return folder
