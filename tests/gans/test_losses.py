"""The GANs' losses against numbers worked out by hand and recorded ones, sample by sample."""

from __future__ import annotations

import math

import pytest
import torch

from triptych.gans.losses import (
    AdversarialConfig,
    discriminator_losses,
    feature_matching,
    gaussian_kl,
    generator_loss,
    l1,
    score_mean,
    top_k_weights,
)
from triptych.gans.model import TopKConfig

SCORES = torch.tensor([0.5, -2.0, 3.0])
KINDS = ("hinge", "least_square", "non_saturated", "wasserstein")
RECORDED = {
    "hinge": (1.16667, 1.83333, -0.5),
    "least_square": (2.20833, 2.20833, 2.20833),
    "non_saturated": (0.88320, 1.38320, 0.88320),
    "wasserstein": (-0.5, 0.5, -0.5),
}


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def three(real, fake, **settings) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    config = AdversarialConfig(**settings)
    return (*discriminator_losses(real, fake, settings=config), generator_loss(fake, settings=config, real=real))


@pytest.mark.parametrize("kind", KINDS)
def test_adversarial_losses_are_the_recorded_ones(kind) -> None:
    losses = three(SCORES, SCORES, kind=kind)
    assert all(loss.shape == (3,) for loss in losses)
    assert [loss.mean().item() for loss in losses] == pytest.approx(RECORDED[kind], abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("hinge", (0.0, 1.25, -0.25)),
        ("least_square", (0.5, 0.03125, 0.28125)),
        ("non_saturated", (math.log1p(math.exp(-2)), math.log1p(math.exp(0.25)), math.log1p(math.exp(-0.25)))),
        ("wasserstein", (-2.0, 0.25, -0.25)),
    ],
)
def test_real_and_generated_images_have_their_own_formula(kind, expected) -> None:
    assert [loss.item() for loss in three(torch.tensor([2.0]), torch.tensor([0.25]), kind=kind)] == pytest.approx(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_scales_are_averaged_after_the_pixels_of_each(kind) -> None:
    maps = [numbers(2, 1, 4, 4), numbers(2, 1, 2, 2, seed=1)]
    of_both, of_each = three(maps, maps, kind=kind), [three(scale, scale, kind=kind) for scale in maps]
    for scaled, coarse, fine in zip(of_both, *of_each, strict=True):
        torch.testing.assert_close(scaled, (coarse + fine) / 2)
    of_pixels = [loss.mean().item() for loss in three(maps[0].flatten(), maps[0].flatten(), kind=kind)]
    assert [loss.mean().item() for loss in three(maps[0], maps[0], kind=kind)] == pytest.approx(of_pixels, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_has_the_loss_that_it_has_alone(kind) -> None:
    real, fake = [numbers(3, 1, 4, 4), numbers(3, 1, 2, 2)], [numbers(3, 1, 4, 4, seed=1), numbers(3, 1, 2, 2, seed=1)]
    for relativistic in (False, True):
        whole = three(real, fake, kind=kind, relativistic=relativistic)
        alone = three([x[1:2] for x in real], [x[1:2] for x in fake], kind=kind, relativistic=relativistic)
        torch.testing.assert_close([loss[1:2] for loss in whole], list(alone))


def test_a_relativistic_discriminator_scores_differences() -> None:
    real, fake = torch.tensor([2.0, 0.5]), torch.tensor([1.5, 1.0])
    on_real, on_fake, generator = three(real, fake, kind="hinge", relativistic=True)
    assert on_real.tolist() == [0.5, 1.5]  # 1 - (real - fake)
    assert on_fake.tolist() == [0.5, 1.5]  # 1 + (fake - real)
    assert generator.tolist() == [0.5, -0.5]  # real - fake
    torch.testing.assert_close(three(real, fake, kind="least_square", relativistic=True)[2], torch.tensor([1.125, 0.125]))


def test_the_relativistic_non_saturating_loss_counts_once() -> None:
    real, fake = numbers(5).double(), numbers(5, seed=1).double()
    on_real, on_fake, generator = three(real, fake, kind="non_saturated", relativistic=True)
    torch.testing.assert_close(on_real + on_fake, torch.log1p((fake - real).exp()))  # Huang et al. 2024, with f(t) = -log(1 + exp(-t))
    torch.testing.assert_close(generator, torch.log1p((real - fake).exp()))


def test_half_precision_becomes_float32() -> None:
    x = torch.full((1, 1, 64, 64), 1.0078125, dtype=torch.bfloat16)
    assert score_mean(x).dtype == torch.float32
    assert score_mean(x).item() == 1.0078125
    assert l1(x, 0 * x).item() == 1.0078125
    assert gaussian_kl(torch.ones(1, 5000, dtype=torch.bfloat16)).item() == 2500


def test_feature_matching_sums_layers_and_averages_discriminators() -> None:
    fake = [[torch.ones(2, 3, 4, 4), torch.full((2, 5), 3.0)], [torch.zeros(2, 1)]]
    real = [[torch.zeros(2, 3, 4, 4), torch.full((2, 5), 1.0)], [torch.tensor([[4.0], [-7.0]])]]
    assert feature_matching(fake, real).tolist() == [(1 + 2 + 4) / 2, (1 + 2 + 7) / 2]
    fake[0][1].requires_grad_(), real[0][1].requires_grad_()
    feature_matching(fake, real).sum().backward()
    assert real[0][1].grad is None
    torch.testing.assert_close(fake[0][1].grad, torch.full((2, 5), 0.1))


def test_gaussian_kl() -> None:
    recorded = gaussian_kl(torch.ones(2, 3), torch.zeros(2, 3))
    assert recorded.tolist() == [1.5, 1.5]
    assert recorded.sum().item() == 3.0  # which the original sums over the batch too
    assert gaussian_kl(torch.ones(2, 3)).tolist() == [1.5, 1.5]
    mean, log_variance = numbers(4, 8).double(), numbers(4, 8, seed=1).double()
    normal = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(normal(mean, (log_variance / 2).exp()), normal(0.0, 1.0)).sum(1)
    torch.testing.assert_close(gaussian_kl(mean, log_variance), expected)


def test_l1_is_the_mean_of_each_sample() -> None:
    x, target = numbers(3, 2, 4, 4), numbers(3, 2, 4, 4, seed=1)
    assert l1(x, target).shape == (3,)
    assert l1(x, target).mean().item() == pytest.approx(torch.nn.functional.l1_loss(x, target).item())
    assert l1(torch.tensor([[1.0, -2.0], [0.0, 3.0]]), torch.zeros(2, 2)).tolist() == [1.5, 1.5]


def test_top_k_keeps_the_highest_scores() -> None:
    scores = torch.tensor([0.1, 3.0, -1.0, 2.0, 0.0])
    weights = top_k_weights(scores, share=0.4)
    assert weights.tolist() == [0.0, 2.5, 0.0, 2.5, 0.0]
    losses = torch.tensor([10.0, 1.0, 20.0, 3.0, 30.0])
    assert (weights * losses).mean().item() == 2.0  # that of 1 and 3
    assert top_k_weights(scores, share=0.35).tolist() == weights.tolist(), "1.75 is rounded"
    assert top_k_weights(scores, share=1.0).tolist() == [1.0] * 5
    assert top_k_weights(scores, share=0.01).tolist() == [0.0, 5.0, 0.0, 0.0, 0.0]
    assert top_k_weights([scores[:, None], -10 * scores[:, None]], share=0.2).tolist() == [0.0, 0.0, 5.0, 0.0, 0.0]


def test_top_k_treats_ties_alike_and_parts_as_the_whole() -> None:
    scores = torch.tensor([1.0, 2.0, 1.0, 0.0])
    assert top_k_weights(scores, share=0.5).tolist() == pytest.approx([4 / 3, 4 / 3, 4 / 3, 0.0])
    whole = top_k_weights(numbers(8), share=0.5)
    parts = [top_k_weights(part, share=0.5, batch=numbers(8)) for part in numbers(8).split(3)]
    assert torch.cat(parts).tolist() == whole.tolist()
    assert (whole > 0).sum() == 4


def test_top_k_share_decays_to_its_floor() -> None:
    rounds = TopKConfig(least=0.75, decay=0.9, round_steps=10)
    assert [rounds.share(step) for step in (1, 9, 10, 19, 20, 29, 30, 10**6)] == [1, 1, 0.9, 0.9, 0.9**2, 0.9**2, 0.75, 0.75]
