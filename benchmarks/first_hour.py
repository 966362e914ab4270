"""What two CPU cores make of a folder of photos in a short time, by recipe: equal minutes of training, then the distance of the samples.

    OMP_NUM_THREADS=1 python benchmarks/first_hour.py --data FOLDER --runs DIR --rows FILE.jsonl --minutes 12 edm-digits flow-small
    python benchmarks/first_hour.py --rows FILE.jsonl --out FILE.md

Each call trains the named recipes on the photos at one size, with the settings that `triptych init` lays over them for these images, for
as many images as the minutes of one core give, counted by the processor time of the steps; then it appends a line for each to the rows.
Without names it writes the table of all rows. Diffusion and flow matching draw with 10 and 20 calls of the network (UniPC), a GAN with one.
The Frechet distance is that of 500 samples to the training images. A run that is there already goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from network_calls import described, settings_of, trained, without_looks
from rows import Row, add_row, read_rows, write_report

from triptych.core.images import grid, save_picture
from triptych.diffusion.continuous import ContinuousConfig
from triptych.recipes.catalogue import load_recipe
from triptych.recipes.config import RunConfig
from triptych.runs import Run, score
from triptych.runs.choosing import Candidate, settings_for
from triptych.runs.data_look import look

SAMPLES, PICTURED = 500, 40
CALLS = (10, 20)


def configured(recipe: str, data: str, size: int) -> RunConfig:
    """The recipe on these photos, as `triptych init` would have it, with nothing drawn or measured on the way and one average for all."""
    config = load_recipe(recipe).updated(settings_for(look(data), Candidate(recipe, size, 0, ""), []))
    return without_looks(config, batch_size=config.train.batch_size, seed=0)


def distances(run: Run, data: str, size: int) -> dict[str, float]:
    """By calls of the network; the samples and a picture of some of them stay in the run's folder."""
    found = {}
    for calls in CALLS if isinstance(run.config.model, ContinuousConfig) else (1,):
        settings = {"settings": settings_of(run, calls)} if calls > 1 else {}
        kept = run.directory / f"samples-{calls}.npz"
        images = run.sample(SAMPLES, seed=0, out=kept, batch_size=50, **settings).images
        save_picture(grid(images[:PICTURED], columns=10), run.directory / f"samples-{calls}.png")
        scores = score(kept, data, metrics=("frechet",), features="efficientnet-lite0", image_size=size)
        (found[str(calls)],) = (figure.value for figure in scores.figures.values())
    return found


def table(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| recipe | size | core-minutes | parameters, M | images seen | images/s of one core | distance, by calls |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        by_calls = ", ".join(f"{value:.1f} ({calls})" for calls, value in row["distances"].items())
        cells = [f"`{row['recipe']}`", f"{row['size']}", f"{row['minutes']:g}", f"{row['parameters'] / 1e6:.1f}", f"{row['images']:,}"]
        cells += [f"{row['images'] / (60 * row['minutes']):.0f}", by_calls]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", help="to be trained and measured now")
    parser.add_argument("--rows", type=Path, required=True, help="file of what was measured, a line for each recipe")
    parser.add_argument("--data", help="folder or archive of photos")
    parser.add_argument("--runs", type=Path, help="folder of the runs")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--minutes", type=float, default=12.0, help="of one core, for the training of each")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    given = parser.parse_intermixed_args()
    for name in given.recipes:
        run = trained(configured(name, given.data, given.size), given.runs / f"{name}-{given.size}", minutes=given.minutes)
        found = distances(run, given.data, given.size)
        add_row(given.rows, {"recipe": name, "size": given.size, "minutes": given.minutes, "distances": found} | described(run))
    if not given.recipes:
        write_report("Photos after a short training on a CPU", read_rows(given.rows), table(read_rows(given.rows)), out=given.out)


if __name__ == "__main__":
    main()
