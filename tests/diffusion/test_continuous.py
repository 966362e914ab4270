"""Models of any noise level, with data whose denoiser is known in closed form."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from triptych.core.batch import Batch, DataSpec
from triptych.core.config import config
from triptych.core.errors import ConfigError
from triptych.core.model import Encoder, Guidable, Likelihood, LossTerms, Sampler, seeded_build
from triptych.core.rng import Rng
from triptych.diffusion.adm import ADMConfig
from triptych.diffusion.classifier import ClassifierConfig
from triptych.diffusion.continuous import ContinuousConfig, FlowEncodingConfig, LevelSamplingConfig, level
from triptych.diffusion.gaussian import Coefficients
from triptych.diffusion.guided import Guide
from triptych.diffusion.likelihood import FlowODEConfig
from triptych.diffusion.preconditioned import PreconditionedModel
from triptych.diffusion.solvers import Churn
from triptych.diffusion.unet import NO_LABEL, EncoderConfig, UNetConfig

MEANS, DEVIATION = (-0.5, 0.1, 0.4), 0.2
SPEC = DataSpec(image_size=4, channels=1, num_classes=3)


@config
class KnownConfig(ContinuousConfig):
    """Pixels from N(mean of the class, 0.2^2), independent of one another; without a label from N(0, 0.2^2)."""

    class_conditional: bool = True

    def build(self, spec: DataSpec) -> Known:
        return Known(self, spec)


class Known(PreconditionedModel):
    def __init__(self, config: KnownConfig, spec: DataSpec) -> None:
        super().__init__(config, spec)
        self.network = nn.Identity()
        self.calls: list[tuple[Tensor, Tensor]] = []

    def predict(self, x: Tensor, sigma: Tensor, labels: Tensor | None, rng: Rng | None = None) -> Tensor:
        self.calls.append((x, sigma))
        mean = x.new_zeros(len(x)) if labels is None else x.new_tensor((*MEANS, 0.0))[labels]  # NO_LABEL is -1: the last one
        mean = mean[:, None, None, None]
        return mean + DEVIATION**2 / (DEVIATION**2 + sigma**2) * (x - mean)

    def loss(self, phase: Any, batch: Batch, rng: Rng) -> LossTerms:
        raise AssertionError("its denoiser is known, so nothing trains it")


def made(spec: DataSpec = SPEC, **settings: Any) -> Known:
    return Known(KnownConfig(**settings), spec).eval()


def rng(count: int, *stream: str) -> Rng:
    return Rng(7, stream, torch.arange(count))


def published(points: list[float], denoise: Any, n: Any, *, churn: float, low: float, high: float, deviation: float, heun: bool) -> Tensor:
    """Algorithm 2 of Karras et al. (2022), line by line; churn 0 makes it Algorithm 1. `n(i)`: the draw of a step, n(-1) the first.

    Without `heun` there is no second half of a step.
    """
    x, steps = points[0] * n(-1), len(points)
    for i, (t, following) in enumerate(zip(points, [*points[1:], 0.0], strict=True)):
        gamma = min(churn / steps, math.sqrt(2) - 1) if low <= t <= high else 0.0
        raised = t + gamma * t
        if gamma > 0:
            x = x + math.sqrt(raised**2 - t**2) * deviation * n(i)
        slope = (x - denoise(x, raised)) / raised
        ahead = x + (following - raised) * slope
        if following != 0 and heun:
            there = (ahead - denoise(ahead, following)) / following
            ahead = x + (following - raised) * (slope / 2 + there / 2)
        x = ahead
    return x


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "churn",
    [
        {},
        {"churn": 5.0, "churn_min": 0.05, "churn_max": 50.0, "churn_noise": 1.003},
        {"churn": 40.0},
        {"churn": 2.0},
        {"churn": 2.0, "sampler": "euler"},
    ],
)
def test_the_published_sampler(churn: dict[str, Any]) -> None:
    model, labels = made(), torch.tensor([0, 1, 2, 1])
    settings = LevelSamplingConfig(steps=8, sigma_max=90.0, **churn)
    found = model.sample(rng(4), labels=labels, settings=settings)
    powers = [90 ** (1 / 7) + i / 7 * (0.002 ** (1 / 7) - 90 ** (1 / 7)) for i in range(8)]

    def n(i: int) -> Tensor:
        return rng(4).normal("initial" if i < 0 else f"step/{i}", 1, 4, 4).double()

    mean = torch.tensor(MEANS)[labels][:, None, None, None]
    expected = published(
        [power**7 for power in powers],
        lambda x, sigma: mean + DEVIATION**2 / (DEVIATION**2 + sigma**2) * (x - mean),
        n,
        churn=settings.churn,
        low=settings.churn_min,
        high=math.inf if settings.churn_max is None else settings.churn_max,
        deviation=settings.churn_noise,
        heun=settings.sampler == "heun",
    )
    torch.testing.assert_close(found, expected.clamp(-1, 1), atol=1e-9, rtol=0)


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("sampler", ["heun", "euler"])
def test_network_calls_and_levels(sampler: Any, steps: int) -> None:
    model = made()
    model.sample(rng(2), labels=torch.tensor([0, 1]), settings=LevelSamplingConfig(sampler=sampler, steps=steps))
    assert len(model.calls) == (2 * steps - 1 if sampler == "heun" else steps)
    sigmas = [float(sigma[0]) for _, sigma in model.calls]
    assert sigmas[0] == 80.0 and all(sigma.shape == (2, 1, 1, 1) for _, sigma in model.calls)
    assert steps == 1 or sigmas[-1] == pytest.approx(0.002)
    assert float(model.calls[0][0].std()) == pytest.approx(80, rel=0.5)  # x itself, not the scaled one


@pytest.mark.usefixtures("float64")
def test_churn_keeps_the_moments() -> None:
    """With a right denoiser, noise that is added and removed leaves mean and variance where they are."""
    model, labels = made(), torch.full((4096,), 2)
    images = model.sample(rng(4096), labels=labels, settings=LevelSamplingConfig(steps=64, churn=30.0))
    assert float(images.mean()) == pytest.approx(MEANS[2], abs=0.005)
    assert float(images.std()) == pytest.approx(DEVIATION, rel=0.02)


def test_churn_by_hand() -> None:
    churn = Churn(level, 8.0, 0.5, 2.0, 1.5)
    c, x = level(1.0), torch.full((1, 1, 1, 1), 0.3)
    raised = churn.raised(c, steps=4)
    assert raised.sigma == pytest.approx(math.sqrt(2))  # the share of 2 is cut
    more = churn.added(x, c, raised, torch.ones(1))
    assert float(more) * math.sqrt(1 + 2) == pytest.approx(0.3 * math.sqrt(2) + 1.5, rel=1e-5)
    assert churn.raised(c, steps=32).sigma == pytest.approx(1.25)
    for unchanged in (level(0.4), level(2.1)):
        assert churn.raised(unchanged, steps=4) is unchanged
    for end in (0.5, 2.0):
        assert churn.raised(level(end), steps=32).sigma == pytest.approx(1.25 * end)


def test_image_k_is_the_same_in_every_batch() -> None:
    model, labels = made(), torch.tensor([0, 1, 2, 0, 1])
    for sampler in ("heun", "dpm++2m-sde"):
        settings = LevelSamplingConfig(sampler=sampler, steps=4, churn=2.0 if sampler == "heun" else 0.0)
        whole = model.sample(rng(5), labels=labels, settings=settings)
        assert torch.equal(model.sample(rng(5)[3:], labels=labels[3:], settings=settings), whole[3:])


@pytest.mark.usefixtures("float64")
def test_images_go_to_noise_and_come_back() -> None:
    model, labels = made(), torch.tensor([0, 1])
    assert isinstance(model, Encoder) and isinstance(model, Sampler) and isinstance(model, Guidable) and isinstance(model, Likelihood)
    noise = rng(2).normal("n", 1, 4, 4).double()
    images = (torch.tensor(MEANS)[labels][:, None, None, None] + DEVIATION * noise).clamp(-1, 1)
    seen: list[tuple[int, int]] = []
    (latent,) = model.encode(images, labels=labels, rng=rng(2), report=lambda done, count: seen.append((done, count)))
    assert seen == [(k, 50) for k in range(1, 51)]
    # The map of a Gaussian is known: the noise at sigma_max is (x - mean) / 0.2 sqrt(0.2^2 + sigma_max^2) + mean, over sigma_max.
    mean = torch.tensor(MEANS)[labels][:, None, None, None]
    expected = ((images - mean) / math.hypot(DEVIATION, 0.002) * math.hypot(DEVIATION, 80) + mean) / 80
    torch.testing.assert_close(latent, expected, atol=2e-3, rtol=0)
    torch.testing.assert_close(model.decode([latent], labels=labels), images, atol=1e-3, rtol=0)
    torch.testing.assert_close(model.decode([latent], labels=labels, settings=FlowEncodingConfig(steps=200)), images, atol=2e-3, rtol=0)
    with pytest.raises(ConfigError, match=r"latents: got the shapes \[\(1, 2, 2\)\] of a sample, expected \[\(1, 4, 4\)\]"):
        model.decode([torch.zeros(2, 1, 2, 2)], labels=labels)


@pytest.mark.usefixtures("float64")
def test_images_are_taken_for_those_at_the_least_noise_and_noise_for_that_at_the_most() -> None:
    """Where the one is not little and the other is not all there is, the factors between x and x_t count."""
    low, high, labels = 0.1, 2.0, torch.tensor([0, 2])
    model = made(sampling=LevelSamplingConfig(sigma_min=low, sigma_max=high))
    mean = torch.tensor(MEANS)[labels][:, None, None, None]
    images = (mean + DEVIATION * rng(2).normal("n", 1, 4, 4).double()).clamp(-1, 1)
    (latent,) = model.encode(images, labels=labels, rng=rng(2))
    expected = ((images - mean) / math.hypot(DEVIATION, low) * math.hypot(DEVIATION, high) + mean) / high
    torch.testing.assert_close(latent, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(model.decode([latent], labels=labels), images, atol=1e-6, rtol=0)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("path", ["linear", "gvp", "vp"])
def test_along_a_path_it_starts_from_noise_and_goes_by_the_levels_of_its_settings(path: Any) -> None:
    model = made()
    settings = LevelSamplingConfig(sampler="ode-euler", flow_path=path, grid="edm", steps=5, rho=3.0, sigma_min=0.05, sigma_max=20.0)
    model.sample(rng(3), labels=torch.tensor([0, 1, 2]), settings=settings)
    asked = [float(sigma.flatten()[0]) for _, sigma in model.calls]
    assert asked == pytest.approx((np.linspace(20 ** (1 / 3), 0.05 ** (1 / 3), 5) ** 3).tolist(), rel=1e-6)
    # Noise alone has the deviation 20 there, noise and an image of deviation 1 sqrt(401).
    torch.testing.assert_close(model.calls[0][0], 20 * rng(3).normal("initial", 1, 4, 4), rtol=2e-3, atol=0)


@pytest.mark.parametrize(("channels", "cut_off"), [(1, True), (4, False)])
def test_decoded_images_are_cut_off_and_decoded_latents_are_not(channels: int, cut_off: bool) -> None:
    model = made(DataSpec(image_size=4, channels=channels, num_classes=3))
    decoded = model.decode([20 * rng(2).normal("n", channels, 4, 4)], labels=torch.tensor([0, 1]))
    assert (float(decoded.abs().max()) == 1) == cut_off and decoded.isfinite().all()


@pytest.mark.usefixtures("float64")
def test_log_prob_of_a_gaussian() -> None:
    model, labels = made(), torch.tensor([1] * 64)
    image = (MEANS[1] + 0.2 * rng(1).normal("n", 1, 4, 4).double()).mul(127.5).round().div(127.5).clamp(-1, 1)
    batch = Batch(image.repeat(64, 1, 1, 1), labels, torch.arange(64))
    found = model.log_prob(batch, rng(64), settings=FlowODEConfig(steps=60, probes=None)).mean()
    known = torch.distributions.Normal(MEANS[1], DEVIATION)
    exact = (known.cdf(image + 1 / 255) - known.cdf(image - 1 / 255)).log().sum()
    assert float(found) == pytest.approx(float(exact), abs=0.05)


@pytest.mark.parametrize(("clip", "most"), [(True, 1.0), (False, 100.0)])
def test_what_each_step_predicts_is_clipped_where_that_is_asked_for(clip: bool, most: float) -> None:
    steps = made().sample_progressive(
        rng(2), labels=torch.tensor([0, 2]), settings=LevelSamplingConfig(steps=3, clip=clip), hook=lambda x0: x0.sign() * 100
    )
    assert [float(step.x0.abs().max()) for step in steps] == [most] * 3


def test_what_is_predicted_is_clipped_before_a_classifier_moves_it_and_not_again() -> None:
    """By (1 - abar) / sqrt(abar) times the score, which is sigma^2 / sqrt(1 + sigma^2)."""
    guide = Guide(score=lambda x, c: torch.full_like(x, 0.01))
    steps = made().sample_progressive(
        rng(2), labels=torch.tensor([0, 2]), settings=LevelSamplingConfig(steps=3, clip=True), guide=guide, hook=lambda x0: x0 * 0 + 100
    )
    for step, sigma in zip(steps, np.linspace(80 ** (1 / 7), 0.002 ** (1 / 7), 3) ** 7, strict=True):
        torch.testing.assert_close(step.x0, torch.full_like(step.x0, 1 + 0.01 * sigma**2 / math.sqrt(1 + sigma**2)))


@pytest.mark.parametrize(("sigma_max", "largest"), [(10.0, 80.0), (80.0, 80.0), (120.0, 120.0)])
def test_where_it_is_asked_when_a_model_that_it_guides_has_more_noise(sigma_max: float, largest: float) -> None:
    assert made(sampling=LevelSamplingConfig(sigma_max=sigma_max)).largest_sigma == largest


def test_without_labels_it_guides_itself() -> None:
    """w = 2: the mean moves twice as far from that without a label, 0; outside of the interval not at all."""
    model, labels = made(label_dropout=0.1), torch.tensor([1] * 8)
    plain, guided = (model.sample(rng(8), labels=labels, settings=LevelSamplingConfig(guidance_scale=scale)) for scale in (1.0, 2.0))
    assert float(guided.mean() - plain.mean()) == pytest.approx(MEANS[1], abs=0.01)
    above = LevelSamplingConfig(guidance_scale=2.0, guidance_interval=(90.0, 100.0))
    assert torch.equal(model.sample(rng(8), labels=labels, settings=above), plain)
    batch, training = Batch(torch.zeros(1000, 1, 4, 4), torch.ones(1000).long(), torch.arange(1000)), model.train()
    told = training.told(batch, rng(1000))
    assert told is not None and 60 < int((told == NO_LABEL).sum()) < 140 and set(told.tolist()) == {1, NO_LABEL}
    assert torch.equal(model.eval().told(batch, rng(1000)), torch.ones(1000).long())  # type: ignore[arg-type]


NETWORK = {"num_channels": 32, "num_res_blocks": 1, "channel_mult": (1,), "attention_resolutions": (), "num_head_channels": 16}


def trained(model: nn.Module) -> nn.Module:
    """With weights that do something."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def test_models_of_timesteps_guide_it_and_it_guides_them() -> None:
    model = made(sampling=LevelSamplingConfig(steps=4))
    classifier = trained(seeded_build(ClassifierConfig(network=EncoderConfig(**NETWORK)), SPEC, seed=0))
    adm = trained(seeded_build(ADMConfig(network=UNetConfig(**NETWORK)), SPEC, seed=0))
    labels, settings = torch.tensor([0, 1, 2]), LevelSamplingConfig(steps=4, guidance_scale=2.0)
    plain = model.sample(rng(3), labels=labels, settings=dataclasses.replace(settings, guidance_scale=1.0))
    for led in (model.guided_by(classifier), model.guided_with(adm), model.guided_with(made(class_conditional=False))):  # type: ignore[arg-type]
        images = led.sample(rng(3), labels=labels, settings=settings)
        assert images.isfinite().all() and not torch.allclose(images, plain)
    by = adm.guided_with(made(class_conditional=False))  # type: ignore[operator]
    drawn = [
        by.sample(rng(2), labels=None, settings=dataclasses.replace(adm.config.sampling, sampler="heun", steps=4, guidance_scale=scale))  # type: ignore[union-attr]
        for scale in (1.0, 2.0)
    ]
    assert not torch.allclose(*drawn)


