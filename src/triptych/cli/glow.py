"""`triptych glow`: the command line of openai/glow's train.py, translated into commands of Triptych, which are run.

Its flags are taken word for word, with the original's defaults. What they become is printed before it runs, so that the next time it can
be given as it is. A flag that has no meaning any more is named with what replaced it.

The original counts in two ways. `n_train`, `n_batch_train`, `n_batch_init` and the warm-up are images of anchor_size (32) pixels, of which
a larger image takes the place of (size / 32)^2; an "epoch" is n_train of them, whatever the data set has. The rest are images as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych.cli.originals import Commands, imported, nearest_recipe, note, run_script
from triptych.cli.processes import num_processes
from triptych.core.errors import ConfigError
from triptych.interop.flags import parse_flags
from triptych.interop.glow.flags import FLAGS, IMAGE_SIZES, check_choices, check_positive, second_rate, steps_in_epoch, words

if TYPE_CHECKING:
    from triptych.data.config import DataConfig
    from triptych.engine.config import OptimConfig, TrainConfig
    from triptych.flows.glow import GlowConfig
    from triptych.recipes.config import RunConfig

USAGE = """usage: triptych glow [train.py] --flag value ...

Takes the command line of openai/glow's train.py, prints the equivalent commands of Triptych and runs them. The run is in --logdir (./logs);
the same command goes on with it. --data_dir is the folder of the images: nothing is downloaded.

  triptych glow --help    list the flags

example: triptych glow --problem cifar10 --data_dir ./cifar-10-batches-bin --depth 8 --width 128 --flow_coupling 1 --learntop"""

_SEVERAL = "torchrun --nproc-per-node N -m -- triptych glow"
_NUM_TESTED = {"mnist": 10_000, "cifar10": 10_000, "imagenet-oord": 50_000, "imagenet": 50_000, "celeba": 3_000}
_NUM_TESTED |= {"lsun_realnvp": 300, "lsun": 300}
_WINDOWED_SIDE = 96  # short side of the images that lsun_realnvp cuts its squares from
_AUGMENT = {
    "mnist": {0: "none", 1: "shift", 2: "shift"},
    "cifar10": {0: "none", 1: "shift", 2: "affine"},
}
_OPTIMIZERS = {"adamax": "adamax-glow", "adam": "adam", "adam2": "adam"}
_GRID_SIDE = {False: 10, True: 4}
"""Samples along the side of a grid, by whether the images have more than 64 pixels."""
_REPLACED = {
    "fmap": "files are read by --data.workers processes",
    "pmap": "files are read by --data.workers processes",
    "n_batch_test": "validation takes the batch of the training (the original never read it)",
    "n_sample": "--train.sample-count is the number of samples (the original never read it)",
}
_ORIGINAL_NAMES = {
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


@dataclass(frozen=True)
class Given:
    """The values of all flags, and which of them were given."""

    values: Mapping[str, Any]
    named: frozenset[str]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def image_size(self) -> int:
        """Height and width in pixels."""
        return IMAGE_SIZES[self["problem"]] if self["image_size"] == -1 else self["image_size"]

    @property
    def step_images(self) -> int:
        """Images of a step, as they are, in all processes."""
        return max(1, self["n_batch_train"] * self["anchor_size"] ** 2 // self.image_size**2) * num_processes()

    @property
    def epoch_images(self) -> int:
        """Images of one of the original's epochs, as they are."""
        return steps_in_epoch(self.values, world_size=num_processes()) * self.step_images


def main(arguments: Sequence[str]) -> int:
    """The exit code of the last command that ran."""

    def commands_of(flags: Sequence[str]) -> Callable[[], Commands]:
        given = read(flags)
        return lambda: commands(given)

    return run_script(arguments, usage=USAGE, flags=FLAGS, several=_SEVERAL, commands=commands_of, instead={})


def read(arguments: Sequence[str]) -> Given:
    """The flags, checked and completed. Raises ConfigError for an unknown flag or value."""
    values = parse_flags(arguments, FLAGS)
    given = Given({flag.name: flag.default for flag in FLAGS.values()} | values, frozenset(values))
    check_choices(given.values)
    for name, known in (("optimizer", _OPTIMIZERS), ("dal", _AUGMENT["cifar10"])):
        if given[name] not in known:
            raise ConfigError(f"--{name}", f"got {given[name]!r}, expected {', '.join(map(str, known))}")
    check_positive(given.values)
    if not given["logdir"]:
        raise ConfigError("--logdir", "got '', expected the directory of the run")
    if given.image_size < 1:
        raise ConfigError("--image_size", f"got {given['image_size']}, expected at least 1, or -1 for the size of the problem")
    return given


