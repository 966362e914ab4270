"""Pairs of images and weights of networks by formula, for the recorded values of tests/golden/pairs.json."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from torch import Tensor

from tests.diffusion.recorded import GOLDEN, array
from triptych.evaluation.lpips import BACKBONES, LpipsNetwork
from triptych.nn.feature_networks import required_tensors

SHAPES = {
    "rgb": (2, 192, 208, 3),
    "grey": (1, 176, 192, 1),
    "uneven": (1, 176, 190, 1),
    "odd": (1, 45, 12, 3),
    "alexnet": (2, 70, 64, 3),
    "vgg16": (2, 32, 40, 3),
}


def recorded() -> dict[str, Any]:
    """The values by name."""
    return json.loads((GOLDEN / "pairs.json").read_text())


def pair(name: str) -> tuple[np.ndarray, np.ndarray]:
    """uint8 images (b, h, w, c), tiles of 8x8 pixels with noise, and the same with other noise and less contrast."""
    batch, height, width, channels = shape = SHAPES[name]
    tiles = array(f"{name}/tiles", (batch, -(-height // 8), -(-width // 8), channels), 60).numpy()
    first = 128 + tiles.repeat(8, 1).repeat(8, 2)[:, :height, :width] + array(f"{name}/first", shape, 5).numpy()
    second = np.float32(0.9) * first + array(f"{name}/second", shape, 20).numpy()
    return _uint8(first), _uint8(second)


def _uint8(values: np.ndarray) -> np.ndarray:
    return np.clip(np.round(values), 0, 255).astype(np.uint8)


def lpips_weights(name: LpipsNetwork) -> dict[str, Tensor]:
    """Random ones under which activations keep their size."""
    return {key: _weight(f"lpips/{name}/{key}", shape) for key, shape in required_tensors(name, BACKBONES[name].layers).items()}


def _weight(name: str, shape: tuple[int, ...]) -> Tensor:
    return array(name, shape, math.sqrt(2 / math.prod(shape[1:])) if len(shape) == 4 else 0.1)
