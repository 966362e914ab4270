"""Whether runs that are killed again and again end like runs that are left alone: one of each family.

    python benchmarks/kill_and_resume.py --kills 100 --out FILE.md

For a diffusion model, a flow and a GAN: trains a small run unbroken by the true command line (`triptych train`, float32, CPU, one
process). Then trains it again, kills it with SIGKILL, gives the same command again, and so on. The kills fall within start-up, at
random moments, within a validation, within a grid of samples, while a grid is written, and while a checkpoint is written or an old one
removed: each time as soon as the file that tells of it has appeared. Should a run reach its end before all kills were made, it is
compared, and another one takes the rest. Exit code 1 unless every run that was broken ended with

- the same bytes of weights, averages, optimizer and state in every checkpoint that is kept,
- the same grids, byte for byte,
- the same metrics, speed and time apart,
- the same files, so that nothing is left of the killed processes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from compared_runs import differences, files, finished, newest, unfinished
from machine import machine

BATCH, CHECKPOINT_EVERY, LOG_EVERY, GRID_EVERY = 16, 64, 96, 192
"""Lines of the log do not fall on checkpoints, so that a resume has to go on with half a line's measurements."""
COMMON = {
    "train.batch-size": BATCH,
    "train.checkpoint-every": CHECKPOINT_EVERY,
    "train.sample-every": GRID_EVERY,
    "train.validate-every": GRID_EVERY,
    "train.validate-images": 32,
    "train.sample-count": 4,
    "train.precision": "float32",
    "log.every": LOG_EVERY,
}
# The recipes made smaller in length and width only: their dropout, losses, optimizer and augmentation stay.
FAMILIES = {
    "adm-digits": {"train.total-images": 1_920, "model.network.num-channels": 32, "model.network.num-res-blocks": 1},
    "glow-digits": {"train.total-images": 1_920, "model.depth": 2, "model.width": 32},
    "unit-mnist": {"train.total-images": 1_536, "model.generator.num-filters": 4, "model.discriminator.num-filters": 8},
}
STARTUP, ANYWHERE, VALIDATION, GRID, PNG = "start-up", "a random moment", "validation", "a grid", "the writing of a grid"
FOLDER, REMOVAL = "the unfinished checkpoint's folder", "the removal of an old checkpoint"
CHECKPOINT_FILES = ("model.safetensors", "optimizer.safetensors", "an average", "state.json")
AIMS = (STARTUP, GRID, FOLDER, ANYWHERE, VALIDATION, *CHECKPOINT_FILES[:2], STARTUP, PNG, *CHECKPOINT_FILES[2:], ANYWHERE, GRID, REMOVAL)


@dataclass
class Kill:
    """One SIGKILL and what it met."""

    aim: str
    met: bool
    "Whether the process was killed where it was aimed at."
    seconds: float
    "Since the process was started."
    newest: int
    "Images seen by the newest checkpoint that it left; 0: none."
    leftovers: list[str]
    "Unfinished files and folders that this process left, not one before it."


