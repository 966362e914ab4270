"""Memory and time of a GAN's steps where features are computed again in the backward pass (`checkpoint` of both networks).

    OMP_NUM_THREADS=1 python benchmarks/gan_checkpointing.py --out FILE.md

R3GAN at 32x32 and StyleGAN2 at 64x64 as `gan_steps.py` has them, a quarter as wide as published; forward and backward passes of each
phase, in float32. Memory is what PyTorch's profiler sees alive at the most, above weights and gradients; seconds are those that the
process computed, the least of some rounds in turns. Target: less memory in each step of both discriminators. Exit code 1 when it is
missed.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gan_steps import SETTINGS, SIZES, r3gan_config, stylegan2_config
from machine import machine, show_report
from training_step_child import Subject, tensor_memory

from triptych.core.batch import Batch, DataSpec
from triptych.core.model import Phase, TrainingProgress, seeded_build
from triptych.core.rng import Rng

PROGRESS = TrainingProgress(0, 1, 1)


def built(network: str, *, checkpoint: bool, batch_size: int) -> Any:
    """A model, in training mode, as the loop lays it out."""
    config: Any = r3gan_config() if network == "r3gan" else stylegan2_config(batch_size)
    parts = {name: replace(getattr(config, name), checkpoint=checkpoint) for name in ("generator", "discriminator")}
    model = seeded_build(replace(config, **parts), DataSpec(image_size=SIZES[network], channels=3), seed=0).train()
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def subject(model: Any, phase: Phase, batch: Batch) -> Subject:
    """The passes of a phase."""
    for name in ("generator", "discriminator"):
        getattr(model, name).requires_grad_(name in phase.networks)
    model.prepare(phase, PROGRESS)
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Subject(learning, lambda count: [], lambda: model.loss(phase, batch, Rng(0, (phase.name,), batch.index)).loss.mean())


def measured(network: str, *, batch_size: int, rounds: int) -> dict[str, list[tuple[int, float]]]:
    """By phase: bytes and seconds without and with the setting."""
    models = [built(network, checkpoint=checkpoint, batch_size=batch_size) for checkpoint in (False, True)]
    side = SIZES[network]
    images = torch.randn(batch_size, 3, side, side, generator=torch.Generator().manual_seed(0))
    batch = Batch(images=images, labels=None, index=torch.arange(batch_size))
    found: dict[str, list[tuple[int, float]]] = {}
    for k, phase in enumerate(models[0].phases):
        kept: list[int] = []
        seconds = [float("inf")] * len(models)
        for model in models:
            kept.append(tensor_memory(subject(model, model.phases[k], batch))[1])
        for _ in range(rounds):
            for place, model in enumerate(models):
                passes = subject(model, model.phases[k], batch)
                start = time.process_time()
                passes.loss().backward()
                seconds[place] = min(seconds[place], time.process_time() - start)
        found[phase.name] = list(zip(kept, seconds, strict=True))
    return found


def main() -> int:
    """0, or 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3, help="timed passes of each, after one for memory")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    lines = [f"# GANs that compute features again, {datetime.date.today().isoformat()}", "", machine(), ""]
    lines += ["| network | phase | MiB | with `checkpoint` | share | times the seconds |", "|---|---|---|---|---|---|"]
    passed = True
    for network in ("r3gan", "stylegan2"):
        found = measured(network, batch_size=options.batch_size, rounds=options.rounds)
        for phase, ((plain, before), (less, after)) in found.items():
            passed &= phase != "discriminator" or less < plain
            cells = f"{plain / 2**20:.0f} | {less / 2**20:.0f} | {less / plain:.2f} | {after / before:.2f}"
            lines.append(f"| {SETTINGS[network]} | {phase} | {cells} |")
            print(lines[-1], flush=True)
    lines += ["", f"Batches of {options.batch_size}. Target, less memory in the steps of both discriminators: "]
    lines[-1] += "reached." if passed else "MISSED."
    show_report(lines, out=options.out)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
