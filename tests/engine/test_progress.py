from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.processes import forked
from triptych.engine.progress import Progress, memory_bytes, spelled_seconds


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_at_log_points_only() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress(10_000, images=1_000, stream=stream, clock=clock) as progress:
        progress.message("resumed at 1,000 images")
        clock.now += 1
        progress.update(1_050)
        clock.now += 1
        progress.message(progress.measured(1_100, {"loss": 0.123456, "learning_rate": 1e-4, "gradient_norm": 2.0}))
    first, second = stream.getvalue().splitlines()
    assert first == "resumed at 1,000 images"
    assert re.fullmatch(
        r"1,100/10,000 images  50 images/s  loss 0\.1235  lr 0\.0001  grad norm 2  memory [\d.]+ [MG]B  2:58 left", second
    ), second


def test_the_speed_is_a_running_mean_with_the_stated_halflife() -> None:
    clock = Clock()
    progress = Progress(10**9, stream=io.StringIO(), clock=clock)
    assert progress.images_per_second == 0
    images = 0
    for _ in range(2_000):
        clock.now += 0.1
        images += 10
        progress.update(images)
    assert progress.images_per_second == pytest.approx(100)
    for _ in range(150):  # 15 seconds
        clock.now += 0.1
        images += 20
        progress.update(images)
    assert progress.images_per_second == pytest.approx(150, rel=0.01)


def test_a_terminal_gets_a_live_display_and_messages_as_they_are() -> None:
    stream, clock = Terminal(), Clock()
    with Progress(1_000, stream=stream, clock=clock) as progress:
        clock.now += 2
        progress.message(progress.measured(500, {"loss": 0.5}))
        progress.message("saved [bold]checkpoint[/bold] " + "x" * 200)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert "saved [bold]checkpoint[/bold] " + "x" * 200 in shown
    assert re.search(r"(?m)^500/1,000 images  250 images/s  loss 0.5  memory", shown), "a line of history above the bar"
    assert "500/1,000 images" in shown and "250 images/s  loss 0.5" in shown and "0:02 left" in shown


def test_a_terminal_that_goes_away_ends_nothing() -> None:
    ours, theirs = pty.openpty()
    with open(theirs, "w", encoding="utf-8") as stream:
        with Progress(1_000, stream=stream) as progress:
            progress.message("starts")
            os.close(ours)
            for _ in range(3):
                progress.message("goes on")
                progress.update(500)
        assert os.path.samestat(os.fstat(theirs), os.stat(os.devnull)), "what is in its buffers is no error at the end"


def test_a_reader_that_goes_away_ends_nothing() -> None:
    ours, theirs = os.pipe()
    with open(theirs, "w", encoding="utf-8") as stream, Progress(1_000, stream=stream) as progress:
        progress.message("starts")
        assert os.read(ours, 100) == b"starts\n"
        os.close(ours)
        progress.message("goes on")


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
def test_a_full_disk_below_the_output_ends_nothing() -> None:
    with open("/dev/full", "w", encoding="utf-8") as stream, open(os.devnull, "wb") as room:
        Progress(1_000, stream=stream).message("goes on")
        os.dup2(room.fileno(), stream.fileno())  # else the end of the test is an error too


@pytest.mark.slow
def test_rich_is_not_imported_without_a_terminal() -> None:
    script = """
import sys
from triptych.engine.progress import Progress
with Progress(10) as progress:
    progress.message(progress.measured(5, {"loss": 1.0}))
assert not [name for name in sys.modules if name.partition(".")[0] == "rich"]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("5/10 images")


@pytest.mark.slow
def test_memory_is_that_of_this_process(tmp_path: Path) -> None:
    # In a process of its own: here, freed memory that malloc has kept would be taken without any growth.
    process = forked(take_memory, files=str(tmp_path / "said"))
    process.join(120)
    assert process.exitcode == 0, (tmp_path / "said.err").read_text()
    assert 200 * 2**20 < int((tmp_path / "said.out").read_text()) < 320 * 2**20


def take_memory() -> None:
    before = memory_bytes()
    reserved = torch.empty(256 * 2**20)  # 1 GiB that is never touched
    held = torch.ones(64 * 2**20)  # 256 MiB
    print(memory_bytes() - before)
    del reserved, held


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.4, "0:59"), (59.6, "1:00"), (754, "12:34"), (5025, "1:23:45"), (183845, "2d 03:04:05")]
)
def test_durations(seconds: float, text: str) -> None:
    assert spelled_seconds(seconds) == text


def test_a_line_is_not_held_back() -> None:
    """Where the output goes to a file, a killed run has its last line there."""
    raw = io.BytesIO()
    with Progress(10, images=0, stream=io.TextIOWrapper(raw, write_through=False)) as progress:
        progress.message("begun")
        assert raw.getvalue() == b"begun\n"


def test_a_task_says_how_far_it_is_ever_more_rarely_and_its_time_is_left_out_of_the_speed() -> None:
    stream, clock, said = io.StringIO(), Clock(), []
    with Progress(10_000, stream=stream, clock=clock) as progress:
        for images in range(100, 1_100, 100):
            clock.now += 1
            progress.update(images)
        with progress.task("samples/000001000.png", said.append) as task:
            for done in range(64):
                clock.now += 2.5
                task.update(done + 1, 64)
        with progress.task("validation at 1000 images", said.append) as task:
            clock.now += 5
            task.update(20, 20)
        clock.now += 1
        progress.update(1_100)
        assert progress.images_per_second == pytest.approx(100)
    assert said == [
        "samples/000001000.png: 4 of 64 images, 2:30 left",
        "samples/000001000.png: 8 of 64 images, 2:20 left",
        "samples/000001000.png: 16 of 64 images, 2:00 left",
        "samples/000001000.png: 32 of 64 images, 1:20 left",
        "samples/000001000.png: 64 of 64 images, 0:00 left",
        "samples/000001000.png: 2:40",
    ]


def test_a_terminal_shows_the_task_below_the_bar() -> None:
    stream, clock = Terminal(), Clock()
    with Progress(1_000, stream=stream, clock=clock) as progress, progress.task("validation", lambda text: None) as task:
        clock.now += 3
        task.update(1.5, 4)
        progress._live.refresh()
        assert "validation: 1.5 of 4 images, 0:05 left" in stream.getvalue()
