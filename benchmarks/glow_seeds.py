"""Several seeds of class-conditional Glow on CIFAR-10, where the original program and its ports are known to end in NaN.

    python benchmarks/glow_seeds.py --data PATH --runs DIR --out FILE.md

Each run trains `glow-cifar10-cond` with all its 96 steps, at width 32 and a batch of 32: 200 steps of warm-up, then 2,000 at the full rate
of 0.001. PATH holds the images of CIFAR-10 with their classes, in any form that data.path takes. A run that ends in a value that is not
finite stops with a message. Exit code 1 where one does.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path

from machine import machine

from triptych.core.errors import RunError
from triptych.engine.metric_log import read_metrics
from triptych.recipes.flows import glow_cifar10_cond
from triptych.runs import train

WIDTH, BATCH, WARMUP, STEPS = 32, 32, 200, 2_000
_BITS = "likelihood/bits_per_dim"


def finish(data: str, run: Path, seed: int) -> str:
    """A line of the table; raises RunError where the training fails."""
    settings = {
        "model": {"width": WIDTH},
        "data": {"source": "auto", "path": data, "workers": 0},
        "train": {"batch_size": BATCH, "total_images": (WARMUP + STEPS) * BATCH, "seed": seed, "validate_images": 1_000},
        "optim": {"warmup_images": WARMUP * BATCH},
        "log": {"every": 50 * BATCH},
    }
    train(glow_cifar10_cond().updated(settings), run, recipe="glow-cifar10-cond", device="cpu")
    lines = read_metrics(run / "metrics.jsonl")
    after = [line for line in lines if _BITS in line and line["images"] > WARMUP * BATCH]
    bits, norm = (max(line[name] for line in after) for name in (_BITS, "likelihood/gradient_norm"))
    held_out = [line[f"validation/{_BITS}"] for line in lines if f"validation/{_BITS}" in line][-1]
    return f"| {seed} | {lines[-1]['images']:,} | {bits:.3f} | {norm:.1f} | {held_out:.3f} |"


def main() -> int:
    """0, or 1 where a run fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="CIFAR-10 with its classes")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/glow-seeds"), help="directory of the runs; finished ones are taken as they are"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    rows, failed = [], 0
    for seed in range(options.seeds):
        try:
            rows.append(finish(options.data, options.runs / str(seed), seed))
        except RunError as error:
            failed += 1
            rows.append(f"| {seed} | failed: {error} | | | |")
        print(rows[-1], flush=True)
    report = "\n".join(
        [
            f"# Seeds of glow-cifar10-cond, {datetime.date.today().isoformat()}",
            "",
            f"32 steps x 3 levels, width {WIDTH}, batch {BATCH}, {WARMUP} steps of warm-up and {STEPS} at 0.001, float32, CPU.",
            machine(),
            "",
            "| seed | images seen | most bits/dim after warm-up | largest gradient norm then | validation at the end, 5 bits |",
            "|---|---|---|---|---|",
            *rows,
            "",
            f"{options.seeds - failed} of {options.seeds} ended without a value that is not finite.",
        ]
    )
    print(report)
    if options.out:
        options.out.write_text(report + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
