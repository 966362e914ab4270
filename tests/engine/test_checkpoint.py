from __future__ import annotations

import errno
import json
import math
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.processes import forked
from triptych.core import files
from triptych.core.errors import CheckpointError
from triptych.engine import checkpoint as module
from triptych.engine.checkpoint import (
    checkpoint_path,
    list_checkpoints,
    load_checkpoint,
    load_newest,
    not_finite,
    prune,
    save_checkpoint,
    sweep,
)

INFO = {"log2_loss_scale": {"network": 20.0}, "best": None}


def save(folder: Path, images_seen: int, value: float = 1.0, **info: object) -> Path:
    files = {"model": {"w": torch.full((3, 2), value)}, "ema-0.9999": {"w": torch.full((3, 2), value + 1)}}
    return save_checkpoint(folder, images_seen=images_seen, files=files, info=INFO | info)


def no_warning(message: str) -> None:
    raise AssertionError(message)


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_everything_comes_back(tmp_path: Path) -> None:
    path = save(tmp_path / "checkpoints", 512_000, best_score=0.25, history=[1, 2.5, None])
    assert path == tmp_path / "checkpoints" / "000512000"
    assert sorted(p.name for p in path.iterdir()) == ["ema-0.9999.safetensors", "model.safetensors", "state.json"]
    state = json.loads((path / "state.json").read_text())
    assert (state["format"], state["images_seen"], len(state["files"]["model.safetensors"])) == (1, 512_000, 64)
    loaded = load_checkpoint(path)
    assert loaded.images_seen == 512_000
    assert loaded.info == INFO | {"best_score": 0.25, "history": [1, 2.5, None]}
    assert set(loaded.files) == {"model", "ema-0.9999"}
    assert torch.equal(loaded.files["ema-0.9999"]["w"], torch.full((3, 2), 2.0))
    assert set(load_checkpoint(path, files=("model",)).files) == {"model"}


def test_tensors_of_any_layout_are_stored_in_logical_order(tmp_path: Path) -> None:
    base = torch.randn(4, 3, 5, 5)
    last = base.to(memory_format=torch.channels_last)
    tied = torch.randn(6, 6)
    tensors = {
        "channels_last": last,
        "parameter": torch.nn.Parameter(last[:, :1].contiguous(memory_format=torch.channels_last)),
        "tied": tied,
        "tied_again": tied,
        "part_of_tied": tied[2:4],
        "transposed": tied.t(),
        "expanded": torch.ones(1).expand(4),
        "step": torch.tensor(7.0),
        "empty": torch.zeros(0, 3),
        "half": torch.randn(3).bfloat16(),
        "count": torch.tensor(2**40),
        "mask": torch.tensor([True, False]),
    }
    path = save_checkpoint(tmp_path, images_seen=1, files={"model": tensors}, info=INFO)
    loaded = load_checkpoint(path).files["model"]
    assert set(loaded) == set(tensors)
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor.detach()), name
        assert loaded[name].is_contiguous(), name
    assert last.is_contiguous(memory_format=torch.channels_last)  # the caller's tensor is left as it was


@pytest.mark.gpu
def test_tensors_of_a_gpu(tmp_path: Path) -> None:
    weight = torch.randn(8, 4, 3, 3, device="cuda").to(memory_format=torch.channels_last)
    path = save_checkpoint(tmp_path, images_seen=1, files={"model": {"w": weight}}, info=INFO)
    assert torch.equal(load_checkpoint(path).files["model"]["w"], weight.cpu())


