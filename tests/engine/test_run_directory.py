from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from triptych.core import locks
from triptych.core.errors import CheckpointError
from triptych.core.files import temporary_path
from triptych.engine.run_directory import RunDirectory, list_checkpoints, run_that_keeps

DOCUMENT = {"model": {"kind": "a:B", "width": 3}, "train": {"betas": [0.9, 0.999], "microbatch": None}}


def test_paths(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    names = [run.config_path, run.checkpoints, run.samples, run.metrics_path, run.log_path, run.tensorboard, run.profile, run.wandb_id_path]
    assert [path.relative_to(run.root).as_posix() for path in names] == [
        "config.json",
        "checkpoints",
        "samples",
        "metrics.jsonl",
        "log.txt",
        "tensorboard",
        "profile",
        "wandb_id.txt",
    ]


def test_the_configuration_comes_back(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "deep" / "run")
    assert not run.exists()
    run.create()
    run.write_config(DOCUMENT)
    assert run.exists() and run.checkpoints.is_dir() and run.samples.is_dir()
    assert json.loads(run.config_path.read_text())["format"] == 1
    assert run.read_config() == DOCUMENT
    run.write_config({"model": 1})
    assert run.read_config() == {"model": 1}
    assert sorted(path.name for path in run.root.iterdir()) == ["checkpoints", "config.json", "samples"]
    run.create()
    assert run.read_config() == {"model": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"format": 1, "mod', "config.json is damaged"),
        ("[1]", "no format number"),
        ("{}", "no format number"),
        ('{"format": 2}', "has format 2, this version of Triptych reads 1; update Triptych"),
    ],
)
def test_a_damaged_or_newer_configuration(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=message):
        RunDirectory(tmp_path).read_config()


def test_a_folder_of_runs_names_them(tmp_path: Path) -> None:
    parent = tmp_path / "my runs"
    for k in range(10):
        run = RunDirectory(parent / f"r{k}")
        run.create()
        run.write_config({})
    with pytest.raises(CheckpointError) as caught:
        RunDirectory(parent).read_config()
    named = "it holds the runs r0, r1, r2, r3, r4, r5, r6, r7 and 2 more"
    assert str(caught.value) == f"no run in {parent}: there is no config.json; {named} (triptych runs '{parent}' shows them)"
    for k in (8, 9):
        (parent / f"r{k}/config.json").unlink()
    with pytest.raises(CheckpointError, match=r"r6, r7 \(triptych runs"):
        RunDirectory(parent).read_config()


@pytest.mark.parametrize(
    ("place", "refused"),
    [
        ("checkpoints/000001024", True),
        ("samples/new", True),
        ("checkpoints", True),
        ("autoencoder", False),
        ("first_frames", False),
        ("b", False),
    ],
)
def test_no_run_is_begun_among_the_files_of_another(tmp_path: Path, place: str, refused: bool) -> None:
    """It would be taken for a damaged checkpoint, and be removed with the old ones."""
    run = RunDirectory(tmp_path / "a")
    run.create()
    run.write_config({})
    begun = RunDirectory(run.root / place)
    said = f"{begun.root} cannot be a run: the run {run.root} keeps its own files there; choose another directory"
    with pytest.raises(CheckpointError, match=f"^{re.escape(said)}$") if refused else nullcontext():
        begun.create()
    run.create()


@pytest.mark.parametrize("part", ["checkpoints/000000512", "samples"])
def test_a_part_of_a_run_names_the_run(tmp_path: Path, part: str) -> None:
    run = RunDirectory(tmp_path / "digits")
    run.create()
    run.write_config({})
    with pytest.raises(CheckpointError, match=rf"there is no config.json; it belongs to the run {re.escape(str(run.root))}$"):
        RunDirectory(run.root / part).read_config()


def test_a_missing_run_names_the_nearest(tmp_path: Path) -> None:
    neighbour = RunDirectory(tmp_path / "digits-1")
    neighbour.create()
    neighbour.write_config({})
    with pytest.raises(CheckpointError, match=r'no run in .*digits-2: there is no config.json; did you mean "digits-1"\?'):
        RunDirectory(tmp_path / "digits-2").read_config()


def test_an_empty_folder_or_one_of_a_start_that_was_cut_short_is_used(tmp_path: Path) -> None:
    for name in (".lock", ".DS_Store", "train.out", "log.txt"):
        (tmp_path / name).touch()
    (tmp_path / "checkpoints").mkdir()
    RunDirectory(tmp_path).create()
    assert (tmp_path / "samples").is_dir()


