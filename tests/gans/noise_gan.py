"""A GAN from noise as small as one can be, for tests of what all of them have in common."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.engine.toys import SIZE
from triptych.core.batch import Batch, DataSpec
from triptych.core.config import Config, config
from triptych.core.model import Report
from triptych.core.rng import Rng
from triptych.gans.discriminators import Scores
from triptych.gans.from_noise import NoiseGAN, NoiseGANConfig

CLASSES = 3


@config
class ScaledSampling(Config):
    """The sampler's one setting."""

    scale: float = 1.0
    "Factor of z."


class Maker(nn.Module):
    """Images of z and, where there are classes, of a vector for each of them."""

    def __init__(self, dims: int, classes: int | None) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(dims, 16), nn.Linear(16, 3 * SIZE * SIZE)
        self.classes = None if classes is None else nn.Embedding(classes, 16)

    def forward(self, z: Tensor, labels: Tensor | None) -> Tensor:
        x = self.first(z) if self.classes is None else self.first(z) + self.classes(labels)
        return torch.tanh(self.last(x)).view(-1, 3, SIZE, SIZE)


class Critic(nn.Module):
    """One score of an image; with classes the product with a vector of its class is a part of it."""

    def __init__(self, classes: int | None) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3 * SIZE * SIZE, 16), nn.Linear(16, 1)
        self.classes = None if classes is None else nn.Embedding(classes, 16)

    def forward(self, images: Tensor, labels: Tensor | None) -> Scores:
        x = nn.functional.softplus(self.first(images.flatten(1)))
        score = self.last(x)
        if self.classes is not None:
            score = score + (x * self.classes(labels)).sum(1, keepdim=True)
        return Scores((score,), ())


class ToyNoiseGAN(NoiseGAN):
    """The two above."""

    sampling = ScaledSampling()

    def __init__(self, config: NoiseGANConfig, spec: DataSpec) -> None:
        classes = spec.num_labels(class_conditional=config.class_conditional)
        super().__init__(config, spec, Maker(config.latent_dims, classes), Critic(classes))

    def generated(self, labels: Tensor | None, rng: Rng) -> Tensor:
        return self.generator(rng.normal("z", self.config.latent_dims), labels)

    @torch.no_grad()
    def sample(self, rng: Rng, *, labels: Tensor | None, settings: Config, report: Report | None = None) -> Tensor:
        assert isinstance(settings, ScaledSampling)
        return self.generator(settings.scale * rng.normal("z", self.config.latent_dims), self.checked_labels(labels, len(rng)))


def noise_gan(**settings: Any) -> ToyNoiseGAN:
    """The model with fixed initial weights."""
    torch.manual_seed(0)
    return ToyNoiseGAN(NoiseGANConfig(**({"latent_dims": 4} | settings)), DataSpec(image_size=SIZE, channels=3, num_classes=CLASSES))


def labelled(count: int) -> Batch:
    """Samples 0 to count - 1, with labels."""
    images = torch.rand(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1)) * 2 - 1
    return Batch(images, torch.arange(count) % CLASSES, torch.arange(count))
