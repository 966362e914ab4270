"""Command lines of openai/glow's train.py as configurations of ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from triptych.core.errors import ConfigError
from triptych.data.config import AS_STORED, DataConfig
from triptych.engine.config import LogConfig, OptimConfig, TrainConfig
from triptych.interop.flags import named_as_flags
from triptych.interop.glow.flags import AUGMENTATIONS, FLAGS, OPTIMIZERS, TrainFlags, squares
from triptych.interop.glow.weights import model_config
from triptych.recipes.config import RunConfig

_GRID_SIDE = {False: 10, True: 4}
"""Samples along the side of a grid, by whether the images have more than 64 pixels."""
_FLAG_OF = {
    "path": "data_dir",
    "source": "data_dir",
    "levels": "n_levels",
    "bits": "n_bits_x",
    "coupling": "flow_coupling",
    "permutation": "flow_permutation",
    "learn_top": "learntop",
    "class_conditional": "ycond",
    "class_weight": "weight_y",
    "init_images": "n_batch_init",
    "memory": "gradient_checkpointing",
    "batch_size": "n_batch_train",
    "learning_rate": "lr",
    "betas": "beta1",
    "warmup_images": "epochs_warmup",
    "total_images": "epochs",
    "validate_images": "n_test",
}

Note = Callable[[str], None]


def training(flags: TrainFlags, note: Note) -> RunConfig:
    """What the flags train. `note` hears of what differs from the original; a ConfigError is about its flag, where a setting has one."""
    if flags["epochs"] < 2:
        raise ConfigError("--epochs", f"got {flags['epochs']}, expected at least 2 (the original trains for one less)")
    if flags["weight_y"] and not flags["ycond"]:
        note("--weight_y has no effect without --ycond, as in the original")
    memory = "checkpoint" if flags["gradient_checkpointing"] == 1 else "autograd"
    with named_as_flags(_FLAG_OF, FLAGS):
        config = RunConfig(
            model=replace(model_config(flags.values), memory=memory, init_images=flags["n_batch_init"]),
            data=data_config(flags, note),
            train=_train_config(flags),
            optim=_optim_config(flags, note),
            log=LogConfig(every=flags.step_images if flags["verbose"] else flags.epoch_images),
        )
    if "epochs" not in flags.given:
        note(f"--epochs is {flags['epochs']}: training ends after {config.train.total_images} images; stop it with Ctrl-C")
    size, levels = flags.image_size, flags["n_levels"]
    if levels >= size.bit_length() or size % 2**levels:
        raise ConfigError(
            "--n_levels", f"got {levels} for images of {size} pixels (--image_size), which have to be a multiple of 2^{levels}"
        )
    return config


def data_config(flags: TrainFlags, note: Note) -> DataConfig:
    """The images of a training; raises ConfigError where their folder is missing."""
    problem = flags["problem"]
    arrays = problem in ("mnist", "cifar10")
    if "dal" in flags.given and not arrays:
        note(f"--dal is not used: the original varies the images of mnist and cifar10 alone, not those of {problem}")
    return DataConfig(
        source=problem if arrays else "auto",
        path=images_folder(flags),
        image_size=flags.image_size,
        augment=AUGMENTATIONS[flags["dal"]][problem] if arrays else "none",
        pad=2 if problem == "mnist" else 0,
        channels=3,
        labels="auto" if flags["ycond"] else "none",
        **squares(problem, flags.image_size),
        flip=False,
        anchor_size=flags["anchor_size"],
    ).updated(AS_STORED)


def images_folder(flags: TrainFlags) -> str:
    """The folder of the images. Whether they are TFRecord files or plain ones shows when it is opened."""
    if not flags["data_dir"]:
        files = {"mnist": "MNIST's four idx files", "cifar10": "CIFAR-10's .bin files"}
        what = files.get(flags["problem"], "the original's TFRecord files, or of images")
        raise ConfigError("--data_dir", f"missing: the folder of {what} (nothing is downloaded)")
    return str(Path(flags["data_dir"], flags["category"]))


def _train_config(flags: TrainFlags) -> TrainConfig:
    validate_every = flags["epochs_full_valid"] * flags.epoch_images
    return TrainConfig(
        total_images=(flags["epochs"] - 1) * flags.epoch_images,
        batch_size=flags["n_batch_train"],
        compile="off",
        seed=flags["seed"],
        ema_rates=(flags.second_rate,),
        ema_warmup=False,
        checkpoint_every=validate_every,
        validate_every=validate_every,
        validate_images=flags.num_tested,
        sample_every=flags["epochs_full_sample"] * flags.epoch_images,
        sample_count=_GRID_SIDE[flags.image_size > 64] ** 2,
    )


def _optim_config(flags: TrainFlags, note: Note) -> OptimConfig:
    name, decay = flags["optimizer"], flags["weight_decay"]
    if name == "adam2":
        note("--optimizer adam2 averages the squares of each process's gradients, which its authors say does not work yet; adam is taken")
    if not 0 < decay <= 1:
        raise ConfigError("--weight_decay", f"got {decay}, expected more than 0 and at most 1: each step multiplies the weights by it")
    if decay < 1 and name != "adamax":
        raise ConfigError("--weight_decay", f"got {decay}, which goes with --optimizer adamax alone; give 1")
    return OptimConfig(
        name=OPTIMIZERS[name],
        learning_rate=flags["lr"],
        betas=(flags["beta1"], flags.second_rate),
        weight_decay=round(1 - decay, 12),
        warmup_images=flags["epochs_warmup"] * flags["n_train"],
    )
