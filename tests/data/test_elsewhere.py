"""Data that are not on this machine: the same images as here, whatever the server does, and a line where that cannot be."""

from __future__ import annotations

import base64
import dataclasses
import errno
import functools
import io
import json
import os
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import fsspec
import numpy as np
import pytest

from tests.contract.shrink import shrunk
from tests.data.elsewhere import Server, serving
from tests.data.pictures import picture, write_folder, write_zip
from triptych.cli.main import main
from triptych.core import remote
from triptych.core.address import Address, without_secrets
from triptych.core.batch import DataSpec
from triptych.core.block_cache import BlockCache, BlockMemory
from triptych.core.errors import ConfigError, DataError, Stopped
from triptych.core.npz import read_npz
from triptych.core.reading import user_path
from triptych.core.remote import RemoteFile
from triptych.data.config import DataConfig
from triptych.data.fingerprint import fingerprint
from triptych.data.images import Data
from triptych.data.loader import Loader
from triptych.data.pack import STAMP, PackStamp
from triptych.engine.config import LogConfig
from triptych.recipes.catalogue import load_recipe
from triptych.runs import open_run, train
from triptych.runs.beginning import same_objects
from triptych.runs.document import RunDocument
from triptych.runs.packing import pack_data

NAMES = [f"{kind}/{kind}{k}.png" for kind in ("cat", "dog") for k in range(8)]
SIDE = 16


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(remote, "BLOCK", 4000)
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture(autouse=True)
def _well(server: Server) -> None:
    server.files.clear()
    server.asked.clear()
    server.faults, server.always, server.ranged, server.versioned, server.key = [], None, True, True, None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("images"), NAMES, size=(20, SIDE))


