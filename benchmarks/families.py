"""The families at equal minutes of training: how much their samples are like the real images, and how alike to one another.

    python benchmarks/families.py --runs DIR --out FILE.md adm-digits glow-digits r3gan-digits stylegan2-digits
    python benchmarks/families.py --runs DIR --out FILE.md --data MNIST r3gan-mnist stylegan2-mnist

Each recipe is trained for as many images as 40 core-minutes give, which is 20 minutes of two cores: by the processor time of its steps,
so that other programs on the machine change little. A schedule that ends with the run ends with the minutes. A run that is there already
is taken as it is, or goes on. With --train-only nothing is measured, so that two of them train at once, a thread each. Then 1,000
samples, of a GAN 5,000, labels in turn where the model takes them, are shown to a small classifier that this script trains on the real
training images. Targets, of each GAN: all classes, each at a half to twice its share of the real images; at least 85 % recognised with
a confidence above 0.8. Beside them the Frechet distance, precision and recall of the evaluator, of 1,000 samples, against the training
images, in one feature space. Exit code 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import datetime
import math
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from machine import machine
from torch import Tensor, nn

from triptych.core.images import grid, save_picture
from triptych.data.config import DataConfig
from triptych.engine.metric_log import read_metrics
from triptych.gans.from_noise import NoiseGANConfig
from triptych.recipes.catalogue import load_recipe
from triptych.recipes.config import RunConfig
from triptych.runs import Run, open_run, score, train

COUNT, GAN_COUNT, CONFIDENT, CONFIDENT_AT_LEAST, MOST_UNEVEN = 1_000, 5_000, 0.8, 0.85, 2.0
MOST_READ, CLASSIFIER_IMAGES, CLASSIFIER_BATCH = 60_000, 64_000, 64
WARM_UP_STEPS, TIMED_STEPS = 20, 60
METRICS = ("frechet", "precision", "recall")


# Training ------------------------------------------------------------------------------------------------------------


def configured(recipe: str, data: str | None) -> RunConfig:
    """The recipe, on the user's data where there is some."""
    config = load_recipe(recipe)
    return config if data is None else replace(config, data=replace(config.data, path=data))


def speed(config: RunConfig) -> float:
    """Images seen in a second of one core, without grids and evaluation: by how much longer a longer run takes, once all is imported."""
    drawn = config.train.batch_size * (2 if getattr(config.model, "fresh_images", False) else 1)
    _, long, short = (_core_seconds(config, steps * drawn) for steps in (WARM_UP_STEPS, WARM_UP_STEPS + TIMED_STEPS, WARM_UP_STEPS))
    return TIMED_STEPS * drawn / (long - short)


def _core_seconds(config: RunConfig, images: int) -> float:
    """Processor time of a run of so many images, its start and its checkpoint included."""
    looks = {"sample_count": 0, "validate_images": 0, "evaluate_every": None, "best_by": "validation", "checkpoint_every": None}
    with tempfile.TemporaryDirectory() as scratch:
        start = time.process_time()
        train(replace(config, train=replace(config.train, total_images=images, **looks)), Path(scratch) / "run")
        return time.process_time() - start


def trained(recipe: str, folder: Path, *, minutes: float, data: str | None) -> Run:
    """The run in the folder, trained for so many core-minutes first where it is not there yet; one that is not finished goes on."""
    if (folder / "config.json").is_file():
        config = open_run(folder).config
    else:
        config = configured(recipe, data)
        images = int(60 * minutes * speed(config))
        config = replace(config, train=replace(config.train, total_images=images))
    return train(config, folder, recipe=recipe)


# The classifier ------------------------------------------------------------------------------------------------------


def network(channels: int, classes: int) -> nn.Module:
    """Three convolutions, of which two halve the size, and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(64 * 16, classes),
    )


def as_input(images: np.ndarray) -> Tensor:
    """uint8 (n, h, w, c) as (n, c, h, w) from -1 to 1."""
    return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float() / 127.5 - 1


def classifier(images: np.ndarray, labels: np.ndarray, *, classes: int) -> nn.Module:
    """The network, trained on real images with shifts by a pixel, and always with the same draws."""
    torch.manual_seed(0)
    model, draws = network(images.shape[-1], classes), np.random.default_rng(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps = CLASSIFIER_IMAGES // CLASSIFIER_BATCH
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        chosen = draws.integers(0, len(images), CLASSIFIER_BATCH)
        shift = tuple(int(pixels) for pixels in draws.integers(-1, 2, 2))
        logits = model(torch.roll(as_input(images[chosen]), shift, (2, 3)))
        F.cross_entropy(logits, torch.from_numpy(labels[chosen]), label_smoothing=0.0).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model.eval()


@torch.no_grad()
def probabilities(model: nn.Module, images: np.ndarray) -> np.ndarray:
    """Of each class, (n, classes)."""
    parts = [F.softmax(model(as_input(images[k : k + 500])), dim=1).numpy() for k in range(0, len(images), 500)]
    return np.concatenate(parts)


# The report ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judge:
    """A classifier and what it says of the real images."""

    model: nn.Module
    shares: np.ndarray
    "Of each class among the training images."
    accuracy: float
    confident: float
    "Share of the held-out images that it recognises with confidence."
    held_out: int

    @classmethod
    def of(cls, config: RunConfig) -> Judge:
        """Trained on the training images of a run's data; measured on its held-out images."""
        assert isinstance(config.data, DataConfig)
        data = config.data.open()
        assert data.validation is not None and data.spec.num_classes is not None
        (images, labels), (others, truth) = (_all(part) for part in (data.train, data.validation))
        model = classifier(images, labels, classes=data.spec.num_classes)
        found = probabilities(model, others)
        shares = np.bincount(labels, minlength=data.spec.num_classes) / len(labels)
        return cls(model, shares, float((found.argmax(1) == truth).mean()), float((found.max(1) > CONFIDENT).mean()), len(truth))


