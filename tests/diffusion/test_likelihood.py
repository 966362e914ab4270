"""The probability-flow ODE on data whose denoiser is known, and of networks with random weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from triptych.core.batch import Batch, DataSpec
from triptych.core.errors import ConfigError
from triptych.core.model import Likelihood, VariationalBound, seeded_build
from triptych.core.rng import Rng
from triptych.diffusion.adm import ADM, ADMConfig
from triptych.diffusion.gaussian import Coefficients, Denoiser, GaussianConfig, GaussianDiffusion, Levels
from triptych.diffusion.likelihood import BIN, FlowODEConfig, estimated_trace, exact_trace, log_density, log_prob
from triptych.diffusion.samplers import x0_predictor
from triptych.diffusion.unet import UNetConfig

MEAN, DEVIATION = 0.3, 0.5
CENTRES = torch.tensor([[-0.6, 0.4], [0.5, 0.5], [0.2, -0.7]], dtype=torch.float64)[:, None, None, :]


def gaussian_denoiser(process: GaussianDiffusion) -> Denoiser:
    """What the best network of `process` predicts for independent pixels from N(MEAN, DEVIATION^2), between timesteps too."""

    def denoise(x: Tensor, c: Coefficients) -> Tensor:
        gain = DEVIATION**2 * c.sqrt_abar / (DEVIATION**2 * c.abar + 1 - c.abar)
        return process.prediction_from(MEAN + gain * (x - c.sqrt_abar * MEAN), x, c)

    return denoise


def gaussian_log_density(process: GaussianDiffusion, images: Tensor) -> Tensor:
    """What the flow of that denoiser gives images: it is a linear map from x_{T-1}, standard normal."""
    first, last = process.at_step(0), process.at_step(process.steps - 1)
    deviation = [math.sqrt(DEVIATION**2 * c.abar + 1 - c.abar) for c in (first, last)]
    scale = deviation[1] / deviation[0] * first.sqrt_abar  # of x_{T-1} in the image
    noise = scale * (images - MEAN) + last.sqrt_abar * MEAN
    return (torch.distributions.Normal(0, 1).log_prob(noise) + math.log(scale)).sum((1, 2, 3))


def pictures(count: int = 4, channels: int = 1, size: int = 2) -> Tensor:
    drawn = torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return MEAN + DEVIATION * drawn


def rng(count: int, *stream: str | int) -> Rng:
    return Rng(0, ("evaluate", *stream), torch.arange(count))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("mean", ["epsilon", "x0", "v"])
def test_gaussian_data(mean: Any, schedule: Any) -> None:
    process, images = GaussianDiffusion(GaussianConfig(mean=mean, schedule=schedule)), pictures()
    density = log_density(x0_predictor(process, gaussian_denoiser(process)), process.levels, images, steps=50, trace=exact_trace)
    torch.testing.assert_close(density, gaussian_log_density(process, images), atol=2.5e-4, rtol=0)
    exact = torch.distributions.Normal(MEAN, DEVIATION).log_prob(images).sum((1, 2, 3))
    torch.testing.assert_close(density, exact, atol=5e-3, rtol=0)  # the last noise level still knows a little of the image
    single = log_density(x0_predictor(process, gaussian_denoiser(process)), process.levels, images.float(), steps=50, trace=exact_trace)
    assert single.dtype == torch.float64
    torch.testing.assert_close(single, density, atol=2.5e-4, rtol=0)


def test_the_density_is_that_of_the_image_at_the_least_noise() -> None:
    """Noise of half the deviation 1 is not little: the factor between the image and x, and its logarithm, count."""
    levels, images = Levels(0.5, 20.0, lambda sigma: Coefficients.of_sigma(sigma, time=sigma)), pictures()

    def predict(x: Tensor, c: Coefficients) -> Tensor:
        return MEAN + DEVIATION**2 * c.sqrt_abar / (DEVIATION**2 * c.abar + 1 - c.abar) * (x - c.sqrt_abar * MEAN)

    density = log_density(predict, levels, images, steps=50, trace=exact_trace)
    scale = math.hypot(DEVIATION, 20) / math.hypot(DEVIATION, 0.5) / math.hypot(1, 20)  # of x at the most noise in the image
    noise = MEAN / math.hypot(1, 20) + scale * (images - MEAN)
    exact = (torch.distributions.Normal(0, 1).log_prob(noise) + math.log(scale)).sum((1, 2, 3))
    torch.testing.assert_close(density, exact, atol=1e-5, rtol=0)


def mixture_denoiser(process: GaussianDiffusion, centres: Tensor, deviation: float) -> Denoiser:
    """The best network for a mixture of equal Gaussians at `centres` (k, c, h, w)."""

    def denoise(x: Tensor, c: Coefficients) -> Tensor:
        variance = deviation**2 * c.abar + 1 - c.abar
        apart = x[:, None] - c.sqrt_abar * centres
        weight = (-(apart**2).flatten(2).sum(2) / (2 * variance)).softmax(1)[:, :, None, None, None]
        x0 = (weight * (centres + deviation**2 * c.sqrt_abar / variance * apart)).sum(1)
        return process.prediction_from(x0, x, c)

    return denoise


def test_the_fixed_grid_is_of_fourth_order() -> None:
    process = GaussianDiffusion(GaussianConfig(schedule="cosine"))
    images = torch.cartesian_prod(*[torch.linspace(-1, 1, 5, dtype=torch.float64)] * 2)[:, None, None, :]
    denoise = mixture_denoiser(process, CENTRES, 0.3)  # not linear: the middle evaluations of a step differ
    predict = x0_predictor(process, denoise)
    values = [log_density(predict, process.levels, images, steps=steps, trace=exact_trace) for steps in (40, 80, 320)]
    errors = [float((value - values[-1]).abs().max()) for value in values[:-1]]
    orders = [math.log2(a / b) for a, b in pairwise(errors)]
    assert all(3.7 < order < 4.5 for order in orders), (errors, orders)


def test_a_density_of_two_dimensions_integrates_to_one() -> None:
    process = GaussianDiffusion(GaussianConfig(schedule="cosine"))
    axis = torch.linspace(-2, 2, 61, dtype=torch.float64)
    images = torch.cartesian_prod(axis, axis)[:, None, None, :]
    predict = x0_predictor(process, mixture_denoiser(process, CENTRES, 0.2))
    density = log_density(predict, process.levels, images, steps=40, trace=exact_trace).exp()
    cell = float(axis[1] - axis[0]) ** 2
    assert float(density.sum()) * cell == pytest.approx(1, abs=2e-3)
    assert float((density[:, None] * images[:, 0, 0]).sum(0)[0]) * cell == pytest.approx(0.1 / 3, abs=5e-3)  # not just any density
    component = torch.distributions.Normal(CENTRES[:, 0, 0], 0.2)
    known = component.log_prob(images[:, 0, 0][:, None]).sum(2).logsumexp(1).sub(math.log(3)).exp()
    assert float((density - known).abs().max()) < 0.02 * float(known.max())


# The estimated divergence.


def linear(matrix: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: (x.flatten(1) @ matrix.T).view_as(x)


def traces(trace: Any, count: int) -> Tensor:
    matrix = torch.randn(9, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = torch.zeros(count, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    return trace(linear(matrix)(x), x, 7) - matrix.trace()


def test_the_exact_trace() -> None:
    torch.testing.assert_close(traces(exact_trace, 2), torch.zeros(2, dtype=torch.float64))


def test_the_estimated_trace_is_unbiased() -> None:
    apart = traces(estimated_trace(rng(20_000), probes=1), 20_000)
    deviation = float(apart.std())
    assert deviation > 3
    assert abs(float(apart.mean())) < 3 * deviation / math.sqrt(20_000)
    four = traces(estimated_trace(rng(20_000), probes=4), 20_000)
    assert float(four.std()) == pytest.approx(deviation / 2, rel=0.05)


def test_the_signs_are_new_at_every_call() -> None:
    trace = estimated_trace(rng(2), probes=1)
    drawn: list[Tensor] = []

    class Spy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            drawn.append(grad)
            return grad

    x = torch.zeros(2, 1, 4, 4, requires_grad=True)
    for k in (0, 1):
        assert trace(Spy.apply(x), x, k).tolist() == [16, 16]
    assert set(drawn[0].flatten().tolist()) == {-1, 1}
    assert not torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0][0], drawn[0][1])


def test_every_network_call_has_a_number_of_its_own() -> None:
    """So that the errors of the estimates do not add up."""
    process, numbers = GaussianDiffusion(GaussianConfig(schedule="cosine")), []

    def trace(output: Tensor, x: Tensor, k: int) -> Tensor:
        numbers.append(k)
        return torch.zeros(len(x), dtype=torch.float64)

    log_density(x0_predictor(process, gaussian_denoiser(process)), process.levels, pictures(), steps=3, trace=trace)
    assert numbers == list(range(12))


# Models.

SPEC = DataSpec(image_size=4, channels=1, num_classes=3)
NETWORK = UNetConfig(num_channels=32, num_res_blocks=1, channel_mult=(1, 1), attention_resolutions=(2,), dropout=0.2)


def model(**settings: Any) -> ADM:
    diffusion = GaussianConfig(**({"steps": 100, "schedule": "cosine", "mean": "v"} | settings))
    made = seeded_build(ADMConfig(network=NETWORK, diffusion=diffusion, class_conditional=True), SPEC, seed=0)
    assert isinstance(made, ADM)
    torch.manual_seed(0)
    for parameter in made.network.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.02)
    return made.eval()


def batch(count: int = 5) -> Batch:
    generator = torch.Generator().manual_seed(5)
    images = torch.randint(0, 256, (count, 1, 4, 4), generator=generator) / 127.5 - 1
    return Batch(images, torch.randint(0, 3, (count,), generator=generator), torch.arange(count))


def test_log_prob_is_the_density_of_a_bin() -> None:
    made, given, settings = model(), batch(), FlowODEConfig(steps=3)
    assert isinstance(made, Likelihood) and isinstance(made, VariationalBound)
    drawn = rng(5).uniform("dequantization", 1, 4, 4)
    noisy = given.images + (2 * drawn - 1) / 255
    trace = estimated_trace(rng(5), probes=1)
    density = log_density(made.predictor(given.labels), made.diffusion.levels, noisy, steps=3, trace=trace)
    value = made.log_prob(given, rng(5), settings=settings)
    torch.testing.assert_close(value, density - 16 * math.log(255 / 2), atol=1e-4, rtol=0)
    assert BIN == 2 / 255 and not value.requires_grad
    assert not torch.allclose(made.log_prob(given, rng(5, "other"), settings=settings), value)


def test_an_8_bit_gaussian() -> None:
    """The mean of the estimate over the noise is below the log of the probability of the bins, by little where they are narrow."""
    process = GaussianDiffusion(GaussianConfig(schedule="cosine"))
    image = ((pictures(1) + 1) * 127.5).round() / 127.5 - 1
    many = image.repeat(64, 1, 1, 1)
    settings = FlowODEConfig(steps=60, probes=None)
    value = log_prob(x0_predictor(process, gaussian_denoiser(process)), process.levels, many, rng(64), settings=settings).mean()
    component = torch.distributions.Normal(MEAN, DEVIATION)
    exact = (component.cdf(image + 1 / 255) - component.cdf(image - 1 / 255)).log().sum()
    assert float(value) == pytest.approx(float(exact), abs=5e-3)


def test_the_estimate_of_a_network_is_around_its_exact_value() -> None:
    made, given = model(), batch(1)
    exact = made.log_prob(given, rng(1), settings=FlowODEConfig(steps=2, probes=None))
    count = 150
    process, denoise = made.diffusion, made.denoiser((given.labels.repeat(count),))  # type: ignore[union-attr]
    noisy = given.images + (rng(1).uniform("dequantization", 1, 4, 4) - 0.5) * BIN
    many = noisy.repeat(count, 1, 1, 1)
    densities = log_density(x0_predictor(process, denoise), process.levels, many, steps=2, trace=estimated_trace(rng(count), probes=1))
    estimates = densities + 16 * math.log(BIN)
    error = float(estimates.std()) / math.sqrt(count)
    assert error > 0.005
    assert abs(float(estimates.mean() - exact)) < 3.5 * error


@pytest.mark.usefixtures("float64")
def test_an_image_does_not_depend_on_its_batch() -> None:
    made, given, settings = model(variance="learned_range"), batch(), FlowODEConfig(steps=4)
    whole = made.log_prob(given, rng(5), settings=settings)
    for part in (slice(0, 1), slice(1, 4), slice(4, 5)):
        torch.testing.assert_close(made.log_prob(given[part], rng(5)[part], settings=settings), whole[part], atol=1e-3, rtol=1e-5)
    assert not torch.allclose(whole[0], whole[1], atol=0.1)


def test_the_label_and_the_settings_matter() -> None:
    made, given = model(), batch()
    value = made.log_prob(given, rng(5), settings=FlowODEConfig(steps=2))
    other = Batch(given.images, (given.labels + 1) % 3, given.index)  # type: ignore[operator]
    assert not torch.allclose(made.log_prob(other, rng(5), settings=FlowODEConfig(steps=2)), value)
    assert not torch.equal(made.log_prob(given, rng(5), settings=FlowODEConfig(steps=2, probes=2)), value)
    assert made.likelihood == FlowODEConfig()


def test_what_has_no_flow_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^likelihood: got ode, but this model predicts previous_x.*use bound$"):
        model(mean="previous_x").log_prob(batch(), rng(5))
    for name in ("steps", "probes"):
        with pytest.raises(ConfigError, match=f"{name}: got 0, expected at least 1"):
            FlowODEConfig(**{name: 0})


def test_the_bound_names_its_timesteps() -> None:
    made = model()
    assert made.bound(batch(), rng(5)).timesteps == tuple(range(99, -1, -1))
    assert made.bound(batch(), rng(5), steps=3).timesteps == (99, 50, 0)
