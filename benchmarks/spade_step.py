"""Images/s of a training step of SPADE, against the same networks and losses run plainly.

    python benchmarks/spade_step.py --out FILE.md

The coco 256 configuration at a quarter of its width: 185 label channels, 256x256, VGG-19 (random weights) for the perceptual loss. Plain:
memory in the order NCHW, float32, Adam without fusion, an average by a loop over the parameters, the C library's allocator as it is,
images that lie ready. Triptych: its own loop, with loading, checks, measurements, the average and channels last. Every measurement is
a new process, and the variants take turns, each round beginning with another one. Targets: 1.1 times the plain images/s in float32, 1.6
times with bf16. Exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from turns import Comparison, compare

from triptych.core.batch import Batch
from triptych.core.model import TrainingProgress
from triptych.core.rng import Rng
from triptych.core.weight_files import read_weights
from triptych.data.pairs import PairedDataConfig
from triptych.engine.loop import Loop
from triptych.gans.discriminators import PatchDiscriminatorConfig
from triptych.gans.spade import SPADEDiscriminatorConfig, SPADEGeneratorConfig
from triptych.nn.feature_networks import NETWORKS, required_tensors
from triptych.recipes.config import RunConfig
from triptych.recipes.paired import spade_coco256
from triptych.runs import train

VARIANTS = ("plain float32", "triptych float32", "triptych bf16")
TARGETS = {"triptych float32": 1.1, "triptych bf16": 1.6}


def narrowed(folder: Path, *, precision: str, steps: int, batch_size: int) -> RunConfig:
    """spade-coco256 at a quarter of its width, on random pairs and a perceptual network of random weights in `folder`."""
    draws = np.random.default_rng(0)
    for name, most in (("images", 256), ("labels", 184), ("instances", 200)):
        (folder / name).mkdir()
        for k in range(2 * batch_size):
            shape = (256, 256, 3) if name == "images" else (256, 256)
            pixels = np.kron(draws.integers(0, most, (16, 16)), np.ones((16, 16))) if len(shape) == 2 else draws.integers(0, most, shape)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{k}.png")
    shapes = required_tensors("vgg19", NETWORKS["vgg19"].layers)
    torch.manual_seed(0)
    torch.save({name: torch.randn(shape) / max(1, np.prod(shape[1:])) ** 0.5 for name, shape in shapes.items()}, folder / "vgg19.pt")
    recipe = spade_coco256()
    model: Any = recipe.model
    model = replace(
        model,
        generator=SPADEGeneratorConfig(num_filters=32, spade_filters=32, encoder_filters=16),
        discriminator=SPADEDiscriminatorConfig(patch=PatchDiscriminatorConfig(kernel_size=4, num_filters=32, num_layers=5)),
        perceptual=replace(model.perceptual, weights=str(folder / "vgg19.pt")),
    )
    assert isinstance(recipe.data, PairedDataConfig)
    settings = replace(
        recipe.train,
        total_images=steps * batch_size,
        batch_size=batch_size,
        precision=precision,  # type: ignore[arg-type]
        sample_count=0,
        statistics_batches=0,
        checkpoint_minutes=None,
    )
    return replace(
        recipe, model=model, data=replace(recipe.data, path=str(folder), validation_fraction=0.0, enlarge=True, workers=1), train=settings
    )


def measure_triptych(config: RunConfig, folder: Path) -> list[float]:
    """Seconds of each iteration."""
    moments: list[float] = []
    iteration = Loop._iteration

    def timed(self: Loop, batches: Any) -> None:
        iteration(self, batches)
        moments.append(time.perf_counter())

    Loop._iteration = timed  # type: ignore[method-assign]
    train(config, folder / "run", device="cpu")
    return [after - before for before, after in itertools.pairwise(moments)]


def measure_plain(config: RunConfig, *, steps: int, batch_size: int) -> list[float]:
    """Seconds of each iteration."""
    data = config.data.open()
    model: Any = config.model.build(data.spec)
    model.perceptual.load(read_weights(config.model.perceptual.weights))  # type: ignore[attr-defined]
    channels_last = model.labels
    model.labels = lambda inputs: channels_last(inputs).contiguous()
    loaded = data.train.batch(np.arange(batch_size))
    images = (torch.from_numpy(loaded.images).permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous()
    batch = Batch(images, None, torch.arange(batch_size), {name: torch.from_numpy(part) for name, part in loaded.inputs.items()})
    networks = {"discriminator": model.discriminator, "generator": model.generator}
    adam = {
        name: torch.optim.Adam(part.parameters(), lr=1e-4, betas=(0.0, 0.999), foreach=False, fused=False)
        for name, part in networks.items()
    }
    average = [parameter.detach().clone() for parameter in model.generator.parameters()]
    moments = []
    for step in range(steps):
        for phase in model.phases:
            for name, part in networks.items():
                part.requires_grad_(name == phase.name)
            model.prepare(phase, TrainingProgress(step * batch_size, batch_size, steps * batch_size))
            adam[phase.name].zero_grad()
            model.loss(phase, batch, Rng(step, (phase.name,), batch.index)).loss.mean().backward()
            adam[phase.name].step()
        with torch.no_grad():
            for mean, parameter in zip(average, model.generator.parameters(), strict=True):
                mean.mul_(0.9999).add_(parameter, alpha=1e-4)
        moments.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(moments)]


def main() -> int:
    """0, or 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4, help="iterations of each measurement; the first is not counted")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each variant")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    parser.add_argument("--child", choices=VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        kind, precision = options.child.split()
        with tempfile.TemporaryDirectory() as scratch:
            config = narrowed(Path(scratch), precision=precision, steps=options.steps, batch_size=options.batch_size)
            if kind == "plain":
                times = measure_plain(config, steps=options.steps, batch_size=options.batch_size)
            else:
                times = measure_triptych(config, Path(scratch))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"seconds": statistics.median(times), "bytes": peak}))
        return 0
    comparison = Comparison(
        title="A training step of SPADE",
        setting="spade-coco256 at a quarter of its width",
        variants={name: name for name in VARIANTS},
        targets=TARGETS,
        times="times plain",
    )
    size = {"rounds": options.rounds, "steps": options.steps, "batch_size": options.batch_size}
    return compare(__file__, comparison, **size, out=options.out)


if __name__ == "__main__":
    sys.exit(main())
