"""Guidance: the arithmetic of the original, and distributions in closed form."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.diffusion import recorded
from tests.diffusion.test_parity import CLIP, FLOAT32, chain, denoise, draws, given, model  # noqa: F401 (model is a fixture)
from triptych.core.batch import Batch, DataSpec
from triptych.core.errors import ConfigError
from triptych.core.model import Guidable, Sampler, seeded_build
from triptych.core.rng import Rng
from triptych.diffusion.adm import ADM, ADMConfig
from triptych.diffusion.classifier import ClassifierConfig, NoisyClassifier
from triptych.diffusion.gaussian import Coefficients, GaussianConfig, GaussianDiffusion, NoiseConfig
from triptych.diffusion.guidance import classifier_score, extrapolated, extrapolated_image, in_terms_of, retimed, same_noise, up_to, within
from triptych.diffusion.guided import Guide
from triptych.diffusion.model import SamplingConfig
from triptych.diffusion.samplers import Predictor, SamplerName, ancestral_steps, ddim_steps, x0_predictor
from triptych.diffusion.solvers import SOLVERS
from triptych.diffusion.unet import NO_LABEL, EncoderConfig, UNetConfig

DIFFERENT = [name for name in get_args(SamplerName) if name not in ("ode-euler", "ode-rk4")]
"""The samplers, without those that are ode-heun in fewer and in more calls."""

with np.load(recorded.GOLDEN / "guidance.npz") as file:
    ARRAYS = {key: torch.from_numpy(file[key]) for key in file.files}


# The arithmetic of the original.


def recorded_score(scale: float = 3.0):
    weights = recorded.array("guide/w", (5, 3 * 32 * 32), 0.05)

    def classify(x: Tensor, c: Coefficients) -> Tensor:
        return (x.flatten(1) @ weights.T) * (1 + c.times(x)[:, None] / 1000)

    return classifier_score(classify, torch.tensor([1, 4]), scale=scale)


def test_ancestral_steps_under_a_classifier(model: ADM) -> None:  # noqa: F811
    x = given("x")
    *_, last = ancestral_steps(chain(model, "10"), denoise(model), x, noise=draws("anc", x), hook=CLIP, score=recorded_score())
    torch.testing.assert_close(last.sample, ARRAYS["ancestral10"], atol=FLOAT32, rtol=0)


def test_ddim_under_a_classifier(model: ADM) -> None:  # noqa: F811
    x, process = given("x"), chain(model, "ddim10")
    predict = x0_predictor(process, denoise(model), hook=CLIP, score=recorded_score())
    *_, last = ddim_steps(process, predict, x, noise=draws("none", x))
    torch.testing.assert_close(last.sample, ARRAYS["ddim10"], atol=FLOAT32, rtol=0)
    again = x0_predictor(process, denoise(model), hook=CLIP, score=recorded_score(), hook_again=True)
    assert all(step.x0.abs().max() <= 1 for step in ddim_steps(process, again, x, noise=draws("none", x)))


# A mixture of two Gaussians, whose denoiser and classifier are known.

CENTRES, DEVIATION = torch.tensor([-0.6, 0.4], dtype=torch.float64), 0.1


def responsibilities(x: Tensor, c: Coefficients) -> Tensor:
    """Log of p(x_t | class), for a pixel each: (b, 2)."""
    variance = c.abar * DEVIATION**2 + 1 - c.abar
    return -((x.flatten(1) - c.sqrt_abar * CENTRES) ** 2) / (2 * variance)


def class_denoiser(labels: Tensor | None):
    """epsilon of the mixture, or of the class of each sample."""

    def eps(x: Tensor, c: Coefficients) -> Tensor:
        variance = c.abar * DEVIATION**2 + 1 - c.abar
        means = c.sqrt_noise * (x.flatten(1) - c.sqrt_abar * CENTRES) / variance
        if labels is not None:
            return means.gather(1, labels[:, None]).view_as(x)
        return (responsibilities(x, c).softmax(1) * means).sum(1).view_as(x)

    return eps


def mixture(count: int = 1024) -> tuple[GaussianDiffusion, Tensor, Tensor, Rng]:
    rng = Rng(1, ("sample",), torch.arange(count))
    process = GaussianDiffusion(GaussianConfig(schedule="cosine", variance="fixed_small", steps=400))
    return process, rng.normal("initial", 1, 1, 1).double(), torch.arange(count) % 2, rng


@pytest.mark.parametrize("sampler", ["ancestral", "ddim"])
def test_a_classifier_at_scale_1_makes_an_unconditional_model_conditional(sampler: str) -> None:
    """Bayes: score(x | y) = score(x) + grad log p(y | x). Each class then has its own mean and deviation."""
    process, x, labels, rng = mixture()
    score = classifier_score(responsibilities, labels, scale=1.0)
    if sampler == "ancestral":
        steps = ancestral_steps(process, class_denoiser(None), x, noise=lambda i: rng.normal(f"{i}", 1, 1, 1).double(), score=score)
    else:
        steps = ddim_steps(process, x0_predictor(process, class_denoiser(None), score=score), x, noise=lambda i: x)
    *_, last = steps
    for label in (0, 1):
        values = last.sample[labels == label]
        assert float(values.mean()) == pytest.approx(float(CENTRES[label]), abs=0.02)
        assert float(values.std()) == pytest.approx(DEVIATION, rel=0.1)


def test_a_larger_scale_sharpens() -> None:
    """Near the border of the classes the classifier decides; the farther one is pushed, the surer it is."""
    process, x, labels, _ = mixture(256)
    sureness = []
    for scale in (0.0, 0.2, 1.0, 3.0):
        score = classifier_score(responsibilities, labels, scale=scale)
        *_, last = ddim_steps(process, x0_predictor(process, class_denoiser(None), score=score), x, noise=lambda i: x)
        right = responsibilities(last.sample, process.at_step(150)).softmax(1).gather(1, labels[:, None])
        sureness.append(float(right.mean()))
    assert sureness == sorted(sureness) and sureness[0] < 0.6 < 0.75 < sureness[-1]


@pytest.mark.parametrize("interval", [None, (0.5, 2.0)])
def test_extrapolation(interval: tuple[float, float] | None) -> None:
    """weak + w (strong - weak) on the mean half only, inside the interval only."""
    config = GaussianConfig(schedule="cosine", variance="learned_range")
    process, x = GaussianDiffusion(config), torch.zeros(2, 1, 2, 2)
    strong, weak = torch.full((2, 2, 2, 2), 2.0), torch.full((2, 1, 2, 2), 0.5)
    asked: list[float] = []

    def other(x: Tensor, c: Coefficients) -> Tensor:
        asked.append(c.sigma)
        return weak

    guided = extrapolated(process, lambda x, c: strong, other, scale=3.0, interval=interval)
    for step in (50, 300, 500, 700, 900):
        c = process.at_step(step)
        output = guided(x, c)
        inside = interval is None or interval[0] < c.sigma <= interval[1]
        assert (output[:, 0] == (5.0 if inside else 2.0)).all() and (output[:, 1] == 2.0).all()
    assert len(asked) == (5 if interval is None else 3)
    assert (extrapolated(process, lambda x, c: strong, other, scale=1.0)(x, c) == strong).all()
    assert len(asked) == (5 if interval is None else 3), "at scale 1 the weaker one is not asked"


@pytest.mark.parametrize("interval", [None, (0.5, 2.0)])
def test_extrapolation_of_images(interval: tuple[float, float] | None) -> None:
    process, x, asked = GaussianDiffusion(GaussianConfig(schedule="cosine")), torch.zeros(2, 1, 2, 2), list[float]()

    def weak(x: Tensor, c: Coefficients) -> Tensor:
        asked.append(c.sigma)
        return x + 0.5

    guided, plain = (extrapolated_image(lambda x, c: x + 2, weak, scale=scale, interval=interval) for scale in (3.0, 1.0))
    points = [process.at_step(step) for step in (50, 300, 500, 700, 900)]
    inside = [c.sigma for c in points if interval is None or interval[0] < c.sigma <= interval[1]]
    assert [float(guided(x, c).mean()) for c in points] == [5.0 if c.sigma in inside else 2.0 for c in points]
    assert all((plain(x, c) == 2).all() for c in points)
    assert asked == inside, "outside of the interval and at scale 1 the weaker one is not asked"


def test_the_interval_of_a_classifier() -> None:
    process, x, labels, _ = mixture(4)
    score = classifier_score(responsibilities, labels, scale=2.0, interval=(0.5, 2.0))
    levels = [process.at_step(step) for step in range(0, 400, 20)]
    assert [score(x, c) is not None for c in levels] == [0.5 < c.sigma <= 2.0 for c in levels]
    inside = process.at_step(process.steps // 2)
    doubled = classifier_score(responsibilities, labels, scale=1.0)(x, inside)
    assert doubled is not None
    torch.testing.assert_close(score(x, inside), 2 * doubled)


def test_the_interval_has_its_upper_end_and_not_its_lower_one() -> None:
    process = GaussianDiffusion(GaussianConfig(schedule="cosine"))
    low, middle, high = (process.at_step(step) for step in (200, 400, 600))
    assert [within((low.sigma, high.sigma), c) for c in (low, middle, high)] == [False, True, True]
    below = up_to(lambda x, c: x, middle.sigma)
    assert [below(torch.zeros(1), c) is not None for c in (low, middle, high)] == [True, True, False]


def test_another_parametrization_says_the_same() -> None:
    """eps of a model that predicts v and counts time otherwise."""
    plain, other = GaussianConfig(steps=500), GaussianConfig(steps=500, mean="v", variance="learned_range", rescale_timesteps=True)
    process, theirs = GaussianDiffusion(plain), GaussianDiffusion(other)
    generator = torch.Generator().manual_seed(0)
    x0, noise = torch.randn(2, 3, 1, 4, 4, generator=generator)
    seen: list[float] = []

    def v(x: Tensor, c: Coefficients) -> Tensor:
        seen.append(c.time)
        return torch.cat((c.sqrt_abar * noise - c.sqrt_noise * x0, noise), dim=1)

    for step in (3, 250, 499):
        c = process.at_step(step)
        predict = x0_predictor(theirs, v)
        said = in_terms_of(process, lambda x, c: predict(x, retimed(c, plain, other)))(process.noised(x0, noise, c), c)  # noqa: B023
        torch.testing.assert_close(said, noise, atol=1e-4, rtol=1e-4)
    assert seen == [6.0, 500.0, 998.0]
    assert retimed(theirs.at_step(250), other, plain).time == 250


# Whole models.

NETWORK = UNetConfig(num_channels=32, num_res_blocks=1, channel_mult=(1, 1), attention_resolutions=(4,), num_head_channels=16)
SPEC = DataSpec(image_size=8, channels=1, num_classes=3)


def adm(spec: DataSpec = SPEC, **settings: Any) -> ADM:
    diffusion = GaussianConfig(steps=50, schedule="cosine")
    made = seeded_build(ADMConfig(**({"network": NETWORK, "diffusion": diffusion, "class_conditional": True} | settings)), spec, seed=0)
    assert isinstance(made, ADM)
    return moved(made)  # type: ignore[return-value]


def classifier(spec: DataSpec = SPEC, **noise: Any) -> NoisyClassifier:
    network = EncoderConfig(
        num_channels=64, num_res_blocks=1, channel_mult=(1, 1), attention_resolutions=(spec.image_size // 2,), num_head_channels=64
    )
    made = seeded_build(ClassifierConfig(network=network, noise=NoiseConfig(**({"steps": 50, "schedule": "cosine"} | noise))), spec, seed=1)
    return moved(made)  # type: ignore[return-value]


def moved(made: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return made.eval()


def sampled(made: nn.Module, *, labels: list[int] | None, **settings: Any) -> Tensor:
    assert isinstance(made, Sampler)
    rng = Rng(9, ("sample",), torch.arange(4))
    return made.sample(rng, labels=None if labels is None else torch.tensor(labels), settings=SamplingConfig(**({"steps": 5} | settings)))


@pytest.mark.usefixtures("float64")
def test_a_classifier_leads_an_unconditional_model_by_labels() -> None:
    plain = adm(class_conditional=False)
    assert isinstance(plain, Guidable)
    led = plain.guided_by(classifier()).eval()
    assert led.num_classes == 3
    unguided = sampled(plain, labels=None)
    torch.testing.assert_close(sampled(led, labels=[0, 1, 2, 0], guidance_scale=0.0), unguided)
    one, other = (sampled(led, labels=labels, guidance_scale=20.0) for labels in ([0, 1, 2, 0], [0, 1, 2, 1]))
    torch.testing.assert_close(one[:3], other[:3], atol=1e-5, rtol=0)
    assert (one[3] - other[3]).abs().max() > 1e-3 and (one[0] - unguided[0]).abs().max() > 1e-3
    with pytest.raises(ConfigError, match="labels: this model needs labels"):
        sampled(led, labels=None)
    both = adm().guided_by(classifier()).eval()
    assert (sampled(both, labels=[0, 1, 2, 0], guidance_scale=20.0) - sampled(adm(), labels=[0, 1, 2, 0])).abs().max() > 1e-3


def test_a_guide_that_does_not_fit_is_refused_by_name() -> None:
    plain = adm()
    for guide, message in (
        (classifier(DataSpec(image_size=16, channels=1, num_classes=3)), "guide: its images have 16 pixels, this model's 8"),
        (classifier(DataSpec(image_size=8, channels=3, num_classes=3)), r"guide: its images have 3 channels, this model's 1"),
        (classifier(DataSpec(image_size=8, channels=1, num_classes=4)), "guide: it tells 4 classes apart, this model has 3"),
        (classifier(schedule="linear"), "guide: its noise schedule is 50 steps linear, this model's 50 steps cosine"),
        (classifier(betas=(0.05,) * 50), "guide: its noise schedule is 50 steps of a table, this model's 50 steps cosine"),
        (classifier(steps=60), "guide: its noise schedule is 60 steps cosine, this model's 50 steps cosine"),
        (adm(), "guide: ADM is no classifier of noisy images"),
    ):
        with pytest.raises(ConfigError, match=message):
            plain.guided_by(guide)
    for weaker, message in (
        (adm(diffusion=GaussianConfig(steps=50)), "guide_with: its noise schedule is 50 steps linear"),
        (adm(DataSpec(image_size=8, channels=1, num_classes=4)), "guide_with: it has 4 classes, this model has 3"),
        (classifier(), "guide_with: NoisyClassifier is no diffusion model"),
    ):
        with pytest.raises(ConfigError, match=message):
            plain.guided_with(weaker)
    with pytest.raises(ConfigError, match="guide_with: it has 3 classes, this model has none"):
        adm(class_conditional=False).guided_with(adm())


def test_the_same_noise_said_otherwise() -> None:
    config = NoiseConfig(steps=50, schedule="cosine", rescale_timesteps=True)
    assert same_noise(config, GaussianConfig(steps=50, betas=tuple(config.table().tolist())))


@pytest.mark.parametrize("sampler", DIFFERENT)
def test_every_sampler_goes_by_the_classifier(sampler: SamplerName) -> None:
    """At the sample's own noise levels, in the classifier's time; from sigma = 80 on in a solver's long steps."""
    plain, guide = adm(class_conditional=False), classifier(rescale_timesteps=True)
    led, classify, asked = plain.guided_by(guide).eval(), guide.classify, []

    def spy(x: Tensor, c: Coefficients) -> Tensor:
        asked.append((c.sigma, c.time))
        return classify(x, c)

    guide.classify = spy  # type: ignore[method-assign]
    settings: dict[str, Any] = {"sampler": sampler, "steps": 6}
    unguided = sampled(plain, labels=None, **settings)
    guided = sampled(led, labels=[0, 1, 2, 0], guidance_scale=20.0, **settings)
    assert (guided - unguided).abs().max() > 1e-3
    assert all(time == pytest.approx(20 * plain.diffusion.time_of(sigma), abs=1e-6) for sigma, time in asked)
    on_timesteps = sampler in ("ancestral", "ddim")
    assert (max(asked)[0] > 80) == on_timesteps
    assert len(asked) == {"heun": 9, "ode-heun": 10}.get(sampler, 5 + on_timesteps)
    inside = [entry for entry in asked if 0.1 < entry[0] <= 2.0]
    asked.clear()
    assert not torch.equal(sampled(led, labels=[0, 1, 2, 0], guidance_scale=20.0, guidance_interval=(0.1, 2.0), **settings), guided)
    assert asked == inside and inside


