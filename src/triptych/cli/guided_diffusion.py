"""`triptych guided-diffusion`: the command lines of guided-diffusion's scripts, translated into commands of Triptych.

A script's flags are taken word for word, with the original's defaults. Each becomes one or more commands of Triptych, which are printed
before they run, so that the next time they can be given as they are. A flag that has no meaning any more is named with what replaced it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych.cli.originals import Commands, flag_list, imported, nearest_recipe, note, run_all, without_python
from triptych.cli.output import show_page
from triptych.cli.processes import num_processes
from triptych.core.errors import ConfigError, nearest
from triptych.interop.flags import Flag, Value, command_line, parse_flags
from triptych.interop.guided_diffusion.flags import Kind, flag_table
from triptych.interop.guided_diffusion.script_flags import (
    CLASSIFIER_SAMPLING,
    CLASSIFIER_TRAINING,
    LIKELIHOOD,
    SAMPLING,
    TRAINING,
    UPSAMPLING,
)

if TYPE_CHECKING:
    from triptych.engine.config import OptimConfig, TrainConfig
    from triptych.recipes.config import RunConfig

USAGE = """usage: triptych guided-diffusion SCRIPT --flag value ... [--run DIR | --out FILE]

Takes the command line of one of guided-diffusion's scripts, prints the equivalent commands of Triptych and runs them.

scripts:
  image_train  image_sample  image_nll  super_res_train  super_res_sample  classifier_train  classifier_sample

--run DIR is where a training goes (else OPENAI_LOGDIR, else runs/SCRIPT), --out FILE where samples or figures do.

example: triptych guided-diffusion image_train --data_dir ./photos --image_size 64 --num_channels 128 --batch_size 16"""

_SEVERAL = "torchrun --nproc-per-node N -m -- triptych guided-diffusion SCRIPT"

_ORIGINAL_NAMES = {
    "steps": "diffusion_steps",
    "learning_rate": "lr",
    "checkpoint_every": "save_interval",
    "every": "log_interval",
    "ema_rates": "ema_rate",
    "timestep_sampler": "schedule_sampler",
    "loss_scale_growth": "fp16_scale_growth",
}
ENDLESS_IMAGES = 10**12
"""Images of a training that the original never ends (lr_anneal_steps 0)."""


@dataclass(frozen=True)
class Given:
    """The values of all flags of a script, and which of them were given."""

    script: str
    values: Mapping[str, Any]
    named: frozenset[str]
    place: str | None
    "What --run or --out names."

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def words(self, *kinds: Kind) -> str:
        """The given flags that describe networks of these kinds, as a command line."""
        known = {name for kind in kinds for name in flag_table(kind)}
        return command_line({name: value for name, value in self.values.items() if name in self.named and name in known})

    def of(self, kind: Kind) -> dict[str, Any]:
        """The values of the flags that describe a network of that kind."""
        return {name: self.values[name] for name in flag_table(kind)}


@dataclass(frozen=True)
class Script:
    """One of the original's scripts: its own flags with their defaults, whose networks' flags it has too, and what it becomes."""

    own: Mapping[str, Value]
    kinds: tuple[Kind, ...]
    commands: Callable[[Given], Commands]
    place: str
    "The flag of ours that says where the result goes."

    def flags(self) -> dict[str, Flag]:
        """All its flags by name."""
        flags = {name: flag for kind in self.kinds for name, flag in flag_table(kind).items()}
        return flags | {name: Flag(name, default, "script") for name, default in {**self.own, self.place: ""}.items()}


def main(arguments: Sequence[str]) -> int:
    """The exit code of the last command that ran."""
    if not arguments or arguments[0] in ("-h", "--help"):
        show_page(USAGE, error=not arguments)
        return 0 if arguments else 2
    arguments = without_python(arguments, begin="the script", several=_SEVERAL)
    name = script_name(arguments[0])
    if "-h" in arguments or "--help" in arguments:
        show_page(help_page(name))
        return 0
    given = read(name, arguments[1:])
    return run_all(lambda: SCRIPTS[name].commands(given))


def script_name(script: str) -> str:
    """The script that is meant, by its name or its path. Raises ConfigError for an unknown one."""
    name = Path(script).stem  # "scripts/image_train.py" is what a copied command line begins with
    if name not in SCRIPTS:
        raise ConfigError("", f'unknown script "{script}"{nearest(name, SCRIPTS)} (triptych guided-diffusion --help lists them)')
    return name


def help_page(script: str) -> str:
    """The flags of a script with the original's defaults."""
    return f"usage: triptych guided-diffusion {script} --flag value ...\n\n{flag_list(SCRIPTS[script].flags())}"


