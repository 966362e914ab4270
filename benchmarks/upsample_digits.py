"""How near the images that upsample-digits makes of small ones come to the originals, beside plain ways to enlarge them.

    triptych train upsample-digits --run runs/upsample-digits
    python benchmarks/upsample_digits.py --run runs/upsample-digits --out FILE.md

All held-out digits of the run, made small as the page of a run makes them: the mean of the pixels beneath, in 8 bits. Errors are means of
the absolute difference over pixels and images, on the scale of 0 to 255. Target: below that of every plain way. Exit code 1 when it is
missed.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path

import numpy as np
from machine import machine, show_report
from PIL import Image

from triptych.runs import open_run
from triptych.runs.upsampling import made_small

WAYS = {
    "Lanczos": Image.Resampling.LANCZOS,
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "repetition of pixels": Image.Resampling.NEAREST,
}


def main() -> int:
    """0, or 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="a run of upsample-digits")
    parser.add_argument("--seed", type=int, default=0, help="seed of the noise")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args()

    run = open_run(options.run)
    held_out = run.config.data.open().validation
    assert held_out is not None and held_out.labels is not None, "the recipe holds digits out"
    originals, labels = held_out.batch(np.arange(len(held_out))).images, held_out.labels
    side, small = originals.shape[1], made_small(originals, run.config.model.small_size)  # type: ignore[attr-defined]

    def error(made: np.ndarray) -> float:
        return float(np.abs(made.astype(np.float64) - originals).mean())

    def by_model(told: np.ndarray) -> float:
        return error(run.upsample(small, seed=options.seed, labels=told.tolist()).images)

    plain = {
        name: error(np.stack([np.asarray(Image.fromarray(each[..., 0]).resize((side, side), way)) for each in small])[..., None])
        for name, way in WAYS.items()
    }
    sampling = run.config.model.sampling  # type: ignore[attr-defined]
    model, misled = by_model(labels), by_model((labels + 1) % 10)
    passed = model < min(plain.values())
    rows = {f"the model, {sampling.steps} steps of {sampling.sampler}": model, "the model, told the next class": misled} | plain
    lines = [
        f"# Digits enlarged, {datetime.date.today().isoformat()}",
        "",
        machine(),
        "",
        f"{run.recipe}, {run.find_checkpoint()} images seen; {len(originals)} held-out digits, from {small.shape[1]} to {side} pixels; "
        f"trained in {run.config.train.precision}; seed {options.seed}.",
        "",
        "| enlarged by | mean absolute error, of 255 |",
        "|---|---|",
        *(f"| {name} | {value:.2f} |" for name, value in rows.items()),
        "",
        f"Target, below every plain way: {'reached' if passed else 'MISSED'}.",
    ]
    show_report(lines, out=options.out)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
