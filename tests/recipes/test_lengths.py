"""What the intervals and lengths of every recipe must be to one another."""

from __future__ import annotations

import math

import pytest

from triptych.recipes.catalogue import load_recipe, recipes

SHOWN = {"sample", "upsample", "translate"}
"""What those that draw grids can do."""

RARE = {"vid2vid-dancing": {"sample_every"}}
"""Recipes that do something only once in a run, as their original does."""


@pytest.mark.parametrize("name", recipes())
def test_a_run_is_looked_at_before_its_end(name: str) -> None:
    """It has checkpoints, grids and validations on the way, and evaluations where there is a checkpoint to be chosen."""
    recipe = load_recipe(name)
    train = recipe.train
    shown = {"checkpoint_every": True, "sample_every": bool(recipe.model.verbs() & SHOWN), "validate_every": train.best_by == "validation"}
    for setting in {setting for setting, counts in shown.items() if counts} - RARE.get(name, set()):
        assert getattr(train, setting) * 2 <= train.total_images, setting
    assert train.evaluate_every is None or train.evaluate_every % (train.checkpoint_every or 1) == 0


@pytest.mark.parametrize("name", recipes())
def test_warm_up_and_averages_are_short_beside_the_run(name: str) -> None:
    """The rate has risen after a tenth of the run, and an average has forgotten half of what it knew a tenth of the run before its end."""
    recipe = load_recipe(name)
    train, images = recipe.train, recipe.train.batch_size * (2 if getattr(recipe.model, "fresh_images", False) else 1)
    assert recipe.optim.warmup(train.total_images) <= 0.1 * train.total_images
    for average in train.all_averages:
        rate = average.rate_at(train.total_images - images, images=images)
        assert rate == 0 or average.length is not None or images * math.log(0.5) / math.log(rate) <= 0.1 * train.total_images + images
    assert recipe.optim.decay_start < train.total_images