@pytest.mark.usefixtures("float64")
def test_a_model_of_timesteps_that_knows_the_same_images_leads_it_nowhere() -> None:
    """It is asked at every level up to its last timestep, and there where there is more noise."""
    model, adm, asked = made(class_conditional=False), seeded_build(ADMConfig(network=UNetConfig(**NETWORK)), SPEC, seed=0).eval(), []

    def noise(x: Tensor, c: Coefficients) -> Tensor:
        asked.append(c.sigma)
        return c.sqrt_noise / (c.abar * DEVIATION**2 + c.sqrt_noise**2) * x

    adm.denoiser = lambda conditions: noise  # type: ignore[assignment]
    settings = LevelSamplingConfig(sampler="euler", steps=6, sigma_max=1000.0, guidance_scale=3.0)
    led = model.guided_with(adm).sample(rng(3), labels=None, settings=settings)  # type: ignore[arg-type]
    plain = model.sample(rng(3), labels=None, settings=dataclasses.replace(settings, guidance_scale=1.0))
    torch.testing.assert_close(led, plain, atol=1e-3, rtol=0)
    highest = adm.diffusion.levels.high  # type: ignore[union-attr]
    assert asked == pytest.approx([min(c.sigma, highest) for c in settings.points()]) and 100 < highest < 200  # type: ignore[operator]


