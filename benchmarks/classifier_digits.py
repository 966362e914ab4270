"""How often classifiers of noisy digits are right, by the noise, beside what can be known: a kernel density estimate of each class.

    triptych train classifier-digits --run runs/digits-classifier
    python benchmarks/classifier_digits.py --runs runs/digits-classifier --out FILE.md

Held-out digits, each with so many noises at timesteps that are drawn uniformly. The estimate has a Gaussian around each training image,
and so knows p(y | x_t) of what it takes for the data. Target: in each quarter of the timesteps the first run's share of right answers is
at most 3 % below that of the estimate. Exit code 1 when it is missed.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from machine import machine, show_report
from torch import Tensor

from triptych.core.batch import RawBatch
from triptych.core.model import NUM_GROUPS
from triptych.core.rng import Rng
from triptych.data.images import ImageSet
from triptych.runs import open_run

WIDTH = 0.14  # of the Gaussian around a training image, in units of [-1, 1]
AT_MOST_BELOW = 0.03


def loaded(images: ImageSet) -> tuple[Tensor, Tensor]:
    """Images in [-1, 1] (n, c, h, w) and labels."""
    assert images.labels is not None
    raw = torch.from_numpy(images.batch(np.arange(len(images))).images)
    return RawBatch(raw, None, torch.arange(len(raw))).to("cpu").images, torch.from_numpy(images.labels).long()


def estimated(x: Tensor, c: Any, known: Tensor, labels: Tensor) -> Tensor:
    """log p(y, x_t) up to a constant, by the density estimate: (b, classes)."""
    variance = c.abar.flatten()[:, None] * WIDTH**2 + c.sqrt_noise.flatten()[:, None] ** 2
    x, known, scale = x.flatten(1).double(), known.flatten(1).double(), c.sqrt_abar.flatten()[:, None]
    squared = (x**2).sum(1)[:, None] - 2 * scale * (x @ known.T) + scale**2 * (known**2).sum(1)
    log = -squared / (2 * variance)
    return torch.stack([log[:, labels == label].logsumexp(1) for label in range(int(labels.max()) + 1)], dim=1)


def measure(model: Any, images: Tensor, labels: Tensor, known: tuple[Tensor, Tensor], draws: int) -> dict[str, Tensor]:
    """By who answers: quarter, rightness and loss of each answer, (n, 3)."""
    found: dict[str, list[Tensor]] = {"the classifier": [], "density estimate": []}
    for draw in range(draws):
        rng = Rng(0, ("look", draw), torch.arange(len(images)))
        t = (rng.uniform("t") * model.process.steps).long().clamp(max=model.process.steps - 1)
        c = model.process.at(t)
        x = model.process.noised(images, rng.normal("noise", *images.shape[1:]), c)
        with torch.no_grad():
            answers = (model.classify(x, c), estimated(x, c, *known))
        for rows, logits in zip(found.values(), answers, strict=True):
            right, loss = logits.argmax(1) == labels, F.cross_entropy(logits, labels, reduction="none")
            rows.append(torch.stack((NUM_GROUPS * t // model.process.steps, right, loss), dim=1).double())
    return {name: torch.cat(rows) for name, rows in found.items()}


def quarters(rows: Tensor, column: int) -> list[float]:
    """The mean of a column in each quarter of the timesteps."""
    return [float(rows[rows[:, 0] == quarter, column].mean()) for quarter in range(NUM_GROUPS)]


def main() -> int:
    """0, or 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", type=Path, required=True, help="runs of classifier-digits")
    parser.add_argument("--draws", type=int, default=40, help="noises of each digit")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args()

    runs = [open_run(path) for path in options.runs]
    data = runs[0].config.data.open()
    assert data.validation is not None, "the recipe holds digits out"
    known, (images, labels) = loaded(data.train), loaded(data.validation)
    found: dict[str, Tensor] = {}
    for path, run in zip(options.runs, runs, strict=True):
        rows = measure(run.load(), images, labels, known, options.draws)
        found |= {f"`{path.name}`, {run.find_checkpoint()} images seen": rows["the classifier"]}
        found["density estimate"] = found.pop("density estimate", rows["density estimate"])  # last, and the same for all
    shares = {name: quarters(rows, 1) for name, rows in found.items()}
    first, estimate = next(iter(shares.values())), shares["density estimate"]
    passed = all(best - own <= AT_MOST_BELOW for own, best in zip(first, estimate, strict=True))
    lines = [
        f"# Classifiers of noisy digits, {datetime.date.today().isoformat()}",
        "",
        machine(),
        "",
        f"{len(images)} held-out digits, {options.draws} noises each; the estimate has Gaussians of width {WIDTH} around {len(known[0])} "
        "training images.",
        "",
        "| quarter of the timesteps | 0 | 1 | 2 | 3 |",
        "|---|---|---|---|---|",
        *(f"| right: {name} | {' | '.join(f'{100 * share:.1f} %' for share in row)} |" for name, row in shares.items()),
        *(f"| loss, nats: {name} | {' | '.join(f'{loss:.3f}' for loss in quarters(rows, 2))} |" for name, rows in found.items()),
        "",
        f"Target, at most {AT_MOST_BELOW:.0%} below the estimate: {'reached' if passed else 'MISSED'}.",
    ]
    show_report(lines, out=options.out)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
