"""The variables of tests/golden/glow_checkpoint, which TensorFlow wrote: names, shapes and values (see tests/golden/README.md)."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parents[1] / "golden/glow_checkpoint"
PREFIX = FOLDER / "model_best_loss.ckpt"
SLICED = FOLDER / "sliced/sliced.ckpt"
AVERAGE = "/ExponentialMovingAverage"
TYPES = ("float64", "int32", "int64", "bfloat16", "float16", "bool")
"""Of the variables types/TYPE; the last one is of a type that is not read."""
_WIDTH = 4


def _step(prefix: str, channels: int) -> dict[str, tuple[int, ...]]:
    """The variables of an affine step."""
    half = channels // 2 + 1
    vectors = {"actnorm_center/b": channels, "actnorm_scale/logs": channels, "f1/l_last/b": channels}
    hidden = {f"f1/{layer}/actnorm_{part}": _WIDTH for layer in ("l_1", "l_2") for part in ("center/b", "scale/logs")}
    shapes: dict[str, tuple[int, ...]] = {name: (1, 1, 1, size) for name, size in (vectors | hidden).items()}
    shapes |= {"invconv/W": (channels, channels), "f1/l_1/W": (3, 3, half, _WIDTH), "f1/l_2/W": (1, 1, _WIDTH, _WIDTH)}
    shapes |= {"f1/l_last/W": (3, 3, _WIDTH + 1, channels), "f1/l_last/logs": (1, channels)}
    return {f"{prefix}/{name}": shape for name, shape in shapes.items()}


def _zero_conv(prefix: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}/W": (3, 3, inputs + 1, outputs), f"{prefix}/b": (1, 1, 1, outputs), f"{prefix}/logs": (1, outputs)}


VARIABLES = {
    **_step("model/0/0", 4),
    **_zero_conv("model/pool0/conv", 2, 4),
    **_step("model/1/0", 8),
    **_zero_conv("model/prior/p", 16, 16),
}
"""Shapes by name of a Glow of grey images: two levels of one affine step, width 4, a learned top."""


def value(name: str, shape: Sequence[int]) -> np.ndarray:
    """A variable's values, the same on every machine: float32. Matrices are near the identity."""
    generator = np.random.Generator(np.random.Philox(zlib.crc32(name.encode())))
    values = generator.standard_normal(tuple(shape)) * 0.1
    return (values + (np.eye(shape[0]) if name.endswith("invconv/W") else 0)).astype(np.float32)


def average(name: str, shape: Sequence[int]) -> np.ndarray:
    """The values of its moving average: half of its own."""
    return value(name, shape) / 2
