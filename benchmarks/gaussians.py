"""How many of 25 Gaussians on a grid a GAN finds with R3GAN's loss, and without its parts.

    python benchmarks/gaussians.py --out FILE.md

The points are images of 1x1 pixels with two channels, so that phases, losses, penalties and randomness are those of every GAN here. The
networks are small and the same in all variants, which differ in `adversarial.relativistic` and `penalty` alone:

    R3GAN                 softplus(D(G(z)) - D(x)), R1 and R2
    without the pairing   softplus(-D(x)) + softplus(D(G(z))), R1 and R2
    without R2            the pairing with R1
    without penalties     the pairing alone

With --collapsed the generator begins with all its points in one corner of the grid. A loss that looks at each side alone is content there:
leaving a mode costs more than it gains. Only the first two variants are trained, and the target is that each seed finds more modes
with the pairing than without it: python benchmarks/gaussians.py --collapsed --gamma 0.3 --iterations 2000 --seeds 5 --out FILE.md

A mode counts where at least a tenth of its share of the samples lies within 3 standard deviations of its centre. Targets, for R3GAN with
every seed: all 25 modes, and at least 95 % of the samples within 3 standard deviations of a centre. Exit code 1 where they are missed.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from itertools import pairwise
from pathlib import Path

import torch
from machine import machine
from torch import Tensor, nn

from triptych.core.batch import Batch, DataSpec
from triptych.core.config import Config
from triptych.core.model import Report, TrainingProgress
from triptych.core.ramp import Ramp
from triptych.core.rng import Rng
from triptych.gans.discriminators import Scores
from triptych.gans.from_noise import NoiseGAN, NoiseGANConfig
from triptych.gans.losses import AdversarialConfig
from triptych.gans.penalties import PenaltyConfig

SIDE, SPACING, DEVIATION = 5, 4.0, 0.2
MODES_WANTED, WITHIN_WANTED = SIDE * SIDE, 0.95
LATENT, COINS, WIDTH, LAYERS, FREQUENCIES = 12, 10, 64, 3, 64
BATCH, GAMMA, AVERAGE, SAMPLES = 128, 3.0, 0.995, 10_000
VARIANTS = {
    "R3GAN": (True, True, True),
    "without the pairing": (False, True, True),
    "without R2": (True, True, False),
    "without penalties": (True, False, False),
}
"""Whether there are the pairing, R1 and R2."""


def mlp(ins: int, outs: int) -> nn.Sequential:
    widths = [ins, *[WIDTH] * LAYERS]
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.LeakyReLU(0.2))]
    return nn.Sequential(*layers, nn.Linear(WIDTH, outs))


class Judge(nn.Module):
    """Scores of points by their coordinates and by random waves over the plane: of coordinates alone an MLP learns slowly what is fine."""

    frequencies: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(2, FREQUENCIES))
        self.network = mlp(2 + 2 * FREQUENCIES, 1)

    def forward(self, images: Tensor, labels: Tensor | None) -> Scores:
        points = images.flatten(1)
        phases = points @ self.frequencies
        return Scores((self.network(torch.cat((points, phases.sin(), phases.cos()), dim=1)),), ())


class Points(NoiseGAN):
    """Points of noise: ten flips of a coin and two numbers from N(0, 1). A continuous map of the latter alone crosses from mode to mode."""

    sampling = Config()

    def __init__(self, config: NoiseGANConfig) -> None:
        super().__init__(config, DataSpec(image_size=1, channels=2), mlp(LATENT, 2), Judge())

    def generated(self, labels: Tensor | None, rng: Rng) -> Tensor:
        z = rng.normal("z", LATENT)
        return self.generator(torch.cat((z[:, :COINS].sign(), z[:, COINS:]), dim=1))[:, :, None, None]

    @torch.no_grad()
    def sample(self, rng: Rng, *, labels: Tensor | None = None, settings: Config | None = None, report: Report | None = None) -> Tensor:
        return self.generated(None, rng)


def real_points(rng: Rng) -> Tensor:
    """Points of the mixture as images, (b, 2, 1, 1)."""
    mode = rng.integers("mode", SIDE * SIDE)
    centre = torch.stack((mode // SIDE, mode % SIDE), dim=1) - SIDE // 2
    return (SPACING * centre + DEVIATION * rng.normal("spread", 2))[:, :, None, None]


def found(points: Tensor) -> tuple[int, float]:
    """The number of modes that count, and the share of the points within 3 standard deviations of a centre."""
    points = points.flatten(1)
    cell = (points / SPACING).round().clamp(-(SIDE // 2), SIDE // 2)
    near = (points - SPACING * cell).norm(dim=1) <= 3 * DEVIATION
    cell = cell.long() + SIDE // 2
    counts = torch.bincount((SIDE * cell[:, 0] + cell[:, 1])[near], minlength=SIDE * SIDE)
    return int((counts >= 0.1 * len(points) / SIDE**2).sum()), near.float().mean().item()


def config_of(variant: str, images: int, *, gamma: float) -> NoiseGANConfig:
    """gamma falls to a tenth over the run, as in R3GAN's recipes."""
    paired, *penalised = VARIANTS[variant]
    r1, r2 = (Ramp(start=gamma, end=gamma / 10, images=images) if wanted else 0.0 for wanted in penalised)
    return NoiseGANConfig(
        latent_dims=LATENT,
        fresh_images=True,
        adversarial=AdversarialConfig(kind="non_saturated", relativistic=paired),
        penalty=PenaltyConfig(r1_gamma=r1, r2_gamma=r2, at="original", precision="training"),
    )


