"""Mean flows: the derivative against finite differences, the identity on data whose mean velocity is known, samples."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.forward_ad import unpack_dual

from tests.float64 import in_float64, widened
from triptych.core.batch import Batch, DataSpec
from triptych.core.errors import ConfigError
from triptych.core.model import Model, seeded_build
from triptych.core.rng import Rng
from triptych.diffusion.dit import DiTConfig
from triptych.diffusion.mean_flow import MeanFlow, MeanFlowConfig, MeanFlowSamplingConfig
from triptych.diffusion.networks import NetworkConfig
from triptych.diffusion.unet import NO_LABEL, UNetConfig

SPEC = DataSpec(image_size=16, channels=1, num_classes=3)
TRANSFORMER = DiTConfig(width=16, depth=2, heads=2)
U_NET = UNetConfig(num_channels=32, num_res_blocks=1, channel_mult=(1, 1), attention_resolutions=(8,), num_heads=2, dropout=0.3)
RESAMPLED = dataclasses.replace(U_NET, resblock_updown=True)
MEAN, DEVIATION = 0.2, 0.4


def made(network: NetworkConfig = TRANSFORMER, **settings: Any) -> MeanFlow:
    model = seeded_build(MeanFlowConfig(network=network, **settings), SPEC, seed=0)
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    assert isinstance(model, MeanFlow)
    return model.to(torch.get_default_dtype())


def batch(count: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, 1, 16, 16, generator=generator) * DEVIATION + MEAN
    return Batch(images, torch.arange(count) % 3, torch.arange(count))


def rng(count: int = 6) -> Rng:
    return Rng(5, ("denoise", 0), torch.arange(count))


@pytest.mark.parametrize("network", [TRANSFORMER, U_NET, RESAMPLED], ids=["transformer", "u-net", "u-net with residual resampling"])
def test_the_derivative_against_finite_differences(network: NetworkConfig) -> None:
    """d/dt u along (v, 1, 1), with dropout as in training, is to 1e-7 what a central difference gives."""
    with in_float64():
        model, given, draws = made(network, class_conditional=True, label_dropout=0.1).train(), widened(batch()), rng()
        z, v = draws.normal("z", 1, 16, 16), draws.normal("v", 1, 16, 16)
        t, span = 0.3 + 0.6 * draws.uniform("t"), 0.2 * draws.uniform("span") + 0.05
        span[2] = 0
        labels = given.labels
        assert labels is not None
        h = 1e-5
        with torch.no_grad():
            ahead, behind = (model.mean_velocity(z + s * h * v, t + s * h, span + s * h, labels, draws) for s in (1, -1))
            slope = (ahead - behind) / (2 * h)
        found = model.target(v, z, t, span, labels, draws)
    assert torch.equal(found[2], v[2])
    torch.testing.assert_close(found, v - span[:, None, None, None] * slope, rtol=1e-6, atol=1e-7)
    assert (found - v).abs().max() > 0.01 and not found.requires_grad


def test_the_derivative_is_not_asked_of_a_compiled_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile knows no forward mode: what it compiles gives the values of the network, whose derivative is then 0 without a word."""
    model, draws, calls = made().train(), rng(), []
    forward: Any = model.network.forward
    z, t = draws.normal("z", 1, 16, 16), 0.3 + 0.6 * draws.uniform("t")
    span, v = 0.2 * draws.uniform("span") + 0.05, draws.normal("v", 1, 16, 16)

    def compiled(*given: Any) -> Tensor:
        calls.append(len(given[0]))
        return forward(*(unpack_dual(each).primal if isinstance(each, Tensor) else each for each in given))

    expected, plain = model.target(v, z, t, span, None, draws), model.mean_velocity(z, t, span, None, draws)
    monkeypatch.setattr(model.network, "_compiled_call_impl", compiled)  # what Module.compile sets
    assert torch.equal(model.target(v, z, t, span, None, draws), expected) and not calls
    assert torch.equal(model.mean_velocity(z, t, span, None, draws), plain) and calls == [6]


