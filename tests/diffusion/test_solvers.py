"""The solvers on data whose denoiser is known, independent pixels from N(mean, deviation^2): order, calls, mean and variance."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError
from triptych.core.model import seeded_build
from triptych.core.rng import Rng
from triptych.diffusion.adm import ADM, ADMConfig
from triptych.diffusion.gaussian import Coefficients, GaussianConfig, GaussianDiffusion
from triptych.diffusion.model import SamplingConfig
from triptych.diffusion.path_solvers import PATH_SOLVERS
from triptych.diffusion.respacing import respaced_timesteps
from triptych.diffusion.samplers import SamplerName, Step, ddim_steps
from triptych.diffusion.solvers import SOLVERS, num_points, points_of
from triptych.diffusion.unet import UNetConfig

MEAN, DEVIATION = 0.3, 0.5
DETERMINISTIC = sorted(set(SOLVERS) - {"dpm++2m-sde"})
ANY = sorted(SOLVERS)
LINEAR, COSINE = GaussianDiffusion(GaussianConfig()), GaussianDiffusion(GaussianConfig(schedule="cosine"))


class Known:
    """The best x_0 at (x_t, t), E[x_0 | x_t]; it counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor, c: Coefficients) -> Tensor:
        self.calls += 1
        return MEAN + c.sqrt_abar * DEVIATION**2 / variance(c) * (x - c.sqrt_abar * MEAN)


def variance(c: Coefficients) -> float:
    """Of x_t."""
    return c.abar * DEVIATION**2 + c.sqrt_noise**2


def exact(x: Tensor, start: Coefficients, end: Coefficients) -> Tensor:
    """Where the deterministic path through x at `start` ends: at as many deviations from the mean."""
    return end.sqrt_abar * MEAN + math.sqrt(variance(end) / variance(start)) * (x - start.sqrt_abar * MEAN)


def levels(count: int, *, high: float = 5.0, low: float = 0.1) -> list[Coefficients]:
    """Points from one sigma to another with the spacing of none of the settings, so that steps differ in length."""
    place = torch.linspace(0, 1, count, dtype=torch.float64)
    lambdas = -math.log(high) + math.log(high / low) * (0.6 * place + 0.4 * place**2)
    return [at_sigma(math.exp(-value)) for value in lambdas.tolist()]


def uneven_levels(pairs: int) -> list[Coefficients]:
    """Points from sigma = 5 to 0.1 by turns a long step and one of half its length, so that what came before is no guide to a step."""
    lambdas = np.concatenate(([0.0], np.cumsum(np.tile([2.0, 1.0], pairs)))) / (3 * pairs) * math.log(50) - math.log(5)
    return [at_sigma(math.exp(-value)) for value in lambdas.tolist()]


def at_sigma(sigma: float) -> Coefficients:
    """The coefficients at any noise level, without a schedule."""
    return Coefficients.of_sigma(sigma, time=0.0)


def normal(count: int = 16) -> Tensor:
    return Rng(3, ("sample",), torch.arange(count)).normal("initial", 1, 4, 4).double()


def no_noise(i: int) -> Tensor:
    raise AssertionError("a deterministic solver asked for noise")


def solve(
    name: str, x: Tensor, points: Sequence[Coefficients], *, noise: Callable[[int], Tensor] = no_noise, predict: Known | None = None
) -> list[Step]:
    return list(SOLVERS[name].steps(predict or Known(), x, points=points, noise=noise))


def orders(errors: list[float]) -> list[float]:
    return [math.log2(before / after) for before, after in pairwise(errors)]


def test_every_sampler_is_a_solver_or_goes_along_a_path_or_is_one_of_two() -> None:
    assert set(get_args(SamplerName)) == {"ancestral", "ddim", *SOLVERS, *PATH_SOLVERS}


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_order_of_convergence(name: str) -> None:
    x, order = normal(), SOLVERS[name].order
    errors = []
    for count in (21, 41, 81, 161):
        points = levels(count)
        # The last step maps x at the last point to the x_0 there, whatever the solver.
        steps = solve(name, x, points)
        errors.append(float((steps[-2].sample - exact(x, points[0], points[-1])).abs().max()))
    assert all(order - 0.25 < found < order + 0.5 for found in orders(errors)), (errors, orders(errors))


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_order_of_convergence_in_steps_that_jump(name: str) -> None:
    x, order = normal(), SOLVERS[name].order
    errors = []
    for pairs in (20, 40, 80):
        points = uneven_levels(pairs)
        errors.append(float((solve(name, x, points)[-2].sample - exact(x, points[0], points[-1])).abs().max()))
    assert all(order - 0.25 < found < order + 0.5 for found in orders(errors)), (errors, orders(errors))


