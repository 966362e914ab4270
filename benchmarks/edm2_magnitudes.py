"""How large the activations and weights of EDM2's network are, block by block: before training, and after 2,000 steps of it.

    python benchmarks/edm2_magnitudes.py --out FILE.md

A small network on the built-in digits at 8x8, at noise levels as in training. Measured is the root of the mean square: of what leaves each
block, of the network's input and target, and of the filters of each weight. Targets: input and target within 5 % of 1, at initialisation
and after training; activations between 0.8 and 1.25 at initialisation; weights within 0.1 % of 1 after training, and without forced
weight normalisation not. Activations that are bound by no target are reported: training may move them. Exit code 1 where one is missed.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from machine import machine
from torch import Tensor, nn

from triptych.core.model import TrainingProgress
from triptych.core.rng import Rng
from triptych.data.config import DataConfig
from triptych.data.loader import Loader
from triptych.diffusion.edm2 import EDM2, EDM2Config
from triptych.diffusion.edm2_network import EDM2NetworkConfig
from triptych.engine.config import OptimConfig
from triptych.engine.schedule import scheduled_rate

BATCH, CHECKED = 8, 256
NETWORK = EDM2NetworkConfig(num_channels=32, channel_mult=(1, 2), num_blocks=1, attention_resolutions=(4,), num_head_channels=32)
OPTIM = OptimConfig(name="adam", learning_rate=0.01, betas=(0.9, 0.99), schedule="inverse-sqrt", decay_start=500 * BATCH)
DATA = DataConfig(source="digits", image_size=8, flip=False, workers=0)


def rms(x: Tensor) -> float:
    return x.detach().double().square().mean().sqrt().item()


@contextmanager
def noted(model: EDM2, into: dict[str, float]) -> Iterator[None]:
    """Within it, what leaves each part of the network is measured."""
    unet, handles = model.network.unet, []

    def note(name: str) -> None:
        part: nn.Module = unet.get_submodule(name)
        handles.append(part.register_forward_hook(lambda module, given, out: into.__setitem__(name, rms(out))))

    handles.append(unet.register_forward_pre_hook(lambda module, given: into.__setitem__("input", rms(given[0]))))
    for side in ("enc", "dec"):
        for name in unet.get_submodule(side)._modules:
            note(f"{side}.{name}")
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def magnitudes(model: EDM2, batch) -> dict[str, float]:
    """The root of the mean square of input, target and every block, at noise levels of training; without dropout."""
    found: dict[str, float] = {}
    model.eval()
    rng = Rng(0, ("check",), batch.index)
    data = model.config.sigma_data
    sigma = model.config.levels_of_training(rng).sigma
    noisy = batch.images + sigma * rng.normal("noise", *model.image_shape)
    with noted(model, found):
        output = model.predict(noisy, sigma, batch.labels)
    total = sigma.square() + data**2
    # D = c_skip x + c_out F, so that F's target is (x_0 - c_skip x) / c_out.
    skip, out = data**2 / total, sigma * data * total.rsqrt()
    found["target"], found["error"] = rms((batch.images - skip * noisy) / out), rms((output - batch.images) / out)
    model.train()
    return found


def weights(model: EDM2) -> tuple[float, float]:
    """The least and the largest root of the mean square of a filter."""
    filters = [p.detach().flatten(1).square().mean(1).sqrt() for n, p in model.named_parameters() if n.endswith("weight")]
    return torch.cat(filters).min().item(), torch.cat(filters).max().item()


def trained(steps: int, *, forced: bool, report: int = 250) -> dict[str, dict[str, float]]:
    """Magnitudes at the beginning and after so many steps; the weights' as "shortest filter" and "longest filter"."""
    opened = DATA.open()
    first = next(Loader(opened.train, batch_size=1500, seed=1, workers=0).batches(0)).to("cpu").images
    torch.manual_seed(0)
    # The paper's 0.5 is that of photographs: the digits' own deviation, or input and target would not be of variance 1.
    model = EDM2Config(network=NETWORK, class_conditional=True, noise_mean=-0.8, noise_std=1.2, sigma_data=rms(first)).build(opened.spec)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=OPTIM.betas, fused=True)
    check = next(Loader(opened.train, batch_size=CHECKED, seed=2, workers=0).batches(0)).to("cpu")
    found = {}

    def note(step: int) -> None:
        low, high = weights(model)
        found[str(step)] = magnitudes(model, check) | {"shortest filter": low, "longest filter": high}

    note(0)
    batches = Loader(opened.train, batch_size=BATCH, seed=0, workers=0).batches(0)
    for step in range(steps):
        batch = next(batches).to("cpu")
        progress = TrainingProgress(step * BATCH, BATCH, steps * BATCH)
        terms = model.loss(model.phases[0], batch, Rng(0, ("denoise", 0), batch.index))
        optimizer.zero_grad()
        terms.loss.mean().backward()
        optimizer.param_groups[0]["lr"] = scheduled_rate(OPTIM.learning_rate, OPTIM, progress)
        optimizer.step()
        if forced:
            model.stepped(model.phases[0])
        if (step + 1) % report == 0:
            print(f"{step + 1} steps, forced {forced}: weighted error {terms.logged['weighted_mse'].mean():.3f}", flush=True)
    note(steps)
    return found


def judged(found: dict[str, dict[str, float]], free: dict[str, dict[str, float]] | None) -> list[str]:
    """The targets that are missed."""
    missed = []
    (_, start), (_, end) = found.items()
    for when, values in (("initialisation", start), ("the end", end)):
        missed += [f"{name} {values[name]:.3f} at {when}" for name in ("input", "target") if abs(values[name] - 1) > 0.05]
        filters = (values["shortest filter"], values["longest filter"])
        missed += [f"a filter of {length:.4f} at {when}" for length in filters if abs(length - 1) > 1e-3]
    missed += [f"{name} {value:.3f} at initialisation" for name, value in start.items() if "." in name and not 0.8 < value < 1.25]
    if free is not None and list(free.values())[1]["longest filter"] < 1.1:
        missed.append("filters do not grow without forced normalisation")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--forced-only", action="store_true", help="leave out the run without forced weight normalisation")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = trained(arguments.steps, forced=True)
    free = None if arguments.forced_only else trained(arguments.steps, forced=False)
    missed = judged(found, free)
    columns = [*found.values(), *([] if free is None else [list(free.values())[1]])]
    heads = ["at initialisation", f"after {arguments.steps:,} steps", *([] if free is None else ["the same without forced normalisation"])]
    lines = [f"# Magnitudes in EDM2's network, {datetime.date.today()}", "", machine(), ""]
    lines += [f"A network of {NETWORK.num_channels} channels on the digits at 8x8, batches of {BATCH}: roots of mean squares.", ""]
    lines += [f"| | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    lines += [f"| {name} | {' | '.join(f'{column[name]:.3f}' for column in columns)} |" for name in columns[0]]
    lines += ["", f"TARGETS MISSED: {'; '.join(missed)}" if missed else "Targets met."]
    arguments.out.write_text("\n".join(lines) + "\n")
    print(arguments.out.read_text())
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
