"""Recorded values of imaginaire's networks, and the weights and inputs that they rest on (see tests/golden/README.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.diffusion.recorded import GOLDEN, array

SIDES = {"spade": 256, "unit": 64, "munit": 256}
"""Of the images."""


def recorded() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The outputs by name, and for each configuration its `gen` and `dis`, and the names and shapes of its weights."""
    with np.load(GOLDEN / "imaginaire.npz") as file:
        arrays = {name: file[name] for name in file.files}
    return arrays, json.loads((GOLDEN / "imaginaire.json").read_text())


def weights(name: str, part: str, shapes: Mapping[str, list[int]]) -> dict[str, Tensor]:
    """The state dict of the generator ("G") or the discriminator ("D") of a configuration."""
    state = {key: _weight(f"{name}/{part}/{key}", shape) for key, shape in shapes.items()}
    for key in [key for key in state if key.endswith("weight_orig")]:
        u, _, v = torch.linalg.svd(state[key].flatten(1), full_matrices=False)
        state[f"{key[:-4]}u"], state[f"{key[:-4]}v"] = u[:, 0], v[0]
    return state


def _weight(name: str, shape: list[int]) -> Tensor:
    if name.endswith("num_batches_tracked"):
        return torch.tensor(0)
    if name.endswith("running_var"):
        return array(name, shape, 0.2).abs() + 0.8
    if len(shape) > 1:
        return array(name, shape, 0.8 / math.sqrt(math.prod(shape[1:])))
    return array(name, shape, 0.1) + (1 if name.endswith("weight") else 0)


def images(name: str, key: str) -> Tensor:
    """The first of the images that a configuration was given under a name: (1, 3, h, w)."""
    side = SIDES[name]
    return array(f"{name}/{key}", (2, 3, side, side), 0.5)[:1].clamp(-1, 1)


def draw(name: str, index: int, *shape: int) -> Tensor:
    """The first of the random draws number `index`: (1, *shape)."""
    return array(f"{name}/draw/{index}", (2, *shape), 1.0)[:1]


def label(arrays: Mapping[str, np.ndarray]) -> Tensor:
    """The first of SPADE's label maps, (1, 8, 256, 256): seven classes, and a last channel of fractions of 24 bits."""
    classes = torch.nn.functional.one_hot(torch.from_numpy(arrays["spade/label/classes"]).long(), 7).permute(2, 0, 1).float()
    low, middle, high = arrays["spade/label/last"].astype(np.float64)
    last = torch.from_numpy((low + 2**8 * middle + 2**16 * high) / 2**24).float()
    return torch.cat((classes, last[None]))[None]


def difference(output: Tensor, expected: np.ndarray) -> float:
    """The largest absolute difference of an output from what is recorded of it: one pixel of each square."""
    if output.ndim == 4:
        step = math.ceil(output.shape[2] / expected.shape[2])
        output = output[..., ::step, ::step]
    assert tuple(output.shape) == expected.shape
    return float((output.detach() - torch.from_numpy(expected)).abs().max())
