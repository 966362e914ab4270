"""What a stop or a kill takes is made when the run goes on, and signals are heard wherever the main thread is."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import itertools
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.engine import stopping_worker
from tests.engine.toys import Denoiser, make_loop, metrics, resumed, run, seeded, stop_after
from tests.processes import run_together
from triptych.core.errors import CheckpointError, ConfigError, DataError, RunError, Stopped
from triptych.engine import metric_log, signals
from triptych.engine.callables import Evaluated, Evaluation
from triptych.engine.checkpoint import checkpoint_path, list_checkpoints, load_checkpoint
from triptych.engine.config import LogConfig
from triptych.engine.distributed import World
from triptych.engine.loop import Loop
from triptych.engine.progress import Watch
from triptych.engine.signals import StopRequest, made_by_all, stop_on_signals


class Work:
    """Grids, validations and evaluations in three steps; something happens before the second step of the `at`-th of one kind."""

    def __init__(self, model: Denoiser, *, what: str = "", at: int = 1, happens: Callable[[], None] = lambda: None) -> None:
        self.model, self.begun = model, []
        self._what, self._at, self._happens = what, at, happens

    def steps(self, name: str, watch: Watch) -> None:
        self.begun.append(name)
        for step in range(3):
            if step == 1 and name == self._what and self.begun.count(name) == self._at:
                self._happens()
            watch(step + 1, 3)

    def grid(self, path: Path, watch: Watch) -> None:
        self.steps("grid", watch)
        path.write_text(str(self.model.network[0].weight.double().sum().item()))

    def validate(self, watch: Watch) -> dict[str, float]:
        self.steps("validation", watch)
        return {"denoise/loss": -self.model.network[0].weight.double().square().sum().item()}  # ever better

    def evaluate(self, watch: Watch) -> Evaluated:
        self.steps("evaluation", watch)
        return Evaluated({"kid": self.model.network[0].weight.double().sum().item(), "kid_error": 0.5}, "3 samples")

    def loop(self, root: Path, make: Callable[..., Loop] = make_loop) -> Loop:
        every = {"sample_every": 16, "validate_every": 16, "evaluate_every": 16, "checkpoint_every": 24, "total_images": 48}
        grids = {"": self.grid, "-cold": self.grid}
        model = (root, self.model) if make is resumed else (self.model, root)
        return make(*model, log=LogConfig(every=24), grids=grids, validate=self.validate, evaluation=Evaluation(self.evaluate), **every)


def going_on(root: Path) -> Work:
    """The run goes on to its end."""
    work = Work(Denoiser())
    assert run(work.loop(root, resumed))
    return work


def ended(root: Path) -> tuple[Any, ...]:
    """All that a run ends with, but for times."""
    checkpoint = load_checkpoint(checkpoint_path(root / "checkpoints", 48))
    grids = {path.name: path.read_text() for path in (root / "samples").iterdir()}
    return checkpoint.hashes, checkpoint.info, grids, metrics(root)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    root = tmp_path_factory.mktemp("unbroken")
    assert run(Work(seeded(Denoiser)).loop(root))
    found = ended(root)
    assert len(found[2]) == 6 and len(set(found[2].values())) == 3
    assert [line["images"] for line in found[3] if "validation/denoise/loss" in line] == [16, 32, 48]
    assert len({line["evaluation/kid"] for line in found[3] if "evaluation/kid_error" in line}) == 3
    assert found[1]["best"]["images"] == 48
    return found


MOMENTS = [("grid", 1, 16), ("grid", 2, 16), ("validation", 2, 32), ("validation", 3, 48), ("grid", 6, 48)]
MOMENTS += [("evaluation", 1, 16), ("evaluation", 3, 48)]
"""In the how manieth grid, validation or evaluation something happens, and at how many images that is; there are two grids each time."""


@pytest.mark.parametrize(("what", "at", "images"), MOMENTS)
def test_a_stop_is_heard_between_steps_and_what_it_took_is_made_later(tmp_path, unbroken, what, at, images):
    stop = StopRequest()
    work = Work(seeded(Denoiser), what=what, at=at, happens=lambda: setattr(stop, "name", "SIGTERM"))
    assert not work.loop(tmp_path).run(stop)
    assert work.begun.count(what) == at and work.begun[-1] == what
    assert list_checkpoints(tmp_path / "checkpoints")[-1] == images
    going_on(tmp_path)
    assert ended(tmp_path) == unbroken


@pytest.mark.parametrize(("what", "at", "images"), MOMENTS)
def test_what_a_kill_took_is_made_later(tmp_path, unbroken, what, at, images):
    def killed() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Work(seeded(Denoiser), what=what, at=at, happens=killed).loop(tmp_path).run(StopRequest())
    if list_checkpoints(tmp_path / "checkpoints"):
        going_on(tmp_path)
    else:
        assert run(Work(seeded(Denoiser)).loop(tmp_path))
    assert ended(tmp_path)[:3] == unbroken[:3]


def test_a_stop_in_a_step_leaves_what_was_due_to_the_next_start(tmp_path, unbroken):
    work = Work(seeded(Denoiser))
    loop = work.loop(tmp_path)
    assert not loop.run(stop_after(loop, 32))
    assert work.begun == ["validation", "grid", "grid", "evaluation"]  # those at 16
    assert going_on(tmp_path).begun == ["validation", "grid", "grid", "evaluation"] * 2
    assert ended(tmp_path) == unbroken


def test_what_is_due_within_an_iteration_is_made_at_its_end_and_made_up_for_there(tmp_path):
    drawn: list[str] = []
    given = {"grids": {"": lambda path, watch: drawn.append(path.stem)}, "sample_every": 12}
    loop = make_loop(seeded(Denoiser), tmp_path, **given)
    assert not loop.run(stop_after(loop, 16)) and not drawn  # iterations end at 8 and 16
    assert run(resumed(tmp_path, Denoiser(), **given))
    assert [int(name) for name in drawn] == [16, 24, 40, 48, 64]


def test_a_finished_run_makes_the_grids_that_it_lacks(tmp_path, unbroken):
    assert run(Work(seeded(Denoiser)).loop(tmp_path))
    assert going_on(tmp_path).begun == []
    (tmp_path / "samples/000000048-cold.png").unlink()
    assert going_on(tmp_path).begun == ["grid"]
    assert ended(tmp_path) == unbroken


def test_what_was_due_is_looked_for_in_lines_of_its_kind_alone(tmp_path, monkeypatch):
    """A long log has hundreds of thousands of others."""
    assert run(Work(seeded(Denoiser)).loop(tmp_path))
    loop, parsed = Work(Denoiser()).loop(tmp_path, resumed), list[str]()
    monkeypatch.setattr(metric_log, "parsed_json", lambda text: parsed.append(text) or json.loads(text))
    assert run(loop)
    assert len(parsed) == 2 * 3 + 2 and not any('"denoise/loss"' in text for text in parsed)  # validations, evaluations, the resume twice


def test_a_validation_that_the_log_has_and_the_checkpoint_not_is_not_repeated(tmp_path, unbroken):
    """The process was killed when it had made up for a validation, before it could write that down as the best."""
    stop = StopRequest()
    work = Work(seeded(Denoiser), what="validation", at=2, happens=lambda: setattr(stop, "name", "SIGTERM"))
    assert not work.loop(tmp_path).run(stop)
    loop = Work(Denoiser()).loop(tmp_path, resumed)

    def killed() -> None:
        raise KeyboardInterrupt

    loop.save = killed
    with pytest.raises(KeyboardInterrupt):
        run(loop)
    assert going_on(tmp_path).begun.count("validation") == 1  # that at 48
    assert ended(tmp_path) == unbroken


def test_a_grid_of_a_past_that_was_given_up_is_drawn_anew(tmp_path, unbroken):
    stale = tmp_path / "samples/000000032.png"
    loop = Work(seeded(Denoiser)).loop(tmp_path)
    stale.write_text("of another past")
    assert not loop.run(stop_after(loop, 32))
    going_on(tmp_path)
    assert ended(tmp_path) == unbroken


def test_a_grid_of_a_past_that_cannot_be_removed_is_named(tmp_path, monkeypatch):
    unlink = Path.unlink

    def refused(path: Path, missing_ok: bool = False) -> None:
        if path.parent.name == "samples":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(CheckpointError, match=r"^cannot remove .*/samples/000000016.png: Read-only file system$"):
        run(Work(seeded(Denoiser)).loop(tmp_path))


@pytest.mark.parametrize("kind", [DataError, RunError])
def test_what_goes_wrong_between_two_steps_ends_a_run_that_is_saved(tmp_path, kind):
    """A file that cannot be read, a process that loads images and was killed."""
    loop = make_loop(seeded(Denoiser), tmp_path)
    images = loop.callables.draw(0)

    def broken(start):
        yield from itertools.islice(images, 3)
        raise kind("no more images")

    loop.callables = dataclasses.replace(loop.callables, draw=broken)
    with pytest.raises(kind, match="no more images"):
        loop.run(StopRequest())
    assert list_checkpoints(tmp_path / "checkpoints") == [24]


BESIDE = [(kind, what) for kind in (DataError, CheckpointError, torch.OutOfMemoryError) for what in ("grids", "validate")]


@pytest.mark.parametrize(("kind", "what"), [*BESIDE, (torch.OutOfMemoryError, "evaluation")])
def test_what_goes_wrong_beside_the_steps_ends_a_run_that_is_saved(tmp_path, kind, what):
    """An image cannot be read, the folder of samples not be written, and a network of an evaluation has no memory."""

    def broken(*given):
        raise kind("no grid")

    given = {"grids": {"": broken}, "validate": broken, "evaluation": Evaluation(broken)}
    every = {"sample_every": 24, "validate_every": 24, "evaluate_every": 24}
    loop = make_loop(seeded(Denoiser), tmp_path, **{what: given[what]}, **every, log=LogConfig(every=64))
    weight = loop.model.network[0].weight
    with pytest.raises(kind, match="no grid"):
        loop.run(StopRequest())
    (line,) = [line for line in (tmp_path / "log.txt").read_text().splitlines() if "saved at" in line]
    assert line.endswith(" saved at 24 images; the same command goes on from there")
    saved = load_checkpoint(checkpoint_path(tmp_path / "checkpoints", 24))
    assert torch.equal(saved.files["model"]["network.0.weight"], weight) and not torch.equal(
        saved.files["ema-0.9"]["network.0.weight"], weight
    )


def test_a_stop_before_the_first_step_saves_nothing(tmp_path):
    loop = make_loop(seeded(Denoiser), tmp_path)
    stop = StopRequest()
    stop.name = "SIGTERM"
    with pytest.raises(Stopped):
        loop.run(stop)
    assert list_checkpoints(tmp_path / "checkpoints") == []


# Signals ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def on_a_terminal() -> Iterator[None]:
    """The tests may have been started with nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def send(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def test_a_wait_for_images_ends_at_once_and_the_run_is_saved(tmp_path):
    """The images come from a pipe that nobody writes to."""
    os.mkfifo(tmp_path / "pipe")
    loop = make_loop(seeded(Denoiser), tmp_path / "run")
    draw = loop.callables.draw

    def waiting(start: int) -> Iterator[Any]:
        batches = draw(start)
        yield next(batches)
        threading.Timer(0.1, send).start()
        (tmp_path / "pipe").read_bytes()

    object.__setattr__(loop.callables, "draw", waiting)
    with stop_on_signals() as stop:
        assert not loop.run(stop)
    assert stop.name == "SIGTERM" and list_checkpoints(tmp_path / "run/checkpoints") == [8]


def test_a_signal_after_a_wait_is_noted_again():
    """It must not end a step in the middle."""
    stop = StopRequest()
    with stop.interrupting():
        pass
    with pytest.raises(DataError), stop.interrupting():
        raise DataError("no image")
    stop.signalled(signal.SIGTERM)
    assert stop.name == "SIGTERM"


def test_a_start_ends_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Stopped, match="SIGINT"), stop_on_signals() as stop:
        stop.at_once = True
        threading.Timer(0.1, lambda: send(signal.SIGINT)).start()
        (tmp_path / "pipe").read_bytes()


