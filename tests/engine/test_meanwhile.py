"""What others do to a run's files while it is trained or read, and what a training keeps of the files that it has read."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.toys import Denoiser, make_loop, run, seeded
from triptych.core.errors import CheckpointError
from triptych.engine import checkpoint as module
from triptych.engine.checkpoint import Checkpoint, list_checkpoints, load_newest, prune, save_checkpoint
from triptych.engine.run_directory import RunDirectory
from triptych.engine.state import NoneReadable


def save(folder: Path, images: int) -> None:
    save_checkpoint(folder, images_seen=images, files={"model": {"w": torch.ones(2)}}, info={"log2_loss_scale": {}, "best": None})


def begin_in_its_place(directory: RunDirectory) -> None:
    """What a user and another process do: the folder of a run that is trained is removed, and a run is begun there."""
    shutil.rmtree(directory.root)
    another = RunDirectory(directory.root)
    another.create()
    (another.root / ".lock").write_text("process 1 on another machine\n")
    another.write_config({})
    save(another.checkpoints, 3)


@pytest.mark.parametrize("what", ["checkpoint", "old checkpoints", "snapshot", "config"])
def test_nothing_is_written_into_a_run_that_was_begun_in_its_place(tmp_path: Path, what: str) -> None:
    loop = make_loop(seeded(Denoiser), tmp_path / "run", keep_last=1, ema_lengths=(0.1,))
    with loop.directory.lock():
        loop.directory.require()
        begin_in_its_place(loop.directory)
        loop._saved_at = 0 if what == "old checkpoints" else None
        writes = {"checkpoint": loop.save, "old checkpoints": loop.save, "snapshot": lambda: loop.checkpointer.write_snapshot(8)}
        with pytest.raises(
            CheckpointError, match="run was removed or renamed while the run was trained, and another one was begun there: "
        ):
            writes.get(what, loop.directory.require)()
    assert list_checkpoints(tmp_path / "run/checkpoints") == [3] and not (tmp_path / "run/snapshots").exists()


def test_a_lock_that_was_only_removed_or_written_into_ends_no_training(tmp_path: Path) -> None:
    """Somebody tidies up; without locks, a command that asks for one writes into the file; some file systems number files anew."""
    directory = RunDirectory(tmp_path)
    directory.write_config({})
    lock, text = tmp_path / ".lock", ""
    with directory.lock():
        text = lock.read_text()
        lock.write_text("process 1 on another machine\n")
        directory.require()
        lock.unlink()
        directory.require()
        (tmp_path / "anew").write_text(text)
        (tmp_path / "anew").rename(lock)
        directory.require()
        (tmp_path / "anew").write_text("process 1 on another machine\n")
        (tmp_path / "anew").rename(lock)
        with pytest.raises(CheckpointError, match="another one was begun there"):
            directory.require()
    directory.require()  # the training has ended


def test_a_reader_takes_the_newer_one_of_a_training_that_removed_what_it_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 8)
    read, training = module._read_tensors, [16, 24]

    def reading(folder: Path, stem: str, digests: Mapping[str, str]) -> dict[str, torch.Tensor]:
        if training:
            save(tmp_path, training.pop(0))
            prune(tmp_path, keep_last=1, keep_every=None, best=None)
        return read(folder, stem, digests)

    monkeypatch.setattr(module, "_read_tensors", reading)
    found = load_newest(tmp_path, warn=pytest.fail)
    assert found is not None and found.images_seen == 24 and not training


def test_one_that_is_damaged_is_reported_once_where_nothing_goes_on(tmp_path: Path) -> None:
    save(tmp_path, 8)
    (tmp_path / "000000008/model.safetensors").unlink()
    said = list[str]()
    with pytest.raises(NoneReadable):
        load_newest(tmp_path, warn=said.append)
    assert len(said) == 1 and said[0].endswith("model.safetensors is missing; there is none before it")


def test_old_checkpoints_that_somebody_else_removes_are_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for images in (8, 16, 24):
        save(tmp_path, images)
    monkeypatch.setattr(module, "list_checkpoints", lambda folder: [4, 8, 16, 24])  # as they were a moment ago
    assert prune(tmp_path, keep_last=2, keep_every=None, best=None) == [4, 8]
    monkeypatch.undo()
    assert list_checkpoints(tmp_path) == [16, 24] and not list(tmp_path.glob(".*"))


def mapped(folder: Path) -> set[str]:
    """The files of a folder that are mapped into this process's memory."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split(None, 5)[-1] for line in lines if str(folder) in line}


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not list what is mapped")
@pytest.mark.parametrize("name", ["adamw", "adamax", "adamax-glow"])
def test_a_training_lets_go_of_the_files_that_it_goes_on_from(tmp_path: Path, name: Any) -> None:
    """They would stay in memory, and on the disk after their checkpoint was removed, until the training ends."""
    from triptych.engine.config import OptimConfig

    settings: dict[str, Any] = {"optim": OptimConfig(name=name, learning_rate=1e-2)}
    assert run(make_loop(seeded(Denoiser), tmp_path, total_images=16, **settings))
    checkpoint = load_newest(tmp_path / "checkpoints", warn=pytest.fail)
    assert isinstance(checkpoint, Checkpoint) and checkpoint.files["optimizer"] and len(mapped(tmp_path)) == 4
    model = Denoiser()
    model.load_state_dict(checkpoint.files["model"])
    loop = make_loop(model, tmp_path, **settings)
    loop.restore(checkpoint)
    assert not mapped(tmp_path) and run(loop)
