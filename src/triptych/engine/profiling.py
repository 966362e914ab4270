"""A profile of some training steps: a Chrome trace and a table of operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from triptych.core.files import explained, write_text

WARMUP_STEPS = 3
_ROWS = 60


class Profiler:
    """Records `steps` steps after WARMUP_STEPS and writes trace.json and table.txt into `folder`; 0 steps: does nothing.

    A context manager; call `step` at the end of every step. A run that ends early writes what was recorded until then.
    """

    def __init__(self, folder: Path, *, steps: int) -> None:
        self._folder, self._left = folder, WARMUP_STEPS + steps
        self._profile: Any = None

    def __enter__(self) -> Profiler:
        if self._left > WARMUP_STEPS:
            from torch.profiler import ProfilerActivity, profile, schedule

            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
            # The last warm-up step runs under the profiler, whose own start is slow.
            plan = schedule(wait=WARMUP_STEPS - 1, warmup=1, active=self._left - WARMUP_STEPS, repeat=1)
            self._profile = profile(activities=activities, schedule=plan, on_trace_ready=self._write)
            self._profile.start()
        return self

    def step(self) -> None:
        """Notes that a step ended."""
        if self._profile is None:
            return
        self._left -= 1
        if self._left > 0:
            self._profile.step()
        else:
            self.__exit__()

    def __exit__(self, *exception: object) -> None:
        if self._profile is not None:
            self._profile.stop()
            self._profile = None

    def _write(self, recorded: Any) -> None:
        order = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        with explained(f"write the profile in {self._folder}"):
            self._folder.mkdir(parents=True, exist_ok=True)
            recorded.export_chrome_trace(str(self._folder / "trace.json"))
            table = recorded.key_averages().table(sort_by=order, row_limit=_ROWS, max_name_column_width=80)
            write_text(self._folder / "table.txt", table + "\n")
