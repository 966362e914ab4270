"""Tensors into a model: of a checkpoint, exactly for a resume, as far as they fit for a new start; and of frozen networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.model import Model
from triptych.core.reading import user_path
from triptych.core.weight_files import read_weights


def load_weights(model: Model, tensors: Mapping[str, Tensor]) -> None:
    """Copies of all of the model's state in place of what it has, which may be an outline alone.

    Raises CheckpointError, naming the first tensor that does not fit.
    """
    state = model.state_dict()
    for name in state:
        if name not in tensors:
            raise CheckpointError(f"the checkpoint is of another model: it has no {name}")
        if tensors[name].shape != state[name].shape:
            raise CheckpointError(
                f"the checkpoint is of another model: {name} has shape {list(tensors[name].shape)}, expected {list(state[name].shape)}"
            )
    for name in tensors:
        if name not in state and name not in model.obsolete:
            raise CheckpointError(f"the checkpoint is of another model: it has {name}, which this one lacks")
    # Copies, in the model's own order of memory: the tensors of a checkpoint lie in its file, which may go away.
    room = {name: torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype) for name, tensor in state.items()}
    model.load_state_dict({name: tensor.copy_(tensors[name]) for name, tensor in room.items()}, assign=True)


@dataclass(frozen=True)
class Fitting:
    """What another run's weights gave a model."""

    count: int
    "Tensors that were taken."
    of: int
    "Tensors that the model has, but for what is of a training."
    lines: list[str]
    "One for each tensor that kept its fresh values or was not used."


@torch.no_grad()
def load_fitting_weights(model: Model, tensors: Mapping[str, Tensor]) -> Fitting:
    """Loads what has the model's names and shapes, and says what that was.

    Raises CheckpointError where nothing fits.
    """
    state, tensors = model.state_dict(), model.renamed(tensors)
    lines, fitted = [], 0
    for name, tensor in state.items():
        weight = _divided(name)
        if name in model.of_training:
            continue
        if name not in tensors:
            lines.append(f"{name} is new")
        elif tensors[name].shape != tensor.shape:
            lines.append(f"{name} starts anew: its shape was {list(tensors[name].shape)}, now it is {list(tensor.shape)}")
        elif weight in state and (weight not in tensors or tensors[weight].shape != state[weight].shape):
            lines.append(f"{name} starts anew: it is of {weight}")
        else:
            tensor.copy_(tensors[name])
            fitted += 1
    if not fitted:
        raise CheckpointError("init-from: none of the other run's weights fits this model")
    unused = [f"{name} is not used" for name in tensors if name not in state and name not in model.obsolete]
    return Fitting(fitted, fitted + len(lines), lines + unused)


def _divided(name: str) -> str:
    """The name of the weight that a vector u of spectral norm belongs to: with another weight, the sigma computed from u is wrong."""
    stem, _, last = name.rpartition("weight_")
    return f"{stem}weight_orig" if last in ("u", "v") else ""


def load_frozen_networks(model: Model) -> None:
    """Loads the frozen networks that training needs. Raises ConfigError where no file is given, CheckpointError where it does not fit."""
    for name, path in model.frozen_networks.items():
        if path is None:
            raise ConfigError(
                f"model.{name}.weights",
                f"missing: give the file of weights of the {name} network (.pth or .safetensors), or set model.{name}_weight to 0",
            )
        getattr(model, name).load(read_weights(user_path(path)), source=path)
