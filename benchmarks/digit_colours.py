"""Digits translated into coloured, inverted digits and back: do they keep their class, and do styles give different colours?

    python benchmarks/digit_colours.py --mnist DIR --folder DATA                                   (writes the two domains)
    python benchmarks/digit_colours.py --mnist DIR --folder DATA --judge LENET.pth --recipe unit-mnist --run runs/unit-mnist --out FILE.md

Domain A: MNIST's digits, padded to 32x32. Domain B: other digits of MNIST, dark on a bright ground of a random colour. No digit is in
both. The judge is a LeNet trained by others on plain MNIST (keys convnet.c1.weight ...); what it is given of domain B is turned back
into a plain digit first: one minus each pixel's share of the ground's colour. 2,000 test digits of each domain are translated.
Targets: at least 80 % keep their class, each way. For MUNIT also how much the ground's colour varies over eight styles of one digit, as
a share of how much it varies over the real images of B; at least 25 %. Exit code 1 when a target is missed. A run that is not there yet
is trained first.
"""

from __future__ import annotations

import argparse
import colorsys
import gzip
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from translation_runs import length, report, trained_run

from triptych.runs import Run
from triptych.runs.translation_grid import write_rows

KEEP_AT_LEAST, VARY_AT_LEAST = 0.80, 0.25
TRAINING, TESTED, STYLED, STYLES, SHOWN = 20_000, 2_000, 200, 8, 16


def mnist(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """uint8 digits (n, 32, 32) and their classes (n,)."""
    with gzip.open(folder / f"{part}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), dtype=np.uint8, offset=16).reshape(-1, 28, 28)
    with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), dtype=np.uint8, offset=8)
    return np.pad(pixels, ((0, 0), (2, 2), (2, 2))), labels.astype(np.int64)


def plain(digits: np.ndarray) -> np.ndarray:
    """Domain A: (n, 32, 32, 3)."""
    return np.repeat(digits[..., None], 3, axis=3)


def coloured(digits: np.ndarray, seed: int) -> np.ndarray:
    """Domain B: (n, 32, 32, 3)."""
    draws = np.random.default_rng(seed).random((len(digits), 2))
    grounds = np.array([colorsys.hsv_to_rgb(hue, 0.4 + 0.6 * saturation, 1.0) for hue, saturation in draws])
    return np.round(255 * grounds[:, None, None] * (1 - digits[..., None] / 255)).astype(np.uint8)


def write_domains(mnist_folder: Path, folder: Path) -> None:
    """images_a.npz and images_b.npz in a folder, where they are not there yet."""
    if (folder / "images_b.npz").is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    digits, _ = mnist(mnist_folder, "train")
    np.savez_compressed(folder / "images_a.npz", arr_0=plain(digits[:TRAINING]))
    np.savez_compressed(folder / "images_b.npz", arr_0=coloured(digits[TRAINING : 2 * TRAINING], seed=1))


