"""Runs of each family that meet faults end like runs that are left alone: a few of those that benchmarks/chaos.py puts to them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.processes import ROOT


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="faults of a disk, and processes that lost their parent, as Linux has them")
def test_runs_that_meet_faults_end_like_those_that_are_left_alone() -> None:
    command = [sys.executable, "benchmarks/chaos.py", "--faults", "12", "--lanes", "1", "--trials", "diffusion-1", "flow-1", "gan-1"]
    # It forks, which a process with threads cannot.
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    assert "| faults | 12 |" in done.stdout
