"""R3GAN and StyleGAN2 that recompute their features have the gradients of those that keep them, penalties included."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from triptych.core.batch import Batch, DataSpec
from triptych.core.model import TrainingProgress
from triptych.core.rng import Rng
from triptych.gans.model import GAN
from triptych.gans.penalties import PenaltyConfig
from triptych.gans.r3gan import R3GANConfig
from triptych.gans.stylegan2 import StyleGAN2Config

COUNT, SIZE = 4, 16
BOTH = {"r1_gamma": 3.0, "r2_gamma": 2.0, "at": "original"}
CASES: dict[str, Any] = {
    "r3gan": replace(R3GANConfig().shrunk(), penalty=PenaltyConfig(**BOTH, precision="training")),
    "r3gan-float32": replace(R3GANConfig().shrunk(), penalty=PenaltyConfig(**BOTH)),
    "stylegan2": replace(StyleGAN2Config().shrunk(), penalty=PenaltyConfig(**BOTH, every=4)),
}


def made(case: str, *, checkpoint: bool) -> GAN:
    config = CASES[case]
    both = {name: replace(getattr(config, name), checkpoint=checkpoint) for name in ("generator", "discriminator")}
    torch.manual_seed(0)
    model = replace(config, class_conditional=True, **both).build(DataSpec(image_size=SIZE, channels=3, num_classes=3))
    with torch.no_grad():
        for parameter in model.parameters():  # some begin at 0
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return model


def gradients(model: GAN, *, half: bool) -> dict[str, dict[str, Tensor]]:
    """By phase and weight."""
    images = torch.randn(COUNT, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    batch = Batch(images, torch.arange(COUNT) % 3, torch.arange(COUNT))
    found = {}
    for phase in model.phases:
        model.zero_grad()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith(phase.networks))
        model.prepare(phase, TrainingProgress(0, COUNT, total_images=1_000))
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = model.loss(phase, batch, Rng(0, (phase.name, 0), torch.arange(COUNT))).loss
        loss.sum().backward()
        found[phase.name] = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return found


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_the_plain_ones(case: str, float64: None) -> None:
    plain, found = (gradients(made(case, checkpoint=checkpoint), half=False) for checkpoint in (False, True))
    assert len(plain) == (4 if case == "stylegan2" else 2)
    for phase, expected in plain.items():
        assert set(found[phase]) == set(expected) and expected
        for name, gradient in expected.items():
            torch.testing.assert_close(found[phase][name], gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_gradients_under_autocast_are_the_plain_ones(case: str) -> None:
    """The same numbers, rounded at other places where gradients are added up: nearer to the plain ones than these are to the exact ones."""
    (exact, plain, found) = (gradients(made(case, checkpoint=c), half=half) for c, half in ((False, False), (False, True), (True, True)))
    for phase in exact:
        parts = (torch.cat([part[phase][name].flatten() for name in exact[phase]]) for part in (exact, plain, found))
        exactly, rounded, again = parts
        assert (again - rounded).norm() <= 0.5 * (rounded - exactly).norm() + 1e-5 * exactly.norm(), phase


def test_recomputing_may_be_switched_on_and_off() -> None:
    for config in (R3GANConfig(), StyleGAN2Config()):
        assert all(type(part).may_change("checkpoint") for part in (config.generator, config.discriminator))
