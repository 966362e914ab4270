"""The flags of openai/glow's train.py, with their defaults: https://github.com/openai/glow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from triptych.core.errors import ConfigError
from triptych.interop.flags import Flag, Value

_MODEL: dict[str, Value] = {
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
}
_RUN: dict[str, Value] = {
    "verbose": False,
    "restore_path": "",
    "inference": False,
    "logdir": "./logs",
    "epochs": 1_000_000,
    "epochs_full_valid": 50,
    "epochs_full_sample": 50,
    "n_sample": 1,
    "seed": 0,
}
_DATA: dict[str, Value] = {"category": "", "data_dir": "", "dal": 1, "fmap": 1, "pmap": 16, "n_train": 50_000, "n_test": -1}
_BATCH: dict[str, Value] = {"n_batch_train": 64, "n_batch_test": 50, "n_batch_init": 256, "anchor_size": 32, "gradient_checkpointing": 1}
_OPTIMIZER: dict[str, Value] = {
    "optimizer": "adamax",
    "lr": 0.001,
    "beta1": 0.9,
    "polyak_epochs": 1.0,
    "weight_decay": 1.0,
    "epochs_warmup": 10,
}
_GROUPS = {"model": _MODEL, "run": _RUN, "data": _DATA, "batch": _BATCH, "optimizer": _OPTIMIZER}

FLAGS = {
    name: Flag(name, default, group, switch=isinstance(default, bool))
    for group, flags in _GROUPS.items()
    for name, default in flags.items()
}
"""All of them by name; those of the group "model" say what the model is. One that is true or false is given by its name alone."""

IMAGE_SIZES = {"mnist": 32, "cifar10": 32, "imagenet-oord": 64, "imagenet": 256, "celeba": 256, "lsun_realnvp": 64, "lsun": 256}
"""Of each problem, where --image_size is -1."""
PERMUTATIONS = {0: "reverse", 1: "shuffle", 2: "conv"}
COUPLINGS = {0: "additive", 1: "affine"}

_POSITIVE = ("n_train", "n_batch_train", "n_batch_init", "anchor_size", "epochs_full_valid", "epochs_full_sample", "polyak_epochs")
_CHOICES = {"problem": IMAGE_SIZES, "flow_permutation": PERMUTATIONS, "flow_coupling": COUPLINGS}


def check_choices(values: Mapping[str, Any], *, dashes: str = "--") -> None:
    """Raises ConfigError for an unknown value of those flags that have a few."""
    for name, known in _CHOICES.items():
        if name in values and values[name] not in known:
            raise ConfigError(f"{dashes}{name}", f"got {values[name]!r}, expected {', '.join(map(str, known))}")


def check_positive(values: Mapping[str, Any]) -> None:
    """Raises ConfigError for a count or a length that is not above 0."""
    for name in _POSITIVE:
        if name in values and not values[name] > 0:
            raise ConfigError(f"--{name}", f"got {values[name]}, expected more than 0")


def words(values: Mapping[str, Any]) -> str:
    """Flags as train.py takes them; a switch that is off and an empty text are left out."""
    given = (f"--{name}" if value is True else f"--{name} {value}" for name, value in values.items() if value is not False and value != "")
    return " ".join(given)


def steps_in_epoch(values: Mapping[str, Any], *, world_size: int) -> int:
    """Optimizer steps of one of the original's epochs: n_train images at anchor_size, whatever the data set has."""
    return math.ceil(values["n_train"] / (values["n_batch_train"] * world_size))


def second_rate(values: Mapping[str, Any], *, world_size: int) -> float:
    """beta2 of the original's optimizers, which is the rate of its moving averages too: one epoch is their memory, or polyak_epochs.

    0 to 0.999999, to six places.
    """
    rate = 1 - 1 / (steps_in_epoch(values, world_size=world_size) * values["polyak_epochs"])
    return min(max(round(rate, 6), 0.0), 0.999999)
