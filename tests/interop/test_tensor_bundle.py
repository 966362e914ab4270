"""Checkpoints that TensorFlow wrote are read exactly; cut, damaged and hostile ones are refused in one line."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.interop.checkpoint import AVERAGE, FOLDER, PREFIX, SLICED, TYPES, VARIABLES, average, value
from triptych.core.crc32c import crc32c, masked
from triptych.core.errors import CheckpointError
from triptych.interop import tensor_bundle
from triptych.interop.tensor_bundle import bundle_files, find_bundle, read_bundle, read_variables

INDEX, DATA = f"{PREFIX.name}.index", f"{PREFIX.name}.data-00000-of-00001"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A folder with the checkpoint alone, to be damaged."""
    for name in (INDEX, DATA):
        shutil.copyfile(FOLDER / name, tmp_path / name)
    return tmp_path


def refused(path: Path, **named) -> str:
    with pytest.raises(CheckpointError) as raised:
        read_variables(path, **named)
    assert "\n" not in str(raised.value)
    return str(raised.value)


HEADER = bytes.fromhex("08011a020801")  # one data file, little-endian, version 1
RESTARTS = (0).to_bytes(4, "little") + (1).to_bytes(4, "little")  # what ends a block: where keys are in full, and how many there are
FLOAT = bytes.fromhex("08011200280435") + masked(crc32c(bytes(4))).to_bytes(4, "little")  # float32, no axes, four bytes of zeros at 0


def table(*entries: tuple[bytes, bytes], kind: int = 0, content: bytes | None = None, times: int = 1) -> bytes:
    """An index with these keys and values, each key in full, and a block of entries of the given type of compression.

    `content`: of that block, in place of the entries'. `times`: how often the index of blocks speaks of it.
    """

    def sealed(content: bytes, kind: int = 0) -> bytes:
        content += bytes((kind,))
        return content + masked(crc32c(content)).to_bytes(4, "little")

    def block(*pairs: tuple[bytes, bytes]) -> bytes:
        parts = [bytes((0, len(key), len(value))) + key + value for key, value in pairs]
        return b"".join(parts) + RESTARTS

    def handle(offset: int, content: bytes) -> bytes:
        size = len(content) - 5
        return b"".join(bytes((number & 0x7F | 0x80, number >> 7)) for number in (offset, size))

    data = sealed(block(*entries) if content is None else content, kind)
    rest = sealed(block())
    index = sealed(block(*[(b"w", handle(0, data))] * times))
    footer = handle(len(data), rest) + handle(len(data) + len(rest), index)
    return data + rest + index + footer.ljust(40, b"\0") + (0xDB4775248B80FB57).to_bytes(8, "little")


def test_values_are_those_that_were_written() -> None:
    found = read_bundle(PREFIX)
    for name, shape in VARIABLES.items():
        assert found[name].dtype == np.float32 and found[name].shape == shape
        np.testing.assert_array_equal(found[name], value(name, shape))
        np.testing.assert_array_equal(found[name + AVERAGE], average(name, shape))
    assert found["Variable"] == 7 and found["Variable"].shape == () and found["types/empty"].shape == (0, 3)
    others = {name for name in found if not name.startswith("model/")}
    assert others == {
        "types/empty",
        *(f"types/{kind}" for kind in TYPES if kind != "bool"),
        "Variable",
        *(f"Variable_{k}" for k in range(1, 5)),
    }


def test_types() -> None:
    found = read_bundle(PREFIX)
    for kind in TYPES[:-1]:
        array, exact = found[f"types/{kind}"], value(f"types/{kind}", (2, 3)) * 30
        assert array.dtype == np.dtype("float32" if kind == "bfloat16" else kind)
        if kind.startswith("int"):
            np.testing.assert_array_equal(array, np.trunc(exact))
        else:
            np.testing.assert_allclose(array, exact, rtol={"bfloat16": 2**-8, "float16": 2**-11}.get(kind, 1e-7))


@pytest.mark.parametrize("path", [PREFIX, FOLDER / INDEX, FOLDER / DATA, FOLDER, FOLDER.parent / "glow_checkpoint/sliced"])
def test_a_checkpoint_goes_by_several_names(path: Path) -> None:
    assert find_bundle(path) == (SLICED if path.name == "sliced" else PREFIX)
    assert bundle_files(path)[0].suffix == ".index" and len(bundle_files(path)) == 2


