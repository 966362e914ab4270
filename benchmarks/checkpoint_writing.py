"""How long a training stands still for a checkpoint, and whether kills while one is written in the background lose anything.

    python benchmarks/checkpoint_writing.py --kills 50 --out FILE.md

- The network of adm-imagenet256 narrowed, in one process, in two (DDP), and divided between two: the seconds in which no step is taken for
  a save, under `train.checkpoint_writing` wait and background, and the seconds until the latter is on the disk. Medians of five saves,
  after a first one.
- A toy of the tests with wide layers, in one process, in two and divided between two, is killed (SIGKILL; one process, or all) at a random
  moment within the time that a checkpoint takes to be written in the background, goes on from what it left, and is compared with one that
  was left alone.

Exit code 1 where the background takes more than a tenth, or an end differs by a bit.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from machine import machine
from sharding import made, narrowed

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.engine.background_worker import EVERY, train, train_killed
from tests.engine.test_checkpointer import content
from tests.processes import run_together

from triptych.engine.distributed import open_world
from triptych.engine.run_directory import RunDirectory, list_checkpoints

WAYS = {"one process": (1, "none"), "2 processes (DDP)": (2, "none"), "divided between 2": (2, "full")}
SAVES, LARGEST_SHARE, WIDTH = 5, 0.1, 40_000


def timed(folder: Path, shard: str, writing: str) -> None:
    """Writes the seconds of each save, those until it is on the disk, and the bytes of a checkpoint."""
    world = open_world("cpu")
    config, spec = narrowed()
    changes = {"shard": shard, "batch_size": 4, "ema_rates": (0.9999,), "checkpoint_writing": writing, "keep_last": 1}
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, **changes))
    run = RunDirectory(folder / "run")
    if world.is_main:
        run.create()
        run.write_config({})
    world.barrier()
    loop, iterations = made(config, spec, world, run)
    still, until = [], []
    for _ in range(SAVES + 1):
        next(iterations)
        world.barrier()
        began = time.perf_counter()
        loop.save()
        still.append(time.perf_counter() - began)
        loop.checkpointer.finish()
        until.append(time.perf_counter() - began)
    if world.is_main:
        size = sum(path.stat().st_size for path in run.checkpoints.rglob("*") if path.is_file())
        (folder / "told.json").write_text(json.dumps({"still": still, "until": until, "bytes": size}))


def standstill(lines: list[str]) -> bool:
    """Adds the table of times; whether a share is too large."""
    lines += [
        "| | checkpoint, MiB | wait: s | background: s | share | the first one: s | on the disk after, s |",
        "|---|---|---|---|---|---|---|",
    ]
    missed = False
    for way, (processes, shard) in WAYS.items():
        told = {}
        for writing in ("wait", "background"):
            with tempfile.TemporaryDirectory() as folder:
                run_together(processes, timed, Path(folder), shard, writing, timeout_seconds=1800)
                told[writing] = json.loads((Path(folder) / "told.json").read_text())
        waiting, still, until = (
            statistics.median(told[w][k][1:]) for w, k in (("wait", "still"), ("background", "still"), ("background", "until"))
        )
        missed |= still > LARGEST_SHARE * waiting
        cells = [way, f"{told['wait']['bytes'] / 2**20:.0f}", f"{waiting:.2f}", f"{still:.3f}", f"{still / waiting:.3f}"]
        first = told["background"]["still"][0]
        lines.append(f"| {' | '.join([*cells, f'{first:.3f}', f'{until:.2f}'])} |")
        print(lines[-1], file=sys.stderr)
    return missed


def killed(lines: list[str], kills: int) -> bool:
    """Adds the table of kills; whether an end differs."""
    lines += [
        "| | killed | kills | within the writing | the one before was used | the same at the end, to the bit |",
        "|---|---|---|---|---|---|",
    ]
    kinds = [
        (way, ranks) for way, (size, _) in WAYS.items() for ranks in ([(0,)] if size == 1 else [(0,), (size - 1,), tuple(range(size))])
    ]
    same_in_all = 0
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        for place, (way, ranks) in enumerate(kinds):
            processes, shard = WAYS[way]
            changes = {"shard": shard, "width": WIDTH}
            unbroken = scratch / f"unbroken-{processes}-{shard}"
            if not unbroken.exists():
                run_together(processes, train, unbroken, changes)
            expected, count = content(unbroken), (kills + place) // len(kinds)
            within = before = same = 0
            for seed in range(count):
                run = scratch / "broken"
                codes = [-9 if rank in ranks else 1 for rank in range(processes)]
                run_together(processes, train_killed, run, changes, ranks, 2 + seed % 2, seed, 0.15, codes=codes)
                within += any(path.name.startswith(".tmp-") for path in (run / "checkpoints").iterdir())
                before += list_checkpoints(run / "checkpoints")[-1] == (1 + seed % 2) * EVERY
                run_together(processes, train, run, changes)
                same += content(run) == expected
                shutil.rmtree(run)
            same_in_all += same
            which = "all" if len(ranks) == processes else f"process {ranks[0]}"
            lines.append(f"| {way} | {which} | {count} | {within} | {before} | {same} |")
            print(lines[-1], file=sys.stderr)
    lines += ["", f"{same_in_all} of {kills} ended with the same weights, averages, optimizer and state, to the bit."]
    return same_in_all != kills


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--out", type=Path, help="write the report to this file too")
    options = parser.parse_args()
    lines = [f"# Checkpoints written in the background, {datetime.datetime.now(datetime.UTC).date()}", "", machine(), ""]
    missed = standstill(lines)
    lines.append("")
    missed |= killed(lines, options.kills)
    report = "\n".join(lines) + "\n"
    print(report)
    if options.out is not None:
        options.out.write_text(report, encoding="utf-8")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
