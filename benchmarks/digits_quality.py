"""How good the samples of an adm-digits run are: recognised by a classifier of the real digits, and not copied from them.

    python benchmarks/digits_quality.py --run runs/adm-digits-demo --out FILE.md
    python benchmarks/digits_quality.py --train          (trains the recipe first, in a temporary directory)

500 samples, 50 of each label, are brought back to the 8x8 pixels of 0 to 16 that the data set has. Targets: at least 90 % are
recognised as their label, and fewer than 1 % are nearer to a real image than two different real images ever are.

The way back matters. The mean over each block of pixels blurs: it moves an exact copy of a real image by 7 to 10, so that no copy
would ever be found within 5.3. The least-squares inverse of the bicubic enlargement moves it by less than 4 and is what the targets
use; the script sends the real images the same way and fails unless it finds every one of them. Exit code 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
import time
from importlib import resources
from pathlib import Path

import numpy as np
from machine import machine
from PIL import Image

from triptych.data.config import DataConfig
from triptych.recipes.diffusion import adm_digits
from triptych.runs import Run, open_run, train

PER_LABEL, CLASSES = 50, 10
RECOGNISED_AT_LEAST, COPIES_BELOW, CLASSIFIER_AT_LEAST = 0.90, 0.01, 0.97
DISTINCT = 5.3  # just above the distance of the closest two real images, which the script computes
FOLDS, NEIGHBOURS = 5, 3


def reduction(size: int) -> np.ndarray:
    """(8, size): the least-squares inverse of Pillow's bicubic enlargement of a line of 8 pixels."""
    unit = np.eye(8, dtype=np.float32)
    enlargement = [np.asarray(Image.fromarray(line[None]).resize((size, 1), Image.Resampling.BICUBIC))[0] for line in unit]
    return np.linalg.pinv(np.stack(enlargement, axis=1).astype(np.float64))


def reduced(images: np.ndarray) -> np.ndarray:
    """uint8 images (n, s, s, 1) as float64 (n, 64) on the scale 0 to 16, by the inverse of the enlargement."""
    inverse = reduction(images.shape[1])
    return (inverse @ images[..., 0].astype(np.float64) @ inverse.T).reshape(len(images), -1) * (16 / 255)


def block_means(images: np.ndarray) -> np.ndarray:
    """The same by the mean over each block of pixels."""
    side = images.shape[1] // 8
    return images[..., 0].reshape(len(images), 8, side, 8, side).mean((2, 4)).reshape(len(images), -1) * (16 / 255)


def distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Euclidean distances (len(a), len(b))."""
    squared = (a**2).sum(1)[:, None] + (b**2).sum(1)[None] - 2 * a @ b.T
    return np.sqrt(np.maximum(squared, 0))


class Neighbours:
    """Three nearest neighbours among the real images and their shifts by one pixel; a tie goes to the nearest."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        padded = np.pad(images.reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
        corners = ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))
        self._images = np.concatenate([padded[:, top : top + 8, left : left + 8].reshape(-1, 64) for top, left in corners])
        self._labels = np.tile(labels, len(corners))

    def predict(self, images: np.ndarray) -> np.ndarray:
        """The label of each image."""
        near = np.argsort(distances(images, self._images), axis=1, kind="stable")[:, :NEIGHBOURS]
        votes = self._labels[near]
        agreeing = (votes[:, :, None] == votes[:, None, :]).sum(2)
        return votes[np.arange(len(votes)), agreeing.argmax(1)]


def held_out_accuracy(images: np.ndarray, labels: np.ndarray) -> float:
    """Share of real images that classifiers fitted on the other folds recognise."""
    fold = np.arange(len(images)) % FOLDS
    right = [Neighbours(images[fold != k], labels[fold != k]).predict(images[fold == k]) == labels[fold == k] for k in range(FOLDS)]
    return float(np.concatenate(right).mean())


def nearest_within_class(images: np.ndarray, labels: np.ndarray) -> float:
    """Mean distance of an image to the nearest other one of its class: how much a set of this size varies."""
    gaps = distances(images, images) + np.where(labels[:, None] == labels[None], 0.0, np.inf)
    np.fill_diagonal(gaps, np.inf)
    return float(gaps.min(1).mean())


def first_of_each(labels: np.ndarray, count: int) -> np.ndarray:
    """Indices of the first `count` images of every class."""
    return np.concatenate([np.flatnonzero(labels == label)[:count] for label in range(CLASSES)])


