"""`triptych runs`: the runs in a folder, or what one run has."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from triptych.cli.output import show_page
from triptych.core.errors import ConfigError, DataError, printable
from triptych.core.memory import in_bytes
from triptych.core.wording import counted

if TYPE_CHECKING:
    from triptych.report.listing import Listed

USAGE = """usage: triptych runs [DIR]
       triptych runs RUN

Lists the runs in a folder (runs, unless another is named) and in the folders below it: the recipe, images seen of how many, the newest
losses in training and on held-out images, the first figure of the newest evaluation, what they take on the disk, and when they were last
written. Of a single run it lists the checkpoints and the pictures.

example: triptych runs runs/digits"""

_MOST_PICTURES = 12


def main(arguments: Sequence[str]) -> int:
    """Prints the table of runs, or the page of one."""
    if any(argument in ("-h", "--help") for argument in arguments):
        show_page(USAGE)
        return 0
    if len(arguments) > 1 or any(not argument or argument.startswith("-") for argument in arguments):
        raise ConfigError("", f"got {' '.join(arguments)!r}, expected one folder of runs, one run, or nothing")
    folder = Path(arguments[0] if arguments else "runs")
    if not folder.is_dir():
        raise ConfigError("", f"there is no folder {folder}{'' if arguments else ': name the folder of your runs'}")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise DataError(f"{folder}: cannot be looked into (no permission)")
    from triptych.engine.run_directory import RunDirectory
    from triptych.report.listing import find_runs, listed

    if RunDirectory(folder).exists():
        show_page(page(listed(folder)))
        return 0
    listing = [listed(root) for root in find_runs(folder)]
    show_page(table(listing, folder) if listing else f"no runs in {folder}: a run is a folder with a config.json (triptych train makes it)")
    return 0


def table(listing: list[Listed], folder: Path) -> str:
    """The runs, a line for each."""
    heads = ("run", "recipe", "images seen", "newest figures", "disk", "last written")
    rows = [
        (str(run.root), run.recipe, _images(run), _fault(run) or _figures(run), in_bytes(run.size_bytes), _date(run.written))
        for run in listing
    ]
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(row[k]) for row in [heads, *rows]) for k in range(len(heads))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [heads, *rows]]
    return "\n".join([*lines, "", "triptych runs RUN   shows the checkpoints and pictures of one"])


def page(run: Listed) -> str:
    """All that is to be said of one run."""
    from triptych.report.listing import checkpoints, pictures, snapshots

    lines = [f"{run.root}: {run.recipe}, {_images(run)} images seen, {in_bytes(run.size_bytes)}, last written {_date(run.written)}"]
    lines += [run.fault] if run.fault else []
    lines += [f"  {name}  {value:.4g}" for name, value in run.figures.items()]
    stored, drawn = checkpoints(run.root), pictures(run.root)
    lines += ["", "checkpoints" if stored else "no checkpoints"]
    lines += [
        f"  {one.images_seen:>12,} images  {in_bytes(one.size_bytes):>8}  {_date(one.written)}{'  best' if one.is_best else ''}"
        for one in stored
    ]
    if taken := snapshots(run.root):
        lines += ["", f"{counted(taken.count, 'snapshot')} of averages  {in_bytes(taken.size_bytes)}"]
    left_out = max(0, len(drawn) - _MOST_PICTURES)
    lines += ["", "pictures" if drawn else "no pictures", *([f"  {counted(left_out, 'older one')}"] if left_out else [])]
    lines += [f"  {path}" for path in drawn[left_out:]]
    place, total = shlex.quote(str(run.root)), run.total_images
    if run.fault:
        return "\n".join(lines)  # no command goes on with it
    if total and stored and run.images_seen >= total:
        further = f"triptych train {place} --train.total-images {2 * total}   trains it on, twice as long"
    else:
        further = f"triptych train {place}   {'goes on with it' if stored else 'begins it, at 0 images'}"
    return "\n".join([*lines, "", further])


def _fault(run: Listed) -> str:
    """Why config.json cannot be read, short enough for a cell; nothing where it can."""
    return (run.fault or "").removeprefix(f"{run.root / 'config.json'} ")


def _images(run: Listed) -> str:
    if not run.total_images:
        return f"{run.images_seen:,}"
    return f"{run.images_seen:,} of {run.total_images:,} ({100 * run.images_seen // run.total_images} %)"


def _figures(run: Listed) -> str:
    """The newest figures, without the name of the phase: loss 0.031, validation 0.034, kid 0.02."""
    parts = [
        f"{'validation' if name.startswith('validation/') else name.rpartition('/')[2]} {value:.4g}" for name, value in run.figures.items()
    ]
    return ", ".join(parts) or "none yet"


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
