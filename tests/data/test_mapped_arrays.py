"""Large arrays of an .npz are mapped, where they lie or where they were unpacked to, and give what reading them whole gives."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.data.pictures import picture
from triptych.core.errors import DataError
from triptych.core.memory import in_bytes
from triptych.core.npz import Npz
from triptych.data import arrays
from triptych.data.arrays import array_file
from triptych.data.config import DataConfig

IMAGES = np.stack([picture(20, 16, seed=k) for k in range(6)])
LABELS = np.arange(6) % 3
SAVE = {"stored": np.savez, "deflated": np.savez_compressed}


@pytest.fixture(autouse=True)
def _mapped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(arrays, "_READ_WHOLE", IMAGES.nbytes - 1)
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").rglob("*"))[1:]


@pytest.mark.parametrize("kind", SAVE)
@pytest.mark.parametrize("order", ["C", "F"])
def test_they_are_the_same_images(tmp_path, kind, order, monkeypatch):
    SAVE[kind](tmp_path / "x.npz", np.asarray(IMAGES, order=order), LABELS)
    settings = DataConfig(path=str(tmp_path / "x.npz"), image_size=8, pad=1, crop="random", validation_fraction=0.3)
    items, positions = np.array([2, 0, 2]), np.array([7, 8, 9])
    mapped = settings.open().train
    assert isinstance(array_file(tmp_path / "x.npz").pixels, np.memmap)
    assert len(kept(tmp_path)) == (kind == "deflated")
    monkeypatch.setattr(arrays, "_READ_WHOLE", IMAGES.nbytes)
    assert not isinstance(array_file(tmp_path / "x.npz").pixels, np.memmap)
    whole = settings.open().train
    for one, other in ((mapped.batch(items, positions), whole.batch(items, positions)), (mapped.batch(items), whole.batch(items))):
        np.testing.assert_array_equal(one.images, other.images)
        np.testing.assert_array_equal(one.labels, other.labels)
    assert mapped.key(0) == whole.key(0)


def test_a_compressed_array_is_unpacked_once_until_its_file_changes(tmp_path, monkeypatch):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, IMAGES)
    array_file(path)
    (first,) = kept(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(Npz, "unpack", None)
        np.testing.assert_array_equal(array_file(path).pixels, IMAGES)
    path.unlink()
    np.savez_compressed(path, IMAGES[::-1])
    np.testing.assert_array_equal(array_file(path).pixels, IMAGES[::-1])
    (second,) = kept(tmp_path)
    assert first != second
    second.write_bytes(b"something else")
    np.testing.assert_array_equal(array_file(path).pixels, IMAGES[::-1])


def test_what_cannot_be_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, IMAGES)
    with monkeypatch.context() as patched:
        free = arrays._LEFT_FREE + IMAGES.nbytes
        patched.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free - 1))
        needed, room = (in_bytes(IMAGES.nbytes - less) for less in (0, 1))
        with pytest.raises(DataError, match=rf"x\.npz: unpacked it has {needed}, and .*/arrays has room for {room}; name a folder"):
            array_file(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"x\.npz: .*save one uint8 array"):
        array_file(path)
    assert kept(tmp_path) == []
