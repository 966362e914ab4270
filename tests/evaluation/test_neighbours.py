"""Metrics of neighbours: by hand, against loops over all pairs, and where distances tie."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from triptych.core.errors import ConfigError, DataError
from triptych.core.wording import counted
from triptych.evaluation import neighbours
from triptych.evaluation.neighbours import Cover
from triptych.evaluation.set_metric import SET_METRICS, FeatureSet, Figure, SetMetricConfig

GOLDEN = Path(__file__).parents[1] / "golden"
BALLS = ("precision", "recall", "prdc-precision", "prdc-recall", "density", "coverage")


def measured(name: str, made, reference, **settings) -> Figure:
    own, other = (FeatureSet({"features": np.asarray(rows)}) for rows in (made, reference))
    return SET_METRICS[name].measure(own, other, SetMetricConfig(**settings))


def by_loops(made: np.ndarray, reference: np.ndarray, *, k: int, prdc_k: int) -> dict[str, float]:
    """All figures by their definitions."""
    made, reference = made.astype(np.float64), reference.astype(np.float64)
    between = np.array([[np.square(x - y).sum() for y in reference] for x in made])
    own, other = (np.array([[np.square(x - y).sum() for y in rows] for x in rows]) for rows in (made, reference))

    def radius(distances: np.ndarray, number: int) -> np.ndarray:
        return np.sort(distances, axis=1)[:, number]  # the smallest is that of the image itself

    held, holds = between <= radius(other, k), between <= radius(own, k)[:, None]
    inside, around = between < radius(other, prdc_k), between < radius(own, prdc_k)[:, None]
    return {
        "precision": held.any(1).mean(),
        "recall": holds.any(0).mean(),
        "prdc-precision": inside.any(1).mean(),
        "prdc-recall": around.any(0).mean(),
        "density": inside.sum() / prdc_k / len(made),
        "coverage": (between.min(0) < radius(other, prdc_k)).mean(),
        "authenticity": (between.min(1) > radius(other, 1)[between.argmin(1)]).mean(),
    }


def two_sets(*, offset: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """float32, with exact copies and with one image many times."""
    rng = np.random.default_rng(3)
    reference = rng.standard_normal((70, 6)).astype(np.float32) + np.float32(offset)
    made = rng.standard_normal((55, 6)).astype(np.float32) * np.float32(0.9) + np.float32(offset)
    made[5:15] = reference[20:30]
    made[40:46] = made[40]
    reference[60:63] = reference[60]
    return made, reference


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_against_loops(offset) -> None:
    made, reference = two_sets(offset=offset)
    for name, expected in by_loops(made, reference, k=3, prdc_k=5).items():
        assert measured(name, made, reference).value == pytest.approx(expected, abs=1e-12), name


def test_the_size_of_the_strips_changes_nothing(monkeypatch) -> None:
    made, reference = two_sets()
    for name, value in (("_STRIP", 500), ("_COLUMNS", 9), ("_PAIRS", 4)):
        monkeypatch.setattr(neighbours, name, value)
    for name, expected in by_loops(made, reference, k=2, prdc_k=4).items():
        assert measured(name, made, reference, neighbours=2, prdc_neighbours=4).value == pytest.approx(expected, abs=1e-12), name


@pytest.mark.parametrize("strip", [1 << 24, 200])
def test_of_many_equal_images_few_are_looked_at(monkeypatch, strip) -> None:
    """Those of a model that collapsed are as near as one another, and millions of pairs would be computed anew."""
    rng, seen, exact = np.random.default_rng(6), list[int](), neighbours.Strip.exact
    made = np.repeat(rng.standard_normal((4, 3)), [40, 7, 2, 1], axis=0)[rng.permutation(50)].astype(np.float32)
    reference = np.concatenate((rng.standard_normal((20, 3)).astype(np.float32), made[:9]))
    monkeypatch.setattr(neighbours, "_STRIP", strip)
    monkeypatch.setattr(neighbours.Strip, "exact", lambda own, rows, columns: seen.append(len(rows)) or exact(own, rows, columns))
    for name, expected in by_loops(made, reference, k=3, prdc_k=5).items():
        assert measured(name, made, reference).value == pytest.approx(expected, abs=1e-12), name
    assert max(seen) < 50 * 15  # with all that are equal 1,650
    np.testing.assert_array_equal(
        measured("copies", made, reference).arrays["nearest"],
        [np.square(reference - row).sum(1).argmin() for row in made.astype(np.float64)],
    )


def test_equal_distances_are_equal_in_any_order() -> None:
    """Images whose neighbours' distances are those of others in exact arithmetic alone; a matrix product rounds them by their place."""
    rng = np.random.default_rng(4)
    reference = (rng.standard_normal((40, 300)) + 0.3).astype(np.float32)
    for _ in range(3):
        order = rng.permutation(40)
        given = reference[order]
        assert measured("density", given, reference, prdc_neighbours=1).value == 1.0  # each in its own sphere, and on those around it
        figure = measured("authenticity", given, reference)
        assert figure.value == 0.0
        copied = measured("copies", given, reference)
        np.testing.assert_array_equal(copied.arrays["nearest"], order)
        np.testing.assert_array_equal(copied.arrays["distance"], np.zeros(40))


