"""How near an average that is put together out of snapshots comes to the same one, tracked.

    python benchmarks/averages.py --run FOLDER [--images 8192] [--out FILE.md] [--picture FILE.png]

Trains a small adm-digits that tracks all of the lengths below, with 32 snapshots. Each of the lengths is put together out of the first two
alone, with all snapshots and with fewer, and held against the one in the last checkpoint: the norm of the difference as a share of what
the tracked average has changed since the first weights (the stricter share: the weights are larger than their change), and of its distance
from the last weights. Target: at most 1 % of the change for each of LENGTHS, with all snapshots in float32 and in fp16. Exit code 1 when
it is missed. --picture draws profiles, and needs no training.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from machine import machine
from torch import Tensor

from triptych.engine.checkpoint import load_checkpoint
from triptych.engine.ema import averaged_state
from triptych.engine.lengths import exponent_of, length_name
from triptych.engine.power_averages import Profile, combination
from triptych.recipes.catalogue import load_recipe
from triptych.runs import Run, train
from triptych.runs.averaging import Tracked, tracked_averages
from triptych.runs.stored import build

TRACKED, LENGTHS, BEYOND = (0.05, 0.1), (0.04, 0.07, 0.15), (0.03, 0.2, 0.25)
BATCH, SNAPSHOTS = 32, 32
AT_MOST = 0.01


def main() -> int:
    """0, or 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="where the run is, or will be")
    parser.add_argument("--images", type=int, default=8192, help="images of the training")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    parser.add_argument("--picture", type=Path, help="draw profiles, and do nothing else")
    options = parser.parse_args()
    if options.picture:
        picture(options.picture)
        return 0
    if options.run is None:
        parser.error("--run is missing")
    lines, missed = compared(trained(options.run, options.images), options.images)
    verdict = "missed" if missed else "met"
    target = f"At most {AT_MOST:.0%} of the change for lengths {', '.join(map(str, LENGTHS))} with all snapshots: {verdict}."
    head = f"# Averages put together out of snapshots, {datetime.date.today().isoformat()}"
    what = (
        f"adm-digits of 8x8 pixels and 32 channels, {options.images:,} images in batches of {BATCH}; tracked lengths "
        f"{' and '.join(map(str, TRACKED))}. Errors against the average of that length that the same run tracked: as shares of what it has "
        "changed since the first weights, and of its distance from the last weights."
    )
    report = "\n\n".join([head, machine(), what, "\n".join(lines), target]) + "\n"
    print(report)
    if options.out:
        options.out.write_text(report)
    return int(missed)


def trained(place: Path, images: int) -> Run:
    """The run, which may be there already."""
    changes = {
        "data": {"image_size": 8, "workers": 0},
        "model": {"network": {"num_channels": 32, "channel_mult": (1, 2), "attention_resolutions": (4,)}},
        "train": {"total_images": images, "batch_size": BATCH, "sample_count": 0, "validate_images": 0, "precision": "float32"},
        "optim": {"learning_rate": 1e-3},
        "log": {"report": False},
    }
    config = load_recipe("adm-digits").updated(changes)
    averages = {"ema_lengths": (*TRACKED, *LENGTHS, *BEYOND), "snapshot_every": images // SNAPSHOTS}
    return train(replace(config, train=replace(config.train, **averages)), place, device="cpu")


def compared(run: Run, images: int) -> tuple[list[str], bool]:
    """The lines of the table, and whether the target is missed."""
    live = averaged_state(build(run.config, run.spec))
    names = [name for name, tensor in live.items() if isinstance(tensor, torch.nn.Parameter)]

    def flat(tensors: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([tensors[name].detach().float().flatten() for name in names])

    @cache
    def read(part: Tracked) -> Tensor:
        return flat(load_checkpoint(part.folder, files=(part.stem,)).files[part.stem])

    first, last = flat(live), flat(run.tensors(weights="raw"))
    parts = [part for part in tracked_averages(run.paths, images) if part.stem in map(length_name, TRACKED)]
    parts = list({part.profile: part for part in parts}.values())
    lines = [
        "| length | snapshots | residual | error, of the change | in fp16 | error, of the distance from the last weights | in fp16 |",
        "|---|---|---|---|---|---|---|",
    ]
    missed = False
    for length in (*LENGTHS, *BEYOND):
        wanted = flat(run.tensors(weights=length_name(length)))
        change, distance = ((wanted - other).norm() for other in (first, last))
        for count in (SNAPSHOTS, SNAPSHOTS // 2, SNAPSHOTS // 4):
            chosen = [part for part in parts if part.profile.images % (images // count) == 0]
            found = combination([part.profile for part in chosen], Profile(images, exponent_of(length)))
            off = [error(chosen, found.coefficients, wanted, read, dtype) for dtype in (torch.float32, torch.float16)]
            missed |= count == SNAPSHOTS and length in LENGTHS and max(off) > AT_MOST * change
            shares = [
                f"{value / whole:.2%}" if value > 1e-4 * whole else f"{value / whole:.4%}" for whole in (change, distance) for value in off
            ]
            lines.append(f"| {length} | {count} | {found.residual:.2%} | {' | '.join(shares)} |")
    return lines, bool(missed)


def error(parts: Sequence[Tracked], factors: np.ndarray, wanted: Tensor, read: Callable[[Tracked], Tensor], dtype: torch.dtype) -> Tensor:
    """The norm of the difference of the sum of the parts, stored as `dtype`, to what is wanted."""
    total = torch.zeros_like(wanted, dtype=torch.float64)
    for part, factor in zip(parts, factors.tolist(), strict=True):
        total.add_(read(part).to(dtype).double(), alpha=factor)
    return (total - wanted.double()).norm()


def picture(path: Path) -> None:
    """Draws profiles of power averages at two times, and of an exponential one."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 2.8), constrained_layout=True)
    for images, style in ((1.0, "-"), (0.5, "--")):
        at = np.linspace(0, images, 1000)
        for colour, length in enumerate((0.05, 0.1, 0.2)):
            exponent = exponent_of(length)
            label = f"length {length}" if images == 1 else None
            axes[0].plot(at, (exponent + 1) * (at / images) ** exponent / images, style, color=f"C{colour}", label=label)
        decay = np.exp(-(images - at) / 0.08) / 0.08
        axes[0].plot(at, decay, style, color="0.6", label="by half-life" if images == 1 else None)
    axes[0].set(xlabel="images, as a share of the run", ylabel="weight", title="half-way (dashed) and at the end", ylim=(0, 19))
    axes[0].legend(frameon=False)
    at, times = np.linspace(0, 1, 2000), np.arange(1, 9) / 8
    given = [Profile(t, exponent_of(length)) for t in times for length in TRACKED]
    wanted = Profile(1.0, exponent_of(0.2))
    found = combination(given, wanted)
    for factor, (t, exponent) in zip(found.coefficients, given, strict=True):
        axes[1].plot(at, np.where(at <= t, factor * (exponent + 1) * (at / t) ** exponent / t, 0), color="0.75", lw=0.8)
    total = sum(
        factor * np.where(at <= t, (g + 1) * (at / t) ** g / t, 0) for factor, (t, g) in zip(found.coefficients, given, strict=True)
    )
    axes[1].plot(at, total, color="C2", label="put together")
    axes[1].plot(at, (wanted.exponent + 1) * at**wanted.exponent, ":", color="k", label="length 0.2")
    axes[1].set(xlabel="images, as a share of the run", title=f"out of 8 snapshots (grey): residual {found.residual:.1%}")
    axes[1].legend(frameon=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
