"""The checkpoints that openai/glow published, known by the names of their archives: https://github.com/openai/glow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class PublishedCheckpoint:
    """A published checkpoint: the name of its archive, the flags that its shapes do not tell or have to bear out, and its recipe."""

    name: str
    flags: Mapping[str, Any] = field(hash=False)
    recipe: str


_PERMUTATIONS = {"reverse": 0, "shuffle": 1, "1x1": 2}
_COUPLINGS = {"add": 0, "aff": 1}
_CATEGORIES = {"bdr": "bedroom", "crh": "church", "twr": "tower"}


def published_checkpoint(path: str | Path) -> PublishedCheckpoint | None:
    """The published checkpoint that a path speaks of: a folder of it, or the file itself, is called like the archive; None: none."""
    for part in reversed(Path(path).absolute().parts):
        ablation = re.search(r"abl-(reverse|shuffle|1x1)-(add|aff)", part)
        if ablation:
            flags = {"flow_permutation": _PERMUTATIONS[ablation[1]], "flow_coupling": _COUPLINGS[ablation[2]]}
            return PublishedCheckpoint(ablation[0], {"problem": "cifar10", "image_size": 32, "n_bits_x": 8} | flags, "glow-cifar10")
        lsun = re.search(r"lsun-rnvp-(bdr|crh|twr)", part)
        if lsun:
            flags = {"problem": "lsun_realnvp", "image_size": 64, "n_bits_x": 8, "flow_permutation": 2, "flow_coupling": 1}
            return PublishedCheckpoint(lsun[0], flags, f"glow-lsun-{_CATEGORIES[lsun[1]]}")
    return None
