"""What the log says when samples become alike, and when it says nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from triptych.cli.settings import flags_of, parse
from triptych.cli.train import TrainOptions
from triptych.gans.penalties import PenaltyConfig
from triptych.recipes.catalogue import load_recipe, recipes
from triptych.report.happenings import Happenings
from triptych.runs import collapse
from triptych.runs.collapse import collapse_figures

APART, CLOSE, EQUAL = {"near_equal": 0.0, "spread": 0.9}, {"near_equal": 0.0, "spread": 0.3}, {"near_equal": 0.4, "spread": 0.9}
FROM_NOISE = [name for name in recipes() if name.startswith(("r3gan", "stylegan2"))]


def collapse_news(
    now: dict[str, float], before: Sequence[dict[str, float]], *, recipe: str = "adm-digits", usual: float = 0.0
) -> str | None:
    return collapse.collapse_news(now, before, config=load_recipe(recipe), usual=usual)


@pytest.mark.parametrize("name", FROM_NOISE)
def test_the_flags_of_the_advice_are_those_of_the_recipe(name: str) -> None:
    """They lower the learning rate of the recipe and make each of its penalties four times as strong."""
    recipe = load_recipe(name)
    line = collapse_news(CLOSE, [APART], recipe=name)
    assert line is not None
    named = set(re.findall(r"--(?:optim|model|train|data)[^ ()]+", line))
    assert "--optim.learning-rate" in named and named <= {flag.name for flag in flags_of(recipe)}
    (words,) = re.findall(r"or a stronger penalty \((.*)\)$", line)
    _, changed = parse(words.split(), prog="triptych train", description="", options=TrainOptions(), settings=recipe)
    progressive = hasattr(recipe.model.penalty.r1_gamma, "end")
    assert len(words.split()) == (8 if progressive else 2)
    for side in ("r1_gamma", "r2_gamma"):
        before, now = (getattr(config.model.penalty, side) for config in (recipe, changed))
        pairs = [(before.start, now.start), (before.end, now.end)] if progressive else [(before, now)]
        assert all(after == pytest.approx(4 * value, rel=1e-4) for value, after in pairs)


def test_models_without_a_penalty_are_told_of_none() -> None:
    recipe = load_recipe("stylegan2-digits")
    without = replace(recipe, model=replace(recipe.model, penalty=PenaltyConfig()))
    for config in (load_recipe("adm-digits"), without):
        line = collapse.collapse_news(CLOSE, [APART], config=config)
        assert line is not None and line.endswith("with a lower --optim.learning-rate")


def warned(*found: dict[str, float], usual: float = 0.0) -> list[bool]:
    lines = [collapse_news(now, found[:k], usual=usual) or "" for k, now in enumerate(found)]
    return [line.startswith("warning: ") for line in lines]


def test_once_until_it_is_over():
    found = [APART, CLOSE, CLOSE, EQUAL, APART, APART, EQUAL, EQUAL]
    assert warned(*found) == [False, True, False, False, False, False, True, False]
    again = [collapse_news(now, found[:k]) == "samples differ from one another again" for k, now in enumerate(found)]
    assert again == [False, False, False, False, True, False, False, False]


def test_what_has_not_learned_yet_draws_alike_images_too():
    assert [collapse_news(now, [CLOSE, EQUAL][:k]) for k, now in enumerate([CLOSE, EQUAL, APART])] == [None] * 3
    assert warned(EQUAL, CLOSE, CLOSE, CLOSE) == [False, False, True, False]


def test_what_is_said():
    line = collapse_news(CLOSE | {"recall": 0.0123}, [APART])
    assert line is not None and "\n" not in line
    assert line.startswith(
        "warning: samples have become alike: they are 0.3 times as far from one another as real images are from one another, "
    )
    assert "recall 0.0123; look at the grids" in line and "levels" not in line and "--init-from" in line
    line = collapse_news({"near_equal": 0.0316}, [{"near_equal": 0.0}])
    assert line is not None and "alike: 3.16 % of their pairs differ by less than 2 of 255 levels; " in line
    line = collapse_news(CLOSE, [CLOSE, CLOSE])
    assert line is not None and line.startswith("warning: samples are still alike: ")


def test_real_images_that_are_there_twice_are_no_collapse():
    share = {"near_equal": 0.03}
    assert warned({"near_equal": 0.0}, share) == [False, True]
    assert warned({"near_equal": 0.0}, share, usual=0.01) == [False, False]
    assert warned({"near_equal": 0.0}, {"near_equal": 0.031}, usual=0.01) == [False, True]


def test_the_report_shows_it_until_it_is_over(tmp_path):
    log, happenings = tmp_path / "log.txt", Happenings(tmp_path / "log.txt")
    for now, before, shown in ((APART, [], False), (CLOSE, [APART], True), (CLOSE, [APART, CLOSE], True), (APART, [APART, CLOSE], False)):
        with log.open("a") as file:
            file.write(f"2026-01-01 00:00:00 {collapse_news(now, before) or 'another line'}\n")
        happenings.update()
        assert (happenings.collapse is not None) == shown
        if happenings.collapse is not None:
            assert happenings.collapse.startswith("samples have become alike: they are 0.3 times ")


def test_thresholds_and_figures_of_earlier_versions():
    assert warned(APART, {"near_equal": 0.01, "spread": 0.5}) == [False, False]
    assert warned(APART, {"near_equal": 0.01, "spread": 0.499}) == [False, True]
    assert warned(APART, {"near_equal": 0.0101, "spread": 0.5}) == [False, True]
    assert warned({"near_equal": 0.0}, CLOSE) == [False, True]


def test_figures():
    images = np.random.default_rng(0).integers(0, 256, (20, 4, 4, 1)).astype(np.uint8)
    assert collapse_figures(images, None) == {"near_equal": 0.0}
    assert collapse_figures(images, images) == {"near_equal": 0.0, "spread": 1.0}
    assert collapse_figures(images[:1].repeat(9, axis=0), images) == {"near_equal": 1.0, "spread": 0.0}
