"""`triptych train`: a recipe, a settings file and flags make a configuration; the rest is `triptych.runs.train`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from triptych.cli.processes import is_first_process
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.recipes.catalogue import find_recipe, load_recipe

if TYPE_CHECKING:
    from triptych.recipes.config import RunConfig

USAGE = """usage: triptych train RECIPE [--run DIR] [--config FILE] [--init-from RUN] [--device DEVICE] [settings]

Trains a recipe. The same command on the same run directory goes on where it stopped.

  triptych recipes                list the recipes
  triptych train RECIPE --help    list every setting of a recipe, with what it does and its value

example: triptych train adm-digits --run runs/digits --train.batch-size 64"""


@config
class TrainOptions(Config):
    """Where the run is and where it starts from."""

    run: str | None = None
    "Directory of the run; one that exists is continued. None: runs/RECIPE."
    config: str | None = None
    "TOML or JSON file with settings by the names below, laid over the recipe; flags go over both."
    init_from: str | None = None
    "Start from the weights of this run instead of fresh ones."
    device: str | None = None
    "cpu, cuda or cuda:N; None: a CUDA device where there is one."


def main(arguments: Sequence[str]) -> int:
    """Trains; the log says where the run is, and the last line how to draw from it."""
    if not arguments:
        raise ConfigError("", "no recipe given; usage: triptych train RECIPE [--run DIR] [settings] (triptych recipes lists them)")
    if arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if arguments[0].startswith("-"):
        raise ConfigError("", f"got {arguments[0]!r} where the recipe is expected; usage: triptych train RECIPE [--run DIR] [settings]")
    recipe = find_recipe(arguments[0]).name
    options, run_config = configure(recipe, arguments[1:])

    from triptych import runs

    run = runs.train(
        run_config,
        options.run or Path("runs") / recipe,
        recipe=recipe,
        init_from=options.init_from,
        device=options.device,
    )
    runs.close_world()
    if is_first_process():
        print(f"draw from it: triptych sample {run.directory}")
    return 0


def configure(recipe: str, arguments: Sequence[str]) -> tuple[TrainOptions, RunConfig]:
    """The options and the configuration that the recipe, the settings file and the flags make."""
    from triptych.cli.settings import parse, read_config_file

    base = load_recipe(recipe)
    file = _value_of("--config", arguments)
    if file is not None:
        try:
            base = base.updated(read_config_file(Path(file)))
        except ConfigError as error:
            raise error if error.setting == "--config" else ConfigError(f"{file}: {error.setting}", error.reason) from None
    return parse(
        arguments,
        prog=f"triptych train {recipe}",
        description=find_recipe(recipe).description,
        options=TrainOptions(),
        settings=base,
    )


def _value_of(flag: str, arguments: Sequence[str]) -> str | None:
    """The value that a flag is given; the last one, where there are several, as tyro has it."""
    value = None
    for position, argument in enumerate(arguments):
        if argument == flag:
            value = next(iter(arguments[position + 1 :]), None)
        elif argument.startswith(f"{flag}="):
            value = argument.partition("=")[2]
    return value
