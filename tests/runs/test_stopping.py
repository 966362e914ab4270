"""Signals that meet a training or another verb at work, in this process; and how large the batches of grids are."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.contract.shrink import BATCH, shrunk
from triptych.core.errors import Stopped
from triptych.core.model import Report
from triptych.data.config import DataConfig
from triptych.diffusion.adm import ADM
from triptych.recipes.config import RunConfig
from triptych.runs import Latents, Run, open_run, train

STEPS = 4


def config(**settings: Any) -> RunConfig:
    """adm-digits, shrunk, with 4 steps of its sampler; `settings` of the training."""
    base = {"total_images": BATCH, "sample_count": 5, "microbatch": 2}
    return shrunk("adm-digits").updated({"train": base | settings, "model": {"sampling": {"steps": STEPS}}})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(config(), tmp_path_factory.mktemp("runs") / "run", device="cpu")


def send(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def samples(run: Path) -> np.ndarray:
    with Image.open(run / f"samples/{BATCH:09d}.png") as picture:
        return np.asarray(picture).astype(int)


class Spy:
    """Notes the batches that an ADM draws and the steps that it reports; something happens at one of these."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, at: int = -1, happens: Callable[[], None] = lambda: None) -> None:
        self.batches: list[int] = []
        self.steps: list[tuple[int, int]] = []
        sample = ADM.sample

        def spied(model: ADM, rng: Any, *, report: Report, **named: Any) -> Any:
            self.batches.append(len(rng))

            def noted(done: int, count: int) -> None:
                self.steps.append((done, count))
                if len(self.steps) == at:
                    happens()
                report(done, count)

            return sample(model, rng, report=noted, **named)

        monkeypatch.setattr(ADM, "sample", spied)


@pytest.mark.slow
def test_a_signal_ends_the_final_grid_between_two_steps_and_the_next_start_draws_it(trained, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patched:
        spy = Spy(patched, at=6, happens=send)
        train(config(), tmp_path / "run", device="cpu")
    assert spy.batches == [2, 2] and spy.steps == [(1, STEPS), (2, STEPS), (3, STEPS), (4, STEPS), (1, STEPS), (2, STEPS)]
    assert not list((tmp_path / "run/samples").iterdir()) and open_run(tmp_path / "run").checkpoints() == [BATCH]
    shown = capsys.readouterr().err
    assert "SIGTERM: stopping after this step; again: now\n" in shown
    assert f"stopped by SIGTERM at {BATCH} images and saved; the same command goes on from there" in shown
    again = Spy(monkeypatch)
    train(config(), tmp_path / "run", device="cpu")
    assert again.batches == [2, 2, 1]
    assert np.array_equal(samples(tmp_path / "run"), samples(trained.directory))


@pytest.mark.slow
def test_grids_are_drawn_in_microbatches_whose_size_does_not_show(trained, tmp_path, monkeypatch):
    batches = {}
    for microbatch in (None, 4):
        run = tmp_path / str(microbatch)
        (run / "samples").mkdir(parents=True)
        for path in trained.directory.rglob("*"):
            if path.is_file() and path.suffix != ".png":
                (run / path.relative_to(trained.directory)).parent.mkdir(parents=True, exist_ok=True)
                (run / path.relative_to(trained.directory)).write_bytes(path.read_bytes())
        with monkeypatch.context() as patched:
            batches[microbatch] = Spy(patched).batches
            train(config(microbatch=microbatch), run, device="cpu")
        assert np.abs(samples(run) - samples(trained.directory)).max() <= 1  # another batch rounds float32 otherwise
    assert batches == {None: [5], 4: [4, 1]}


def test_a_start_that_waits_for_a_file_ends_at_once(trained, tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")

    def waiting(_: Any) -> Any:
        threading.Timer(0.1, send).start()
        (tmp_path / "pipe").read_bytes()

    monkeypatch.setattr(DataConfig, "open", waiting)
    with pytest.raises(Stopped, match="^interrupted before anything was saved; the same command begins again$"):
        train(config(), tmp_path / "run", device="cpu")
    with pytest.raises(Stopped, match=f"^interrupted; the run is saved at {BATCH} images, and the same command goes on from there$"):
        train(config(total_images=2 * BATCH), trained.directory, device="cpu")


@pytest.mark.slow
def test_a_second_signal_says_what_is_saved(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("triptych.engine.signals._SAME_WISH_SECONDS", 0.0)

    def twice() -> None:
        send()
        send()

    Spy(monkeypatch, at=1, happens=twice)
    with pytest.raises(Stopped, match=f"^interrupted; the run is saved at {BATCH} images, and the same command goes on from there$"):
        train(config(), tmp_path / "run", device="cpu")
    log = (tmp_path / "run/log.txt").read_text()
    assert f"interrupted at {BATCH} images" in log
    # The thread that answers may be later than the end of the log.
    assert "SIGTERM: stopping after this step; again: now" in log + capsys.readouterr().err


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["a.npz", "a.png", "folder"])
def test_an_interrupted_sampling_says_how_it_goes_on(trained, tmp_path, name):
    with pytest.raises(Stopped, match="^interrupted; what was drawn is kept, and the same command goes on$"):
        trained.sample(4, batch_size=2, out=tmp_path / name, device="cpu", progress=interrupt)


def test_an_interrupted_evaluation_and_encoding_say_how_they_go_on(trained, tmp_path):
    with pytest.raises(Stopped, match="^interrupted; what was measured is kept, and the same command goes on$"):
        trained.evaluate(count=2, out=tmp_path / "a.json", device="cpu", progress=interrupt)
    images = trained.config.data.open().train.batch(np.arange(2)).images
    np.savez(tmp_path / "in.npz", arr_0=images, arr_1=np.arange(2))
    coder = trained.coder(device="cpu", progress=interrupt)
    with pytest.raises(Stopped, match="^interrupted; what was encoded is kept, and the same command goes on$"):
        coder.encode(images, labels=[0], out=tmp_path / "a.npz")
    with pytest.raises(Stopped, match="^interrupted; what was encoded is kept, and the same command goes on$"):
        coder.directions(tmp_path / "in.npz", out=tmp_path / "d.npz", latents_out=tmp_path / "a.npz")
    with pytest.raises(Stopped, match="^interrupted; the same command begins again$"):
        coder.directions(tmp_path / "in.npz", out=tmp_path / "d.npz")
    with pytest.raises(Stopped, match="^interrupted; what was decoded is kept, and the same command goes on$"):
        coder.decode(Latents((np.zeros((2, 1, 8, 8), np.float32),), np.zeros(2, np.int64)), out=tmp_path / "a.png")
