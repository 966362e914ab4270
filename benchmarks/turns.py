"""Variants of a training step measured in turns, each time in a new process, and the report of how they compare."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from machine import machine

from triptych.engine.loop import Loop
from triptych.recipes.config import RunConfig
from triptych.runs import train


@dataclass(frozen=True)
class Comparison:
    """What is compared, with what, and what is wanted."""

    title: str
    setting: str
    "What is measured, up to the number of cores."
    variants: Mapping[str, str]
    "What `--child` takes, and how the report calls it; the first is what the others are compared with."
    targets: Mapping[str, float]
    "The least times the first variant's images/s."
    times: str
    "Heading of the column of these."


def compare(script: str, comparison: Comparison, *, rounds: int, steps: int, batch_size: int, out: Path | None) -> int:
    """Prints the report, and writes it to `out`; 0, or 1 when a target is missed.

    A child is the script with the flags of this process and --child VARIANT; it prints {"seconds": of a step, "bytes": peak} last, and
    where programs do different work also "work": the FLOPs that an image needs. All import triptych; large pages of memory are for its own.
    """
    names = list(comparison.variants)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for turn in range(rounds):
        for k in range(len(names)):
            name = names[(k + turn) % len(names)]
            command = [sys.executable, script, *sys.argv[1:], "--child", name]
            pages = os.environ | {"THP_MEM_ALLOC_ENABLE": "1" if name.startswith("triptych") else "0"}
            done = subprocess.run(command, env=pages, capture_output=True, text=True, check=True)
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
            print(name, found[name][-1], flush=True)
    seconds = {name: statistics.median(part["seconds"] for part in parts) for name, parts in found.items()}
    gigabytes = {name: max(part["bytes"] for part in parts) / 1e9 for name, parts in found.items()}
    ratios = {name: seconds[names[0]] / seconds[name] for name in names}
    missed = [name for name, wanted in comparison.targets.items() if ratios[name] < wanted]
    rows = [
        f"| {called} | {1000 * seconds[name]:.0f} | {batch_size / seconds[name]:.2f} | {ratios[name]:.2f} | {gigabytes[name]:.2f} |"
        for name, called in comparison.variants.items()
    ]
    heads = ["program", "ms a step", "images/s", comparison.times, "peak memory, GB"]
    if all("work" in found[name][0] for name in names):
        heads += ["GFLOP an image", "GFLOP/s"]
        needed = {name: found[name][0]["work"] / 1e9 for name in names}
        rows = [
            f"{row} {needed[name]:.1f} | {needed[name] * batch_size / seconds[name]:.0f} |" for name, row in zip(names, rows, strict=True)
        ]
    report = [
        f"# {comparison.title}, {datetime.date.today().isoformat()}",
        "",
        f"{comparison.setting}, batch {batch_size}, CPU; medians of {rounds} processes of {steps - 1} steps each, in turns.",
        machine(),
        "",
        f"| {' | '.join(heads)} |",
        f"|{'---|' * len(heads)}",
        *rows,
        "",
        f"Targets: {', '.join(f'{name} {wanted}' for name, wanted in comparison.targets.items())}. "
        + (f"MISSED: {', '.join(missed)}." if missed else "Reached."),
    ]
    text = "\n".join(report)
    print(text)
    if out:
        out.write_text(text + "\n", encoding="utf-8")
    return 1 if missed else 0


def loop_times(config: RunConfig, folder: Path, clock: Callable[[], float]) -> list[float]:
    """Seconds of each iteration but the first of a training in `folder`."""
    moments: list[float] = []
    iteration = Loop._iteration

    def timed(self: Loop, batches: Any) -> None:
        iteration(self, batches)
        moments.append(clock())

    with patch.object(Loop, "_iteration", timed):
        train(config, folder / "run", device="cpu")
    return [after - before for before, after in itertools.pairwise(moments)]