def tarred(folder: Path, path: Path, names: list[str]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name in names:
            tar.add(folder / name, arcname=name)
    return path


def laid_out(kind: str, folder: Path, root: Path) -> Path:
    """The images as a file, or a folder of tars, on this machine."""
    pixels, labels = np.stack([picture(SIDE, SIDE, seed=k) for k in range(len(NAMES))]), np.arange(len(NAMES)) % 2
    root.mkdir(exist_ok=True)
    match kind:
        case "stored zip":
            return write_zip(root / "x.zip", folder)
        case "deflated zip":
            return write_zip(root / "x.zip", folder, method=zipfile.ZIP_DEFLATED)
        case "tar":
            return tarred(folder, root / "x.tar", NAMES)
        case "shards":
            for k in range(3):
                tarred(folder, root / f"part-{k:03d}.tar", NAMES[k::3])
            return root
        case "npz":
            np.savez(root / "x.npz", pixels, labels)
            return root / "x.npz"
        case "npy":
            np.save(root / "x.npy", pixels[..., 0])
            return root / "x.npy"
        case _:
            out = root / ("pack.npz" if kind == "pack of pixels" else "pack.zip")
            pack_data(settings(folder), out, workers=0)
            return out


KINDS = ["stored zip", "deflated zip", "tar", "shards", "npz", "npy", "pack of pixels", "pack of files"]


def settings(path: object, **more) -> DataConfig:
    return DataConfig(path=str(path), **({"image_size": SIDE, "validation_fraction": 0.3} | more))


def served(place: Path, server: Server) -> str:
    """Puts it on the server."""
    if place.is_file():
        server.files[f"/a/{place.name}"] = place.read_bytes()
        return f"{server.url}/a/{place.name}"
    for file in place.iterdir():
        server.files[f"/a/{file.name}"] = file.read_bytes()
    return f"{server.url}/a/part-{{000..002}}.tar"


def batches(data: Data, first: int = 0, count: int = 5, workers: int = 0) -> list[tuple[np.ndarray, np.ndarray | None]]:
    with closing(Loader(data.train, batch_size=5, seed=3, workers=workers)) as loader:
        drawn = loader.batches(5 * first)
        taken = [next(drawn) for _ in range(count)]
    return [(np.asarray(batch.images), None if batch.labels is None else np.asarray(batch.labels)) for batch in taken]


def assert_same(found: list, expected: list) -> None:
    for (images, labels), (other_images, other_labels) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(images, other_images)
        np.testing.assert_array_equal(labels, other_labels)


@pytest.mark.parametrize("kind", KINDS)
def test_the_images_are_those_of_the_file_here(kind: str, folder: Path, tmp_path: Path, server: Server) -> None:
    place = laid_out(kind, folder, tmp_path / "data")
    here, there = settings(place).open(), settings(served(place, server)).open()
    assert there.spec == here.spec and fingerprint(there) == fingerprint(here)
    assert_same(batches(there), batches(here))
    assert there.validation is not None and len(there.validation) == len(here.validation or [])
    assert set(there.objects) == {f"{server.url}{path}" for path in server.files}


@pytest.mark.parametrize("kind", ["tar", "pack of pixels"])
def test_what_is_read_once_is_not_asked_for_again(kind: str, folder: Path, tmp_path: Path, server: Server) -> None:
    address = served(laid_out(kind, folder, tmp_path / "data"), server)
    first = batches(settings(address).open())
    server.asked.clear()
    assert_same(batches(settings(address).open()), first)
    assert server.sent == 0


def test_a_large_array_is_read_in_parts(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych.data.arrays._READ_WHOLE", 0)
    pixels = np.stack([picture(SIDE, SIDE, seed=k % 7) for k in range(400)])
    np.savez(tmp_path / "x.npz", pixels)
    address = served(tmp_path / "x.npz", server)
    data = settings(address, validation_fraction=0.0, flip=False).open()
    np.testing.assert_array_equal(data.train.batch(np.array([7, 300, 8])).images, pixels[[7, 300, 8]])
    assert server.sent < 0.1 * pixels.nbytes


def test_the_headers_of_a_tar_are_read_alone(tmp_path: Path, server: Server) -> None:
    large = b"\x89PNG" + bytes(200_000)
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for k in range(10):
            entry = tarfile.TarInfo(f"{k}.png")
            entry.size = len(large)
            tar.addfile(entry, io.BytesIO(large))
    from triptych.data.archives import open_tar

    server.files["/x.tar"] = (tmp_path / "x.tar").read_bytes()
    assert len(open_tar(Address(f"{server.url}/x.tar")).names) == 10
    assert server.sent < 0.15 * len(server.files["/x.tar"])


def test_a_folder_of_tars_in_another_file_system(folder: Path, tmp_path: Path) -> None:
    place, system = laid_out("shards", folder, tmp_path / "data"), fsspec.filesystem("memory")
    for file in place.iterdir():
        system.pipe_file(f"/bucket/shards/{file.name}", file.read_bytes())
    try:
        there = settings("memory://bucket/shards").open()
        assert_same(batches(there), batches(settings(place).open()))
        assert sorted(there.objects) == [f"memory://bucket/shards/part-{k:03d}.tar" for k in range(3)]
    finally:
        system.rm("/bucket", recursive=True)


def test_a_pack_of_what_is_elsewhere_is_that_of_what_is_here(folder: Path, tmp_path: Path, server: Server) -> None:
    place = laid_out("stored zip", folder, tmp_path / "data")
    for source, out in ((served(place, server), "there.npz"), (place, "here.npz")):
        pack_data(settings(source), tmp_path / out, workers=0)
    there, here = (read_npz(tmp_path / out) for out in ("there.npz", "here.npz"))
    stamps = [PackStamp.from_dict(json.loads(str(arrays.pop(STAMP)))) for arrays in (there, here)]
    assert dataclasses.replace(stamps[0], versions="") == stamps[1] and stamps[0].versions and server.url not in stamps[0].text()
    assert there.keys() == here.keys() and all(np.array_equal(there[name], here[name]) for name in here)


@pytest.mark.parametrize("ending", [".npz", ".zip"])
def test_a_pack_is_made_anew_when_what_is_elsewhere_changed(ending: str, folder: Path, tmp_path: Path, server: Server) -> None:
    """Images in the middle are no part of the fingerprint, and a file elsewhere has no time on this machine."""
    place = laid_out("stored zip", folder, tmp_path / "data")
    config, out = settings(served(place, server)), tmp_path / f"pack{ending}"
    assert not pack_data(config, out, workers=0).already and pack_data(config, out, workers=0).already
    before = out.read_bytes()
    server.files["/a/x.zip"] = swapped(place)
    assert not pack_data(config, out, workers=0).already and out.read_bytes() != before
    assert pack_data(config, out, workers=0).already
    server.versioned = False
    assert not pack_data(config, out, workers=0).already and not pack_data(config, out, workers=0).already


@pytest.mark.parametrize("versioned", [True, False])
def test_an_interrupted_pack_takes_up_nothing_of_another_version(
    versioned: bool, folder: Path, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triptych.runs.packing._MOST_IN_A_PIECE", 2)
    place, out, made = laid_out("stored zip", folder, tmp_path / "data"), tmp_path / "pack.npz", list[float]()
    server.versioned = versioned
    config = settings(served(place, server))

    def interrupt(done: float, count: float) -> None:
        if done == 12:
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(Stopped):
            pack_data(config, out, workers=0, progress=interrupt)
    server.files["/a/x.zip"] = swapped(place)
    pack_data(config, out, workers=0, progress=lambda done, count: made.append(done))
    assert made[0] == 0
    expected = batches(config.open())
    assert_same(batches(settings(out).open()), expected)


def swapped(place: Path) -> bytes:
    """A zip of the same length in which two images have changed places, none of them one of those of the fingerprint."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(place) as old, zipfile.ZipFile(buffer, "w") as archive:
        for name in old.namelist():
            archive.writestr(name, old.read({NAMES[9]: NAMES[11], NAMES[11]: NAMES[9]}.get(name, name)))
    assert buffer.tell() == place.stat().st_size
    return buffer.getvalue()


def test_names_with_words_of_secrets_are_names(folder: Path, tmp_path: Path, server: Server) -> None:
    content = laid_out("stored zip", folder, tmp_path / "data").read_bytes()
    server.files["/monkey/token-data.zip"] = content
    data = settings(f"{server.url}/monkey/token-data.zip").open()
    assert list(data.objects) == [f"{server.url}/monkey/token-data.zip"]
    assert data.train.key(0).startswith(f"{server.url}/monkey/token-data.zip/cat/")


def test_what_libraries_say_loses_its_secrets() -> None:
    said = "cannot get https://me:hunter2@host/x.zip?X-Amz-Signature=hunter2 with secret_key='hunter2', Token: hunter2"
    assert "hunter2" not in without_secrets(said) and without_secrets("s3://bucket/x.zip is gone") == "s3://bucket/x.zip is gone"
    with pytest.raises(DataError, match="an address, where a path on this machine is expected") as caught:
        user_path("https://me:hunter2@host/x.zip")
    assert "hunter2" not in str(caught.value)


def test_the_first_error_of_many_calls_keeps_the_others_from_beginning() -> None:
    begun: list[int] = []

    def call(k: int) -> None:
        begun.append(k)
        time.sleep(0.01)
        raise DataError(str(k))

    with pytest.raises(DataError, match="^0$"):
        remote.at_once([functools.partial(call, k) for k in range(500)])
    assert len(begun) < 250


def test_loader_processes_have_connections_of_their_own(folder: Path, tmp_path: Path, server: Server) -> None:
    address = served(laid_out("stored zip", folder, tmp_path / "data"), server)
    data = settings(address).open()
    expected = batches(data, workers=0)
    for path in (tmp_path / "cache" / "remote").glob("*/*"):
        path.unlink()  # so that they have to ask
    before = server.sent
    assert_same(batches(data, workers=2), expected)
    assert server.sent > before


def test_members_of_a_zip_with_long_headers(folder: Path, tmp_path: Path, server: Server) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name in NAMES:
            entry = zipfile.ZipInfo(name)
            entry.extra = b"\xfe\xca" + (3000).to_bytes(2, "little") + bytes(3000)
            archive.writestr(entry, (folder / name).read_bytes())
    assert_same(batches(settings(served(tmp_path / "x.zip", server)).open()), batches(settings(tmp_path / "x.zip").open()))


# A server that fails


@pytest.mark.parametrize("faults", [["500", "503", "429", "well", "503"], ["cut", "cut", "well", "cut", "short"], ["slow", "well", "slow"]])
def test_faults_that_pass(faults: list[str], folder: Path, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "TIMEOUT", 0.2)
    place = laid_out("stored zip", folder, tmp_path / "data")
    address = served(place, server)
    data = settings(address).open()
    for path in (tmp_path / "cache" / "remote").glob("*/*"):
        path.unlink()
    server.faults = faults
    assert_same(batches(data), batches(settings(place).open()))
    assert not server.faults


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("503", r"x\.zip: the server answers 503 \(asked 2 times\)"),
        ("403", r"x\.zip: no right to read it \(the server answers 403\)"),
        ("404", r"x\.zip: does not exist"),
        ("418", r"x\.zip: the server answers 418 \(asked 2 times\)$"),
        ("451", r"x\.zip: the server answers 451$"),
        ("slow", r"x\.zip: no answer in 0\.2 seconds \(asked 2 times\)"),
    ],
)
def test_faults_that_last(fault: str, said: str, folder: Path, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "TIMEOUT", 0.2)
    monkeypatch.setattr(remote, "ATTEMPTS", 2)
    address = served(laid_out("stored zip", folder, tmp_path / "data"), server)
    server.always = fault
    with pytest.raises(DataError, match=said) as caught:
        settings(address).open()
    assert "\n" not in str(caught.value)


def test_a_body_that_is_always_cut_short_ends_training_and_skips_no_image(
    folder: Path, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "ATTEMPTS", 2)
    data = settings(served(laid_out("stored zip", folder, tmp_path / "data"), server), on_error="skip").open()
    for path in (tmp_path / "cache" / "remote").glob("*/*"):
        path.unlink()
    server.faults = ["cut"] * 100
    with pytest.raises(DataError, match=r"x\.zip: .*asked 2 times"):
        batches(data)


def test_a_server_without_ranges(folder: Path, tmp_path: Path, server: Server) -> None:
    address = served(laid_out("stored zip", folder, tmp_path / "data"), server)
    server.ranged = False
    with pytest.raises(DataError, match="the server does not give parts of files"):
        settings(address).open()


def test_a_server_without_ranges_is_not_asked_for_the_whole_file(server: Server) -> None:
    server.files["/x.npy"] = bytes(20_000_000)
    server.ranged = False
    with pytest.raises(DataError, match="the server does not give parts of files"):
        RemoteFile(Address(f"{server.url}/x.npy"))
    assert "/x.npy" not in [path for _, path, _ in server.asked]  # it was hung up on


def test_a_slow_link_has_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer may take any time, as long as some of it comes."""
    monkeypatch.setattr(remote, "TIMEOUT", 0.3)
    server.files["/f"] = content = np.random.default_rng(0).bytes(3000)
    file = RemoteFile(Address(f"{server.url}/f"))
    server.faults = ["drips"] * 3
    assert file.pread(2000, 0) == content[:2000]
    assert len(server.faults) == 2  # it was asked once


def test_keys_of_netrc(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hunter2\n")
    (tmp_path / "netrc").chmod(0o600)
    server.files["/f"], server.key = b"some", "Basic " + base64.b64encode(b"me:hunter2").decode()
    with pytest.raises(DataError, match=r"no right to read it \(the server answers 401\)"):
        RemoteFile(Address(f"{server.url}/f"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert RemoteFile(Address(f"{server.url}/f")).pread(4, 0) == b"some"


def test_nothing_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "ATTEMPTS", 2)
    with pytest.raises(DataError, match=r"x\.zip: .*\(asked 2 times\)"):
        settings("http://127.0.0.1:9/x.zip").open()


# What changes


def test_a_file_that_changes_while_it_is_used_is_named(folder: Path, tmp_path: Path, server: Server) -> None:
    address = served(laid_out("stored zip", folder, tmp_path / "data"), server)
    data = settings(address, on_error="skip").open()
    for path in (tmp_path / "cache" / "remote").glob("*/*"):
        path.unlink()
    server.files["/a/x.zip"] = server.files["/a/x.zip"][:-1] + b"\1"
    with pytest.raises(DataError, match=r"x\.zip: changed while it was in use \([\d,]+ bytes, ETag .* before, [\d,]+ bytes, ETag .* now\)"):
        batches(data)
    assert not list((tmp_path / "cache" / "remote").glob("*/0"))  # nothing of it was kept


def test_another_version_at_a_resume_is_named() -> None:
    run = {"s3://b/0.tar": "10 bytes, ETag a", "s3://b/1.tar": "10 bytes, ETag b"}
    same_objects(run, dict(run))
    same_objects(run, {})  # on this machine now
    same_objects(run, {"gs://c/0.tar": "10 bytes, ETag a"})
    same_objects({}, run)
    with pytest.raises(
        DataError, match=r"s3://b/1\.tar: not what this run has learned from: 10 bytes, ETag b before, 11 bytes, ETag c now"
    ):
        same_objects(run, run | {"s3://b/1.tar": "11 bytes, ETag c"})
    with pytest.raises(DataError, match=r"s3://b/2\.tar: .* not among the data before, 5 bytes now"):
        same_objects(run, run | {"s3://b/2.tar": "5 bytes"})
    with pytest.raises(DataError, match=r"s3://b/1\.tar: .* not among the data now"):
        same_objects(run, {"s3://b/0.tar": "10 bytes, ETag a"})


# What is kept


def test_nothing_is_kept_of_a_file_whose_version_is_not_known(tmp_path: Path, server: Server) -> None:
    """Another one of that size would be read from what was kept; while one is in use it is fetched once."""
    server.files["/f"], server.versioned = bytes(10_000), False
    file = RemoteFile(Address(f"{server.url}/f"))
    file.prefetch([(0, 10_000)])
    sent = server.sent
    assert file.pread(10_000, 0) == bytes(10_000) and server.sent == sent
    assert not (tmp_path / "cache" / "remote").exists()
    server.files["/f"] = b"1" * 10_000
    assert RemoteFile(Address(f"{server.url}/f")).pread(10_000, 0) == b"1" * 10_000


def test_parts_in_memory_are_bounded_and_those_used_last_stay() -> None:
    memory = BlockMemory(1000)
    for k in range(30):
        memory.put(f"a/{k}", bytes([k]) * 100)
        assert memory.get("a/0", 2, 3) == bytes(3)
    assert [k for k in range(30) if memory.holds(f"a/{k}")] == [0, *range(21, 30)]
    assert memory.get("a/5") is None and memory.get("a/29") == bytes([29]) * 100 and memory.get("a/29", 0, 101) is None
    memory.put("a/29", b"x")
    memory.put("a/30", bytes(99))
    assert memory.holds("a/21") and memory.get("a/29") == b"x"


def test_parts_of_another_user_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only who owns a file may set its times."""

    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    cache = BlockCache(tmp_path / "parts", most=100_000)
    cache.put("a/0", b"some")
    monkeypatch.setattr(os, "utime", refused)
    assert cache.get("a/0") == b"some" and cache.get("a/0", 1, 2) == b"om"


def test_kept_parts_are_bounded_and_those_used_last_stay(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path / "parts", most=100_000)
    for k in range(160):
        cache.put(f"a/{k}", bytes([k % 256]) * 1000)
        os.utime(tmp_path / "parts" / "a" / str(k), ns=(k, k))
        assert cache.get("a/0") is None or cache.get("a/0") == bytes(1000)
    total = sum(path.stat().st_size for path in (tmp_path / "parts").rglob("*") if path.is_file())
    assert 0.5 * 100_000 < total < 105_000
    assert cache.get("a/0") is not None  # asked for all the time
    assert cache.get("a/50") is None and cache.get("a/159") == bytes([159]) * 1000


def test_a_kept_part_that_is_damaged_is_fetched_again(folder: Path, tmp_path: Path, server: Server) -> None:
    place = laid_out("stored zip", folder, tmp_path / "data")
    address = served(place, server)
    expected = batches(settings(address).open())
    parts = [path for path in (tmp_path / "cache" / "remote").glob("*/*") if path.name.isdigit()]
    for k, path in enumerate(parts):
        content = path.read_bytes()
        path.write_bytes(content[:-1] if k % 2 else bytes([content[0] ^ 1]) + content[1:])
    assert_same(batches(settings(address).open()), expected)


@pytest.mark.parametrize(("offset", "length"), [(0, 1), (1499, 2), (1500, 1500), (100, 7000), (9990, 100), (10_000, 5), (3000, 0)])
def test_parts_are_put_together(offset: int, length: int, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "BLOCK", 1500)
    content = np.random.default_rng(0).bytes(10_000)
    server.files["/f"] = content
    file = RemoteFile(Address(f"{server.url}/f"))
    assert file.pread(length, offset) == content[offset : offset + length]
    file.prefetch([(1500, 1500), (8000, 9000)])
    sent = server.sent
    assert file.pread(1500, 1500) == content[1500:3000] and file.pread(2000, 8000) == content[8000:]
    assert server.sent == sent


def test_a_part_of_which_less_came_than_was_asked_for_is_asked_for_again(server: Server) -> None:
    """The answer says so itself, and is whole."""
    server.files["/f"] = content = np.random.default_rng(0).bytes(10_000)
    file = RemoteFile(Address(f"{server.url}/f"))
    server.faults = ["short"]
    assert file.pread(10_000, 0) == content and not server.faults


def test_without_room_for_them_all_is_read_anew(folder: Path, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    place = laid_out("tar", folder, tmp_path / "data")
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert_same(batches(settings(served(place, server)).open()), batches(settings(place).open()))


# What is refused


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("https://me:hunter2@host/x.zip", "an address with a user's name in it"),
        ("https://host/x.zip?X-Amz-Signature=hunter2", r"an address with a \? or #"),
        ("s3://", "an address without a place"),
    ],
)
def test_addresses_with_secrets_are_not_taken(path: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        settings(path)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "more", "said"),
    [
        ("http://127.0.0.1:9/x.zip", {"source": "folder"}, r"data\.source: got 'folder', but .* is not on this machine"),
        ("nosuch://b/x.zip", {}, "fsspec knows no nosuch://"),
        ("http://127.0.0.1:9/x.parquet", {}, "not recognised; expected a .zip, .tar, .npz or .npy"),
        ("http://127.0.0.1:9/part-{0..999999}.tar", {}, "stands for more than 100,000 files"),
        ("http://127.0.0.1:9/part-{0-9}.tar", {}, "is no range and no list"),
        ("memory://nothing/there.zip", {}, "does not exist"),
    ],
)
def test_addresses_that_will_not_do(path: str, more: dict, said: str) -> None:
    with pytest.raises((ConfigError, DataError), match=said):
        settings(path, **more).open()


def test_what_wants_images_here_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "doctor", "s3://bucket/x.zip"]) == 2
    assert "s3://bucket/x.zip: an address, where a path on this machine is expected; copy what lies there here" in capsys.readouterr().err


def test_a_size_of_the_cache_that_will_not_do(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files["/x.zip"] = b"x"
    monkeypatch.setenv("TRIPTYCH_CACHE_GB", "much")
    with pytest.raises(DataError, match="TRIPTYCH_CACHE_GB: got 'much', expected a positive number"):
        settings(f"{server.url}/x.zip").open()


def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    remote._filesystem.cache_clear()
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(DataError, match=r'http://127\.0\.0\.1:9/x\.zip: to read http:// needs fsspec: pip install "triptych\[remote\]"'):
        settings("http://127.0.0.1:9/x.zip").open()
    remote._filesystem.cache_clear()


def test_a_compressed_tar_elsewhere(folder: Path, tmp_path: Path, server: Server) -> None:
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as tar:
        tar.add(folder, arcname="x")
    with pytest.raises(DataError, match=r"x\.tar\.gz: a compressed tar cannot be read in parts"):
        settings(served(tmp_path / "x.tar.gz", server)).open()


def test_a_document_keeps_the_versions() -> None:
    spec, objects = DataSpec(image_size=16, channels=1), {"s3://b/x.zip": "1 bytes, ETag a"}
    document = RunDocument(load_recipe("adm-digits"), spec, "adm-digits", {}, objects)
    assert RunDocument.from_dict(document.to_dict()) == document
    assert "objects" not in dataclasses.replace(document, objects={}).to_dict()


def test_a_run_goes_on_with_the_same_version_alone(folder: Path, tmp_path: Path, server: Server) -> None:
    address = served(laid_out("stored zip", folder, tmp_path / "data"), server)

    def trained(images: int) -> None:
        recipe = shrunk("adm-digits").updated({"data": {"path": address, "image_size": 8, "workers": 0}})
        steps = dataclasses.replace(recipe.train, total_images=images, batch_size=4, microbatch=None, sample_count=0, validate_images=0)
        train(dataclasses.replace(recipe, train=steps, log=LogConfig(report=False)), tmp_path / "run", device="cpu")

    trained(4)
    assert open_run(tmp_path / "run").find_checkpoint("latest") == 4
    content = server.files["/a/x.zip"]
    server.files["/a/x.zip"] = content + b"\0"
    with pytest.raises(DataError, match=r"x\.zip: not what this run has learned from: .*; give what it was, or begin another run"):
        trained(8)
    server.files["/a/x.zip"] = content
    trained(8)
    assert open_run(tmp_path / "run").find_checkpoint("latest") == 8
    assert "read from there; parts are kept in" in (tmp_path / "run" / "log.txt").read_text()
