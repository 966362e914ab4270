"""Pickles of NVIDIA's form are read without running anything; hostile and damaged ones are refused in one line that says why."""

from __future__ import annotations

import io
import os
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._utils import _rebuild_tensor_v2 as rebuild_tensor

from tests.interop.nvidia_files import Persistent, module_state, modules_of_nvidia, network, small_tensors, write_pickle
from triptych.core.errors import CheckpointError
from triptych.interop.nvidia.pickles import Record, read_pickle
from triptych.interop.nvidia.snapshots import read_snapshot, snapshot_of


@pytest.fixture(autouse=True)
def _modules() -> Any:
    with modules_of_nvidia():
        yield


def refusal(content: bytes, tmp_path: Path) -> str:
    """What is said of a file, without its name."""
    path = tmp_path / "file.pkl"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_pickle(path)
    assert "\n" not in str(caught.value) and str(caught.value).startswith(str(path)) and len(str(caught.value)) < 500
    return str(caught.value).removeprefix(str(path)).strip()


class Calls:
    """An object whose pickle calls a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.parts = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.parts


# What is read ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_values(protocol: int, tmp_path: Path) -> None:
    tensor = torch.randn(3, 4)
    values = {
        "parameter": nn.Parameter(tensor),
        "half": tensor.half(),
        "bf16": tensor.bfloat16(),
        "view": tensor[1:, 2],
        "last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "scalar": torch.tensor(2.5),
        "none": torch.empty(0, 7),
        "empty": torch.empty(3, 0),
        "whole": torch.tensor([2**40]),
    }
    plain = {"gain": np.float64(1) / np.sqrt(3), "numpy": np.int64(-3), "flag": np.bool_(True), "big": 10**30, "text": "ø", "none": None}
    plain |= {"set": {"a"}, "size": torch.Size([2, 3]), "dtype": torch.bfloat16, "tuple": (1, [2.5, b"x"], True, False), "device": None}
    read = read_pickle(write_pickle(tmp_path / "x.pkl", {"tensors": values, "plain": plain}, protocol=protocol))
    for name, value in values.items():
        assert torch.equal(read["tensors"][name], value) and read["tensors"][name].dtype == value.dtype
        assert type(read["tensors"][name]) is torch.Tensor
    assert {key: value for key, value in read["plain"].items() if key not in ("set", "size")} == {
        key: value for key, value in plain.items() if key not in ("set", "size")
    }
    assert type(read["plain"]["gain"]) is float and list(read["plain"]["set"]) == ["a"] and tuple(read["plain"]["size"]) == (2, 3)


def test_modules_of_pytorch_are_records(tmp_path: Path) -> None:
    read = read_pickle(write_pickle(tmp_path / "x.pkl", nn.ModuleList([nn.Linear(2, 3)])))
    assert isinstance(read, Record) and read.name == "torch.nn.modules.container.ModuleList"
    assert read.state["_modules"]["0"].state["_parameters"]["weight"].shape == (3, 2)


def test_a_snapshot(tmp_path: Path) -> None:
    made = tmp_path / "made"
    source = f"import pathlib; pathlib.Path({str(made)!r}).touch()"
    plain = {"z_dim": 3, "kw": {"num_layers": 2, "side": None}, "list": [1, "a", (2.5, True)]}
    odd = {"odd": torch.ones(1), "in_a_table": {"a": 1, "b": torch.ones(1)}, "in_a_list": [1, torch.ones(1)], "keys": {"a": 1, 2: 3}}
    content = {
        "G": None,
        "D": network("Discriminator", {"b4.out.weight": torch.ones(1, 2)}, settings={"c_dim": 0}, source=source),
        "G_ema": network("Generator", small_tensors(), settings=plain | odd, source=source),
        "training_set_kwargs": {"path": "x.zip"},
    }
    snapshot = read_snapshot(write_pickle(tmp_path / "x.pkl", content))
    assert snapshot.kind == "StyleGAN2" and set(snapshot.networks) == {"D", "G_ema"} and not made.exists()
    assert snapshot.maker.class_name == "Generator" and snapshot.maker.settings == plain
    assert snapshot.maker.tensors.keys() == small_tensors().keys()
    for name, tensor in small_tensors().items():
        assert torch.equal(snapshot.maker.tensors[name], tensor) and snapshot.maker.tensors[name].dtype == tensor.dtype


def test_what_a_training_has_beside_its_networks(tmp_path: Path) -> None:
    """The finite numbers of its loss and of augmentations that are no network; nothing of anything else."""
    loss = {"P_mean": -1, "P_std": 1.5, "name": "x", "none": None, "far": float("inf"), "odd": float("nan"), 3: 4.0}
    content = {
        "ema": network("Generator", small_tensors(), settings={}),
        "loss_fn": Persistent("EDMLoss", loss),
        "augment_pipe": network("AugmentPipe", {"p": torch.ones(1)}, settings={}),
        "optimizer": Persistent("Adam", {"lr": 1.0}),
    }
    snapshot = read_snapshot(write_pickle(tmp_path / "x.pkl", content))
    assert snapshot.networks.keys() == {"ema", "augment_pipe"} and snapshot.training == {"loss_fn": {"P_mean": -1.0, "P_std": 1.5}}


def test_buffers_that_a_state_dict_lacks_are_left_out(tmp_path: Path) -> None:
    state = module_state({"synthesis.b4.const": torch.ones(1)}, buffers={"a": torch.ones(2), "b": torch.ones(3)}, unsaved={"a"})
    snapshot = read_snapshot(write_pickle(tmp_path / "x.pkl", {"ema": Persistent("Net", state)}))
    assert set(snapshot.maker.tensors) == {"synthesis.b4.const", "b"}


# What is refused -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (os.system, ("touch {}",), f"{os.name}.system"),
        (eval, ("__import__('pathlib').Path('{}').touch()",), "builtins.eval"),
        (exec, ("__import__('pathlib').Path('{}').touch()",), "builtins.exec"),
        (getattr, ("x", "y"), "builtins.getattr"),
        (torch.load, ("{}",), "torch.serialization.load"),
        (torch.hub.load, ("x", "y"), "torch.hub.load"),
        (bytearray, (10**13,), "builtins.bytearray"),
        (np.load, ("{}",), "numpy.load"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_other_names(function: Callable[..., Any], arguments: tuple[Any, ...], name: str, protocol: int, tmp_path: Path) -> None:
    made = tmp_path / "made"
    arguments = tuple(value.format(made) if isinstance(value, str) else value for value in arguments)
    content = pickle.dumps(Calls(function, *arguments), protocol=protocol).replace(b"__builtin__", b"builtins")
    assert refusal(content, tmp_path) == f"names {name}, which no pickle of NVIDIA's networks needs: nothing of it was run"
    assert not made.exists()


def test_a_hostile_name_deep_in_a_network(tmp_path: Path) -> None:
    content = {"G_ema": network("Generator", small_tensors(), settings={"z_dim": Calls(os.system, f"touch {tmp_path / 'made'}")})}
    assert refusal(pickle.dumps(content), tmp_path).startswith(f"names {os.name}.system, ")
    assert not (tmp_path / "made").exists()


def test_a_hostile_tensor(tmp_path: Path) -> None:
    """The bytes of a tensor are a pickle of their own."""
    file = io.BytesIO()
    torch.save(Calls(os.system, f"touch {tmp_path / 'made'}"), file, _use_new_zipfile_serialization=False)
    content = pickle.dumps(Calls(torch.storage._load_from_bytes, file.getvalue()))
    assert refusal(content, tmp_path) == f"names {os.name}.system in a tensor, which is no type of tensors: nothing of it was run"
    file = io.BytesIO()
    torch.save(Calls(os.system, "true"), file)
    assert "is damaged" in refusal(pickle.dumps(Calls(torch.storage._load_from_bytes, file.getvalue())), tmp_path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["os.float32", "torch.load", "torch.nn.Linear", "R3GAN2.Networks.Generator"])
def test_names_that_are_nearly_allowed(name: str, tmp_path: Path) -> None:
    module, _, last = name.rpartition(".")
    content = f"c{module}\n{last}\n.".encode()
    assert refusal(content, tmp_path) == f"names {name}, which no pickle of NVIDIA's networks needs: nothing of it was run"


def test_a_name_that_would_steer_a_terminal_or_fill_it(tmp_path: Path) -> None:
    assert "os.\\x1b[31mx, which" in refusal(b"\x80\x04cos\n\x1b[31mx\n.", tmp_path)
    assert refusal(b"\x80\x04cos\n" + b"x" * 100_000 + b"\n.", tmp_path).startswith("names os.xxx")


@pytest.mark.parametrize("state", [{"__class__": 1}, ("_name", {"x": 1})])
def test_what_is_allowed_is_not_changed(state: Any, tmp_path: Path) -> None:
    """A function that a name stands for gets no attributes, and what is called is a name."""
    content = b"\x80\x02ctorch.storage\n_load_from_bytes\n" + pickle.dumps(state, protocol=2)[2:-1] + b"b."
    assert "is damaged" in refusal(content, tmp_path)
    assert "is damaged" in refusal(b"\x80\x02X\x01\x00\x00\x00x)R.", tmp_path)


def persistent(**meta: Any) -> bytes:
    """The instructions for an object of NVIDIA's persistent classes."""
    return b"\x80\x02ctorch_utils.persistence\n_reconstruct_persistent_obj\n" + pickle.dumps(meta, protocol=2)[2:-1] + b"\x85R."