@pytest.mark.parametrize("sampler", ["ddim", *sorted(SOLVERS)])
def test_a_score_of_pure_noise_does_not_throw_a_solver_out(sampler: SamplerName) -> None:
    """x_0 moves by sigma^2 / sqrt(1 + sigma^2) times the score: 20,000 times, where the cosine schedule ends and no image is left."""
    process, _, labels, rng = mixture(64)
    exact = classifier_score(responsibilities, labels, scale=1.0)
    plain = adm(class_conditional=False, diffusion=process.config)
    plain.diffusion, plain.network = process, MixtureNetwork(process)  # type: ignore[assignment]

    def score(x: Tensor, c: Coefficients) -> Tensor | None:
        gradient = exact(x, c)
        assert gradient is not None
        return gradient + (0.02 if c.sigma > 80 else 0.0)  # a network is never exactly right

    settings = SamplingConfig(sampler=sampler, steps=20, guidance_scale=1.0, clip=False)
    plain.image_shape = (1, 1, 1)
    steps = list(plain.sample_progressive(rng, settings=settings, guide=Guide(score=score)))
    assert max(float(step.sample.std()) for step in steps) < 1.5
    for label in (0, 1):
        values = steps[-1].sample[labels == label]
        assert float(values.mean()) == pytest.approx(float(CENTRES[label]), abs=0.08)


