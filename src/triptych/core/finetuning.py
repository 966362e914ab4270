"""What a translator of clips says that can learn a little more from the pictures whose look it shall take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from triptych.core.batch import Batch
from triptych.core.config import Config
from triptych.core.rng import Rng
from triptych.core.translation import VideoTranslator


@dataclass(frozen=True)
class Finetuning:
    """How long a model learns from its style images before it is used."""

    steps: int
    rate: float | None
    "Learning rate; None: that of the run."


@runtime_checkable
class Finetuned(VideoTranslator, Protocol):
    """A translator of clips that can learn from its style images before it makes clips of their look."""

    def finetuning(self, settings: Config) -> Finetuning | None:
        """What these settings ask for; None: nothing."""
        ...

    def finetuned_weights(self) -> Mapping[str, Mapping[str, nn.Parameter]]:
        """By the name of each network its weights that change."""
        ...

    def of_style(self, look: Mapping[str, Tensor], rng: Rng) -> Batch:
        """A sample to learn from, of style images and their maps (1, k, ...) by the names of `style_sources`."""
        ...