def test_instructions_that_do_not_fit(tmp_path: Path) -> None:
    """Each of them beside one that does."""
    fitting = {
        b"\x80\x02(K\x01K\x02K\x03K\x04t.": (1, 2, 3, 4),
        b"\x80\x02ctorch\nSize\n](K\x02K\x03e\x85R.": (2, 3),
        b"\x80\x02ctorch\nSize\n)R.": (),
    }
    for content, value in fitting.items():
        (tmp_path / "x.pkl").write_bytes(content)
        assert read_pickle(tmp_path / "x.pkl") == value
    (tmp_path / "x.pkl").write_bytes(persistent(class_name="Net", state={"a": 1}))
    made = read_pickle(tmp_path / "x.pkl")
    assert (made.name, made.arguments, made.state) == ("Net", (), {"a": 1})
    for content in (
        b"\x80\x02K\x01K\x02t.",  # no mark
        b"\x80\x02)\x86.",  # one value for a pair
        b"\x80\x02ctorch\nSize\n]](K\x02K\x03eaR.",  # arguments that are no tuple
        b"\x80\x02ctorch\nSize\n]]\x86R.",  # two lists
        b"\x80\x02ctorch\nSize\n}\x85R.",  # a dictionary, whose keys Python would take
        b"\x80\x02cnumpy\ndtype\n)R}b}b.",  # attributes that were there already
        b"\x80\x02}(K\x01u.",  # a key without a value
        b"\x80\x02](K\x05e(K\x00K\x06u.",  # a list with keys
        b"\x80\x02ctorch\nSize\nX\x02\x00\x00\x00ab\x85R.",  # a text for a list
        b"\x80\x02ctorch._utils\n_rebuild_parameter\nK\x01\x89}\x87R.",  # a parameter of no tensor
        pickle.dumps(np.complex64(1)),  # a number of a type that no setting has
        persistent(class_name=3, state={}),
        persistent(class_name="Net", state=[]),
        persistent(state={}),
    ):
        assert refusal(content, tmp_path) == "is damaged or cut off, or no pickle of NVIDIA's networks"


