"""What a file system elsewhere may answer, and what the cache of parts does where the disk refuses."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import pytest

from triptych.core import block_cache, remote
from triptych.core.address import Address
from triptych.core.block_cache import BlockCache
from triptych.core.locks import Lock
from triptych.core.remote import RemoteError, RemoteFile, identity_of, require_reader

PLACE = Address("memory://bucket/x.zip")


class System(NamedTuple):
    """A file system that says this of every file, and gives this for any part of one."""

    said: dict[str, Any]
    given: bytes = b""

    def invalidate_cache(self) -> None: ...

    def info(self, path: str) -> dict[str, Any]:
        return self.said

    def cat_file(self, path: str, *, start: int, end: int) -> bytes:
        return self.given


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"type": "directory", "size": 0}, "a folder; give a .zip, .tar, .npz or .npy, or a folder of tars"),
        ({"type": "file", "size": None}, "the server does not say how large it is, so that it cannot be read in parts; copy it here"),
    ],
)
def test_what_is_no_file_or_has_no_size(said: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_filesystem", lambda *_: System(said))
    with pytest.raises(RemoteError) as caught:
        identity_of(PLACE)
    assert str(caught.value) == f"{PLACE}: {message}"


def test_a_file_system_that_gives_more_than_the_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path))
    monkeypatch.setattr(remote, "_filesystem", lambda *_: System({"size": 3, "ETag": "a"}, b"1234"))
    with pytest.raises(RemoteError, match="does not give parts of files"):
        RemoteFile(PLACE).pread(3, 0)


def test_a_library_that_a_file_system_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(scheme: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "get_filesystem_class", lacks)
    with pytest.raises(RemoteError, match=r'Install s3fs to access S3: pip install "triptych\[remote\]" has what http, https and s3 need'):
        require_reader(Address("s3://bucket/x.zip"))


# The cache


@pytest.fixture
def cache(tmp_path: Path) -> BlockCache:
    return BlockCache(tmp_path, most=10_000)


def test_a_part_that_cannot_be_read_is_not_there(cache: BlockCache, tmp_path: Path) -> None:
    (tmp_path / "a/0").mkdir(parents=True)
    assert cache.get("a/0") is None and cache.get("a/0", 0, 1) is None


def test_a_damaged_part_goes(cache: BlockCache, tmp_path: Path) -> None:
    cache.put("a/0", b"1234")
    (tmp_path / "a/0").write_bytes(b"1235" + (tmp_path / "a/0").read_bytes()[4:])
    assert cache.get("a/0") is None and not cache.holds("a/0")


def test_of_many_parts_only_some_are_known_to_be_sound(cache: BlockCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_cache, "_MOST_SOUND", 3)
    for k in range(4):
        cache.put(f"a/{k}", bytes([k]))
    looked, digest = list[bytes](), block_cache._digest
    monkeypatch.setattr(block_cache, "_digest", lambda content: looked.append(content) or digest(content))
    for k in (0, 0, 1, 2, 2, 3, 3, 0):  # the fourth part takes the place of all before it
        assert cache.get(f"a/{k}") == bytes([k])
    assert [content[0] for content in looked] == [0, 1, 2, 3, 0] and len(cache._sound) == 2


def test_a_disk_that_is_nearly_full_keeps_nothing(cache: BlockCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = block_cache._LEFT_FREE + 3
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(free, 0, free))  # type: ignore[attr-defined]
    cache.put("a/0", b"1234")
    assert not cache.holds("a/0")
    cache.put("a/0", b"123")
    assert cache.get("a/0") == b"123"


def test_a_part_that_cannot_be_kept_leaves_nothing(cache: BlockCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "replace", refused)
    cache.put("a/0", b"1234")
    assert not list((tmp_path / "a").iterdir()) and cache.get("a/0") is None


def test_one_waits_for_the_other(cache: BlockCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_cache, "_WAIT", 0.001)
    held, entered = Lock(tmp_path / ".a.lock"), threading.Event()

    def enter() -> None:
        with cache.alone("a"):
            entered.set()

    other = threading.Thread(target=enter)
    other.start()
    assert not entered.wait(0.05)
    held.release(remove=True)
    other.join()
    assert entered.is_set() and not list(tmp_path.iterdir())


def test_the_cache_is_looked_through_once_for_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path))
    monkeypatch.setattr(remote, "_filesystem", lambda *_: System({"size": 3, "ETag": "a"}, b"123"))
    looks: list[BlockCache] = []
    monkeypatch.setattr(BlockCache, "trim", lambda self: looks.append(self))
    for k in range(3):
        assert RemoteFile(Address(f"memory://bucket/{k}.zip")).pread(3, 0) == b"123"
    assert len(looks) == 1
