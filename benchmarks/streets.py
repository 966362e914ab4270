"""Drawn streets: still scenes with class maps, and clips of a window that moves along one where cars drive.

    python benchmarks/streets.py --scenes 300 --out DIR

writes still scenes of 128x128 as pairs, train/ and val/ with images/ and labels/. Every house, tree and parked car has a colour of its own,
which its class does not tell.
"""

from __future__ import annotations

import argparse
import colorsys
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 64
SKY, HILL, GRASS, ROAD, LINE, WALL, ROOF, WINDOW, CROWN, TRUNK, CAR = range(11)
COLOURS = np.array(
    [
        (120, 170, 235), (96, 130, 120), (92, 160, 70), (84, 84, 92), (236, 230, 190), (222, 190, 150),
        (176, 62, 48), (60, 80, 110), (44, 110, 52), (100, 70, 44), (230, 176, 40),
    ]
)  # fmt: skip
HELD_OUT = 24
_OWN = {WALL: 0.55, ROOF: 0.8, CROWN: 0.6, CAR: 0.9}
"""Saturation of the colours of objects of a class that have one of their own."""


def world(random: np.random.Generator, width: int) -> tuple[np.ndarray, np.ndarray]:
    """A street: the class of each pixel, uint8 (64, width), and the number of the house or tree that it belongs to, from 1 on; 0: none."""
    y, x = np.mgrid[:SIDE, :width]
    classes, objects = np.full((SIDE, width), SKY, dtype=np.uint8), np.zeros((SIDE, width), dtype=np.int64)
    bends = random.uniform(0.05, 0.12, 2)
    classes[y > 26 + 4 * np.sin(bends[0] * x + random.uniform(0, 6)) + 3 * np.sin(bends[1] * x)] = HILL
    classes[y > 40] = GRASS
    classes[y > 48] = ROAD
    classes[(y > 54) & (y < 57) & (x // 6 % 2 == 0)] = LINE
    left, number = int(random.integers(0, 8)), 0
    while left < width:
        size, top, number = int(random.integers(12, 20)), int(random.integers(18, 30)), number + 1
        before = classes.copy()
        if random.random() < 0.6:
            classes[(y >= top) & (y < 45) & (x >= left) & (x < left + size)] = WALL
            classes[(y < top) & (y > top - 7) & (abs(x - left - size / 2 + 0.5) < (y - top + 8) * size / 14)] = ROOF
            for across in range(left + 2, left + size - 4, 6):
                classes[(y >= top + 4) & (y < top + 9) & (x >= across) & (x < across + 4)] = WINDOW
        else:
            classes[(y > top + 6) & (y < 46) & (abs(x - left - 6) < 2)] = TRUNK
            classes[(y - top - 6) ** 2 + (x - left - 6) ** 2 < 40] = CROWN
        objects[classes != before] = number
        left += size + int(random.integers(3, 10))
    return classes, objects


def put_car(classes: np.ndarray, *, across: int, row: int) -> None:
    """Draws a car whose left end is in this column, and whose body begins in this row."""
    height, width = classes.shape
    y, x = np.mgrid[:height, :width]
    x = x - across
    classes[(y >= row) & (y < row + 5) & (x >= 0) & (x < 13)] = CAR
    classes[(y >= row - 3) & (y < row) & (x >= 3) & (x < 10)] = WINDOW


def scene(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A still scene: its map, uint8 (128, 128), and its picture (128, 128, 3)."""
    random = np.random.default_rng(seed)
    classes, objects = world(random, SIDE)
    for row in (49, 57):
        across = int(random.integers(-6, SIDE - 6))
        before = classes.copy()
        put_car(classes, across=across, row=row)
        objects[classes != before] = objects.max() + 1
    y, x = np.mgrid[:SIDE, :SIDE]
    shade = 1.12 - 0.006 * y + 0.05 * np.sin(0.9 * x) * (classes != SKY)
    pixels = COLOURS[classes].astype(float)
    for number in range(1, objects.max() + 1):
        for kind, saturation in _OWN.items():
            own = colorsys.hsv_to_rgb(random.random(), saturation, random.uniform(0.6, 0.95))
            pixels[(objects == number) & (classes == kind)] = 255 * np.array(own)
    picture = np.clip(pixels * shade[..., None], 0, 255).astype(np.uint8)
    return classes.repeat(2, 0).repeat(2, 1), picture.repeat(2, 0).repeat(2, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=300, help="to train on")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for number in range(options.scenes + HELD_OUT):
        part = options.out / ("train" if number < options.scenes else "val")
        for kind, picture in zip(("labels", "images"), scene(number), strict=True):
            folder = part / kind
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(folder / f"{number:04d}.png")


if __name__ == "__main__":
    main()
