"""Seconds that report.html takes while a run is trained: of a small run, and of one with 100,000 lines of metrics and large grids.

    .venv/bin/python benchmarks/report_cost.py --out FILE.md

The pages are made as a training makes them, by one LivePage: the first one reads everything, the next ones what is new. The pause that
follows a page keeps all of them below 1 % of the time. Bounds, of processor time: 0.1 s for a page of the small run, 1 s for one of the
long run but its first. The exit code is 1 when one is missed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from machine import machine
from PIL import Image

from triptych.engine.run_directory import RunDirectory
from triptych.recipes.catalogue import load_recipe
from triptych.report.live import LEAST_PAUSE, SHARE, LivePage

BOUNDS = {"small": 0.1, "long": 1.0}


def line(k: int, *, every: int) -> str:
    """A line of metrics as adm-digits writes it."""
    terms = {
        f"denoise/{term}{group}": 0.5 / k**0.2 + 0.01 * (k % 7) for term in ("loss", "mse") for group in ("", "_q0", "_q1", "_q2", "_q3")
    }
    rest = {"denoise/gradient_norm": 0.2, "learning_rate": 1e-4, "images_per_second": 40.0, "memory_bytes": 2**30}
    return json.dumps({"images": k * every, "time": k * 30.0, **terms, **rest}) + "\n"


def grid(folder: Path, number: int, side: int) -> None:
    """A grid of samples of so many pixels a side."""
    colours = np.random.default_rng(number).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(colours).resize((side, side)).save(folder / f"{number:09d}.png")


def write_run(root: Path, *, lines: int, grids: int, side: int) -> RunDirectory:
    """A run with so many lines of metrics and grids."""
    directory = RunDirectory(root)
    directory.create()
    directory.write_config({"recipe": "adm-digits", **load_recipe("adm-digits").to_dict(), "spec": {"image_size": 16, "channels": 1}})
    directory.metrics_path.write_text("".join(line(k, every=1_000) for k in range(1, lines + 1)))
    for k in range(grids):
        grid(directory.samples, (k + 1) * 1_000_000, side)
    return directory


def measured(name: str, directory: RunDirectory, *, lines: int, side: int) -> list[tuple[str, float, float | None]]:
    """(what, seconds of the processor, bound) of the pages of a run."""
    page = LivePage(directory.root, sys.exit)
    rows = []

    def written(what: str, bound: float | None) -> None:
        began = time.process_time()
        page.write()
        rows.append((f"{name}: {what}", time.process_time() - began, bound))

    written("the first page", None)
    written("nothing new", BOUNDS[name])
    with directory.metrics_path.open("a") as file:
        file.writelines(line(k, every=1_000) for k in range(lines + 1, lines + 101))
    grid(directory.samples, (lines + 100) * 1_000, side)
    written("100 new lines and a grid", BOUNDS[name])
    return rows


def main() -> int:
    """1 when a page took longer than its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        small = write_run(Path(scratch) / "small", lines=50, grids=5, side=160)
        LivePage(small.root, sys.exit).write()  # imports
        rows = measured("small", small, lines=50, side=160)
        long = write_run(Path(scratch) / "long", lines=100_000, grids=60, side=2_064)
        rows += measured("long", long, lines=100_000, side=2_064)
        sizes = [f"{directory.root.name} {(directory.root / 'report.html').stat().st_size / 1e6:.2f} MB" for directory in (small, long)]
        metrics = long.metrics_path.stat().st_size / 1e6
    missed = any(bound is not None and seconds > bound for _, seconds, bound in rows)
    text = [f"# The cost of report.html, {datetime.date.today().isoformat()}", "", f"{machine()}; processor time.", ""]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    text += [
        f"small: 50 lines of metrics, 5 grids of 160 pixels. long: 100,000 lines ({metrics:.0f} MB), 60 grids of 2064 pixels.",
        f"Pages: {', '.join(sizes)}. Peak memory of the process {peak:.2f} GiB, with PyTorch.",
        f"While training, a page follows the one before after {LEAST_PAUSE:.0f} s at least, and after {1 / SHARE:.0f} times what it took.",
        "",
        "| page | s | bound, s |",
        "|---|---|---|",
    ]
    text += [f"| {what} | {seconds:.3f} | {'' if bound is None else bound} |" for what, seconds, bound in rows]
    print("\n".join(text))
    if options.out:
        options.out.write_text("\n".join(text) + "\n", encoding="utf-8")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