def commands(given: Given) -> Commands:
    """What the flags become."""
    for name, reason in _REPLACED.items():
        if name in given.named:
            note(f"--{name} is not used: {reason}")
    yield from _inference(given) if given["inference"] else _training(given)


def _training(given: Given) -> Commands:
    """Perhaps the import of weights to begin with, and the training."""
    begin: list[str] = []
    if given["restore_path"]:
        run, before = _restored(given)
        yield from before
        note("--restore_path gives the weights alone; a run of Triptych goes on exactly when the same command is given again")
        begin = ["--init-from", str(run)]
    try:
        config = _run_config(given)
    except ConfigError as error:
        raise ConfigError(_original_name(error.setting), error.reason) from None
    if "epochs" not in given.named:
        note(f"--epochs is {given['epochs']}: training ends after {config.train.total_images} images; stop it with Ctrl-C")
    size, levels = given.image_size, given["n_levels"]
    if levels >= size.bit_length() or size % 2**levels:
        raise ConfigError(
            "--n_levels", f"got {levels} for images of {size} pixels (--image_size), which have to be a multiple of 2^{levels}"
        )
    recipe, flags = nearest_recipe(config, families=("flows",))
    yield ["train", recipe, "--run", given["logdir"], *begin, *flags]


def _restored(given: Given) -> tuple[Path, Commands]:
    """The run of the weights that --restore_path names."""
    of_model = {name: given[name] for name in FLAGS if name in given.named and FLAGS[name].group == "model"}
    return imported("glow", given["restore_path"], words=words(of_model), setting="--restore_path")


def _original_name(setting: str) -> str:
    """The original's flag for a setting of ours; the setting where it has none."""
    last = setting.rpartition(".")[2]
    name = _ORIGINAL_NAMES.get(last, last)
    return f"--{name}" if name in FLAGS else setting


# The configuration ---------------------------------------------------------------------------------------------------------


def _run_config(given: Given) -> RunConfig:
    """What the original's flags train."""
    from triptych.engine.config import LogConfig
    from triptych.recipes.config import RunConfig

    if given["epochs"] < 2:
        raise ConfigError("--epochs", f"got {given['epochs']}, expected at least 2 (the original trains for one less)")
    return RunConfig(
        model=_model_config(given),
        data=_data_config(given),
        train=_train_config(given),
        optim=_optim_config(given),
        log=LogConfig(every=given.step_images if given["verbose"] else given.epoch_images),
    )


def _model_config(given: Given) -> GlowConfig:
    from triptych.flows.glow import GlowConfig
    from triptych.interop.glow.weights import settings_of

    if given["weight_y"] and not given["ycond"]:
        note("--weight_y has no effect without --ycond, as in the original")
    memory = "checkpoint" if given["gradient_checkpointing"] else "autograd"
    return GlowConfig.from_dict(settings_of(given.values) | {"memory": memory, "init_images": given["n_batch_init"]})


def _data_config(given: Given) -> DataConfig:
    from triptych.data.config import DataConfig

    problem = given["problem"]
    arrays, windows = problem in ("mnist", "cifar10"), problem == "lsun_realnvp"
    settings: dict[str, Any] = {"source": problem if arrays else "auto", "path": _images(given), "image_size": given.image_size}
    if arrays:
        settings["augment"] = _AUGMENT[problem][given["dal"]]
    elif "dal" in given.named:
        note(f"--dal is not used: the original varies the images of mnist and cifar10 alone, not those of {problem}")
    return DataConfig(
        **settings,
        pad=2 if problem == "mnist" else 0,
        channels=3,
        labels="auto" if given["ycond"] else "none",
        crop="random" if windows else "center",
        resize=max(_WINDOWED_SIDE, given.image_size) if windows else None,
        flip=False,
        anchor_size=given["anchor_size"],
    )


