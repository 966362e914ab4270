"""Time and peak memory of a training step of Glow, by what the backward pass keeps (`model.memory`).

    python benchmarks/glow_memory.py --out FILE.md

32 steps at each of 3 levels, width 512, 32x32, a batch of 64 images; forward, backward, Adamax, average, in the engine's own loop.
Each measurement is a new process, whose first two steps do not count: they take memory from the system. Peak memory is its largest
resident set. Targets: "inversion" within 2.0 GB, and at most 1.5 times the time of "autograd". Exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from machine import machine

VARIANTS = ("autograd", "checkpoint", "inversion")
MOST_GIGABYTES, MOST_TIMES = 2.0, 1.5


def measure(memory: str, *, steps: int, batch_size: int, depth: int, precision: str) -> None:
    """Prints seconds of a step (the median) and peak memory in bytes, as JSON; for a process of its own."""
    import numpy as np

    from triptych.engine.loop import Loop
    from triptych.recipes.flows import glow_cifar10
    from triptych.runs import train

    times: list[float] = []
    iteration = Loop._iteration

    def timed(self: Loop, batches: object) -> None:
        start = time.perf_counter()
        iteration(self, batches)  # type: ignore[arg-type]
        times.append(time.perf_counter() - start)

    Loop._iteration = timed  # type: ignore[method-assign]
    recipe = glow_cifar10()
    with tempfile.TemporaryDirectory() as scratch:
        images = np.random.default_rng(0).integers(0, 256, (4 * batch_size, 32, 32, 3), dtype=np.uint8)
        np.savez(f"{scratch}/images.npz", arr_0=images)
        config = replace(
            recipe,
            model=replace(recipe.model, memory=memory, depth=depth, init_images=batch_size),  # type: ignore[call-arg]
            data=replace(recipe.data, source="arrays", path=f"{scratch}/images.npz", validation_fraction=0.0, workers=0),
            train=replace(
                recipe.train,
                total_images=(steps + 1) * batch_size,
                batch_size=batch_size,
                precision=precision,
                sample_count=0,  # type: ignore[arg-type]
            ),
        )
        train(config, f"{scratch}/run", device="cpu")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": statistics.median(times[2:]), "bytes": peak}))


def main() -> int:
    """0, or 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--steps", type=int, default=4, help="optimizer steps of each measurement, after one more; the first of them is not counted"
    )
    parser.add_argument("--rounds", type=int, default=1, help="measurements of each variant, in turns")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--depth", type=int, default=32)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    parser.add_argument("--child", choices=VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    size = {"steps": options.steps, "batch_size": options.batch_size, "depth": options.depth, "precision": options.precision}
    if options.child:
        measure(options.child, **size)
        return 0
    found: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    flags = [word for name, value in size.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    for _ in range(options.rounds):
        for variant in VARIANTS:
            done = subprocess.run([sys.executable, __file__, "--child", variant, *flags], capture_output=True, text=True, check=True)
            found[variant].append(json.loads(done.stdout.splitlines()[-1]))
            print(variant, found[variant][-1], flush=True)
    seconds = {variant: min(part["seconds"] for part in parts) for variant, parts in found.items()}
    gigabytes = {variant: max(part["bytes"] for part in parts) / 1e9 for variant, parts in found.items()}
    times = seconds["inversion"] / seconds["autograd"]
    passed = gigabytes["inversion"] <= MOST_GIGABYTES and times <= MOST_TIMES
    lines = ["| model.memory | seconds a step | times autograd | peak memory, GB |", "|---|---|---|---|"]
    lines += [f"| {v} | {seconds[v]:.2f} | {seconds[v] / seconds['autograd']:.2f} | {gigabytes[v]:.2f} |" for v in VARIANTS]
    report = "\n".join(
        [
            f"# A training step of Glow, {datetime.date.today().isoformat()}",
            "",
            f"{options.depth} steps x 3 levels, width 512, 32x32, batch {options.batch_size}, {options.precision}, CPU.",
            machine(),
            "",
            *lines,
            "",
            f"Targets: inversion within {MOST_GIGABYTES} GB and {MOST_TIMES} times the time. {'Reached.' if passed else 'MISSED.'}",
        ]
    )
    print(report)
    if options.out:
        options.out.write_text(report + "\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
