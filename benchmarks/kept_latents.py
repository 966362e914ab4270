"""What kept latents save: images/s of training on them, and on latents of images that are encoded anew for each batch.

    python benchmarks/kept_latents.py --data FOLDER --out FILE.md [--precision float32|bf16]

For each pair of an autoencoder and a network that learns its latents: a few photos of the folder are encoded by `triptych data encode`;
then the network takes whole steps of training, loader included, from the kept latents and from the images, in turns. The autoencoders have
hardly been trained: a step takes as long with any weights. What is saved is the encoder's time, so it depends on the pair: "by work" is how
many times as many operations an image takes with the encoder's as without them, (E + F) / F. The encoder computes in float32, as
`triptych data encode` does, so that both learn from the same latents; the network in what `train.precision auto` is on this machine.
`--precision` gives both another one. Medians of all rounds.
Target: at least 3 times. Exit code 1 where a pair misses it.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from machine import machine

from triptych.core.batch import Batch, LatentSpec
from triptych.core.model import GaussianEncoder, ModelConfig, TrainingProgress, seeded_build
from triptych.core.rng import Rng
from triptych.data.config import DataConfig
from triptych.data.images import Data
from triptych.data.loader import Loader
from triptych.diffusion.dit import DiTConfig
from triptych.diffusion.flow_matching import FlowMatchingConfig
from triptych.engine.config import OptimConfig
from triptych.engine.optim import make_optimizer
from triptych.engine.precision import autocast, native_precision
from triptych.gans.kl_autoencoder import KLAutoencoderConfig
from triptych.recipes.catalogue import load_recipe
from triptych.runs import Run, train
from triptych.runs.latent_data import encode_data
from triptych.runs.operations import Operations

TARGET = 3.0
CPU = torch.device("cpu")
TRAINED_AT = 64
"Pixels of the images of which the autoencoders see one batch."


def _flow(network: DiTConfig) -> ModelConfig:
    return FlowMatchingConfig(network=network, times="logit-normal", time_scale=1000)


@dataclass(frozen=True)
class Pair:
    """A network and the autoencoder whose latents it learns."""

    autoencoder: str
    "Recipe."
    image_size: int
    network: str
    model: Callable[[], ModelConfig]
    batch_size: int
    steps: int
    "In each round."


PAIRS = (
    Pair("autoencoder-small", 64, "flow-small", lambda: load_recipe("flow-small").model, 64, 8),
    Pair("autoencoder-small", 64, "a transformer, 10 M", lambda: _flow(DiTConfig(patch=2, width=256, depth=8, heads=4)), 32, 8),
    Pair("autoencoder-photos", 256, "SiT-S/2", lambda: _flow(DiTConfig(patch=2, width=384, depth=12, heads=6)), 8, 1),
    Pair("autoencoder-photos", 256, "SiT-B/2", lambda: _flow(DiTConfig(patch=2, width=768, depth=12, heads=12)), 8, 1),
)


def begun(recipe: str, data: str, folder: Path) -> Run:
    """A run of an autoencoder that has seen one batch."""
    config = load_recipe(recipe)
    assert isinstance(config.model, KLAutoencoderConfig)
    model = replace(config.model, perceptual_weight=0.0)
    steps = replace(config.train, batch_size=2, total_images=2, sample_count=0, validate_images=0, compile="off", precision="float32")
    images = DataConfig(path=data, image_size=TRAINED_AT, labels="none", workers=0)
    return train(replace(config, model=model, data=images, train=steps), folder, device="cpu")


@dataclass(frozen=True)
class Precision:
    """In what the networks compute."""

    encoder: str = "float32"
    network: str = native_precision(CPU)

    @property
    def words(self) -> str:
        return self.encoder if self.encoder == self.network else f"encoders in {self.encoder}, networks in {self.network}"


def speeds(run: Run, pair: Pair, kept: Path, images: DataConfig, *, rounds: int, precision: Precision) -> dict[str, float]:
    """Images/s of training: "kept", and with "encoded" images; and "work", the operations of the latter by those of the former."""
    opened = DataConfig(source="latents", path=str(kept), image_size=pair.image_size, workers=0).open()
    spec = opened.spec.latents
    assert isinstance(spec, LatentSpec)
    model = seeded_build(pair.model(), opened.spec, seed=0).train()
    optimizer = make_optimizer(dict(model.named_parameters()), OptimConfig(name="adamw", learning_rate=1e-4), device=CPU)
    encoder, (phase,) = run.load(device="cpu"), model.phases
    assert isinstance(encoder, GaussianEncoder)
    progress = TrainingProgress(0, pair.batch_size, 10**9)

    def encoded(batch: Batch) -> Batch:
        with torch.no_grad(), autocast(precision.encoder, device=CPU):
            mean, log_variance = encoder.posterior(batch.images)
        mean, log_variance = mean.float(), log_variance.float()
        noise = Rng(0, ("latents",), batch.index).normal("z", *mean.shape[1:])
        return replace(batch, images=spec.normalised(mean + (0.5 * log_variance).exp() * noise))

    def step(batch: Batch) -> None:
        model.prepare(phase, progress)
        with autocast(precision.network, device=CPU):
            loss = model.loss(phase, batch, Rng(0, (phase.name, 0), batch.index)).loss
        loss.mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def loader(data: Data) -> Loader:
        return Loader(data.train, batch_size=pair.batch_size, seed=0, workers=0)

    sources: Mapping[str, tuple[Loader, Callable[[Batch], Batch]]] = {
        "kept": (loader(opened), lambda batch: batch),
        "encoded": (loader(images.open()), encoded),
    }
    found: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(rounds):
        for name, (source, prepared) in sources.items():
            batches = source.batches(0)
            step(prepared(next(batches).to("cpu")))
            for _ in range(pair.steps):
                began = time.perf_counter()
                step(prepared(next(batches).to("cpu")))
                found[name].append(pair.batch_size / (time.perf_counter() - began))
    work = {}
    for name, (source, prepared) in sources.items():
        batch = next(source.batches(0)).to("cpu")
        with Operations() as operations:
            step(prepared(batch))
        work[name] = operations.count
    return {name: statistics.median(values) for name, values in found.items()} | {"work": work["encoded"] / work["kept"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of photos of at least 256 pixels")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", choices=("float32", "bf16"), help="of both networks")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    precision = Precision(given.precision, given.precision) if given.precision else Precision()
    lines = [
        "| autoencoder | images | network, batch | kept latents, images/s | encoded for each batch | times | by work |",
        "|---|---|---|---|---|---|---|",
    ]
    ratios: list[float] = []
    photos = sorted(path for path in given.data.iterdir() if path.is_file())
    with tempfile.TemporaryDirectory() as folder:
        runs: dict[str, Run] = {}
        for pair in PAIRS:
            few = Path(folder) / f"{pair.autoencoder}-images"
            kept = few.with_suffix(".npz")
            if pair.autoencoder not in runs:
                few.mkdir()
                for path in photos[: 2 * pair.batch_size]:
                    (few / path.name).symlink_to(path.resolve())
                runs[pair.autoencoder] = begun(pair.autoencoder, str(few), Path(folder) / pair.autoencoder)
                encode_data(few, runs[pair.autoencoder], kept, image_size=pair.image_size, labels="none", device="cpu")
            images = DataConfig(path=str(few), image_size=pair.image_size, labels="none", workers=0)
            medians = speeds(runs[pair.autoencoder], pair, kept, images, rounds=given.rounds, precision=precision)
            ratios.append(medians["kept"] / medians["encoded"])
            described = f"| {pair.autoencoder} | {pair.image_size} px | {pair.network}, {pair.batch_size} "
            lines.append(f"{described}| {medians['kept']:.4g} | {medians['encoded']:.4g} | {ratios[-1]:.2f} | {medians['work']:.2f} |")
            print(lines[-1], file=sys.stderr, flush=True)
    reached = sum(ratio >= TARGET for ratio in ratios)
    lines += ["", f"Target {TARGET:g} times: {reached} of {len(ratios)} pairs reach it. Photos of {given.data}; {precision.words}."]
    lines += ["", f"{datetime.date.today()}; {machine()}."]
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if given.out is not None:
        given.out.write_text(text, encoding="utf-8")
    return 0 if reached == len(ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
