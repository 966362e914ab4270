"""The Frechet distance: closed forms, other ways to compute it, and what its error is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg

from triptych.core.errors import DataError
from triptych.evaluation import frechet, moments
from triptych.evaluation.frechet import extrapolated, frechet_distance, standard_error, symmetric_root
from triptych.evaluation.moments import Moments, MomentSums, moments_of
from triptych.evaluation.set_metric import SET_METRICS, FeatureSet, SetMetricConfig

GOLDEN = Path(__file__).parents[1] / "golden"


def features(count: int, dimensions: int, *, seed: int, scale: float = 1.0) -> np.ndarray:
    """Correlated ones, away from zero."""
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(0).standard_normal((dimensions, dimensions))
    return scale * (rng.standard_normal((count, dimensions)) @ mixing + 2) + 0.1 * rng.standard_normal((count, dimensions)) ** 3


def gaussian(mean: list[float], variances: list[float]) -> Moments:
    return Moments(10_000, np.array(mean), np.diag(np.array(variances)))


def measured(made: FeatureSet, reference: FeatureSet, **settings):
    return SET_METRICS["frechet"].measure(made, reference, SetMetricConfig(**settings))


def test_of_independent_features_it_is_that_of_their_standard_deviations() -> None:
    made, reference = gaussian([1.0, -2.0, 0.5], [4.0, 0.25, 9.0]), gaussian([0.0, 1.0, 0.5], [1.0, 1.0, 16.0])
    assert frechet_distance(made, reference).value == pytest.approx(1 + 9 + (2 - 1) ** 2 + (0.5 - 1) ** 2 + (3 - 4) ** 2, rel=1e-12)


def test_it_is_that_of_the_square_root_of_the_product() -> None:
    own, other = moments_of(features(90, 40, seed=1)), moments_of(features(80, 40, seed=2, scale=1.2))
    root = scipy.linalg.sqrtm(own.covariance @ other.covariance).real
    off = own.mean - other.mean
    expected = off @ off + np.trace(own.covariance + other.covariance - 2 * root)
    assert frechet_distance(own, other).value == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(own, own).value == pytest.approx(0, abs=1e-9 * np.trace(own.covariance))


def test_covariances_that_lack_directions() -> None:
    """The originals' values of 50 and 40 images with 64 features."""
    with np.load(GOLDEN / "metrics.npz") as arrays:
        made, reference = (FeatureSet({"features": arrays[name][:count]}) for name, count in (("sample", 50), ("ref", 40)))
    recorded = json.loads((GOLDEN / "metrics.json").read_text())
    figure = measured(made, reference)
    for original in ("pytorch-fid", "dgm-eval-efficient"):
        assert figure.value == pytest.approx(recorded[f"fid-singular/{original}"], rel=1e-6)
    assert figure.error is not None and 0 < figure.error < figure.value / 5


def test_no_distance_is_below_zero() -> None:
    """Of a set to itself there is nothing but rounding, most where the covariance lacks directions."""
    own = moments_of(features(30, 120, seed=1))
    assert 0 <= frechet_distance(own, own).value < 1e-6 * np.trace(own.covariance)
    nowhere = Moments(30, np.full(120, np.nan), own.covariance)
    assert np.isnan(frechet_distance(nowhere, own).value)


@pytest.mark.parametrize("blocks", [[1, 2, 97], [100], [33, 0, 33, 34]])
def test_moments_of_blocks(blocks) -> None:
    """Far from zero too, where a sum of squares would lose all digits."""
    rows = features(100, 5, seed=3).astype(np.float32) + np.float32(4096)
    sums = MomentSums(5)
    for block in np.split(rows, np.cumsum(blocks)[:-1]):
        sums.add(block)
    found, exact = sums.moments(), rows.astype(np.float64)
    assert found.count == 100
    np.testing.assert_allclose(found.mean, exact.mean(0), rtol=1e-14)
    np.testing.assert_allclose(found.covariance, np.cov(exact, rowvar=False), rtol=1e-9, atol=1e-9)


def test_moments_are_made_by_blocks(monkeypatch) -> None:
    monkeypatch.setattr(moments, "_ROWS", 7)
    rows = features(50, 3, seed=4)
    np.testing.assert_allclose(moments_of(rows).covariance, np.cov(rows, rowvar=False), rtol=1e-12)


def test_the_slope_is_the_derivative_by_the_covariance() -> None:
    own, other = moments_of(features(200, 6, seed=5)), moments_of(features(200, 6, seed=6, scale=1.3))
    change = symmetric_root(moments_of(features(20, 6, seed=7)).covariance)
    step = 1e-5
    values = [frechet_distance(Moments(200, own.mean, own.covariance + sign * step * change), other).value for sign in (1, -1)]
    assert np.sum(frechet_distance(own, other).slope * change) == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5)


