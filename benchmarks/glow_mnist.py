"""Glow on MNIST: the curve of its bits per dimension, and samples.

    python benchmarks/glow_mnist.py --data DIR --run RUN --out FILE.png

Trains `glow-mnist` with bf16 for about 20 minutes of two CPU cores, 700,000 images (or takes the run that is there),
and draws the curves of training and of validation on all 10,000 test images, with their standard error, beside 64 samples. DIR is the
folder of the four idx files. Prints bits per dimension on the test images, by the moving average of the weights.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
from machine import machine

from triptych.core.images import grid
from triptych.engine.metric_log import read_metrics
from triptych.recipes.flows import glow_mnist
from triptych.runs import Run, open_run, train

IMAGES = 700_000
_TERM = "likelihood/bits_per_dim"


def trained(run: Path, data: str | None, images: int) -> Run:
    """The run in a directory, trained first where there is none yet."""
    if (run / "config.json").is_file():
        return open_run(run)
    recipe = glow_mnist()
    return train(
        replace(recipe, data=replace(recipe.data, path=data), train=replace(recipe.train, precision="bf16", total_images=images)),
        run,
        recipe="glow-mnist",
    )


def draw(run: Run, out: Path) -> None:
    """Writes the curves and the samples as a picture."""
    lines = read_metrics(run.directory / "metrics.jsonl")
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), width_ratios=(1.25, 1))
    points = [(line["images"], line[_TERM]) for line in lines if _TERM in line]
    left.plot(*zip(*points, strict=True), label="training, present weights", linewidth=1)
    name = f"validation/{_TERM}"
    held_out = [(line["images"], line[name], line[f"{name}_standard_error"]) for line in lines if name in line]
    images, means, errors = zip(*held_out, strict=True)
    left.errorbar(images, means, yerr=errors, marker="o", markersize=4, capsize=3, label="test images, averaged weights")
    left.set(xlabel="images seen", ylabel="bits per dimension", ylim=(min(means) - 0.15, 3.2))
    left.grid(alpha=0.3)
    left.legend()
    right.imshow(grid(run.sample(64).images, columns=8).squeeze(), cmap="gray", vmin=0, vmax=255)
    right.set_axis_off()
    figure.tight_layout()
    figure.savefig(out, dpi=110)


def main() -> int:
    """0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder of MNIST's idx files")
    parser.add_argument("--run", type=Path, default=Path("runs/glow-mnist"))
    parser.add_argument("--images", type=int, default=IMAGES, help="images seen by the training")
    parser.add_argument("--out", type=Path, help="also draw the curves and samples to this file")
    options = parser.parse_args()
    run = trained(options.run, options.data, options.images)
    figures = run.evaluate().figures["bits-per-dim"]
    print(f"{figures['bits_per_dim']:.4f} bits per dimension on the test images, standard error {figures['standard_error']:.4f}")
    print(machine())
    if options.out:
        draw(run, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
