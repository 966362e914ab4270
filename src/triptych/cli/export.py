"""`triptych export`: a run's weights for another program."""

from __future__ import annotations

from collections.abc import Sequence

from triptych.cli.arguments import at_checkpoint, flag_value, named_as_flags, run_argument
from triptych.cli.output import show, show_page
from triptych.core.config import Config, config
from triptych.core.errors import CheckpointError, ConfigError
from triptych.interop.programs import TARGETS, Target
from triptych.runs.loading import WeightsChoice

_USAGE_LINE = "triptych export RUN --to PROGRAM --out PATH"

USAGE = f"""usage: {_USAGE_LINE} [--checkpoint NAME] [--weights NAME | --ema-length LENGTH] [--drop-variance]

Writes a run's weights for another program: guided-diffusion, a .pt with its flags beside it; diffusers, a folder (of diffusion models and
autoencoders); nvidia, a .pt or .safetensors with the tensors' names of StyleGAN2, R3GAN, EDM or EDM2; or sit, a .pt of a transformer that
learns a flow.

  triptych export RUN --help    list all options

example: triptych export runs/photos --to diffusers --out photos-diffusers"""


@config
class ExportOptions(WeightsChoice):
    """Which weights, for what, to where."""

    to: Target | None = None
    "Required: the program that is to load them."
    out: str | None = None
    "Required. guided-diffusion: a file that ends with .pt; diffusers: a folder; nvidia: a file with .pt or .safetensors; sit: with .pt."
    drop_variance: bool = False
    "diffusers: leave out the output channels of a learned variance, so that every scheduler takes the model."


def main(arguments: Sequence[str]) -> int:
    """Exports the weights, and prints where they are and how to use them."""
    if arguments and arguments[0] in ("-h", "--help"):
        show_page(USAGE)
        return 0
    arguments = at_checkpoint(arguments)
    directory = _run(arguments)
    if flag_value("--out", arguments) == "":  # as of a variable that is not set; it cannot be left out
        raise ConfigError("--out", f"got '', expected the name of a file or folder; usage: {_USAGE_LINE}")
    options = configure(directory, arguments[1:])
    for name in ("to", "out"):
        if getattr(options, name) is None:
            raise ConfigError(f"--{name}", f"missing; usage: {_USAGE_LINE}")
    assert options.to is not None and options.out is not None

    from triptych import runs

    with named_as_flags(options):
        done = runs.export_run(
            directory,
            options.to,
            options.out,
            checkpoint=options.checkpoint,
            weights=options.weights,
            ema_length=options.ema_length,
            drop_variance=options.drop_variance,
        )
    show(f"wrote {' and '.join(map(str, done.paths))}")
    if done.flags is not None:
        show(f"flags: {done.flags}")
    for note in done.notes:
        show(f"note: {note}")
    return 0


def _run(arguments: Sequence[str]) -> str:
    """The run, the first argument; raises ConfigError and CheckpointError, and says where a program in its place belongs."""
    try:
        return run_argument(arguments, usage=_USAGE_LINE)
    except CheckpointError:
        if arguments[0] not in TARGETS:
            raise
        raise ConfigError("", f"got the program {arguments[0]} where the run is expected; usage: {_USAGE_LINE}") from None


def configure(run: str, arguments: Sequence[str]) -> ExportOptions:
    from triptych.cli.settings import parse

    options, _ = parse(
        arguments,
        prog=f"triptych export {run}",
        description="Writes the run's weights for another program.",
        options=ExportOptions(),
        settings=Config(),
    )
    return options