def test_what_is_loaded_can_change_without_the_file(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    load_checkpoint(path).files["model"]["w"].zero_()
    assert load_checkpoint(path).files["model"]["w"].eq(1).all()


def test_saving_again_replaces(tmp_path: Path) -> None:
    save(tmp_path, 10, value=1)
    before = load_checkpoint(checkpoint_path(tmp_path, 10))
    save(tmp_path, 10, value=5)
    assert [p.name for p in tmp_path.iterdir()] == ["000000010"]
    assert load_checkpoint(checkpoint_path(tmp_path, 10)).files["model"]["w"].eq(5).all()
    assert before.files["model"]["w"].eq(1).all()  # tensors that are in use outlive their file


def test_list_is_in_order_and_ignores_all_else(tmp_path: Path) -> None:
    assert list_checkpoints(tmp_path / "absent") == []
    for number in (2_000_000_000, 5, 30):
        (tmp_path / f"{number:09d}").mkdir()
    for name in (".tmp-000000007-1", "superseded-000000008", "notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "000000009").write_text("a file")
    assert list_checkpoints(tmp_path) == [5, 30, 2_000_000_000]


def test_own_entries_of_the_state_cannot_be_overwritten(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has its own files"):
        save_checkpoint(tmp_path, images_seen=1, files={}, info=INFO | {"files": 3})


def store(path: Path, tensors: dict[str, torch.Tensor], *, stem: str = "model") -> None:
    """Writes a checkpoint again with other tensors, as a version before this one would have."""
    files = load_checkpoint(path).files | {stem: tensors}
    save_checkpoint(path.parent, images_seen=int(path.name), files=files, info=INFO)


WRONG = [(-8, "-8"), (8.0, r"8\.0"), ("20", '"20"'), (None, "null"), ([20], r"\[20\]")]
"""Numbers of images that are none, and how they are said."""


def damage_truncate(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])


def state_with(**changes: object):
    def damage(path: Path) -> None:
        state = json.loads((path / "state.json").read_text())
        (path / "state.json").write_text(json.dumps(state | changes))

    return damage


def state_without(name: str):
    def damage(path: Path) -> None:
        state = json.loads((path / "state.json").read_text())
        del state[name]
        (path / "state.json").write_text(json.dumps(state))

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: flip_a_byte(path / "model.safetensors"), r"model.safetensors is damaged"),
        (damage_truncate, r"model.safetensors is damaged or cut short"),
        (lambda path: (path / "model.safetensors").unlink(), r"model.safetensors is missing"),
        (lambda path: (path / "state.json").unlink(), r"state.json is missing"),
        (lambda path: (path / "state.json").write_text('{"format": 1, "ima'), r"state.json is damaged: it is not JSON"),
        (lambda path: (path / "state.json").write_text("[]"), r"state.json is damaged"),
        (state_with(files=None), r"state.json is damaged: files is null, expected names of files that"),
        (state_with(files={"../model.safetensors": "0" * 64}), r"files is .*, expected names of files that a checkpoint can have"),
        (state_with(files={"model/0/1.safetensors": "0" * 64}), r"files is .*, expected names of files that a checkpoint can have"),
        (state_with(files={"model.safetensors": "0" * 63}), r"expected names of files that .*, and their SHA-256"),
        (state_with(files={"model.safetensors": 3}), r"expected names of files that .*, and their SHA-256"),
        *(
            (state_with(images_seen=value), rf"state.json is damaged: images_seen is {said}, expected a whole number")
            for value, said in WRONG
        ),
        (state_with(images_seen=80), r"images_seen is 80, but its folder is that of 20"),
        (state_with(images_seen=True), r"images_seen is true, expected a whole number, 0 or more"),
        (state_with(format=True), r"it has no format number"),
        (state_with(log2_loss_scale=3), r"log2_loss_scale is 3, expected numbers from -1000 to 1000, by name"),
        (state_with(log2_loss_scale={"network": "20"}), r"log2_loss_scale is .*, expected numbers from"),
        (state_with(log2_loss_scale={"network": 1e300}), r"log2_loss_scale is .*, expected numbers from"),
        (state_with(best=7), r"best is 7, expected null, or a score and the images seen"),
        (state_with(best={"score": 1.0, "images": False}), r"best is .*, expected null, or a score"),
        (state_with(best={"score": "low", "images": 10}), r"best is .*, expected null, or a score"),
        (state_with(window={"loss": [1.0]}), r"window is .*, expected pairs of numbers, by name"),
        (state_with(window=[]), r"window is \[\], expected pairs of numbers, by name"),
        (state_with(statistics=0), r"statistics is 0, expected true or false"),
        (state_with(imported=True), r"imported is true, expected where the weights are from"),
        (state_with(best={"score": 0.5, "images": 10}), r"state.json is damaged: its content is not what was written"),
        (state_with(value=2), r"state.json is damaged: its content is not what was written"),
        (state_without("best"), r"state.json is damaged: best is missing"),
        (state_without("log2_loss_scale"), r"state.json is damaged: log2_loss_scale is missing"),
        (lambda path: (path / "state.json").write_text("[" * 100_000), r"state.json is damaged: it is not JSON"),
        (state_with(images_seen=10**400), r"images_seen is 1000+\.\.\., but its folder is that of 20"),
        (
            lambda path: store(path, {"w": torch.tensor([1.0, math.nan])}),
            r"000000020 cannot be used: w of model.safetensors has values that are",
        ),
        (
            lambda path: store(path, {"w": torch.tensor(-math.inf)}, stem="ema-0.9999"),
            r"w of ema-0.9999.safetensors has values that are not",
        ),
    ],
)
def test_damage_is_named_and_the_one_before_is_used(tmp_path: Path, damage, message: str) -> None:
    save(tmp_path, 10)
    damage(save(tmp_path, 20))
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(checkpoint_path(tmp_path, 20))
    assert "\n" not in str(caught.value)
    warnings: list[str] = []
    newest = load_newest(tmp_path, warn=warnings.append)
    assert newest is not None and newest.images_seen == 10
    assert warnings == [f"{caught.value}; the one before it is used"]