def _images(given: Given) -> str:
    """The folder of the images; that of TFRecord files is told by the data from one of plain images."""
    if not given["data_dir"]:
        known = {"mnist": "MNIST's four idx files", "cifar10": "CIFAR-10's .bin files"}
        what = known.get(given["problem"], "the original's TFRecord files, or of images")
        raise ConfigError("--data_dir", f"missing: the folder of {what} (nothing is downloaded)")
    return str(Path(given["data_dir"], given["category"]))


def _num_tested(given: Given) -> int:
    return _NUM_TESTED[given["problem"]] if given["n_test"] == -1 else given["n_test"]


def _train_config(given: Given) -> TrainConfig:
    from triptych.engine.config import TrainConfig

    validate_every = given["epochs_full_valid"] * given.epoch_images
    return TrainConfig(
        total_images=(given["epochs"] - 1) * given.epoch_images,
        batch_size=given["n_batch_train"],
        seed=given["seed"],
        ema_rates=(second_rate(given.values, world_size=num_processes()),),
        ema_warmup=False,
        checkpoint_every=validate_every,
        validate_every=validate_every,
        validate_images=_num_tested(given),
        sample_every=given["epochs_full_sample"] * given.epoch_images,
        sample_count=_GRID_SIDE[given.image_size > 64] ** 2,
    )


def _optim_config(given: Given) -> OptimConfig:
    from triptych.engine.config import OptimConfig

    name, decay = given["optimizer"], given["weight_decay"]
    if name == "adam2":
        note("--optimizer adam2 averages the squares of each process's gradients, which its authors say does not work yet; adam is taken")
    if not 0 < decay <= 1:
        raise ConfigError("--weight_decay", f"got {decay}, expected more than 0 and at most 1: each step multiplies the weights by it")
    if decay < 1 and name != "adamax":
        raise ConfigError("--weight_decay", f"got {decay}, which goes with --optimizer adamax alone; give 1")
    return OptimConfig(
        name=_OPTIMIZERS[name],  # type: ignore[arg-type]
        learning_rate=given["lr"],
        betas=(given["beta1"], second_rate(given.values, world_size=num_processes())),
        weight_decay=round(1 - decay, 12),
        warmup_images=given["epochs_warmup"] * given["n_train"],
    )


# Inference ---------------------------------------------------------------------------------------------------------------------


def _inference(given: Given) -> Commands:
    """The test images as latents, and those as images again."""
    if num_processes() > 1:
        raise ConfigError("--inference", "it runs in one process; leave out torchrun")
    if _num_tested(given) < 1:
        raise ConfigError("--n_test", f"got {given['n_test']}, expected at least 1 with --inference, or -1 for the number of the problem")
    logdir = Path(given["logdir"])
    if given["restore_path"]:
        run, before = _restored(given)
        yield from before
    elif (logdir / "config.json").is_file():
        run = logdir
    else:
        raise ConfigError("--restore_path", f"missing: --inference needs a checkpoint, or a run in --logdir, and {logdir} holds none")
    images = logdir / "test.npz"
    _write_test_images(given, run, images)
    note(f"{images} holds the test images; the original's z.npy and x.npy are z.npz and x.npz beside it")
    yield ["encode", str(run), str(images), "--out", str(logdir / "z.npz")]
    yield ["encode", str(run), str(logdir / "z.npz"), "--decode", "--out", str(logdir / "x.npz")]


def _write_test_images(given: Given, run: Path, out: Path) -> None:
    """Writes the first n_test held-out images, with their classes where the run has some, as `triptych encode` takes them."""
    import numpy as np

    from triptych.core.errors import DataError
    from triptych.core.files import explain
    from triptych.runs import open_run
    from triptych.runs.files import save_npz

    spec = open_run(run).spec
    settings = {"image_size": spec.image_size, "channels": spec.channels, "labels": "none" if spec.num_classes is None else "auto"}
    test = _data_config(given).updated(settings).open().validation
    if test is None:
        raise DataError(f"{_images(given)}: holds no test images")
    chosen = np.arange(min(_num_tested(given), len(test)))
    arrays: dict[str, Any] = {"arr_0": test.batch(chosen).images}
    if test.labels is not None:
        arrays["arr_1"] = test.labels[chosen]
    try:
        save_npz(out, arrays)
    except OSError as error:
        raise DataError(f"cannot write {out}: {explain(error)}") from error