def read(script: str, words: Sequence[str]) -> Given:
    """The flags of a script, checked and completed. Raises ConfigError for an unknown script, flag or value."""
    name = script_name(script)
    flags = SCRIPTS[name].flags()
    values = parse_flags(words, flags)
    complete = {flag.name: flag.default for flag in flags.values()} | values
    return Given(name, complete, frozenset(values), values.get(SCRIPTS[name].place) or None)  # type: ignore[arg-type]


# Training --------------------------------------------------------------------------------------------------------------


def _train_images(given: Given) -> Commands:
    yield from _training(given, "diffusion", crop="center")


def _train_upsampler(given: Given) -> Commands:
    yield from _training(given, "super-resolution", crop="center")


def _train_classifier(given: Given) -> Commands:
    if given["val_data_dir"]:
        note("--val_data_dir is not read: images held out of --data_dir serve (--data.validation-fraction)")
    if "eval_interval" in given.named:
        note("--eval_interval is not used: all held-out images are evaluated at every checkpoint (--train.validate-every)")
    yield from _training(given, "classifier", crop="random")


def _training(given: Given, kind: Kind, *, crop: str) -> Commands:
    """Perhaps the import of weights to begin with, and the training."""
    if not given["data_dir"]:
        raise ConfigError("--data_dir", "missing: the folder of the images")
    begin: list[str] = []
    if given["resume_checkpoint"]:
        run, commands = _imported(given, given["resume_checkpoint"], kind)
        yield from commands
        note("--resume_checkpoint gives the weights alone; a run of Triptych goes on exactly when the same command is given again")
        begin = ["--init-from", str(run)]
    try:
        config = _run_config(given, kind, crop=crop)
    except ConfigError as error:
        raise ConfigError(_original_name(error.setting, given), error.reason) from None
    recipe, flags = nearest_recipe(config, families=("diffusion", "classifiers", "upsamplers"))
    directory = given.place or os.environ.get("OPENAI_LOGDIR") or f"runs/{given.script}"
    yield ["train", recipe, "--run", directory, *begin, *flags]


def _original_name(setting: str, given: Given) -> str:
    """The script's flag for a setting of ours; the setting where it has none."""
    last = setting.rpartition(".")[2]
    name = _ORIGINAL_NAMES.get(last, last)
    return f"--{name}" if name in given.values else setting


def _run_config(given: Given, kind: Kind, *, crop: str) -> RunConfig:
    """What the original's flags train, as a configuration."""
    from triptych.data.config import DataConfig
    from triptych.engine.config import LogConfig
    from triptych.interop.guided_diffusion.configs import configuration
    from triptych.recipes.config import RunConfig

    model, image_size = configuration(given.of(kind), kind)
    model = model.updated({"timestep_sampler": given["schedule_sampler"]} | ({"noised": given["noised"]} if kind == "classifier" else {}))
    labelled = kind == "classifier" or given["class_cond"]
    held_out = 0.05 if kind == "classifier" and given["val_data_dir"] else 0.0
    batch = given["batch_size"] * num_processes()
    data: dict[str, Any] = {"source": "folder", "path": given["data_dir"], "image_size": image_size, "crop": crop, "enlarge": True}
    return RunConfig(
        model=model,
        data=DataConfig(**data, channels=3, labels="prefix" if labelled else "none", validation_fraction=held_out),
        train=_train_config(given, kind, batch),
        optim=_optim_config(given, kind),
        log=LogConfig(every=given["log_interval"] * batch),
    )


def _train_config(given: Given, kind: Kind, batch: int) -> TrainConfig:
    from triptych.engine.config import TrainConfig

    classifier = kind == "classifier"
    steps = given["iterations"] if classifier else given["lr_anneal_steps"]
    if not steps:
        note("--lr_anneal_steps 0 never ends: stop it with Ctrl-C, or give --lr_anneal_steps; --train.total-images is the number of images")
    half = given["classifier_use_fp16"] if classifier else given["use_fp16"]
    return TrainConfig(
        total_images=steps * batch or ENDLESS_IMAGES,
        batch_size=batch,
        microbatch=given["microbatch"] if given["microbatch"] > 0 else None,
        precision="fp16" if half else "float32",
        loss_scale=2.0**16 if classifier else 2.0**20,
        loss_scale_growth=1e-3 if classifier else given["fp16_scale_growth"],
        ema_rates=() if classifier else _rates(given["ema_rate"]),
        ema_warmup=False,
        checkpoint_every=given["save_interval"] * batch,
        validate_every=given["save_interval"] * batch,
        sample_every=None,
        sample_count=0,
    )


def _rates(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(rate) for rate in text.split(","))
    except ValueError:
        raise ConfigError("--ema_rate", f"got {text!r}, expected numbers separated by commas") from None


def _optim_config(given: Given, kind: Kind) -> OptimConfig:
    from triptych.engine.config import OptimConfig

    anneal = given["anneal_lr"] if kind == "classifier" else given["lr_anneal_steps"] > 0
    schedule = "linear" if anneal else "constant"
    return OptimConfig(learning_rate=given["lr"], weight_decay=given["weight_decay"], schedule=schedule)


