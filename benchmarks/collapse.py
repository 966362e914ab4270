"""Is a GAN that collapses noticed, and nothing else? Figures of samples over small trainings on the digits.

    python benchmarks/collapse.py --steps 600 --out FILE.md

One GAN takes five steps of its generator, at a rate of 0.002, for each of the discriminator, and collapses; the other has the loss of
R3GAN with both penalties. Beside `near_equal` and `spread` stand how many of ten classes have 1 % of the samples or more, and the share
of the most frequent one, by a small classifier of real digits. Then `spread` between two parts of a real set, of 8 divisions each.
Target: the warning comes in the training that collapses (at most 2 classes in the end) and not in the other.
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from machine import machine
from torch import Tensor, nn

from triptych.data.config import DataConfig
from triptych.evaluation.spread import spread
from triptych.runs.collapse import collapse_figures, collapse_news

COUNT, BATCH, SIDE, DIMS, EVALUATIONS = 500, 64, 16, 64, 10


def main() -> int:
    """0, or 1 where the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--real", type=Path, nargs="*", default=[], help="folders of further real images")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = DataConfig(source="digits", image_size=SIDE, flip=False, validation_fraction=0.0).open().train
    loaded = data.batch(np.random.default_rng(0).permutation(len(data)))
    images, labels = torch.from_numpy(loaded.images).permute(0, 3, 1, 2).float() / 127.5 - 1, torch.from_numpy(loaded.labels)
    judge = classifier(images, labels)
    lines, good = [f"# Collapse, {datetime.date.today()}", "", f"{COUNT} samples of {SIDE}x{SIDE} beside as many real digits."], True
    for name, collapses in (("five steps of the generator for one", True), ("R3GAN's loss", False)):
        rows, warned, classes = watched(images, judge, collapses=collapses, steps=options.steps)
        good &= warned == collapses and (classes <= 2) == collapses
        head = ["| step | near_equal | spread | classes | most frequent | said |", "|---|---|---|---|---|---|"]
        lines += ["", f"{name}:", "", *head, *rows]
    lines += [
        "",
        "`spread` between two parts of a real set, the least and the greatest of 8:",
        "",
        "| set | images | spread |",
        "|---|---|---|",
    ]
    sets = {"digits": loaded.images} | {folder.name: real_images(folder) for folder in options.real}
    for name, real in sets.items():
        for count in (20, 100, 500):
            found = [parts(real, count, seed) for seed in range(8) if 2 * count <= len(real)]
            lines += [f"| {name} | {count} | {min(found):.3f} to {max(found):.3f} |"] if found else []
    lines += ["", f"Target {'met' if good else 'missed'}.", "", machine()]
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")
    return 0 if good else 1


