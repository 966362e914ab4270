"""What the benchmarks of image-to-image models share: a run that is trained where it is not there yet, and the lines of a report."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from machine import machine

from triptych.engine.metric_log import read_metrics
from triptych.recipes.catalogue import load_recipe
from triptych.runs import Run, open_run, train


def trained_run(directory: Path, recipe: str, data: dict[str, Any], images: int | None = None) -> Run:
    """The run in a directory, trained first where there is none: by a recipe, on `data`, to the recipe's end or a number of images."""
    if (directory / "config.json").is_file():
        return open_run(directory)
    config = load_recipe(recipe).updated({"data": data})
    if images is not None:
        config = replace(config, train=replace(config.train, total_images=images))
    return train(config, directory, recipe=recipe)


def length(run: Run) -> str:
    """How long the training was, by the speeds in its metrics, which do not count interruptions."""
    seconds, before = 0.0, 0
    for line in read_metrics(run.directory / "metrics.jsonl"):
        seconds, before = seconds + (line["images"] - before) / line["images_per_second"], line["images"]
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    return f"{run.find_checkpoint():,} images seen in {seconds / 60:.1f} minutes of training ({threads} threads)"


def report(title: str, heading: str, rows: Sequence[tuple[str, float, float | None]], note: str, *, out: Path | None) -> int:
    """Prints a table of shares and the least that is wanted of them, and writes it to `out`; 0, or 1 when one is missed."""
    lines = [f"# {title}, {datetime.date.today()}", "", f"| {heading} | target |", "|---|---|---|"]
    for name, value, target in rows:
        said = "" if target is None else f"at least {100 * target:.1f} %: {'reached' if value >= target else 'MISSED'}"
        lines.append(f"| {name} | {100 * value:.1f} % | {said} |")
    print(text := "\n".join([*lines, "", note, "", machine(), ""]))
    if out:
        out.write_text(text, encoding="utf-8")
    return 0 if all(target is None or value >= target for _, value, target in rows) else 1