class KnownMean(nn.Module):
    """u of independent pixels from N(0.2, 0.4^2): where the ODE goes from t to r, divided by the span; at span 0 its velocity."""

    def forward(self, z: Tensor, t: Tensor, labels: Tensor | None, rng: Rng | None, span: Tensor) -> Tensor:
        t, span = (values[:, None, None, None] for values in (t, span))
        r = t - span
        deviation = ((1 - t) ** 2 * DEVIATION**2 + t**2).sqrt()
        end = (1 - r) * MEAN + ((1 - r) ** 2 * DEVIATION**2 + r**2).sqrt() / deviation * (z - (1 - t) * MEAN)
        slope = (t - (1 - t) * DEVIATION**2) / deviation**2 * (z - (1 - t) * MEAN) - MEAN
        return torch.where(span == 0, slope, (z - end) / torch.where(span == 0, 1, span))


def known() -> MeanFlow:
    model = made()
    model.network = KnownMean()  # type: ignore[assignment]
    return model


def test_the_identity_holds_for_the_true_mean_velocity() -> None:
    """Along the ODE's own velocity the target is the mean velocity itself (Geng et al. 2025, Eq. 6)."""
    with in_float64():
        model, draws = known(), rng(20)
        z, t = draws.normal("z", 1, 16, 16), 0.1 + 0.9 * draws.uniform("t")
        span = t * draws.uniform("share")
        velocity = model.mean_velocity(z, t, torch.zeros_like(t), None)
        target = model.target(velocity, z, t, span, None, draws)
    torch.testing.assert_close(target, model.mean_velocity(z, t, span, None), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_samples_of_the_true_mean_velocity_are_exact_in_any_number_of_steps(steps: int) -> None:
    with in_float64():
        model, draws, seen = known().eval(), rng(), []
        settings = MeanFlowSamplingConfig(steps=steps)
        made = model.sample(draws, labels=None, settings=settings, report=lambda done, of: seen.append((done, of)))
        exact = (MEAN + DEVIATION * draws.normal("initial", 1, 16, 16)).clamp(-1, 1)
    torch.testing.assert_close(made, exact, rtol=1e-9, atol=1e-9)
    assert seen == [(k + 1, steps) for k in range(steps)]


def test_the_loss_by_hand() -> None:
    """|u - target|^2 over (itself + c)^p, with z = (1 - t) x + t e and v = e - x; without the weight in evaluation mode."""
    with in_float64():
        model, given, draws = made(weight_power=0.7, weight_constant=0.3, equal_share=0.5), widened(batch(24)), rng(24)
        t, span = model.config.drawn_times(draws)
        noise, at = draws.normal("noise", 1, 16, 16), t[:, None, None, None]
        z = (1 - at) * given.images + at * noise
        target = model.target(noise - given.images, z, t, span, None, draws)
        squared = (model.mean_velocity(z, t, span, None, draws) - target).square().sum((1, 2, 3)).detach()
        trained = model.train().loss(model.phases[0], given, draws)
        evaluated = model.eval().loss(model.phases[0], given, draws)
    torch.testing.assert_close(trained.loss.detach(), squared / (squared + 0.3) ** 0.7)
    torch.testing.assert_close(evaluated.loss.detach(), squared / 256)
    torch.testing.assert_close(trained.logged["squared_error"], squared / 256)
    assert trained.loss.requires_grad and not trained.logged["squared_error"].requires_grad
    assert trained.group is not None and torch.equal(trained.group, (4 * t).long())
    assert set(trained.group.tolist()) == {0, 1, 2, 3}


def test_no_gradient_goes_through_target_and_weight() -> None:
    with in_float64():
        model, given, draws = made(equal_share=0.0).train(), widened(batch()), rng()
        model.loss(model.phases[0], given, draws).loss.sum().backward()
        found = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        model.zero_grad()
        t, span = model.config.drawn_times(draws)
        noise, at = draws.normal("noise", 1, 16, 16), t[:, None, None, None]
        z = (1 - at) * given.images + at * noise
        error = model.mean_velocity(z, t, span, None, draws) - model.target(noise - given.images, z, t, span, None, draws).detach()
        squared = error.square().sum((1, 2, 3))
        (squared / (squared.detach() + 0.01)).sum().backward()
    for gradient, parameter in zip(found, model.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(gradient, parameter.grad)


def test_guidance_in_training() -> None:
    """w v + (1 - w - k) u(none) + k u(class), and v itself of a sample without a label."""
    with in_float64():
        model, draws = made(class_conditional=True, label_dropout=0.1, guidance_scale=1.5, guidance_mix=0.2), rng(3)
        z, v, t, zero = draws.normal("z", 1, 16, 16), draws.normal("v", 1, 16, 16), draws.uniform("t"), torch.zeros(3)
        labels = torch.tensor([1, NO_LABEL, 2])
        told, untold = (model.mean_velocity(z, t, zero, y, draws) for y in (labels, torch.full((3,), NO_LABEL)))
        expected = 1.5 * v - 0.7 * untold + 0.2 * told
        found = model.learned_velocity(v, z, t, labels, draws)
    torch.testing.assert_close(found[::2], expected[::2])
    assert torch.equal(found[1], v[1]) and not found.requires_grad


def test_guidance_in_training_at_some_times() -> None:
    """Where t is from the first to the last of guidance_times, both of them too: elsewhere the velocity is v itself."""
    with in_float64():
        model = made(class_conditional=True, label_dropout=0.1, guidance_scale=0.2, guidance_mix=0.92, guidance_times=(0.3, 0.75))
        draws, t, zero = rng(6), torch.tensor([0.1, 0.3, 0.5, 0.75, 0.76, 0.5]), torch.zeros(6)
        z, v, labels = draws.normal("z", 1, 16, 16), draws.normal("v", 1, 16, 16), torch.tensor([1, 2, 0, 1, 2, NO_LABEL])
        told, untold = (model.mean_velocity(z, t, zero, y, draws) for y in (labels, torch.full((6,), NO_LABEL)))
        found = model.learned_velocity(v, z, t, labels, draws)
        always = dataclasses.replace(model.config, guidance_times=(0.0, 1.0))
        model.config = always
        everywhere = model.learned_velocity(v, z, t, labels, draws)
    expected = 0.2 * v - 0.12 * untold + 0.92 * told
    torch.testing.assert_close(found[1:4], expected[1:4])
    assert torch.equal(found[[0, 4, 5]], v[[0, 4, 5]])
    assert torch.equal(everywhere[1:4], found[1:4]) and torch.equal(everywhere[5], v[5])
    torch.testing.assert_close(everywhere[[0, 4]], expected[[0, 4]])


def test_the_loss_with_guidance_at_some_times_by_hand() -> None:
    """The same velocity stands in the target and along its derivative, each image's by its own t."""
    settings = {"class_conditional": True, "label_dropout": 0.1, "guidance_scale": 1.5, "guidance_mix": 0.2, "guidance_times": (0.35, 0.6)}
    with in_float64():
        model, given, draws = made(equal_share=0.0, **settings).eval(), widened(batch(12)), rng(12)
        t, span = model.config.drawn_times(draws)
        noise, at, labels = draws.normal("noise", 1, 16, 16), t[:, None, None, None], given.labels
        assert labels is not None
        z, v, zero = (1 - at) * given.images + at * noise, noise - given.images, torch.zeros(12)
        told, untold = (model.mean_velocity(z, t, zero, y, draws) for y in (labels, torch.full((12,), NO_LABEL)))
        inside = (at >= 0.35) & (at <= 0.6)
        guided = torch.where(inside, 1.5 * v - 0.7 * untold + 0.2 * told, v)
        h = 1e-5
        ahead, behind = (model.mean_velocity(z + s * h * guided, t + s * h, span + s * h, labels, draws) for s in (1, -1))
        target = guided - span[:, None, None, None] * (ahead - behind) / (2 * h)
        squared = (model.mean_velocity(z, t, span, labels, draws) - target).square().sum((1, 2, 3)).detach()
        found = model.loss(model.phases[0], given, draws).loss.detach()
    torch.testing.assert_close(found, squared / 256, rtol=1e-6, atol=1e-7)
    assert 0 < int(inside.sum()) < 12, "some images are guided and some are not"


def test_runs_without_times_of_guidance_go_on_as_they_were() -> None:
    """Their settings have no such line, and none is written where the whole of time is meant."""
    before = MeanFlowConfig(class_conditional=True, label_dropout=0.1, guidance_mix=0.5)
    written = before.to_dict()
    assert "guidance_times" not in written and MeanFlowConfig.from_dict(written) == before and before.guidance_times == (0.0, 1.0)
    later = dataclasses.replace(before, guidance_times=(0.3, 0.8))
    assert MeanFlowConfig.from_dict(later.to_dict()) == later and not MeanFlowConfig.may_change("guidance_times")


def test_times_of_training() -> None:
    """The larger and the smaller of two sigmoids of N(-0.4, 1): their quantiles from those of one; r = t for three of four."""
    t, span = MeanFlowConfig().drawn_times(rng(40_000))
    assert float((span == 0).float().mean()) == pytest.approx(0.75, abs=0.01)
    # The median of the larger is the sqrt(1/2)-quantile of one, that of the smaller the (1 - sqrt(1/2))-quantile: z = +-0.54500.
    assert float(t.median()) == pytest.approx(1 / (1 + 2.718281828 ** (0.4 - 0.545)), abs=0.01)
    r = (t - span)[span > 0]
    assert float(r.median()) == pytest.approx(1 / (1 + 2.718281828 ** (0.4 + 0.545)), abs=0.01)
    wide, _ = MeanFlowConfig(time_mean=0.2, time_deviation=2.0).drawn_times(rng(40_000))
    assert float(wide.median()) == pytest.approx(1 / (1 + 2.718281828 ** -(0.2 + 2 * 0.545)), abs=0.01)


def test_times_of_training_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sigmoids of the two draws of each image, as earlier runs have them; at a share of 0 even a draw of 0 leaves them apart."""
    first, second = (-0.4 + rng().normal("times", 2)).sigmoid().unbind(1)
    monkeypatch.setattr(Rng, "uniform", lambda rng, name: torch.zeros(len(rng)))
    t, span = MeanFlowConfig(equal_share=0.0).drawn_times(rng())
    assert torch.equal(t, torch.maximum(first, second)) and torch.equal(span, (first - second).abs()) and span.all()


def test_half_precision_is_near() -> None:
    model, given = made(equal_share=0.0).train(), batch(32)
    with torch.no_grad():
        plain = model.loss(model.phases[0], given, rng(32)).logged["squared_error"]
        with torch.autocast("cpu", torch.bfloat16):
            half = model.loss(model.phases[0], given, rng(32)).logged["squared_error"]
    assert 0 < float((half - plain).norm() / plain.norm()) < 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"guidance_scale": 2.0}, "guidance_scale: got 2.0, expected 1 \\(and guidance_mix 0\\) without label_dropout"),
        ({"label_dropout": 0.1}, "label_dropout: got 0.1, expected 0 where class_conditional is false"),
        ({"equal_share": 1.5}, "equal_share: got 1.5, expected from 0 to 1"),
        ({"weight_constant": 0.0}, "weight_constant: got 0.0, expected a positive number"),
        ({"weight_power": -1.0}, "weight_power: got -1.0, expected 0 or more"),
        ({"time_mean": math.inf}, "time_mean: got inf, expected a number"),
        ({"time_deviation": 0.0}, "time_deviation: got 0.0, expected a positive number"),
        ({"guidance_mix": 1.0}, "guidance_mix: got 1.0, expected from 0 to below 1"),
        ({"guidance_times": (0.5, 0.5)}, "guidance_times: got .*, expected two times from 0 to 1, the smaller one first"),
        ({"guidance_times": (0.0, 1.5)}, "guidance_times: got .*, expected two times from 0 to 1, the smaller one first"),
        ({"guidance_times": (0.0, 0.8)}, "guidance_times: got .*, expected 0 and 1 where nothing is guided"),
    ],
)
def test_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MeanFlowConfig(**settings)


def test_a_sample_takes_a_step_at_least() -> None:
    with pytest.raises(ConfigError, match="steps: got 0, expected 1 to 1,000,000"):
        MeanFlowSamplingConfig(steps=0)


def test_only_a_conditional_model_is_told_labels() -> None:
    model: Model = made()
    assert isinstance(model, MeanFlow)
    with pytest.raises(ConfigError, match="labels: this model was trained without labels"):
        model.eval().sample(rng(), labels=torch.zeros(6, dtype=torch.long), settings=model.sampling)
