from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from triptych.core.errors import CheckpointError
from triptych.engine.profiling import Profiler

WARMUP_STEPS = 3  # as the setting profile_steps says


def train(profiler: Profiler, steps: int) -> None:
    a = torch.randn(16, 16)
    with profiler:
        for _ in range(steps):
            a = torch.tanh(a @ a)
            profiler.step()


def count(trace: Path, name: str) -> int:
    return sum(event.get("name") == name for event in json.loads(trace.read_text())["traceEvents"])


def test_records_the_asked_steps_after_the_warm_up(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path / "profile", steps=4)
    train(profiler, WARMUP_STEPS + 4)
    assert count(tmp_path / "profile" / "trace.json", "aten::tanh") == 4
    assert "aten::mm" in (tmp_path / "profile" / "table.txt").read_text()


def test_what_comes_after_is_not_recorded(tmp_path: Path) -> None:
    train(Profiler(tmp_path, steps=2), 20)
    assert count(tmp_path / "trace.json", "aten::tanh") == 2


def test_a_run_that_ends_early_still_writes(tmp_path: Path) -> None:
    train(Profiler(tmp_path, steps=50), WARMUP_STEPS + 2)
    assert count(tmp_path / "trace.json", "aten::tanh") == 2


def test_the_table_is_sorted_by_own_time(tmp_path: Path) -> None:
    train(Profiler(tmp_path, steps=3), WARMUP_STEPS + 3)
    lines = (tmp_path / "table.txt").read_text().splitlines()
    column = next(line for line in lines if "Self CPU %" in line)
    end = column.index("Self CPU %") + len("Self CPU %")
    shares = [float(line[:end].split()[-1].rstrip("%")) for line in lines if line.count("%") >= 2 and "Self CPU" not in line]
    assert len(shares) > 2 and shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("steps", [0, WARMUP_STEPS - 1])
def test_nothing_is_written_when_off_or_in_a_run_too_short(tmp_path: Path, steps: int) -> None:
    profiler = Profiler(tmp_path / "profile", steps=0 if steps == 0 else 5)
    train(profiler, max(steps, 1))
    assert not (tmp_path / "profile").exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "profile").touch()
    with pytest.raises(CheckpointError, match="cannot write the profile"):
        train(Profiler(tmp_path / "profile", steps=1), WARMUP_STEPS + 1)