def grounds(images: np.ndarray) -> np.ndarray:
    """The colour of the ground of images of B, the brightest tenth of each channel: (n, 3) of 0..255."""
    flat = np.sort(images.reshape(len(images), -1, 3), axis=1)
    return flat[:, -flat.shape[1] // 10 :].mean(1)


def restored(images: np.ndarray) -> np.ndarray:
    """Images of B as plain digits (n, 32, 32) of 0..1."""
    ground = np.maximum(grounds(images), 1)[:, None, None]
    weights = ground / ground.sum(-1, keepdims=True)  # a dark channel says little
    return np.clip(1 - (weights * images / ground).sum(-1), 0, 1)


def judged(path: Path, digits: np.ndarray) -> np.ndarray:
    """The classes that the LeNet in a file finds for digits (n, 32, 32) of 0..1."""
    net = {name.split(".")[1] + "." + name.split(".")[2]: tensor for name, tensor in torch.load(path, weights_only=True).items()}
    x: Tensor = torch.from_numpy(digits).float()[:, None]
    x = F.max_pool2d(F.conv2d(x, net["c1.weight"], net["c1.bias"]).relu(), 2)
    x = F.max_pool2d(F.conv2d(x, net["c3.weight"], net["c3.bias"]).relu(), 2)
    x = F.conv2d(x, net["c5.weight"], net["c5.bias"]).relu().flatten(1)
    x = F.linear(x, net["f6.weight"], net["f6.bias"]).relu()
    return F.linear(x, net["f7.weight"], net["f7.bias"]).argmax(1).numpy()


def translated(run: Run, images: np.ndarray, *, direction: str, seed: int = 0, count: int = 1) -> np.ndarray:
    """The translations (n, count, 32, 32, 3)."""
    settings = run.translation.updated({"direction": direction})
    made = run.translate({"images": images}, settings=settings, seed=seed, style_count=count)
    return np.stack(made.images)


def draw(run: Run, a: np.ndarray, b: np.ndarray, path: Path, *, styles: int) -> None:
    """Columns of a digit of A, its translations, a digit of B, its translation."""
    to_b, to_a = translated(run, a, direction="a-to-b", count=styles), translated(run, b, direction="b-to-a")
    lines = [a, *(to_b[:, k] for k in range(styles)), b, to_a[:, 0]]
    write_rows(path, [list(line) for line in lines])


def main() -> int:
    """0, or 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, required=True, help="folder of MNIST's idx.gz files")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the two domains, written where there is none")
    parser.add_argument("--judge", type=Path, help="file of the LeNet's weights")
    parser.add_argument("--recipe", choices=("unit-mnist", "munit-mnist"), default="unit-mnist")
    parser.add_argument("--run", type=Path)
    parser.add_argument("--images", type=int, help="images seen by the training, in place of the recipe's")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    parser.add_argument("--picture", type=Path, help="also draw some digits and their translations to this file")
    options = parser.parse_args()
    write_domains(options.mnist, options.folder)
    if options.run is None or options.judge is None:
        return 0
    digits, labels = mnist(options.mnist, "t10k")
    first, second = slice(0, TESTED), slice(TESTED, 2 * TESTED)
    a, b = plain(digits[first]), coloured(digits[second], seed=2)
    real_a, real_b = judged(options.judge, a[..., 0] / 255), judged(options.judge, restored(b))
    domains = {"path": str(options.folder), "a": "images_a.npz", "b": "images_b.npz"}
    run = trained_run(options.run, options.recipe, domains, options.images)
    to_b = judged(options.judge, restored(translated(run, a, direction="a-to-b")[:, 0]))
    to_a = judged(options.judge, translated(run, b, direction="b-to-a")[:, 0].mean(-1) / 255)
    rows = [
        ("real digits of A", (real_a == labels[first]).mean(), None),
        ("real digits of B, restored", (real_b == labels[second]).mean(), None),
        ("A translated to B keeps its class", (to_b == labels[first]).mean(), KEEP_AT_LEAST),
        ("B translated to A keeps its class", (to_a == labels[second]).mean(), KEEP_AT_LEAST),
    ]
    varied = grounds(translated(run, a[:STYLED], direction="a-to-b")[:, 0])
    rows.append(("colours over 200 translations, of their variation in B", varied.std(0).mean() / grounds(b).std(0).mean(), None))
    if options.recipe == "munit-mnist":
        styles = translated(run, a[:STYLED], direction="a-to-b", count=STYLES)
        spread = np.stack([grounds(images) for images in styles]).std(1).mean()
        rows.append(("colours over 8 styles of a digit, of their variation in B", spread / grounds(b).std(0).mean(), VARY_AT_LEAST))
    if options.picture:
        draw(run, a[:SHOWN], b[:SHOWN], options.picture, styles=4 if options.recipe == "munit-mnist" else 1)
    return report(options.recipe, "figure | value", rows, length(run), out=options.out)


if __name__ == "__main__":
    sys.exit(main())