def test_a_signal_is_answered_while_the_main_thread_is_in_a_long_operation():
    """The operation is a lock of the C library, which is held until the answer is there."""
    mutex, library = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    said: list[str] = []
    locked, answered = threading.Event(), threading.Event()
    in_time: list[bool] = []

    def hold() -> None:
        library.pthread_mutex_lock(mutex)
        locked.set()
        send()
        in_time.append(answered.wait(10))
        library.pthread_mutex_unlock(mutex)

    with stop_on_signals() as stop:
        stop.say = lambda message: (said.append(message), answered.set())
        holder = threading.Thread(target=hold)
        holder.start()
        locked.wait()
        library.pthread_mutex_lock(mutex)
        holder.join()
    assert in_time == [True] and said == ["SIGTERM: stopping after this step; again: now"]


@pytest.mark.parametrize(
    ("second", "seconds", "forced"),
    [
        (signal.SIGINT, 0, True),
        (signal.SIGTERM, 0, True),
        (signal.SIGUSR1, 0, False),
        (signal.SIGHUP, 0, False),
        (signal.SIGTERM, 9, False),
    ],
)
def test_another_signal_ends_at_once_but_not_one_that_only_repeats_the_first(monkeypatch, second, seconds, forced):
    monkeypatch.setattr(signals, "_SAME_WISH_SECONDS", seconds)
    ends = 0
    with stop_on_signals() as stop:
        send()
        assert stop.name == "SIGTERM"
        try:
            send(second)
        except KeyboardInterrupt as error:
            ends += not isinstance(error, Stopped)
    assert ends == forced


