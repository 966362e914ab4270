"""Which checkpoint of a run is the best, and what chose it, from the newest state.json that can be read."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.core.reading import parsed_json, read_regular
from triptych.engine.run_directory import checkpoint_path, list_checkpoints

BY_VALIDATION = "validation"
_MOST_BYTES = 2**24


@dataclass(frozen=True)
class Best:
    """The best checkpoint."""

    score: float
    images: int
    "Images seen by it."
    by: str
    "What chose it: the figure and how it was measured; validation: the first loss on held-out images."


def best_checkpoint(folder: Path) -> Best | None:
    """The best of the checkpoints in a folder; None where none was chosen, or none can be read."""
    for number in reversed(list_checkpoints(folder)):
        try:
            state = parsed_json(read_regular(checkpoint_path(folder, number) / "state.json", most=_MOST_BYTES))
        except (OSError, ValueError):
            continue
        return _best(state.get("best")) if isinstance(state, dict) else None
    return None


def _best(entry: Any) -> Best | None:
    match entry:
        case {"score": int() | float() as score, "images": int() as images} if abs(score) < sys.float_info.max:
            return Best(float(score), images, str(entry.get("by", BY_VALIDATION)))
    return None
