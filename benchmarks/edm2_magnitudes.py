"""How large the activations and weights of EDM2's network are, block by block: before training, and after 2,000 steps of it.

    python benchmarks/edm2_magnitudes.py --out FILE.md
    python benchmarks/edm2_magnitudes.py --untrained --out FILE.md

A small network on the built-in digits at 8x8, at noise levels as in training. Measured is the root of the mean square: of what leaves each
block, of the network's input and target, and of the filters of each weight. Targets: input and target within 5 % of 1, at initialisation
and after training; activations between 0.8 and 1.25 at initialisation; weights within 0.1 % of 1 after training, and without forced
weight normalisation not. Activations that are bound by no target are reported: training may move them. Exit code 1 where one is missed.

--untrained derives what the paper's formulas give before training, without the network's code, beside what untrained networks have.
With random filters of mean square 1 the expected square of what a convolution gives is the mean of the squares that it takes, zeros
beyond the border included; mp_silu of a normal variable of another variance than 1 is a quadrature; sums and joins are as their formulas
say, with branches that are uncorrelated. One thing no formula says, how large the mean of values is that attention takes, for that depends
on how alike the pixels are: it is measured. Target: within 5 %.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from machine import machine
from torch import Tensor, nn

from triptych.core.model import TrainingProgress
from triptych.core.rng import Rng
from triptych.data.config import DataConfig
from triptych.data.loader import Loader
from triptych.diffusion.edm2 import EDM2, EDM2Config
from triptych.diffusion.edm2_network import EDM2Network, EDM2NetworkConfig
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


# What the formulas give ------------------------------------------------------------------------------------------------

NODES, SHARES = np.polynomial.hermite_e.hermegauss(80)


def after_silu(squares: np.ndarray) -> np.ndarray:
    """E (silu(x) / 0.596)^2 of normal x with these mean squares."""
    x = np.sqrt(squares)[..., None] * NODES
    return (x / (1 + np.exp(-x)) / 0.596) ** 2 @ SHARES / SHARES.sum()


def around(squares: np.ndarray) -> np.ndarray:
    """The mean of the squares of 3 x 3 pixels, with zeros beyond the border: (s, s)."""
    padded, side = np.pad(squares, 1), len(squares)
    return sum(padded[i : i + side, j : j + side] for i in range(3) for j in range(3)) / 9


def summed(a: np.ndarray, b: np.ndarray, t: float) -> np.ndarray:
    return ((1 - t) ** 2 * a + t**2 * b) / ((1 - t) ** 2 + t**2)


def derived(network: EDM2NetworkConfig, size: int, mixed: dict[str, float]) -> dict[str, float]:
    """The root of the mean square of what leaves each part of an untrained network; `mixed`: that of the values that attention takes."""
    found: dict[str, float] = {}
    widths = [mult * network.num_channels for mult in network.channel_mult]
    skips: list[tuple[int, np.ndarray]] = []

    def block(name: str, parts: list[tuple[int, np.ndarray]], *, normalised: bool = False) -> np.ndarray:
        """`parts`: channels and mean squares of what is joined."""
        total = sum(channels for channels, _ in parts)
        scaled = [(channels, x * total / (len(parts) * channels)) for channels, x in parts]
        if normalised:
            scaled = [(total, np.ones_like(parts[0][1]))]
        x, inner = (sum(channels * part for channels, part in given) / total for given in (scaled, [(c, after_silu(p)) for c, p in scaled]))
        x = summed(x, around(after_silu(around(inner))), 0.3)
        x = summed(x, np.full_like(x, mixed[name] ** 2), 0.3) if name in mixed else x
        found[name] = float(np.sqrt(x.mean()))
        return x

    x = around(np.ones((size, size)))
    found[f"enc.{size}x{size}_conv"] = float(np.sqrt(x.mean()))
    skips.append((widths[0], x))
    for level, width in enumerate(widths):
        side = size // 2**level
        if level:
            x = block(f"enc.{side}x{side}_down", [(width, np.ones((side, side)))], normalised=True)
            skips.append((widths[level - 1], x))
        for number in range(network.num_blocks):
            x = block(f"enc.{side}x{side}_block{number}", [(width, x)], normalised=True)
            skips.append((width, x))
    before = widths[-1]
    for level, width in reversed(list(enumerate(widths))):
        side = size // 2**level
        if level == len(widths) - 1:
            x = block(f"dec.{side}x{side}_in0", [(width, x)])
            x = block(f"dec.{side}x{side}_in1", [(width, x)])
        else:
            x = block(f"dec.{side}x{side}_up", [(before, x.repeat(2, 0).repeat(2, 1))])
        for number in range(network.num_blocks + 1):
            x = block(f"dec.{side}x{side}_block{number}", [(before, x), skips.pop()])
            before = width
    return found


@torch.no_grad()
def untrained(network: EDM2NetworkConfig, size: int, *, nets: int, images: int) -> tuple[dict[str, float], dict[str, float]]:
    """The same of so many networks, for images of independent normal values; and that of the values that attention takes."""
    squares: dict[str, list[float]] = {}
    mixed: dict[str, list[float]] = {}

    def noted(name: str):
        return lambda module, given, out: squares.setdefault(name, []).append(rms(out) ** 2)

    for seed in range(nets):
        torch.manual_seed(seed)
        unet = EDM2Network(network, image_size=size, channels=3, num_labels=10).unet
        for side in ("enc", "dec"):
            for name, part in unet.get_submodule(side)._modules.items():
                assert part is not None
                part.register_forward_hook(noted(f"{side}.{name}"))
                if getattr(part, "attn_proj", None) is not None:
                    taken = mixed.setdefault(f"{side}.{name}", [])
                    part.get_submodule("attn_proj").register_forward_pre_hook(
                        lambda module, given, taken=taken: taken.append(rms(given[0]) ** 2)
                    )
        unet(torch.randn(images, 3, size, size), torch.randn(images) / 4, torch.arange(images) % 10)
    outputs, values = ({name: float(np.sqrt(np.mean(found))) for name, found in each.items()} for each in (squares, mixed))
    return outputs, values


def compared() -> tuple[list[str], bool]:
    """The tables of untrained networks, and whether all parts have what the formulas give, within 5 %."""
    lines, met = [], True
    full = EDM2NetworkConfig(num_channels=64)
    for network, size, nets, images in ((NETWORK, 8, 12, 8), (full, 64, 12, 1)):
        found, mixed = untrained(network, size, nets=nets, images=images)
        formulas = derived(network, size, mixed)
        assert found.keys() == formulas.keys()
        met &= all(abs(found[name] / formulas[name] - 1) < 0.05 for name in found)
        lines += [
            f"{network.num_channels} channels, {size}x{size} pixels, {nets} networks:",
            "",
            "| | by the formulas | measured | attention's mean of values |",
            "|---|---|---|---|",
        ]
        taken = {name: f"{value:.3f}" for name, value in mixed.items()}
        lines += [f"| {name} | {formulas[name]:.3f} | {found[name]:.3f} | {taken.get(name, '')} |" for name in found]
        lines += [""]
    return lines, met


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
    parser.add_argument("--untrained", action="store_true", help="only untrained networks, beside what the formulas give")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.untrained:
        tables, met = compared()
        lines = [f"# Magnitudes in untrained networks of EDM2, {datetime.date.today()}", "", machine(), "", "Roots of mean squares.", ""]
        arguments.out.write_text("\n".join([*lines, *tables, "Within 5 % everywhere." if met else "TARGET MISSED: not within 5 %."]) + "\n")
        print(arguments.out.read_text())
        return 0 if met else 1
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
