"""Whole files: what is left when a writer fails, is killed, or meets another one."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from triptych.core import files
from triptych.core.files import is_alive, replace_folder, sweep, sync, temporary_path, whole, write_text
from triptych.core.images import save_picture
from triptych.core.locks import Held, Lock
from triptych.core.weight_files import write_weights
from triptych.engine.checkpoint import save_checkpoint
from triptych.engine.run_directory import RunDirectory
from triptych.runs.files import save_npz

WRITERS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: write_text(path, "all of it\n"),
    "png": lambda path: save_picture(np.zeros((4, 4, 3), np.uint8), path.with_suffix(".png")),
    "npz": lambda path: save_npz(path, {"a": np.arange(5)}),
    "config": lambda path: RunDirectory(path.parent).write_config({"a": 1}),
    "pt": lambda path: write_weights({"w": torch.ones(3)}, path),
}


def dead_process() -> int:
    """The number of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_two_that_write_the_same_file_do_not_meet(tmp_path, monkeypatch, writer):
    """The second one writes all of it while the first is about to rename its own."""
    renamed = []

    def replace(source, target, rename=os.replace):
        renamed.append(source)
        if len(renamed) == 1:
            writer(tmp_path / "file")
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    writer(tmp_path / "file")
    assert len(set(renamed)) == len(renamed) == 2
    assert len(list(tmp_path.iterdir())) == 1  # no temporary is left


def test_an_npz_brings_the_folders_that_are_missing(tmp_path):
    save_npz(tmp_path / "a" / "b" / "c.npz", {"x": np.arange(3)})
    with np.load(tmp_path / "a" / "b" / "c.npz") as file:
        assert file["x"].tolist() == [0, 1, 2]


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    write_text(tmp_path / "a", "first")
    with pytest.raises(ZeroDivisionError), whole(tmp_path / "a") as temporary:
        temporary.write_text("second")
        raise ZeroDivisionError
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "first")]


