"""The data settings of a verb that looks at images without a run: those of a recipe, or the plain ones; flags as in `triptych train`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from triptych.cli.arguments import asks_for_help, flag_value, named_as_flags, require_argument
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.data.config import DataConfig

if TYPE_CHECKING:
    from triptych.recipes.config import RunConfig

C = TypeVar("C", bound=Config)


@config
class DataSettings(Config):
    """What opens the images."""

    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    "The images; see triptych train RECIPE --help."


def data_settings(
    arguments: Sequence[str], *, options: C, verb: str, description: str, usage: str, short: Mapping[str, str], whole: bool = False
) -> tuple[C, RunConfig | DataSettings]:
    """The options of the verb, and the settings with which the images at the path that is its first argument are opened.

    `short`: flags that stand for others. `whole`: all settings of a recipe are taken, and its own images may be meant by no path. Raises
    ConfigError for what cannot be used.
    """
    from triptych.cli.settings import parse

    helped = asks_for_help(arguments)
    named = bool(arguments) and not arguments[0].startswith("-")
    recipe = flag_value("--recipe", arguments)
    if not helped and not named and not (whole and recipe is not None):
        require_argument(arguments, "images", usage=usage)
    words = lengthened(arguments[1:] if named and not helped else arguments, short)
    if flag_value("--data.path", words) is not None:
        raise ConfigError("--data.path", f"got one beside the images, which come first; usage: {usage}")
    base: RunConfig | DataSettings = _of_recipe(recipe, whole=whole)
    chosen, settings = parse(words, prog=f"{verb} IMAGES", description=description, options=options, settings=base)
    path = arguments[0] if named and not helped else settings.data.path
    return chosen, dataclasses.replace(settings, data=dataclasses.replace(settings.data, path=path))


SIZE = {"--size": "--image-size"}
"""The size of images may be called so too."""
DATA_SIZE = {"--size": "--data.image-size", "--image-size": "--data.image-size"}
"""And of verbs that have all settings of the data."""


def lengthened(words: Sequence[str], short: Mapping[str, str]) -> list[str]:
    """A command line with the flags that others stand for."""
    parts = (word.partition("=") for word in words)
    return [f"{short.get(name, name)}{equals}{value}" for name, equals, value in parts]


@contextmanager
def data_flags(options: Config) -> Iterator[None]:
    """Within it a ConfigError names the flags of the options, and of the settings of the images."""
    from triptych.cli.settings import flag_name

    try:
        with named_as_flags(options):
            yield
    except ConfigError as error:
        raise error.renamed(lambda name: flag_name(name) if name.startswith("data.") else name) from None


def _of_recipe(recipe: str | None, *, whole: bool) -> RunConfig | DataSettings:
    """The settings of a recipe, all or those of the data alone; the plain ones for None."""
    if recipe in (None, "None"):
        return DataSettings()
    from triptych.recipes.catalogue import find_recipe, load_recipe

    try:
        found = load_recipe(find_recipe(recipe).name)
    except ConfigError as error:
        raise ConfigError("--recipe", error.reason) from None
    return found if whole else DataSettings(data=found.data)


@config
class FolderOptions(Config):
    """Options of a verb that reads a folder and writes another."""

    out: str | None = None
    "Required: the folder to write."


F = TypeVar("F", bound=FolderOptions)


def from_folder(arguments: Sequence[str], *, options: F, prog: str, description: str, usage: str) -> tuple[str, F]:
    """The folder that a verb reads, its first argument, and its options; ConfigError where there is none, or no folder to write."""
    from triptych.cli.settings import parse

    helped = asks_for_help(arguments)
    if not helped:
        require_argument(arguments, "folder", usage=usage)
    rest = arguments if helped else arguments[1:]
    chosen, _ = parse(rest, prog=prog, description=description, options=options, settings=Config())
    if chosen.out is None:
        raise ConfigError("--out", f"missing: the folder to write; usage: {usage}")
    return arguments[0], chosen