def test_a_level_as_timesteps_see_it() -> None:
    model, noise = made(), ADMConfig(network=UNetConfig(**NETWORK)).diffusion
    process = ADMConfig(network=UNetConfig(**NETWORK)).build(SPEC).diffusion
    seen = model.seen_by(level(process.at_step(300).sigma), noise)
    assert seen.time == pytest.approx(300, abs=1e-6) and seen.sigma == process.at_step(300).sigma
    assert model.seen_by(level(1e-9), noise).time == 0 and model.seen_by(level(1e9), noise).time == 999
    assert model.seen_by(own := level(2.0), None) is own


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps"),
        ({"sigma_min": 80.0}, "sigma_min"),
        ({"sigma_min": 1e-50}, "sigma_min: got 1e-50, expected at least 1e-30, and below sigma_max"),
        ({"sigma_max": math.inf}, "sigma_max: got inf, expected at most 1e6"),
        ({"sigma_max": 1e39}, "sigma_max: got 1e\\+39, expected at most 1e6"),
        ({"rho": 0.001}, "rho: got 0.001, expected 0.02 to 1,000,000"),
        ({"rho": 1e17}, "rho: got 1e\\+17"),
        ({"churn": 1.0, "sampler": "unipc"}, "churn"),
        ({"churn_min": 2.0, "churn_max": 1.0}, "churn_min"),
        ({"guidance_interval": (2.0, 1.0)}, "guidance_interval"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LevelSamplingConfig(**settings)


def test_guidance_that_there_is_nothing_for() -> None:
    with pytest.raises(ConfigError, match="label_dropout"):
        made().sample(rng(1), labels=torch.tensor([0]), settings=LevelSamplingConfig(guidance_scale=2.0))
    with pytest.raises(ConfigError, match="nothing guides"):
        made().sample(rng(1), labels=torch.tensor([0]), settings=LevelSamplingConfig(guidance_interval=(0.0, 1.0)))
    with pytest.raises(ConfigError, match=r"sampling\.guidance_scale"):
        KnownConfig(sampling=LevelSamplingConfig(guidance_scale=2.0))
    with pytest.raises(ConfigError, match=r"sampling\.guidance_interval: got 0\.0, 1\.0, expected nothing with guidance_scale 1; the in"):
        KnownConfig(sampling=LevelSamplingConfig(guidance_interval=(0.0, 1.0)))
    with pytest.raises(ConfigError, match="8 pixels, this model.s 4"):
        made().guided_with(made(DataSpec(image_size=8, channels=1, num_classes=3)))


def test_the_published_sampler_is_what_is_meant_without_a_word() -> None:
    """That of CIFAR-10 (Karras et al. 2022, Table 1): nothing is added, clipped or led."""
    settings = LevelSamplingConfig()
    assert (settings.sampler, settings.steps, settings.sigma_min, settings.sigma_max, settings.rho) == ("heun", 18, 0.002, 80, 7)
    assert (settings.churn, settings.churn_noise, settings.clip, settings.guidance_scale) == (0, 1, False, 1)


def test_points_end_exactly_where_they_are_asked_to() -> None:
    sigmas = [c.sigma for c in LevelSamplingConfig(steps=5, rho=3.0, sigma_min=0.01, sigma_max=10.0).points()]
    assert sigmas == pytest.approx((np.linspace(10 ** (1 / 3), 0.01 ** (1 / 3), 5) ** 3).tolist()) and (sigmas[0], sigmas[-1]) == (
        10.0,
        0.01,
    )
