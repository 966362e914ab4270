"""Several processes that are stopped, and one that fails."""

from __future__ import annotations

import signal
import subprocess
import time

import numpy as np
import pytest
import torch

from tests.interop.networks import DIFFUSION, diffusion_weights
from tests.processes import ROOT, environment, run_torchrun, torchrun
from triptych.interop.flags import command_line
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


def test_processes_import_the_weights_of_a_command_line_once(tmp_path):
    torch.save(diffusion_weights(classes=10), tmp_path / "net.pt")
    words = command_line(DIFFUSION | {"timestep_respacing": "2", "num_samples": 4})
    command = torchrun(
        2, "-m", "--", "triptych", "guided-diffusion", "image_sample", *words.split(), "--model_path", "net.pt", "--out", "o.npz"
    )
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [line.split()[:2] for line in done.stdout.splitlines() if line.startswith("triptych ")] == [
        ["triptych", "import"],
        ["triptych", "sample"],
    ]
    with np.load(tmp_path / "o.npz") as file:
        assert file["arr_0"].shape == (4, 16, 16, 3)