@pytest.mark.parametrize("fault", ["a later format", "model.safetensors", "state.json"])
def test_what_may_be_whole_is_not_passed_over(tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 10)
    path = save(tmp_path, 20)
    message = r"too many open files"
    if fault == "a later format":
        state_with(format=3)(path)
        message = "has format 3, this version of Triptych reads up to 2; update Triptych"
    else:
        opened = os.open

        def refusing(name, *args, **named):
            if Path(name) == path / fault:
                raise OSError(errno.EMFILE, "too many open files", str(name))
            return opened(name, *args, **named)

        monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(
        CheckpointError, match=rf"{message}.*; nothing was changed.*; to go on from the checkpoint before it, move {path} out of"
    ):
        load_newest(tmp_path, warn=no_warning)


def test_the_good_one_is_kept_however_many_newer_ones_there_are(tmp_path: Path) -> None:
    for number in (10, 20, 30, 40):
        save(tmp_path, number)
    assert prune(tmp_path, keep_last=2, keep_every=None, best=None, good=10) == [20]


def test_a_folder_that_cannot_be_looked_at_now_is_not_taken_for_one_that_is_not_there(tmp_path: Path, monkeypatch) -> None:
    save(tmp_path, 10)
    path, stat = save(tmp_path, 20), os.stat

    def refusing(name, *args, **named):
        if isinstance(name, str | Path) and Path(name) in (path, path / "state.json"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(name))
        return stat(name, *args, **named)

    monkeypatch.setattr(os, "stat", refusing)
    newest = load_newest(tmp_path, warn=no_warning)
    assert newest is not None and newest.images_seen == 20


def test_checkpoints_that_cannot_be_listed_are_not_taken_for_none(tmp_path: Path, monkeypatch) -> None:
    save(tmp_path, 10)

    def refusing(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="cannot be read: Permission denied"):
        patch.setattr(os, "scandir", refusing)
        list_checkpoints(tmp_path)
    assert list_checkpoints(tmp_path / "not there") == [] == list_checkpoints(tmp_path / "000000010/state.json")


def test_all_is_on_the_disk_before_it_gets_its_name_and_then_the_name_is(tmp_path: Path, monkeypatch) -> None:
    """After a power failure a name without what it stands for would be a damaged checkpoint, where the one before may be pruned."""
    done: list[tuple[str, str]] = []
    sync, rename = module.sync, os.rename
    for place in (module, files):
        monkeypatch.setattr(place, "sync", lambda path: (done.append(("sync", path.name)), sync(path)))
    monkeypatch.setattr(os, "rename", lambda source, target: (done.append(("rename", target.name)), rename(source, target)))
    path = save(tmp_path, 10)
    temporary = f".tmp-000000010-{os.getpid()}"
    assert done[-3:] == [("sync", temporary), ("rename", "000000010"), ("sync", tmp_path.name)]
    assert len(done[:-3]) == len(list(path.iterdir())) and {what for what, _ in done[:-3]} == {"sync"}


