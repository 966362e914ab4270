"""Weights of openai/glow: https://github.com/openai/glow.

Its variables are named "model/LEVEL/STEP/..."; kernels are (h, w, in, out), a 1x1 convolution is y = x W, and a vector has the shape
(1, 1, 1, c) or (1, c). Layers and numbers are otherwise the same, so nothing is converted but the layout.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError, ConfigError, nearest
from triptych.core.model import seeded_build
from triptych.flows.glow import Glow, GlowConfig

DEFAULTS: dict[str, Any] = {
    "problem": "cifar10",
    "image_size": -1,
    "width": 512,
    "depth": 32,
    "n_levels": 3,
    "n_bits_x": 8,
    "learntop": False,
    "ycond": False,
    "weight_y": 0.0,
    "flow_permutation": 2,
    "flow_coupling": 0,
    "n_y": None,
}
"""The flags of the original's train.py that say what the model is, and n_y, its number of classes (None: as the weights have it)."""

_RUN_FLAGS = ("verbose", "restore_path", "inference", "logdir", "epochs", "epochs_full_valid", "epochs_full_sample", "n_sample", "seed")
_DATA_FLAGS = ("category", "data_dir", "dal", "fmap", "pmap", "n_train", "n_test")
_BATCH_FLAGS = ("n_batch_train", "n_batch_test", "n_batch_init", "anchor_size", "gradient_checkpointing")
_OPTIMIZER_FLAGS = ("optimizer", "lr", "beta1", "polyak_epochs", "weight_decay", "epochs_warmup")
_OTHER_FLAGS = frozenset((*_RUN_FLAGS, *_DATA_FLAGS, *_BATCH_FLAGS, *_OPTIMIZER_FLAGS))
_IMAGE_SIZES = {"mnist": 32, "cifar10": 32, "imagenet-oord": 64, "imagenet": 256, "celeba": 256, "lsun_realnvp": 64, "lsun": 256}
_PERMUTATIONS = {0: "reverse", 1: "shuffle", 2: "conv"}
_COUPLINGS = {0: "additive", 1: "affine"}
_STRUCTURE = "learntop, ycond, weight_y, depth, n_levels, flow_permutation"
_AVERAGE = "/ExponentialMovingAverage"


def from_variables(weights: Mapping[str, np.ndarray | Tensor], flags: Mapping[str, Any]) -> Glow:
    """The model of the original's variables, in evaluation mode.

    `flags` are the original's, with values of Python; one that is absent has its default, an unknown one is ignored with a warning.
    Variables of the optimizer and moving averages are left aside. Raises ConfigError for flags, and CheckpointError for variables that
    do not fit.
    """
    values = _checked(flags)
    variables = {name: value for name, value in weights.items() if name.startswith("model/") and not name.endswith(_AVERAGE)}
    model = seeded_build(_config(values), _spec(values, variables), seed=0)
    assert isinstance(model, Glow)
    state = model.state_dict()
    sources = {name: variable_name(name) for name in state if not (name.endswith(".order") and values["flow_permutation"] == 0)}
    unused = sorted(name for name in variables.keys() - set(sources.values()) if not name.endswith("/indices_inverse"))
    if unused:
        raise CheckpointError(f"the weights have {unused[0]}, which a model of these flags has not; see {_STRUCTURE}")
    model.load_state_dict(state | {name: _tensor(variables, source, like=state[name]) for name, source in sources.items()})
    return model.eval()


def _checked(flags: Mapping[str, Any]) -> dict[str, Any]:
    for name in flags:
        if name not in DEFAULTS and name not in _OTHER_FLAGS:
            warnings.warn(f"the flag {name} is ignored: openai/glow has none of that name{nearest(name, DEFAULTS)}", stacklevel=3)
    values = DEFAULTS | {name: value for name, value in flags.items() if name in DEFAULTS}
    for name, default in DEFAULTS.items():
        value, kind = values[name], type(default) if default is not None else int
        fits = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
        if not (fits or value == default or (kind is float and type(value) is int)):
            raise ConfigError(name, f"got {value!r}, expected {'true or false' if kind is bool else kind.__name__}")
    for name, known in (("flow_permutation", _PERMUTATIONS), ("flow_coupling", _COUPLINGS), ("problem", _IMAGE_SIZES)):
        if values[name] not in known:
            raise ConfigError(name, f"got {values[name]!r}, expected {', '.join(map(str, known))}")
    if values["image_size"] == DEFAULTS["image_size"]:
        values["image_size"] = _IMAGE_SIZES[values["problem"]]
    return values


