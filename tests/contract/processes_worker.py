"""Run by torchrun: trains every shrunk recipe in a folder, and samples from it. Argument: the folder."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.contract.shrink import BATCH, RECIPES, shrunk
from triptych.core.model import Sampler, Translator, Upsampler
from triptych.gans.model import GANConfig
from triptych.runs import close_world, open_run, train


def main(folder: Path) -> None:
    for name in RECIPES:
        config = shrunk(name)
        # No warm-up: the weights have to move far enough to tell one training from another.
        optim = replace(config.optim, warmup_images=0)
        if isinstance(config.model, GANConfig):
            # Some biases have no gradient but rounding (norms take them out, hinges cancel them). Adam would make whole steps of that.
            # Two iterations: with each one more values cross the bend of a rectifier, and what was 1e-6 of a gradient becomes 1e-2.
            optim = replace(optim, eps=1e-3)
            config = replace(config, train=replace(config.train, total_images=2 * BATCH))
        train(replace(config, optim=optim), folder / name, device="cpu")
    for name in RECIPES:
        run = open_run(folder / name)
        model = run.load(device="cpu")
        if isinstance(model, Sampler):
            run.sample(BATCH + 1, seed=2, batch_size=2, device="cpu", out=folder / f"{name}.npz")
        elif isinstance(model, Upsampler):
            small = np.arange((BATCH + 1) * model.input_size**2 * run.spec.channels, dtype=np.uint8)
            small = small.reshape(BATCH + 1, model.input_size, model.input_size, run.spec.channels)
            run.upsample(small, labels=[0, 1], seed=2, batch_size=2, device="cpu", out=folder / f"{name}.npz")
        elif isinstance(model, Translator):
            run.translate(None, count=BATCH + 1, seed=2, batch_size=2, device="cpu", out=folder / f"{name}.npz")
    close_world()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