def test_the_numbers_of_a_tensor_are_read_as_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By PyTorch, after they were looked at here, and without what it says of strange files."""
    load, given = torch.load, []

    def loaded(file: Any, **settings: Any) -> Any:
        given.append(settings)
        warnings.warn("a strange pickle", stacklevel=1)
        return load(file, **settings)

    path = write_pickle(tmp_path / "x.pkl", torch.arange(3.0))
    monkeypatch.setattr(torch, "load", loaded)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(read_pickle(path), torch.arange(3.0))
    assert given == [{"map_location": "cpu", "weights_only": True}]


# Files that claim, nest or repeat too much ----------------------------------------------------------------------------------


def storage_bytes(tensor: torch.Tensor) -> bytes:
    """A tensor's numbers as a pickle has them."""
    file = io.BytesIO()
    torch.save(tensor._typed_storage(), file, _use_new_zipfile_serialization=False)
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04\x8e" + struct.pack("<Q", 10**13) + b"x.",  # bytes
        b"\x80\x04\x8d" + struct.pack("<Q", 10**13) + b"x.",  # text
        b"\x80\x05\x96" + struct.pack("<Q", 10**13) + b".",  # bytearray
        b"\x80\x04\x95" + struct.pack("<Q", 10**13) + b".",  # frame
        b"\x80\x04N\x72\xff\xff\xff\xff0.",  # the place of a value that is kept
    ],
)
def test_claims_of_terabytes(content: bytes, tmp_path: Path) -> None:
    refusal(content, tmp_path)


