"""A run whose process dies at any of its operations on files goes on to the end that it would have had.

Without a process: an operation on a file raises, and so do all after it, those in the clauses that clean up too. So the disk is left as a
kill leaves it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_stopping import Work
from tests.engine.toys import Denoiser, make_loop, metrics, resumed, run, seeded
from triptych.engine.callables import Criterion, Evaluation
from triptych.engine.checkpoint import checkpoint_path, list_checkpoints, load_checkpoint, sweep
from triptych.engine.config import LogConfig
from triptych.engine.loop import Loop
from triptych.engine.run_directory import RunDirectory

OPERATIONS = ("open", "fsync", "mkdir", "rename", "replace", "unlink", "rmdir")
"""Of the module os, with which all files are written but the tensors, which safetensors writes into a file that is there."""


class Killed(BaseException):
    """The process is no more."""


class Operations:
    """The operations on files below a folder; the process is killed at the one of that number."""

    def __init__(self, root: Path, *, last: float = float("inf")) -> None:
        self._root, self._last = str(root), last
        self.count = 0

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*given: Any, **named: Any) -> Any:
            if isinstance(given[0], int) or os.fspath(given[0]).startswith(self._root):
                self.count += 1
                if self.count > self._last:
                    raise Killed
            return call(*given, **named)

        return operation

    @contextmanager
    def watched(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with monkeypatch.context() as patched:
            for name in OPERATIONS:
                patched.setattr(os, name, self.counted(getattr(os, name)))
            yield


def loop_of(root: Path, **settings: Any) -> Loop:
    """The loop of a run that begins or goes on, as `triptych train` makes it, with grids, validations, evaluations and snapshots."""
    work = Work(seeded(Denoiser))
    every = {
        "sample_every": 16,
        "validate_every": 8,
        "evaluate_every": 16,
        "checkpoint_every": 16,
        "snapshot_every": 16,
        "total_images": 32,
    }
    evaluation = Evaluation(work.evaluate, Criterion("kid of 3 samples", "kid"))
    given = {"log": LogConfig(every=16), "grids": {"": work.grid}, "validate": work.validate, "evaluation": evaluation, "keep_last": 1}
    given |= {"ema_rates": (0.9,), "ema_lengths": (0.1,), **every, **settings}
    directory = RunDirectory(root)
    directory.create()
    directory.sweep()
    sweep(directory.checkpoints)
    if list_checkpoints(directory.checkpoints):
        return resumed(root, work.model, **given)
    started = directory.metrics_path.exists()
    loop = make_loop(work.model, root, **given)
    if started and loop.reporting is not None:
        loop.reporting.log.resumed(0)
    return loop


def ended(root: Path) -> Any:
    """All that a run ends with, but for times and how often it was begun."""
    found: dict[str, Any] = {"files": sorted(str(path.relative_to(root)) for path in root.rglob("*")), "lines": metrics(root)}
    for folder in (root / "checkpoints", root / "snapshots"):
        stored = [load_checkpoint(checkpoint_path(folder, number), files=()) for number in list_checkpoints(folder)]
        found[folder.name] = [(each.hashes, each.info) for each in stored]
    return found | {"grids": {path.name: path.read_text() for path in (root / "samples").iterdir()}}


SLOW = [pytest.param("wait", 1, marks=pytest.mark.slow), pytest.param("background", 7, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("writing", "step"), [("wait", 97), *SLOW])
def test_a_run_that_is_killed_at_any_operation_on_files_ends_as_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writing: str, step: int
) -> None:
    """At every `step`-th."""
    settings, root, whole = {"checkpoint_writing": writing}, tmp_path / "run", Operations(tmp_path / "run")
    monkeypatch.setattr("triptych.core.files.is_alive", lambda process: False)  # who wrote what is left over
    with whole.watched(monkeypatch):
        assert run(loop_of(root, **settings))
    unbroken = ended(root)
    assert [len(unbroken[name]) for name in ("checkpoints", "snapshots", "grids")] == [2, 2, 2] and whole.count > 150
    for last in range(step // 2, whole.count, step):
        shutil.rmtree(root)
        with Operations(root, last=last).watched(monkeypatch), pytest.raises(Killed):
            run(loop_of(root, **settings))
        saved = max(list_checkpoints(root / "checkpoints"), default=0)
        loop = loop_of(root, **settings)
        assert loop.images_seen == saved and run(loop)
        assert ended(root) == unbroken, last
