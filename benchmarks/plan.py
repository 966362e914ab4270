"""How near a plan comes: memory and time of `triptych plan` beside those of the training that it is of.

    .venv/bin/python benchmarks/plan.py --data DIR [--cases adm-digits,glow-mnist] [--steps 200] [--rounds 3] --out FILE.md

DIR holds mnist/ (the four idx files), camvid/ (train and val, each with images and labels) and photos/ (a folder of images); a case whose
data is missing is left out and named. In each round a plan is made, and then the training takes so many steps in a process of its own,
without grids and validations: its peak of memory is that of the process, its time that between lines of its metrics, the first fifth left
out. Goals: memory within 10 %, time within 15 %. The exit code is 1 when one is missed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from machine import machine

from triptych.engine.metric_log import read_metrics

MEMORY, TIME = 0.10, 0.15
RUN = """
import json, os, sys
from triptych.core.memory import peak_memory
from triptych.cli.main import main
code = main(["train", *sys.argv[1:]])
print(json.dumps(peak_memory()))
sys.exit(code)
"""
QUIET = ["--train.sample-count", "0", "--train.validate-images", "0", "--log.no-report"]


@dataclass(frozen=True)
class Case:
    """A recipe, where its data lies, and its microbatch."""

    recipe: str
    data: str | None
    batch: int
    microbatch: int | None = None

    @property
    def name(self) -> str:
        return self.recipe if self.microbatch is None else f"{self.recipe}, microbatch {self.microbatch}"


CASES = (
    Case("adm-digits", None, 64),
    Case("glow-mnist", "mnist", 64),
    Case("spade-camvid", "camvid", 6),
    Case("adm-photos64", "photos", 8, 2),
    Case("adm-photos64", "photos", 8, 4),
)


def settings_of(case: Case, data: Path) -> list[str]:
    """The flags of the case, for both commands."""
    flags = ["--device", "cpu", "--train.batch-size", str(case.batch)]
    flags += [] if case.microbatch is None else ["--train.microbatch", str(case.microbatch)]
    return flags + ([] if case.data is None else ["--data.path", str(data / case.data)])


def planned(case: Case, data: Path, seconds: float) -> tuple[float, float]:
    """Bytes at the peak and seconds of a step, as the plan has them."""
    command = [sys.executable, "-m", "triptych", "plan", case.recipe, "--json", "--seconds", str(seconds), *settings_of(case, data)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found["memory_bytes"], found["images_per_step"] / found["images_per_second"]


def trained(case: Case, data: Path, steps: int) -> tuple[float, float]:
    """The same of a training of so many steps."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        lines = ["--train.total-images", str(steps * case.batch), "--log.every", str(max(1, steps // 20) * case.batch)]
        command = [sys.executable, "-c", RUN, case.recipe, "--run", str(run), *lines, *QUIET, *settings_of(case, data)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        marks = [(line["images"], line["time"]) for line in read_metrics(run / "metrics.jsonl") if "time" in line]
    (first, began), (last, ended) = marks[len(marks) // 5], marks[-1]
    return float(json.loads(done.stdout.splitlines()[-1])), (ended - began) / (last - first) * case.batch


def measured(case: Case, data: Path, *, steps: int, rounds: int, seconds: float) -> tuple[list[float], list[float]]:
    """Medians of the plan's memory and time, and of the training's, taken in turns."""
    plans, runs = [], []
    for _ in range(rounds):
        plans.append(planned(case, data, seconds))
        runs.append(trained(case, data, steps))
        print(f"{case.name}: plan {plans[-1]}, training {runs[-1]}", file=sys.stderr, flush=True)
    return [statistics.median(values) for values in zip(*plans, strict=True)], [
        statistics.median(values) for values in zip(*runs, strict=True)
    ]


def rows(cases: list[Case], data: Path, *, steps: int, rounds: int, seconds: float) -> Iterator[tuple[str, bool]]:
    """The lines of the table, and whether each keeps the goals."""
    for case in cases:
        if case.data is not None and not (data / case.data).exists():
            yield f"| {case.name} | no {data / case.data} | | | | | |", True
            continue
        (memory, taken), (real_memory, real) = measured(case, data, steps=steps, rounds=rounds, seconds=seconds)
        off_memory, off_time = memory / real_memory - 1, taken / real - 1
        figures = [f"{memory / 1e6:,.0f} MB", f"{real_memory / 1e6:,.0f} MB", f"{100 * off_memory:+.1f} %"]
        figures += [f"{steps * taken:.1f} s", f"{steps * real:.1f} s", f"{100 * off_time:+.1f} %"]
        yield f"| {' | '.join([case.name, *figures])} |", abs(off_memory) <= MEMORY and abs(off_time) <= TIME


def main() -> int:
    """Measures, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cases")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="of iterations of a plan at each size")
    parser.add_argument("--note", default="", help="a line about the machine at that time")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    cases = [case for case in CASES if given.cases is None or case.recipe in given.cases.split(",")]
    table = list(rows(cases, given.data, steps=given.steps, rounds=given.rounds, seconds=given.seconds))
    head = [
        f"# How near a plan comes, {datetime.date.today()}",
        "",
        f"{machine()}; OMP_NUM_THREADS {os.environ.get('OMP_NUM_THREADS', 'not set')}. {given.note}",
        "",
        f"`benchmarks/plan.py`: medians of {given.rounds} rounds, plan and training in turns; time of {given.steps} steps.",
        "",
        "| recipe | memory, planned | trained | off | time, planned | trained | off |",
        "|---|---|---|---|---|---|---|",
    ]
    given.out.write_text("\n".join([*head, *(line for line, _ in table), ""]))
    return 0 if all(kept for _, kept in table) else 1


if __name__ == "__main__":
    sys.exit(main())