def test_tensors_larger_than_their_numbers(tmp_path: Path) -> None:
    def rebuilt(*shape: Any) -> bytes:
        numbers = Calls(torch.storage._load_from_bytes, storage_bytes(torch.ones(4)))
        return pickle.dumps(Calls(rebuild_tensor, numbers, *shape, False, {}))

    path = tmp_path / "x.pkl"
    path.write_bytes(rebuilt(1, (3,), (1,)))
    assert torch.equal(read_pickle(path), torch.ones(3))
    larger = "has a tensor that is larger than its numbers"
    assert refusal(rebuilt(0, (10**6, 10**6), (0, 0)), tmp_path) == larger
    assert refusal(rebuilt(2, (3,), (1,)), tmp_path) == larger
    assert refusal(rebuilt(4, (1,), (1,)), tmp_path) == larger
    assert refusal(rebuilt(0, (2,), (2**63,)), tmp_path) == larger
    assert "is damaged" in refusal(rebuilt(-1, (3,), (1,)), tmp_path)
    assert "is damaged" in refusal(rebuilt(0, (1,) * 100, (1,) * 100), tmp_path)
    numbers = storage_bytes(torch.ones(4, dtype=torch.float64))
    claimed = numbers.replace(b"K\x04", b"\x8a\x06" + (10**13).to_bytes(6, "little"))
    assert claimed != numbers
    for cut in (claimed, numbers[:-1], numbers + b"x", numbers[:40]):
        refusal(pickle.dumps(Calls(torch.storage._load_from_bytes, cut)), tmp_path)
    assert "is cut off" in refusal(pickle.dumps(Calls(torch.storage._load_from_bytes, claimed)), tmp_path)
    for old, new in ((b"storage", b"starage"), (b"K\x04N", b"J" + b"\xff" * 4 + b"N"), (b"K\x04N", b"K\x04K\x01")):
        strange = numbers.replace(old, new, 1)
        said = refusal(pickle.dumps(Calls(torch.storage._load_from_bytes, strange)), tmp_path)
        assert strange != numbers and said == "is damaged or cut off, or no pickle of NVIDIA's networks"


def test_bytes_made_into_tensors_again_and_again(tmp_path: Path) -> None:
    kept = pickle.dumps(storage_bytes(torch.ones(1000)), protocol=3)[:-1]  # the instructions end with: keep it as number 0
    again = kept + b"ctorch.storage\n_load_from_bytes\nh\x00\x85R\x86" * 3 + b"."
    assert refusal(again, tmp_path) == "has the same bytes made into tensors again and again"


@pytest.mark.parametrize("name", ["builtins\nset", "torch\nSize", "collections\nOrderedDict", "dnnlib.util\nEasyDict"])
def test_values_copied_again_and_again(name: str, tmp_path: Path) -> None:
    """A few bytes ask for a copy of a long list, or of a long dictionary."""
    keyed = "Dict" in name
    kept = pickle.dumps(dict.fromkeys(range(1000)) if keyed else [None] * 1000, protocol=3)[:-1]
    place = pickle.loads(kept + b"h\x00.") and b"h\x00"  # the instructions keep it as number 0

    def copied(times: int) -> bytes:
        return kept + (b"c" + name.encode() + b"\n" + place + b"\x85R\x86") * times + b"."

    path = tmp_path / "x.pkl"
    path.write_bytes(copied(1))
    assert len(read_pickle(path)[1]) == 1000
    assert refusal(copied(100), tmp_path) == "has the same values copied again and again"


