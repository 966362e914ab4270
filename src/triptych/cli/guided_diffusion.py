"""`triptych guided-diffusion`: the command lines of guided-diffusion's scripts, translated into commands of Triptych.

A script's flags are taken word for word, with the original's defaults. Each becomes one or more commands of Triptych, which are printed
before they run, so that the next time they can be given as they are. A flag that has no meaning any more is named with what replaced it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Sequence
from pathlib import Path

from triptych.cli.originals import Commands, flag_list, import_commands, nearest_recipe, note, run_all, weights_to_begin, without_python
from triptych.cli.output import show_page
from triptych.cli.processes import num_processes
from triptych.core.errors import ConfigError
from triptych.interop.flags import named_as_flags
from triptych.interop.guided_diffusion.flags import SCRIPTS, Kind, ScriptFlags, read, script_name

USAGE = """usage: triptych guided-diffusion SCRIPT --flag value ... [--run DIR | --out FILE]

Takes the command line of one of guided-diffusion's scripts, prints the equivalent commands of Triptych and runs them.

scripts:
  image_train  image_sample  image_nll  super_res_train  super_res_sample  classifier_train  classifier_sample

--run DIR is where a training goes (else OPENAI_LOGDIR, else runs/SCRIPT), --out FILE where samples or figures do.

