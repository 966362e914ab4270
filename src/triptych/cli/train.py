"""`triptych train`: a recipe (or a run there is), a settings file and flags make a configuration; the rest is `triptych.runs.train`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from triptych.cli.arguments import finished, flag_value, named_as_flags, next_command, require_images
from triptych.cli.output import show_page
from triptych.core.config import Config, config
from triptych.core.errors import STOPPED_CODE, ConfigError
from triptych.core.reading import user_path
from triptych.engine.run_directory import RunDirectory
from triptych.recipes.catalogue import find_recipe, load_recipe, recipes

if TYPE_CHECKING:
    from triptych.recipes.config import RunConfig

Options = TypeVar("Options", bound="TrainOptions")

USAGE = """usage: triptych train RECIPE [--run DIR] [--config FILE] [--init-from RUN] [--device DEVICE] [settings]
       triptych train RUN [--config FILE] [--device DEVICE] [settings]
       triptych train --config FILE [settings]

Trains a recipe. The same command with the same run directory goes on where it stopped. A run directory in the place of the recipe
goes on too, with the run's own settings: so an imported run is trained, which has no recipe. A file of settings that names its
recipe, as those of triptych init do, needs none before it.

  triptych recipes                list the recipes
  triptych train RECIPE --help    list every setting of a recipe, with what it does and its value

example: triptych train adm-digits --run runs/digits --train.batch-size 32"""


@config
class TrainOptions(Config):
    """Where the run is and where it starts from."""

    run: str | None = None
    "Directory of the run; one that exists is continued. None: runs/RECIPE, or the run that was named in the recipe's place."
    config: str | None = None
    "TOML or JSON file of settings by the names below, perhaps with recipe and run; it goes over the recipe, flags over both. None: none."
    init_from: str | None = None
    "Start from the weights of this run, or of its RUN/checkpoints/N; None: from fresh ones."
    device: str | None = None
    "cpu, cuda or cuda:N; None: a CUDA device where there is one."


def main(arguments: Sequence[str]) -> int:
    """Trains; the log says where the run is, and the last line how to draw from it."""
    if not arguments:
        raise ConfigError("", "no recipe given; usage: triptych train RECIPE [--run DIR] [settings] (triptych recipes lists them)")
    if arguments[0] in ("-h", "--help"):
        show_page(USAGE)
        return 0
    stopped_code = os.environ.get(STOPPED_CODE)
    if stopped_code is not None and not (stopped_code.isdecimal() and int(stopped_code) < 256):
        raise ConfigError(STOPPED_CODE, f"got {stopped_code!r}, expected an exit code from 0 to 255 in the environment")
    require_images(flag_value("--data.path", arguments), note=" (data.path)")
    base, settings = base_and_settings(arguments, usage="triptych train RECIPE [--run DIR] [settings]")
    options, run_config = configure(base, settings)
    directory = place_of(base, options)

    from triptych import runs

    with named_as_flags(options, run_config):
        run = runs.train(
            run_config,
            directory,
            recipe=base.recipe,
            init_from=options.init_from,
            device=options.device,
        )
    line = next_command(run, trained=True)
    page = run.directory / "report.html"
    lines = [f"report: {page} (open it in a browser)"] if run_config.log.report and page.exists() else []
    code = finished(*([] if line is None else [line]), *lines)
    return int(stopped_code) if stopped_code is not None and run.stopped else code


@dataclass(frozen=True)
class Base:
    """What the settings file and the flags are laid over."""

    config: RunConfig
    recipe: str | None
    "None: the configuration is that of a run."
    directory: Path
    "Where the run is, unless --run says otherwise."

    @property
    def description(self) -> str:
        """For the page of help."""
        return f"Goes on with the run in {self.directory}." if self.recipe is None else find_recipe(self.recipe).description


def base_of(name: str) -> Base:
    """The recipe of that name, or the run in that directory.

    Raises ConfigError where it is neither, with the nearest recipe, and CheckpointError where a path names no run.
    """
    if name not in recipes() and (Path(name) / "config.json").is_file():
        from triptych.runs import open_run

        return Base(open_run(name).config, None, Path(name))
    if name not in recipes() and Path(name).is_dir():
        raise ConfigError("", f"{name} is neither a recipe nor a run: the folder has no config.json (triptych recipes lists the recipes)")
    if name not in recipes() and len(Path(name).parts) > 1:
        RunDirectory(user_path(name)).read_config()  # which says that no run is there, and the nearest
    recipe = find_recipe(name).name
    return Base(load_recipe(recipe), recipe, Path("runs") / recipe)


def base_and_settings(arguments: Sequence[str], *, usage: str) -> tuple[Base, Sequence[str]]:
    """The recipe or run that the arguments begin with, or else the recipe that the file of --config names; and the other arguments."""
    if arguments[0] and not arguments[0].startswith("-"):
        return base_of(arguments[0]), arguments[1:]
    file = flag_value("--config", arguments)
    recipe = None if file is None else head_of(file).get("recipe")
    if file is not None and recipe is None:
        raise ConfigError("--config", f'{file} names no recipe: give one before it, or write recipe = "..." at its top')
    if recipe is None:
        raise ConfigError("", f"got {arguments[0]!r} where the recipe is expected; usage: {usage}")
    return base_of(recipe), arguments


def place_of(base: Base, options: TrainOptions) -> Path:
    """The run directory. Raises ConfigError for another one than that of the run which stands in the recipe's place."""
    directory = Path(options.run) if options.run else base.directory
    if base.recipe is None and directory != base.directory:
        other = str(base.directory)
        raise ConfigError("--run", f"got {str(directory)!r} beside the run {other!r}; leave it out, or give --init-from to a recipe")
    return directory


HEAD = ("recipe", "run")
"""What a file of settings may say beside settings."""


def head_of(file: str) -> dict[str, str]:
    """The recipe and the run that a file of settings names. Raises ConfigError for anything but text, and for none."""
    from triptych.cli.settings import read_config_file

    values: Any = read_config_file(Path(file))
    head = {name: values[name] for name in HEAD if name in values} if isinstance(values, dict) else {}
    for name, value in head.items():
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{file}: {name}", f"got {value!r}, expected text")
    return head


def configure(base: Base, arguments: Sequence[str], *, options: Options | None = None, verb: str = "train") -> tuple[Options, RunConfig]:
    """The options and the configuration that the base, the settings file and the flags make. `options`: of another verb."""
    from triptych.cli.settings import parse, read_config_file

    settings, given = base.config, TrainOptions() if options is None else options
    file = flag_value("--config", arguments)
    if file is not None:
        try:
            values, head = read_config_file(Path(file)), head_of(file)
            if base.recipe is not None and head.get("recipe", base.recipe) != base.recipe:
                raise ConfigError("recipe", f"got {head['recipe']!r}, but the command says {base.recipe!r}; leave one of them out")
            if base.recipe is not None and "run" in head:
                given = dataclasses.replace(given, run=head["run"])
            settings = settings.updated({name: value for name, value in values.items() if name not in HEAD} if head else values)
        except ConfigError as error:
            raise error if error.setting.startswith(("--config", file)) else ConfigError(f"{file}: {error.setting}", error.reason) from None
    return parse(  # type: ignore[return-value]
        arguments,
        prog=f"triptych {verb} {base.recipe or base.directory}",
        description=base.description,
        options=given,
        settings=settings,
    )