def _config(values: Mapping[str, Any]) -> GlowConfig:
    return GlowConfig.from_dict(
        {
            "levels": values["n_levels"],
            "depth": values["depth"],
            "width": values["width"],
            "coupling": _COUPLINGS[values["flow_coupling"]],
            "permutation": _PERMUTATIONS[values["flow_permutation"]],
            "learn_top": values["learntop"],
            "class_conditional": values["ycond"],
            # The original has no classifier without ycond, whatever the weight.
            "class_weight": values["weight_y"] if values["ycond"] else 0.0,
            "bits": values["n_bits_x"],
        }
    )


def _spec(values: Mapping[str, Any], variables: Mapping[str, np.ndarray | Tensor]) -> DataSpec:
    """The images and classes that the shapes tell."""
    channels = _found(variables, "model/0/0/actnorm_center/b").size // 4
    num_classes = values["n_y"]
    if values["ycond"]:
        found = len(_found(variables, "model/prior/y_emb/W"))
        if num_classes not in (None, found):
            raise ConfigError("n_y", f"got {num_classes}, but the weights have {found} classes")
        num_classes = found
    return DataSpec(image_size=values["image_size"], channels=channels, num_classes=num_classes or None)


def _tensor(variables: Mapping[str, np.ndarray | Tensor], source: str, *, like: Tensor) -> Tensor:
    """A variable as a tensor of our layout, type and shape."""
    given = _found(variables, source)
    if given.ndim == 4 and like.ndim == 4:
        array = given.transpose(3, 2, 0, 1)
    else:
        array = given.T if like.ndim == 2 else given.reshape(-1)
    if array.shape != tuple(like.shape):
        raise CheckpointError(f"{source} has shape {list(given.shape)}, which a model of these flags has not; see width, flow_coupling")
    return torch.from_numpy(np.ascontiguousarray(array)).to(like.dtype)


def _found(variables: Mapping[str, np.ndarray | Tensor], name: str) -> np.ndarray:
    if name not in variables:
        raise CheckpointError(f"the weights have no {name}, which a model of these flags has; see {_STRUCTURE}")
    return np.asarray(variables[name])


_IN_STEP = {
    "norm.bias": "actnorm_center/b",
    "norm.log_scale": "actnorm_scale/logs",
    "mixing.weight": "invconv/W",
    "mixing.order": "shuffle/indices",
    "coupling.network.first.weight": "f1/l_1/W",
    "coupling.network.first.norm.bias": "f1/l_1/actnorm_center/b",
    "coupling.network.first.norm.log_scale": "f1/l_1/actnorm_scale/logs",
    "coupling.network.second.weight": "f1/l_2/W",
    "coupling.network.second.norm.bias": "f1/l_2/actnorm_center/b",
    "coupling.network.second.norm.log_scale": "f1/l_2/actnorm_scale/logs",
    "coupling.network.last.weight": "f1/l_last/W",
    "coupling.network.last.bias": "f1/l_last/b",
    "coupling.network.last.log_scale": "f1/l_last/logs",
}
_IN_LAYER = {"weight": "W", "bias": "b", "log_scale": "logs"}


def variable_name(name: str) -> str:
    """The variable of the original that is the tensor `name` of our model's state."""
    parts = name.split(".")
    if name.startswith("classifier."):
        return f"model/classifier/{_IN_LAYER[parts[1]]}"
    if name.startswith("network.top."):
        return f"model/prior/{'p' if parts[2] == 'conv' else 'y_emb'}/{_IN_LAYER[parts[3]]}"
    level = parts[2]
    if parts[3] == "split":
        return f"model/pool{level}/conv/{_IN_LAYER[parts[5]]}"
    return f"model/{level}/{parts[4]}/{_IN_STEP['.'.join(parts[5:])]}"
