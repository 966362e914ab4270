"""What several processes do: train shrunk recipes in a folder, and sample from it; go on with some runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.contract.shrink import light
from tests.float64 import in_float64
from triptych.core.model import Sampler, Upsampler
from triptych.core.translation import Translator
from triptych.runs import open_run, train
from triptych.runs.stored import build

CHANGING = ("adm-digits", "munit-mnist")
"""Runs that change the number of their processes."""
GROUPED = 8
"""The batch of a model that compares the images of a pair: so many pairs in each of two processes."""
SAMPLES = 3
"""Two for one process, and one for the other."""


def go_on(folder: Path, total_images: int) -> None:
    """Trains those runs in the folder until then, by a rate that does not depend on it."""
    with in_float64():
        for name in CHANGING:
            config = light(name)
            optim = replace(config.optim, warmup_images=0, schedule="constant")
            config = replace(config, optim=optim, train=replace(config.train, total_images=total_images))
            train(config, folder / name, device="cpu")


def main(folder: Path, recipes: list[str]) -> None:
    with in_float64():
        for name in recipes:
            config = light(name)
            # No warm-up: the weights have to move far enough to tell one training from another.
            optim = replace(config.optim, warmup_images=0)
            batch = config.train.batch_size if build(config, config.data.open().spec).group_size == 1 else GROUPED
            settings = replace(config.train, batch_size=batch, total_images=2 * batch)
            train(replace(config, optim=optim, train=settings), folder / name, device="cpu")
            sample(folder, name)


def sample(folder: Path, name: str) -> None:
    """Writes what the run makes, if it makes images."""
    run, out = open_run(folder / name), folder / f"{name}.npz"
    model = run.outline
    if isinstance(model, Sampler):
        run.sample(SAMPLES, seed=2, batch_size=2, device="cpu", out=out)
    elif isinstance(model, Upsampler):
        small = np.arange(SAMPLES * model.input_size**2 * run.spec.channels, dtype=np.uint8)
        small = small.reshape(SAMPLES, model.input_size, model.input_size, run.spec.channels)
        run.upsample(small, labels=[0, 1], seed=2, batch_size=2, device="cpu", out=out)
    elif isinstance(model, Translator):
        run.translate(None, count=SAMPLES, seed=2, batch_size=2, device="cpu", out=out)