def test_of_equally_near_images_the_first_is_the_nearest() -> None:
    """All of the reference are as far from one image, by differences that floats hold; about their mean they are rounded apart."""
    rng = np.random.default_rng(8)
    image, step = rng.integers(-4096, 4096, 300) / 1024, rng.integers(1, 512, 300) / 1024
    reference = image + step * rng.choice([-1, 1], (40, 300))
    found = measured("copies", image[None], reference)
    assert found.arrays["nearest"].tolist() == [0] and found.arrays["distance"][0] ** 2 == pytest.approx(np.square(step).sum(), rel=1e-14)


@pytest.mark.parametrize(
    ("made", "closed", "opened"),
    [([-1.0], 1.0, 0.0), ([-0.5], 1.0, 1.0), ([1.0], 1.0, 1.0), ([5.0], 1.0, 0.0), ([-1.25], 0.0, 0.0)],
)
def test_on_the_sphere_and_inside(made, closed, opened) -> None:
    """The nearest others of 0, 1 and 3 are 1, 1 and 2 away."""
    reference, settings = [[0.0], [1.0], [3.0]], {"neighbours": 1, "prdc_neighbours": 1}
    made = [made, [100.0]]
    assert measured("precision", made, reference, **settings).value == closed / 2
    assert measured("prdc-precision", made, reference, **settings).value == opened / 2
    assert measured("authenticity", made, reference, **settings).value == (2 - closed) / 2  # as near as the next one is no new image


def test_ties_by_the_originals() -> None:
    """guided-diffusion counts "as near as", prdc "nearer than": on a grid of integers the two differ by half."""
    recorded = json.loads((GOLDEN / "metrics.json").read_text())
    with np.load(GOLDEN / "metrics.npz") as arrays:
        made, reference = arrays["ties_sample"].astype(np.float32), arrays["ties_ref"].astype(np.float32)
    for name in BALLS:
        original = "dgm-eval" if name not in ("precision", "recall") else "guided-diffusion-float32"
        expected = recorded[f"{name.removeprefix('prdc-')}/{original}/ties,k=3"]
        assert measured(name, made, reference, prdc_neighbours=3).value == pytest.approx(expected, abs=1e-12), name


def test_a_figure_says_which_spheres() -> None:
    made, reference = two_sets()
    assert measured("recall", made, reference).details == {"k": 3, "ties": "counted"}
    assert measured("coverage", made, reference, prdc_neighbours=4).details == {"k": 4, "ties": "not counted"}


@pytest.mark.parametrize("name", ["precision", "density", "authenticity"])
def test_the_error_of_a_mean_over_made_images(name) -> None:
    """Without one image the mean over the others is known from the figures themselves."""
    made, reference = two_sets()
    without = np.array([measured(name, np.delete(made, i, 0), reference).value for i in range(len(made))])
    jackknife = (54 / 55 * np.square(without - without.mean()).sum()) ** 0.5
    assert measured(name, made, reference).error == pytest.approx(jackknife, rel=1e-9)


def test_the_error_of_coverage_is_that_of_leaving_out_each_image_in_turn() -> None:
    made, reference = two_sets()
    without = np.array([measured("coverage", np.delete(made, i, 0), reference).value for i in range(len(made))])
    jackknife = (54 / 55 * np.square(without - without.mean()).sum()) ** 0.5
    assert measured("coverage", made, reference).error == pytest.approx(jackknife, rel=1e-9)


def test_the_error_of_coverage_is_that_of_its_cover() -> None:
    """Where several images reach the same spheres, half of the jackknife's."""
    rng = np.random.default_rng(3)
    made, reference = rng.standard_normal((25, 2)), rng.standard_normal((100, 2))
    between, own = (np.square(rows[:, None] - reference).sum(2) for rows in (made, reference))
    cover = Cover(100)
    cover.add(between < np.sort(own, axis=1)[:, 5], 0)
    lost = cover.alone(25) / 100
    variance, jackknife = cover.variance(25), 24 / 25 * np.square(lost - lost.mean()).sum()
    assert 0 < variance < jackknife / 2
    assert measured("coverage", made, reference).error == pytest.approx(variance**0.5, rel=1e-9)


