"""Images that a run is to upsample: pictures that are given, or those that a base run draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from triptych.engine.distributed import World
from triptych.engine.run_directory import RunDirectory
from triptych.runs.sampling import Request, label_list, require_sampler
from triptych.runs.stored import StoredRun
from triptych.runs.upsampling import BASE_COUNT, Drawn, Pictures, open_pictures, require_fitting_base, require_upsampler


@dataclass(frozen=True)
class Inputs:
    """Images for `Run.upsample`: pictures, or a base run that draws them."""

    source: Pictures | StoredRun

    @property
    def count(self) -> int:
        """How many are used where nothing is said: all pictures, or 64 of a base run."""
        return self.source.count if isinstance(self.source, Pictures) else BASE_COUNT

    @property
    def most(self) -> float:
        """How many there can be; without end where a run draws them."""
        return self.source.count if isinstance(self.source, Pictures) else math.inf


def open_inputs(images: str | Path | np.ndarray, *, run: StoredRun) -> Inputs:
    """The images for the upsampler of `run`: those at a path or in an array, or of the base run at a path.

    Raises ConfigError for a run that takes no images, DataError for images of another size or of other classes.
    """
    model = run.outline
    size = require_upsampler(model).input_size
    if isinstance(images, np.ndarray) or not RunDirectory(Path(images)).exists():
        return Inputs(open_pictures(images, size=size, channels=run.spec.channels))
    base = StoredRun(RunDirectory(Path(images)))
    require_sampler(base.outline)
    require_fitting_base(str(images), base.outline, base.spec, model=model, ours=run.spec)
    return Inputs(base)


def drawn_by(
    base: StoredRun, count: int, *, seed: int, labels: Sequence[int | str] | None, precision: str, world: World
) -> tuple[Drawn, dict[str, Any]]:
    """What a base run draws, by its own settings, and what that depends on."""
    model, origin = base.loaded("latest", None, world)
    settings = require_sampler(model).sampling
    given = None if getattr(model, "num_classes", None) is None else labels
    request = Request(count, seed, label_list(model, base.spec, count=count, given=given), settings, precision)
    chosen = None if request.labels is None else request.labels.tolist()
    drawn = Drawn(model, request, base.spec, str(base.directory), world.device)
    return drawn, origin | {"settings": settings.to_dict(), "labels": chosen}