def watched(images: Tensor, judge: nn.Module, *, collapses: bool, steps: int) -> tuple[list[str], bool, int]:
    """A row for each evaluation of a training, whether it warned, and the classes of the last samples."""
    torch.manual_seed(0)
    generator, discriminator = make_generator(), make_discriminator()
    rates, betas = (2e-3, (0.5, 0.99)) if collapses else (2e-4, (0.0, 0.99))
    optimizers = [torch.optim.Adam(network.parameters(), rates, betas=betas) for network in (generator, discriminator)]
    play = plain if collapses else relativistic
    noise, real = torch.randn(COUNT, DIMS), levels(images[:COUNT])
    rows, before, warned, classes = [], [], False, 0
    for step in range(1, steps + 1):
        play(generator, discriminator, optimizers, images)
        if step % (steps // EVALUATIONS):
            continue
        with torch.no_grad():
            made = generator(noise)
            counts = torch.bincount(judge(made).argmax(1), minlength=10)
        figures = collapse_figures(levels(made), real)
        said = collapse_news(figures, before)
        before.append(figures)
        warned |= said is not None and said.startswith("warning")
        classes = int((counts >= COUNT / 100).sum())
        rows.append(
            f"| {step} | {figures['near_equal']:.4f} | {figures['spread']:.3f} | {classes} | {float(counts.max()) / COUNT:.2f} "
            f"| {'' if said is None else said.partition(':')[0]} |"
        )
        print(rows[-1], flush=True)
    return rows, warned, classes


def plain(generator: nn.Module, discriminator: nn.Module, optimizers: list[torch.optim.Optimizer], images: Tensor) -> None:
    """The non-saturating loss; the discriminator learns too little."""
    with torch.no_grad():
        fake = generator(torch.randn(BATCH, DIMS))
    learn(optimizers[1], F.softplus(-discriminator(some(images))).mean() + F.softplus(discriminator(fake)).mean())
    for _ in range(5):
        learn(optimizers[0], F.softplus(-discriminator(generator(torch.randn(BATCH, DIMS)))).mean())


def relativistic(generator: nn.Module, discriminator: nn.Module, optimizers: list[torch.optim.Optimizer], images: Tensor) -> None:
    """softplus(-(D(x) - D(G(z)))), R1 and R2 with a gamma of 4."""
    real, fake = some(images).requires_grad_(), generator(torch.randn(BATCH, DIMS)).detach().requires_grad_()
    scores = [discriminator(each) for each in (real, fake)]
    slopes = [torch.autograd.grad(score.sum(), x, create_graph=True)[0] for score, x in zip(scores, (real, fake), strict=True)]
    penalty = 2 * sum(slope.square().sum((1, 2, 3)).mean() for slope in slopes)
    learn(optimizers[1], F.softplus(scores[1] - scores[0]).mean() + penalty)
    learn(optimizers[0], F.softplus(discriminator(real.detach()) - discriminator(generator(torch.randn(BATCH, DIMS)))).mean())


def learn(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def some(images: Tensor) -> Tensor:
    return images[torch.randint(len(images), (BATCH,))]


def make_generator() -> nn.Module:
    blocks: list[nn.Module] = [nn.Linear(DIMS, 48 * 16), nn.Unflatten(1, (48, 4, 4)), nn.LeakyReLU(0.2)]
    for width in (48, 24):
        blocks += [nn.Upsample(scale_factor=2), nn.Conv2d(48, width, 3, padding=1), nn.LeakyReLU(0.2)]
    return nn.Sequential(*blocks, nn.Conv2d(24, 1, 3, padding=1), nn.Tanh())


def make_discriminator() -> nn.Module:
    blocks: list[nn.Module] = [nn.Conv2d(1, 16, 3, padding=1), nn.LeakyReLU(0.2)]
    for width, further in ((16, 32), (32, 48)):
        blocks += [nn.Conv2d(width, further, 4, 2, 1), nn.LeakyReLU(0.2)]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(48 * 16, 1))


def classifier(images: Tensor, labels: Tensor) -> nn.Module:
    """Of the real digits."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 24, 3, 2, 1), nn.ReLU(), nn.Conv2d(24, 48, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(768, 10))
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    for _ in range(400):
        chosen = torch.randint(len(images), (BATCH,))
        learn(optimizer, F.cross_entropy(network(images[chosen]), labels[chosen]))
    return network.eval()


def levels(images: Tensor) -> np.ndarray:
    """uint8 (n, h, w, c)."""
    return ((images + 1) * 127.5).round().clamp(0, 255).byte().permute(0, 2, 3, 1).contiguous().numpy()


def real_images(folder: Path) -> np.ndarray:
    images = DataConfig(path=str(folder), image_size=32, enlarge=True, flip=False, validation_fraction=0.0).open().train
    return images.batch(np.random.default_rng(0).permutation(len(images))[:2000]).images


def parts(real: np.ndarray, count: int, seed: int) -> float:
    order = np.random.default_rng(seed).permutation(len(real))
    return spread(real[order[:count]], real[order[-count:]])


if __name__ == "__main__":
    raise SystemExit(main())
