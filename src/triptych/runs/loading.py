"""Which weights of a run a verb takes, and how its model is run: the settings that all verbs over a run share."""

from __future__ import annotations

import numbers
from typing import Literal, TypedDict

from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.engine.lengths import LENGTHS, LONGEST, SHORTEST, length_name

Precision = Literal["float32", "bf16", "fp16"]


@config
class WeightsChoice(Config):
    """Which weights of a run."""

    checkpoint: str = "latest"
    "latest, best, or the images seen of a checkpoint that was kept."
    weights: str | None = None
    "raw, ema-RATE (ema-0.9999) or ema-length-LENGTH; None: the run's first moving average, or raw when it has none."
    ema_length: float | None = None
    "Length of a power-function average (0.1), which need not have been tracked; None: see weights."

    def validate(self) -> None:
        if isinstance(self.checkpoint, numbers.Integral) and not isinstance(self.checkpoint, bool):  # its number, in Python
            object.__setattr__(self, "checkpoint", str(self.checkpoint))
        self.check_types()
        named = self.checkpoint in ("latest", "best") or self.checkpoint.isdecimal()
        self.require(named, "checkpoint", "latest, best or a number of images")
        if self.ema_length is not None:
            self.require(SHORTEST <= self.ema_length <= LONGEST, "ema_length", LENGTHS)
            if self.weights is not None:
                raise ConfigError("ema_length", f"got {self.ema_length} beside {{}} {self.weights}; leave one of them out", ["weights"])

    @property
    def chosen(self) -> str | None:
        """The name of the weights; None: see `weights`."""
        return self.weights if self.ema_length is None else length_name(self.ema_length)


@config
class Loading(WeightsChoice):
    """Which weights of a run, on which device, and how many images at once in which arithmetic."""

    batch_size: int | None = None
    "Images at once in each process; None: the run's batch size, at most 64."
    precision: Precision = "float32"
    "Arithmetic of the networks."
    device: str | None = None
    "cpu, cuda or cuda:N; None: a CUDA device where there is one."

    def validate(self) -> None:
        self.require(self.batch_size is None or self.batch_size >= 1, "batch_size", "at least 1")

    def keywords(self) -> LoadingKeywords:
        """These settings as keyword arguments of a verb, without those of a class that inherits them."""
        return {name: getattr(self, name) for name in LoadingKeywords.__annotations__}  # type: ignore[return-value]


class LoadingKeywords(TypedDict, total=False):
    """The settings of `Loading` as keyword arguments, which every verb of a Run takes."""

    checkpoint: str
    weights: str | None
    ema_length: float | None
    batch_size: int | None
    precision: Precision
    device: str | None
