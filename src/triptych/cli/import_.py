"""`triptych import`: a file of weights of another program becomes a run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict

from triptych.cli.arguments import next_command
from triptych.cli.output import show, show_page
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError, nearest
from triptych.core.wording import counted
from triptych.interop.glow.flags import FLAGS as FLAGS_OF_GLOW
from triptych.interop.guided_diffusion.flags import all_flags
from triptych.interop.programs import PROGRAMS, expected_program
from triptych.interop.sit.flags import FLAGS as FLAGS_OF_SIT  # and those of DiT

USAGE = """usage: triptych import PROGRAM FILE --run DIR [--flags "..."] [--ema FILE] [--ema-rate RATE] [--autoencoder RUN]
       triptych import imaginaire CONFIG.yaml [CHECKPOINT.pt] --run DIR [--data DIR] [--processes N]

Makes a run of another program's weights, which sample, evaluate and train then take. PROGRAM is guided-diffusion or improved-diffusion,
whose FILE is a .pt; glow, whose FILE is a checkpoint of TensorFlow (its prefix, one of its files or its folder) or an .npz of variables;
nvidia, whose FILE is a .pkl of StyleGAN2, R3GAN, EDM or EDM2, of which nothing is run; diffusers, whose FILE is the folder of an
AutoencoderKL; sit or dit, whose FILE is a .pt of SiT or DiT; or imaginaire, whose YAML file says it all (without a checkpoint
the run has its settings alone, and is to be trained).
A file that they published is known by its name, or by the shapes of its tensors; any other one takes the flags it was trained with:

  --run DIR        directory of the new run
  --flags "..."    the original's flags in its own words: "--image_size 64 --num_channels 128 ..."; of glow's the shapes tell all but
                   --image_size (else 32), --n_bits_x (else 8) and --weight_y (else 0.01, where there is a classifier); of sit's and dit's
                   all but sit's --path-type (else Linear) and --prediction (else velocity), and --num-heads of a size of one's own
  --autoencoder RUN  of a model of latents (nvidia's EDM2 of 4 channels, sit, dit): the run of the autoencoder that decodes them, of which
                   the new run keeps a copy; else samples are latents
  --ema FILE       the moving average, ema_RATE_STEPS.pt, where FILE is model*.pt, so that the run has both
  --ema-rate RATE  glow: the rate of the moving averages in the checkpoint (else that of its flags on eight processes)
  --data DIR       imaginaire: the folder of the data, in place of the YAML file's roots
  --processes N    imaginaire: processes of a training, each of which has the YAML file's batch (else 1)

example: triptych import guided-diffusion 256x256_diffusion.pt --run runs/adm256
         triptych import glow abl-1x1-aff/logs/model_best_loss.ckpt --run runs/glow
         triptych import imaginaire base128_bs4.yaml spade.pt --run runs/spade
         triptych import nvidia ffhq.pkl --run runs/faces
         triptych import diffusers ./sd-vae --run runs/sd-vae"""
_NAMES = ("run", "flags", "ema", "ema-rate", "data", "processes", "autoencoder")


@config
class ImportOptions(Config):
    """What becomes which run."""

    program: str
    file: str
    run: str
    checkpoint: str | None = None
    flags: str | None = None
    ema: str | None = None
    ema_rate: float | None = None
    data: str | None = None
    processes: int = 1
    autoencoder: str | None = None


_SETTINGS = ("ema", "ema_rate", "flags", "data", "processes", "autoencoder")
"""What options of this command are called in Python."""


def main(arguments: Sequence[str]) -> int:
    """Imports the weights, and prints what they are and how to draw from them."""
    if any(argument in ("-h", "--help") for argument in arguments):
        show_page(USAGE)
        return 0
    options = asdict(configure(arguments))

    from triptych import runs

    try:
        run = runs.import_run(run_dir=options.pop("run"), **options, report=print)
    except ConfigError as error:
        raise error.renamed(lambda name: f"--{name.replace('_', '-')}" if name in _SETTINGS else name) from None
    height, width = run.spec.pictured.height_and_width
    kind = type(run.config.model).__name__.removesuffix("Config")
    classes = "no classes" if run.spec.num_classes is None else counted(run.spec.num_classes, "class", "classes")
    show(f"{run.directory}: {kind}, {height}x{width}, {classes}")
    line = next_command(run, trained=False) if run.checkpoints() else f"train it: triptych train {shlex.quote(str(run.directory))}"
    if line is not None:
        show(line)
    return 0


def configure(arguments: Sequence[str]) -> ImportOptions:
    """The options. Read by hand: the value of --flags begins with dashes itself."""
    usage = "usage: triptych import PROGRAM FILE --run DIR"
    named: dict[str, str] = {}
    loose: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-"):
            loose.append(argument)
            continue
        name, equals, text = argument.removeprefix("--").partition("=")
        if any(name in flags for flags in (all_flags(), FLAGS_OF_GLOW, FLAGS_OF_SIT)):
            raise ConfigError(argument, f'the original\'s flags go into one text: --flags "{argument} ..."')
        if name not in _NAMES:
            raise ConfigError(argument, f"unknown option{nearest(argument, (f'--{option}' for option in _NAMES))}; {usage}")
        value = text if equals else next(rest, None)
        if value is None or (name != "flags" and (not value or value.startswith("--"))):
            raise ConfigError(f"--{name}", "the value is missing")
        named[name] = value
    if loose and loose[0] not in PROGRAMS:
        raise ConfigError("", f"unknown program {loose[0]!r}, expected {expected_program(loose[0])}")
    most = 3 if loose[:1] == ["imaginaire"] else 2
    if not 2 <= len(loose) <= most:
        what = "no program and file given" if not loose else "no file given" if len(loose) < 2 else f"unexpected {loose[most]!r}"
        raise ConfigError("", f"{what}; {usage}")
    if "run" not in named:
        raise ConfigError("--run", f"missing: the directory of the new run; {usage}")
    rate = _number("--ema-rate", named.pop("ema-rate"), "a number, 0 or more and below 1") if "ema-rate" in named else None
    processes = _number("--processes", named.pop("processes", "1"), "a whole number")
    if not processes.is_integer():
        raise ConfigError("--processes", f"got {processes:g}, expected a whole number")
    checkpoint = loose[2] if len(loose) > 2 else None
    return ImportOptions(program=loose[0], file=loose[1], checkpoint=checkpoint, ema_rate=rate, processes=int(processes), **named)


def _number(name: str, text: str, allowed: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(name, f"got {text!r}, expected {allowed}") from None