def test_names_that_are_wanted() -> None:
    wanted = read_bundle(PREFIX, wanted=lambda name: name.startswith("model/prior") and not name.endswith(AVERAGE))
    assert sorted(wanted) == ["model/prior/p/W", "model/prior/p/b", "model/prior/p/logs"]
    assert "types/bool is bool, expected float16 to float64" in refused(PREFIX, wanted=lambda name: name == "types/bool")
    assert "types/text is text, expected float16 to float64" in refused(PREFIX, wanted=lambda name: name == "types/text")


def test_partitioned_variables() -> None:
    assert "parts is stored in slices (a partitioned variable), which is not read" in refused(SLICED)


def test_folders(copied: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    shutil.copyfile(copied / INDEX, copied / "other.ckpt.index")
    assert refused(copied) == f"{copied} holds several checkpoints, model_best_loss.ckpt and other.ckpt among them: name one"
    (copied / "other.ckpt.index").unlink()
    outer = tmp_path_factory.mktemp("outer")
    assert "holds no checkpoint (*.index)" in refused(outer)
    copied.rename(outer / "logs")
    assert find_bundle(outer) == outer / "logs" / PREFIX.name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("graph.pb", "graph.pb is a frozen graph, not variables; give a checkpoint: PREFIX.index with PREFIX.data-00000-of-00001"),
        ("abl-1x1-aff.tar", "is an archive; unpack it, and give the checkpoint in it (PREFIX.index)"),
        ("model.ckpt", "model.ckpt is not a checkpoint of TensorFlow: expected PREFIX.index with its PREFIX.data-*, or an .npz"),
        ("missing.ckpt", "there is no checkpoint"),
        (".index", "there is no checkpoint"),
        ("missing.npz", "there is no file"),
    ],
)
def test_what_is_not_a_checkpoint(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.ckpt").write_bytes(b"old format")
    assert message in refused(tmp_path / name)


def test_damage_is_found(copied: Path) -> None:
    data, index = (FOLDER / DATA).read_bytes(), (FOLDER / INDEX).read_bytes()
    (copied / DATA).write_bytes(data[: len(data) // 2])
    assert f"{DATA} is damaged, or not a checkpoint of TensorFlow: it is cut short: model/" in refused(copied)
    (copied / DATA).write_bytes(bytes((data[0] ^ 1,)) + data[1:])
    assert "the checksum of Variable is wrong" in refused(copied)
    (copied / DATA).unlink()
    assert f"{INDEX} needs {copied / DATA}: No such file" in refused(copied)
    for cut in (0, 1, 47, 48, 100, len(index) - 1):
        (copied / INDEX).write_bytes(index[:cut])
        assert f"{INDEX} is damaged, or not a checkpoint of TensorFlow: it does not end as" in refused(copied)
    for position in range(0, len(index) - 150, 37):  # what comes after is read in part
        (copied / INDEX).write_bytes(index[:position] + bytes((index[position] ^ 0xFF,)) + index[position + 1 :])
        assert f"{INDEX} is damaged, or not a checkpoint of TensorFlow: the checksum of a block is wrong" in refused(copied)


def described(tmp_path: Path, *entries: tuple[bytes, bytes], kind: int = 0, size: int = 8) -> Path:
    """A checkpoint of such an index, with zeros for data."""
    (tmp_path / "x.index").write_bytes(table(*entries, kind=kind))
    (tmp_path / "x.data-00000-of-00001").write_bytes(bytes(size))
    return tmp_path / "x"


def test_an_index_that_is_made_by_hand(tmp_path: Path) -> None:
    """What the refusals below are changes of. A field of another kind than it should be says nothing, and data may end with a variable."""
    for entry, size in ((FLOAT, 8), (FLOAT, 4), (FLOAT + bytes.fromhex("2200"), 8)):
        found = read_bundle(described(tmp_path, (b"", HEADER), (b"w", entry), size=size))
        assert found["w"] == 0 and found["w"].dtype == np.float32


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([(b"", HEADER), (b"w", FLOAT.replace(b"\x28\x04", b"\x28\x08"))], "w of shape [] has 8 bytes"),
        ([(b"", HEADER), (b"w", bytes.fromhex("08011206120408808040") + FLOAT[4:])], "w of shape [1048576] has 4 bytes"),
        ([(b"", HEADER), (b"w", bytes.fromhex("080112021200") + FLOAT[4:] + bytes.fromhex("2006"))], "has 4 bytes"),
        ([(b"", HEADER), (b"w", FLOAT + bytes.fromhex("2006"))], "it is cut short: w ends at byte 10 of 8"),
        ([(b"", HEADER), (b"w", FLOAT[:-1] + b"\0")], "the checksum of w is wrong"),
        ([(b"", HEADER), (b"v", FLOAT), (b"w", FLOAT)], "w lies where another variable does"),
        ([(b"", HEADER), (b"w", FLOAT), (b"w", FLOAT)], "its names are out of order"),
        ([(b"", HEADER), (b"w", bytes.fromhex("080112190a17"))], "a field beyond the end"),
        ([(b"", HEADER), (b"w", b"\x0b")], "a field of kind 3"),
        ([(b"", HEADER), (b"w", b"\x08" + b"\xff" * 12)], "a number of more than 64 bits"),
        ([(b"", HEADER), (b"w", bytes.fromhex("0801120d120b08ffffffffffffffffff01"))], "a shape in it is impossible"),
        ([(b"", HEADER), (b"w", bytes.fromhex("08011242") + 33 * b"\x12\0")], "a shape in it is impossible"),
        ([(b"", HEADER), (b"w", bytes.fromhex("080112021003"))], "a shape in it is not one"),
        ([(b"", HEADER), (b"\xff", FLOAT)], "a name in it is not text"),
        ([(b"w", FLOAT)], "it has no header"),
        ([(b"", bytes.fromhex("08011001")), (b"w", FLOAT)], "its numbers are big-endian"),
        ([(b"", bytes.fromhex("1a020801")), (b"w", FLOAT)], "it speaks of 0 data files"),
        ([(b"", bytes.fromhex("08ffffff7f")), (b"w", FLOAT)], "it speaks of 268435455 data files"),
        ([(b"", bytes.fromhex("0802")), (b"w", FLOAT + bytes.fromhex("1801"))], "x.data-00001-of-00002: No such file"),
    ],
)
def test_an_index_that_lies(entries: list[tuple[bytes, bytes]], message: str, tmp_path: Path) -> None:
    """Its own checksums are right."""
    said = refused(described(tmp_path, *entries))
    assert message in said and said.startswith((f"{tmp_path}/x.index ", f"{tmp_path}/x.data-00000-of-00001 ", "x.index needs "))


def test_types_that_are_not_read(tmp_path: Path) -> None:
    """By the numbers of TensorFlow's types.proto; an entry that names none has 0. They are left out where nothing is wanted by name."""
    kinds = {4: "uint8", 5: "int16", 6: "int8", 7: "text", 8: "complex64", 10: "bool", 17: "uint16", 22: "uint32", 23: "uint64"}
    for number, kind in {0: "of TensorFlow's type 0", 18: "of TensorFlow's type 18", **kinds}.items():
        entry = FLOAT[2:] if not number else bytes((8, number)) + FLOAT[2:]
        path = described(tmp_path, (b"", HEADER), (b"w", entry))
        expected = f"{path}.data-00000-of-00001: w is {kind}, expected float16 to float64, bfloat16, int32 or int64"
        assert refused(path, wanted=lambda name: True) == expected
        assert read_variables(path) == {}


@pytest.mark.parametrize(
    ("content", "times", "message"),
    [
        (bytes((0, 1, 1)) + b"w" + RESTARTS, 1, "an entry is longer than its block"),
        (bytes((1, 1, 0)) + b"w" + RESTARTS, 1, "an entry is longer than its block"),
        (bytes(8) + (2).to_bytes(4, "little"), 1, "it has no header"),
        (bytes(8) + (3).to_bytes(4, "little"), 1, "a block is too short"),
        (b"\0\0", 1, "a block lies beyond its end"),
        (bytes(400) + (100).to_bytes(4, "little"), 2, "its blocks overlap"),
    ],
)
def test_blocks_that_lie(content: bytes, times: int, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.index").write_bytes(table(content=content, times=times))
    assert message in refused(tmp_path / "x")


def test_a_block_beyond_the_end(tmp_path: Path) -> None:
    whole = table((b"", HEADER), (b"w", FLOAT))
    size = len(whole) - 41  # the last of the two bytes of the size of the index of blocks, in the footer
    (tmp_path / "x.index").write_bytes(whole[:size] + b"\x01" + whole[size + 1 :])
    assert "a block lies beyond its end" in refused(tmp_path / "x")


def test_files_that_are_not_read(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One too large to be an index, data that the disk does not give, and too little memory for them."""

    def fails(error: Exception, path: Path = copied) -> str:
        def read(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(np, "fromfile", read)
        monkeypatch.setattr(tensor_bundle, "open_npz", read)
        return refused(path)

    assert fails(OSError(5, "Input/output error")) == f"cannot read {copied / DATA}: Input/output error"
    assert f"{copied / DATA}: there is no memory for the " in fails(MemoryError())
    archive = copied / "v.npz"
    archive.touch()
    assert fails(OSError(5, "Input/output error"), archive) == f"cannot read {archive}: Input/output error"
    assert fails(MemoryError("of 8 EiB"), archive) == f"{archive}: there is no memory for its arrays: of 8 EiB"
    with (copied / INDEX).open("r+b") as file:
        file.truncate(2**26 + 1)
    assert refused(copied) == f"cannot read {copied / INDEX}: larger than 67,108,864 bytes"


def test_a_compressed_block_is_named(tmp_path: Path) -> None:
    path = described(tmp_path, (b"", HEADER), (b"w", FLOAT), kind=1)
    assert "a block is compressed (type 1), which TensorFlow's own are not" in refused(path)


def test_archives_of_arrays(tmp_path: Path) -> None:
    arrays = {"model/0/0/invconv/W": np.eye(3, dtype=np.float32), "Variable_1": np.zeros(2)}
    np.savez(tmp_path / "v.npz", **arrays)
    found = read_variables(tmp_path / "v.npz", wanted=lambda name: name.startswith("model/"))
    assert list(found) == ["model/0/0/invconv/W"] and (found["model/0/0/invconv/W"] == np.eye(3)).all()
    assert set(read_variables(tmp_path / "v.npz")) == set(arrays)
    whole = (tmp_path / "v.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    assert "cut.npz is damaged, or not an .npz of arrays" in refused(tmp_path / "cut.npz")
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    assert "x holds Python objects" in refused(tmp_path / "objects.npz")
    np.save(tmp_path / "x.npy", np.zeros(4))
    header = (tmp_path / "x.npy").read_bytes().replace(b"(4,)", b"(9999999999999,)", 1)
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("x.npy", header)
    assert "huge.npz is damaged, or not an .npz of arrays" in refused(tmp_path / "huge.npz")


def test_an_archive_that_lies_about_its_size(tmp_path: Path) -> None:
    """Its directory claims as many bytes as the header of its array does."""
    np.savez(tmp_path / "v.npz", x=np.zeros(4))
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        with zipfile.ZipFile(tmp_path / "v.npz") as given:
            archive.writestr("x.npy", given.read("x.npy").replace(b"(4,)", b"(9999999999999,)", 1))
        archive.getinfo("x.npy").file_size = 2**60
    assert "huge.npz unpacks to 79,999,999,999,992 bytes, expected " in refused(tmp_path / "huge.npz")


def test_a_small_archive_that_unpacks_to_much(tmp_path: Path) -> None:
    """Of what is wanted: the optimizer's zeros, say, are left aside."""
    arrays = {"model/x": np.arange(50_000.0), "Variable_1": np.zeros(10_000_000)}
    np.savez_compressed(tmp_path / "v.npz", **arrays)
    assert "v.npz unpacks to 80,400,000 bytes, expected " in refused(tmp_path / "v.npz")
    assert list(read_variables(tmp_path / "v.npz", wanted=lambda name: name.startswith("model/"))) == ["model/x"]