def test_unipc_by_hand() -> None:
    """Its first two steps, from the paper's formulas: with one other point, a_1 = 1/2 of B_2(h) = e^h - 1."""
    points, predicted = uneven_levels(1), iter([0.3, -0.2, 0.7])
    x = torch.tensor([1.5], dtype=torch.float64)
    steps = list(SOLVERS["unipc"].steps(lambda x, c: torch.full_like(x, next(predicted)), x, points=points, noise=no_noise))
    (a, b, c), (m0, m1) = points, (0.3, -0.2)
    h1, h2 = (math.log(before.sigma / after.sigma) for before, after in pairwise(points))
    first = b.sqrt_noise / a.sqrt_noise * x - b.sqrt_abar * math.expm1(-h1) * m0
    corrected = first - b.sqrt_abar * math.expm1(-h1) / 2 * (m1 - m0)
    second = c.sqrt_noise / b.sqrt_noise * corrected - c.sqrt_abar * math.expm1(-h2) * (m1 + (m0 - m1) / (-h1 / h2) / 2)
    torch.testing.assert_close(steps[0].sample, first)
    torch.testing.assert_close(steps[1].sample, second)


def test_the_corrector_of_unipc_integrates_a_parabola() -> None:
    """Its third step, by quadrature: a parabola of lambda through the x_0 at both ends of the second step and at the first point."""
    points, (m0, m1, m2) = levels(4), (0.3, -0.2, 0.7)
    predicted, x = iter([m0, m1, m2, 0.0]), torch.tensor([1.5], dtype=torch.float64)
    steps = list(SOLVERS["unipc"].steps(lambda x, c: torch.full_like(x, next(predicted)), x, points=points, noise=no_noise))
    (a, b, c, d), (l0, l1, l2, l3) = points, (-math.log(point.sigma) for point in points)
    corrected = b.sqrt_noise / a.sqrt_noise * x - b.sqrt_abar * math.expm1(l0 - l1) * (m0 + m1) / 2
    places, weights = np.polynomial.legendre.leggauss(20)
    inner = (l1 + l2) / 2 + (l2 - l1) / 2 * places
    parabola = np.polyval(np.polyfit([l0, l1, l2], [m0, m1, m2], 2), inner)
    integral = float(weights @ (np.exp(inner) * parabola)) * (l2 - l1) / 2
    corrected = c.sqrt_noise / b.sqrt_noise * corrected + c.sqrt_noise * integral
    third = d.sqrt_noise / c.sqrt_noise * corrected - d.sqrt_abar * math.expm1(l2 - l3) * (m2 + (m2 - m1) * (l3 - l2) / (l2 - l1) / 2)
    torch.testing.assert_close(steps[2].sample, third)


def test_heun_is_algorithm_1() -> None:
    """Of Karras et al. 2022, in x / sqrt(abar), on an x_0 that is no line of x."""
    points = uneven_levels(2)
    made = list(SOLVERS["heun"].steps(lambda x, c: torch.sin(3 * x) + c.abar, normal(), points=points, noise=no_noise))
    x = normal() / points[0].sqrt_abar
    for start, end, step in zip(points, points[1:], made, strict=False):
        slope = (x - torch.sin(3 * x * start.sqrt_abar) - start.abar) / start.sigma
        ahead = x + (end.sigma - start.sigma) * slope
        there = (ahead - torch.sin(3 * ahead * end.sqrt_abar) - end.abar) / end.sigma
        x = x + (end.sigma - start.sigma) * (slope / 2 + there / 2)
        torch.testing.assert_close(step.sample, x * end.sqrt_abar)


def linear_moments(name: str, points: Sequence[Coefficients]) -> tuple[float, float]:
    """Mean and deviation of what the solver makes of x at the first point, exactly: it is linear in x and in each draw.

    Sample 0 has no noise; sample 1 the first x one deviation off its mean; sample 2 + i a draw of 1 in step i.
    """
    first, count = points[0], len(points) - 1

    def unit(row: int) -> Tensor:
        made = torch.zeros(count + 2, dtype=torch.float64)
        made[row] = 1
        return made

    x = first.sqrt_abar * MEAN + math.sqrt(variance(first)) * unit(1)
    made = solve(name, x, points, noise=lambda i: unit(2 + i))[-1].sample
    return float(made[0]), float((made[1:] - made[0]).norm())