def assess(run: Run, seed: int) -> tuple[list[str], bool]:
    """The lines of the report, and whether all targets are reached."""
    with np.load(Path(str(resources.files("triptych.data"))) / "assets" / "digits.npz") as digits:
        real, labels = digits["images"].reshape(-1, 64).astype(np.float64), digits["labels"].astype(np.int64)
    start = time.perf_counter()
    samples = run.sample(PER_LABEL * CLASSES, seed=seed, labels=list(range(CLASSES)))
    seconds = time.perf_counter() - start
    assert samples.labels is not None
    among_real = distances(real, real)
    np.fill_diagonal(among_real, np.inf)
    passed, lines = check_method(run, real, among_real.min())

    images = reduced(samples.images)
    found = Neighbours(real, labels).predict(images)
    right = found == samples.labels
    blurred = Neighbours(real, labels).predict(block_means(samples.images)) == samples.labels
    gaps = distances(images, real).min(1)
    copies = float((gaps < DISTINCT).mean())
    accuracy = held_out_accuracy(real, labels)
    own, theirs = nearest_within_class(images, samples.labels), first_of_each(labels, PER_LABEL)
    passed &= accuracy >= CLASSIFIER_AT_LEAST and right.mean() >= RECOGNISED_AT_LEAST and copies < COPIES_BELOW
    table = [
        ("samples recognised as their label", f"{right.mean():.1%}", f"at least {RECOGNISED_AT_LEAST:.0%}"),
        (f"samples nearer than {DISTINCT} to a real image", f"{copies:.1%}", f"below {COPIES_BELOW:.0%}"),
        ("the classifier on held-out real digits", f"{accuracy:.1%}", f"at least {CLASSIFIER_AT_LEAST:.0%}"),
        ("samples recognised after block means instead", f"{blurred.mean():.1%}", ""),
        ("distance of a sample to the nearest real image: least, median", f"{gaps.min():.2f}, {np.median(gaps):.2f}", ""),
        ("distance of a real image to the nearest other: least, median", f"{among_real.min():.2f}, {np.median(among_real.min(1)):.2f}", ""),
        ("distance to the nearest of 50 of the same class: mean among samples", f"{own:.2f}", ""),
        ("the same among real images", f"{nearest_within_class(real[theirs], labels[theirs]):.2f}", ""),
        (f"seconds for {len(images)} samples", f"{seconds:.0f}", ""),
    ]
    by_class = ", ".join(f"{label}: {right[samples.labels == label].mean():.0%}" for label in range(CLASSES))
    lines = [
        "| what | value | target |",
        "|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in table),
        "",
        f"By label: {by_class}.",
        *lines,
    ]
    return lines, passed


def check_method(run: Run, real: np.ndarray, closest: float) -> tuple[bool, list[str]]:
    """Whether the script could find copies at all: the real images, enlarged by the data pipeline, come back as themselves."""
    data = run.config.data.open()
    enlarged = [np.asarray(part.batch(np.arange(len(part))).images) for part in (data.train, data.validation) if part is not None]
    moved = distances(reduced(np.concatenate(enlarged)), real).min(1)
    found = float((moved < DISTINCT).mean())
    lines = [
        f"Check of the method: of the real images, enlarged as for training and brought back, {found:.1%} lie nearer than {DISTINCT} to "
        f"a real one (largest distance {moved.max():.2f}); the closest two different real images are {closest:.3f} apart."
    ]
    return found == 1.0 and closest < DISTINCT, lines


def main() -> int:
    """0, or 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--run", type=Path, metavar="DIR", help="a run of adm-digits, such as that of `make demo`")
    source.add_argument("--train", action="store_true", help="train the recipe first, in a temporary directory, and time it")
    parser.add_argument("--seed", type=int, default=0, help="seed of the samples")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        training = ""
        run_dir = options.run or Path(scratch) / "run"
        if options.train:
            start = time.perf_counter()
            train(adm_digits(), run_dir, recipe="adm-digits")
            training = f" Training, grids and checkpoints included, took {(time.perf_counter() - start) / 60:.1f} minutes."
        run = open_run(run_dir)
        if not isinstance(run.config.data, DataConfig) or run.config.data.source != "digits":
            parser.error(f"{run_dir} was not trained on the built-in digits")
        lines, passed = assess(run, options.seed)
        seen = run.find_checkpoint()
    head = f"# Samples of adm-digits, {datetime.date.today().isoformat()}\n\n{seen} images seen; sample seed {options.seed}.{training}\n"
    head += f"\n{machine()}\n"
    report = "\n".join([head, *lines, "", "All targets reached." if passed else "A target was MISSED."]) + "\n"
    print(report)
    if options.out:
        options.out.write_text(report)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
