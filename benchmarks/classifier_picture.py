"""The picture of docs/methods/classifier.md: a digit in all stages of noise, and what would make it more of one class or another.

    triptych train classifier-digits --run runs/classifier-digits
    python benchmarks/classifier_picture.py --run runs/classifier-digits --out docs/methods/images/classifier.png

The first held-out 4, with one noise, at ten timesteps; below it the gradients of log p(4 | x_t) and of log p(9 | x_t), each on a scale of
its own. It also prints, at each timestep, what the classifier gives the two classes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triptych.core.batch import RawBatch
from triptych.core.images import enlarge, grid, save_picture, to_uint8
from triptych.core.rng import Rng
from triptych.diffusion.guidance import classifier_score
from triptych.runs import Run, open_run

CLASSES, COLUMNS, FACTOR = (4, 9), 10, 3


def digit(run: Run, label: int) -> Tensor:
    """The first held-out image of a class, in [-1, 1]: (1, c, h, w)."""
    images = run.config.data.open().validation
    assert images is not None and images.labels is not None, "the recipe holds digits out"
    (number, *_) = np.flatnonzero(images.labels == label)
    return RawBatch(torch.from_numpy(images.batch(np.array([number])).images), None, torch.tensor([0])).to("cpu").images


def on_its_own_scale(gradient: Tensor) -> Tensor:
    """The gradient, with its largest value at -1 or 1."""
    return gradient / gradient.abs().amax()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="a run of classifier-digits")
    parser.add_argument("--seed", type=int, default=0, help="seed of the noise")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    run = open_run(options.run)
    model: Any = run.load()
    image = digit(run, CLASSES[0])
    noise = Rng(options.seed, ("picture",), torch.tensor([0])).normal("noise", *image.shape[1:])
    rows: list[list[Tensor]] = [[], *([] for _ in CLASSES)]
    for t in range(0, model.process.steps, model.process.steps // COLUMNS):
        c = model.process.at(torch.tensor([t]))
        x = model.process.noised(image, noise, c)
        rows[0].append(x)
        for row, label in zip(rows[1:], CLASSES, strict=True):
            score = classifier_score(model.classify, torch.tensor([label]), scale=1.0)(x, c)
            assert score is not None
            row.append(on_its_own_scale(score))
        with torch.no_grad():
            likely = model.classify(x, c).float().softmax(-1)[0]
        print(f"t = {t:3}: " + ", ".join(f"p({label}) = {float(likely[label]):.3f}" for label in CLASSES))
    save_picture(enlarge(grid(to_uint8(torch.cat([x for row in rows for x in row])), columns=COLUMNS), FACTOR), options.out)


if __name__ == "__main__":
    main()
