"""Recorded values of the original programs, and the deterministic weights that they rest on (see tests/golden/README.md)."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

GOLDEN = Path(__file__).parents[1] / "golden"


def array(name: str, shape: Sequence[int], scale: float) -> Tensor:
    """The same normal numbers for the same name on every machine: float32."""
    generator = np.random.Generator(np.random.Philox(zlib.crc32(name.encode())))
    return torch.from_numpy((generator.standard_normal(tuple(shape)) * scale).astype(np.float32))


def weight(name: str, shape: Sequence[int]) -> Tensor:
    """A parameter of a recorded network."""
    if len(shape) > 1:
        return array(name, shape, 0.7 / math.sqrt(math.prod(shape[1:])))
    return array(name, shape, 0.1) + (1 if name.endswith("weight") else 0)


def weights(shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """A state dict."""
    return {name: weight(name, shape) for name, shape in shapes.items()}


def load(name: str) -> tuple[dict[str, np.ndarray], Any]:
    """The arrays and the description of a file."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    return arrays, json.loads((GOLDEN / f"{name}.json").read_text())
