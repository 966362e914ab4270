"""The kernel distance: against loops over all pairs, and what its error is."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from triptych.core.errors import ConfigError, DataError
from triptych.evaluation.kernel_distance import subset_distance, subsets
from triptych.evaluation.set_metric import SET_METRICS, FeatureSet, Figure, SetMetricConfig


def measured(made: np.ndarray, reference: np.ndarray, **settings) -> Figure:
    return SET_METRICS["kid"].measure(FeatureSet({"features": made}), FeatureSet({"features": reference}), SetMetricConfig(**settings))


def draws(count: int, *, seed: int, shift: float = 0.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((count, 3)) + shift).astype(np.float32)


def k(a: np.ndarray, b: np.ndarray) -> float:
    return (float(np.dot(a.astype(np.float64), b)) / len(a) + 1) ** 3


def by_loops(x: np.ndarray, y: np.ndarray) -> float:
    within = [np.mean([k(a, b) for a, b in permutations(rows, 2)]) for rows in (x, y)]
    return within[0] + within[1] - 2 * np.mean([k(a, b) for a in x for b in y])


@pytest.mark.parametrize(("made", "reference"), [(7, 9), (2, 3), (4, 4)])
def test_against_loops(made, reference) -> None:
    x, y = draws(made, seed=1, shift=0.5), draws(reference, seed=2)
    assert subset_distance(x.astype(np.float64), y.astype(np.float64)).value == pytest.approx(by_loops(x, y), rel=1e-12)


def test_it_is_the_mean_over_the_subsets() -> None:
    made, reference = draws(50, seed=1, shift=0.3), draws(70, seed=2)
    figure = measured(made, reference, kid_subsets=8, kid_subset_size=12, seed=3)
    each = [
        by_loops(made[own], reference[other])
        for own, other in zip(subsets(50, 12, 8, seed=3, side=0), subsets(70, 12, 8, seed=3, side=1), strict=True)
    ]
    assert figure.value == pytest.approx(np.mean(each), rel=1e-9)
    assert figure.details == {"subsets": 8, "subset_size": 12, "disjoint": 4, "subset_std": pytest.approx(np.std(each))}
    assert measured(made, reference, kid_subsets=8, kid_subset_size=12, seed=4).value != figure.value


def test_without_settings_it_is_that_of_the_published_figures() -> None:
    """100 subsets of 1000 images, as docs/methods/evaluation.md has it."""
    settings = SetMetricConfig()
    assert (settings.kid_subsets, settings.kid_subset_size) == (100, 1000)


def test_subsets_are_disjoint_as_long_as_there_are_images() -> None:
    found = subsets(100, 16, 13, seed=0, side=0)
    assert [len(subset) for subset in found] == [16] * 13
    for round_of in (found[:6], found[6:12]):
        assert len(np.unique(np.concatenate(round_of))) == 96
    assert set(np.concatenate(found[:6])) != set(np.concatenate(found[6:12]))
    assert not np.array_equal(found[0], subsets(100, 16, 1, seed=0, side=1)[0])  # images of the same number may belong together
    assert not np.array_equal(found[0], subsets(100, 16, 1, seed=1, side=0)[0])
    for count in (111, 112, 113):
        found = subsets(count, 16, 14, seed=0, side=0)
        assert [len(subset) for subset in found] == [16] * 14 and len(np.unique(found[: count // 16])) == count // 16 * 16


@pytest.mark.parametrize(
    ("count", "shift", "number", "size"),
    [(400, 0.3, 4, 100), (400, 0.0, 4, 100), (400, 0.0, 24, 100), (150, 0.3, 10, 120), (1000, 0.3, 2, 100)],
)
def test_the_error_is_the_spread_over_other_draws(count, shift, number, size) -> None:
    """Where all images are used once or several times, nearly all are in each subset, or only some are used."""
    reference = draws(2000, seed=9)
    found = [
        measured(draws(count, seed=100 + draw, shift=shift), reference, kid_subsets=number, kid_subset_size=size, seed=draw)
        for draw in range(60)
    ]
    spread = np.std([figure.value for figure in found], ddof=1)
    errors = [figure.error for figure in found if figure.error is not None]
    assert 0.7 < np.mean(errors) / spread < 1.5  # the spread of 60 draws is known to 10 %


@pytest.mark.parametrize("count", [4, 7])
def test_what_an_image_adds_by_loops(count) -> None:
    """By what every second other image says of it, and by what the rest do: what both say is its own."""
    made, reference = draws(count, seed=1, shift=0.3).astype(np.float64), draws(count, seed=2).astype(np.float64)

    def says(i: int, half: int) -> float:
        own = [k(made[i], made[j]) for j in range(half, count, 2) if j != i]
        return 2 * float(np.mean(own) - np.mean([k(made[i], reference[j]) for j in range(half, count, 2)]))

    halves = np.array([[says(i, half) for i in range(count)] for half in (0, 1)])
    alone = max(0.0, np.cov(halves)[0, 1])
    found = subset_distance(made, reference).made
    assert found.own == pytest.approx(alone, rel=1e-9)
    assert found.shared == pytest.approx(max(0.0, np.var(halves.mean(0), ddof=1) - alone), rel=1e-9)
    assert found.own + found.shared > 0


def test_the_error_of_three_images_by_loops() -> None:
    """Too few for halves: all that an image says counts as its own."""
    made, reference = draws(3, seed=1, shift=0.3), draws(3, seed=2)
    says = [2 * (np.mean([k(x, made[j]) for j in range(3) if j != i]) - np.mean([k(x, y) for y in reference])) for i, x in enumerate(made)]
    assert measured(made, reference).error == pytest.approx((np.var(says, ddof=1) / 3) ** 0.5, rel=1e-9)


def test_choosing_subsets_of_the_reference_is_part_of_the_error() -> None:
    made = draws(100, seed=1)
    large, exact = (measured(made, draws(count, seed=2, shift=1.0), kid_subsets=1, kid_subset_size=100).error for count in (5000, 100))
    assert large is not None and exact is not None and large > 2 * exact


def test_small_sets() -> None:
    made, reference = draws(40, seed=1), draws(30, seed=2)
    assert measured(made, reference).details["subset_size"] == 30
    assert measured(made, draws(40, seed=2), kid_subset_size=40).details["subsets"] == 1  # there is but one
    assert measured(made[:2], reference, kid_subsets=2).error is not None
    with pytest.raises(DataError, match="at least 2 images of each set, and there are 1 and 30$"):
        measured(made[:1], reference)
    with pytest.raises(DataError, match="^3 features against 2 of the reference"):
        measured(made, reference[:, :2])
    for wrong in ({"kid_subsets": 0}, {"kid_subset_size": 1}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            SetMetricConfig(**wrong)
