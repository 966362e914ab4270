"""Does few-shot vid2vid draw what a reference shows? Digits on a square that moves, from pictures of a digit it never saw.

    python benchmarks/few_shot_digits.py --mnist DIR --judge LENET.pth --folder runs/few-shot-digits --out benchmarks/results/FILE.md

The recipe takes smaller steps, and has a discriminator of two frames; here distances weigh more, so that twenty minutes are enough.

A clip shows one digit of MNIST on a square that moves and turns a little. Its maps say where the square is and which side is up, and
nothing of the digit. fs-vid2vid-maps64 learns from clips of training digits 0 to 6, at 48x48, with one reference, and in another run with
three and attention. Then test digits, also 7 to 9, which no training showed, are drawn into other movements from one or three pictures of
them. What is drawn is turned back to its place and read by a LeNet trained by others on MNIST; true frames read the same way stand beside.

Targets: at least 60 % of the frames from one reference are read as the reference's class (chance: 10 %); more with three references; more
after finetuning on the one. Exit code 1 when one is missed. Runs go on where they are, so that the script can be interrupted; `--only one`
trains one run and stops, so that both can be trained at a time.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from digit_colours import judged, mnist
from machine import machine
from moving import save_moving
from PIL import Image

from triptych.core.batch import ClipLength
from triptych.data.clips import ClipDataConfig
from triptych.gans.fs_vid2vid import FewShotTranslationConfig, FewShotVid2VidConfig
from triptych.recipes.catalogue import load_recipe
from triptych.runs import Run, train
from triptych.runs.translation_grid import palette

SIDE, DIGIT, FRAMES, TOP, GROUND = 48, 28, 12, 6, 64
CLIPS, HELD, LENGTH, DOUBLED = 1_400, 28, 3, 3_000
MOVED, TURNED = 6, 0.15
"""The most pixels and radians that the square is away from the middle, upright."""
SEEN, UNSEEN = tuple(range(7)), (7, 8, 9)
RUNS = {"one": 1, "three": 3}
"""The runs, and the references that each learns with."""
LEAST = 0.6


# Clips ------------------------------------------------------------------------------------------------------------------


def sampled(image: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """An image (h, w) of floats at points between its pixels; 0 outside."""
    padded = np.pad(image, 1)
    x, y = np.clip(x, -1, image.shape[1]) + 1, np.clip(y, -1, image.shape[0]) + 1
    left, top = (np.minimum(np.floor(at).astype(int), size - 2) for at, size in ((x, padded.shape[1]), (y, padded.shape[0])))
    right, low = x - left, y - top
    above = padded[top, left] * (1 - right) + padded[top, left + 1] * right
    below = padded[top + 1, left] * (1 - right) + padded[top + 1, left + 1] * right
    return above * (1 - low) + below * low


def poses(seed: int) -> np.ndarray:
    """Middle (x, y) and angle of the square in each frame of a clip: (FRAMES, 3)."""
    random = np.random.default_rng(seed)
    t, (speed, *phases) = np.arange(FRAMES), random.uniform((0.3, 0, 0, 0), (0.6, *3 * [2 * np.pi]))
    across, down, turn = (np.sin(speed * factor * t + phase) for factor, phase in zip((1, 1.3, 0.9), phases, strict=True))
    return np.stack(((SIDE - 1) / 2 + MOVED * across, (SIDE - 1) / 2 + MOVED * down, TURNED * turn), axis=1)


def frame(digit: np.ndarray, pose: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A digit (28, 28) of 0..255 on its square: the picture and the map, uint8 (h, w) each."""
    y, x = np.mgrid[:SIDE, :SIDE]
    u, v = turned(x - pose[0], y - pose[1], -pose[2])
    u, v = u + (DIGIT - 1) / 2, v + (DIGIT - 1) / 2
    inside = (abs(u - (DIGIT - 1) / 2) < DIGIT / 2) & (abs(v - (DIGIT - 1) / 2) < DIGIT / 2)
    painted = GROUND + sampled(digit.astype(float), u, v) * (255 - GROUND) / 255
    return np.where(inside, np.round(painted), 0).astype(np.uint8), np.where(inside, np.where(v < TOP, 2, 1), 0).astype(np.uint8)


def read_back(picture: np.ndarray, pose: np.ndarray) -> np.ndarray:
    """The digit of a picture as the LeNet takes it: (32, 32) of 0..1."""
    v, u = np.mgrid[:DIGIT, :DIGIT] - (DIGIT - 1) / 2
    x, y = turned(u, v, pose[2])
    return np.pad(np.clip((sampled(picture.astype(float), x + pose[0], y + pose[1]) - GROUND) / (255 - GROUND), 0, 1), 2)


