"""What guidance by a classifier does: an unconditional model of the digits, led to given labels.

    triptych train adm-digits-uncond --run runs/digits-uncond
    triptych train classifier-digits --run runs/digits-classifier
    python benchmarks/digits_guidance.py --run runs/digits-uncond --guide runs/digits-classifier --out FILE.md

500 samples, 50 of each label (`--per-label`), at each guidance scale (`--scales`). A classifier that is not the guide (the nearest
neighbours of digits_quality.py among the real images, at the 8x8 pixels of the data set) says what they show. Target: at the best scale
at least 85 % show their label; unguided about 10 % do. Diversity is the mean distance of a sample to the nearest other of its class.
Exit code 1 when it is missed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from importlib import resources
from pathlib import Path

import numpy as np
from digits_quality import CLASSES, DISTINCT, PER_LABEL, Neighbours, distances, first_of_each, nearest_within_class, reduced
from machine import machine

from triptych.core.images import enlarge, grid, save_picture
from triptych.runs import open_run

SCALES = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
AT_LEAST, UNGUIDED_BELOW = 0.85, 0.15


def main() -> int:
    """0, or 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="a run of adm-digits-uncond")
    parser.add_argument("--guide", required=True, help="a run of classifier-digits")
    parser.add_argument("--seed", type=int, default=0, help="seed of the samples")
    parser.add_argument("--scales", type=float, nargs="+", default=SCALES, help="guidance scales; 0 is unguided")
    parser.add_argument("--per-label", type=int, default=PER_LABEL, help="samples of each label")
    parser.add_argument("--set", default="{}", help='settings of the sampler as JSON: {"sampler": "ancestral"}')
    parser.add_argument("--picture", type=Path, help="write a grid: a row of ten samples, one for each label, at each scale")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args()

    with np.load(Path(str(resources.files("triptych.data"))) / "assets" / "digits.npz") as digits:
        real, labels = digits["images"].reshape(-1, 64).astype(np.float64), digits["labels"].astype(np.int64)
    judge, run, guide = Neighbours(real, labels), open_run(options.run), open_run(options.guide)
    sampling = run.config.model.sampling.updated(json.loads(options.set))  # type: ignore[attr-defined]
    own = first_of_each(labels, options.per_label)
    lines = ["| guidance scale | show their label | diversity | nearer than 5.3 to a real image | seconds |", "|---|---|---|---|---|"]
    shares, rows = {}, []
    for scale in options.scales:
        start = time.perf_counter()
        samples = run.sample(
            options.per_label * CLASSES,
            seed=options.seed,
            labels=list(range(CLASSES)),
            guide=options.guide,
            settings=sampling.updated({"guidance_scale": scale}),
        )
        seconds = time.perf_counter() - start
        assert samples.labels is not None
        images = reduced(samples.images)
        found = judge.predict(images)
        shares[scale] = float((found == samples.labels).mean())
        spread, copies = nearest_within_class(images, found), float((distances(images, real).min(1) < DISTINCT).mean())
        lines.append(
            f"| {scale:g}{' (unguided)' if scale == 0 else ''} | {shares[scale]:.1%} | {spread:.2f} | {copies:.1%} | {seconds:.0f} |"
        )
        rows.append(samples.images[: 2 * CLASSES])
        print(lines[-1], flush=True)
    if options.picture:
        save_picture(enlarge(grid(np.concatenate(rows), columns=2 * CLASSES), 2), options.picture)
    best = max((scale for scale in shares if scale > 0), key=shares.__getitem__)
    unguided = shares.get(0.0)
    beside = "" if unguided is None else f"; unguided {unguided:.1%}"
    passed = shares[best] >= AT_LEAST and (unguided is None or unguided < UNGUIDED_BELOW)
    report = "\n".join(
        [
            f"# Digits led by a classifier, {datetime.date.today().isoformat()}",
            "",
            machine(),
            "",
            f"{run.recipe}, {run.find_checkpoint()} images seen; guide {guide.recipe}, {guide.find_checkpoint()} images seen; "
            f"sample seed {options.seed}. Sampler: "
            + ", ".join(f"{name} {value}" for name, value in sampling.to_dict().items() if name != "guidance_scale" and value is not None)
            + ".",
            "",
            *lines,
            "",
            f"Diversity of as many real images: {nearest_within_class(real[own], labels[own]):.2f}. Best scale {best:g}: "
            f"{shares[best]:.1%} (target at least {AT_LEAST:.0%}){beside}. {'Reached.' if passed else 'MISSED.'}",
        ]
    )
    print(report)
    if options.out:
        options.out.write_text(report + "\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
