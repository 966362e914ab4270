"""Where the images of a tar lie is kept, and never holds when the file is another one."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data.pictures import encoded, picture
from triptych.data import archives, tar_index
from triptych.data.archives import Archive, open_tar
from triptych.data.shards import open_shards

IMAGES = {f"{kind}/{k}.png": encoded(picture(8, 8, seed=k)).ljust(400, b"\0") for kind in "ab" for k in range(3)}
OTHERS = {"a/0.cls": b"7", "b/notes.txt": b"x", "dataset.json": b"{}", "b/\xfc\udcff.png": encoded(picture(8, 8, seed=9))}


def write(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


@pytest.fixture
def tar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tar_index, "_LEAST", 1)
    path = write(tmp_path / "x.tar", IMAGES | OTHERS)
    settle(path)
    return path


def settle(path: Path) -> None:
    """Longer than a tick of the file system's clock."""
    time.sleep(0.03)
    assert path.stat().st_size


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_index, "MOMENT", 0)


def told(files: Archive) -> tuple:
    labels = [files.label(k) for k in range(len(files.names))]
    contents = {files.key(k): files.read(k) for k in range(len(files.names))}
    return contents, labels, files.tables, files.table("dataset.json") if files.tables else None, files.notes


def is_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    def refused(*given: object) -> None:
        raise ValueError("headers are read")

    with monkeypatch.context() as patched:
        patched.setattr(archives, "_tar_members", refused)
        try:
            return len(open_tar(path).names) > 0
        except Exception as error:
            assert "headers are read" in str(error)
            return False


def test_an_index_is_kept_and_says_the_same(tar, monkeypatch):
    first = told(open_tar(tar))
    assert first[0] == IMAGES | {name: content for name, content in OTHERS.items() if name.endswith(".png")}
    assert first[1][0] == (f"{tar}/a/0.cls", b"7") and first[2] == ("dataset.json",) and "1 .txt" in first[4][0]
    assert is_kept(tar, monkeypatch) and told(open_tar(tar)) == first


def rewritten(path: Path) -> None:
    """In place, by a program that sets the time back: the same size and number on the disk, images as large as before in another order."""
    before = path.stat()
    path.write_bytes(write(path.parent / "other.tar", dict(reversed(IMAGES.items())) | OTHERS).read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size and path.stat().st_mtime_ns == before.st_mtime_ns


CHANGES: dict[str, Callable[[Path], object]] = {
    "written anew": rewritten,
    "another file": lambda path: os.replace(write(path.parent / "y.tar", dict(list(IMAGES.items())[:2])), path),
    "grown": lambda path: write(path, IMAGES | OTHERS | {"c/1.png": IMAGES["a/1.png"]}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_is_seen(tar, change, monkeypatch):
    before = told(open_tar(tar))
    CHANGES[change](tar)
    settle(tar)
    assert not is_kept(tar, monkeypatch)
    after = told(open_tar(tar))
    assert is_kept(tar, monkeypatch) and told(open_tar(tar)) == after
    assert (after[0] == before[0]) is (change == "written anew")


def test_an_index_that_does_not_fit_is_not_used(tar, monkeypatch):
    """As where the times of a file system say nothing: headers of such files have to lie before the images."""
    monkeypatch.setattr(tar_index.LocalIndex, "_status", lambda self: [0, 0, 0, 0, 0])
    first = told(open_tar(tar))
    assert is_kept(tar, monkeypatch)
    content = tar.read_bytes()
    tar.write_bytes(bytes(512) + content)
    assert not is_kept(tar, monkeypatch)
    longer = {name: content + bytes(512) for name, content in IMAGES.items()}
    write(tar, longer)
    assert not is_kept(tar, monkeypatch) and told(open_tar(tar))[0] == longer != first[0]


def test_nothing_is_kept_of_small_tars_of_new_ones_and_of_those_that_change_meanwhile(tar, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(tar_index, "_LEAST", len(IMAGES) + len(OTHERS))
        told(open_tar(tar))
        assert not is_kept(tar, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(tar_index, "MOMENT", 10**12)
        told(open_tar(tar))
        assert not is_kept(tar, monkeypatch)
    length = len(IMAGES["a/0.png"])
    with tar.open("rb+") as file:
        known = tar_index.LocalIndex(file.fileno(), tar)
        file.seek(0, os.SEEK_END)
        file.write(bytes(512))
        file.flush()
        known.keep(tar_index.TarIndex([tar_index.Member("a/0.png", 512, length, length)], Counter(), {}))
        assert known.found() is None


def test_a_cache_that_is_damaged_or_cannot_be_written_does_without(tar, monkeypatch, tmp_path):
    first = told(open_tar(tar))
    (kept,) = (tmp_path / "cache" / "tars").glob("*/*")
    whole = kept.read_bytes()
    for damage in (b"", whole[:-3], whole.replace(b"a/1.png", b"a/9.png")):
        kept.write_bytes(damage)
        tar_index._cache.cache_clear()
        assert not is_kept(tar, monkeypatch) and told(open_tar(tar)) == first and is_kept(tar, monkeypatch)
    for cache in (str(tar), "~nobody-is-called-so/x"):
        monkeypatch.setenv("TRIPTYCH_CACHE", cache)
        assert told(open_tar(tar)) == first and not is_kept(tar, monkeypatch)


def test_shards_have_an_index_each(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tar_index, "_LEAST", 1)
    (tmp_path / "shards").mkdir()
    for kind in "ab":
        write(tmp_path / "shards" / f"{kind}.tar", {name: content for name, content in IMAGES.items() if name.startswith(kind)})
    settle(tmp_path / "shards" / "b.tar")
    first, second = (open_shards(tmp_path / "shards") for _ in range(2))
    assert list(first.names) == list(second.names) == list(IMAGES)
    assert [second.read(k) for k in range(len(second.names))] == list(IMAGES.values())
    assert len(list((tmp_path / "cache" / "tars").glob("*/*"))) == 2