def test_mean_and_variance_of_the_stochastic_solver_converge_at_its_order() -> None:
    order = SOLVERS["dpm++2m-sde"].order
    off: tuple[list[float], list[float]] = ([], [])
    for count in (41, 81, 161):
        points = levels(count)
        mean, deviation = linear_moments("dpm++2m-sde", points)
        truth = points[-1].sqrt_abar * DEVIATION**2 / math.sqrt(variance(points[-1]))  # of E[x_0 | x_t]
        off[0].append(abs(mean - MEAN))
        off[1].append(abs(deviation - truth))
    # A mean that starts right stays so, for x_0 is then the mean at every step.
    assert max(off[0]) < 1e-12
    assert all(order - 0.25 < found < order + 0.5 for found in orders(off[1])), (off[1], orders(off[1]))


def test_the_mean_of_the_stochastic_solver_where_it_starts_wrong() -> None:
    """The predicted x_0 is a martingale along the exact path, so its mean must not move, in steps of any length."""
    points = levels(8)
    steps = solve("dpm++2m-sde", torch.tensor([1.0], dtype=torch.float64), points, noise=lambda i: torch.zeros(1, dtype=torch.float64))
    assert abs(float(steps[0].x0) - MEAN) > 0.02
    for step in steps[1:]:
        torch.testing.assert_close(step.x0, steps[0].x0, rtol=1e-12, atol=0)


@pytest.mark.parametrize("process", [LINEAR, COSINE], ids=["linear", "cosine"])
@pytest.mark.parametrize("name", ANY)
def test_samples_have_the_mean_and_the_variance_of_the_data(name: str, process: GaussianDiffusion) -> None:
    rng, x = Rng(3, ("sample",), torch.arange(1024)), normal(1024)
    points = points_of(process, steps=20, spacing=SOLVERS[name].spacing)
    made = solve(name, x, points, noise=lambda i: rng.normal(f"step/{i}", 1, 4, 4).double())[-1].sample
    # 16,384 draws alone err by 0.004 and 0.6 %; 20 steps of Heun in sigma by 5 %.
    assert float(made.mean()) == pytest.approx(MEAN, abs=0.015)
    assert float(made.std()) == pytest.approx(DEVIATION, rel={"heun": 0.07, "euler": 0.15}.get(name, 0.03))


@pytest.mark.parametrize("name", ["dpm++2m", "unipc"])
def test_twenty_calls_end_nearer_than_fifty_of_ddim(name: str) -> None:
    x, first, last = normal(), LINEAR.at_step(999), LINEAR.at_step(0)
    truth = Known()(exact(x, first, last), last)
    *_, ddim = ddim_steps(LINEAR.respaced(respaced_timesteps(50, total=1000)), Known(), x, noise=no_noise)
    made = solve(name, x, points_of(LINEAR, steps=20, spacing=SOLVERS[name].spacing))[-1].sample
    assert (made - truth).abs().max() < 0.5 * (ddim.sample - truth).abs().max()


@pytest.mark.parametrize("name", ANY)
def test_steps_and_calls(name: str) -> None:
    x, calls = normal(2), SOLVERS[name].calls
    for count in (1, 2, 7):
        predict, asked = Known(), []

        def noise(i: int, asked: list[int] = asked) -> Tensor:
            asked.append(i)
            return torch.zeros_like(x)

        steps = solve(name, x, levels(count), noise=noise, predict=predict)
        assert len(steps) == count
        assert predict.calls == calls * (count - 1) + 1
        assert asked == (list(range(count - 1)) if name == "dpm++2m-sde" else [])
        assert steps[-1].sample is steps[-1].x0


def test_heun_goes_by_euler_from_where_the_image_is_lost() -> None:
    predict = Known()
    points = points_of(COSINE, steps=10, spacing="edm")
    solve("heun", normal(2), points, predict=predict)
    assert points[0].sigma > 1000 and predict.calls == 18


