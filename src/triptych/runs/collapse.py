"""Whether the samples of a training have become alike, as those of a GAN that collapses, and the line that says so.

Two figures of each evaluation tell it, and neither needs a network. The share of near-equal pairs (`near_equal`) is 0 where a training
goes well; in trainings that collapsed onto single images it was 0.018 to 0.37. In others it stays 0, for the images keep a little
variety, but their distances shrink: `spread`, in terms of those of real images, was 0.75 to 1 in trainings that went well, 0.6 or more
between two parts of one real set, however small, and 0.2 in a GAN that drew one digit (benchmarks/results/collapse-2026-11-22.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from triptych.core.ramp import Ramp
from triptych.evaluation.near_equal import LEVELS, near_equal_share
from triptych.evaluation.spread import spread
from triptych.gans.penalties import PenaltyConfig
from triptych.recipes.config import RunConfig

NEAR_EQUAL, SPREAD = "near_equal", "spread"
"""The two figures."""
_MOST_EQUAL, _USUAL_TIMES = 0.01, 3
"""Above this share pairs are equal too often, and above so many times that of real images: some sets have images twice."""
_LEAST_SPREAD = 0.5
_STRONGER = 4
_PATIENCE = 3
"""Evaluations: before it has learned, a model draws alike images too."""

Figures = Mapping[str, float]


def collapse_figures(made: np.ndarray, real: np.ndarray | None) -> dict[str, float]:
    """Both figures of samples beside real images, uint8 (n, h, w, c) each; without these the first."""
    found = {NEAR_EQUAL: near_equal_share(made)}
    return found if real is None else found | {SPREAD: spread(made, real)}


def collapse_news(now: Figures, before: Sequence[Figures], *, config: RunConfig, usual: float = 0.0) -> str | None:
    """What is said when samples have become alike, and when they differ again; None: nothing new.

    `before`: the earlier evaluations of the run, in order. `config`: that of the run, by whose flags it can be mended. `usual`: the share
    of near-equal pairs among real images.
    """
    flags = [_alike(each, usual) for each in (*before, now)]
    if _due(flags) == _due(flags[:-1]):
        return None
    if not flags[-1]:
        return "samples differ from one another again"
    reasons = []
    if _too_close(now):
        reasons.append(f"they are {now[SPREAD]:.2g} times as far from one another as real images are from one another")
    if _too_equal(now, usual):
        reasons.append(f"{100 * now[NEAR_EQUAL]:.3g} % of their pairs differ by less than {LEVELS} of 255 levels")
    if "recall" in now:
        reasons.append(f"recall {now['recall']:.3g}")
    return (
        f"warning: samples {'are still' if all(flags) else 'have become'} alike: {', '.join(reasons)}; look at the grids, and begin anew "
        f"from an earlier checkpoint (--init-from RUN/checkpoints/N) with a lower --optim.learning-rate{_more_penalty(config)}"
    )


def _more_penalty(config: RunConfig) -> str:
    """The flags of a GAN whose discriminator is penalised that make a penalty four times as strong; nothing of other models."""
    penalty = getattr(config.model, "penalty", None)
    if not isinstance(penalty, PenaltyConfig) or not penalty.wanted:
        return ""
    flags = []
    for name, gamma in (("r1-gamma", penalty.r1_gamma), ("r2-gamma", penalty.r2_gamma)):
        values = {".start": gamma.start, ".end": gamma.end} if isinstance(gamma, Ramp) else {"": gamma}
        flags += [f"--model.penalty.{name}{end} {_STRONGER * value:g}" for end, value in values.items() if value]
    return f" or a stronger penalty ({' '.join(flags)})"


def _due(flags: Sequence[bool]) -> bool:
    """Whether the last evaluation found alike samples, after one that did not, or after enough that all did."""
    return bool(flags) and flags[-1] and (not all(flags) or len(flags) >= _PATIENCE)


def _alike(figures: Figures, usual: float) -> bool:
    return _too_close(figures) or _too_equal(figures, usual)


def _too_close(figures: Figures) -> bool:
    return figures.get(SPREAD, 1.0) < _LEAST_SPREAD


def _too_equal(figures: Figures, usual: float) -> bool:
    return figures.get(NEAR_EQUAL, 0.0) > max(_MOST_EQUAL, _USUAL_TIMES * usual)
