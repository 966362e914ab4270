"""What was found in a set is found again without reading it, and only as long as its files are the same."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.data.pictures import encoded, picture, write_folder, write_zip
from triptych.core.cache import cache_folder
from triptych.data.archives import Archive
from triptych.data.config import DataConfig
from triptych.data.files import Folder
from triptych.runs.given import known as module
from triptych.runs.given.known import known
from triptych.runs.given.pictures import SplitPictures, open_pictures


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_MOMENT", 0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the files that were read."""
    found: list[int] = []
    for cls in (Folder, Archive):

        def read(self: Any, k: int, plain: Callable[[Any, int], bytes] = cls.read) -> bytes:
            found.append(k)
            return plain(self, k)

        monkeypatch.setattr(cls, "read", read)
    return found


@pytest.mark.parametrize("kind", ["folder", "x.zip"])
def test_a_set_is_read_once(tmp_path, reads, kind):
    path = write_folder(tmp_path / "folder", [f"{k}.png" for k in range(4)])
    path = path if kind == "folder" else write_zip(tmp_path / kind, path)
    first = open_pictures(path)
    assert reads == [0, 1, 2, 3]
    again = open_pictures(path)
    assert reads == [0, 1, 2, 3] and again.identity == first.identity and again.cut == first.cut
    smaller = open_pictures(path, image_size=8)
    assert len(reads) == 8 and smaller.identity["sha256"] == first.identity["sha256"] and smaller.size == (8, 8)


def changes() -> dict[str, Callable[[Path], object]]:
    other = encoded(picture(20, 16, seed=9))

    def same_size_and_times(folder: Path) -> None:
        """As a program does that hides what it did."""
        path = folder / "1.png"
        status, data = path.stat(), bytearray(path.read_bytes())
        data[-20] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    return {
        "written": lambda folder: (folder / "1.png").write_bytes(other),
        "hidden": same_size_and_times,
        "added": lambda folder: (folder / "9.png").write_bytes(other),
        "removed": lambda folder: (folder / "1.png").unlink(),
        "renamed": lambda folder: (folder / "1.png").rename(folder / "0.5.png"),
    }


@pytest.mark.parametrize("change", changes())
def test_a_set_that_changed_is_read_again(tmp_path, reads, change):
    path = write_folder(tmp_path / "folder", [f"{k}.png" for k in range(4)])
    open_pictures(path)
    time.sleep(0.02)  # more than a tick of the clock
    changes()[change](path)
    reads.clear()
    identity = open_pictures(path).identity
    assert len(reads) == identity["count"] > 0
    shutil.rmtree(cache_folder())
    assert open_pictures(path).identity == identity


def test_nothing_is_kept_of_files_that_are_new(tmp_path, reads, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    path = write_folder(tmp_path / "folder", ["1.png", "2.png"])
    open_pictures(path)
    assert not (tmp_path / "cache").exists()


def test_the_images_of_a_training(tmp_path, reads):
    path = write_folder(tmp_path / "folder", [f"{k}.png" for k in range(9)])

    def identity(split: str, **settings: Any) -> dict[str, Any]:
        config = DataConfig(path=str(path), **({"image_size": 8, "validation_fraction": 0.3} | settings))
        data = config.open()
        sets = {"train": [data.train], "validation": [data.validation], "all": [data.train, data.validation]}[split]
        reads.clear()
        return SplitPictures("name", config, split, sets, data.spec).identity  # type: ignore[arg-type]

    first = {split: identity(split) for split in ("train", "validation", "all")}
    assert len({one["sha256"] for one in first.values()}) == 3
    assert identity("train") == first["train"] and not reads
    assert identity("validation") == first["validation"] and not reads
    other = identity("train", validation_fraction=0.5)
    assert reads and other["sha256"] != first["train"]["sha256"]


def test_a_cache_that_is_damaged_or_in_the_way_does_without(tmp_path):
    (tmp_path / "x").write_text("x")
    asked: list[int] = []

    def find() -> dict[str, Any]:
        asked.append(1)
        return {"n": len(asked)}

    assert known(tmp_path / "x", "question", find) == known(tmp_path / "x", "question", find) == {"n": 1}
    (kept,) = (cache_folder() / "sets").iterdir()
    for damage in ("", "{", '{"key": "another", "found": {"n": 7}}', '{"found": {"n": 7}}'):
        kept.write_text(damage)
        assert known(tmp_path / "x", "question", find) == {"n": len(asked)}
    assert len(asked) == 5
    shutil.rmtree(cache_folder())
    cache_folder().write_text("a file")
    assert known(tmp_path / "x", "question", find) == {"n": 6}
