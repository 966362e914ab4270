"""The gradient penalty against a discriminator whose gradient is known, and its own gradient against finite differences."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from triptych.core.errors import ConfigError
from triptych.gans.losses import score_mean
from triptych.gans.penalties import PenaltyConfig, gradient_penalty

pytestmark = pytest.mark.usefixtures("float64")  # float32 rounds differently with the batch and the kind of CPU


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_quadratic_discriminator() -> None:
    images, weights = numbers(3, 2, 4, 4), numbers(2, 4, 4, seed=1)
    penalty = gradient_penalty(lambda x: 0.5 * (weights * x.square()).sum((1, 2, 3)), images, gamma=10.0)
    torch.testing.assert_close(penalty, 5 * (weights * images).square().sum((1, 2, 3)))
    lazy = gradient_penalty(lambda x: 0.5 * (weights * x.square()).sum((1, 2, 3)), images, gamma=10.0, every=16)
    torch.testing.assert_close(lazy, 16 * penalty)


def test_maps_and_lists_count_by_their_mean() -> None:
    images = numbers(2, 1, 4, 4)
    of_map = gradient_penalty(lambda x: 3 * x, images, gamma=2.0)
    torch.testing.assert_close(of_map, torch.full((2,), 16 * (3 / 16) ** 2, dtype=torch.float64))
    of_list = gradient_penalty(lambda x: [3 * x, F.avg_pool2d(5 * x, 2)], images, gamma=2.0)
    torch.testing.assert_close(of_list, torch.full((2,), 16 * ((3 / 16 + 5 / 16) / 2) ** 2, dtype=torch.float64))


def test_only_the_images_are_differentiated() -> None:
    images, labels = numbers(2, 3, 4, 4), numbers(2, 5, 4, 4, seed=1).requires_grad_()
    scale = torch.tensor([1.0, 2.0], dtype=torch.float64)[:, None, None, None]
    penalty = gradient_penalty(lambda x: (scale * x).sum((1, 2, 3)) + 100 * labels.sum((1, 2, 3)), images, gamma=2.0)
    assert penalty.tolist() == [48.0, 192.0]
    assert not images.requires_grad


class Small(nn.Module):
    """Scores at two scales, of images beside a map that is given."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(5, 4, 3, padding=1), nn.Conv2d(4, 1, 3)

    def forward(self, images, labels):
        x = torch.cat((labels, images), dim=1)
        return [self.last(F.softplus(self.first(scale))) for scale in (x, F.avg_pool2d(x, 2))]


@pytest.fixture
def small() -> Small:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Small().double()


def test_gradient_of_the_penalty_is_that_of_finite_differences(small) -> None:
    images, labels = numbers(2, 3, 8, 8), numbers(2, 2, 8, 8, seed=1)

    def penalty() -> torch.Tensor:
        return gradient_penalty(lambda x: small(x, labels), images, gamma=7.0).sum()

    penalty().backward()
    weight = small.first.weight
    assert weight.grad is not None
    for place in ((0, 0, 1, 1), (3, 4, 0, 2), (1, 2, 2, 0)):
        changed = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                weight[place] += step
            changed.append(penalty().item())
            with torch.no_grad():
                weight[place] -= step
        assert weight.grad[place].item() == pytest.approx((changed[0] - changed[1]) / 2e-5, rel=1e-6)


def test_a_sample_has_the_penalty_that_it_has_alone(small) -> None:
    images, labels = numbers(3, 3, 8, 8), numbers(3, 2, 8, 8, seed=1)
    whole = gradient_penalty(lambda x: small(x, labels), images, gamma=1.0)
    alone = gradient_penalty(lambda x: small(x, labels[1:2]), images[1:2], gamma=1.0)
    torch.testing.assert_close(whole[1:2], alone)


def test_autocast_and_no_grad_have_no_say(small) -> None:
    exact = gradient_penalty(lambda x: small(x, numbers(2, 2, 8, 8, seed=1)), numbers(2, 3, 8, 8), gamma=1.0)
    small.float()
    images, labels = numbers(2, 3, 8, 8).float(), numbers(2, 2, 8, 8, seed=1).float()
    expected = gradient_penalty(lambda x: small(x, labels), images, gamma=1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        found = gradient_penalty(lambda x: small(x, labels), images, gamma=1.0)
    assert torch.equal(found, expected)
    torch.testing.assert_close(found, exact.float(), rtol=1e-4, atol=0)
    assert gradient_penalty(lambda x: small(x, labels), images.bfloat16(), gamma=1.0).dtype == torch.float32
    found.sum().backward()
    assert small.first.weight.grad is not None


def test_the_penalised_function_is_that_of_the_losses(small) -> None:
    images, labels = numbers(1, 3, 8, 8).requires_grad_(), numbers(1, 2, 8, 8, seed=1)
    (gradient,) = torch.autograd.grad(score_mean(small(images, labels)), images)
    penalty = gradient_penalty(lambda x: small(x, labels), images, gamma=2.0)
    assert penalty.item() == pytest.approx(gradient.square().sum().item())


def test_settings_out_of_range_are_refused() -> None:
    for name, value in (("r1_gamma", -1.0), ("r2_gamma", float("nan")), ("every", 0)):
        with pytest.raises(ConfigError, match=f"^{name}: got "):
            PenaltyConfig(**{name: value})
    with pytest.raises(ConfigError, match="^precision: got 'training', expected float32 where every is above 1"):
        PenaltyConfig(r1_gamma=1.0, every=2, precision="training")


@pytest.mark.slow
def test_a_compiled_discriminator_has_the_same_penalty(small) -> None:
    images, labels, gradients = numbers(2, 3, 6, 6), numbers(2, 2, 6, 6, seed=1), []
    for compiled in (False, True):
        if compiled:
            small.compile(backend="aot_eager")  # it too has no second derivatives
            small(images, labels=labels)
        small.zero_grad()
        gradient_penalty(lambda x: small(x, labels), images, gamma=2.0).sum().backward()
        gradients.append(small.first.weight.grad.clone())
    assert gradients[0].norm() > 0
    torch.testing.assert_close(*gradients)
