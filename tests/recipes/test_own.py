"""Recipes of our own, whose settings no paper has, against those that were tried: a constant that is changed by mistake is noticed.

`own.json` has what each recipe sets other than its configuration does by default. `python -m tests.recipes.test_own` writes it anew,
where a change is meant.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from triptych.core.config import Config
from triptych.recipes.catalogue import load_recipe, recipes

NOTED = Path(__file__).with_name("own.json")
_OWN = ("-digits", "-digits-uncond", "-digits-unet", "-mnist", "-camvid", "-omniglot", "-maps64", "-pans64", "-photos64", "-small")
OWN = [name for name in recipes() if name.endswith(_OWN)]


def chosen(config: Config) -> dict[str, Any]:
    """The settings whose values are not the default ones, those of parts as tables."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Config) and (own := {**_class(value, field.default), **chosen(value)}):
            found[field.name] = own
        elif not isinstance(value, Config) and value != field.default:
            found[field.name] = value
    return found


def _class(value: Config, default: Any) -> dict[str, str]:
    return {} if type(value) is type(default) else {"class": type(value).__name__}


def settings_of(name: str) -> dict[str, Any]:
    return json.loads(json.dumps(chosen(load_recipe(name)), default=lambda part: part.to_dict()))


def test_no_recipe_is_left_over() -> None:
    assert list(json.loads(NOTED.read_text())) == OWN


@pytest.mark.parametrize("name", OWN)
def test_settings_are_those_that_were_tried(name: str) -> None:
    assert settings_of(name) == json.loads(NOTED.read_text()).get(name), "is that meant? then run: python -m tests.recipes.test_own"


def lines() -> str:
    """The settings of all, a line for each part of a recipe."""
    every = []
    for name in OWN:
        parts = ",\n".join(f"  {json.dumps(part)}: {json.dumps(value)}" for part, value in settings_of(name).items())
        every.append(f" {json.dumps(name)}: {{\n{parts}\n }}")
    return "{\n" + ",\n".join(every) + "\n}\n"


if __name__ == "__main__":
    NOTED.write_text(lines())
