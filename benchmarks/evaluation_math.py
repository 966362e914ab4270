"""Metrics of feature sets: time and memory at the sizes that are published, and whether their intervals hold what they should.

Frechet distance at 2048 features beside scipy's matrix square root; precision and recall of 10,000 against 10,000 images; and of each
metric the share of 95 % intervals (value +- 1.96 errors) of repeated draws that hold the mean over the draws, the reference being fixed.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # one core; give another number to use more

import argparse
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.linalg
from machine import machine

from triptych.evaluation.feature_set import FeatureSet, SetMetricConfig
from triptych.evaluation.frechet import frechet_distance
from triptych.evaluation.moments import Moments, moments_of
from triptych.evaluation.set_metric import SET_METRICS

FEATURES = 2048
IMAGES = 10_000
CLUSTERS = 12
SIZES = ((64, 1500, 6000), (1280, 1600, 3200))
"""Features, made images and images of the reference, of the intervals."""


def main() -> int:
    """Prints the tables; exits with 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--only", choices=("speed", "neighbours", "intervals"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines, good = list[str](), True
    parts = {"speed": speed, "neighbours": neighbours, "intervals": lambda: intervals(options.draws)}
    for name in [options.only] if options.only else parts:
        told, reached = parts[name]()
        print("\n".join(told), flush=True)
        lines += told
        good &= reached
    lines += ["", f"{os.environ['OMP_NUM_THREADS']} threads of BLAS; {machine()}"]
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")
    return 0 if good else 1


class Mixture:
    """Features like a network's: clusters, strong directions in each, some features often zero. Draws of one seed are the same."""

    def __init__(self, dimensions: int, *, clusters: int = CLUSTERS) -> None:
        rng = np.random.default_rng([7, dimensions])
        self._centres = rng.standard_normal((CLUSTERS, dimensions))[:clusters]
        self._directions = rng.standard_normal((CLUSTERS, min(dimensions, 24), dimensions))[:clusters] / 4
        self._classes = rng.standard_normal((dimensions, 20)) / dimensions**0.5

    def draw(self, count: int, *, seed: int, scale: float = 1.0) -> FeatureSet:
        """`count` images, with logits of 20 classes."""
        rng = np.random.default_rng(seed)
        cluster = rng.integers(len(self._centres), size=count)
        x = self._centres[cluster]
        for number, directions in enumerate(self._directions):
            own = cluster == number
            x[own] += rng.standard_normal((own.sum(), len(directions))) @ directions
        x = scale * np.maximum(x + rng.standard_normal(x.shape) / 4 + 0.5, 0)
        return FeatureSet({"features": x.astype(np.float32), "spatial": x[:, ::2].astype(np.float32), "logits": 2 * x @ self._classes})


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """What it takes of the clock and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - clock, time.process_time() - processor


def speed() -> tuple[list[str], bool]:
    """The Frechet distance from moments, and with its error from features, beside scipy.linalg.sqrtm."""
    made, reference = Mixture(FEATURES).draw(IMAGES, seed=1, scale=1.02), Mixture(FEATURES).draw(IMAGES, seed=2)
    own, other = moments_of(made.array("features")), moments_of(reference.array("features"))
    result = frechet_distance(own, other)
    clock, processor = seconds(lambda: frechet_distance(own, other))
    expected = list[float]()
    scipy_clock, scipy_processor = seconds(lambda: expected.append(by_square_root(own, other)))
    whole = seconds(lambda: SET_METRICS["frechet"].measure(made, reference, SetMetricConfig()))
    off = abs(result.value / expected[0] - 1)
    rows = [
        f"| Triptych, from moments | {result.value:.9f} | {clock:.1f} | {processor:.1f} |",
        f"| scipy.linalg.sqrtm, from moments | {expected[0]:.9f} | {scipy_clock:.1f} | {scipy_processor:.1f} |",
        f"| Triptych, with moments and error, from {IMAGES} + {IMAGES} images | | {whole[0]:.1f} | {whole[1]:.1f} |",
    ]
    head = ["", f"Frechet distance, {FEATURES} features", "", "| | value | s | s of processor |", "|---|---|---|---|"]
    good = off < 1e-6 and processor < 10
    return [
        *head,
        *rows,
        "",
        f"Difference {off:.1e} (target 1e-6); {processor:.1f} s of one core (target 10): {'met' if good else 'MISSED'}",
    ], good


def by_square_root(own: Moments, other: Moments) -> float:
    """The distance by the square root of the product, which is not symmetric."""
    root = scipy.linalg.sqrtm(own.covariance @ other.covariance)
    return float(np.sum((own.mean - other.mean) ** 2) + np.trace(own.covariance + other.covariance) - 2 * np.trace(root).real)


def neighbours() -> tuple[list[str], bool]:
    """All metrics of neighbours, which share one comparison."""
    made, reference = Mixture(FEATURES).draw(IMAGES, seed=3, scale=1.02), Mixture(FEATURES).draw(IMAGES, seed=4)
    reset_peak()
    before, figures = peak(), dict[str, float]()
    names = ["precision", "recall", "prdc-precision", "prdc-recall", "density", "coverage", "authenticity", "copies"]

    def measure() -> None:
        for name in names:
            figures[name] = SET_METRICS[name].measure(made, reference, SetMetricConfig()).value

    clock, processor = seconds(measure)
    memory = peak() - before
    good = processor < 60 and memory < 1000
    told = ", ".join(f"{name} {value:.3f}" for name, value in figures.items())
    head = ["", f"Metrics of neighbours, {IMAGES} against {IMAGES} images, {FEATURES} features", ""]
    line = f"{clock:.0f} s, {processor:.0f} s of processor (target 30 s on two cores), {memory:.0f} MB beside the features (target 1000)"
    return [*head, f"{line}: {'met' if good else 'MISSED'}", "", told], good


def reset_peak() -> None:
    """Peak memory counts from here, where the system can do that."""
    place = Path("/proc/self/clear_refs")
    if place.exists():
        place.write_text("5")


def peak() -> float:
    """The most memory since `reset_peak`, in MB."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) / 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def intervals(draws: int) -> tuple[list[str], bool]:
    """How often the intervals hold the mean: the made images lack two clusters and are a little larger."""
    head = ["", f"Intervals of 95 %: {draws} draws against one reference; sd over the draws, mean error, share that hold the mean", ""]
    rows, good = ["| features | images | metric | mean | sd | error | share |", "|---|---|---|---|---|---|---|"], True
    for dimensions, images, references in SIZES:
        reference = Mixture(dimensions).draw(references, seed=5)
        settings = SetMetricConfig(kid_subsets=10, kid_subset_size=500)
        found = {name: np.empty((draws, 2)) for name in SET_METRICS}
        for draw in range(draws):
            made = Mixture(dimensions, clusters=CLUSTERS - 2).draw(images, seed=100 + draw, scale=1.02)
            for name, metric in SET_METRICS.items():
                figure = metric.measure(made, reference, settings)
                found[name][draw] = figure.value, figure.error
        for name, (values, errors) in ((name, pair.T) for name, pair in found.items()):
            share = float((abs(values - values.mean()) < 1.96 * errors).mean())
            if name in ("frechet", "sfid", "kid"):
                good &= 0.9 <= share <= 0.99
            rows.append(
                f"| {dimensions} | {images} | {name} | {values.mean():.4f} | {values.std(ddof=1):.4f} | {errors.mean():.4f} | {share:.1%} |"
            )
    return [*head, *rows, "", f"Frechet and kernel distances 90 to 99 %: {'met' if good else 'MISSED'}"], good


if __name__ == "__main__":
    sys.exit(main())
