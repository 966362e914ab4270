"""What ADA's changes cost a step: processor time of one look at a batch, and of a step of StyleGAN2's discriminator without and with them.

    python benchmarks/ada_cost.py [--out FILE.md]

Forward and backward, one thread, the least of some rounds; processor time, so other work on the machine matters little. Settings are the
default ones and p is 0, 0.3 or 1. The networks are StyleGAN2's with at most 512 channels, "auto" for that size, and those of
stylegan2-digits.
"""

from __future__ import annotations

import argparse
import datetime
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from machine import machine

from triptych.core.batch import Batch, DataSpec
from triptych.core.rng import Rng
from triptych.gans.ada import ADAConfig, adapted
from triptych.gans.stylegan2 import StyleGAN2Config
from triptych.gans.stylegan2_layers import StyleGAN2DiscriminatorConfig, StyleGAN2GeneratorConfig
from triptych.recipes.catalogue import load_recipe

AUTO, SMALL = "auto", "stylegan2-digits"
LOOKS = ((32, 64), (64, 32), (256, 8))  # side, images
STEPS = ((AUTO, 32, 3, 8), (AUTO, 64, 3, 4), (SMALL, 16, 1, 32))  # network, side, channels, images


def seconds(work: Callable[[], object], rounds: int) -> float:
    """The least processor time of some rounds, after one that is not counted."""
    taken = []
    for _ in range(rounds + 1):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken[1:])


def look(side: int, count: int, p: float) -> float:
    """Seconds of one look at a batch, forward and backward."""
    images, rng = torch.rand(count, 3, side, side, requires_grad=True), Rng(0, ("augment",), torch.arange(count))

    def work() -> None:
        seen = adapted(images, rng, p=p, settings=ADAConfig())
        if seen is not images:
            seen.sum().backward()

    return seconds(work, 4)


def step(network: str, side: int, channels: int, count: int, ada: ADAConfig) -> float:
    """Seconds of a step of the discriminator."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {"base_channels": 16_384, "mapping_layers": 2}
    auto = StyleGAN2Config(generator=StyleGAN2GeneratorConfig(**shape), discriminator=StyleGAN2DiscriminatorConfig(**shape))
    config: Any = auto if network == AUTO else load_recipe(network).model
    model = replace(config, ada=ada).build(DataSpec(image_size=side, channels=channels))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    rounds = 20 if network == SMALL else 2
    batch, phase = Batch(torch.rand(count, channels, side, side) * 2 - 1, None, torch.arange(count)), model.phases[0]
    return seconds(lambda: model.loss(phase, batch, Rng(0, ("discriminator",), batch.index)).loss.sum().backward(), rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a step of the small network alone, which takes seconds")
    parser.add_argument("--out", type=Path, help="also write the tables to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [f"# What ADA costs, {datetime.date.today()}"]
    if not options.small:
        lines += ["", "Milliseconds of processor time of one look.", ""]
        lines += ["| images | p = 0 | p = 0.3 | p = 1 |", "|---|---|---|---|"]
        for side, count in LOOKS:
            times = " | ".join(f"{1000 * look(side, count, p):.0f}" for p in (0.0, 0.3, 1.0))
            lines.append(f"| {count} of {side}x{side}, colour | {times} |")
    lines += ["", "Seconds of processor time of a step of the discriminator.", "", "| images | without | p = 1 |", "|---|---|---|"]
    for network, side, channels, count in STEPS[-1:] if options.small else STEPS:
        times = " | ".join(f"{step(network, side, channels, count, ada):.3g}" for ada in (ADAConfig(), ADAConfig(p=1.0)))
        lines.append(f"| {network}: {count} of {side}x{side}, {'colour' if channels == 3 else 'grey'} | {times} |")
    print(text := "\n".join([*lines, "", machine(), ""]))
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
