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
from triptych.data.domains import UnpairedDataConfig
from triptych.data.files import Folder
from triptych.runs.given import known as module
from triptych.runs.given.data_images import contents
from triptych.runs.given.known import known
from triptych.runs.given.pictures import SplitPictures, open_pictures
from triptych.runs.given.translation import open_held_out


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


@pytest.mark.parametrize("place", ["images_b", "../elsewhere"])
def test_two_domains_are_known_by_the_files_of_both(tmp_path, reads, place):
    root, settings = tmp_path / "data", {"image_size": 8, "validation_fraction": 0.0}
    folders = [write_folder(root / name, [f"{k}.png" for k in range(4)]) for name in ("images_a", place)]
    train = UnpairedDataConfig(path=str(root), b=str((root / place).resolve()), **settings).open().train
    before, some = contents(train), contents(train, first=2)
    time.sleep(0.02)  # more than a tick of the clock
    reads.clear()
    assert contents(train) == before != some == contents(train, first=2) and not reads
    for folder in folders:
        for name in ("1.png", "3.png"):
            plain = (folder / name).read_bytes()
            (folder / name).write_bytes(encoded(picture(20, 16, seed=9)))
            assert contents(train) != before and (contents(train, first=2) == some) == (name == "3.png"), folder
            (folder / name).write_bytes(plain)
    assert contents(train) == before


def test_held_out_inputs_that_are_not_read_may_change(tmp_path):
    folder = write_folder(tmp_path / "folder", [f"{k}.png" for k in range(12)])
    config = DataConfig(path=str(folder), image_size=8, validation_fraction=0.5)
    data = config.open()
    assert data.validation is not None and len(data.validation) > 1

    def origin() -> Any:
        return open_held_out(config, data.spec, size=None, count=1).origin

    before = origin()
    time.sleep(0.02)  # more than a tick of the clock
    for item, same in ((len(data.validation) - 1, True), (0, False)):
        (folder / data.validation.key(item)).write_bytes(encoded(picture(20, 16, seed=99)))
        assert (origin() == before) == same


def test_other_labels_of_the_same_files_are_other_contents(tmp_path):
    """A file of labels may lie anywhere."""
    folder, labels = write_folder(tmp_path / "folder", [f"{k}.png" for k in range(4)]), tmp_path / "labels.txt"
    found = []
    for lines in ("a b a b", "a b b a", "a b a b"):
        labels.write_text("\n".join(lines.split()))
        data = DataConfig(path=str(folder), label_file=str(labels), image_size=8, validation_fraction=0.0).open()
        found.append(contents(data.train))
    assert found[0] == found[2] != found[1]


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