def test_an_aside_that_cannot_be_put_back_is_said(tmp_path: Path, monkeypatch) -> None:
    os.rename(save(tmp_path, 10), tmp_path / ".old-000000010")

    def refused(*args: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(CheckpointError, match=rf"^cannot put the checkpoints in {tmp_path} in order: Read-only file system$"):
        sweep(tmp_path)


def test_a_state_of_the_first_versions_has_no_digest(tmp_path: Path) -> None:
    path = save(tmp_path, 10)
    state = json.loads((path / "state.json").read_text())
    assert len(state.pop("digest")) == 64
    (path / "state.json").write_text(json.dumps(state))
    assert load_checkpoint(path).info == INFO


@pytest.mark.parametrize("info", [{}, INFO | {"best": 3}, INFO | {"window": {"loss": 1}}])
def test_a_state_that_could_not_be_read_again_is_not_written(tmp_path: Path, info: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"state.json: (best|window|log2_loss_scale) is "):
        save_checkpoint(tmp_path, images_seen=1, files={"model": {"w": torch.ones(1)}}, info=info)
    assert list(tmp_path.iterdir()) == []


def test_what_is_finite(tmp_path: Path) -> None:
    large = torch.full((8,), 1e18)
    good = {"a": large, "b": torch.tensor([65504.0] * 9).half(), "c": torch.tensor([2**62] * 9), "d": torch.zeros(0)}
    assert not_finite({"model": good, "optimizer": {"e": torch.tensor(math.inf)}}) is None
    for value in (math.nan, math.inf, -math.inf, 3e38):
        assert not_finite({"model": good, "ema-0.9": good | {"e": torch.tensor([0.0, value])}}) == (
            "e of ema-0.9.safetensors has values that are not finite, or far too large"
        )
    assert not_finite({"model": {"e": torch.tensor([math.inf, -math.inf])}}) is not None


def test_a_file_that_was_never_written_is_named(tmp_path: Path) -> None:
    path = save(tmp_path, 10)
    with pytest.raises(CheckpointError, match=r"no optimizer\.safetensors; it has model, ema-0\.9999"):
        load_checkpoint(path, files=("model", "optimizer"))
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load_checkpoint(checkpoint_path(tmp_path, 11))


def test_newest_of_none_and_of_only_unreadable_ones(tmp_path: Path) -> None:
    assert load_newest(tmp_path / "absent", warn=no_warning) is None
    for number in (10, 20):
        flip_a_byte(save(tmp_path, number) / "model.safetensors")
    warnings: list[str] = []
    with pytest.raises(CheckpointError, match="none of the 2 checkpoints"):
        load_newest(tmp_path, warn=warnings.append)
    assert len(warnings) == 2
    assert load_newest(tmp_path, warn=no_warning, files=("ema-0.9999",)) is not None  # only what is asked for is read


def test_going_on_from_an_older_one_moves_the_unreadable_newer_out_of_the_way(tmp_path: Path) -> None:
    save(tmp_path, 10)
    flip_a_byte(save(tmp_path, 20) / "model.safetensors")
    save(tmp_path, 15, value=3)
    assert list_checkpoints(tmp_path) == [10, 15]
    assert (tmp_path / "superseded-000000020" / "state.json").exists()
    prune(tmp_path, keep_last=1, keep_every=None, best=None)
    newest = load_newest(tmp_path, warn=no_warning)
    assert newest is not None and newest.images_seen == 15


def test_nor_are_unreadable_ones_that_are_older_than_the_next_one_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the training went on from the checkpoint at 10, and writes the next one at 30."""
    save(tmp_path, 10)
    flip_a_byte(save(tmp_path, 20) / "model.safetensors")
    with monkeypatch.context() as patched:
        patched.setattr(module, "write_folder", fails)
        with pytest.raises(CheckpointError, match=r"the last good one is .*/000000010$"):
            save_checkpoint(tmp_path, images_seen=30, files={}, info=INFO, good=10)
    save_checkpoint(tmp_path, images_seen=30, files={"model": {"w": torch.ones(1)}}, info=INFO, good=10)
    assert list_checkpoints(tmp_path) == [10, 30] and (tmp_path / "superseded-000000020" / "state.json").exists()
    save_checkpoint(tmp_path, images_seen=30, files={"model": {"w": torch.zeros(1)}}, info=INFO, good=10)
    assert list_checkpoints(tmp_path) == [10, 30] and not (tmp_path / "superseded-000000030").exists()


def fails(*given: object, **named: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_prune_keeps_the_last_the_best_and_every_nth(tmp_path: Path) -> None:
    for number in range(10, 100, 10):
        (tmp_path / f"{number:09d}").mkdir()
    assert prune(tmp_path, keep_last=2, keep_every=30, best=50) == [10, 20, 40, 70]
    assert list_checkpoints(tmp_path) == [30, 50, 60, 80, 90]
    assert prune(tmp_path, keep_last=1, keep_every=None, best=None) == [30, 50, 60, 80]
    assert [p.name for p in tmp_path.iterdir()] == ["000000090"]


def test_of_a_checkpoint_that_is_a_link_the_link_is_removed(tmp_path: Path) -> None:
    os.rename(save(tmp_path, 10), elsewhere := tmp_path.parent / f"{tmp_path.name}-elsewhere")
    checkpoint_path(tmp_path, 10).symlink_to(elsewhere)
    save(tmp_path, 20)
    assert prune(tmp_path, keep_last=1, keep_every=None, best=None) == [10]
    assert [p.name for p in tmp_path.iterdir()] == ["000000020"] and (elsewhere / "state.json").exists()
    checkpoint_path(tmp_path, 30).symlink_to(elsewhere)
    save(tmp_path, 30)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000000020", "000000030"]


def test_prune_keeps_the_first_at_or_after_each_multiple(tmp_path: Path) -> None:
    """Iterations end where batches end."""
    for number in range(12, 300, 12):
        (tmp_path / f"{number:09d}").mkdir()
        prune(tmp_path, keep_last=1, keep_every=100, best=None)
    assert list_checkpoints(tmp_path) == [108, 204, 288]


def test_sweep_removes_leftovers_and_restores_what_was_set_aside(tmp_path: Path) -> None:
    save(tmp_path, 10, value=4)
    save(tmp_path, 20)
    os.rename(tmp_path / "000000010", tmp_path / ".old-000000010")
    (tmp_path / ".tmp-000000030-1").mkdir()
    (tmp_path / ".old-000000020").mkdir()
    assert list_checkpoints(tmp_path) == [10, 20]
    assert load_checkpoint(checkpoint_path(tmp_path, 10)).files["model"]["w"].eq(4).all()
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    elsewhere.mkdir()
    for name in (".old-000000020-moved", ".tmp-000000005-removed"):  # of checkpoints that were links to another disk
        (tmp_path / name).symlink_to(elsewhere)
    (tmp_path / "000000020-moved").mkdir()
    sweep(tmp_path)
    (tmp_path / "000000020-moved").rmdir()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000000010", "000000020"] and elsewhere.is_dir()
    assert load_checkpoint(checkpoint_path(tmp_path, 10)).files["model"]["w"].eq(4).all()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("place", ["fsync", "rename"])
def test_a_write_that_fails_leaves_the_older_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, number: int) -> None:
    save(tmp_path, 10, value=2)
    save(tmp_path, 20, value=3)

    def refuse(source: object, target: object = None) -> None:
        if place == "fsync" or ".tmp-" in str(source):
            raise OSError(number, os.strerror(number))
        os.replace(source, target)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(module.os, place, refuse)
        with pytest.raises(CheckpointError) as caught:
            save(tmp_path, 20, value=9)
    assert os.strerror(number) in str(caught.value) and "000000010" in str(caught.value) and "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000000010", "000000020"]
    assert load_checkpoint(checkpoint_path(tmp_path, 20)).files["model"]["w"].eq(3).all()


@pytest.mark.slow
def test_the_file_size_limit_of_the_system_is_one_line(tmp_path: Path) -> None:
    """A real refusal by the system inside safetensors' own writer, in a process of its own."""
    process = forked(save_within_a_limit, tmp_path / "run", files=str(tmp_path / "said"))
    process.join(120)
    said = (tmp_path / "said.out").read_text()
    assert process.exitcode == 0, (tmp_path / "said.err").read_text()
    assert "cannot write checkpoint" in said and "File too large" in said and said.count("\n") == 1
    assert list((tmp_path / "run").iterdir()) == []


def save_within_a_limit(folder: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    info = {"log2_loss_scale": {}, "best": None}
    try:
        save_checkpoint(folder, images_seen=10, files={"model": {"w": torch.zeros(100_000)}}, info=info)
    except CheckpointError as error:
        print(error)


def test_the_file_is_plain_safetensors(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    assert load_file(path / "model.safetensors")["w"].shape == (3, 2)


CRASH = """
import itertools, os, random, signal, sys, time, torch
from pathlib import Path
from triptych.engine.checkpoint import load_newest, prune, save_checkpoint, sweep, list_checkpoints

torch.set_num_threads(1)  # a forked process has none of the others, and would wait for them for ever

def save(folder, number, value):
    files = {name: {"w": torch.full((64, 1024), float(value))} for name in ("model", "optimizer")}
    save_checkpoint(folder, images_seen=number, files=files, info={"log2_loss_scale": {}, "best": None, "value": value})

def check(folder, at_least):
    def warn(message):
        raise SystemExit(f"unreadable: {message}")
    newest = load_newest(folder, warn=warn)
    assert newest is not None and newest.info["value"] >= at_least, (newest and newest.info, at_least)
    for tensors in newest.files.values():
        assert tensors["w"].eq(newest.info["value"]).all()
    return newest.info["value"]

def wait_for(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def every_step(folder):
    "Dies at the k-th operation on files of a save that replaces the only checkpoint, for every k."
    value = 1
    save(folder, 10, value)
    for k in itertools.count():
        child = os.fork()
        if child == 0:
            left = k
            def hook(event, arguments):
                nonlocal left
                if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", "os.listdir", "os.scandir"):
                    left -= 1
                    if left < 0:
                        os._exit(9)
            sys.addaudithook(hook)
            save(folder, 10, value + 1)
            os._exit(0)
        code = wait_for(child)
        value = check(folder, value)
        if k % 2:
            sweep(folder)
            assert check(folder, value) == value
        if code == 0:
            return print("steps", k)

def random_moments(folder, kills):
    value = 0
    for _ in range(kills):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            for step in itertools.count(value + 1):
                save(folder, 10 * (1 + step // 2), step)  # every other one replaces
                os.write(write, b"%d " % step)
                prune(folder, keep_last=1, keep_every=None, best=None)
        os.close(write)
        first = os.read(read, 64)  # a machine under load may take its time
        time.sleep(random.uniform(0, 0.06))
        os.kill(child, signal.SIGKILL)
        wait_for(child)
        with open(read) as pipe:
            done = first.decode().split() + pipe.read().split()
        value = check(folder, int(done[-1]))
        sweep(folder)
    sizes = list_checkpoints(folder)
    assert 1 <= len(sizes) <= 2 and not [p for p in folder.iterdir() if p.name.startswith(".")], list(folder.iterdir())
    print("saves", value)

every_step(Path(sys.argv[1]) / "a")
random_moments(Path(sys.argv[1]) / "b", int(sys.argv[2]))
"""


@pytest.mark.slow
def test_killed_at_any_moment_there_is_a_readable_checkpoint(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CRASH, str(tmp_path), "30"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = dict(line.split() for line in done.stdout.splitlines())
    assert int(counts["steps"]) > 15 and int(counts["saves"]) >= 30, counts


def test_what_a_failed_write_of_this_process_left_is_in_nobodys_way(tmp_path: Path) -> None:
    left = tmp_path / f".tmp-000000010-{os.getpid()}"
    left.mkdir()
    (left / "model.safetensors").write_text("half of it")
    save(tmp_path, 10, value=4)
    assert [p.name for p in tmp_path.iterdir()] == ["000000010"]
    assert load_checkpoint(checkpoint_path(tmp_path, 10)).files["model"]["w"].eq(4).all()
