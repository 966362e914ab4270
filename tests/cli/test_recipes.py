"""The list of recipes, read without importing them."""

from __future__ import annotations

import dataclasses
import importlib
import inspect

import pytest

from triptych.cli.main import main
from triptych.cli.recipes import describe, table
from triptych.core.errors import ConfigError
from triptych.recipes.catalogue import FAMILIES, Recipe, find_recipe, load_recipe, read_recipes, recipes
from triptych.recipes.config import RunConfig

SOURCE = '''
from elsewhere import imported

def adm_toy() -> RunConfig:
    """A toy.

    More about it.
    """
    return imported(1)

def bare() -> "RunConfig":
    return None

def _hidden() -> RunConfig: ...
def helper(size: int) -> RunConfig: ...
def other() -> int: ...
'''


def test_recipes_are_the_public_functions_that_return_a_run_config() -> None:
    found = read_recipes(SOURCE, family="diffusion")
    assert found == [Recipe("adm-toy", "diffusion", "A toy.\n\nMore about it."), Recipe("bare", "diffusion", "")]
    assert found[0].summary == "A toy."


def test_every_recipe_can_be_loaded_and_is_described() -> None:
    assert recipes(), "there is no recipe"
    for name, recipe in recipes().items():
        assert recipe.summary.endswith("."), name
        config = load_recipe(name)
        assert isinstance(config, RunConfig), name
        assert RunConfig.from_dict(config.to_dict()) == config, name


def test_reading_the_source_finds_what_importing_finds() -> None:
    for family in FAMILIES:
        listed = {name.replace("-", "_") for name, recipe in recipes().items() if recipe.family == family}
        try:
            module = importlib.import_module(f"triptych.recipes.{family}")
        except ModuleNotFoundError:
            assert not listed
            continue
        defined = {
            name
            for name, function in inspect.getmembers(module, inspect.isfunction)
            if function.__module__ == module.__name__ and not name.startswith("_") and not inspect.signature(function).parameters
        }
        assert listed == defined


def test_an_unknown_recipe_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    expected = 'unknown recipe "adm-digit"; did you mean "adm-digits"? (triptych recipes lists them)'
    for lookup in (find_recipe, load_recipe, describe):
        with pytest.raises(ConfigError) as caught:
            lookup("adm-digit")
        assert str(caught.value) == expected
    assert main(["train", "adm-digit"]) == 2
    assert capsys.readouterr().err == f"triptych: error: {expected}\n"


def test_the_table_names_every_recipe_and_fits() -> None:
    shown = table(columns=80)
    for name, recipe in recipes().items():
        assert name in shown and recipe.summary.split()[0] in shown
    assert max(map(len, shown.splitlines())) <= max(80, max(map(len, recipes())) + 34)


def test_names_do_not_clash_between_families() -> None:
    names = [recipe.name for recipe in recipes().values()]
    assert len(names) == len(set(names)) and all(dataclasses.is_dataclass(recipe) for recipe in recipes().values())