def test_a_signal_again_within_a_second_is_the_same_wish(monkeypatch):
    clock, stop = SimpleNamespace(now=50.0), StopRequest()
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: clock.now))
    for now in (50.0, 50.99):
        clock.now = now
        stop.signalled(signal.SIGTERM)
    clock.now = 51.0
    with pytest.raises(KeyboardInterrupt):
        stop.signalled(signal.SIGINT)


def test_other_processes_are_listened_to_once_a_second(monkeypatch):
    class Two(World):
        def has_word(self, word: str) -> bool:
            asked.append(clock.now)
            return clock.now >= 52

    clock, asked, stop, two = SimpleNamespace(now=0.0), list[float](), StopRequest(), Two(0, 2, torch.device("cpu"))
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: clock.now))
    for now in (50.0, 50.5, 50.99, 51.0, 51.99):
        clock.now = now
        stop.look(two)
    clock.now = 52.0
    with pytest.raises(Stopped, match="another process"):
        stop.look(two)
    assert asked == [50.0, 51.0, 52.0]


@pytest.mark.parametrize("first", [signal.SIGUSR1, signal.SIGHUP])
def test_the_end_that_was_announced_is_the_same_wish(monkeypatch, first):
    """torchrun hands a second SIGUSR1 on as SIGTERM; so ends what outlives its terminal. A signal after that one ends at once."""
    monkeypatch.setattr(signals, "_SAME_WISH_SECONDS", 0)
    said: list[str] = []
    answered = threading.Event()
    with stop_on_signals() as stop:
        stop.say = lambda message: (said.append(message), answered.set())
        for number, again in ((first, first), (signal.SIGTERM, None)):
            answered.clear()
            send(number)
            assert answered.wait(10)
            if again is not None:
                send(again)  # which is not answered
        assert stop.name == "SIGTERM"
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    assert said[:2] == [f"{first.name}: stopping after this step", "SIGTERM: stopping after this step; again: now"]