class MixtureNetwork(nn.Module):
    """epsilon of the mixture at the network's times."""

    def __init__(self, process: GaussianDiffusion) -> None:
        super().__init__()
        self.process = process

    def forward(self, x: Tensor, t: Tensor, labels: None) -> Tensor:
        return class_denoiser(None)(x.double(), self.process.at_time(float(t[0]))).float()


def test_clipping_after_the_shift() -> None:
    led, labels, rng = adm(class_conditional=False).guided_by(classifier()).eval(), torch.tensor([0, 1, 2, 0]), Rng(9, (), torch.arange(4))
    largest = []
    for again in (False, True):
        settings = SamplingConfig(sampler="ddim", steps=5, guidance_scale=20.0, clip_guided=again)
        steps = led.model.sample_progressive(rng, settings=settings, guide=led._guide(labels, settings))
        largest.append(max(float(step.x0.abs().max()) for step in steps))
    assert largest[0] > 1.01 and largest[1] <= 1


@pytest.mark.usefixtures("float64")
def test_away_from_a_weaker_model() -> None:
    """From itself there is nowhere to go; from another, farther at a larger scale; at scale 1 it is not asked."""
    strong, weaker, labels = adm(), adm(network=NETWORK.updated({"num_res_blocks": 2})), [0, 1, 2, 0]
    plain = sampled(strong, labels=labels)
    torch.testing.assert_close(sampled(strong.guided_with(strong), labels=labels, guidance_scale=3.0), plain, atol=1e-4, rtol=0)
    led = strong.guided_with(weaker).eval()
    assert torch.equal(sampled(led, labels=labels, guidance_scale=1.0), plain)
    near, far = ((sampled(led, labels=labels, guidance_scale=scale) - plain).abs().mean() for scale in (1.2, 2.0))
    assert 1e-4 < near < far
    unconditional = adm(class_conditional=False)
    assert not torch.equal(sampled(strong.guided_with(unconditional), labels=labels, guidance_scale=2.0), plain)


