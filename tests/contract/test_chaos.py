"""Runs of each family that meet faults end like runs that are left alone: a few of those that benchmarks/chaos.py puts to them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.processes import ROOT, forked


def short(*arguments: str) -> int:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import chaos

    return chaos.main(list(arguments))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="faults of a disk, and processes that lost their parent, as Linux has them")
def test_runs_that_meet_faults_end_like_those_that_are_left_alone(tmp_path: Path) -> None:
    trials = ["--trials", "diffusion-1", "flow-1", "gan-1"]
    process = forked(short, "--faults", "12", "--lanes", "1", *trials, files=str(tmp_path / "says"))
    process.join(580)
    said = (tmp_path / "says.out").read_text() + (tmp_path / "says.err").read_text()
    assert process.exitcode == 0, said[-5000:]
    assert "| faults | 12 |" in said