@pytest.mark.parametrize("process", [LINEAR, COSINE], ids=["linear", "cosine"])
def test_points(process: GaussianDiffusion) -> None:
    whole = {"sqrt_abar", "sqrt_noise", "sigma", "time"}
    for spacing in ("timesteps", "log-snr", "edm"):
        points = points_of(process, steps=11, spacing=spacing)
        for point, step in ((points[0], process.steps - 1), (points[-1], 0)):
            assert all(getattr(point, name) == pytest.approx(getattr(process.at_step(step), name)) for name in whole)
        assert all(c.sigma > following.sigma for c, following in pairwise(points))
        inner = np.array([point.sigma for point in points[1:]])
        even = {"timesteps": np.array([c.time for c in points[1:]]), "log-snr": np.log(inner), "edm": inner ** (1 / 7)}[spacing]
        np.testing.assert_allclose(np.diff(even), np.diff(even)[0], rtol=1e-6)
        if spacing != "timesteps":  # counted from 80, or from the largest sigma
            high, low = min(80.0, points[0].sigma), points[-1].sigma
            start = {"log-snr": math.log(high), "edm": high ** (1 / 7)}[spacing]
            stop = {"log-snr": math.log(low), "edm": low ** (1 / 7)}[spacing]
            assert even[0] == pytest.approx(start + (stop - start) / 10)
    assert len(points_of(process, steps=1, spacing="edm")) == 1
    # The network's time lies between two timesteps where the point does.
    assert points_of(process, steps=4, spacing="timesteps")[1].time == pytest.approx(666)
    halfway = points_of(process, steps=3, spacing="timesteps")[1]
    assert halfway.time == pytest.approx(499.5)
    assert process.at_step(499).sigma < halfway.sigma < process.at_step(500).sigma


SHALLOW = GaussianDiffusion(GaussianConfig(betas=tuple(np.linspace(1e-4, 0.01, 1000).tolist())))
"""A process that ends at sigma = 12, where Heun's first step is one of Heun's."""


@pytest.mark.peer("diffusers")
@pytest.mark.parametrize("name", ANY)
def test_the_same_as_diffusers(name: str) -> None:
    """Step by step at its timesteps; its tables are float32."""
    schedulers = importlib.import_module("diffusers.schedulers")
    table: dict[str, Any] = {"trained_betas": list(SHALLOW.config.betas or ()), "prediction_type": "sample"}
    # unipc asks for it: its last step, to sigma = 0, would divide by zero in second order.
    multistep = table | {"solver_order": 2, "lower_order_final": name == "unipc", "final_sigmas_type": "zero"}
    match name:
        case "unipc":
            scheduler = schedulers.UniPCMultistepScheduler(**multistep)
        case "heun":
            scheduler = schedulers.HeunDiscreteScheduler(**table)
        case _:
            kind = "sde-dpmsolver++" if name == "dpm++2m-sde" else "dpmsolver++"
            scheduler = schedulers.DPMSolverMultistepScheduler(**multistep, algorithm_type=kind)
    scheduler.set_timesteps(12)
    points = [SHALLOW.at_time(t) for t in dict.fromkeys(scheduler.timesteps.tolist())]
    assert len(points) == 12
    rng, x = Rng(5, ("noise",), torch.arange(2)), normal(2)
    draws = [rng.normal(f"step/{i}", 1, 4, 4).double() for i in range(12)]
    ours = [step.sample for step in solve(name, x, points, noise=lambda i: draws[i])]
    theirs = heun_of_diffusers(scheduler, x) if name == "heun" else steps_of_diffusers(scheduler, x, draws, stochastic="sde" in name)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-5)


def steps_of_diffusers(scheduler: Any, x: Tensor, draws: list[Tensor], *, stochastic: bool) -> list[Tensor]:
    found = []
    for i, t in enumerate(scheduler.timesteps):
        more = {"variance_noise": draws[i]} if stochastic else {}
        x = scheduler.step(Known()(x, SHALLOW.at_time(float(t))), t, x, **more).prev_sample
        found.append(x)
    return found


def heun_of_diffusers(scheduler: Any, x: Tensor) -> list[Tensor]:
    """It keeps x / sqrt(abar), and gives every step but the last in two halves."""
    x, found = x / SHALLOW.at_time(float(scheduler.timesteps[0])).sqrt_abar, []
    for k, t in enumerate(scheduler.timesteps):
        c = SHALLOW.at_time(float(t))
        x = scheduler.step(Known()(x * c.sqrt_abar, c), t, x).prev_sample
        if k % 2:
            found.append(x * c.sqrt_abar)
    return [*found, x]


SPEC = DataSpec(image_size=8, channels=1, num_classes=3)


def model(**diffusion: Any) -> ADM:
    network = UNetConfig(num_channels=32, num_res_blocks=1, channel_mult=(1, 1), attention_resolutions=(4,))
    process = GaussianConfig(**({"steps": 100, "schedule": "cosine", "variance": "learned_range"} | diffusion))
    made = seeded_build(ADMConfig(network=network, diffusion=process, class_conditional=True), SPEC, seed=0)
    assert isinstance(made, ADM)
    torch.manual_seed(0)
    for parameter in made.network.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.05)
    return made.eval()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", [*ANY, "ode-heun", "sde-euler"])
