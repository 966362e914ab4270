"""Does ADA help where images are few? stylegan2-digits on 200 digits of MNIST, with and without it, by three seeds each.

    python benchmarks/ada_digits.py --mnist DIR --features LENET.pth --folder runs/ada-digits --out benchmarks/results/FILE.md

Twenty training digits of each class are learned, 16x16. At every sixth of the training 5,000 samples are compared with 5,000 test digits by
the Frechet distance in the features of a LeNet trained by others on MNIST, with recall beside it. Targets: for every seed the distance at
the end is lower with ADA, and so is the lowest of a training; the mean sign of the discriminator's scores of real images stays within 0.1
of its target over the last half. Exit code 1 when one is missed.

R1 falls from the recipe's 0.5 to 0.02 in the first three tenths of a training. Left at 0.5 it alone keeps the discriminator from being sure
of 200 digits (mean sign 0.45 after 77,000 images), so that ADA has nothing to do. At 0.05 from the start the generator, with ADA or not,
makes one digit alone within 20,000 images. So it does in a training of 57,600, where R1 falls before digits vary. Without ADA p is 1e-9,
at which no change ever happens, but signs are logged.

The script can be interrupted: runs go on from their checkpoints. --images and --count shorten it. `--seeds 1` names one seed, so that many
can be trained at a time; the whole command afterwards writes the table.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from machine import machine
from PIL import Image

from triptych.core.ramp import Ramp
from triptych.data.config import DataConfig
from triptych.engine.config import LogConfig
from triptych.engine.metric_log import read_metrics
from triptych.gans.stylegan2 import StyleGAN2Config
from triptych.recipes.catalogue import load_recipe
from triptych.recipes.config import RunConfig
from triptych.runs import train
from triptych.runs.scoring import score

PER_CLASS, HELD_OUT, LOOKS, SIZE, LOGGED = 20, 5_000, 6, 16, 1_600
SHOWN, GAP = 60, 12
TARGET, WITHIN = 0.6, 0.1
R1_START, R1_END, R1_SHARE = 0.5, 0.02, 0.3
"""The weight of R1 at first and later, and the share of the training in which it falls."""
VARIANTS = {"without": False, "with": True}


@dataclass(frozen=True)
class Outcome:
    """What became of a run."""

    images: list[int]
    distances: list[float]
    recall: list[float]
    sign: float
    "Mean over the last half."
    p: float
    "At the end."
    minutes: float


def mnist(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """uint8 digits (n, 32, 32, 1) and their classes (n,)."""
    with gzip.open(folder / f"{part}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), dtype=np.uint8, offset=16).reshape(-1, 28, 28)
    with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), dtype=np.uint8, offset=8)
    return np.pad(pixels, ((0, 0), (2, 2), (2, 2)))[..., None], labels


def write_sets(source: Path, folder: Path) -> tuple[Path, Path]:
    """The training and the held-out digits, written where they are not there yet."""
    few, held_out = folder / "training.npz", folder / "held-out.npz"
    if not (few.is_file() and held_out.is_file()):
        folder.mkdir(parents=True, exist_ok=True)
        digits, labels = mnist(source, "train")
        first = np.concatenate([np.flatnonzero(labels == label)[:PER_CLASS] for label in range(10)])
        np.savez_compressed(few, arr_0=digits[first], arr_1=labels[first].astype(np.int64))
        np.savez_compressed(held_out, arr_0=mnist(source, "t10k")[0][:HELD_OUT])
    return few, held_out


def configuration(few: Path, *, steered: bool, seed: int, images: int) -> RunConfig:
    """The recipe on those digits, with the falling weight of R1."""
    recipe, every = load_recipe("stylegan2-digits"), images // LOOKS
    assert isinstance(recipe.model, StyleGAN2Config)
    ada = replace(recipe.model.ada, target=TARGET) if steered else replace(recipe.model.ada, target=None, p=1e-9)
    falling = Ramp(start=R1_START, end=R1_END, images=int(R1_SHARE * images))
    looks = {
        "checkpoint_every": every,
        "keep_every": every,
        "sample_every": every,
        "sample_count": SHOWN,
        "evaluate_every": None,
        "best_by": "validation",
    }
    return replace(
        recipe,
        model=replace(recipe.model, ada=ada, penalty=replace(recipe.model.penalty, r1_gamma=falling)),
        data=DataConfig(path=str(few), image_size=SIZE, flip=False, validation_fraction=0.0, workers=0),
        train=replace(recipe.train, total_images=images, seed=seed, precision="float32", validate_images=0, **looks),
        log=LogConfig(every=LOGGED, report=False),
    )


def outcome(name: str, config: RunConfig, held_out: Path, *, features: Path, folder: Path, count: int) -> Outcome:
    """Trains the run, or goes on with it, and measures its checkpoints."""
    print(f"{time.strftime('%H:%M:%S')} {name}: training to {config.train.total_images} images", flush=True)
    run = train(config, folder / name)
    if run.find_checkpoint() < config.train.total_images:
        sys.exit("interrupted; the same command goes on")
    every, distances, recall = config.train.checkpoint_every or 0, [], []
    looks = [every * (look + 1) for look in range(LOOKS)]
    for seen in looks:
        found = score(
            folder / name,
            held_out,
            metrics=["frechet", "recall"],
            features="mnist-lenet",
            features_weights=features,
            count=count,
            checkpoint=str(seen),
        )
        distances.append(found.figures["fd-mnist-lenet"].value)
        recall.append(found.figures["recall"].value)
        print(f"{time.strftime('%H:%M:%S')} {name}: {seen} images, distance {distances[-1]:.2f}, recall {recall[-1]:.3f}", flush=True)
    lines = [line for line in read_metrics(run.directory / "metrics.jsonl") if "discriminator/ada_sign" in line]
    late = [line["discriminator/ada_sign"] for line in lines if line["images"] > config.train.total_images / 2]
    seconds = sum(LOGGED / line["images_per_second"] for line in lines)
    return Outcome(looks, distances, recall, float(np.mean(late)), lines[-1]["discriminator/ada_p"], seconds / 60)


def picture(folder: Path, seeds: list[int], images: int) -> Image.Image:
    """The last grids of the runs, those without ADA on the left."""
    rows = []
    for seed in seeds:
        grids = [
            np.asarray(Image.open(sorted((folder / f"{variant}-{seed}" / "samples").glob(f"*{images}*.png"))[-1]).convert("L"))
            for variant in VARIANTS
        ]
        gap = np.full((len(grids[0]), GAP), 255, dtype=np.uint8)
        rows += [np.concatenate((grids[0], gap, grids[1]), axis=1), np.full((GAP, 2 * grids[0].shape[1] + GAP), 255, dtype=np.uint8)]
    return Image.fromarray(np.concatenate(rows[:-1]))


def table(outcomes: dict[str, Outcome]) -> list[str]:
    """A row for each run."""
    images = next(iter(outcomes.values())).images
    lines = [f"| run | {' | '.join(f'{seen:,}' for seen in images)} | recall at the end | mean sign | p at the end | minutes |"]
    lines.append("|---" * (len(images) + 5) + "|")
    for name, found in outcomes.items():
        distances = " | ".join(f"{distance:.2f}" for distance in found.distances)
        lines.append(f"| {name} | {distances} | {found.recall[-1]:.3f} | {found.sign:.3f} | {found.p:.3f} | {found.minutes:.1f} |")
    return lines


def verdicts(outcomes: dict[str, Outcome], seeds: list[int]) -> list[tuple[str, bool]]:
    """What was wanted, and whether it is so."""
    found = []
    for seed in seeds:
        plain, ada = (outcomes[f"{variant}-{seed}"] for variant in VARIANTS)
        for what, a, b in (
            ("at the end", ada.distances[-1], plain.distances[-1]),
            ("at its lowest", min(ada.distances), min(plain.distances)),
        ):
            found.append((f"seed {seed}: distance {what} {a:.2f} with ADA, below {b:.2f} without", a < b))
        found.append((f"seed {seed}: mean sign {ada.sign:.3f}, within {WITHIN} of {TARGET}", abs(ada.sign - TARGET) <= WITHIN))
    return found


def main() -> int:
    """0, or 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, required=True, help="folder of MNIST's idx.gz files")
    parser.add_argument("--features", type=Path, required=True, help="file of the LeNet's weights")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the digits and the runs")
    parser.add_argument("--images", type=int, default=192_000, help="images seen by each training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--count", type=int, default=5_000, help="samples that are compared")
    parser.add_argument("--out", type=Path, help="also write the tables to this file")
    parser.add_argument(
        "--picture", type=Path, help="also draw the last samples of every run: a row for each seed, without ADA and with it"
    )
    options = parser.parse_args()
    images = options.images // (LOOKS * LOGGED) * LOOKS * LOGGED
    few, held_out = write_sets(options.mnist, options.folder)
    outcomes: dict[str, Outcome] = {}
    for seed in options.seeds:
        for variant, steered in VARIANTS.items():
            name = f"{variant}-{seed}"
            config = configuration(few, steered=steered, seed=seed, images=images)
            outcomes[name] = outcome(name, config, held_out, features=options.features, folder=options.folder, count=options.count)
    found = verdicts(outcomes, options.seeds)
    lines = [f"# ADA on {10 * PER_CLASS} digits, {datetime.date.today()}", ""]
    lines += [f"Frechet distance of {options.count} samples to {HELD_OUT} held-out digits (mnist-lenet), by images seen.", ""]
    lines += [*table(outcomes), "", "| wanted | |", "|---|---|"]
    lines += [f"| {wanted} | {'reached' if good else 'MISSED'} |" for wanted, good in found]
    print(text := "\n".join([*lines, "", machine(), ""]))
    if options.picture:
        picture(options.folder, options.seeds, images).save(options.picture)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    return 0 if all(good for _, good in found) else 1


if __name__ == "__main__":
    sys.exit(main())
