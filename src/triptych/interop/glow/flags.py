"""The flags of openai/glow's train.py, with their defaults: https://github.com/openai/glow.

The original counts in two ways. `n_train`, `n_batch_train`, `n_batch_init` and the warm-up are images of anchor_size (32) pixels, of which
a larger image takes the place of (size / 32)^2; an "epoch" is n_train of them, whatever the data set has. The rest are images as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from triptych.core.errors import ConfigError
from triptych.interop.flags import FlagValues, OriginalFlag, Value, parse_flags

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
    name: OriginalFlag(name, default, group, switch=isinstance(default, bool))
    for group, flags in _GROUPS.items()
    for name, default in flags.items()
}
"""All of them by name; those of the group "model" say what the model is. One that is true or false is given by its name alone."""

IMAGE_SIZES = {"mnist": 32, "cifar10": 32, "imagenet-oord": 64, "imagenet": 256, "celeba": 256, "lsun_realnvp": 64, "lsun": 256}
"""Of each problem, where --image_size is -1."""
_WINDOWED_SIDE = 96  # short side of the images that lsun_realnvp cuts its squares from
_NUM_TESTED = {"mnist": 10_000, "cifar10": 10_000, "imagenet-oord": 50_000, "imagenet": 50_000, "celeba": 3_000}
_NUM_TESTED |= {"lsun_realnvp": 300, "lsun": 300}
PERMUTATIONS: dict[int, Literal["reverse", "shuffle", "conv"]] = {0: "reverse", 1: "shuffle", 2: "conv"}
COUPLINGS: dict[int, Literal["additive", "affine"]] = {0: "additive", 1: "affine"}
OPTIMIZERS: dict[str, Literal["adamax-glow", "adam"]] = {"adamax": "adamax-glow", "adam": "adam", "adam2": "adam"}
AUGMENTATIONS: dict[int, dict[str, Literal["none", "shift", "affine"]]] = {
    0: {"mnist": "none", "cifar10": "none"},
    1: {"mnist": "shift", "cifar10": "shift"},
    2: {"mnist": "shift", "cifar10": "affine"},
}
"""What values of flow_permutation, flow_coupling, optimizer and dal (by problem) are here."""

_POSITIVE = ("n_train", "n_batch_train", "n_batch_init", "anchor_size", "epochs_full_valid", "epochs_full_sample", "polyak_epochs")
_CHOICES: dict[str, Mapping[Any, Any]] = {"problem": IMAGE_SIZES, "flow_permutation": PERMUTATIONS, "flow_coupling": COUPLINGS}


def squares(problem: str, image_size: int) -> dict[str, Any]:
    """The settings of the data for how the squares of a problem are cut out of its images."""
    if problem != "lsun_realnvp":
        return {"crop": "center", "resize": None}
    return {"crop": "random", "resize": max(_WINDOWED_SIDE, image_size)}


def check_choices(values: Mapping[str, Any], *, choices: Mapping[str, Mapping[Any, Any]] = _CHOICES, dashes: str = "--") -> None:
    """Raises ConfigError for an unknown value of those flags that have a few, by default those of the model."""
    for name, allowed in choices.items():
        if name in values and values[name] not in allowed:
            raise ConfigError(f"{dashes}{name}", f"got {values[name]!r}, expected {', '.join(map(str, allowed))}")


def check_positive(values: Mapping[str, Any]) -> None:
    """Raises ConfigError for a count or a length that is not above 0."""
    for name in _POSITIVE:
        if name in values and not values[name] > 0:
            raise ConfigError(f"--{name}", f"got {values[name]}, expected more than 0")


def words(values: Mapping[str, Any]) -> str:
    """Flags as train.py takes them; a switch that is off and an empty text are left out."""
    flags = (f"--{name}" if value is True else f"--{name} {value}" for name, value in values.items() if value is not False and value != "")
    return " ".join(flags)


@dataclass(frozen=True)
class TrainFlags(FlagValues):
    """A command line of train.py on so many processes."""

    processes: int = 1

    @property
    def image_size(self) -> int:
        """Height and width in pixels."""
        return IMAGE_SIZES[self["problem"]] if self["image_size"] == -1 else self["image_size"]

    @property
    def num_tested(self) -> int:
        return _NUM_TESTED[self["problem"]] if self["n_test"] == -1 else self["n_test"]

    @property
    def step_images(self) -> int:
        """Images of a step, as they are, in all processes."""
        return max(1, self["n_batch_train"] * self["anchor_size"] ** 2 // self.image_size**2) * self.processes

    @property
    def epoch_steps(self) -> int:
        """Optimizer steps of one of the original's epochs: n_train images at anchor_size, whatever the data set has."""
        return math.ceil(self["n_train"] / (self["n_batch_train"] * self.processes))

    @property
    def epoch_images(self) -> int:
        """Images of one of the original's epochs, as they are."""
        return self.epoch_steps * self.step_images

    @property
    def second_rate(self) -> float:
        """beta2 and the rate of the moving averages, whose memory is polyak_epochs (1) epochs: 0 to 0.999999, to six places."""
        return min(max(round(1 - 1 / (self.epoch_steps * self["polyak_epochs"]), 6), 0.0), 0.999999)


def read_flags(arguments: Sequence[str], *, processes: int) -> TrainFlags:
    """The flags of a command line, checked and completed. Raises ConfigError for an unknown flag or value."""
    flags = replace(TrainFlags.complete(parse_flags(arguments, FLAGS), FLAGS), processes=processes)
    check_choices(flags.values)
    check_choices(flags.values, choices={"optimizer": OPTIMIZERS, "dal": AUGMENTATIONS})
    check_positive(flags.values)
    if not flags["logdir"]:
        raise ConfigError("--logdir", "got '', expected the directory of the run")
    if flags["epochs_warmup"] < 0:
        raise ConfigError("--epochs_warmup", f"got {flags['epochs_warmup']}, expected 0 or more")
    if flags.image_size < 1:
        raise ConfigError("--image_size", f"got {flags['image_size']}, expected at least 1, or -1 for the size of the problem")
    return flags
