"""What a long training takes more of, step by step: memory, open files, shared memory, threads, processes.

    python benchmarks/endurance.py --steps 2000 --out FILE.md

Trains small models of the three families for that many steps, each in a process of its own, with loader workers, and with validations,
grids and checkpoints now and then. The first fifth is warm-up. Target: in the rest no count grows, and memory by less than 32 MiB (the
least squares line through it, over the whole of the rest). Exit code 1 when it is missed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

RECIPES = ("adm-digits", "glow-digits", "munit-mnist")
BATCH, POINTS, MOST_MEBIBYTES = 2, 50, 32.0
COUNTS = ("open files", "shared memory", "threads", "children")


def taken() -> dict[str, float]:
    """What this process and its loader workers take now. Linux alone."""
    own = Path("/proc/self")
    children = [path.name for path in Path("/proc").glob("[0-9]*") if parent_of(path) == os.getpid()]
    resident = sum(int(Path(f"/proc/{name}/statm").read_text().split()[1]) for name in ("self", *children))
    return {
        "MiB": resident * os.sysconf("SC_PAGE_SIZE") / 2**20,
        "open files": len(list((own / "fd").iterdir())),
        "shared memory": (own / "maps").read_text().count("/dev/shm"),
        "threads": len(list((own / "task").iterdir())),
        "children": len(children),
    }


def parent_of(process: Path) -> int | None:
    """The number of a process's parent; None when it has just ended."""
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def measure(recipe: str, steps: int) -> None:
    """Prints what was taken at POINTS moments of the training, as JSON; for a process of its own."""
    from triptych.engine.loop import Loop
    from triptych.recipes.catalogue import load_recipe
    from triptych.runs import train

    points: list[dict[str, float]] = []
    iteration, done = Loop._iteration, 0

    def counted(self: Loop, batches: object) -> None:
        nonlocal done
        iteration(self, batches)  # type: ignore[arg-type]
        done += 1
        if done % (steps // POINTS) == 0:
            points.append(taken())

    Loop._iteration = counted  # type: ignore[method-assign]
    config = small(load_recipe(recipe))
    images, events = steps * BATCH, steps * BATCH // 10
    plan = {"total_images": images, "checkpoint_every": events, "validate_every": events, "sample_every": events}
    with tempfile.TemporaryDirectory() as scratch:
        if recipe.startswith("munit"):
            config = config.updated({"data": two_domains(Path(scratch))})
        settings = replace(config.train, batch_size=BATCH, microbatch=None, sample_count=2, validate_images=8, **plan)
        train(replace(config, train=settings, log=replace(config.log, every=10 * BATCH)), f"{scratch}/run", device="cpu")
    print(json.dumps(points))


def small(config):  # type: ignore[no-untyped-def]
    """The recipe with a small network on small images, and two loader workers."""
    name = type(config.model).__name__
    if name == "ADMConfig":
        network = {"num_channels": 32, "num_res_blocks": 1, "channel_mult": [1], "attention_resolutions": []}
        return config.updated({"model": {"network": network, "sampling": {"steps": "2"}}, "data": {"image_size": 8, "workers": 2}})
    if name == "GlowConfig":
        return config.updated({"model": {"levels": 2, "depth": 2, "width": 16}, "data": {"image_size": 8, "workers": 2}})
    generator = {
        "num_filters": 4,
        "max_num_filters": 8,
        "num_downsamples_content": 1,
        "num_downsamples_style": 2,
        "num_res_blocks": 1,
        "mlp_filters": 16,
    }
    discriminator = {"num_filters": 4, "max_num_filters": 8, "num_layers": 2, "num_discriminators": 1}
    return config.updated({"model": {"generator": generator, "discriminator": discriminator}, "data": {"workers": 2}})


def two_domains(folder: Path) -> dict[str, object]:
    """Settings of two folders of noise."""
    from PIL import Image

    chance = np.random.default_rng(0)
    for domain in ("a", "b"):
        (folder / domain).mkdir()
        for k in range(40):
            Image.fromarray(chance.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(folder / domain / f"{k}.png")
    return {"path": str(folder), "a": "a", "b": "b"}


def growth(points: list[dict[str, float]]) -> dict[str, float]:
    """What grew after the warm-up: memory along its line of least squares, counts between the most of the two halves."""
    rest = points[len(points) // 5 :]
    half = len(rest) // 2
    found = {name: max(p[name] for p in rest[half:]) - max(p[name] for p in rest[:half]) for name in COUNTS}
    slope = np.polyfit(np.arange(len(rest)), [p["MiB"] for p in rest], 1)[0]
    return {"MiB": float(slope) * (len(rest) - 1), **found}


def main() -> int:
    """0, or 1 when something grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    parser.add_argument("--child", choices=RECIPES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        measure(options.child, options.steps)
        return 0
    found = {}
    for recipe in RECIPES:
        command = [sys.executable, __file__, "--steps", str(options.steps), "--child", recipe]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found[recipe] = json.loads(done.stdout.splitlines()[-1])
    text, missed = report(found, options.steps)
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    return int(missed)


def report(found: dict[str, list[dict[str, float]]], steps: int) -> tuple[str, bool]:
    """The result as markdown, and whether the target is missed."""
    rows, missed = [], False
    for recipe, points in found.items():
        grown = growth(points)
        missed |= grown["MiB"] >= MOST_MEBIBYTES or any(grown[name] > 0 for name in COUNTS)
        first, last = points[len(points) // 5], points[-1]
        counts = [f"{first[name]:.0f} to {last[name]:.0f}" for name in COUNTS]
        rows.append(f"| {recipe} | {first['MiB']:.0f} to {last['MiB']:.0f} | {grown['MiB']:+.1f} | {' | '.join(counts)} |")
    lines = [
        f"# {steps} steps, {datetime.date.today().isoformat()}",
        "",
        f"Small models, batch {BATCH}, two loader workers, ten validations, grids and checkpoints; {len(os.sched_getaffinity(0))} cores.",
        "From a fifth of the steps to the last one; memory is that of the process and its workers together, shared pages counted for each.",
        "",
        f"| recipe | resident MiB | along the line | {' | '.join(COUNTS)} |",
        f"|---|---|---{'|---' * len(COUNTS)}|",
        *rows,
        "",
        f"Target, no count grows and memory by less than {MOST_MEBIBYTES:.0f} MiB along its line: {'MISSED' if missed else 'met'}.",
    ]
    return "\n".join(lines) + "\n", bool(missed)


if __name__ == "__main__":
    sys.exit(main())