example: triptych guided-diffusion image_train --data_dir ./photos --image_size 64 --num_channels 128 --batch_size 16"""

_SEVERAL = "torchrun --nproc-per-node N -m -- triptych guided-diffusion SCRIPT"


def main(arguments: Sequence[str]) -> int:
    """The exit code of the last command that ran."""
    if not arguments or arguments[0] in ("-h", "--help"):
        show_page(USAGE, error=not arguments)
        return 0 if arguments else 2
    arguments = without_python(arguments, begin="the script", several=_SEVERAL)
    name = script_name(arguments[0])
    if "-h" in arguments or "--help" in arguments:
        show_page(f"usage: triptych guided-diffusion {name} --flag value ...\n\n{flag_list(SCRIPTS[name].flags())}")
        return 0
    flags = read(name, arguments[1:])
    return run_all(lambda: commands(flags))


def commands(flags: ScriptFlags) -> Commands:
    return _COMMANDS[flags.script](flags)


def _train(flags: ScriptFlags) -> Commands:
    """Perhaps the import of weights to begin with, and the training."""
    if flags.kind == "classifier" and flags["val_data_dir"]:
        note("--val_data_dir is not read: images held out of --data_dir serve (--data.validation-fraction)")
    if "eval_interval" in flags.given:
        note("--eval_interval is not used: all held-out images are evaluated at every checkpoint (--train.validate-every)")
    if not flags["data_dir"]:
        raise ConfigError("--data_dir", "missing: the folder of the images")
    from triptych.interop.guided_diffusion.commands import training

    config = training(flags, processes=num_processes(), note=note)
    recipe, settings = nearest_recipe(config, families=("diffusion", "classifiers", "upsamplers"))
    begin = yield from weights_to_begin("guided-diffusion", flags, "resume_checkpoint", words=flags.words(flags.kind))
    directory = flags.place or os.environ.get("OPENAI_LOGDIR") or f"runs/{flags.script}"
    yield ["train", recipe, "--run", directory, *begin, *settings]


def _sample(flags: ScriptFlags) -> Commands:
    run = yield from _imported(flags, "diffusion")
    yield ["sample", str(run), *_sampler(flags, "diffusion")]


def _sample_with_classifier(flags: ScriptFlags) -> Commands:
    run = yield from _imported(flags, "diffusion")
    guide = yield from _imported(flags, "classifier", name="classifier_path")
    yield ["sample", str(run), "--guide", str(guide), "--guidance-scale", str(flags["classifier_scale"]), *_sampler(flags, "diffusion")]


def _sample_upsampled(flags: ScriptFlags) -> Commands:
    if not flags["base_samples"]:
        raise ConfigError("--base_samples", "missing: an .npz of small images (or a folder of them, or a run)")
    run = yield from _imported(flags, "super-resolution")
    there = _small_images(Path(flags["base_samples"]), flags["small_size"])
    yield ["sample", str(run), "--base", flags["base_samples"], *_sampler(flags, "super-resolution", most=there)]


def _small_images(path: Path, size: int) -> float:
    """How many images there are to be enlarged; without end where a run draws them, or where there are none."""
    if not path.exists() or (path / "config.json").is_file():
        return math.inf
    from triptych.runs.given.collection import open_squares

    return len(open_squares(path, side=size, channels=3))


def _likelihood(flags: ScriptFlags) -> Commands:
    if not flags["data_dir"]:
        raise ConfigError("--data_dir", "missing: the folder of the images")
    from triptych.data.config import DataConfig

    with named_as_flags({}, flags.values):
        images = DataConfig(source="folder", path=flags["data_dir"], image_size=flags["image_size"], enlarge=True, validation_fraction=0.0)
    count = _num_samples(flags, len(images.open().train))
    run = yield from _imported(flags, "diffusion")
    note("the images are not mirrored at random, as the original does")
    command = ["evaluate", str(run), "--metrics", "bits-per-dim", "--likelihood", "bound", "--split", "all"]
    command += ["--data.path", flags["data_dir"], "--data.labels", "prefix" if flags["class_cond"] else "none", "--data.enlarge", "True"]
    command += ["--count", str(count), "--batch-size", str(flags["batch_size"]), "--steps", flags["timestep_respacing"] or "None"]
    command += ["--clip", str(flags["clip_denoised"]), "--precision", "fp16" if flags["use_fp16"] else "float32"]
    folder = os.environ.get("OPENAI_LOGDIR")
    place = flags.place or (os.path.join(folder, "image_nll.json") if folder else None)
    yield [*command, *([] if place is None else ["--out", place])]


def _num_samples(flags: ScriptFlags, most: float) -> int:
    """How many samples there will be: as many as asked for, but no image twice."""
    if flags["num_samples"] <= most:
        return flags["num_samples"]
    note(f"--num_samples {flags['num_samples']}: there are {most} images, each of which is taken once; the original begins again")
    return int(most)


def _sampler(flags: ScriptFlags, kind: Kind, *, most: float = math.inf) -> list[str]:
    """The settings of sampling that all sampling scripts have. `most`: samples that there can be."""
    size, count = flags["large_size" if kind == "super-resolution" else "image_size"], _num_samples(flags, most)
    if kind == "diffusion" and (flags["class_cond"] or "classifier_path" in flags.values):
        note("classes are taken in turn, where the original draws them at random; --labels of triptych sample chooses them")
    folder = os.environ.get("OPENAI_LOGDIR") or "."
    out = flags.place or os.path.join(folder, f"samples_{count}x{size}x{size}x3.npz")
    return [
        *("--count", str(count), "--batch-size", str(flags["batch_size"])),
        *("--sampler", "ddim" if flags["use_ddim"] else "ancestral", "--steps", flags["timestep_respacing"] or "None"),
        *("--clip", str(flags["clip_denoised"]), "--precision", "fp16" if flags["use_fp16"] else "float32"),
        *("--out", out),
    ]


def _imported(flags: ScriptFlags, kind: Kind, *, name: str = "model_path") -> Generator[list[str], None, Path]:
    words = flags.words(kind, without=_OF_SAMPLING)  # which the command says, so that one import does for all of them
    return import_commands("guided-diffusion", flags[name], words=words, setting=f"--{name}")


_OF_SAMPLING = ("timestep_respacing", "use_fp16", "classifier_use_fp16")


_COMMANDS = {
    "image_train": _train,
    "super_res_train": _train,
    "classifier_train": _train,
    "image_sample": _sample,
    "super_res_sample": _sample_upsampled,
    "classifier_sample": _sample_with_classifier,
    "image_nll": _likelihood,
}
