"""Checkpoints written in the background are those of a training that waits."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.background_worker import EVERY, fail_together, opened, train, train_killed
from tests.engine.toys import run
from tests.processes import run_together
from triptych.core.errors import CheckpointError
from triptych.engine import checkpointer as module
from triptych.engine.checkpoint import checkpoint_path, load_checkpoint, save_checkpoint
from triptych.engine.checkpointer import another_folder
from triptych.engine.distributed import World
from triptych.engine.run_directory import list_checkpoints


def content(folder: Path) -> dict[Any, Any]:
    """What all checkpoints there hold, to the bit. Files of divided models differ in the order of the words of their headers."""
    found: dict[Any, Any] = {}
    for number in list_checkpoints(folder / "checkpoints"):
        checkpoint = load_checkpoint(checkpoint_path(folder / "checkpoints", number))
        found[number] = checkpoint.info
        for stem, tensors in checkpoint.files.items():
            found |= {(number, stem, name): tensor.numpy().tobytes() for name, tensor in tensors.items()}
    return found


def alone(folder: Path, **changes: Any) -> Any:
    """A loop of one process."""
    return opened(folder, World(0, 1, torch.device("cpu")), **changes)


def test_the_state_is_that_of_the_moment_and_the_training_goes_on(tmp_path, monkeypatch):
    run(alone(tmp_path / "wait", checkpoint_writing="wait"))
    loop = alone(tmp_path / "background")
    begun, seen = [], []

    def slowly(folder: Path, *, images_seen: int, **given: Any) -> Path:
        begun.append(images_seen)
        if images_seen == 2 * EVERY:
            assert stepped.wait(60)  # an iteration is taken while this is written
            seen.append(loop.images_seen)
        return save_checkpoint(folder, images_seen=images_seen, **given)

    stepped, iteration = threading.Event(), loop._iteration

    def step(batches: Any) -> None:
        iteration(batches)
        if loop.images_seen == 3 * EVERY:
            stepped.set()

    monkeypatch.setattr(module, "save_checkpoint", slowly)
    loop._iteration = step
    assert run(loop)
    assert begun == [EVERY, 2 * EVERY, 3 * EVERY, 4 * EVERY] and seen == [3 * EVERY]
    assert content(tmp_path / "background") == content(tmp_path / "wait")
    assert not loop.checkpointer.pending


def test_the_next_one_and_a_grid_wait_for_it(tmp_path, monkeypatch):
    there: list[tuple[int, list[int]]] = []

    def grid(path: Path, watch: Any) -> None:
        there.append((loop.images_seen, list_checkpoints(tmp_path / "checkpoints")))

    order: list[str] = []

    def noted(folder: Path, *, images_seen: int, **given: Any) -> Path:
        order.append(f"begun {images_seen}")
        time.sleep(0.05)
        made = save_checkpoint(folder, images_seen=images_seen, **given)
        order.append(f"written {images_seen}")
        return made

    monkeypatch.setattr(module, "save_checkpoint", noted)
    loop = alone(tmp_path, grids={"": grid}, sample_every=2 * EVERY, keep_last=2)
    run(loop)
    assert there == [(2 * EVERY, [EVERY, 2 * EVERY]), (4 * EVERY, [3 * EVERY, 4 * EVERY])]  # old ones are gone too
    assert order == [f"{what} {number * EVERY}" for number in (1, 2, 3, 4) for what in ("begun", "written")]


@pytest.mark.parametrize("at", [2 * EVERY, 4 * EVERY])
def test_a_full_disk_ends_the_training_with_the_line_of_one_that_waits(tmp_path, monkeypatch, at):
    said = []
    for writing in ("wait", "background"):
        with monkeypatch.context() as patch:
            real = module.save_checkpoint

            def full(folder: Path, *, images_seen: int, real: Any = real, **given: Any) -> Path:
                if images_seen == at:
                    raise CheckpointError(f"cannot write checkpoint {images_seen}: No space left on device")
                return real(folder, images_seen=images_seen, **given)

            patch.setattr(module, "save_checkpoint", full)
            with pytest.raises(CheckpointError) as caught:
                run(alone(tmp_path / writing, checkpoint_writing=writing))
        said.append(str(caught.value))
        assert list_checkpoints(tmp_path / writing / "checkpoints") == list(range(EVERY, at, EVERY))
    assert said[0] == said[1]


def test_a_training_that_fails_leaves_what_it_had_begun_to_write(tmp_path, monkeypatch):
    loop = alone(tmp_path)
    failing = threading.Event()

    def slowly(*given: Any, **named: Any) -> Path:
        assert failing.wait(60)
        return save_checkpoint(*given, **named)

    iteration = loop._iteration

    def step(batches: Any) -> None:
        if loop.images_seen == EVERY:
            failing.set()
            raise RuntimeError("lost")
        iteration(batches)

    monkeypatch.setattr(module, "save_checkpoint", slowly)
    loop._iteration = step
    with pytest.raises(RuntimeError, match="lost"):
        run(loop)
    assert list_checkpoints(tmp_path / "checkpoints") == [EVERY]


class Pair(World):
    """Two processes, of which the second one has a folder of its own."""

    def gather(self, value: Any) -> list[Any]:
        return [(True, "node1"), (False, "node2")]


def test_a_process_that_does_not_see_the_folder_of_the_main_one_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SEEN_SECONDS", 0.0)
    assert another_folder(tmp_path, World(0, 1, torch.device("cpu"))) is None
    named = f"{tmp_path} is another folder for rank 1 on node2 than for rank 0 on node1"
    assert another_folder(tmp_path, Pair(0, 1, torch.device("cpu"))) == named
    assert list(tmp_path.iterdir()) == []


def test_a_new_file_that_is_seen_late_is_waited_for(tmp_path, monkeypatch):
    looks = iter([False, False, True])
    with monkeypatch.context() as patch:
        patch.setattr(module.os.path, "exists", lambda path: next(looks))
        patch.setattr(module.time, "sleep", lambda seconds: None)
        assert another_folder(tmp_path, World(0, 1, torch.device("cpu"))) is None
    assert list(looks) == []


@pytest.mark.slow
@pytest.mark.xdist_group("torchrun")
def test_two_processes_write_the_same_fail_alike_and_may_be_killed(tmp_path):
    for writing in ("wait", "background"):
        run_together(2, train, tmp_path / writing, {"shard": "full", "checkpoint_writing": writing})
    expected = content(tmp_path / "wait")
    assert content(tmp_path / "background") == expected != {}
    run_together(2, fail_together, tmp_path / "failing")
    broken = tmp_path / "broken"
    run_together(2, train_killed, broken, {"shard": "full"}, (1,), 3, 0, 0.0, codes=[1, -9])
    assert list_checkpoints(broken / "checkpoints")[-1] in (2 * EVERY, 3 * EVERY)
    run_together(2, train, broken, {"shard": "full"})
    assert content(broken) == expected