def _all(part) -> tuple[np.ndarray, np.ndarray]:
    batch = part.batch(np.arange(min(len(part), MOST_READ)))
    return np.asarray(batch.images), np.asarray(batch.labels)


def row(recipe: str, run: Run, judge: Judge, *, features: str | None, picture: Path | None) -> tuple[str, bool]:
    """A line of the table, and whether the targets are reached."""
    conditional = getattr(run.config.model, "class_conditional", False)
    labels = list(range(len(judge.shares))) if conditional else None
    count = GAN_COUNT if isinstance(run.config.model, NoiseGANConfig) else COUNT
    images = run.sample(count, seed=0, labels=labels).images
    if picture is not None:
        save_picture(grid(images[:64], columns=8), picture)
    found = probabilities(judge.model, images)
    shares = np.bincount(found.argmax(1), minlength=len(judge.shares)) / count
    expected = np.full(len(shares), 1 / len(shares)) if conditional else judge.shares
    ratios = shares / expected
    uneven = max(ratios.max(), 1 / ratios.min()) if ratios.min() > 0 else math.inf
    confident = float((found.max(1) > CONFIDENT).mean())
    figures = score(run.directory, metrics=METRICS, features=features, count=COUNT).figures
    told = " | ".join(f"{figure.value:.3g} ± {figure.error:.2g}" if figure.error else f"{figure.value:.3g}" for figure in figures.values())
    lines = read_metrics(run.directory / "metrics.jsonl")
    hours, seen = max(line["time"] for line in lines) / 3600, run.find_checkpoint()
    classes = f"{int((shares > 0).sum())} of {len(shares)}, {ratios.min():.2f} to {ratios.max():.2f}"
    passed = uneven <= MOST_UNEVEN and confident >= CONFIDENT_AT_LEAST
    return f"| {recipe} | {seen} | {hours:.2f} | {classes} | {confident:.1%} | {told} |", passed


def main() -> int:
    """0, or 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+", help="all on the same images")
    parser.add_argument("--minutes", type=float, default=40.0, help="of one core, for the training of each")
    parser.add_argument("--train-only", action="store_true", help="train the runs and measure nothing")
    parser.add_argument("--data", help="data.path; without it the built-in digits")
    parser.add_argument("--features", help="feature space; without it the evaluator's default")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--out", type=Path, help="also write the report to this file; pictures go beside it")
    options = parser.parse_args()
    if options.train_only:
        for recipe in options.recipes:
            trained(recipe, options.runs / recipe, minutes=options.minutes, data=options.data)
        return 0
    judge = Judge.of(configured(options.recipes[0], options.data))
    head = [
        f"# The families at {options.minutes:g} core-minutes each, {datetime.date.today().isoformat()}",
        "",
        f"{machine()}. {COUNT} samples of each, seed 0; for the classes of a GAN's, {GAN_COUNT}. The classifier recognises "
        f"{judge.accuracy:.1%} of {judge.held_out} held-out real images, {judge.confident:.1%} of them "
        f"with a confidence above {CONFIDENT}.",
        "",
        f"| recipe | images seen | hours of the clock | classes, and their shares against those of the data | confidence above {CONFIDENT} "
        f"| {' | '.join(METRICS)} |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows, missed = [], []
    for recipe in options.recipes:
        run = trained(recipe, options.runs / recipe, minutes=options.minutes, data=options.data)
        picture = None if options.out is None else options.out.with_name(f"{options.out.stem}-{recipe}.png")
        line, passed = row(recipe, run, judge, features=options.features, picture=picture)
        rows.append(line)
        print(line, flush=True)
        if not passed and isinstance(run.config.model, NoiseGANConfig):
            missed.append(recipe)
        verdict = f"A target was MISSED by: {', '.join(missed)}." if missed else "All targets reached."
        if options.out:
            options.out.write_text("\n".join([*head, *rows, "", verdict]) + "\n", encoding="utf-8")
    print("\n".join([*head, *rows, "", verdict]))
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