def test_a_full_disk_is_found_before_the_file_has_its_name(tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        save_npz(tmp_path / "a.npz", {"a": np.zeros(3)})
    assert list(tmp_path.iterdir()) == []
    assert files.explain(caught.value) == "No space left on device (free some space and start again)"


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_are_those_of_the_umask_also_of_safetensors(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        with whole(tmp_path / "plain") as temporary:
            save_file({"w": torch.ones(2)}, temporary)
        made = save_checkpoint(
            tmp_path / "checkpoints", images_seen=1, files={"model": {"w": torch.ones(2)}}, info={"log2_loss_scale": {}, "best": None}
        )
    finally:
        os.umask(before)
    for path in (tmp_path / "plain", made / "model.safetensors", made / "state.json"):
        assert path.stat().st_mode & 0o777 == mode, path


def test_a_name_may_be_as_long_as_the_system_allows(tmp_path):
    for name in ("n" * 255, "ß" * 127):
        write_text(tmp_path / name, "x")
        assert (tmp_path / name).read_text() == "x"


def test_sweep_takes_the_temporaries_of_the_dead_alone(tmp_path):
    dead, own = dead_process(), temporary_path(tmp_path / "a.npz")
    assert is_alive(os.getpid()) and not is_alive(dead) and not is_alive(10**12)
    here = own.name.split("-")[-3]
    elsewhere = "0" * 8
    for name in (f".a.npz.tmp-{here}-{dead}-0", f".a.npz.tmp-{elsewhere}-{dead}-1", f".b.tmp-{elsewhere}-{dead}-2", f".c.{dead}", "c.tmp"):
        (tmp_path / name).touch()
    (tmp_path / f".folder.tmp-{here}-{dead}-3").mkdir()
    (tmp_path / f".folder.tmp-{here}-{dead}-3" / "inside").touch()
    living = tmp_path / f".d.tmp-{here}-{os.getppid()}-4"
    two_days_ago = time.time() - 2 * 24 * 3600
    for path in (own, living, tmp_path / f".b.tmp-{elsewhere}-{dead}-2"):
        path.touch()
        os.utime(path, (two_days_ago, two_days_ago))  # as after a clock's jump: it does not make a living writer dead
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        own.name,
        living.name,
        f".a.npz.tmp-{elsewhere}-{dead}-1",
        f".c.{dead}",
        "c.tmp",
    }
    sweep(tmp_path / "absent")


def test_a_writer_of_another_user_is_alive(tmp_path, monkeypatch):
    def denied(process: int, signal: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    path = temporary_path(tmp_path / "a")
    path.touch()
    monkeypatch.setattr(os, "kill", denied)
    sweep(tmp_path)
    assert is_alive(1) and path.exists()


def test_what_another_sweep_takes_meanwhile(tmp_path):
    """A link to nowhere is listed, and has no time of its own."""
    path = tmp_path / f".a.tmp-{'0' * 8}-1-0"
    path.symlink_to("gone")
    sweep(tmp_path)
    assert path.is_symlink()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it never does")
def test_a_system_that_does_not_name_its_container(monkeypatch):
    def absent(path: str) -> str:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    monkeypatch.setattr(os, "readlink", absent)
    name = files._machine.__wrapped__()
    assert len(name) == 8 and name != files._machine()


def test_a_killed_writer_leaves_nothing_but_what_sweep_takes(tmp_path):
    script = """
import os, sys
from pathlib import Path
from triptych.core.files import whole
with whole(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "a")], check=False)
    assert not (tmp_path / "a").exists() and len(list(tmp_path.iterdir())) == 1
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_replaced_stays(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="No such file"):
        replace_folder(tmp_path / "absent", tmp_path / "folder", aside=tmp_path / ".aside")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").touch()
    replace_folder(tmp_path / "new", tmp_path / "folder", aside=tmp_path / ".aside")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"] and (tmp_path / "folder" / "file").exists()


@pytest.mark.parametrize("leads", ["to a folder", "to a file", "nowhere"])
def test_a_folder_takes_the_place_of_a_link_and_leaves_nothing_beside_it(tmp_path, leads):
    """Of a link that was put aside `shutil.rmtree` removes nothing; one that leads nowhere does not exist for `Path.exists`."""
    kept, links = tmp_path / "kept", tmp_path / "links"
    kept.mkdir()
    links.mkdir()
    (kept / "old").touch()
    (links / "folder").symlink_to({"to a folder": kept, "to a file": kept / "old", "nowhere": tmp_path / "absent"}[leads])
    with pytest.raises(OSError, match="No such file"):
        replace_folder(links / "absent", links / "folder", aside=links / ".aside")
    assert [path.name for path in links.iterdir()] == ["folder"] and (links / "folder").is_symlink(), "it stays"
    (links / ".aside").symlink_to(kept)  # left by a process that was killed
    for name in ("new", "newer"):
        (links / name).mkdir()
        (links / name / name).touch()
        replace_folder(links / name, links / "folder", aside=links / ".aside")
        assert [path.name for path in links.iterdir()] == ["folder"] and not (links / "folder").is_symlink()
        assert [path.name for path in (links / "folder").iterdir()] == [name]
    assert [path.name for path in kept.iterdir()] == ["old"]


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    """The first holder ends between the second one's opening and locking: what that locked is no longer the file of that name."""
    path, first = tmp_path / ".lock", Lock(tmp_path / ".lock")
    with pytest.raises(Held, match=f"process {os.getpid()} on "):
        Lock(path)
    from triptych.core import locks

    flock, calls = locks.fcntl.flock, []

    def ended(file, how):
        calls.append(file)
        if len(calls) == 1:
            first.release(remove=True)
        flock(file, how)

    monkeypatch.setattr(locks.fcntl, "flock", ended)
    with Lock(path):
        assert len(calls) == 2 and path.exists()
        with pytest.raises(Held):
            Lock(path)


def test_a_lock_is_let_go_at_the_end_of_its_context(tmp_path):
    with Lock(tmp_path / "lock") as held, pytest.raises(Held, match=f"process {os.getpid()} on "):
        Lock(tmp_path / "lock")
    Lock(tmp_path / "lock").release(remove=True)
    assert held is not None and not list(tmp_path.iterdir())


def test_a_lock_on_a_full_disk_is_none(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            Lock(tmp_path / ".lock")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    Lock(tmp_path / ".lock").release()


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
def test_a_folder_whose_file_system_waits_for_files_alone(code, tmp_path, monkeypatch):
    def refused(descriptor: int) -> None:
        raise OSError(code, "no")

    (tmp_path / "a").write_text("x")
    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(OSError, match="no"):
        sync(tmp_path / "a")
    if code == errno.EINVAL:
        sync(tmp_path)
    else:
        with pytest.raises(OSError, match="no"):
            sync(tmp_path)