def test_all_that_a_run_has_of_its_own_is_no_other_thing(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    named = [path for path in vars(run).values() if isinstance(path, Path) and path not in (run.root, run.config_path)]
    places = [*named, run.autoencoder.root, run.first_frames.root, *(tmp_path / name for name in ("evaluations", "report.html", "wandb"))]
    for place in places:
        place.touch()
    assert len(named) > 10
    run.check()
    run.write_config(DOCUMENT)
    assert [run_that_keeps(place) for place in places] == [tmp_path] * len(places)
    os.symlink(tmp_path / "loop.png", tmp_path / "loop.png")
    assert run_that_keeps(tmp_path / "loop.png") is None


def test_a_configuration_may_name_a_million_classes(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.write_config({"names": "n01440764, " * 2_000_000})
    assert len(run.read_config()["names"]) == 22_000_000


def test_a_folder_of_other_things_is_refused(tmp_path: Path) -> None:
    for name in ("cat.png", "dog.png"):
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=r"is not a run: it has no config.json but holds cat.png and 1 more; choose a new"):
        RunDirectory(tmp_path).create()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cat.png", "dog.png"]


def test_a_run_that_another_process_makes_at_that_moment_is_no_other_thing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, listed = RunDirectory(tmp_path), Path.iterdir

    def just_made(path: Path) -> Iterator[Path]:
        run.write_config(DOCUMENT)
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", just_made)
    run.create()
    assert run.exists() and run.samples.is_dir()


@pytest.mark.parametrize("inside", ["", "run"])
def test_a_file_in_the_way(tmp_path: Path, inside: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="a file is in the way"):
        RunDirectory(tmp_path / "file" / inside).create()


def test_a_folder_that_may_not_be_read_is_no_place_for_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(path: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", forbidden)
    with pytest.raises(CheckpointError, match="cannot read the run directory .*: Permission denied"):
        RunDirectory(tmp_path).check()
    RunDirectory(tmp_path / "new").check()


def test_a_name_that_the_disk_cannot_have_is_no_place_for_a_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot read the run directory .*: File name too long"):
        RunDirectory(tmp_path / ("x" * 300)).create()


@pytest.mark.parametrize("part", ["", "checkpoints", "samples", "snapshots"])
def test_a_part_that_may_not_be_written_is_named_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """As where a container made it as another user."""
    run = RunDirectory(tmp_path / "run")
    run.create()
    run.write_config({})
    run.snapshots.mkdir()
    access, refused = os.access, run.root / part
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != refused and access(path, mode))
    with pytest.raises(CheckpointError, match=rf"^cannot write to {refused}: no permission to write there; change that "):
        run.create()
    if part:
        with pytest.raises(CheckpointError, match=f"^cannot write to {refused}: "):
            run.complete()


def test_a_failed_write_leaves_the_old_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory(tmp_path)
    run.write_config({"a": 1})

    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse)
        with pytest.raises(CheckpointError, match="No space left on device"):
            run.write_config({"a": 2})
    assert run.read_config() == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_run_that_cannot_be_looked_at_now_is_not_said_to_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory(tmp_path)
    with pytest.raises(CheckpointError, match="was removed or renamed"):
        run.require()
    run.write_config({"a": 1})
    run.require()

    def refused(*given: object, **named: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "stat", refused)
    with pytest.raises(CheckpointError, match=r"^cannot read .*/config\.json: Input/output error$"):
        run.require()


def test_one_training_at_a_time(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with run.lock():
        with pytest.raises(CheckpointError, match=rf"another process \(process {os.getpid()} on .*\) trains in {tmp_path}"):
            run.lock()
        with pytest.raises(CheckpointError, match="trains in"):  # the refused attempt has not broken it
            run.lock()
    run.lock().release()
    with pytest.raises(CheckpointError, match="cannot write to the run directory"):
        RunDirectory(tmp_path / "absent").lock()


def test_a_killed_training_frees_the_directory_though_its_workers_live(tmp_path: Path) -> None:
    script = """
import os, sys, time
from pathlib import Path
from triptych.engine.run_directory import RunDirectory
lock = RunDirectory(Path(sys.argv[1])).lock()
worker = os.fork()
if worker == 0:
    print(os.getpid(), flush=True)
    os.close(1)
time.sleep(60)
"""
    training = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert training.stdout is not None
    worker = int(training.stdout.readline())
    try:
        with pytest.raises(CheckpointError, match=f"process {training.pid} on"):
            RunDirectory(tmp_path).lock()
        training.kill()
        training.wait()
        time.sleep(0.05)
        os.kill(worker, 0)  # still there
        RunDirectory(tmp_path).lock().release()
    finally:
        training.kill()
        training.wait()
        training.stdout.close()
        os.kill(worker, signal.SIGKILL)


def test_what_killed_writers_left_is_swept(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.create()
    run.write_config(DOCUMENT)
    kept = [run.config_path, tmp_path / ".lock", tmp_path / ".config.json.mine", run.samples / "000000008.png", run.samples / ".hidden.png"]
    left = [temporary_path(run.config_path), temporary_path(run.samples / "000000008.png")]
    left = [path.with_name(path.name.replace(f"-{os.getpid()}-", "-4194305-")) for path in left]  # more than Linux numbers processes
    earlier = [tmp_path / ".config.json.123", run.samples / ".000000016-sharp.png.4567"]
    for path in [*kept[1:], *left, *earlier]:
        path.touch()
    elsewhere = [re.sub(r"tmp-\w{8}-", "tmp-00000000-", str(temporary_path(run.config_path))) for _ in range(2)]  # of another machine
    for path, hours in zip(elsewhere, (23, 25), strict=True):
        Path(path).touch()
        os.utime(path, (time.time() - 3600 * hours,) * 2)
    kept.append(Path(elsewhere[0]))
    run.sweep()
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(kept)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_warned_of_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Some network file systems have none, and a training that refused them could not be started there at all."""

    def refused(file: object, how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(locks.fcntl, "flock", refused)
    with pytest.warns(
        UserWarning, match=rf"\.lock cannot be locked \({os.strerror(code)}\): see that only one command writes there"
    ) as said:
        lock = RunDirectory(tmp_path).lock()
    assert len(said) == 1 and "\n" not in str(said[0].message)
    lock.release()


def test_what_may_not_be_looked_at_is_no_run_and_unreadable_checkpoints_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checkpoints").mkdir()

    def refused(self: object, *given: object, **named: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(os, "stat", refused)
    assert not RunDirectory(tmp_path).exists()
    monkeypatch.undo()
    monkeypatch.setattr(os, "scandir", refused)  # and no other look, which might take what cannot be read for what is not there
    with pytest.raises(CheckpointError, match=r"checkpoints cannot be read: Permission denied"):
        list_checkpoints(tmp_path / "checkpoints")
