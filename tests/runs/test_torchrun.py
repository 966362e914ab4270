"""Several processes that are stopped, and one that fails."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from tests.processes import ROOT, environment, run_torchrun, torchrun
from triptych.runs import open_run

pytestmark = pytest.mark.xdist_group("torchrun")


def test_a_failed_process_ends_all_and_its_error_is_shown(tmp_path):
    started = time.monotonic()
    done = run_torchrun(2, "tests/runs/failing_worker.py", str(tmp_path / "run"))
    assert done.returncode != 0
    assert "RunError: this process came to grief" in done.stderr
    assert time.monotonic() - started < 100


def test_sigterm_to_torchrun_saves_and_the_same_command_goes_on(tmp_path):
    flags = ["--model.network.num-channels", "32", "--data.image-size", "8", "--model.network.attention-resolutions", "4"]
    flags += ["--train.sample-count", "0", "--train.validate-images", "0", "--data.workers", "0", "--device", "cpu"]

    def command(total_images: int) -> list[str]:
        train = ["triptych", "train", "adm-digits", "--run", str(tmp_path / "run"), *flags, "--train.total-images", str(total_images)]
        return torchrun(2, "-m", "--", *train)

    with subprocess.Popen(command(10**8), cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "training images" in line:
                break
        time.sleep(2)
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        process.wait(60)
    assert "stopped by" in rest, rest[-2000:]
    (images,) = open_run(tmp_path / "run").checkpoints()
    assert images > 0
    done = subprocess.run(command(images + 128), cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"goes on at {images} images" in done.stderr
    assert open_run(tmp_path / "run").checkpoints()[-1] == images + 128