class Still(nn.Module):
    """Knows one flat image of each class at any noise level, without a table of timesteps."""

    image_shape, num_classes, noise = (1, 8, 8), 3, None

    def __init__(self) -> None:
        super().__init__()
        self.levels: list[float] = []


class StillModel(Still):
    largest_sigma = math.inf

    def predictor(self, labels: Tensor | None) -> Predictor:
        assert labels is not None

        def predict(x: Tensor, c: Coefficients) -> Tensor:
            self.levels.append(c.sigma)
            return ((labels.to(x.dtype) - 1) / 2)[:, None, None, None].expand_as(x)

        return predict


class StillClassifier(Still):
    def classify(self, x: Tensor, c: Coefficients) -> Tensor:
        self.levels.append(c.sigma)
        images = ((torch.arange(3) - 1) / 2).to(x.dtype)
        return -(x[:, None] / c.sqrt_abar - images[:, None, None, None]).square().sum((2, 3, 4)) / (2 * c.sigma**2)


def test_any_model_that_keeps_the_protocol_may_guide() -> None:
    plain, labels = adm(), [0, 1, 2, 0]
    unguided = sampled(plain, labels=labels)
    weaker, guide = StillModel(), StillClassifier()
    away = sampled(plain.guided_with(weaker), labels=labels, guidance_scale=2.0)  # type: ignore[arg-type]
    means, before = away.mean((1, 2, 3)), unguided.mean((1, 2, 3))
    assert means[0] > before[0] and means[2] < before[2]  # away from -1/2, and from 1/2
    near = sampled(plain.guided_by(guide), labels=labels).mean((1, 2, 3))  # type: ignore[arg-type]
    assert near[0] < before[0] and near[2] > before[2]
    assert weaker.levels == guide.levels and len(weaker.levels) == 5 and min(weaker.levels) > 0
    bounded = StillModel()
    bounded.largest_sigma = 5.0
    sampled(plain.guided_with(bounded), labels=labels, guidance_scale=2.0)  # type: ignore[arg-type]
    assert bounded.levels == pytest.approx([min(level, 5.0) for level in guide.levels]) and max(guide.levels) > 5
    for size, said in (
        ((16, 16), "16 pixels, this model's 8; give one trained at 8"),
        ((8, 12), "8 x 12 pixels, this model's 8; give one"),
    ):
        weaker.image_shape = (1, *size)
        with pytest.raises(ConfigError, match=f"guide_with: its images have {said}"):
            plain.guided_with(weaker)  # type: ignore[arg-type]


