"""`triptych init`: from a folder of images and some hours to the settings of a run, with the reason for each."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from triptych.cli.arguments import named_as_flags, require_images
from triptych.cli.output import show, show_page
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.core.files import explain, write_text
from triptych.core.reading import user_path
from triptych.engine.run_directory import RunDirectory

_LINE = "triptych init IMAGES [--hours 6] [--family flow|gan|diffusion] [--out FILE]"
USAGE = f"""usage: {_LINE}

Looks at the images and at this machine, which it measures for some minutes, and chooses what to train on them in so many hours: recipe,
size, batch, length, averages, augmentation. It says why for each, and writes a file for triptych train --config FILE.

IMAGES is what a recipe takes as --data.path: a folder (of pairs, too), an archive, an array, MNIST's or CIFAR-10's files.

  triptych init IMAGES --help    list all options

example: triptych init ./photos --hours 6"""


@config
class InitOptions(Config):
    """How long to train, on what, and where to write the settings."""

    hours: float = 6.0
    "How long the run should take on this machine."
    family: Literal["flow", "gan", "diffusion"] | None = None
    "Kind of model; None: by the images."
    pairs: bool | None = None
    "Whether folders whose files have the same names are pairs, or classes (False); None: by their names, and whether one holds maps."
    out: str | None = None
    "FILE.toml or FILE.json; None: the name of the images with .toml, in this folder."
    run: str | None = None
    "Directory of the run; None: runs/NAME, or the first of runs/NAME-2, -3 ... that is not there."
    device: str | None = None
    "cpu, cuda or cuda:N; None: a CUDA device where there is one."

    def validate(self) -> None:
        self.require(0.01 <= self.hours <= 10_000, "hours", "0.01 to 10,000")
        self.require(self.out is None or Path(self.out).suffix in (".toml", ".json"), "out", "a name that ends with .toml or .json")


def main(arguments: Sequence[str]) -> int:
    """Looks, measures, explains, writes the file, and prints the command."""
    if arguments and arguments[0] in ("-h", "--help"):
        show_page(USAGE)
        return 0
    if not arguments or not arguments[0]:
        raise ConfigError("", f"no images given; usage: {_LINE}")
    if arguments[0].startswith("-"):
        raise ConfigError("", f"got {arguments[0]!r} where the images are expected; usage: {_LINE}")
    images = arguments[0]
    options = configure(arguments[1:])
    require_images(images, note="; expected a folder, archive or array of images")
    place = user_path(images).absolute()
    name = re.split(r"[.{*?\[]", place.name)[0].strip("-_") or "images"
    out = user_path(options.out or f"{name}.toml")
    if out.exists():
        raise ConfigError("--out", f"{out} is there already: give another name, or remove it")

    from triptych.runs.choosing import as_json, as_toml, choose
    from triptych.runs.data_look import look
    from triptych.runs.files import check_place

    check_place(out)
    run = options.run or free_run(name)
    if RunDirectory(Path(run)).exists():
        raise ConfigError("--run", f"got {run!r}, which is a run already: give another name, or leave it out")
    RunDirectory(Path(run)).check()

    with named_as_flags(options):
        choice = choose(
            look(place, pairs=options.pairs),
            hours=options.hours,
            directory=run,
            family=options.family,
            device=options.device,
            say=lambda line: show(f"{line} ...", error=True),
        )
    asked = shlex.join(["triptych", "init", *arguments])
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, as_json(choice, run=run) if out.suffix == ".json" else as_toml(choice, run=run, head=f"written by {asked}"))
    except OSError as error:
        raise ConfigError("--out", f"cannot write {out}: {explain(error)}") from None
    for what, why in choice.reasons:
        show(f"{what:13} {why}")
    for warning in choice.warnings:
        show(f"warning: {warning}")
    device = [] if options.device is None else ["--device", options.device]
    show(f"train it: {shlex.join(['triptych', 'train', '--config', str(out), *device])}")
    return 0


def configure(arguments: Sequence[str]) -> InitOptions:
    """The options of `triptych init`."""
    from triptych.cli.settings import parse

    options, _ = parse(
        arguments,
        prog="triptych init IMAGES",
        description="Chooses what to train on the images in so many hours, and writes the settings.",
        options=InitOptions(),
        settings=Config(),
    )
    return options


def free_run(name: str) -> str:
    """runs/NAME, with a number behind it where that is there already."""
    number = 1
    while (place := Path("runs") / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return str(place)
