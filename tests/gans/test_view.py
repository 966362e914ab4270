"""What the discriminator sees, and where its gradient is penalised, on the smallest unconditional GAN, against autograd by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.engine.toys import SIZE, make_loop, run
from tests.gans.toy_gan import STRONG, images_of
from triptych.core.batch import Batch
from triptych.core.rng import Rng
from triptych.gans.augmentation import Change, augmented
from triptych.gans.discriminators import Scores
from triptych.gans.losses import AdversarialConfig
from triptych.gans.model import GAN, Contest, GANConfig
from triptych.gans.penalties import PenaltyConfig

pytestmark = pytest.mark.usefixtures("float64")

COUNT, R1, R2 = 4, 3.0, 5.0
PAIRS = AdversarialConfig(kind="non_saturated", relativistic=True)
POLICY: tuple[Change, ...] = ("color", "translation_scale", "translation", "cutout")


class Critic(nn.Module):
    """One score for each image, and a gradient that depends on the image."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Linear(4 * (SIZE - 2) ** 2, 1)

    def forward(self, images: Tensor) -> Scores:
        return Scores((self.last(F.softplus(self.first(images)).flatten(1)),), ())


class Unconditional(GAN):
    """Images from noise against those of the batch, and nothing to compare held-out images with."""

    def __init__(self, config: GANConfig) -> None:
        super().__init__(config, nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Softplus(), nn.Conv2d(4, 3, 3, padding=1)), Critic())

    def made(self, batch: Batch, rng: Rng) -> Tensor:
        return self.generator(rng.normal("z", 3, SIZE, SIZE))

    def contests(self, made: Tensor, batch: Batch, rng: Rng) -> list[Contest]:
        return [self.contest(batch.images, made, rng, discriminate=lambda view: self.discriminator)]

    def generator_terms(self, made: Tensor, batch: Batch, rng: Rng) -> dict[str, Tensor]:
        return {"adversarial": self.verdict(*self.contests(made, batch, rng)).loss}


def built(**settings: Any) -> Unconditional:
    torch.manual_seed(0)
    return Unconditional(GANConfig(initial=STRONG, adversarial=PAIRS, **settings))


def loss_of(model: Unconditional, name: str) -> tuple[Tensor, list[Tensor]]:
    """The loss of a phase, (b,), and the gradients of its sum for the phase's network."""
    phase = next(phase for phase in model.phases if phase.name == name)
    batch = images_of(COUNT)
    loss = model.loss(phase, batch, Rng(0, (name,), batch.index)).loss
    return loss, list(torch.autograd.grad(loss.sum(), list(getattr(model, name).parameters())))


def by_hand(model: Unconditional, *, alike: bool, at: str) -> tuple[Tensor, list[Tensor]]:
    """The discriminator's loss and its gradients, as R3GAN's paper has them: softplus(-(D(x) - D(G(z)))), R1 and R2."""
    batch = images_of(COUNT)
    rng = Rng(0, ("discriminator",), batch.index)
    draws = rng.child("augment", ""), rng.child("augment", "") if alike else rng.child("augment", "", "fake")
    with torch.no_grad():
        images = [batch.images, model.generator(rng.normal("z", 3, SIZE, SIZE))]
    if at == "augmented":
        images = [augmented(x, draw, policy=POLICY) for x, draw in zip(images, draws, strict=True)]
    points = [x.clone().requires_grad_() for x in images]
    seen = [x if at == "augmented" else augmented(x, draw, policy=POLICY) for x, draw in zip(points, draws, strict=True)]
    real, fake = (model.discriminator(x).outputs[0][:, 0] for x in seen)
    loss = F.softplus(-(real - fake))
    for score, x, gamma in ((real, points[0], R1), (fake, points[1], R2)):
        (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        loss = loss + gamma / 2 * slope.square().sum((1, 2, 3))
    return loss, list(torch.autograd.grad(loss.sum(), list(model.discriminator.parameters())))


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("at", ["augmented", "original"])
def test_the_discriminators_loss_and_gradient(alike: bool, at: Any) -> None:
    model = built(penalty=PenaltyConfig(r1_gamma=R1, r2_gamma=R2, at=at), augment=POLICY, augment_alike=alike)
    found, expected = loss_of(model, "discriminator"), by_hand(model, alike=alike, at=at)
    torch.testing.assert_close(found, expected)
    other = by_hand(model, alike=alike, at="original" if at == "augmented" else "augmented")
    assert (found[0] - other[0]).abs().min() > 1e-3, "the two places differ"
    assert all((gradient - wrong).norm() > 1e-3 * gradient.norm() for gradient, wrong in zip(found[1][:-1], other[1][:-1], strict=True))


def test_the_penalty_before_augmentation_has_the_slope_of_finite_differences() -> None:
    model = built(penalty=PenaltyConfig(r1_gamma=R1, at="original"), augment=("translation_scale",))
    slope = loss_of(model, "discriminator")[1][0][1, 2, 0, 1]
    sums = []
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            model.discriminator.first.weight[1, 2, 0, 1] += step
        sums.append(loss_of(model, "discriminator")[0].sum().item())
        with torch.no_grad():
            model.discriminator.first.weight[1, 2, 0, 1] -= step
    assert slope.item() == pytest.approx((sums[0] - sums[1]) / 2e-5, rel=1e-6)


@pytest.mark.parametrize("alike", [True, False])
def test_the_generators_loss_and_gradient(alike: bool) -> None:
    model = built(augment=POLICY, augment_alike=alike)
    batch = images_of(COUNT)
    rng = Rng(0, ("generator",), batch.index)
    draws = rng.child("augment", ""), rng.child("augment", "") if alike else rng.child("augment", "", "fake")
    images = batch.images, model.generator(rng.normal("z", 3, SIZE, SIZE))
    real, fake = (model.discriminator(augmented(x, draw, policy=POLICY)).outputs[0][:, 0] for x, draw in zip(images, draws, strict=True))
    loss = F.softplus(-(fake - real.detach()))
    found = loss_of(model, "generator")
    torch.testing.assert_close(found, (loss, list(torch.autograd.grad(loss.sum(), list(model.generator.parameters())))))


def test_it_trains_without_held_out_distances(tmp_path) -> None:
    model = built(penalty=PenaltyConfig(r1_gamma=R1, at="original", every=2), augment=POLICY, augment_alike=False)
    assert model.validated == ()
    with pytest.raises(TypeError, match="does not say how far held-out images are"):
        loss_of(model.eval(), "generator")
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    run(make_loop(model, tmp_path / "run"))
    same = {name for name, tensor in model.state_dict().items() if torch.equal(tensor, before[name])}
    assert same == {"discriminator.last.bias"}, "which differences of scores do not depend on"