# Without labels and with them: classifier-free guidance.


def test_classifier_free_guidance() -> None:
    made, labels = adm(label_dropout=0.1), [0, 1, 2, 0]
    plain = sampled(made, labels=labels)
    guided = sampled(made, labels=labels, guidance_scale=3.0)
    assert (guided - plain).abs().max() > 1e-3
    rng = Rng(9, ("sample",), torch.arange(4))
    told, alone = (made.denoiser((torch.tensor(y),)) for y in (labels, [NO_LABEL] * 4))
    process = made.diffusion.respaced([3, 20, 45])
    x, c = rng.normal("initial", 1, 8, 8), process.at_step(2)
    expected = process.x0_from(alone(x, c) + 3 * (told(x, c) - alone(x, c)), x, c).clamp(-1, 1)
    settings = SamplingConfig(steps=3, sampler="ddim", guidance_scale=3.0)
    made.diffusion.respaced = lambda kept: process  # type: ignore[method-assign]
    first = next(iter(made.sample_progressive(rng, labels=torch.tensor(labels), settings=settings)))
    torch.testing.assert_close(first.x0, expected.detach(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("sampler", DIFFERENT)
def test_every_sampler_goes_without_classifier(sampler: SamplerName) -> None:
    """With a learned variance, which has no part in it; and inside the interval alone."""
    made = adm(label_dropout=0.1, diffusion=GaussianConfig(steps=50, schedule="cosine", variance="learned_range"))
    labels, settings = [0, 1, 2, 0], {"sampler": sampler, "steps": 5}
    plain, guided = (sampled(made, labels=labels, guidance_scale=scale, **settings) for scale in (1.0, 3.0))
    assert (guided - plain).abs().max() > 1e-3
    assert torch.equal(sampled(made, labels=labels, guidance_scale=3.0, guidance_interval=(1e5, 1e6), **settings), plain)


def test_guidance_that_there_is_nothing_for() -> None:
    with pytest.raises(ConfigError, match=r"guidance_scale: got 2\.0, but this model was not trained with model\.label_dropout"):
        sampled(adm(), labels=[0, 1, 2, 0], guidance_scale=2.0)
    with pytest.raises(ConfigError, match=r"guidance_interval: got 0\.5, 2\.0, but nothing guides"):
        sampled(adm(), labels=[0, 1, 2, 0], guidance_interval=(0.5, 2.0))
    with pytest.raises(ConfigError, match="guidance_scale: got inf, expected 0 or more"):
        SamplingConfig(guidance_scale=math.inf)
    with pytest.raises(ConfigError, match="label_dropout: got 0.1, expected 0 where class_conditional is false"):
        adm(class_conditional=False, label_dropout=0.1)
    # The grids of the training would fail, hours later.
    with pytest.raises(ConfigError, match=r"sampling\.guidance_scale: got 2\.0, expected 1 in a model without label_dropout"):
        adm(sampling=SamplingConfig(guidance_scale=2.0))
    interval = (0.5, 2.0)
    with pytest.raises(ConfigError) as raised:
        adm(label_dropout=0.1, sampling=SamplingConfig(guidance_interval=interval))
    advice = "expected nothing with guidance_scale 1; the interval of a guide is given when sampling"
    assert str(raised.value) == f"sampling.guidance_interval: got 0.5, 2.0, {advice}"
    both = SamplingConfig(guidance_scale=2.0, guidance_interval=interval)
    assert adm(label_dropout=0.1, sampling=both).sampling.guidance_interval == interval
    assert adm(label_dropout=0.1, sampling=SamplingConfig(guidance_scale=2.0)).sampling.guidance_scale == 2.0
    for name, value, message in (("guidance_scale", -1.0, "0 or more"), ("guidance_interval", (2.0, 1.0), "the smaller one first")):
        with pytest.raises(ConfigError, match=message):
            SamplingConfig(**{name: value})  # type: ignore[arg-type]


def test_a_network_told_no_label_does_not_see_the_table_of_classes() -> None:
    network = adm().network
    x, t = torch.randn(2, 1, 8, 8), torch.tensor([3.0, 30.0])
    before = network(x, t, torch.tensor([NO_LABEL, 1]))
    with torch.no_grad():
        network.label_emb.weight.add_(1.0)
    after = network(x, t, torch.tensor([NO_LABEL, 1]))
    torch.testing.assert_close(after[0], before[0])
    assert (after[1] - before[1]).abs().max() > 1e-3
    first, second = (network(x, t, torch.tensor([label, label])) for label in (0, 1))
    assert ((first - second).abs().amax((1, 2, 3)) > 1e-4).all(), "the first class is no less a class than the others"
    (network(x, t, torch.tensor([NO_LABEL, 1])) ** 2).sum().backward()
    assert network.label_emb.weight.grad is not None
    assert network.label_emb.weight.grad[1].any() and not network.label_emb.weight.grad[[0, 2]].any()


def test_labels_are_dropped_in_training_alone_and_by_the_sample() -> None:
    made = adm(label_dropout=0.3)
    count = 2000
    batch = Batch(torch.zeros(count, 1, 8, 8), torch.ones(count, dtype=torch.int64), torch.arange(count))
    rng = Rng(0, ("denoise", 0), batch.index)
    assert made._told(made.conditions(batch), rng)[-1] is batch.labels, "in evaluation mode every label is told"
    made.train()
    told = made._told(made.conditions(batch), rng)[-1]
    assert told is not None and set(told.tolist()) == {NO_LABEL, 1}
    assert float((told == NO_LABEL).float().mean()) == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / count))
    part = made._told(made.conditions(batch[100:200]), rng[100:200])[-1]
    assert part is not None and torch.equal(part, told[100:200])
