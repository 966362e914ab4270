"""Images/s of a training step of Glow, against y0ast/Glow-PyTorch, both with plain autograd.

    python benchmarks/glow_step.py --peer DIR --out FILE.md

DIR is a checkout of https://github.com/y0ast/Glow-PyTorch. 32 steps at each of 3 levels, width 512, affine, 32x32, random images in
memory. Every measurement is a new process, whose first two steps do not count: they take memory from the system. The variants take turns,
each round beginning with another one. Triptych runs its own loop: checks, measurements and the average of the weights included; the peer
runs the step of its train.py with its defaults. Targets: 1.2 times the peer's images/s in float32, 1.8 times with bf16. Exit code 1 when
one is missed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import sys
import time
from pathlib import Path

from glow_memory import measure
from turns import Comparison, compare

VARIANTS = ("peer", "triptych float32", "triptych bf16")
TARGETS = {"triptych float32": 1.2, "triptych bf16": 1.8}


def measure_peer(folder: Path, *, steps: int, batch_size: int, depth: int) -> None:
    """Prints seconds of a step (the median) and peak memory in bytes, as JSON; for a process of its own."""
    import torch

    sys.path.insert(0, str(folder))
    from model import Glow  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    # The arguments that its train.py makes of its defaults, with the top learned as in ours.
    model = Glow((32, 32, 3), 512, depth, 3, 1.0, "invconv", "affine", True, 10, True, False)
    optimizer = torch.optim.Adamax(model.parameters(), lr=5e-4, weight_decay=5e-5)
    images = torch.rand(batch_size, 3, 32, 32)
    moments = [time.perf_counter()]
    for _ in range(steps + 1):
        model.train()
        optimizer.zero_grad()
        _, bits, _ = model(images.clone(), None)  # its dequantization changes what it is given
        bits.mean().backward()
        optimizer.step()
        moments.append(time.perf_counter())
    times = [after - before for before, after in itertools.pairwise(moments)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": statistics.median(times[2:]), "bytes": peak}))


def main() -> int:
    """0, or 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, help="folder of y0ast/Glow-PyTorch")
    parser.add_argument(
        "--steps", type=int, default=6, help="optimizer steps of each measurement, after one more; the first of them is not counted"
    )
    parser.add_argument("--rounds", type=int, default=4, help="measurements of each variant")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--depth", type=int, default=32)
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    parser.add_argument("--child", choices=VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    size = {"steps": options.steps, "batch_size": options.batch_size, "depth": options.depth}
    if options.child == "peer":
        measure_peer(options.peer, **size)
        return 0
    if options.child:
        measure("autograd", precision=options.child.removeprefix("triptych "), **size)
        return 0
    comparison = Comparison(
        title="A training step of Glow against Glow-PyTorch",
        setting=f"{options.depth} steps x 3 levels, width 512, affine, 32x32, plain autograd",
        variants={name: "Glow-PyTorch float32" if name == "peer" else name for name in VARIANTS},
        targets=TARGETS,
        times="times Glow-PyTorch",
    )
    size = {"rounds": options.rounds, "steps": options.steps, "batch_size": options.batch_size}
    return compare(__file__, comparison, **size, out=options.out)


if __name__ == "__main__":
    sys.exit(main())
