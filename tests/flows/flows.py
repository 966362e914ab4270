"""Small flows for tests, moved off the point where they start."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from triptych.core.batch import Batch, DataSpec
from triptych.core.model import seeded_build
from triptych.core.rng import Rng
from triptych.flows.glow import Glow, GlowConfig


def moved(module: nn.Module, by: float = 0.1) -> None:
    """Adds normal numbers to every parameter: at the start half of the terms are zero or the identity."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))


def glow(*, image_size: int = 8, channels: int = 3, num_classes: int | None = None, by: float = 0.1, **settings: Any) -> Glow:
    """A small model in evaluation mode, its parameters moved."""
    config = GlowConfig(**({"levels": 2, "depth": 2, "width": 8} | settings))
    model = seeded_build(config, DataSpec(image_size=image_size, channels=channels, num_classes=num_classes), seed=0)
    assert isinstance(model, Glow)
    moved(model, by)
    return model.eval()


def images(count: int, *, image_size: int = 8, channels: int = 3, seed: int = 0) -> Tensor:
    """uint8 images (b, c, h, w) of all values."""
    return torch.randint(256, (count, channels, image_size, image_size), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def batch(values: Tensor, labels: Tensor | None = None) -> Batch:
    """8-bit images as the loader hands them to a model."""
    return Batch(values.float() / 127.5 - 1, labels, torch.arange(len(values)))


def rng(count: int, seed: int = 0) -> Rng:
    """Draws for so many samples."""
    return Rng(seed, ("test",), torch.arange(count))
