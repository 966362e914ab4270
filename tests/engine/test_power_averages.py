"""Averages by length: their profiles against integrals, and sums of them against the average of a known trajectory, all in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from triptych.core.errors import ConfigError
from triptych.engine.config import AverageConfig, TrainConfig
from triptych.engine.lengths import LONGEST, SHORTEST, exponent_of, length_in, length_name
from triptych.engine.power_averages import Profile, combination

STEPS = 2000


def density(profile: Profile, at: np.ndarray) -> np.ndarray:
    """p(s) = (g + 1) s^g / t^(g + 1) until t, and 0 after it."""
    t, g = profile
    return np.where(at <= t, (g + 1) * (at / t) ** g / t, 0.0)


def tracked(trajectory: np.ndarray, length: float, *, images: int) -> np.ndarray:
    """The average after each step of so many images of the weights (steps, n) after it, by its update."""
    average, settings, found = np.full_like(trajectory[0], np.nan), AverageConfig(length=length), []
    for step, weights in enumerate(trajectory):
        rate = settings.rate_at(step * images, images=images)
        average = weights if rate == 0 else rate * average + (1 - rate) * weights
        found.append(average)
    return np.array(found)


def walk(steps: int = STEPS, size: int = 50) -> np.ndarray:
    """Weights that wander, ever more slowly, and drift."""
    rng = np.random.default_rng(0)
    rate = 1 / np.sqrt(1 + np.arange(steps)[:, None] / 200)
    return np.cumsum(rate * (0.1 * rng.normal(size=(steps, size)) + 0.02 * rng.normal(size=size)), 0) + rng.normal(size=size)


@pytest.mark.parametrize(("length", "published"), [(0.05, 16.97), (0.10, 6.94)])
def test_the_exponents_of_the_paper(length, published):
    assert exponent_of(length) == pytest.approx(published, abs=5e-3)


@pytest.mark.parametrize("length", [SHORTEST, 0.01, 0.05, 0.1, 0.2, LONGEST])
def test_an_exponent_is_the_largest_root_and_its_profile_has_that_width(length):
    exponent = exponent_of(length)
    roots = np.roots([1, 7, 16 - length**-2, 12 - length**-2])
    assert exponent == pytest.approx(roots.real.max(), rel=1e-9, abs=1e-9)
    assert math.sqrt((exponent + 1) / (exponent + 3)) / (exponent + 2) == pytest.approx(length, rel=1e-12)
    middle = (np.arange(1_000_000) + 0.5) / 1_000_000
    weight = density(Profile(1.0, exponent), middle) / len(middle)
    mean = weight @ middle
    assert weight.sum() == pytest.approx(1, abs=1e-6) and math.sqrt(weight @ (middle - mean) ** 2) == pytest.approx(length, rel=1e-5)


@pytest.mark.parametrize(("images", "share"), [(0, 0), (5, 0.5**8), (10, 1), (20, 1)])
def test_the_share_of_a_profile_that_belongs_to_the_first_images(images, share):
    assert Profile(10, 7).left_of(images) == pytest.approx(share)


@pytest.mark.parametrize("length", [0.05, 0.2])
def test_the_update_gives_each_step_the_integral_of_the_profile_over_it(length):
    """With iterations of different sizes too, and from the first step on, whose rate is 0."""
    rng, settings = np.random.default_rng(1), AverageConfig(length=length)
    images, ends = rng.integers(1, 20, 60), None
    ends = np.cumsum(images)
    weight = np.zeros(60)
    for step, (count, end) in enumerate(zip(images, ends, strict=True)):
        rate = settings.rate_at(int(end - count), images=int(count))
        assert step or rate == 0
        weight *= rate
        weight[step] = 1 - rate
    power = exponent_of(length) + 1
    expected = (ends**power - (ends - images) ** power) / ends[-1] ** power
    np.testing.assert_allclose(weight, expected, rtol=1e-9, atol=1e-300)


def test_a_combination_solves_the_least_squares_of_profiles():
    """Against profiles on a fine grid and numpy's own least squares, which minimises the same distance without the products."""
    given = [Profile(t, g) for t in (1.0, 2.5, 4.0) for g in (6.9, 17.0)]
    wanted = Profile(4.0, 9.0)
    grid = (np.arange(400_000) + 0.5) / 100_000
    columns, aim = np.stack([density(profile, grid) for profile in given], 1), density(wanted, grid)
    expected = np.linalg.lstsq(columns, aim, rcond=None)[0]
    expected /= expected.sum()
    found = combination(given, wanted)
    np.testing.assert_allclose(found.coefficients, expected, rtol=1e-4, atol=1e-6)
    assert found.coefficients.sum() == pytest.approx(1, abs=1e-12)
    assert found.residual == pytest.approx(np.linalg.norm(columns @ expected - aim) / np.linalg.norm(aim), rel=1e-3)
    other_unit = combination([Profile(1e9 * t, g) for t, g in given], Profile(4e9, 9.0))
    np.testing.assert_allclose(other_unit.coefficients, found.coefficients, rtol=1e-7)


