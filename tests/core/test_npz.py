"""Arrays of files that say one thing of themselves and hold another, here and elsewhere, and those that are written in blocks."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

from triptych.core.address import Address
from triptych.core.npz import Blocks, DamagedArchive, RemoteRows, map_npy, open_npz, read_npz, write_npz

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


def npy(array: np.ndarray, *, less: int = 0) -> bytes:
    """An .npy whose header names so many rows fewer than it has; more where it is negative."""
    file = io.BytesIO()
    order, shape = np.isfortran(array), (len(array) - less, *array.shape[1:])
    described = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": order, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
    return file.getvalue() + array.tobytes("F" if order else "C")


def archive(path: Path, *, packed: bool = False, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Address]:
    """A folder in a file system of this process's memory."""
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    yield Address("memory://arrays")
    fsspec.filesystem("memory").rm("/arrays", recursive=True)


def put(place: Address, content: bytes) -> Address:
    fsspec.filesystem("memory").pipe_file(place.text.removeprefix("memory:/"), content)
    return place


def test_no_more_is_unpacked_than_the_header_names(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", packed=True, whole=npy(ROWS), more=npy(ROWS, less=1))
    with open_npz(path) as file:
        file.unpack("whole", tmp_path / "whole.npy")
        with pytest.raises(ValueError, match=r"more of shape \[3, 3\] is cut short, or followed by something else"):
            file.unpack("more", tmp_path / "more.npy")
    assert np.array_equal(np.load(tmp_path / "whole.npy"), ROWS)


def test_an_array_of_nothing_is_mapped(tmp_path: Path) -> None:
    with open_npz(archive(tmp_path / "a.npz", a=npy(ROWS[:0]))) as file:
        mapped = file.mapped("a")
        assert mapped.shape == (0, 3) and mapped.dtype == np.float32


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_elsewhere_are_read_by_rows(order: str, elsewhere: Address, tmp_path: Path) -> None:
    array = np.asarray(ROWS, order=order)  # type: ignore[call-overload]
    place, packed = put(elsewhere / "a.npy", npy(array)), put(elsewhere / "a.npz", archive(tmp_path / "a.npz", a=npy(array)).read_bytes())
    if order == "F":
        with pytest.raises(DamagedArchive, match="it is in Fortran order, and cannot be read in parts"):
            map_npy(place)
        with pytest.raises(DamagedArchive, match="a is in Fortran order, and cannot be read in parts"), open_npz(packed) as file:
            file.mapped("a")
        return
    with open_npz(packed) as file:
        for rows in (map_npy(place), file.mapped("a")):
            assert isinstance(rows, RemoteRows) and np.array_equal(rows[2], ROWS[2])
            assert np.array_equal(rows[np.array([3, 0])], ROWS[[3, 0]])


def test_an_array_elsewhere_that_is_cut_short(elsewhere: Address) -> None:
    with pytest.raises(DamagedArchive, match=r"an array of shape \[5, 3\] is cut short"):
        map_npy(put(elsewhere / "a.npy", npy(ROWS, less=-1)))


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "stored"])
@pytest.mark.parametrize("other", [ROWS[:1], ROWS + 1], ids=["shorter", "as long"])
def test_rows_of_a_file_that_was_replaced_meanwhile(packed: bool, other: np.ndarray, tmp_path: Path) -> None:
    with open_npz(archive(tmp_path / "a.npz", packed=packed, a=npy(ROWS))) as file:
        rows, unread = file.rows("a"), file.rows("a")
    assert np.array_equal(rows[1], ROWS[1])
    archive(tmp_path / "b.npz", packed=packed, a=npy(other)).replace(tmp_path / "a.npz")
    with pytest.raises(DamagedArchive, match="it was written anew meanwhile"):
        unread[1]
    assert np.array_equal(rows[2], ROWS[2]), "it holds the file that it began to read"


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "stored"])
def test_rows_of_a_file_that_is_cut_short_while_it_is_read(packed: bool, tmp_path: Path) -> None:
    many = np.random.default_rng(0).random((50_000, 3), dtype=np.float32)
    with open_npz(archive(tmp_path / "a.npz", packed=packed, a=npy(many))) as file:
        rows = file.rows("a")
    assert np.array_equal(rows[0], many[0])
    with (tmp_path / "a.npz").open("r+b") as content:
        content.truncate(100_000)
    with pytest.raises(DamagedArchive, match=r"cut short|damaged|End of|EOF|ended|invalid"):
        rows[49_999]


def test_a_header_with_sides_below_0(tmp_path: Path) -> None:
    content = npy(ROWS).replace(b"(4, 3), }", b"(-4, 3),}")
    with pytest.raises(DamagedArchive, match=r"a cannot have the shape \[-4, 3\]"):
        read_npz(archive(tmp_path / "a.npz", a=content))


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        ([ROWS[:2], ROWS[2:].astype(np.float64)], r"a block is float64 of shape \(2, 3\), the array float32 of shape \(4, 3\)"),
        ([ROWS[:2], ROWS[2:, :2]], r"a block is float32 of shape \(2, 2\)"),
        ([ROWS[:2]], "2 rows of 4"),
    ],
)
def test_blocks_that_do_not_make_up_their_array(blocks: list[np.ndarray], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        write_npz(io.BytesIO(), {"a": Blocks((4, 3), np.dtype(np.float32), blocks)})


def test_blocks_are_put_together(tmp_path: Path) -> None:
    with (tmp_path / "a.npz").open("wb") as file:
        write_npz(file, {"a": Blocks((4, 3), np.dtype(np.float32), [ROWS[:1], np.asfortranarray(ROWS[1:])]), "b": ROWS[0]})
    read = read_npz(tmp_path / "a.npz")
    assert read.keys() == {"a", "b"} and np.array_equal(read["a"], ROWS) and np.array_equal(read["b"], ROWS[0])
