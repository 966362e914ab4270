"""What a metric is: numbers for each image of a data set, and what is made of those of all images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from triptych.core.batch import Batch
from triptych.core.model import Model
from triptych.core.rng import Rng


@dataclass(frozen=True)
class Measured:
    """What a metric finds at the b images of a batch."""

    each: Mapping[str, Tensor]
    "(b,): kept for every image."
    summed: Mapping[str, Tensor] = field(default_factory=dict)
    "(...): sums over the images of the batch, which are added up."
    same: Mapping[str, Tensor] = field(default_factory=dict)
    "(...): the same for every batch."


@dataclass(frozen=True)
class Collected:
    """The same for all images, in their order."""

    each: Mapping[str, np.ndarray]
    summed: Mapping[str, np.ndarray]
    same: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Findings:
    """What a metric says in the end."""

    figures: dict[str, float | None]
    "By name, the metric itself first and its standard error second; None: it cannot be told."
    arrays: dict[str, np.ndarray]
    "By image or by timestep, as the metric documents them."


class ImageMetric(Protocol):
    """A metric of a model that looks at one image of the data after the other."""

    @property
    def settings(self) -> dict[str, Any]:
        """How it measures."""
        ...

    def measure(self, batch: Batch, rng: Rng) -> Measured:
        """What it finds at the images of a batch."""
        ...

    def conclude(self, collected: Collected) -> Findings:
        """What that comes to."""
        ...


@dataclass(frozen=True)
class Metric:
    """An entry of the catalogue."""

    summary: str
    make: Callable[[Model, Any], ImageMetric]
    "From a model in evaluation mode and the settings; raises ConfigError where the model lacks what the metric needs."


def standard_error(values: np.ndarray) -> float | None:
    """The standard error of the mean of `values` (n,); None for a single one."""
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else None


def share_error(found: int, count: int) -> float:
    """The standard error of a share. All or none of n says not that it is certain.

    Agresti and Coull 1998: as if two more had been found and two had not.
    """
    share = (found + 2) / (count + 4)
    return (share * (1 - share) / (count + 4)) ** 0.5