# Sampling and likelihood -------------------------------------------------------------------------------------------------


def _sample_images(given: Given) -> Commands:
    run, commands = _imported(given, given["model_path"], "diffusion")
    yield from commands
    yield ["sample", str(run), *_sampler(given, "diffusion")]


def _sample_with_classifier(given: Given) -> Commands:
    run, commands = _imported(given, given["model_path"], "diffusion")
    yield from commands
    guide, commands = _imported(given, given["classifier_path"], "classifier", setting="--classifier_path")
    yield from commands
    yield ["sample", str(run), "--guide", str(guide), "--guidance-scale", str(given["classifier_scale"]), *_sampler(given, "diffusion")]


def _sample_upsampled(given: Given) -> Commands:
    if not given["base_samples"]:
        raise ConfigError("--base_samples", "missing: an .npz of small images (or a folder of them, or a run)")
    run, commands = _imported(given, given["model_path"], "super-resolution")
    yield from commands
    there = _small_images(Path(given["base_samples"]), given["small_size"])
    yield ["sample", str(run), "--base", given["base_samples"], *_sampler(given, "super-resolution", most=there)]


def _small_images(path: Path, size: int) -> float:
    """How many images there are to be enlarged; without end where a run draws them, or where there are none."""
    if not path.exists() or (path / "config.json").is_file():
        return math.inf
    from triptych.runs.given.collection import open_squares

    return len(open_squares(path, side=size, channels=3))


def _likelihood(given: Given) -> Commands:
    if not given["data_dir"]:
        raise ConfigError("--data_dir", "missing: the folder of the images")
    from triptych.data.config import DataConfig

    images = DataConfig(source="folder", path=given["data_dir"], image_size=given["image_size"], enlarge=True, validation_fraction=0.0)
    count = _num_samples(given, len(images.open().train))
    run, commands = _imported(given, given["model_path"], "diffusion")
    yield from commands
    note("the images are not mirrored at random, as the original does")
    command = ["evaluate", str(run), "--metrics", "bits-per-dim", "--likelihood", "bound", "--split", "all"]
    command += ["--data.path", given["data_dir"], "--data.labels", "prefix" if given["class_cond"] else "none", "--data.enlarge", "True"]
    command += ["--count", str(count), "--batch-size", str(given["batch_size"]), "--steps", given["timestep_respacing"] or "None"]
    command += ["--clip", str(given["clip_denoised"]), "--precision", "fp16" if given["use_fp16"] else "float32"]
    yield [*command, *(["--out", given.place] if given.place else [])]


def _num_samples(given: Given, most: float) -> int:
    """How many samples there will be: as many as asked for, but no image twice."""
    if given["num_samples"] <= most:
        return given["num_samples"]
    note(f"--num_samples {given['num_samples']}: there are {most} images, each of which is taken once; the original begins again")
    return int(most)


def _sampler(given: Given, kind: Kind, *, most: float = math.inf) -> list[str]:
    """The settings of sampling that all sampling scripts have. `most`: samples that there can be."""
    size, count = given["large_size" if kind == "super-resolution" else "image_size"], _num_samples(given, most)
    if kind == "diffusion" and (given["class_cond"] or "classifier_path" in given.values):
        note("classes are taken in turn, where the original draws them at random; --labels of triptych sample chooses them")
    folder = os.environ.get("OPENAI_LOGDIR") or "."
    out = given.place or os.path.join(folder, f"samples_{count}x{size}x{size}x3.npz")
    return [
        *("--count", str(count), "--batch-size", str(given["batch_size"])),
        *("--sampler", "ddim" if given["use_ddim"] else "ancestral", "--steps", given["timestep_respacing"] or "None"),
        *("--clip", str(given["clip_denoised"]), "--precision", "fp16" if given["use_fp16"] else "float32"),
        *("--out", out),
    ]


def _imported(given: Given, path: str, kind: Kind, *, setting: str = "--model_path") -> tuple[Path, Commands]:
    return imported("guided-diffusion", path, words=given.words(kind), setting=setting)


SCRIPTS = {
    "image_train": Script(TRAINING, ("diffusion",), _train_images, "run"),
    "super_res_train": Script(TRAINING, ("super-resolution",), _train_upsampler, "run"),
    "classifier_train": Script(CLASSIFIER_TRAINING, ("classifier",), _train_classifier, "run"),
    "image_sample": Script(SAMPLING, ("diffusion",), _sample_images, "out"),
    "super_res_sample": Script(UPSAMPLING, ("super-resolution",), _sample_upsampled, "out"),
    "classifier_sample": Script(CLASSIFIER_SAMPLING, ("diffusion", "classifier"), _sample_with_classifier, "out"),
    "image_nll": Script(LIKELIHOOD, ("diffusion",), _likelihood, "out"),
}