def test_the_error_of_recall_is_that_of_leaving_out_each_sphere_in_turn(monkeypatch) -> None:
    monkeypatch.setattr(neighbours, "_STRIP", 500)
    made, reference = two_sets()
    between = np.square(made[:, None].astype(np.float64) - reference).sum(2)
    own = np.square(made[:, None].astype(np.float64) - made).sum(2)
    holds = between <= np.sort(own, axis=1)[:, 3:4]
    without = np.array([np.delete(holds, i, 0).any(0).mean() for i in range(len(made))])
    jackknife = (54 / 55 * np.square(without - without.mean()).sum()) ** 0.5
    assert measured("recall", made, reference).error == pytest.approx(jackknife, rel=1e-9)


def test_the_error_of_recall_with_two_spheres() -> None:
    """Of 1 around 0 and 1: the second alone holds 1.8, a quarter of the reference; the first holds nothing alone."""
    figure = measured("recall", [[0.0], [1.0]], [[0.0], [0.5], [1.8], [5.0]], neighbours=1, prdc_neighbours=1)
    assert figure.value == 0.75 and figure.error == pytest.approx(0.125)


def test_copies() -> None:
    """Gaps 3, 3, 5, 7 between real images: 3 for two, 5 and 7 for the others."""
    reference = np.array([[0.0], [3.0], [10.0], [15.0], [22.0]])
    made = np.array([[0.5], [3.0], [-3.0], [12.5], [26.0], [18.5]])
    figure = measured("copies", made, reference, neighbours=1, prdc_neighbours=1, copy_share=0.4)
    assert figure.value == 4 / 6  # 0.5, 0, 3 and 2.5 away, against 4 and 3.5
    assert figure.details["limit"] == 3 and figure.details["expected"] == 0.4 and figure.details["smallest"] == 3
    np.testing.assert_array_equal(figure.arrays["nearest"], [0, 1, 0, 2, 4, 3])
    np.testing.assert_allclose(figure.arrays["distance"], [0.5, 0, 3, 2.5, 4, 3.5])
    assert [pair["made"] for pair in figure.details["pairs"]] == [1, 0, 3, 2, 5, 4]
    assert figure.details["pairs"][1] == {"made": 0, "reference": 0, "distance": 0.5}
    json.dumps(figure.details)


def test_new_images_are_copies_as_often_as_expected() -> None:
    rng = np.random.default_rng(5)
    made, reference = rng.standard_normal((900, 4)), rng.standard_normal((901, 4))
    figure = measured("copies", made, reference, copy_share=0.1)
    assert figure.details["expected"] == pytest.approx(0.1, abs=0.01) and abs(figure.value - 0.1) < 0.04
    assert measured("copies", np.concatenate((made[:450], reference[:450])), reference, copy_share=0.1).value > 0.5


def test_images_that_stand_twice_in_the_reference_do_not_hide_copies() -> None:
    rng = np.random.default_rng(5)
    reference = rng.standard_normal((300, 4))
    made = reference[:30] + 1e-3
    alone = measured("copies", made, reference)
    reference[-6:] = reference[-12:-6]  # 4 %
    figure = measured("copies", made, reference)
    assert figure.value == alone.value == 1 and figure.details["twice"] == 12 and figure.details["smallest"] == 0
    assert figure.details["limit"] == pytest.approx(alone.details["limit"], rel=0.5) and 0.01 <= figure.details["expected"] < 0.02
    everything = measured("copies", made, np.repeat(reference[:50], 2, axis=0))
    assert everything.value == 0 and everything.details["expected"] == 0


def test_the_comparison_is_made_once(monkeypatch) -> None:
    calls, original = list[int](), neighbours.Strip.smallest
    monkeypatch.setattr(neighbours.Strip, "smallest", lambda strip, k: calls.append(k) or original(strip, k))
    own, other = (FeatureSet({"features": rows}) for rows in two_sets())
    for name in (*BALLS, "authenticity", "copies"):
        SET_METRICS[name].measure(own, other, SetMetricConfig())
    assert sorted(calls) == [1, 5, 5]
    SET_METRICS["precision"].measure(own, other, SetMetricConfig(neighbours=7))
    assert len(calls) == 6


