"""EDM: preconditioning, loss, and its samplers with a denoiser in closed form."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.diffusion import edm_reference as reference
from triptych.core.batch import Batch, DataSpec
from triptych.core.errors import ConfigError
from triptych.core.model import LossTerms, seeded_build
from triptych.core.rng import Rng
from triptych.diffusion.continuous import LevelSamplingConfig
from triptych.diffusion.edm import EDM, EDMConfig
from triptych.diffusion.edm_augmentation import NonLeakingConfig, augmented
from triptych.diffusion.edm_networks import SongUNetConfig
from triptych.diffusion.unet import NO_LABEL

NETWORK = SongUNetConfig(num_channels=8, channel_mult=(1, 2), num_blocks=1, attention_resolutions=(4,), dropout=0.0)
SPEC = DataSpec(image_size=8, channels=3, num_classes=5)
pytestmark = pytest.mark.usefixtures("float64")


def made(**settings: Any) -> EDM:
    """A small model whose parameters are all random."""
    model = seeded_build(EDMConfig(network=NETWORK, class_conditional=True, **settings), SPEC, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    assert isinstance(model, EDM)
    return model


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def batch(count: int = 6) -> Batch:
    return Batch(drawn(count, 3, 8, 8).clamp(-1, 1), torch.arange(count) % 5, torch.arange(count))


def rng(count: int, *stream: str) -> Rng:
    return Rng(3, stream, torch.arange(count))


class Told(nn.Module):
    """A network that answers `answer` and keeps what it was told."""

    def __init__(self, answer: float = 0.0) -> None:
        super().__init__()
        self.answer, self.calls = answer, []

    def forward(self, x: Tensor, t: Tensor, labels: Any, rng: Any, *, augment: Any = None) -> Tensor:
        self.calls.append((x, t, labels, augment))
        return torch.full_like(x, self.answer)


def told(answer: float = 0.0, **settings: Any) -> tuple[EDM, list[tuple[Tensor, Tensor, Any, Any]]]:
    model = made(**settings)
    model.network = network = Told(answer)
    return model, network.calls


def denoised(model: EDM, x: Tensor, sigma: Tensor, labels: Tensor, augment: Tensor | None = None) -> Tensor:
    """D(x; sigma), by the second implementation of the network and of Table 1."""
    data, total = model.config.sigma_data, sigma**2 + model.config.sigma_data**2
    one_hot = torch.eye(5)[labels.clamp(min=0)] * (labels >= 0)[:, None]
    state = {name.removeprefix("network."): tensor for name, tensor in model.state_dict().items()}
    output = reference.song_unet(state, x / total.sqrt(), sigma.flatten().log() / 4, one_hot=one_hot, augment=augment)
    return data**2 / total * x + sigma * data / total.sqrt() * output


# Preconditioning ------------------------------------------------------------------------------------------------------------


def test_the_denoiser() -> None:
    model = made(sigma_data=0.7).eval()
    x, sigma, labels = drawn(4, 3, 8, 8) * 2, torch.tensor([0.01, 0.3, 2.0, 50.0]).view(4, 1, 1, 1), torch.tensor([0, 3, NO_LABEL, 4])
    with torch.no_grad():
        torch.testing.assert_close(model.predict(x, sigma, labels), denoised(model, x, sigma, labels), rtol=1e-9, atol=1e-9)


def test_inputs_and_targets_of_the_network_have_variance_1() -> None:
    """Appendix B.6: with data of deviation sigma_data, at every noise level; and the weight makes all levels count alike."""
    data = 0.7
    sigma = torch.tensor([0.002, 0.1, 0.7, 3.0, 80.0]).view(5, 1, 1, 1)
    x = torch.ones(5, 3, 8, 8)
    found = []
    for answer in (0.0, 1.0):
        model, calls = told(answer, sigma_data=data)
        found.append(model.predict(x, sigma, torch.zeros(5, dtype=torch.long))[:, 0, 0, 0])
        ((seen, t, *_),) = calls
    c_skip, c_out, c_in = found[0], found[1] - found[0], seen[:, 0, 0, 0]
    s = sigma.flatten()
    torch.testing.assert_close(c_in**2 * (s**2 + data**2), torch.ones(5))
    # The target (y - c_skip (y + n)) / c_out.
    torch.testing.assert_close(((1 - c_skip) ** 2 * data**2 + c_skip**2 * s**2) / c_out**2, torch.ones(5))
    # c_skip makes c_out least: its slope there is 0.
    torch.testing.assert_close(c_skip * s**2, (1 - c_skip) * data**2)
    torch.testing.assert_close(t, s.log() / 4)


# Loss -----------------------------------------------------------------------------------------------------------------------


def loss_of(model: EDM, data: Batch) -> LossTerms:
    return model.loss(model.phases[0], data, rng(len(data)))


@pytest.mark.parametrize("training", [True, False])
def test_the_loss(training: bool) -> None:
    settings = NonLeakingConfig(p=0.5)
    model, data = made(augmentation=settings, noise_mean=-0.8, noise_std=0.9, label_dropout=0.4).train(training), batch(12)
    terms = loss_of(model, data)
    draws, labels = rng(12), data.labels
    assert labels is not None
    images, augment = augmented(data.images, draws.child("augmentation"), settings)
    if training:
        labels = torch.where(draws.uniform("label-dropout") < 0.4, -1, labels)
        assert 0 < (labels == -1).sum() < 12 and augment.any()
    else:
        images, augment = data.images, None
    sigma = (-0.8 + 0.9 * draws.normal("level", 1, 1, 1)).exp()
    noisy = images + sigma * draws.normal("noise", 3, 8, 8)
    weight = 1 / sigma**2 + 1 / 0.5**2  # (sigma^2 + sigma_data^2) / (sigma sigma_data)^2
    with torch.no_grad():
        error = denoised(model, noisy, sigma, labels, augment) - images
    torch.testing.assert_close(terms.loss.detach(), (weight * error.square()).sum((1, 2, 3)) / (3 * 8 * 8), rtol=1e-9, atol=1e-9)
    assert torch.equal(terms.logged["loss"], terms.loss) and not any(term.requires_grad for term in terms.logged.values())
    torch.testing.assert_close(terms.logged["x0_mse"], error.square().mean((1, 2, 3)))


def test_noise_levels_are_log_normal_and_grouped_by_quarters() -> None:
    count = 4000
    model, calls = told()
    terms = model.loss(model.phases[0], Batch(torch.zeros(count, 3, 8, 8), torch.zeros(count).long(), torch.arange(count)), rng(count))
    logs = 4 * calls[0][1]
    assert abs(logs.mean() + 1.2) < 4 * 1.2 / math.sqrt(count)
    assert abs(logs.std() - 1.2) < 4 * 1.2 / math.sqrt(2 * count)
    assert terms.group is not None
    for group in range(4):
        inside = logs[terms.group == group]
        assert abs(len(inside) / count - 0.25) < 4 * math.sqrt(0.25 * 0.75 / count)
        below, above = ((logs[terms.group == other]) for other in (group - 1, group + 1))
        assert (not len(below) or below.max() < inside.min()) and (not len(above) or inside.max() < above.min())


def test_an_untrained_network_has_a_loss_near_1_at_every_level() -> None:
    """For data of deviation sigma_data, and an untrained network answers almost 0."""
    count = 2000
    model, _ = told()
    data = Batch(0.5 * drawn(count, 3, 8, 8), torch.zeros(count).long(), torch.arange(count))
    terms = loss_of(model, data)
    assert terms.group is not None
    for group in range(4):
        assert abs(terms.loss[terms.group == group].mean() - 1) < 0.03  # 4 deviations of the mean of 500 x 192 squares


def test_settings_that_there_are_not() -> None:
    for settings, said in (
        ({"sigma_data": 0.0}, "sigma_data: got 0.0, expected a positive number"),
        ({"noise_std": -1.0}, "noise_std: got -1.0"),
        ({"noise_mean": math.inf}, "noise_mean: got inf, expected a finite number"),
        ({"network": replace(NETWORK, attention_resolutions=(16,))}, "network.attention_resolutions: got 16"),
    ):
        with pytest.raises(ConfigError) as caught:
            EDMConfig(**({"network": NETWORK} | settings)).build(SPEC)  # type: ignore[arg-type]
        assert str(caught.value).startswith(said)


def test_what_is_shown_of_the_augmentation() -> None:
    """As a training changes images, or as it would at another p."""
    config, images = EDMConfig(augmentation=NonLeakingConfig(p=0.5)), batch().images
    for p in (None, 0.25, 1.0):
        often = 0.5 if p is None else p
        expected, _ = augmented(images, rng(6), NonLeakingConfig(p=often))
        assert torch.equal(config.augmented(images, rng(6), p=p), expected)
        assert config.augmentation_in_words(p) == f"augmentation that does not leak, at p = {often}".removesuffix(".0")
    assert config.augmentation_in_words(0) == EDMConfig().augmentation_in_words() == ""


# Samplers, on a mixture of two Gaussians ------------------------------------------------------------------------------------

SHARES, MEANS, DEVIATION = torch.tensor([0.3, 0.7]).double(), torch.tensor([-0.6, 0.5]).double(), 0.15


class Mixture(nn.Module):
    """F whose D is E[y | x] for pixels from the mixture."""

    def forward(self, x: Tensor, t: Tensor, labels: Any, rng: Any, *, augment: Any = None) -> Tensor:
        sigma = (4 * t).exp().view(-1, 1, 1, 1)
        total = sigma**2 + 0.25
        return (posterior_mean(x * total.sqrt(), sigma) - 0.25 / total * x * total.sqrt()) / (0.5 * sigma / total.sqrt())


def posterior_mean(x: Tensor, sigma: Tensor | float) -> Tensor:
    variance = DEVIATION**2 + sigma**2
    away = x[..., None] - MEANS
    share = (SHARES.log() - away**2 / (2 * torch.as_tensor(variance)[..., None])).softmax(-1)
    return (share * (MEANS + DEVIATION**2 / torch.as_tensor(variance)[..., None] * away)).sum(-1)


def mixture() -> EDM:
    model = seeded_build(EDMConfig(network=NETWORK), DataSpec(image_size=8, channels=1), seed=0)
    assert isinstance(model, EDM)
    model.network, model.image_shape = Mixture(), (1, 1, 1)
    return model.eval()


def below(x: Tensor, sigma: float) -> Tensor:
    """The share of the mixture, noised, that lies below x."""
    return (SHARES * torch.special.ndtr((x[:, None] - MEANS) / math.sqrt(DEVIATION**2 + sigma**2))).sum(1)


def transported(x: Tensor, start: float, end: float) -> Tensor:
    """Where the probability-flow ODE takes x from one noise level to another: on a line it keeps the share that lies below."""
    share, low, high = below(x, start), torch.full_like(x, -10.0), torch.full_like(x, 10.0)
    for _ in range(80):
        middle = (low + high) / 2
        low, high = torch.where(below(middle, end) < share, middle, low), torch.where(below(middle, end) < share, high, middle)
    return (low + high) / 2


def sampled(count: int, **settings: Any) -> Tensor:
    return mixture().sample(rng(count), labels=None, settings=LevelSamplingConfig(**settings)).flatten()


@pytest.mark.parametrize(("sampler", "order"), [("heun", 2), ("euler", 1)])
def test_the_order_of_the_samplers(sampler: str, order: int) -> None:
    """Against the exact transport. Measured: heun 1.1e-3, 2.5e-4, 6.2e-5 away from it, euler 2.5e-2, 1.0e-2, 4.6e-3."""
    noise = rng(400).normal("initial", 1, 1, 1).flatten()
    exact = posterior_mean(transported(80 * noise, 80.0, 0.002), 0.002)
    errors = [(sampled(400, sampler=sampler, steps=steps) - exact).square().mean().sqrt().item() for steps in (64, 128, 256)]
    assert abs(math.log2(errors[0] / errors[2]) / 2 - order) < 0.25, errors


@pytest.mark.parametrize("churn", [0.0, 10.0])
def test_samples_have_the_moments_of_the_data(churn: float) -> None:
    count = 20_000
    x = sampled(count, steps=64, churn=churn, churn_min=0.01, churn_max=50.0)
    mean = (SHARES * MEANS).sum()
    variance = DEVIATION**2 + (SHARES * MEANS**2).sum() - mean**2
    third = (SHARES * (MEANS**3 + 3 * MEANS * DEVIATION**2)).sum()
    assert abs(x.mean() - mean) < 4 * math.sqrt(variance / count)
    assert abs(x.var() - variance) < 4 * (x - mean).square().std() / math.sqrt(count) + 1e-3
    assert abs(x.pow(3).mean() - third) < 4 * x.pow(3).std() / math.sqrt(count) + 1e-3
    left = x[x < 0]
    assert abs(len(left) / count - below(torch.zeros(1).double(), 0.0).item()) < 4 * math.sqrt(0.3 * 0.7 / count) + 1e-3
    assert abs(left.std() / DEVIATION - 1) < 0.03


def test_noise_that_is_added_is_not_that_of_the_start() -> None:
    """With it samples part from the path of the ODE, and more noise than is removed widens them."""
    plain, churned, wide = (sampled(4000, steps=64, **settings) for settings in ({}, {"churn": 30.0}, {"churn": 30.0, "churn_noise": 1.05}))
    assert abs(torch.corrcoef(torch.stack((plain, churned)))[0, 1]) < 0.9
    spread = [x[x < 0].std() for x in (churned, wide)]
    assert spread[1] > 1.05 * spread[0]
