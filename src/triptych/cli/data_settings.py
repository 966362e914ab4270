"""The data settings of a verb that looks at images without a run: those of a recipe, or the plain ones; flags as in `triptych train`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeVar

from triptych.cli.arguments import asks_for_help, flag_value
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.data.config import DataConfig

C = TypeVar("C", bound=Config)


@config
class DataSettings(Config):
    """What opens the images."""

    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    "The images; see triptych train RECIPE --help."


def data_settings(
    arguments: Sequence[str], *, options: C, verb: str, description: str, usage: str, short: Mapping[str, str]
) -> tuple[C, DataConfig]:
    """The options of the verb, and the settings of the images at the path that is its first argument.

    `short`: flags that stand for others. Raises ConfigError for what cannot be used.
    """
    from triptych.cli.settings import parse

    helped = asks_for_help(arguments)
    if not helped and (not arguments or arguments[0].startswith("-")):
        problem = f"got {arguments[0]!r} where the images are expected" if arguments else "no images given"
        raise ConfigError("", f"{problem}; usage: {usage}")
    words = list(arguments if helped else arguments[1:])
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        words[place] = f"{short.get(name, name)}{equals}{value}"
    if flag_value("--data.path", words) is not None:
        raise ConfigError("--data.path", f"got one beside the images, which come first; usage: {usage}")
    recipe = flag_value("--recipe", words)
    chosen, settings = parse(
        words, prog=f"{verb} IMAGES", description=description, options=options, settings=DataSettings(data=_data_of(recipe))
    )
    return chosen, dataclasses.replace(settings.data, path=arguments[0])


def _data_of(recipe: str | None) -> DataConfig:
    """The data settings of a recipe; the plain ones for None."""
    if recipe in (None, "None"):
        return DataConfig()
    from triptych.recipes.catalogue import find_recipe, load_recipe

    try:
        return load_recipe(find_recipe(recipe).name).data
    except ConfigError as error:
        raise ConfigError("--recipe", error.reason) from None
