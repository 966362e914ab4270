"""`triptych recipes`: what there is to train."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

from triptych.cli.output import show_page
from triptych.core.errors import ConfigError
from triptych.recipes.catalogue import find_recipe, recipes

USAGE = """usage: triptych recipes [RECIPE]

Lists the recipes, or describes one.

example: triptych recipes adm-digits"""


def main(arguments: Sequence[str]) -> int:
    """Prints the table of recipes, or the description of the one that is named."""
    if any(argument in ("-h", "--help") for argument in arguments):
        show_page(USAGE)
        return 0
    if len(arguments) > 1:
        raise ConfigError("", f"got {' '.join(arguments)!r}, expected the name of one recipe or nothing")
    show_page(describe(arguments[0]) if arguments else table(columns=shutil.get_terminal_size().columns))
    return 0


def table(*, columns: int) -> str:
    """All recipes, family by family, their summaries wrapped to `columns`."""
    catalogue = recipes()
    width = max((len(name) for name in catalogue), default=0) + 4
    lines = []
    for heading in dict.fromkeys(recipe.heading for recipe in catalogue.values()):
        lines.append(heading)
        for recipe in catalogue.values():
            if recipe.heading == heading:
                start = f"  {recipe.name}".ljust(width)
                wrapped = textwrap.wrap(
                    recipe.summary, max(columns, width + 30), initial_indent=start, subsequent_indent=" " * width, break_on_hyphens=False
                )
                lines += wrapped or [start.rstrip()]
        lines.append("")
    lines += textwrap.wrap("Parameters of a GAN are those of its generator; behind a + stand those of its discriminator.", columns)
    lines += ["triptych recipes RECIPE        describes one", "triptych train RECIPE --help   lists its settings"]
    return "\n".join(lines)


def describe(name: str) -> str:
    """What a recipe is, and how to train it."""
    recipe = find_recipe(name)
    return f"{recipe.name} ({recipe.heading})\n\n{recipe.description}\n\ntriptych train {recipe.name} --run runs/{recipe.name}"
