"""Seconds until commands have answered: the median of ten processes each, in turns with those of `import torch`.

    .venv/bin/python benchmarks/startup.py --out FILE.md

Bounds: 0.3 s for the help and for a run that does not exist, 0.5 s for the recipes; 1.3 times `import torch` for the settings of a
recipe, and for those of a run's sampler, which is opened for them. Of processor time the same, where other programs take part of the
machine (--processor-time). The exit code is 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from machine import machine

from triptych.recipes.diffusion import adm_digits
from triptych.runs import train

PROCESSES = 10
TORCH = "import torch"
BOUNDS: dict[str, float | None] = {
    "--help": 0.3,
    "recipes": 0.5,
    "sample none": 0.3,
    "train adm-digits --help": None,
    "sample run --help": None,
}
"Seconds, or None: so many times `import torch` as is next."
TIMES_TORCH = 1.3


def seconds(command: list[str], folder: Path, *, processor: bool) -> float:
    """The time of one process: on the wall, or of the processor."""
    before, started = os.times(), time.perf_counter()
    subprocess.run(command, cwd=folder, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after, elapsed = os.times(), time.perf_counter() - started
    return after.children_user + after.children_system - before.children_user - before.children_system if processor else elapsed


def make_run(folder: Path) -> None:
    """A run of adm-digits after one step."""
    recipe = adm_digits()
    settings = replace(recipe.train, total_images=recipe.train.batch_size, sample_count=0, validate_images=0)
    train(replace(recipe, train=settings), folder / "run", device="cpu")


def main() -> int:
    """Prints a line for each command; 1 when one is slower than its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processor-time", action="store_true", help="count what the processes computed, not the time on the wall")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    commands = {TORCH: [sys.executable, "-c", TORCH]}
    commands |= {name: [sys.executable, "-m", "triptych", *name.split()] for name in BOUNDS}
    with tempfile.TemporaryDirectory() as scratch:
        make_run(Path(scratch))
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(PROCESSES):
            for name, command in commands.items():
                times[name].append(seconds(command, Path(scratch), processor=options.processor_time))
    torch_seconds, missed = statistics.median(times[TORCH]), False
    counted = "processor time" if options.processor_time else "time on the wall"
    lines = [
        f"# Start-up, {datetime.date.today().isoformat()}",
        "",
        f"{machine()}; {counted}, medians of {PROCESSES} processes in turns.",
        "",
    ]
    lines += ["| command | median, s | range, s | bound, s | |", "|---|---|---|---|---|"]
    for name, found in times.items():
        median, bound = statistics.median(found), BOUNDS.get(name) or TIMES_TORCH * torch_seconds
        late = name != TORCH and median > bound
        missed |= late
        what, limit = (f"`{TORCH}`", "") if name == TORCH else (f"`triptych {name}`", f"{bound:.2f}")
        lines.append(f"| {what} | {median:.3f} | {min(found):.3f} to {max(found):.3f} | {limit} | {'MISSED' if late else ''} |")
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
