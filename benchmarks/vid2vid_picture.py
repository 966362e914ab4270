"""A moving picture of vid2vid: held-out maps, the frames that vid2vid makes of them, and the true frames.

    python benchmarks/vid2vid_picture.py --work DIR --out vid2vid.webp

The clips are drawn (see streets.py): a window moves along a street with houses and trees, where cars drive. Every pixel has one of 11
classes. The recipe vid2vid-maps64 is trained on --clips clips of them, then makes the held-out ones; a run that is there is taken as it
is, or goes on.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from moving import save_moving
from PIL import Image
from streets import COLOURS, SIDE, SKY, put_car, world

from triptych.core.batch import ClipLength
from triptych.data.clips import ClipDataConfig
from triptych.recipes.catalogue import load_recipe
from triptych.runs import open_run, train
from triptych.runs.translation_grid import palette

FRAMES, TRAINED, HELD = 24, 48, 3


def street(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Maps and frames of a clip: uint8 (t, h, w) and (t, h, w, 3)."""
    random = np.random.default_rng(seed)
    speed, width = int(random.integers(1, 4)), SIDE + 3 * FRAMES
    still, _ = world(random, width)
    y, x = np.mgrid[:SIDE, :width]
    shade = 1.12 - 0.006 * y + 0.05 * np.sin(0.9 * x) * (still != SKY)
    tint = random.uniform(0.9, 1.1, (len(COLOURS), 1)) * np.ones(3)
    maps, frames = [], []
    starts, paces = random.integers(-12, width, 2), (int(random.integers(2, 5)), -int(random.integers(1, 3)))
    for t in range(FRAMES):
        now = still.copy()
        for start, pace, row in zip(starts, paces, (57, 50), strict=True):
            put_car(now, across=int(start) + (pace + speed) * t, row=row)
        seen = slice(speed * t, speed * t + SIDE)
        pixels = COLOURS[now] * tint[now] * shade[..., None]
        maps.append(now[:, seen])
        frames.append(np.clip(pixels[:, seen], 0, 255).astype(np.uint8))
    return np.stack(maps), np.stack(frames)


def write_clips(root: Path) -> None:
    """train/ and val/, each with images/ and labels/."""
    for number in range(TRAINED + HELD):
        maps, frames = street(number)
        part = root / ("train" if number < TRAINED else "val")
        for kind, pictures in (("labels", maps), ("images", frames)):
            folder = part / kind / f"street{number:02d}"
            folder.mkdir(parents=True, exist_ok=True)
            for t, picture in enumerate(pictures):
                Image.fromarray(picture).save(folder / f"{t:02d}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of the clips and of the run")
    parser.add_argument("--clips", type=int, default=1_000, help="clips that the model sees in training")
    parser.add_argument("--out", type=Path, required=True, help="the picture, .webp")
    options = parser.parse_args()
    data, folder = options.work / "streets", options.work / "run"
    if not data.exists():
        write_clips(data)
    recipe = load_recipe("vid2vid-maps64")
    assert isinstance(recipe.data, ClipDataConfig)
    config = replace(
        recipe,
        data=replace(recipe.data, path=str(data), length=ClipLength(first=4, most=4), workers=0),
        train=replace(recipe.train, total_images=options.clips, sample_every=None, validate_every=None, validate_images=0),
        optim=replace(recipe.optim, schedule="constant", decay_start=0),
    )
    if (folder / "config.json").is_file():
        config = open_run(folder).config
        config = replace(config, train=replace(config.train, total_images=options.clips))
    run = train(config, folder)
    if run.find_checkpoint() < run.config.train.total_images:
        sys.exit(f"{folder} was stopped before its end; the same command goes on")
    translated = run.translate(data / "val" / "labels", out=options.work / "made", grid=0)
    made = dict(zip(translated.names, translated.images, strict=True))
    colours, rows = palette(12), []
    for number in range(TRAINED, TRAINED + HELD):
        maps, frames = street(number)
        own = np.stack([made[f"street{number:02d}/{t:02d}"][0] for t in range(FRAMES)])
        rows.append((colours[maps], own, frames))
    save_moving(options.out, rows)


if __name__ == "__main__":
    main()
