"""Paths against their definitions in float64: derivatives, forms, noise levels, the map of a Gaussian to a mixture."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import pytest
import torch
from torch import Tensor

from triptych.diffusion.gaussian import Coefficients
from triptych.diffusion.paths import PATHS, Form, PathName, Point

NAMES: tuple[PathName, ...] = get_args(PathName)
FORMS: tuple[Form, ...] = get_args(Form)
TIMES = torch.linspace(0.02, 0.98, 33, dtype=torch.float64)[:, None, None, None]
every_path = pytest.mark.parametrize("name", NAMES)


def images(seed: int) -> Tensor:
    return torch.randn(33, 2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_every_path_has_a_name() -> None:
    assert set(PATHS) == set(NAMES)


@pytest.mark.parametrize(
    ("name", "alpha", "s"),
    [
        ("linear", 0.3, 0.7),
        ("gvp", math.sin(0.15 * math.pi), math.cos(0.15 * math.pi)),
        ("vp", math.exp(-(0.49 * 19.9 / 4 + 0.7 * 0.05)), math.sqrt(1 - math.exp(-(0.49 * 19.9 / 2 + 0.7 * 0.1)))),
    ],
)
def test_coefficients_by_hand(name: PathName, alpha: float, s: float) -> None:
    point = PATHS[name].at(torch.tensor(0.3, dtype=torch.float64))
    assert float(point.alpha) == pytest.approx(alpha, rel=1e-12)
    assert float(point.s) == pytest.approx(s, rel=1e-12)


@every_path
def test_derivatives_are_those_of_the_coefficients(name: PathName) -> None:
    t = TIMES.clone().requires_grad_()
    point = PATHS[name].at(t)
    for value, slope in ((point.alpha, point.d_alpha), (point.s, point.d_s)):
        (found,) = torch.autograd.grad(value.sum(), t, retain_graph=True)
        torch.testing.assert_close(slope, found, rtol=1e-10, atol=1e-12)


@every_path
def test_ends_of_the_paths(name: PathName) -> None:
    first, last = (PATHS[name].at(torch.tensor(t, dtype=torch.float64)) for t in (0.0, 1.0))
    assert float(first.alpha) == pytest.approx(math.exp(-5.025) if name == "vp" else 0, abs=1e-12)
    assert float(last.alpha) == pytest.approx(1, abs=1e-12) and float(last.s) == 0


@every_path
@pytest.mark.parametrize(("form", "other"), list(itertools.product(FORMS, FORMS)))
def test_forms_convert_into_one_another(name: PathName, form: Form, other: Form) -> None:
    point = PATHS[name].at(TIMES)
    x0, noise = images(0), images(1)
    x = point.noised(x0, noise)
    said = point.said(x0, noise, form)
    found = point.ends(said, x, form)
    for got, expected in zip(found, (x0, noise), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(point.image_of(said, x, form), x0, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(point.said(*found, other), point.said(x0, noise, other), rtol=1e-6, atol=1e-6)


@every_path
def test_the_score_is_the_gradient_of_the_log_density(name: PathName) -> None:
    """Of N(alpha m, alpha^2 d^2 + s^2), the density of x_t for independent pixels from N(m, d^2)."""
    m, d = 0.3, 0.5
    point = PATHS[name].at(TIMES)
    variance = point.alpha**2 * d**2 + point.s**2
    x = images(0).requires_grad_()
    (score,) = torch.autograd.grad((-((x - point.alpha * m) ** 2) / (2 * variance)).sum(), x)
    x0 = m + point.alpha * d**2 / variance * (x.detach() - point.alpha * m)
    noise = (x.detach() - point.alpha * x0) / point.s
    torch.testing.assert_close(point.said(x0, noise, "score"), score, rtol=1e-9, atol=1e-9)


@every_path
def test_time_and_noise_level_are_two_names_of_one_place(name: PathName) -> None:
    path = PATHS[name]
    torch.testing.assert_close(path.time_of(path.at(TIMES).sigma), TIMES, rtol=1e-10, atol=0)
    sigma = torch.logspace(-3, 2, 40, dtype=torch.float64)
    torch.testing.assert_close(path.at(path.time_of(sigma)).sigma, sigma, rtol=1e-8, atol=0)
    infinite = path.time_of(torch.tensor(math.inf, dtype=torch.float64))
    assert float(infinite) == pytest.approx(0, abs=1e-12)


@every_path
def test_coefficients_are_those_of_the_noise_level(name: PathName) -> None:
    for t in (0.1, 0.5, 0.9):
        c = PATHS[name].coefficients(t)
        known = Coefficients.of_sigma(float(PATHS[name].at(torch.tensor(t, dtype=torch.float64)).sigma), time=t)
        for field in ("time", "abar", "sqrt_abar", "sqrt_noise", "sqrt_recip", "sigma"):
            assert getattr(c, field) == pytest.approx(getattr(known, field), rel=1e-10), field


def test_coefficients_where_there_is_noise_alone() -> None:
    c = PATHS["linear"].coefficients(0.0)
    assert (c.abar, c.sqrt_abar, c.sqrt_noise, c.sigma, c.sqrt_recip) == (0, 0, 1, math.inf, math.inf)


def test_intervals() -> None:
    linear, vp = PATHS["linear"], PATHS["vp"]
    assert linear.interval("velocity", training=True) == (0, 1)
    assert linear.interval("noise", training=True) == PATHS["gvp"].interval("score", training=False) == (0.001, 0.999)
    assert vp.interval("velocity", training=True) == (0, 1 - 1e-5) and vp.interval("score", training=False) == (0, 1 - 1e-3)


def test_points_are_values() -> None:
    one = torch.ones(())
    assert float(Point(3 * one, 4 * one, one, one).norm) == 5
