"""Penalties under autocast: in float32 by a pass of their own, or in the training's precision by that of the loss."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.gans.noise_gan import SIZE, ToyNoiseGAN, noise_gan
from triptych.core.batch import Batch
from triptych.core.model import LossTerms
from triptych.core.rng import Rng
from triptych.gans.penalties import PenaltyConfig

COUNT = 6


def gradients(model: ToyNoiseGAN, batch: Batch) -> tuple[LossTerms, dict[str, Tensor]]:
    model.zero_grad()
    terms = model.loss(model.phases[0], batch, Rng(0, ("discriminator", 0), torch.arange(COUNT)))
    terms.loss.sum().backward()
    return terms, {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("precision", "passes", "tolerance"), [("float32", 4, 1e-5), ("training", 2, 0.05)])
def test_one_pass_or_two_give_the_same_penalty(precision, passes: int, tolerance: float) -> None:
    penalty = PenaltyConfig(r1_gamma=50.0, r2_gamma=50.0, precision=precision)
    model, batch = noise_gan(penalty=penalty), Batch(torch.rand(COUNT, 3, SIZE, SIZE), None, torch.arange(COUNT))
    exact, expected = gradients(model, batch)
    ran: list[int] = []
    model.discriminator.register_forward_hook(lambda *_: ran.append(1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms, found = gradients(model, batch)
    assert len(ran) == passes
    assert {term.dtype for term in terms.logged.values()} == {torch.float32}
    torch.testing.assert_close(terms.logged["r1"], exact.logged["r1"], rtol=tolerance, atol=0)
    distance = (terms.logged["r1"] - exact.logged["r1"]).abs().max()
    assert (distance > 1e-4 * exact.logged["r1"].max()) == (precision == "training"), "whether it was bfloat16"
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() < 0.1 * gradient.norm() + 1e-3, name


def test_without_autocast_one_pass_serves_all() -> None:
    model, batch = noise_gan(penalty=PenaltyConfig(r1_gamma=1.0)), Batch(torch.rand(COUNT, 3, SIZE, SIZE), None, torch.arange(COUNT))
    ran: list[int] = []
    model.discriminator.register_forward_hook(lambda *_: ran.append(1))
    gradients(model, batch)
    assert len(ran) == 2