def test_long_names_in_many_places(tmp_path: Path) -> None:
    """One text, which a file has once, would be in the name of each tensor below it."""
    for outer, name in (("w", "x" * 300), ("x" * 300, "w"), ("x" * 150, "y" * 150), ("w", 10**5000)):
        inner = Persistent("Part", module_state({name: torch.ones(1)}))
        content = {"ema": Persistent("Net", module_state({outer: inner, "synthesis.b4.const": torch.ones(1)}))}
        with pytest.raises(CheckpointError, match="has a tensor whose name is no text, or one of more than 250 characters"):
            read_snapshot(write_pickle(tmp_path / "x.pkl", content))
    long = b"\x80\x04X" + struct.pack("<I", 10**6) + b"x" * 10**6 + b"\x94"
    named = long + b"\x8c\x18torch.nn.modules.linear.h\x00\x93\x86."
    assert "which no pickle of NVIDIA's networks needs" in refusal(named, tmp_path)
    settings = {"text": "x" * 2000, "number": 10**400, "short": "x", "whole": 3}
    path = write_pickle(tmp_path / "x.pkl", {"G_ema": network("Generator", small_tensors(), settings=settings)})
    assert read_snapshot(path).maker.settings == {"short": "x", "whole": 3}


def test_many_networks_and_modules(tmp_path: Path) -> None:
    made = network("Generator", small_tensors(), settings={})
    path = write_pickle(tmp_path / "x.pkl", {f"G{number}": made for number in range(30)})
    with pytest.raises(CheckpointError, match="holds 30 networks, expected 20 or fewer"):
        read_snapshot(path)
    empty = Persistent("Part", module_state({}))
    wide: Any = Persistent("Part", module_state({f"a{number}": empty for number in range(25_000)}))
    content = {"G_ema": Persistent("Generator", module_state({"x": wide, "synthesis.b4.const": torch.ones(1)}))}
    with pytest.raises(CheckpointError, match="more modules than any has"):
        read_snapshot(write_pickle(tmp_path / "x.pkl", content))


def test_networks_of_no_kind_are_named_by_their_classes() -> None:
    def made(name: str, **parameters: Any) -> Record:
        return Record(name, state={"_parameters": parameters})

    classes = {"x": made("F", w=torch.ones(1)), **{name: made(name, w=torch.ones(1)) for name in "EDCBA"}, "none": made("0")}
    with pytest.raises(CheckpointError, match=r"^holds networks of other classes \(A, B, C, D\); expected the G_ema of"):
        snapshot_of(classes)
    with pytest.raises(CheckpointError, match=r"^holds no networks; expected the G_ema of"):
        snapshot_of({"none": made("0"), 3: made("A", w=torch.ones(1))})


@pytest.mark.parametrize(("length", "fits"), [(50, True), (51, False)])
def test_a_long_chain_of_modules(length: int, fits: bool) -> None:
    tensors = {"_parameters": {"synthesis.b4.const": torch.ones(1)}}
    inner = Record("Part", state=tensors)
    for _ in range(length):
        inner = Record("Part", state=tensors | {"_modules": {"a": inner}})
    with nullcontext() if fits else pytest.raises(CheckpointError, match="modules within themselves"):
        assert len(snapshot_of(inner).maker.tensors) == length + 1


def test_nested_deeply(tmp_path: Path) -> None:
    path = tmp_path / "deep.pkl"
    path.write_bytes(b"\x80\x04)" + b"\x85" * 100_000 + b".")
    assert isinstance(read_pickle(path), tuple)
    with pytest.raises(CheckpointError, match="holds no networks"):
        read_snapshot(path)
    assert "is damaged" in refusal(b"\x80\x04})" + b"\x85" * 100_000 + b"Ns.", tmp_path)  # as a key, whose hash Python cannot take


