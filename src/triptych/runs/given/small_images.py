"""Small images that an upsampler enlarges: those that a user brings, or those that a base run draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from triptych.core.errors import ConfigError
from triptych.core.given import whole_number
from triptych.runs.given.classes import labels_of, renumbered
from triptych.runs.given.collection import Collection, counted
from triptych.runs.latent_space import shown_by
from triptych.runs.sampling import Request, draw, label_list, require_sampler
from triptych.runs.stored import Opened, StoredRun

BASE_COUNT = 64
"""Images that a base run draws where no number is given."""

Load = Callable[[range], np.ndarray]
"""From some indices to the images, uint8 (b, s, s, c)."""


@dataclass(frozen=True)
class SmallImages:
    """Small images, to be read or to be drawn."""

    source: Collection | StoredRun

    @property
    def count(self) -> int:
        """How many are used where nothing is said: all that there are, or 64 of a base run."""
        return BASE_COUNT if isinstance(self.source, StoredRun) else len(self.source)

    def counted(self, count: int | None) -> int:
        """How many are used: so many, or (None) see `count`. Raises ConfigError for more than there are."""
        if not isinstance(self.source, StoredRun):
            return counted(count, len(self.source))
        return BASE_COUNT if count is None else whole_number(count, "count", least=1)

    def first(self, count: int, upsampler: Opened, *, seed: int, labels: Sequence[int | str] | None) -> tuple[Load, np.ndarray | None, Any]:
        """What loads the first `count`; their labels, as those of the upsampler; and what they depend on, for JSON.

        `labels` are taken in turn; None: those of the images. A base run draws with `seed` and its own settings. Raises ConfigError or
        DataError for labels that do not fit.
        """
        if isinstance(self.source, StoredRun):
            return _drawn(self.source, count, upsampler, seed=seed, labels=labels)
        kept = labels_of(self.source, upsampler.model.num_classes, upsampler.spec, count=count, chosen=labels)
        return self.source.load, kept, self.source.origin


def _drawn(
    run: StoredRun, count: int, upsampler: Opened, *, seed: int, labels: Sequence[int | str] | None
) -> tuple[Load, np.ndarray | None, Any]:
    base, origin = run.loaded_together("latest", None, upsampler.world)
    sampling, name, num_classes = require_sampler(base).sampling, str(run.directory), upsampler.model.num_classes
    own = label_list(base.num_classes, run.spec, count=count, given=None if base.num_classes is None else labels)
    request = Request(count, seed, own, sampling, upsampler.loading.precision, shown=shown_by(run.spec, upsampler.world, run.paths))

    def load(part: range) -> np.ndarray:
        return draw(base, request, part, upsampler.world.device)

    if own is not None:
        kept = own if num_classes is None else renumbered(run.spec, upsampler.spec, name=name)[own]
    elif labels is None and num_classes is not None:
        raise ConfigError("labels", f"{name} draws images without labels, but this model needs them; give some")
    else:
        kept = label_list(num_classes, upsampler.spec, count=count, given=labels)
    return load, kept, origin | {"settings": sampling.to_dict(), "labels": None if own is None else own.tolist()}