def test_the_slope_along_directions_that_are_small_or_missing() -> None:
    """1 - s_r / s along each, by the deviations of the two sets; where the made set has none there is nothing to transport."""
    axes = np.linalg.qr(np.random.default_rng(0).standard_normal((12, 12)))[0]
    variances = [4, 4e-4, 9, *[0] * 9], [1, 1e-4, 16, *[1] * 9]
    own, other = (Moments(100, np.zeros(12), axes @ np.diag(values) @ axes.T) for values in variances)
    along = axes.T @ frechet_distance(own, other).slope @ axes
    np.testing.assert_allclose(along, np.diag([1 / 2, 1 / 2, -1 / 3, *[1] * 9]), rtol=0, atol=1e-4)


def test_the_error_is_that_of_leaving_out_each_image_in_turn(monkeypatch) -> None:
    monkeypatch.setattr(frechet, "_ROWS", 64)
    count = 400
    made, reference = features(count, 4, seed=8, scale=1.1), moments_of(features(500, 4, seed=9))
    whole = moments_of(made)
    error = standard_error(made, whole, reference, frechet_distance(whole, reference).slope)
    without = np.array([frechet_distance(moments_of(np.delete(made, i, axis=0)), reference).value for i in range(count)])
    assert error == pytest.approx(((count - 1) / count * np.square(without - without.mean()).sum()) ** 0.5, rel=0.02)


def test_the_error_of_one_skewed_feature() -> None:
    """(m - m_r)^2 + (s - s_r)^2, whose derivatives by m and s^2 are known; x far to one side moves both."""
    x = np.random.default_rng(3).exponential(size=50)
    reference = gaussian([0.5], [4.0])
    own = moments_of(x[:, None])
    off, s = own.mean[0] - 0.5, own.covariance[0, 0] ** 0.5
    influence = 2 * (x - own.mean[0]) * off + (x - own.mean[0]) ** 2 * (1 - 2 / s)
    error = standard_error(x[:, None], own, reference, frechet_distance(own, reference).slope)
    assert error == pytest.approx(np.std(influence, ddof=1) / 50**0.5, rel=1e-12)


def test_the_error_is_the_spread_over_other_draws() -> None:
    reference = FeatureSet({"features": features(3000, 4, seed=10)})
    figures = [measured(FeatureSet({"features": features(500, 4, seed=100 + draw, scale=1.1)}), reference) for draw in range(60)]
    spread = np.std([figure.value for figure in figures], ddof=1)
    assert 0.75 < np.mean([figure.error for figure in figures]) / spread < 1.35  # the spread of 60 draws is known to 10 %


def test_the_bias_by_extrapolation() -> None:
    """The distance between draws of one distribution is nothing but bias, and half the images have twice as much."""
    reference = FeatureSet(moments={"features": moments_of(features(100_000, 3, seed=0))})
    figures = [measured(FeatureSet({"features": features(400, 3, seed=500 + draw)}), reference, bias=True, seed=draw) for draw in range(40)]
    values, limits = (np.array(v) for v in zip(*((f.value, f.details["extrapolated"]) for f in figures), strict=True))
    assert abs(limits.mean()) < 0.25 * values.mean()
    assert all(f.details["bias"] == pytest.approx(f.value - f.details["extrapolated"]) for f in figures)
    assert "bias" not in measured(FeatureSet({"features": features(400, 3, seed=1)}), reference).details


def test_the_extrapolation_is_the_line_through_all_and_half() -> None:
    made, reference = features(41, 3, seed=11), moments_of(features(60, 3, seed=12))
    order = np.random.default_rng(6).permutation(41)
    halves = [frechet_distance(moments_of(made[part]), reference).value for part in (order[:20], order[20:40])]
    value = frechet_distance(moments_of(made), reference).value
    by_inverse = np.polynomial.Polynomial.fit([1 / 20, 1 / 41], [np.mean(halves), value], 1)
    found = extrapolated(made, value, reference, root=symmetric_root(reference.covariance), seed=6)
    assert found == pytest.approx(by_inverse(0.0), rel=1e-9)


@pytest.mark.parametrize(("count", "marked"), [(2047, True), (2048, False), (0, False)])
def test_few_images_are_marked(count, marked) -> None:
    figure = measured(
        FeatureSet(moments={"features": Moments(count, np.zeros(2), np.eye(2))}),
        FeatureSet(moments={"features": gaussian([1.0, 0.0], [1.0, 1.0])}),
    )
    assert ("few" in figure.details) == marked
    assert figure.value == pytest.approx(1) and figure.error is None and figure.details["images"] == count


def test_what_cannot_be_compared() -> None:
    five = FeatureSet({"features": features(9, 5, seed=1)})
    with pytest.raises(DataError, match="^5 features against 4 of the reference: "):
        measured(five, FeatureSet({"features": features(9, 4, seed=1)}))
    with pytest.raises(DataError, match="at least 2 images, and there are 1"):
        measured(FeatureSet({"features": features(1, 5, seed=1)}), five)
    broken = features(9, 5, seed=1)
    broken[7, 2] = np.nan
    with pytest.raises(DataError, match='^image 7 has "features" that are not finite'):
        measured(FeatureSet({"features": broken}), five)
