"""`triptych average`: the weights of a power-function average of any length, out of the snapshots of a run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from triptych.cli.arguments import finished, first_argument, named_as_flags, run_argument
from triptych.cli.output import show_page
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.engine.run_directory import run_and_checkpoint

_USAGE_LINE = "triptych average RUN --length LENGTH [--at IMAGES] [--out FILE.safetensors]"

USAGE = f"""usage: {_USAGE_LINE}

Writes the power-function average of the weights of that length, as if the training had tracked it, out of the snapshots that it wrote
(triptych train RECIPE --train.ema-lengths 0.05,0.1 --train.snapshot-every IMAGES). It is kept in the run, where triptych sample, translate,
evaluate, encode and export take it by --ema-length. They put it together themselves where it is not there, each time.

  triptych average RUN --help    list all options

example: triptych average runs/digits --length 0.15"""


@config
class AverageOptions(Config):
    """Which average, to where."""

    length: float | None = None
    "Required: the width of its profile as a share of the images seen, sigma_rel in EDM2: 0.001 to 0.288."
    at: int | None = None
    "Images seen when it is taken; None: those of the newest checkpoint."
    out: str | None = None
    "FILE.safetensors; None: a place in RUN/averages, where the other commands find it."

    def validate(self) -> None:
        self.require(self.at is None or self.at >= 1, "at", "at least 1")
        self.require(self.out is None or Path(self.out).suffix == ".safetensors", "out", "a name that ends with .safetensors")


def main(arguments: Sequence[str]) -> int:
    """Puts the average together, and prints where it is and what it was made of."""
    if arguments and arguments[0] in ("-h", "--help"):
        show_page(USAGE)
        return 0
    place = first_argument(arguments, usage=_USAGE_LINE)
    directory, images = run_and_checkpoint(place)
    run_argument([str(directory), *arguments[1:]], usage=_USAGE_LINE)
    options = configure(str(directory), arguments[1:])
    if options.length is None:
        raise ConfigError("--length", f"missing; usage: {_USAGE_LINE}")

    if images is not None and options.at is not None:
        raise ConfigError("--at", f"got one beside {place!r}, which says the images already; leave one of them out")
    at = options.at if images is None else int(images)

    from triptych import runs

    with named_as_flags(options):
        made = runs.open_run(directory).average(options.length, at=at, out=options.out)
    chosen = "" if at is None else f"--checkpoint {at} "
    draws = f"draw with it: triptych sample {shlex.quote(str(directory))} {chosen}--ema-length {options.length}"
    use = [] if options.out is not None else [draws]
    return finished(f"{made.path}: length {options.length} at {made.images} images seen, {made.described}", *use)


def configure(run: str, arguments: Sequence[str]) -> AverageOptions:
    """The options that the arguments give."""
    from triptych.cli.settings import parse

    options, _ = parse(
        arguments,
        prog=f"triptych average {run}",
        description="Writes a power-function average of the run's weights, of any length.",
        options=AverageOptions(),
        settings=Config(),
    )
    return options
