"""Weights of openai/glow: https://github.com/openai/glow.

Its variables are named "model/LEVEL/STEP/..."; kernels are (h, w, in, out), a 1x1 convolution is y = x W, and a vector has the shape
(1, 1, 1, c) or (1, c). Layers are otherwise the same: only the layout of the numbers changes.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError, ConfigError, nearest
from triptych.core.outline import without_weights
from triptych.flows.glow import MOST_LEVELS, Glow, GlowConfig
from triptych.interop.glow.flags import COUPLINGS, FLAGS, IMAGE_SIZES, PERMUTATIONS, check_choices

DEFAULTS: dict[str, Any] = {name: flag.default for name, flag in FLAGS.items() if flag.group == "model"} | {"n_y": None}
"""The flags of the original's train.py that say what the model is, and n_y, its number of classes (None: as the weights have it)."""

CLASS_WEIGHT = 0.01
"""--weight_y of the original's README; a classifier in a checkpoint shows that there was a weight, not its value."""
_STRUCTURE = "learntop, ycond, weight_y, depth, n_levels, flow_permutation"
_LABELS = "model/prior/y_emb/W"
_AVERAGE = "/ExponentialMovingAverage"
_LARGEST_SIDE = 2**MOST_LEVELS
_STEP = re.compile(r"model/(0|[1-9]\d{0,5})/(0|[1-9]\d{0,5})/")

Variables = Mapping[str, np.ndarray | Tensor]


def from_variables(weights: Variables, flags: Mapping[str, Any]) -> Glow:
    """The model of the original's variables, in evaluation mode.

    `flags` are the original's, with values of Python; one that is absent has its default, an unknown one is ignored with a warning.
    Variables of the optimizer and moving averages are left aside. Raises ConfigError for flags, and CheckpointError for variables that
    do not fit.
    """
    values = _checked(flags)
    variables = {name: value for name, value in weights.items() if is_of_model(name) and not name.endswith(_AVERAGE)}
    config, spec = model_config(values), _spec(values, variables)
    for level, step in itertools.product(range(values["n_levels"]), range(values["depth"])):  # before a model of any size is made
        _found(variables, f"model/{level}/{step}/actnorm_center/b")
    with without_weights():
        model = config.build(spec)
    state = model.state_dict()
    sources = {name: variable_name(name) for name in state if not (name.endswith(".order") and values["flow_permutation"] == 0)}
    unused = sorted(name for name in variables.keys() - set(sources.values()) if not name.endswith("/indices_inverse"))
    if unused:
        raise CheckpointError(f"the weights have {unused[0]}, which a model of these flags has not; see {_STRUCTURE}")
    reversed_orders = {name: torch.arange(len(state[name])).flip(0) for name in state.keys() - sources.keys()}
    loaded = {name: _tensor(variables, source, like=state[name]) for name, source in sources.items()}
    model.load_state_dict(loaded | reversed_orders, assign=True)
    return model.eval()


def is_of_model(name: str) -> bool:
    """Whether a variable is a part of the model or its moving average, and none of the optimizer's."""
    return name.startswith("model/")


def averages(variables: Variables) -> dict[str, np.ndarray | Tensor] | None:
    """The variables with the moving averages in the place of all that are trained; None: not all have one."""
    names = [name for name in variables if is_of_model(name) and not name.endswith(_AVERAGE)]
    trained = [name for name in names if "/shuffle/" not in name]
    if not all(name + _AVERAGE in variables for name in trained):
        return None
    return {name: variables[name] for name in names} | {name: variables[name + _AVERAGE] for name in trained}


def complete_flags(variables: Variables, given: Mapping[str, Any]) -> dict[str, Any]:
    """All flags of a checkpoint's model: those that its names and shapes show, those given, and defaults for the others.

    The shapes show all but problem, image_size, n_bits_x and the value of weight_y. Raises ConfigError that names the given flags that
    they contradict, CheckpointError for variables that are not the original's.
    """
    shown = structure_flags(variables)
    classifier = shown.pop("weight_y")
    if not shown["ycond"]:
        del shown["n_y"]  # the number of classes of its data set, which the model never saw
    wrong = [f"--{name}: the checkpoint has {value}, got {given[name]}" for name, value in shown.items() if given.get(name, value) != value]
    if "weight_y" in given and shown["ycond"] and (given["weight_y"] > 0) != classifier:
        wrong.append(f"--weight_y: the checkpoint has {'a' if classifier else 'no'} classifier, got {given['weight_y']}")
    if wrong:
        raise ConfigError("", "; ".join(wrong))
    values = DEFAULTS | dict(given) | shown
    if "weight_y" not in given and classifier:
        values["weight_y"] = CLASS_WEIGHT
    check_choices(values)
    if not 1 <= values["n_bits_x"] <= 8:
        raise ConfigError("--n_bits_x", f"got {values['n_bits_x']}, expected 1 to 8")
    if values["image_size"] == DEFAULTS["image_size"]:
        values["image_size"] = IMAGE_SIZES[values["problem"]]
    multiple = 2 ** values["n_levels"]
    if not 1 <= values["image_size"] <= _LARGEST_SIDE or values["image_size"] % multiple:
        got = f"got {values['image_size']}" if "image_size" in given else f"missing; {values['image_size']}, its default, does not do"
        raise ConfigError(
            "--image_size",
            f"{got}, for the checkpoint has {values['n_levels']} levels: expected a multiple of {multiple}, at most {_LARGEST_SIDE}",
        )
    return values