@torch.no_grad()
def collapse(generator: nn.Module) -> None:
    """Brings all points of a generator to the corner of the grid."""
    *_, last = generator.children()
    assert isinstance(last, nn.Linear)
    last.weight.mul_(0.01)
    last.bias.fill_(SPACING * (SIDE // 2))


def trained(variant: str, *, seed: int, iterations: int, gamma: float, collapsed: bool = False) -> Points:
    """The model after so many iterations, its generator averaged over the last steps; Adam as in R3GAN's recipes, at a higher rate."""
    torch.manual_seed(seed)
    images = 2 * BATCH * iterations
    model = Points(config_of(variant, images, gamma=gamma))
    if collapsed:
        collapse(model.generator)
    rate, beta2 = Ramp(start=3e-3, end=3e-4, images=images), Ramp(start=0.9, end=0.99, images=images)
    optimizers = {phase.networks: torch.optim.Adam(getattr(model, *phase.networks).parameters(), fused=True) for phase in model.phases}
    average = [parameter.detach().clone() for parameter in model.generator.parameters()]
    for first in range(0, images, 2 * BATCH):
        progress = TrainingProgress(images_seen=first, iteration_images=2 * BATCH, total_images=images)
        for turn in model.turns(progress):
            index = torch.arange(BATCH) + first + turn.slice * BATCH
            optimizer = optimizers[turn.phase.networks]
            for network in ("generator", "discriminator"):
                getattr(model, network).requires_grad_(network in turn.phase.networks)
            model.prepare(turn.phase, progress)
            batch = Batch(real_points(Rng(seed, ("data",), index)), None, index)
            model.loss(turn.phase, batch, Rng(seed, (turn.phase.name,), index)).loss.mean().backward()
            optimizer.param_groups[0].update(lr=rate.at(first), betas=(0.0, beta2.at(first)))
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            for mean, parameter in zip(average, model.generator.parameters(), strict=True):
                mean.lerp_(parameter, 1 - AVERAGE)
    with torch.no_grad():
        for parameter, mean in zip(model.generator.parameters(), average, strict=True):
            parameter.copy_(mean)
    return model


def report(rows: dict[str, list[tuple[int, float]]], *, iterations: int, gamma: float, collapsed: bool) -> tuple[str, bool]:
    """The text of a result, and whether the targets are reached. `rows`: for each variant what was found with each seed."""
    seeds = len(next(iter(rows.values())))
    lines = ["| loss | " + " | ".join(f"seed {seed}: modes, within 3 sigma" for seed in range(seeds)) + " |", "|---" * (seeds + 1) + "|"]
    lines += [f"| {variant} | {' | '.join(f'{modes}, {within:.1%}' for modes, within in row)} |" for variant, row in rows.items()]
    reached = all(modes == MODES_WANTED and within >= WITHIN_WANTED for modes, within in rows["R3GAN"])
    if collapsed:
        reached = all(paired[0] > alone[0] for paired, alone in zip(*rows.values(), strict=True))
    start = "The generator begins with all points in one corner. " if collapsed else ""
    text = f"""# 25 Gaussians on a grid, {datetime.date.today().isoformat()}

{machine()}

{iterations:,} iterations of {BATCH} points; centres {SPACING / DEVIATION:g} standard deviations apart; gamma {gamma:g} to {gamma / 10:g}; \
{SAMPLES:,} samples of the averaged generator. {start}A mode counts from a tenth of its share of the samples on.

{chr(10).join(lines)}

{"All targets reached." if reached else "TARGETS MISSED."}
"""
    return text, reached


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--iterations", type=int, default=8_000)
    arguments.add_argument("--gamma", type=float, default=GAMMA, help="of R1 and R2 at first; a tenth of it in the end")
    arguments.add_argument("--collapsed", action="store_true", help="begin with all points in one corner")
    arguments.add_argument("--out", type=Path)
    options = arguments.parse_args()
    rows: dict[str, list[tuple[int, float]]] = {}
    for variant in list(VARIANTS)[: 2 if options.collapsed else None]:
        for seed in range(options.seeds):
            how = {"iterations": options.iterations, "gamma": options.gamma, "collapsed": options.collapsed}
            model = trained(variant, seed=seed, **how)
            rows.setdefault(variant, []).append(found(model.sample(Rng(seed, ("sample",), torch.arange(SAMPLES)))))
            print(variant, seed, *rows[variant][-1], flush=True)
    text, reached = report(rows, iterations=options.iterations, gamma=options.gamma, collapsed=options.collapsed)
    print(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    sys.exit(not reached)


if __name__ == "__main__":
    main()