def test_what_cannot_be_compared() -> None:
    made, reference = two_sets()
    few = {"precision": (1, 4), "recall": (4, 4), "density": (1, 6), "coverage": (1, 6), "authenticity": (1, 2), "copies": (1, 2)}
    for name, (least, least_of_reference) in few.items():
        whole = measured(name, made[:least], reference).value
        assert whole == measured(name, made[:least], reference, prdc_neighbours=5).value
        measured(name, made, reference[:least_of_reference])
        wrong = least_of_reference - 1
        if name == "recall":
            with pytest.raises(DataError, match="^3 images, and each needs 3 others: give at least 4$"):
                measured(name, made[:3], reference)
        else:
            said = f"{counted(wrong, 'image')}, and each needs {counted(wrong, 'other')}"
            with pytest.raises(DataError, match=f"^{said}: give at least {wrong + 1}$"):
                measured(name, made, reference[:wrong])
    with pytest.raises(DataError, match="^5 features against 6 of the reference"):
        measured("precision", made[:, :5], reference)
    with pytest.raises(DataError, match='no "features" of each image of this set: give its images'):
        SET_METRICS["recall"].measure(FeatureSet({"features": made}), FeatureSet(), SetMetricConfig())
    for wrong in ({"neighbours": 0}, {"prdc_neighbours": 101}, {"copy_share": 1.0}, {"seed": -1}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            SetMetricConfig(**wrong)


@pytest.mark.parametrize(("draws", "reach"), [(20, 0.03), (40, 0.04), (200, 0.01)])
def test_the_variance_of_a_cover_is_that_over_other_sets(draws: int, reach: float) -> None:
    """Points on a circle that cover what lies within `reach`: spheres that do not move, and overlap."""
    rng, places, shares, variances = np.random.default_rng(0), np.arange(60) / 60, [], []
    for _ in range(1500):
        made = rng.uniform(size=(draws, 1))
        gaps = np.abs(made - places)
        covers = np.minimum(gaps, 1 - gaps) < reach
        cover = Cover(len(places))
        for start in range(0, draws, 5):
            cover.add(covers[start : start + 5], start)
        shares.append(cover.covered.mean())
        variances.append(cover.variance(draws))
    assert np.mean(variances) == pytest.approx(np.var(shares), rel=0.15)


def test_a_cover_in_strips_is_one_cover() -> None:
    covers = np.random.default_rng(0).uniform(size=(30, 200)) < 0.05
    covers[:, 180:] = np.arange(30)[:, None] < 12  # sets of so many images weigh nothing
    whole, strips = Cover(200), Cover(200)
    whole.add(covers, 0)
    for start in (0, 7, 21):
        strips.add(covers[start : {0: 7, 7: 21, 21: 30}[start]], start)
    assert whole.variance(30) == strips.variance(30) > 0
    assert np.array_equal(whole.alone(30), strips.alone(30))
    by_sets: dict[tuple[int, ...], int] = {}
    for column in covers.T:
        by_sets[tuple(np.flatnonzero(column))] = by_sets.get(tuple(np.flatnonzero(column)), 0) + 1
    tails = [sum(math.comb(8, j) for j in range(k, 9)) / 256 for k in range(31)]
    expected = sum((-1) ** (len(which) + 1) * tails[len(which)] * (count / 200) ** 2 for which, count in by_sets.items() if which)
    expected -= (sum(count for which, count in by_sets.items() if len(which) == 1) / 200) ** 2 / 30
    assert whole.variance(30) == pytest.approx(expected, rel=1e-12)


def test_all_or_nothing_covered_is_not_certain() -> None:
    near, far = (FeatureSet({"features": np.random.default_rng(0).normal(where, 1, (40, 3)).astype(np.float32)}) for where in (0, 1000))
    for name in ("coverage", "recall", "prdc-recall"):
        figure = SET_METRICS[name].measure(far, near, SetMetricConfig())
        assert figure.value == 0 and figure.error == pytest.approx((2 / 44 * 42 / 44 / 44) ** 0.5)


@pytest.mark.parametrize("count", [50, 2])
def test_a_share_of_none_or_all_is_not_certain(count: int) -> None:
    rows = np.random.default_rng(0).normal(size=(50, 4))
    far, near = FeatureSet({"features": rows[:count] + 1000}), FeatureSet({"features": rows[:count] + 1e-9})
    share = 2 / (count + 4)
    for made, value in ((far, 0.0), (near, 1.0)):
        for name in ("precision", "copies"):
            figure = SET_METRICS[name].measure(made, FeatureSet({"features": rows}), SetMetricConfig())
            assert figure.value == value and figure.error == pytest.approx((share * (1 - share) / (count + 4)) ** 0.5)
    nowhere = SET_METRICS["density"].measure(far, FeatureSet({"features": rows}), SetMetricConfig(prdc_neighbours=4))
    assert nowhere.value == 0 and nowhere.error == pytest.approx((share * (1 - share) / (count + 4)) ** 0.5 / 4)
    assert measured("density", rows[:1] + 1000, rows).error is None