def test_an_average_that_is_there_is_taken_as_it_is():
    given = [Profile(t, g) for t in range(1, 9) for g in (6.9, 17.0)]
    found = combination(given, given[9])
    np.testing.assert_allclose(found.coefficients, np.eye(16)[9], atol=1e-9)
    assert found.residual < 1e-6


@pytest.mark.parametrize("length", [0.04, 0.075, 0.15])
def test_an_average_of_a_known_trajectory_is_put_together(length):
    """Out of 16 snapshots of two others: within a thousandth of the change of the weights, and of its distance to the last weights."""
    images, trajectory = 7, walk()
    given, values = [], []
    for other in (0.05, 0.1):
        averages = tracked(trajectory, other, images=images)
        for step in range(STEPS // 16 - 1, STEPS, STEPS // 16):
            given.append(Profile((step + 1) * images, exponent_of(other)))
            values.append(averages[step])
    wanted = tracked(trajectory, length, images=images)[-1]
    found = combination(given, Profile(STEPS * images, exponent_of(length)))
    off = np.linalg.norm(found.coefficients @ np.array(values) - wanted)
    assert off < 1e-3 * np.linalg.norm(wanted - trajectory[0])
    assert off < 1e-2 * np.linalg.norm(wanted - trajectory[-1])
    assert found.residual < 0.02
    nearest = min(np.linalg.norm(value - wanted) for value in values)
    assert off < 0.1 * nearest, "nor is it one of those that were tracked"


def test_lengths_that_reach_further_back_than_the_snapshots_say_so():
    given = [Profile(t, exponent_of(length)) for t in (7, 8) for length in (0.05, 0.1)]
    assert combination(given, Profile(8, exponent_of(0.25))).residual > 0.3
    assert combination(given, Profile(8, exponent_of(0.01))).residual > 0.3
    assert combination(given, Profile(8, exponent_of(0.07))).residual < 0.02


def test_names_of_files():
    assert length_name(0.10) == "ema-length-0.1" == AverageConfig(length=0.1).name
    assert [length_in(name) for name in ("ema-length-0.1", "ema-length-0.050")] == [0.1, 0.05]
    others = ("ema-0.1", "ema-length-", "ema-length-x", "ema-length-0.3", "ema-length-nan", "model", "ema-500000")
    assert {length_in(name) for name in others} == {None}
    assert AverageConfig(length=0.1).described == "length 0.1"


def test_lengths_come_after_rates():
    settings = TrainConfig(
        total_images=1, batch_size=1, ema_rates=(0.9,), ema_lengths=(0.05,), averages=(AverageConfig(length=0.1),), snapshot_every=8
    )
    assert [average.name for average in settings.all_averages] == ["ema-0.9", "ema-length-0.05", "ema-length-0.1"]
    assert TrainConfig.from_dict(settings.to_dict()) == settings


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AverageConfig(length=0.1, rate=0.9), "rate: got 0.9, expected either a rate, or a half_life, or a length"),
        (lambda: AverageConfig(length=0.1, half_life=9), "half_life: got 9, expected either a rate, or a half_life, or a length"),
        (lambda: AverageConfig(length=0.289), "length: got 0.289, expected from 0.001 to 0.288"),
        (lambda: AverageConfig(length=0.0), "length: got 0.0, expected from 0.001 to 0.288"),
        (lambda: AverageConfig(length=0.1, warmup=True), "warmup: got True, expected False with a length"),
        (lambda: AverageConfig(length=0.1, start=8), "start: got 8, expected 0 with a length"),
        (lambda: AverageConfig(length=0.1, ramp_up=0.1), "ramp_up: got 0.1, expected above 0, with a half_life"),
        (lambda: TrainConfig(total_images=1, batch_size=1, ema_lengths=(0.3,)), "ema_lengths: got .*, expected from 0.001 to 0.288"),
        (
            lambda: TrainConfig(total_images=1, batch_size=1, ema_lengths=(0.1,), averages=(AverageConfig(length=0.1),)),
            "averages: got ema-0.9999, ema-length-0.1, ema-length-0.1, expected averages that differ",
        ),
        (
            lambda: TrainConfig(total_images=1, batch_size=1, snapshot_every=8),
            "snapshot_every: got 8, expected nothing without averages by length",
        ),
        (
            lambda: TrainConfig(total_images=1, batch_size=1, ema_lengths=(0.1,), snapshot_every=0),
            "snapshot_every: got 0, expected at least",
        ),
    ],
)
def test_settings_that_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
