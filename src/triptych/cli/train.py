"""`triptych train`: a recipe (or a run there is), a settings file and flags make a configuration; the rest is `triptych.runs.train`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from triptych.cli.arguments import finished, flag_value, next_command, require_images
from triptych.cli.output import show_page
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.recipes.catalogue import find_recipe, load_recipe, recipes

if TYPE_CHECKING:
    from triptych.recipes.config import RunConfig

USAGE = """usage: triptych train RECIPE [--run DIR] [--config FILE] [--init-from RUN] [--device DEVICE] [settings]
       triptych train RUN [--config FILE] [--device DEVICE] [settings]

Trains a recipe. The same command on the same run directory goes on where it stopped; so does the run directory in the recipe's
place, with the run's own settings (an imported run, for one, which has no recipe's command).

  triptych recipes                list the recipes
  triptych train RECIPE --help    list every setting of a recipe, with what it does and its value

example: triptych train adm-digits --run runs/digits --train.batch-size 64"""


@config
class TrainOptions(Config):
    """Where the run is and where it starts from."""

    run: str | None = None
    "Directory of the run; one that exists is continued. None: runs/RECIPE, or the run that was named in the recipe's place."
    config: str | None = None
    "TOML or JSON file with settings by the names below, laid over the recipe; flags go over both."
    init_from: str | None = None
    "Start from the weights of this run, or of its RUN/checkpoints/N, instead of fresh ones."
    device: str | None = None
    "cpu, cuda or cuda:N; None: a CUDA device where there is one."


def main(arguments: Sequence[str]) -> int:
    """Trains; the log says where the run is, and the last line how to draw from it."""
    if not arguments:
        raise ConfigError("", "no recipe given; usage: triptych train RECIPE [--run DIR] [settings] (triptych recipes lists them)")
    if arguments[0] in ("-h", "--help"):
        show_page(USAGE)
        return 0
    if arguments[0].startswith("-"):
        raise ConfigError("", f"got {arguments[0]!r} where the recipe is expected; usage: triptych train RECIPE [--run DIR] [settings]")
    require_images(flag_value("--data.path", arguments), note=" (data.path)")
    base = base_of(arguments[0])
    options, run_config = configure(base, arguments[1:])
    directory = Path(options.run) if options.run else base.directory
    if base.recipe is None and directory != base.directory:
        raise ConfigError("--run", f"got {str(directory)!r} beside the run {arguments[0]!r}; leave it out, or give --init-from to a recipe")

    from triptych import runs

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
    return finished(*([] if line is None else [line]), *lines)


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
    """The recipe of that name, or the run in that directory; raises ConfigError where it is neither, with the nearest recipe."""
    if name not in recipes() and (Path(name) / "config.json").is_file():
        from triptych.runs import open_run

        return Base(open_run(name).config, None, Path(name))
    if name not in recipes() and Path(name).is_dir():
        raise ConfigError("", f"{name} is neither a recipe nor a run: the folder has no config.json (triptych recipes lists the recipes)")
    recipe = find_recipe(name).name
    return Base(load_recipe(recipe), recipe, Path("runs") / recipe)


def configure(base: Base, arguments: Sequence[str]) -> tuple[TrainOptions, RunConfig]:
    """The options and the configuration that the base, the settings file and the flags make."""
    from triptych.cli.settings import parse, read_config_file

    settings = base.config
    file = flag_value("--config", arguments)
    if file is not None:
        try:
            settings = settings.updated(read_config_file(Path(file)))
        except ConfigError as error:
            raise error if error.setting == "--config" else ConfigError(f"{file}: {error.setting}", error.reason) from None
    return parse(
        arguments,
        prog=f"triptych train {base.recipe or base.directory}",
        description=base.description,
        options=TrainOptions(),
        settings=settings,
    )
