"""How many parameters a recipe's description says that its networks have, against the networks."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.small_data import full_spec
from triptych.recipes.catalogue import load_recipe, recipes
from triptych.runs.stored import outline

NOTED = json.loads((Path(__file__).parents[1] / "contract/state_names.json").read_text())
"""Counts of whole models, which the contract tests hold against the models."""
_SAID = re.compile(r"([\d.,]+)M(?: \+ ([\d.]+)M)? parameters")
COUNTED = {name: found.groups() for name, recipe in recipes().items() if (found := _SAID.search(recipe.description))}


def written(count: int, *, like: str) -> str:
    """A count in millions with as many digits as the other."""
    return f"{count / 1e6:,.{len(like.partition('.')[2])}f}"


@pytest.mark.parametrize("name", COUNTED)
def test_the_count_of_the_description_is_that_of_the_networks(name: str) -> None:
    """Of the whole model; of a GAN of the network that draws, and behind a + of that which judges."""
    first, second = COUNTED[name]
    if second is None and written(NOTED[name]["parameters"], like=first) == first:
        return
    config = load_recipe(name)
    spec = full_spec(config.data, few_shot_classes=305 if "mammals" in name else 149)
    if name == "glow-imagenet32-cond":
        model = outline(config, replace(spec, num_classes=1_000, class_names=None))
        assert written(sum(parameter.numel() for parameter in model.parameters()), like=first) == first
        return
    draws, judges, *_ = (sum(parameter.numel() for parameter in network.parameters()) for network in outline(config, spec).children())
    assert written(draws, like=first) == first
    assert second is None or written(judges, like=second) == second


def test_most_descriptions_say_it() -> None:
    assert len(COUNTED) > 100