def test_what_was_started_to_outlive_its_terminal_does():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup has it
    try:
        with stop_on_signals() as stop:
            send(signal.SIGHUP)
            assert stop.name is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_process_that_did_not_hear_a_signal_hears_of_it():
    class Other(World):
        def has_word(self, word: str) -> bool:
            return True

        def gather(self, value: Any) -> list[Any]:
            return [value, 7]

    with pytest.raises(Stopped, match="another process"):
        StopRequest().look(Other(1, 2, torch.device("cpu")))
    assert made_by_all(Other(0, 2, torch.device("cpu")), lambda: 3) == [3, 7]

    class Refused(Other):
        def gather(self, value: Any) -> list[Any]:
            return [value, ConfigError("x", "got 3")]

    with pytest.raises(ConfigError, match="x: got 3"):
        made_by_all(Refused(0, 2, torch.device("cpu")), lambda: 3)

    def stopped() -> int:
        raise Stopped

    for make in (stopped, lambda: 3):

        class Both(Other):
            def gather(self, value: Any) -> list[Any]:
                return [value, Stopped()]

        with pytest.raises(Stopped):
            made_by_all(Both(0, 2, torch.device("cpu")), make)


@pytest.mark.slow
@pytest.mark.xdist_group("torchrun")
def test_two_processes_stop_where_one_hears_a_signal_and_go_on_as_if_it_had_not_been(tmp_path):
    run_together(2, stopping_worker.main, tmp_path)
    lines = metrics(tmp_path / "unbroken")
    assert [line["images"] for line in lines] == [24, 48, 64] and metrics(tmp_path / "broken") == lines
    ends = [load_checkpoint(checkpoint_path(tmp_path / name / "checkpoints", 64)) for name in ("unbroken", "broken")]
    assert ends[0].hashes == ends[1].hashes and ends[0].info == ends[1].info
    assert {path.name for path in (tmp_path / "broken/samples").iterdir()} == {"000000040.png", "000000064.png"}
