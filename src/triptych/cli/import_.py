"""`triptych import`: a file of weights of another program becomes a run."""

from __future__ import annotations

from collections.abc import Sequence

from triptych.core.config import Config, config
from triptych.core.errors import ConfigError, nearest
from triptych.interop.flags import PROGRAMS, all_flags
from triptych.interop.script_flags import OF_SCRIPTS

USAGE = """usage: triptych import PROGRAM FILE --run DIR [--flags "..."] [--ema FILE]

Makes a run of a file of weights (.pt), which sample, evaluate and train then take. PROGRAM is guided-diffusion or improved-diffusion.
A file that they published is known by its name, or by the shapes of its tensors; any other one takes the flags it was trained with:

  --run DIR      directory of the new run
  --flags "..."  the original's flags in its own words: "--image_size 64 --num_channels 128 ..."
  --ema FILE     the moving average, ema_RATE_STEPS.pt, where FILE is model*.pt, so that the run has both

example: triptych import guided-diffusion 256x256_diffusion.pt --run runs/adm256"""


@config
class ImportOptions(Config):
    """What becomes which run."""

    program: str
    file: str
    run: str | None = None
    flags: str | None = None
    ema: str | None = None


def main(arguments: Sequence[str]) -> int:
    """Imports the weights, and prints what they are and how to draw from them."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(USAGE)
        return 0
    options = configure(arguments)

    from triptych import runs

    try:
        run = runs.import_run(
            options.file,
            str(options.run),
            flags=options.flags,
            program=options.program,  # type: ignore[arg-type]
            ema=options.ema,
            report=print,
        )
    except ConfigError as error:
        raise _of_a_script(error) from None
    size = run.spec.image_size
    kind = type(run.config.model).__name__.removesuffix("Config")
    classes = "no classes" if run.spec.num_classes is None else f"{run.spec.num_classes} classes"
    print(f"{run.directory}: {kind}, {size}x{size}, {classes}")
    if hasattr(run.config.model, "sampling"):
        small = " --base IMAGES" if hasattr(run.config.model, "small_size") else ""
        print(f"draw from it: triptych sample {run.directory}{small}")
    elif kind == "Classifier":
        print(f"lead a run by it: triptych sample RUN --guide {run.directory}")
    return 0


def _of_a_script(error: ConfigError) -> ConfigError:
    """The error; where it is about a flag of the original's scripts, which says nothing of the network, it says so."""
    if error.setting.removeprefix("--") not in OF_SCRIPTS - all_flags().keys():
        return error
    return ConfigError(error.setting, "this is a flag of the original's scripts, not of a network: leave it out")


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
        if name in all_flags():
            raise ConfigError(argument, f'the original\'s flags go into one text: --flags "{argument} ..."')
        if name not in ("run", "flags", "ema"):
            raise ConfigError(argument, f"unknown option{nearest(argument, ('--run', '--flags', '--ema'))}; {usage}")
        value = text if equals else next(rest, None)
        if value is None or (name != "flags" and (not value or value.startswith("--"))):
            raise ConfigError(f"--{name}", "the value is missing")
        named[name] = value
    if loose and loose[0] not in PROGRAMS:
        raise ConfigError("", f"unknown program {loose[0]!r}, expected {' or '.join(PROGRAMS)}{nearest(loose[0], PROGRAMS)}")
    if len(loose) != 2:
        what = "no program and file given" if not loose else "no file given" if len(loose) < 2 else f"unexpected {loose[2]!r}"
        raise ConfigError("", f"{what}; {usage}")
    if "run" not in named:
        raise ConfigError("--run", f"missing: the directory of the new run; {usage}")
    return ImportOptions(program=loose[0], file=loose[1], **named)
