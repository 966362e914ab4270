"""The list of recipes, read without importing them."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
import shutil
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import triptych.recipes
from triptych.cli.main import main
from triptych.cli.recipes import describe, table
from triptych.core.errors import ConfigError
from triptych.recipes import catalogue
from triptych.recipes.catalogue import Recipe, find_recipe, load_recipe, read_recipes, recipes
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


def test_descriptions_call_recipes_by_the_names_that_commands_take() -> None:
    others = {name.replace("-", "_") for name in recipes() if "-" in name}
    for name, recipe in recipes().items():
        assert not others & set(re.findall(r"\w+", recipe.description)), name


def test_reading_the_source_finds_what_importing_finds() -> None:
    """In every module of the folder, so that a new one needs no registration."""
    for found in pkgutil.iter_modules(triptych.recipes.__path__):
        module = importlib.import_module(f"triptych.recipes.{found.name}")
        listed = {name.replace("-", "_") for name, recipe in recipes().items() if recipe.family == found.name}
        defined = {name for name, function in inspect.getmembers(module, inspect.isfunction) if is_recipe(module, function)}
        assert listed == {name for name in defined if not name.startswith("_")}


def is_recipe(module: ModuleType, function: FunctionType) -> bool:
    signature = inspect.signature(function)
    return function.__module__ == module.__name__ and not signature.parameters and signature.return_annotation == "RunConfig"


def test_recipes_of_a_new_module_are_found_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(Path(catalogue.__file__).parent, tmp_path / "recipes")
    (tmp_path / "recipes/energy_models.py").write_text(SOURCE)
    monkeypatch.setattr(catalogue, "__file__", str(tmp_path / "recipes/catalogue.py"))
    recipes.cache_clear()
    try:
        shown = table(columns=80).splitlines()
    finally:
        recipes.cache_clear()
    place = shown.index("energy models")
    assert shown.index("diffusion, super-resolution") < place and shown[place + 1].split() == ["adm-toy", "A", "toy."]


def test_an_unknown_recipe_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    expected = 'unknown recipe "adm-digit"; did you mean "adm-digits"? (triptych recipes lists them)'
    for lookup in (find_recipe, load_recipe, describe):
        with pytest.raises(ConfigError) as caught:
            lookup("adm-digit")
        assert str(caught.value) == expected
    assert main(["train", "adm-digit"]) == 2
    assert capsys.readouterr().err == f"triptych: error: {expected}\n"
    with pytest.raises(ConfigError, match='"ADM-Digits"; did you mean "adm-digits"?'):
        find_recipe("ADM-Digits")


def test_the_verb_prints_the_table_or_one_recipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    for words, page in ([], table(columns=90)), (["adm-digits"], describe("adm-digits")):
        assert main(["recipes", *words]) == 0 and capsys.readouterr().out == f"{page}\n"
    assert main(["recipes", "adm-digits", "edm-digits"]) == 2
    assert "got 'adm-digits edm-digits', expected the name of one recipe or nothing" in capsys.readouterr().err


def test_the_table_names_every_recipe_and_fits() -> None:
    narrow, shown = table(columns=20), table(columns=80)
    for name, recipe in recipes().items():
        assert name in shown and recipe.summary.split()[0] in shown
        assert recipe.summary.split()[0] in narrow, "whole words, whatever the terminal"
    assert max(map(len, shown.splitlines())) <= max(80, max(map(len, recipes())) + 34)


def test_names_do_not_clash_between_families() -> None:
    names = [recipe.name for recipe in recipes().values()]
    assert len(names) == len(set(names)) and all(dataclasses.is_dataclass(recipe) for recipe in recipes().values())
