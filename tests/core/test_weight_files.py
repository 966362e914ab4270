from __future__ import annotations

import errno
import os
import pickle
import re
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from triptych.core.errors import CheckpointError
from triptych.core.weight_files import read_weights, write_weights

WEIGHTS = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2).half()}


class Unknown:
    """Something that only its own code could make again."""


class Harmful:
    """Unpickled, it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as raised:
        read_weights(path)
    assert "\n" not in str(raised.value)
    return str(raised.value).replace(str(path), "FILE")


@pytest.mark.parametrize("archive", [True, False])
def test_both_formats(archive: bool, tmp_path: Path) -> None:
    torch.save(WEIGHTS, tmp_path / "a.pt", _use_new_zipfile_serialization=archive)
    read = read_weights(tmp_path / "a.pt")
    assert read.keys() == WEIGHTS.keys() and all(torch.equal(read[name], tensor) for name, tensor in WEIGHTS.items())


def test_written(tmp_path: Path) -> None:
    write_weights(WEIGHTS, tmp_path / "new/a.pt")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.pt"]
    read = torch.load(tmp_path / "new/a.pt", weights_only=True)
    assert list(read) == list(WEIGHTS) and all(torch.equal(read[name], tensor) for name, tensor in WEIGHTS.items())


def test_parameters_are_read_as_tensors(tmp_path: Path) -> None:
    torch.save({"a": torch.nn.Parameter(torch.ones(2))}, tmp_path / "a.pt")
    assert not read_weights(tmp_path / "a.pt")["a"].requires_grad


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*given: object, **settings: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    torch.save(WEIGHTS, tmp_path / "a.pt")
    monkeypatch.setattr(torch, "load", denied)
    assert refused(tmp_path / "a.pt") == "cannot read FILE: Permission denied"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert refused(tmp_path / "none.pt") == "there is no file FILE"
    assert refused(tmp_path) == "FILE is a folder; give a file of weights (.pt)"
    file, damaged = tmp_path / "a.pt", "FILE is damaged, or not a file of PyTorch's weights"
    for content in (b"", b"hello", bytes(range(256)) * 20):
        file.write_bytes(content)
        assert refused(file) == damaged
    for archive in (True, False):
        torch.save({"a": torch.ones(5000)}, file, _use_new_zipfile_serialization=archive)
        file.write_bytes(file.read_bytes()[:-3000])
        assert refused(file) == damaged


def test_programs_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "a.pt"
    torch.save(WEIGHTS, file)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("a/constants.pkl", b"")  # which makes it TorchScript
    assert refused(file) == "FILE is TorchScript, a program; give the weights alone (a state dict)"


@pytest.mark.parametrize("archive", [True, False])
def test_nothing_in_a_file_is_run(archive: bool, tmp_path: Path) -> None:
    file, code = tmp_path / "a.pt", "FILE holds more than tensors: to read it, code that it names would have to be run"
    torch.save({"a": Unknown()}, file, _use_new_zipfile_serialization=archive)
    assert refused(file) == code
    torch.save(torch.nn.Linear(2, 2), file, _use_new_zipfile_serialization=archive)
    assert refused(file) == code
    torch.save({"a": Harmful(tmp_path / "made")}, file, _use_new_zipfile_serialization=archive)
    assert refused(file) == code
    file.write_bytes(pickle.dumps(Harmful(tmp_path / "made")))
    refused(file)
    assert not (tmp_path / "made").exists()


def test_content_of_another_kind(tmp_path: Path) -> None:
    file = tmp_path / "a.pt"
    for content, line in (
        ([1, 2], "FILE holds a list, expected tensors by name (a state dict)"),
        (torch.ones(2), "FILE holds a Tensor, expected tensors by name (a state dict)"),
        ({}, "FILE is empty, expected tensors by name (a state dict)"),
        ({"step": 3}, "FILE holds an int under 'step', expected tensors by name"),
        (
            {"model": WEIGHTS},
            "FILE holds a dict under 'model', expected tensors by name (a state dict inside another dictionary: save that one alone)",
        ),
        ({1: torch.ones(1)}, "FILE holds a Tensor under 1, expected tensors by name"),
    ):
        torch.save(content, file)
        assert refused(file) == line
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    torch.save(optimizer.state_dict(), file)
    assert refused(file) == "FILE is the state of an optimizer (opt*.pt), expected weights (model*.pt or ema_*.pt)"


def test_what_other_programs_put_around_weights(tmp_path: Path) -> None:
    file = tmp_path / "a.pt"
    wrapped = {f"module.{name}": tensor for name, tensor in WEIGHTS.items()}
    compiled = (
        {prefix + name: tensor for name, tensor in WEIGHTS.items()} for prefix in ("_orig_mod.", "_orig_mod.module.", "module._orig_mod.")
    )
    for content in (wrapped, *compiled, {"state_dict": wrapped, "epoch": 3}):
        torch.save(content, file)
        read = read_weights(file)
        assert read.keys() == WEIGHTS.keys() and all(torch.equal(read[name], tensor) for name, tensor in WEIGHTS.items())
    torch.save(wrapped | {"other": torch.ones(1)}, file)
    assert set(read_weights(file)) == {*wrapped, "other"}, "a prefix of some is part of their names"


def test_safetensors(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_file(WEIGHTS, file)
    read = read_weights(file)
    assert read.keys() == WEIGHTS.keys() and all(torch.equal(read[name], tensor) for name, tensor in WEIGHTS.items())
    file.write_bytes(file.read_bytes()[:-1])
    assert refused(file) == "FILE is damaged, or not a file of safetensors"


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(1).expand(10**9, 10**9), torch.ones(3, 4, device="meta"), torch.eye(3).to_sparse()],
    ids=["view", "meta", "sparse"],
)
def test_tensors_without_their_values(tensor: torch.Tensor, tmp_path: Path) -> None:
    """A file of a few bytes may ask for any amount of memory."""
    torch.save({"a": tensor}, tmp_path / "a.pt")
    assert refused(tmp_path / "a.pt") == f"FILE: a does not hold all of its {tensor.numel()} values; save plain tensors"


def test_a_full_disk_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 357952 vs 357904\nmore")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as error:
        write_weights(WEIGHTS, tmp_path / "a.pt")
    assert error.value.errno == errno.ENOSPC and not list(tmp_path.iterdir())


def compressed(tensors: dict[str, torch.Tensor], tmp_path: Path) -> Path:
    torch.save(tensors, tmp_path / "stored.pt")
    with zipfile.ZipFile(tmp_path / "stored.pt") as stored, zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))
    return tmp_path / "x.pt"


def test_a_compressed_archive_that_unpacks_to_far_more_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = compressed({"a": torch.zeros(10**6)}, tmp_path)
    monkeypatch.setattr(torch, "load", lambda *given, **settings: pytest.fail("unpacked"))
    assert file.stat().st_size < 10_000
    assert re.fullmatch(r"FILE is compressed and unpacks to 4,\d{3},\d{3} bytes, expected .* or fewer: .*torch.save", refused(file))


def test_a_compressed_archive_is_unpacked(tmp_path: Path) -> None:
    """Mapped, its packed bytes would be taken for numbers."""
    expected = {"a": torch.randn(64, 8), "b": torch.arange(5)}
    compressed(expected, tmp_path)
    found = read_weights(tmp_path / "x.pt")
    assert found.keys() == expected.keys() and all(torch.equal(found[name], tensor) for name, tensor in expected.items())
