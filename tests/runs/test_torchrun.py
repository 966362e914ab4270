"""Several processes: one fails, is killed or stopped; torchrun is stopped or killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.interop.networks import DIFFUSION, diffusion_weights
from tests.processes import ROOT, environment, run_together, torchrun
from tests.runs import failing_worker
from triptych.cli.main import main
from triptych.interop.flags import command_line
from triptych.runs import open_run

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("torchrun")]


FLAGS = ["--model.network.num-channels", "32", "--data.image-size", "8", "--model.network.attention-resolutions", "4"]
FLAGS += ["--train.sample-count", "0", "--train.validate-images", "0", "--device", "cpu"]


def members(run: Path) -> dict[int, int]:
    """The processes that train in `run` and their loader workers, by number; each with its rank."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(run).encode() in (process / "cmdline").read_bytes():
                words = (process / "environ").read_bytes().split(b"\0")
                found |= {int(process.name): int(word.removeprefix(b"RANK=")) for word in words if word.startswith(b"RANK=")}
        except OSError:
            continue  # it has ended
    return found


def leader(run: Path, rank: int) -> int:
    """The process of that rank, not one of its loader workers, which it started later."""
    return min(process for process, its in members(run).items() if its == rank)


def wait_until(happened: Callable[[], object], what: str, *, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, what
        time.sleep(0.1)


def log_of(run: Path) -> str:
    return (run / "log.txt").read_text() if (run / "log.txt").exists() else ""


def test_a_failed_process_ends_all_and_each_says_why_in_one_line(tmp_path):
    flags = [*FLAGS, "--data.workers", "0", "--train.total-images", str(10**8)]
    said = run_together(2, failing_worker.main, ["train", "adm-digits", "--run", str(tmp_path / "run"), *flags], codes=[1, 2])
    lines = [[line for line in part.stderr.splitlines() if line.startswith("triptych: error: ")] for part in said]
    ((first,), (second,)) = lines
    assert re.search(r"rank 1 \(process \d+ on .*\) failed: photos/7.png cannot be decoded$", first)
    assert second == "triptych: error: photos/7.png cannot be decoded"
    assert not any(word in part.stderr for part in said for word in ("gloo", "Traceback"))
    assert re.search(r"failed at \d+ images: rank 1 .* failed: photos/7.png cannot be decoded\n", log_of(tmp_path / "run"))


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_killed_and_stopped_processes(tmp_path):
    run = tmp_path / "run"
    flags = [*FLAGS, "--data.workers", "1", "--train.checkpoint-every", "256", "--train.total-images", str(10**8)]
    train = ["triptych", "train", "adm-digits", "--run", str(run), *flags, "--train.timeout-minutes", "0.1"]
    command = torchrun(2, "-m", "--", *train)
    command.insert(command.index("--standalone"), "--max-restarts=2")
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            # A rank is killed: torchrun starts all anew, and they go on from the newest checkpoint.
            wait_until(lambda: open_run(run).checkpoints() if (run / "config.json").exists() else [], "no checkpoint")
            os.kill(leader(run, 1), signal.SIGKILL)
            wait_until(lambda: " goes on at " in log_of(run), "it does not go on", seconds=60)
            assert re.search(r"failed at \d+ images: rank 1 \(process \d+ on .*\) gives no sign of life: it was killed", log_of(run))
            first = max(open_run(run).checkpoints())
            wait_until(lambda: max(open_run(run).checkpoints()) > first, "it takes no step")
            # A rank is stopped: the others name it.
            everyone = members(run)
            assert len(everyone) == 4
            os.kill(leader(run, 1), signal.SIGSTOP)
            pattern = r"failed at \d+ images: rank 1 \(process \d+ on .*\) .*no sign of life"
            wait_until(lambda: len(re.findall(pattern, log_of(run))) == 2, "the stopped process is not named", seconds=60)
        finally:
            # torchrun is killed: nobody is left, not even the one that is stopped, nor loader workers.
            everyone = members(run)
            process.kill()
        wait_until(lambda: not members(run), f"{everyone} are left", seconds=10)


def test_sigterm_to_torchrun_saves_and_the_same_command_goes_on(tmp_path):
    """With torchrun as the README has it; of two processes the first alone speaks, when they sample too."""
    flags = [*FLAGS, "--model.sampling.steps", "2", "--data.workers", "0", "--log.every", "1"]

    def command(total_images: int) -> list[str]:
        return ["train", "adm-digits", "--run", str(tmp_path / "run"), *flags, "--train.total-images", str(total_images)]

    launcher = [str(Path(sys.executable).with_name("torchrun")), *torchrun(2, "-m", "--", "triptych", *command(10**8))[3:]]
    with subprocess.Popen(launcher, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if " images/s " in line:
                break
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        process.wait(60)
    assert "stopped by" in rest, rest[-2000:]
    (images,) = open_run(tmp_path / "run").checkpoints()
    assert images > 0
    said = run_together(2, main, command(images + 128))
    assert f"goes on at {images} images" in said[0].stderr
    assert ["draw from it" in part.stdout for part in said] == [True, False]
    assert open_run(tmp_path / "run").checkpoints()[-1] == images + 128
    out = tmp_path / "samples.npz"
    drawn = run_together(2, main, ["sample", str(tmp_path / "run"), "--count", "5", "--device", "cpu", "--out", str(out)])
    assert [part.stdout for part in drawn] == [f"5 images in {out}\n", ""]
    with np.load(out) as arrays:
        assert arrays["arr_0"].shape == (5, 8, 8, 1)


def test_processes_import_the_weights_of_a_command_line_once(tmp_path):
    torch.save(diffusion_weights(classes=10), tmp_path / "net.pt")
    words = command_line(DIFFUSION | {"timestep_respacing": "2", "num_samples": 4})
    files = ["--model_path", str(tmp_path / "net.pt"), "--out", str(tmp_path / "o.npz")]
    main_process, other = run_together(2, main, ["guided-diffusion", "image_sample", *words.split(), *files])
    assert not other.stdout
    assert [line.split()[:2] for line in main_process.stdout.splitlines() if line.startswith("triptych ")] == [
        ["triptych", "import"],
        ["triptych", "sample"],
    ]
    with np.load(tmp_path / "o.npz") as file:
        assert file["arr_0"].shape == (4, 16, 16, 3)
