"""The files of what was measured: figures as JSON and, beside them under the same name, an .npz with the numbers by image."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from triptych.core.errors import ConfigError
from triptych.core.files import write_text
from triptych.core.given import given_place
from triptych.engine.distributed import World
from triptych.runs.files import check_figures, save_npz
from triptych.runs.pieces import digest_of

_LONGEST_NAME = 60  # characters of the metrics in the name of a file


def figures_place(out: str | Path | None) -> Path | None:
    """Where figures go that are wanted at `out`. Raises ConfigError for another ending than .json, DataError as `check_figures` does."""
    if out is None:
        return None
    place = given_place(out, "out")
    if place.suffix != ".json":
        raise ConfigError("out", f"got {str(place)!r}, expected a name that ends with .json")
    check_figures(place)
    return place


def place_in_run(directory: Path, names: Iterable[str], *, images: int, asked: Any) -> Path:
    """A name in a run's folder evaluations for figures of weights that have seen so many `images`; `asked`: all that they depend on."""
    return directory / "evaluations" / f"{'+'.join(names)[:_LONGEST_NAME]}-{images:09d}-{digest_of(asked)[:6]}.json"


def taken_since(started: float, world: World) -> dict[str, Any]:
    """What a measurement took that began at this time of `time.monotonic`."""
    return {"seconds": round(time.monotonic() - started, 1), "processes": world.size, "device": world.device.type}


def write_figures(out: Path, document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes the numbers by image, where there are some, and then the figures, each whole or not at all."""
    if arrays:
        save_npz(out.with_suffix(".npz"), arrays)
    write_text(out, json.dumps(document, indent=2) + "\n")
