"""Clips of digits that move on paths, with maps of their classes and the true flow.

    python benchmarks/moving_digits.py --mnist MNIST --out DIR

MNIST is the folder of its four files. A clip has two digits on dark ground, 64x64, each in a square of 28x28 that the map fills with its
class, 1 to 10; 0 is the ground. Squares move by whole pixels, and the second one lies above the first. Which digit of its class it is, no
map tells. Held-out clips have test digits.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from digit_colours import mnist
from PIL import Image

SIDE, DIGIT, FRAMES, GROUND = 64, 28, 17, 40
TRAINED, HELD_OUT = 300, 24


def path(random: np.random.Generator) -> np.ndarray:
    """Top and left of a square in each frame, whole numbers (t, 2): on an ellipse within the picture."""
    room = SIDE - DIGIT
    reach, phase, turns = random.uniform(6, room / 2, 2), random.uniform(0, 2 * np.pi, 2), random.uniform(0.3, 0.8)
    angle = 2 * np.pi * turns * np.arange(FRAMES)[:, None] / FRAMES + phase
    return np.clip(np.round(room / 2 + reach * np.sin(angle)), 0, room).astype(int)


def clip(digits: np.ndarray, classes: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Frames (t, h, w, 3), maps (t, h, w), and the flow to the frame before (t, h, w, 2), NaN where what is seen was hidden."""
    paths = [path(random) for _ in digits]
    frames = np.full((FRAMES, SIDE, SIDE), GROUND, dtype=np.uint8)
    owner = np.zeros((FRAMES, SIDE, SIDE), dtype=np.int64)
    flow = np.zeros((FRAMES, SIDE, SIDE, 2), dtype=np.float32)
    for number, (digit, places) in enumerate(zip(digits, paths, strict=True), start=1):
        for t, (top, left) in enumerate(places):
            part = np.s_[t, top : top + DIGIT, left : left + DIGIT]
            frames[part], owner[part] = GROUND + digit * ((255 - GROUND) / 255), number
            flow[part] = (places[max(0, t - 1)] - places[t])[::-1]
    rows, columns = np.mgrid[:SIDE, :SIDE]
    for t in range(1, FRAMES):
        before = (rows + flow[t, ..., 1]).astype(int), (columns + flow[t, ..., 0]).astype(int)
        flow[t][owner[t - 1][before] != owner[t]] = np.nan
    flow[0] = np.nan
    return np.repeat(frames[..., None], 3, axis=3), np.append(0, classes + 1)[owner].astype(np.uint8), flow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for part, source, count in (("train", "train", TRAINED), ("val", "t10k", HELD_OUT)):
        images, labels = mnist(options.mnist, source)
        for number in range(count):
            random = np.random.default_rng((number, part == "val"))
            chosen = random.integers(0, len(images), 2)
            frames, maps, flow = clip(images[chosen, 2:-2, 2:-2], labels[chosen], random)
            for t in range(FRAMES):
                for kind in ("images", "labels", "flow"):
                    (options.out / part / kind / f"{number:03d}").mkdir(parents=True, exist_ok=True)
                name = f"{number:03d}/{t:02d}"
                Image.fromarray(frames[t]).save(options.out / part / "images" / f"{name}.png")
                Image.fromarray(maps[t]).save(options.out / part / "labels" / f"{name}.png")
                np.save(options.out / part / "flow" / f"{name}.npy", flow[t])


if __name__ == "__main__":
    main()