def test_image_k_is_the_same_in_every_batch(name: str) -> None:
    made, labels, rng = model(), torch.tensor([0, 2, 1, 0, 1]), Rng(7, ("sample",), torch.arange(5))
    settings = SamplingConfig(sampler=name, steps=6)  # type: ignore[arg-type]
    whole = made.sample(rng, labels=labels, settings=settings)
    parts = [made.sample(rng[part], labels=labels[part], settings=settings) for part in (slice(0, 1), slice(1, 5))]
    assert (torch.cat(parts) - whole).abs().max() <= 2 / 255
    assert whole.std(0).mean() > 0.01, "all samples are alike"


@pytest.mark.parametrize("settings", [{"sampler": name} for name in get_args(SamplerName)] + [{"sampler": "ddim", "eta": 0.5}], ids=str)
def test_noise_drawn_together_gives_the_same_images(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """And steps draw noise where the settings say so."""
    made, rng = model(), Rng(0, ("sample",), torch.arange(3))
    told, labels = SamplingConfig(steps=6, **settings), torch.arange(3)
    image = made.sample(rng, labels=labels, settings=told)
    drawn: list[str] = []
    one = Rng.normal
    monkeypatch.setattr(Rng, "normal", lambda rng, name, *shape: drawn.append(name) or one(rng, name, *shape))
    monkeypatch.setattr(Rng, "normals", lambda rng, names, *shape: lambda i: rng.normal(names[i], *shape))
    assert torch.equal(made.sample(rng, labels=labels, settings=told), image)
    assert drawn[0] == "initial" and (len(drawn) > 1) == told.stochastic


@pytest.mark.parametrize("name", [*ANY, "ode-heun", "sde-euler"])
def test_a_model_takes_twenty_steps_unless_told(name: str) -> None:
    made, rng = model(), Rng(7, ("sample",), torch.arange(1))
    steps = list(made.sample_progressive(rng, labels=torch.tensor([1]), settings=SamplingConfig(sampler=name)))  # type: ignore[arg-type]
    assert len(steps) == 20
    assert steps[-1].sample.abs().max() <= 1
    assert num_points(None, total=5) == 5


def test_spacing_is_used() -> None:
    made, rng, labels = model(), Rng(7, ("sample",), torch.arange(1)), torch.tensor([1])
    images = [
        made.sample(rng, labels=labels, settings=SamplingConfig(sampler="unipc", steps=6, spacing=spacing))
        for spacing in (None, "log-snr", "edm", "timesteps")
    ]
    assert torch.equal(images[0], images[1])
    assert not torch.equal(images[1], images[2]) and not torch.equal(images[2], images[3])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampler": "unipc", "eta": 0.5}, "eta: got 0.5, expected 0 with sampler unipc; ddim alone has it"),
        ({"eta": 0.5}, "eta: got 0.5, expected 0 with sampler ancestral; ddim alone has it"),
        ({"sampler": "ddim", "eta": 1.5}, "eta: got 1.5, expected from 0 to 1"),
        (
            {"sampler": "ddim", "spacing": "edm"},
            "spacing: got 'edm', expected nothing with sampler ddim, which goes by steps alone",
        ),
        (
            {"sampler": "ode-heun", "spacing": "edm"},
            "spacing: got 'edm', expected nothing with sampler ode-heun, whose steps lie as grid says",
        ),
        (
            {"sampler": "unipc", "flow_path": "vp"},
            "flow_path: got 'vp', expected nothing with sampler unipc; ode-* and sde-euler go along one",
        ),
        ({"grid": "edm"}, "grid: got 'edm', expected uniform with sampler ancestral; ode-* and sde-euler have it"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SamplingConfig(**settings)
    assert str(caught.value) == message


@pytest.mark.parametrize("steps", ["ddim20", "5,5", 0, 101])
def test_steps_of_a_solver_are_a_number(steps: int | str) -> None:
    settings = SamplingConfig(sampler="heun", steps=steps)
    message = f"steps: got {steps!r}, expected a whole number from 1 to 100 with this sampler"
    with pytest.raises(ConfigError) as caught:
        model().trajectory(Rng(0, ("sample",), torch.arange(1)), (torch.tensor([0]),), settings)
    assert str(caught.value) == message
    with pytest.raises(ConfigError) as caught:
        ADMConfig(diffusion=GaussianConfig(steps=100), sampling=settings)
    assert str(caught.value) == f"sampling.{message}"


def test_models_of_the_previous_x_are_refused() -> None:
    with pytest.raises(ConfigError, match="sampler: got 'unipc', expected ancestral or ddim with a model that predicts previous_x"):
        ADMConfig(diffusion=GaussianConfig(mean="previous_x"), sampling=SamplingConfig(sampler="unipc"))
