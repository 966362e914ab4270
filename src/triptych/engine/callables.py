"""What the training loop is handed: images, a validation, what draws grids of samples, and what evaluates samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from triptych.core.batch import RawBatch
from triptych.core.errors import UserError
from triptych.engine.progress import Watch

Grid = Callable[[Path, Watch], None]
"""Writes a grid of samples with the present weights of the model."""

ERROR = "_error"
"""What the name of a figure's standard error ends with."""


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation found."""

    values: Mapping[str, float]
    "Figures by name, and their standard errors as NAME_error."
    made: str
    "What was measured, in a few words."
    notes: tuple[str, ...] = ()
    "Lines for the log: what could not be measured, and warnings."


@dataclass(frozen=True)
class Criterion:
    """What decides which checkpoint is the best."""

    by: str
    "What it is called: scores of one name can be compared."
    figure: str = ""
    "Name of the figure of an evaluation; none: the first loss of a validation."
    sign: Literal[1, -1] = 1
    "1 where lower is better, -1 where higher is."
    settings: str = ""
    "A digest of how the figure is measured besides; none: there is nothing that could be otherwise."

    def measured_so(self, best: Mapping[str, Any]) -> bool:
        """Whether the best one so far was chosen by the same; those of earlier versions do not tell their settings."""
        return chosen_by(best) == self.by and best.get("settings", self.settings) == self.settings

    def noted(self, score: float | None, images: int) -> dict[str, Any]:
        """What a checkpoint keeps of the best one, for JSON."""
        return {"score": score, "images": images, "by": self.by} | ({"settings": self.settings} if self.settings else {})

    def improved(self, score: float | None, best: Mapping[str, Any] | None) -> bool:
        """Whether a score is better than the best one so far. One that was chosen by something else gives way to any."""
        if score is None or not math.isfinite(score):
            return False
        return best is None or not self.measured_so(best) or self.sign * score < self.sign * best["score"]


BY_VALIDATION = Criterion("validation")


def chosen_by(best: Mapping[str, Any]) -> str:
    """What a checkpoint was called the best by; in those of the first versions it was always the validation."""
    return best.get("by", BY_VALIDATION.by)


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of samples, for the loop."""

    measure: Callable[[Watch], Evaluated]
    "With the present weights of the model, in all processes alike. Raises RunError or DataError where nothing can be measured."
    criterion: Criterion | None = None
    "None: the validation decides which checkpoint is the best."


@dataclass(frozen=True)
class News:
    """What any process may come to know, for the main one to say."""

    pending: Callable[[], bool]
    "Whether this process knows something that was not said yet."
    tell: Callable[[], UserError | None]
    "Says it, by all processes together. What it returns, in all of them alike, ends the training."


@dataclass(frozen=True)
class Callables:
    """What the loop calls: the source of images, the validation, the grids of samples."""

    draw: Callable[[int], Iterator[RawBatch]]
    "From a number of images seen, without end: this process's share of the batch of each following step."
    validate: Callable[[Watch], dict[str, float]] | None
    "The loss terms on held-out images with the present weights, the one that decides which checkpoint is best first."
    grids: Mapping[str, Grid] = field(default_factory=dict)
    "The grids of samples, by the ending of their file names."
    calibrate: Callable[[], Iterator[RawBatch]] | None = None
    "This process's share of some training batches, always the same. Averages take statistics from them."
    evaluation: Evaluation | None = None
    "The evaluation of samples."
    news: News | None = None
    "What is to be said of the images; in all processes or in none."
    found_microbatch: Callable[[int], None] | None = None
    "Told in all processes alike, between two steps, of the microbatch that the run goes on with, where it is another one than was set."
