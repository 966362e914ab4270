"""The list of a large folder's images is kept, and never holds when the folder has changed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data.pictures import encoded, picture, write_folder
from triptych.data import files, folder_index
from triptych.data.files import open_folder

NAMES = ["a/1.png", "a/2.png", "b/deep/3.png", "b/notes.txt", "top.png"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(folder_index, "_LEAST", 1)
    monkeypatch.setattr(folder_index, "MOMENT", 0)
    place = write_folder(tmp_path / "files", NAMES)
    (place / "c").mkdir()
    (place / "b" / "dataset.json").write_text("{}")
    tick()
    return place


def tick() -> None:
    """Longer than a tick of the file system's clock."""
    time.sleep(0.03)


def told(place: Path) -> tuple:
    found, empty = open_folder(place)
    return list(found.names), empty, found.tables, found.notes


def is_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    with monkeypatch.context() as patched:
        patched.setattr(files, "walked", lambda *arguments: iter(()))
        return len(open_folder(place)[0].names) > 0


def test_a_list_is_kept_and_says_the_same(folder, monkeypatch):
    first = told(folder)
    assert first[0] == ["a/1.png", "a/2.png", "b/deep/3.png", "top.png"] and first[1] == ["c"] and first[2] == ("b/dataset.json",)
    assert "1 .txt" in first[3][0]
    assert is_kept(folder, monkeypatch)
    assert told(folder) == first


def added(place: Path) -> None:
    (place / "b" / "deep" / "4.png").write_bytes(encoded(picture(20, 16)))


def swapped(place: Path) -> None:
    os.mkfifo(place / "x")
    os.replace(place / "x", place / "top.png")


CHANGES: dict[str, Callable[[Path], object]] = {
    "added": added,
    "removed": lambda place: (place / "a" / "2.png").unlink(),
    "renamed": lambda place: (place / "a" / "2.png").rename(place / "a" / "9.png"),
    "moved": lambda place: (place / "a" / "2.png").rename(place / "c" / "2.png"),
    "a new folder": lambda place: write_folder(place / "d", ["1.png"]),
    "a folder removed": lambda place: shutil.rmtree(place / "b"),
    "a folder replaced": lambda place: ((place / "a").rename(place.parent / "old"), write_folder(place / "a", ["7.png"])),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_is_seen(folder, change, monkeypatch):
    before = told(folder)
    CHANGES[change](folder)
    assert not is_kept(folder, monkeypatch)
    after = told(folder)
    assert after != before
    monkeypatch.setattr(folder_index, "_LEAST", 10**9)
    folder_index._place(folder).unlink()
    assert told(folder) == after


def test_a_file_that_becomes_a_pipe_is_refused(folder):
    told(folder)
    swapped(folder)
    with pytest.raises(Exception, match=r"top\.png: not a regular file"):
        told(folder)


def test_a_folder_behind_a_link_is_looked_at(folder, tmp_path, monkeypatch):
    other = write_folder(tmp_path / "other", ["5.png"])
    (folder / "link").symlink_to(other)
    tick()
    assert "link/5.png" in told(folder)[0] and is_kept(folder, monkeypatch)
    write_folder(other, ["6.png"])
    assert "link/6.png" in told(folder)[0]


def test_nothing_is_kept_of_links_to_files_of_small_folders_and_of_new_ones(folder, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(folder_index, "_LEAST", 5)
        told(folder)
        assert not is_kept(folder, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(folder_index, "MOMENT", 10**12)
        told(folder)
        assert not is_kept(folder, monkeypatch)
        for place in (folder, *filter(Path.is_dir, folder.rglob("*"))):
            os.utime(place, (0, 0))  # programs that copy set the time of the original
        told(folder)
        assert not is_kept(folder, monkeypatch)
    (folder / "8.png").symlink_to(folder / "top.png")
    tick()
    told(folder)
    assert not is_kept(folder, monkeypatch)


def test_a_cache_that_is_damaged_or_cannot_be_written_does_without(folder, monkeypatch, tmp_path):
    first = told(folder)
    kept = folder_index._place(folder)
    whole = kept.read_bytes()
    for damage in (b"", whole[:-30], whole.replace(b'"format": 1', b'"format": 9'), whole.replace(b'"a"', b'"z"')):
        kept.write_bytes(damage)
        assert told(folder) == first
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "files" / "top.png"))
    assert told(folder) == first
