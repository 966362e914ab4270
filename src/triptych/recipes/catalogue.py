"""The names and descriptions of all recipes, read from their source without importing it (or PyTorch).

A recipe is a function without arguments at the top of a module of this folder that is annotated `-> RunConfig`; `adm_digits` is the
recipe "adm-digits", and its docstring is its description.
"""

from __future__ import annotations

import ast
import functools
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from triptych.core.errors import ConfigError, nearest

if TYPE_CHECKING:
    from triptych.recipes.config import RunConfig

HEADINGS = {
    "flows": "flows",
    "stylegan2": "GANs, from noise",
    "paired": "GANs, on pairs of images",
    "video": "GANs, on clips",
    "unpaired": "GANs, on two domains of images",
    "few_shot": "GANs, on few examples of many classes",
    "from_noise": "GANs, from noise",
    "diffusion": "diffusion",
    "dit": "diffusion, DiT",
    "flow_matching": "diffusion, flow matching",
    "edm": "diffusion, EDM",
    "edm2": "diffusion, EDM2",
    "classifiers": "diffusion, classifiers",
    "upsamplers": "diffusion, super-resolution",
    "autoencoders": "autoencoders",
}
"""What the recipes of a module are listed under, in this order; other modules follow, under their names."""


@dataclass(frozen=True)
class Recipe:
    """A recipe as it is listed."""

    name: str
    family: str
    "The module that it is in."
    description: str

    @property
    def summary(self) -> str:
        """The first line of its description."""
        return self.description.partition("\n")[0]

    @property
    def heading(self) -> str:
        """What it is listed under."""
        return HEADINGS.get(self.family, self.family.replace("_", " "))


@functools.cache
def recipes() -> dict[str, Recipe]:
    """Every recipe by name, family by family in the order of their source."""
    folder = Path(__file__).parent
    families = dict.fromkeys([*HEADINGS, *sorted(path.stem for path in folder.glob("*.py"))])
    sources = {family: (folder / f"{family}.py").read_text("utf-8") for family in families}
    return {recipe.name: recipe for family, source in sources.items() for recipe in read_recipes(source, family=family)}


def read_recipes(source: str, *, family: str) -> list[Recipe]:
    """The recipes that a module's source defines."""
    return [
        Recipe(name=node.name.replace("_", "-"), family=family, description=ast.get_docstring(node) or "")
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and _returns_run_config(node)
    ]


def find_recipe(name: str) -> Recipe:
    """The recipe of that name; raises ConfigError with the nearest one."""
    catalogue = recipes()
    if name not in catalogue:
        raise ConfigError("", f'unknown recipe "{name}"{nearest(name.lower(), catalogue)} (triptych recipes lists them)')
    return catalogue[name]


def load_recipe(name: str) -> RunConfig:
    """The configuration of a recipe; imports its family only. Raises ConfigError with the nearest name for an unknown one."""
    recipe = find_recipe(name)
    module = importlib.import_module(f"triptych.recipes.{recipe.family}")
    return getattr(module, recipe.name.replace("-", "_"))()


def _returns_run_config(node: ast.FunctionDef) -> bool:
    takes_nothing = not ast.unparse(node.args)
    return takes_nothing and node.returns is not None and ast.unparse(node.returns).strip("\"'") == "RunConfig"