def turned(x: np.ndarray, y: np.ndarray, angle: float) -> tuple[np.ndarray, np.ndarray]:
    return x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)


def digits(folder: Path, part: str, classes: tuple[int, ...], *, each: int) -> tuple[np.ndarray, np.ndarray]:
    """So many digits (n, 28, 28) of each class in turn, and their classes."""
    images, labels = mnist(folder, part)
    chosen = np.stack([np.flatnonzero(labels == label)[:each] for label in classes], axis=1).ravel()
    return images[chosen, 2:-2, 2:-2], labels[chosen]


def write_clips(source: Path, folder: Path) -> Path:
    """The training clips, written where they are not there yet, and held-out ones of other digits."""
    root = folder / "clips"
    if (root / "whole").exists():
        return root
    for part, mnist_part, count in (("train", "train", CLIPS), ("val", "t10k", HELD)):
        chosen, _ = digits(source, mnist_part, SEEN, each=count // len(SEEN))
        for number, digit in enumerate(chosen):
            places = {kind: root / part / kind / f"{number:04d}" for kind in ("images", "labels")}
            for place in places.values():
                place.mkdir(parents=True, exist_ok=True)
            for t, pose in enumerate(poses(number + (part == "val") * 10**6)):
                for place, pixels in zip(places.values(), frame(digit, pose), strict=True):
                    Image.fromarray(pixels).save(place / f"{t:02d}.png")
    (root / "whole").touch()
    return root


# Runs -------------------------------------------------------------------------------------------------------------------


def trained(name: str, clips: Path, folder: Path, *, images: int) -> Run:
    """The run of that name after so many clips."""
    recipe = load_recipe("fs-vid2vid-maps64")
    assert isinstance(recipe.data, ClipDataConfig) and isinstance(recipe.model, FewShotVid2VidConfig)
    data = replace(
        recipe.data,
        path=str(clips),
        num_classes=(3,),
        image_size=SIDE,
        channels=1,
        flip=False,
        length=ClipLength(first=2, most=LENGTH, double_every=DOUBLED),
        references=RUNS[name],
    )
    model = replace(
        recipe.model,
        generator=replace(recipe.model.generator, attention=RUNS[name] > 1),
        discriminator=replace(recipe.model.discriminator, temporal_scales=0),
        feature_matching_weight=2.0,
        l1_weight=50.0,
        flow_weight=30.0,
    )
    schedule = {
        "total_images": images,
        "batch_size": 2,
        "sample_every": images // 4,
        "validate_every": images // 4,
        "checkpoint_every": images // 8,
    }
    config = replace(
        recipe,
        model=model,
        data=data,
        train=replace(recipe.train, **schedule),
        optim=replace(recipe.optim, learning_rate=1e-3, decay_start=images // 2),
    )
    return train(config, folder / name)


def drawn(run: Run, digit: np.ndarray, seed: int, *, references: int, finetune: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Frames of a digit in a movement, made from pictures of it in another one: (t, h, w), and the picture of the first of them."""
    pictures, maps = zip(*(frame(digit, pose) for pose in poses(seed + 1)[:: FRAMES // references]), strict=True)
    style = {"style": np.stack(pictures)[..., None], "labels_of_style": np.stack(maps).astype(np.int64)}
    labels = [frame(digit, pose)[1].astype(np.int64) for pose in poses(seed)]
    settings = FewShotTranslationConfig(finetune=finetune) if finetune else None
    made = run.translate({"labels": labels}, style=style, settings=settings)
    return np.stack(made.images)[:, 0, ..., 0], pictures[0]


def shares(frames: list[np.ndarray], labels: np.ndarray, seeds: list[int], judge: Path) -> list[float]:
    """Of the frames of clips (t, h, w), the share that is read as their class: of all classes, of those seen, of those not seen."""
    turned_back = [
        read_back(picture, pose) for clip, seed in zip(frames, seeds, strict=True) for picture, pose in zip(clip, poses(seed), strict=True)
    ]
    right = judged(judge, np.stack(turned_back)).reshape(len(frames), FRAMES) == labels[:, None]
    return [float(right[np.isin(labels, classes)].mean()) for classes in ((*SEEN, *UNSEEN), SEEN, UNSEEN)]


# The table --------------------------------------------------------------------------------------------------------------


def show(rows: list[list[np.ndarray]], maps: list[list[np.ndarray]], path: Path) -> None:
    """A moving picture: in each row the reference, which is still, the map, and frames made of it."""
    colours, there_and_back = palette(3), np.r_[:FRAMES, FRAMES - 2 : 0 : -1]
    clips = []
    for (reference, *made), labels in zip(rows, maps, strict=True):
        shown = [np.stack([reference] * FRAMES), *map(np.asarray, made)]
        moving = [np.repeat(clip[..., None], 3, -1).astype(np.uint8) for clip in shown]
        moving.insert(1, colours[np.asarray(labels)])
        clips.append([clip[there_and_back] for clip in moving])
    save_moving(path, clips, quality=70)


def main() -> int:
    """0, or 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, required=True, help="folder of MNIST's idx.gz files")
    parser.add_argument("--judge", type=Path, required=True, help="file of the LeNet's weights")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the clips and the runs")
    parser.add_argument("--images", type=int, default=4_500, help="clips seen by each training")
    parser.add_argument("--each", type=int, default=12, help="test digits of each class")
    parser.add_argument("--finetuned", type=int, default=3, help="of these so many of each class are finetuned on")
    parser.add_argument("--steps", type=int, default=100, help="steps of finetuning")
    parser.add_argument("--only", choices=tuple(RUNS), help="train this run alone, and measure nothing")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    parser.add_argument("--picture", type=Path, help="also draw some clips: reference, map, one reference, finetuned, three, truth (.webp)")
    options = parser.parse_args()
    clips, began = write_clips(options.mnist, options.folder), time.perf_counter()
    if options.only:
        trained(options.only, clips, options.folder, images=options.images)
        return 0
    runs = {name: trained(name, clips, options.folder, images=options.images) for name in RUNS}
    print(f"trained in {time.perf_counter() - began:.0f} s")
    chosen, labels = digits(options.mnist, "t10k", (*SEEN, *UNSEEN), each=options.each)
    seeds = [2 * 10**6 + 2 * k for k in range(len(chosen))]
    few = options.finetuned * len((*SEEN, *UNSEEN))
    true = [np.stack([frame(digit, pose)[0] for pose in poses(seed)]) for digit, seed in zip(chosen, seeds, strict=True)]
    made = {
        "one reference": [drawn(runs["one"], digit, seed, references=1)[0] for digit, seed in zip(chosen, seeds, strict=True)],
        "three references, with attention": [
            drawn(runs["three"], digit, seed, references=3)[0] for digit, seed in zip(chosen, seeds, strict=True)
        ],
        f"one reference, finetuned for {options.steps} steps": [
            drawn(runs["one"], digit, seed, references=1, finetune=options.steps)[0]
            for digit, seed in zip(chosen[:few], seeds[:few], strict=True)
        ],
    }
    one, three, tuned = made
    made["one reference, of the same clips"] = made[one][:few]
    made["true frames, turned back alike"] = true
    found = {name: shares(clips, labels[: len(clips)], seeds[: len(clips)], options.judge) for name, clips in made.items()}
    wanted = [
        (f"one reference: {found[one][0]:.3f} read as its class, at least {LEAST}", found[one][0] >= LEAST),
        (f"three references: {found[three][0]:.3f}, above {found[one][0]:.3f}", found[three][0] > found[one][0]),
        (f"finetuned: {found[tuned][0]:.3f}, above {(plain := found['one reference, of the same clips'][0]):.3f}", found[tuned][0] > plain),
    ]
    lines = [f"# Few-shot vid2vid on digits, {datetime.date.today()}", ""]
    lines += [f"{options.images:,} training clips of digits 0 to 6; share of frames read as the reference's class.", ""]
    lines += ["| | clips | all classes | 0 to 6 | 7 to 9, never seen |", "|---|---|---|---|---|"]
    lines += [f"| {name} | {len(made[name])} | " + " | ".join(f"{share:.3f}" for share in values) + " |" for name, values in found.items()]
    lines += ["", "| wanted | |", "|---|---|", *(f"| {what} | {'reached' if good else 'MISSED'} |" for what, good in wanted)]
    print(text := "\n".join([*lines, "", machine(), ""]))
    if options.picture:
        some = [k for k in (2, 7, 8, 9) if k < few]
        references = [frame(chosen[k], poses(seeds[k] + 1)[0])[0] for k in some]
        rows = [[reference, made[one][k], made[tuned][k], made[three][k], true[k]] for reference, k in zip(references, some, strict=True)]
        show(rows, [[frame(chosen[k], pose)[1] for pose in poses(seeds[k])] for k in some], options.picture)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    return 0 if all(good for _, good in wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