def test_modules_within_themselves(tmp_path: Path) -> None:
    inner: Any = Persistent("Part", module_state({}))
    for _ in range(40):
        inner = Persistent("Part", module_state({"a": inner, "b": inner}))  # 2^40 of them, in a small file
    content = {"G_ema": Persistent("Generator", module_state({"x": inner, "synthesis.b4.const": torch.ones(1)}))}
    path = write_pickle(tmp_path / "x.pkl", content)
    with pytest.raises(CheckpointError, match="modules within themselves"):
        read_snapshot(path)
    settings: Any = [1]
    for _ in range(40):
        settings = [settings, settings]
    content = {"G_ema": network("Generator", small_tensors(), settings={"a": settings, "b": 1})}
    assert "a" not in read_snapshot(write_pickle(tmp_path / "x.pkl", content)).maker.settings
    lists: Any = 1
    tables: Any = 1
    for _ in range(60):
        lists, tables = [lists], {"x": tables}
    content = {"G_ema": network("Generator", small_tensors(), settings={"lists": lists, "tables": tables, "b": 1})}
    assert read_snapshot(write_pickle(tmp_path / "x.pkl", content)).maker.settings == {"b": 1}


def test_many_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych.interop.nvidia.pickles._MOST_INSTRUCTIONS", 1000)
    assert refusal(b"\x80\x04" + b"}" * 2000 + b".", tmp_path) == "has more than 1,000 values"


# Files of other kinds, and damage -------------------------------------------------------------------------------------------


def test_other_files(tmp_path: Path) -> None:
    for zipped in (True, False):
        torch.save({"a": torch.ones(2)}, tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
        said = refusal((tmp_path / "x.pt").read_bytes(), tmp_path)
        assert said == "is a file of torch.save, and no pickle of NVIDIA's networks: give NVIDIA's own file (.pkl)"
    np.savez(tmp_path / "x.npz", data=np.zeros(3))
    images = io.BytesIO()
    with zipfile.ZipFile(images, "w") as archive:
        archive.writestr("00000/img00000000.png", b"")
    for content in (images.getvalue(), (tmp_path / "x.npz").read_bytes(), images.getvalue()[:-1], images.getvalue()[:4]):
        assert refusal(content, tmp_path) == "is a zip archive, and no pickle of NVIDIA's networks: give NVIDIA's own file (.pkl)"
    for content in (b"version https://git-lfs.github.com/spec/v1\n", b"<!DOCTYPE html>", b"\x93NUMPY"):
        assert refusal(content, tmp_path) == "is no pickle: give NVIDIA's own file (.pkl)"
    assert "is damaged" in refusal(b"", tmp_path)
    old = b"\x80\x03cdnnlib.tflib.network\nNetwork\n)\x81."
    assert refusal(old, tmp_path).startswith("is of the TensorFlow versions of StyleGAN; convert it with legacy.py")


def test_no_file(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "none.pkl", "there is no file"), (tmp_path, "is a folder"), (Path("/dev/null"), "not a regular file")):
        with pytest.raises(CheckpointError, match=said):
            read_pickle(path)


def test_damage(tmp_path: Path) -> None:
    """Cut anywhere or changed anywhere a file is read, or refused in one line."""
    content = {"G_ema": network("Generator", small_tensors(), settings={"z_dim": 3, "gain": np.float64(0.5)})}
    whole = pickle.dumps(content)
    random = np.random.default_rng(0)
    path = tmp_path / "x.pkl"
    refused = 0
    for trial in range(int(os.environ.get("DAMAGES", "300"))):
        damaged = bytearray(whole[: random.integers(len(whole))] if trial % 3 == 0 else whole)
        for place in random.integers(max(len(damaged), 1), size=trial % 3 * 2):
            damaged[place] = random.integers(256)
        path.write_bytes(damaged)
        try:
            read_snapshot(path)
        except CheckpointError as error:
            refused += 1
            assert str(error).startswith(str(path)) and len(str(error)) < 600
    assert refused > 100