def structure_flags(variables: Variables) -> dict[str, Any]:
    """The flags that names and shapes show, with n_y. weight_y is only whether there is a classifier."""
    steps = {(int(match[1]), int(match[2])) for match in map(_STEP.match, variables) if match}
    if not steps:
        raise CheckpointError("these are not the variables of openai/glow: none is called model/LEVEL/STEP/...")
    levels, depth = 1 + max(level for level, _ in steps), 1 + max(step for _, step in steps)
    if levels > MOST_LEVELS:
        raise CheckpointError(f"the weights have {levels} levels, expected 1 to {MOST_LEVELS}")
    if len(steps) < levels * depth:
        level, step = next(place for place in itertools.product(range(levels), range(depth)) if place not in steps)
        raise CheckpointError(f"the weights have no model/{level}/{step}, but other levels have it")
    names = ("actnorm_center/b", "f1/l_last/W", "f1/l_1/W")
    channels, out, width = (_shape(variables, f"model/0/0/{name}", axes=4)[-1] for name in names)
    step_names = {name.split("/", 3)[3] for name in variables if _STEP.match(name)}
    return {
        "n_levels": levels,
        "depth": depth,
        "width": width,
        "flow_coupling": int(out == channels),
        "flow_permutation": 2 if "invconv/W" in step_names else 1 if "shuffle/indices" in step_names else 0,
        "learntop": "model/prior/p/W" in variables,
        "ycond": _LABELS in variables,
        "n_y": _num_classes(variables) if _LABELS in variables else None,
        "weight_y": "model/classifier/W" in variables,
    }


def _checked(flags: Mapping[str, Any]) -> dict[str, Any]:
    for name in flags:
        if name not in DEFAULTS and name not in FLAGS:
            warnings.warn(f"the flag {name} is ignored: openai/glow has none of that name{nearest(name, DEFAULTS)}", stacklevel=3)
    values = DEFAULTS | {name: value for name, value in flags.items() if name in DEFAULTS}
    for name, default in DEFAULTS.items():
        value, kind = values[name], type(default) if default is not None else int
        fits = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
        if not (fits or value == default or (kind is float and type(value) is int)):
            raise ConfigError(name, f"got {value!r}, expected {'true or false' if kind is bool else kind.__name__}")
    check_choices(values, dashes="")
    if values["image_size"] == DEFAULTS["image_size"]:
        values["image_size"] = IMAGE_SIZES[values["problem"]]
    return values


def model_config(values: Mapping[str, Any]) -> GlowConfig:
    return GlowConfig(
        levels=values["n_levels"],
        depth=values["depth"],
        width=values["width"],
        coupling=COUPLINGS[values["flow_coupling"]],
        permutation=PERMUTATIONS[values["flow_permutation"]],
        learn_top=values["learntop"],
        class_conditional=values["ycond"],
        # The original has no classifier without ycond, whatever the weight.
        class_weight=float(values["weight_y"]) if values["ycond"] else 0.0,
        bits=values["n_bits_x"],
    )


def _spec(values: Mapping[str, Any], variables: Variables) -> DataSpec:
    """The images and classes that the shapes tell."""
    channels = _found(variables, "model/0/0/actnorm_center/b").size // 4
    num_classes = values["n_y"]
    if values["ycond"]:
        if num_classes not in (None, _num_classes(variables)):
            raise ConfigError("n_y", f"got {num_classes}, but the weights have {_num_classes(variables)} classes")
        num_classes = _num_classes(variables)
    return DataSpec(image_size=values["image_size"], channels=channels, num_classes=num_classes or None)


def _tensor(variables: Variables, source: str, *, like: Tensor) -> Tensor:
    """A variable as a tensor of our layout, type and shape."""
    variable = _found(variables, source)
    if variable.ndim == 4 and like.ndim == 4:
        array = variable.transpose(3, 2, 0, 1)
    else:
        array = variable.T if like.ndim == 2 else variable.reshape(-1)
    if array.shape != tuple(like.shape):
        raise CheckpointError(f"{source} has shape {list(variable.shape)}, which a model of these flags has not; see width, flow_coupling")
    if array.dtype.kind not in "fiu":
        raise CheckpointError(f"{source} has type {array.dtype}, expected numbers")
    with np.errstate(over="ignore", invalid="ignore"):
        array = array.astype(np.float32 if like.is_floating_point() else np.int64, order="C")  # of any width and byte order
    if not np.isfinite(array).all():
        raise CheckpointError(f"{source} holds values that are not finite: its training failed; take an earlier checkpoint")
    if not like.is_floating_point() and not np.array_equal(np.sort(array), np.arange(len(array))):
        raise CheckpointError(f"{source} is not an order of {len(array)} channels")
    return torch.from_numpy(array)


def _found(variables: Variables, name: str) -> np.ndarray:
    if name not in variables:
        raise CheckpointError(f"the weights have no {name}, which a model of these flags has; see {_STRUCTURE}")
    return np.asarray(variables[name])


def _num_classes(variables: Variables) -> int:
    return _shape(variables, _LABELS, axes=2)[0]


def _shape(variables: Variables, name: str, *, axes: int) -> tuple[int, ...]:
    shape = _found(variables, name).shape
    if len(shape) != axes:
        raise CheckpointError(f"{name} has shape {list(shape)}, expected {axes} axes")
    if 0 in shape:  # it takes no bytes, however wide it says that it is
        raise CheckpointError(f"{name} has shape {list(shape)}, and so no values")
    return shape


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
