"""Whether a run that is killed again and again ends with the same bytes as one that is left alone.

    python benchmarks/kill_and_resume.py --kills 20 --out FILE.md

Trains a small run unbroken by the true command line (`triptych train`, float32, CPU, one process). Then trains it again, kills it
with SIGKILL, gives the same command again, and so on: half of the kills at random moments of the process's life (start-up included),
half while a checkpoint is written or an old one removed, each time as soon as another of its files has appeared. Should the run reach
its end before all kills were made, it is compared, and another one takes the rest. Exit code 1 when a file of weights, averages or
optimizer differs in a single byte.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

RECIPE = "adm-digits"
IMAGES, BATCH, CHECKPOINT_EVERY = 3_072, 16, 64
# The recipe made smaller in length and width only: its dropout, losses, optimizer and augmentation stay.
SETTINGS = {
    "train.total-images": IMAGES,
    "train.batch-size": BATCH,
    "train.checkpoint-every": CHECKPOINT_EVERY,
    "train.precision": "float32",
    "train.sample-count": 4,
    "model.network.num-channels": 32,
    "model.network.num-res-blocks": 1,
    "log.every": 256,
}
FOLDER, REMOVAL = "the unfinished checkpoint's folder", "the removal of an old checkpoint"
AIMS = (FOLDER, "model.safetensors", "optimizer.safetensors", "ema-0.999.safetensors", "state.json", REMOVAL)


@dataclass
class Kill:
    """One SIGKILL and what it met."""

    where: str
    seconds: float
    "Since the process was started."
    newest: int
    "Images seen by the newest checkpoint that it left; 0: none."
    leftovers: list[str]
    "Unfinished folders that this process left, not one before it."


def command(run: Path) -> list[str]:
    """The command that starts the run, and that goes on with it."""
    program = Path(sys.executable).with_name("triptych")
    settings = [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]
    return [str(program), "train", RECIPE, "--run", str(run), "--device", "cpu", *settings]


def start(run: Path) -> subprocess.Popen[bytes]:
    """The run's process, its output appended to a file beside the run."""
    with run.with_suffix(".out").open("ab") as output:
        return subprocess.Popen(command(run), stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def finish(run: Path) -> tuple[float, float]:
    """Seconds until the run's first checkpoint and until it ended by itself; stops the script when it failed."""
    began = time.perf_counter()
    process = start(run)
    while process.poll() is None and not finished(run):
        time.sleep(0.01)
    first = time.perf_counter() - began
    require_success(run, process.wait())
    return first, time.perf_counter() - began


def require_success(run: Path, code: int) -> None:
    """Stops the script with the end of the run's output unless it succeeded."""
    if code:
        raise SystemExit(f"`{' '.join(command(run))}` ended with code {code}:\n{run.with_suffix('.out').read_text()[-2000:]}")


def unfinished(run: Path) -> list[Path]:
    """Temporary folders of the run's checkpoints."""
    folder = run / "checkpoints"
    return [path for path in folder.iterdir() if path.name.startswith(".")] if folder.is_dir() else []


def finished(run: Path) -> list[Path]:
    """The run's complete checkpoints, oldest first."""
    folder = run / "checkpoints"
    return sorted(path for path in folder.iterdir() if path.name.isdecimal()) if folder.is_dir() else []


def kill_once(run: Path, chance: random.Random, *, aim: str | None, longest: float) -> Kill | None:
    """Starts the run and kills it, at a random moment or when the file `aim` of a checkpoint is there; None when it ended first."""
    before = {path.name for path in unfinished(run)}
    process = start(run)
    began = time.perf_counter()
    if aim is None:
        until = began + chance.uniform(0, longest)
        while process.poll() is None and time.perf_counter() < until:
            time.sleep(0.002)
    else:
        # Not always the first checkpoint that comes, or the run would never get further than one at a start.
        wait_for(aim, run, process, skip=chance.randrange(3))
    process.kill()
    seconds = time.perf_counter() - began
    code = process.wait()
    if code != -9:
        require_success(run, code)
        return None
    newest = max((int(path.name) for path in finished(run)), default=0)
    return Kill(aim or "a random moment", seconds, newest, [describe(path) for path in unfinished(run) if path.name not in before])


def wait_for(aim: str, run: Path, process: subprocess.Popen[bytes], *, skip: int) -> None:
    """Returns when the process has begun a checkpoint's file `aim` (or a removal), after `skip` checkpoints, or when it has ended."""
    seen = {path.name for path in unfinished(run)}
    while process.poll() is None:
        for path in unfinished(run):
            if path.name in seen or path.name.endswith("-removed") != (aim == REMOVAL):
                continue
            if aim in (FOLDER, REMOVAL) or (path / aim).exists():
                seen.add(path.name)
                skip -= 1
        if skip < 0:
            return
        time.sleep(0.0001)


def describe(folder: Path) -> str:
    """An unfinished folder: its kind and what is in it."""
    kind = re.sub(r"\d{4,}", "N", folder.name).removesuffix("-")
    return f"{kind} ({', '.join(sorted(path.name for path in folder.iterdir())) or 'empty'})"


def digests(run: Path) -> dict[str, str]:
    """SHA-256 of every tensor file of the last checkpoint."""
    last = finished(run)[-1]
    return {f"{last.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(last.glob("*.safetensors"))}


def torture(folder: Path, expected: dict[str, str], *, count: int, seed: int, longest: float) -> tuple[list[Kill], list[bool]]:
    """All kills, and for each run that reached its end whether it ended with the expected bytes."""
    chance = random.Random(seed)
    kills: list[Kill] = []
    same: list[bool] = []
    while len(kills) < count:
        run = folder / f"broken-{len(same)}"
        ended = False
        while len(kills) < count and not ended:
            kill = kill_once(run, chance, aim=AIMS[len(kills) // 2 % len(AIMS)] if len(kills) % 2 else None, longest=longest)
            ended = kill is None
            if kill is not None:
                kills.append(kill)
                print(f"kill {len(kills)}: {kill.where}, after {kill.seconds:.1f} s, left {kill.leftovers or 'nothing'}", file=sys.stderr)
        if not ended:
            finish(run)
        same.append(digests(run) == expected)
        shutil.rmtree(run)
    return kills, same


def main() -> int:
    """0, or 1 when a run ended with other bytes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        first, whole = finish(folder / "unbroken")
        expected = digests(folder / "unbroken")
        assert {name.rpartition("/")[2].partition("-")[0].partition(".")[0] for name in expected} == {"model", "ema", "optimizer"}, expected
        print(f"unbroken: {whole:.1f} s, {len(expected)} files", file=sys.stderr)
        # Late enough to meet every part of a start, early enough that one run takes all kills.
        longest = first + 2 * (whole - first) / options.kills
        kills, same = torture(folder, expected, count=options.kills, seed=options.seed, longest=longest)
    text = report(kills, same, expected, whole)
    print(text)
    if options.out:
        options.out.write_text(text)
    return 0 if all(same) else 1


def report(kills: list[Kill], same: list[bool], expected: dict[str, str], whole: float) -> str:
    """The result as markdown."""
    inside = sum(any("-removed" not in left for left in kill.leftovers) for kill in kills)
    lines = [
        f"# Killed and resumed, {datetime.date.today().isoformat()}",
        "",
        f"`triptych train {RECIPE} {' '.join(f'--{name} {value}' for name, value in SETTINGS.items())}`: unbroken {whole:.0f} s, "
        f"{IMAGES // CHECKPOINT_EVERY} checkpoints; OMP_NUM_THREADS {os.environ.get('OMP_NUM_THREADS', 'not set')}.",
        "",
        f"{len(kills)} kills, {inside} of them left an unfinished checkpoint, spread over {len(same)} run(s); {sum(same)} ended with "
        f"the bytes of the unbroken one in {', '.join(name.rpartition('/')[2] for name in expected)}: "
        f"{'identical' if all(same) else 'DIFFERENT'}.",
        "",
        "| kill | aimed at | s after start | newest checkpoint, images | unfinished folders left |",
        "|---|---|---|---|---|",
    ]
    rows = [(kill.where, f"{kill.seconds:.1f}", str(kill.newest), "; ".join(kill.leftovers)) for kill in kills]
    return "\n".join([*lines, *(f"| {number} | {' | '.join(row)} |" for number, row in enumerate(rows, 1))]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
