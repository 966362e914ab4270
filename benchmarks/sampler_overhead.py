"""The time that a sampler spends outside the network in each of its calls, by one tree of the program beside another.

    python benchmarks/sampler_overhead.py --before TREE --after TREE [--rounds N] [--out FILE.md]

A tree is a checkout of the repository. Each sampler draws 4 images of 8x8 in 50 steps with a network that returns a constant; the
time of that network alone is subtracted. So this is the loop's own time: of few small images, where starting operations is all of it.
Everything of `sample` counts, the first noise and the table of steps too. Each measurement is a new process on one thread, the trees take
turns; of a process the fastest of its repetitions in processor time counts, of the rounds the median. Both trees must draw the same
images, up to rounding. Exit code 1 when they do not, or when AFTER takes more than 50 microseconds a call with a sampler that has a target.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from machine import machine
from tiny_runs import environment, require_tree

TARGET = 50.0
"""Microseconds a call."""
ROUNDING = 1e-5
"""How far apart values of two trees' images, in [-1, 1], may lie."""
SAMPLERS = {
    "ancestral": True,
    "ddim": True,
    "euler": True,
    "heun": True,
    "dpm++2m": True,
    "dpm++2m-sde": True,
    "unipc": True,
    "ode-heun": False,
    "sde-euler": False,
}
"""Whether a target is set for it: those along a path have none."""
STEPS, BATCH, SIZE = 50, 4, 8


def measure(*, repetitions: int) -> None:
    """Prints {sampler: [microseconds a call, the images]} as JSON; for a process of its own."""
    from triptych.core.batch import DataSpec
    from triptych.core.rng import Rng
    from triptych.diffusion.adm import ADMConfig
    from triptych.diffusion.model import SamplingConfig
    from triptych.diffusion.unet import UNetConfig

    torch.set_num_threads(1)
    network = UNetConfig(num_channels=32, channel_mult=(1,), num_res_blocks=1, attention_resolutions=())
    model = ADMConfig(network=network).build(DataSpec(image_size=SIZE, channels=1)).eval()
    rng = Rng(0, ("sample",), torch.arange(BATCH))
    constant, calls = rng.normal("output", 1, SIZE, SIZE), 0

    def forward(x: object, *told: object) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return constant

    model.network.forward = forward
    found = {}
    for sampler in SAMPLERS:
        settings = SamplingConfig(sampler=sampler, steps=STEPS)  # type: ignore[arg-type]
        fastest, alone = float("inf"), float("inf")
        for _ in range(repetitions):
            calls, start = 0, time.process_time()
            images = model.sample(rng, labels=None, settings=settings)
            fastest, made = min(fastest, (time.process_time() - start) / calls), calls
            start = time.process_time()
            for _ in range(made):
                model.network(constant, None, None)
            alone = min(alone, (time.process_time() - start) / made)
        found[sampler] = [1e6 * (fastest - alone), images.flatten().tolist()]
    print(json.dumps(found))


def main() -> int:
    """0, or 1 when a target is missed or the images differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="a checkout of the repository")
    parser.add_argument("--after", type=Path, default=Path(__file__).parents[1], help="another one; left out: this one")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each tree")
    parser.add_argument("--repetitions", type=int, default=30, help="times that a process samples with each sampler")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        require_tree(Path(os.environ["PYTHONPATH"]).parent)
        measure(repetitions=options.repetitions)
        return 0
    if options.before is None:
        parser.error("--before: which checkout to compare with")
    trees = {"before": options.before, "after": options.after}
    found: dict[str, list[dict[str, list]]] = {name: [] for name in trees}
    for turn in range(options.rounds):
        for name in sorted(trees, reverse=turn % 2 == 0):
            command = [sys.executable, __file__, "--child", "--repetitions", str(options.repetitions)]
            done = subprocess.run(command, env=environment(trees[name]), stdout=subprocess.PIPE, text=True, check=True)
            found[name].append(json.loads(done.stdout))
            print(name, {sampler: round(value, 1) for sampler, (value, _) in found[name][-1].items()}, flush=True)

    def microseconds(name: str, sampler: str) -> float:
        return statistics.median(one[sampler][0] for one in found[name])

    rows, missed = [], []
    for sampler, targeted in SAMPLERS.items():
        before, after = microseconds("before", sampler), microseconds("after", sampler)
        images = torch.tensor([one[sampler][1] for parts in found.values() for one in parts], dtype=torch.float64)
        apart = float((images - images[0]).abs().max())
        rows.append(f"| {sampler} | {before:.0f} | {after:.0f} | {apart:.1e} |")
        if not apart <= ROUNDING or (targeted and after > TARGET):
            missed.append(sampler)
    commits = {
        name: subprocess.run(["git", "-C", str(tree), "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        for name, tree in trees.items()
    }
    verdict = f"MISSED: {', '.join(missed)}." if missed else "Reached."
    report = "\n".join(
        [
            f"# Time of a sampler outside the network, {datetime.date.today().isoformat()}",
            "",
            f"{BATCH} images of {SIZE}x{SIZE} in {STEPS} steps; processor time on one thread, medians of {options.rounds} processes of "
            f"each tree, in turns. Before: {commits['before']}; after: {commits['after']}.",
            machine(),
            "",
            "| sampler | microseconds a call before | after | images differ by at most |",
            "|---|---|---|---|",
            *rows,
            "",
            f"Target: {TARGET:.0f} microseconds, and images that differ by at most {ROUNDING:.0e}. {verdict}",
        ]
    )
    print(report)
    if options.out:
        options.out.write_text(report + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