@dataclass(frozen=True)
class Trial:
    """A recipe with its settings, and the run of it that nobody broke."""

    recipe: str
    settings: dict[str, object]
    unbroken: Path

    def command(self, run: Path) -> list[str]:
        """The command that starts the run, and that goes on with it."""
        settings = [word for name, value in self.settings.items() for word in (f"--{name}", str(value))]
        return [sys.executable, "-m", "triptych", "train", self.recipe, "--run", str(run), "--device", "cpu", *settings]

    def start(self, run: Path) -> subprocess.Popen[bytes]:
        """The run's process, its output appended to a file beside the run."""
        with run.with_suffix(".out").open("ab") as output:
            return subprocess.Popen(self.command(run), stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def finish(self, run: Path) -> tuple[float, float]:
        """Seconds until the run's first checkpoint and until it ended by itself; stops the script when it failed."""
        began = time.perf_counter()
        process = self.start(run)
        while process.poll() is None and not finished(run):
            time.sleep(0.01)
        first = time.perf_counter() - began
        self.require_success(run, process.wait())
        return first, time.perf_counter() - began

    def require_success(self, run: Path, code: int) -> None:
        """Stops the script with the end of the run's output unless it succeeded."""
        if code:
            raise SystemExit(f"`{' '.join(self.command(run))}` ended with code {code}:\n{run.with_suffix('.out').read_text()[-2000:]}")


@dataclass
class Result:
    """What became of one family's runs."""

    trial: Trial
    seconds: float
    "Of the unbroken run."
    kills: list[Kill] = field(default_factory=list)
    ends: list[list[str]] = field(default_factory=list)
    "For each run that was broken and reached its end: in what it differs from the unbroken one."


def write_domains(folder: Path) -> None:
    """Two domains of 48 images each for a GAN: random blots, and the same upside down in other colours."""
    for name, seed in (("images_a", 0), ("images_b", 1)):
        low = np.random.default_rng(seed).integers(0, 256, (48, 8, 8, 3), dtype=np.uint8)
        np.savez(folder / f"{name}.npz", arr_0=low.repeat(4, axis=1).repeat(4, axis=2))


# What lies on disk -------------------------------------------------------------------------------------------------------


def in_grid(run: Path, began: int) -> bool:
    """Whether a checkpoint after `began` images is there that is due a grid, and the grid is not."""
    images = newest(run)
    return images > began and images % GRID_EVERY == 0 and not (run / "samples" / f"{images:09d}.png").exists()


def in_validation(run: Path, began: int) -> bool:
    """Whether the last line of metrics is one after which a validation is due."""
    path = run / "metrics.jsonl"
    lines = path.read_bytes().rstrip(b"\n").rsplit(b"\n", 1) if path.exists() else [b"{}"]
    try:
        values = json.loads(lines[-1])
    except ValueError:
        return False
    images = values.get("images", 0)
    return images > began and images % GRID_EVERY == 0 and not any(name.startswith("validation/") for name in values)


def appears(aim: str, run: Path) -> Callable[[], bool]:
    """A function that tells whether a temporary file or folder of that kind has appeared since this call."""
    seen = {path.name for path in unfinished(run)}

    def appeared() -> bool:
        fresh = [path for path in unfinished(run) if path.name not in seen]
        if aim == PNG:
            return any(path.parent.name == "samples" for path in fresh)
        folders = [path for path in fresh if path.parent.name == "checkpoints"]
        if aim == REMOVAL:
            return any(path.name.endswith("-removed") for path in folders)
        if aim == FOLDER:
            return any(not path.name.endswith("-removed") for path in folders)
        pattern = "ema-*.safetensors" if aim == "an average" else aim
        return any(list(path.glob(pattern)) for path in folders if not path.name.endswith("-removed"))

    return appeared


# Killing -----------------------------------------------------------------------------------------------------------------


def kill_once(trial: Trial, run: Path, chance: random.Random, *, aim: str, startup: float, longest: float) -> Kill | None:
    """Starts the run and kills it where `aim` says; None when it ended first."""
    before = {path.name for path in unfinished(run)}
    began, clock = newest(run), time.perf_counter()
    wanted = moment(aim, run, began, until=clock + chance.uniform(0, startup if aim == STARTUP else longest))
    # So that the run gets on: of aims that come with every checkpoint not always the first is taken.
    wait = chance.randrange(3) * CHECKPOINT_EVERY if aim in (FOLDER, REMOVAL, *CHECKPOINT_FILES) else 0
    process = trial.start(run)
    met = False
    while process.poll() is None and not met:
        met = newest(run) >= began + wait and wanted()
        time.sleep(0.0001)
    process.kill()
    seconds, code = time.perf_counter() - clock, process.wait()
    if code != -9:
        trial.require_success(run, code)
        return None
    return Kill(aim, met, seconds, newest(run), [describe(path) for path in unfinished(run) if path.name not in before])


def moment(aim: str, run: Path, began: int, *, until: float) -> Callable[[], bool]:
    """A function that tells whether the moment to kill has come; `until`: the time of the aims that are times."""
    if aim in (STARTUP, ANYWHERE):
        return lambda: time.perf_counter() >= until
    if aim == GRID:
        return lambda: in_grid(run, began)
    if aim == VALIDATION:
        return lambda: in_validation(run, began)
    return appears(aim, run)


def describe(path: Path) -> str:
    """A temporary: its kind and, of a folder, what is in it."""
    kind = re.sub(r"\d+", "N", path.name)
    if not path.is_dir():
        return kind
    return f"{kind} ({', '.join(sorted(part.name for part in path.iterdir())) or 'empty'})"


def torture(result: Result, folder: Path, *, count: int, seed: int, startup: float, longest: float) -> None:
    """Makes all kills of a family, and compares every run that reaches its end."""
    chance, trial = random.Random(f"{result.trial.recipe} {seed}"), result.trial
    while len(result.kills) < count:
        run = folder / f"broken-{len(result.ends)}"
        ended = False
        while len(result.kills) < count and not ended:
            aim = AIMS[len(result.kills) % len(AIMS)]
            kill = kill_once(trial, run, chance, aim=aim, startup=startup, longest=longest)
            ended = kill is None
            if kill is not None:
                result.kills.append(kill)
                where = f"{kill.aim}, after {kill.seconds:.1f} s at {kill.newest}"
                print(f"{trial.recipe} {len(result.kills)}: {where}, left {kill.leftovers or 'nothing'}", file=sys.stderr)
        if not ended:
            trial.finish(run)
        result.ends.append(differences(trial.unbroken, run))
        print(f"{trial.recipe}: {result.ends[-1] or 'the same'}", file=sys.stderr)
        shutil.rmtree(run)


def tried(recipe: str, folder: Path, *, count: int, seed: int) -> Result:
    """A recipe trained unbroken, then broken `count` times."""
    settings = COMMON | FAMILIES[recipe]
    if recipe == "unit-mnist":
        write_domains(folder)
        settings |= {"data.path": str(folder), "data.a": "images_a.npz", "data.b": "images_b.npz", "data.validation-fraction": 0.2}
    trial = Trial(recipe, settings, folder / "unbroken")
    first, whole = trial.finish(trial.unbroken)
    kept = {
        name.rpartition("/")[2].partition("-")[0].partition(".")[0] for name in files(trial.unbroken) if name.startswith("checkpoints/")
    }
    assert {"model", "ema", "optimizer", "state"} <= kept, kept
    grids = {path.stem for path in (trial.unbroken / "samples").iterdir()}
    assert {f"{images:09d}" for images in range(GRID_EVERY, int(settings["train.total-images"]) + 1, GRID_EVERY)} <= grids, grids
    print(f"{recipe}, unbroken: {whole:.1f} s, {first:.1f} s to the first checkpoint", file=sys.stderr)
    result = Result(trial, whole)
    torture(result, folder, count=count, seed=seed, startup=first, longest=first + (whole - first) / 2)
    return result


def main() -> int:
    """0, or 1 when a run ended otherwise than the unbroken one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="in all")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--recipes", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    results = []
    for place, recipe in enumerate(options.recipes):
        count = (options.kills + place) // len(options.recipes)
        with tempfile.TemporaryDirectory() as scratch:
            results.append(tried(recipe, Path(scratch), count=count, seed=options.seed))
    text = report(results)
    print(text)
    if options.out:
        options.out.write_text(text)
    return 1 if any(end for result in results for end in result.ends) else 0


def report(results: list[Result]) -> str:
    """The result as markdown."""
    kills = [kill for result in results for kill in result.kills]
    ends = [end for result in results for end in result.ends]
    aims = Counter(kill.aim for kill in kills if kill.met)
    lines = [
        f"# Killed and resumed, {datetime.date.today().isoformat()}",
        "",
        f"{len(kills)} kills, {sum(bool(kill.leftovers) for kill in kills)} of them left something unfinished; "
        f"{len(ends)} runs were broken and reached their end, {sum(not end for end in ends)} of them like the unbroken one: "
        "the same bytes of weights, averages, optimizer and state, the same grids, equal metrics (speed and time apart), the same files. "
        f"{'IDENTICAL' if not any(ends) else 'DIFFERENT'}. OMP_NUM_THREADS {os.environ.get('OMP_NUM_THREADS', 'not set')}.",
        "",
        machine(),
        "",
        "Where the kills fell: " + ", ".join(f"{name} {count}" for name, count in aims.most_common()) + ".",
        "",
        "| run | settings | unbroken, s | kills | broken runs | like the unbroken one |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        settings = " ".join(f"--{name} {value}" for name, value in (COMMON | FAMILIES[result.trial.recipe]).items())
        same = sum(not end for end in result.ends)
        lines.append(f"| {result.trial.recipe} | `{settings}` | {result.seconds:.0f} | {len(result.kills)} | {len(result.ends)} | {same} |")
    lines += [f"\n{result.trial.recipe}: {'; '.join(end)}" for result in results for end in result.ends if end]
    lines += ["", "| kill | run | aimed at | s after start | newest checkpoint, images | left unfinished |", "|---|---|---|---|---|---|"]
    for result in results:
        for number, kill in enumerate(result.kills, 1):
            left = "; ".join(kill.leftovers)
            lines.append(f"| {number} | {result.trial.recipe} | {kill.aim} | {kill.seconds:.1f} | {kill.newest} | {left} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
