"""A GAN as small as one can be, for tests of what all GANs have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tests.engine.toys import SIZE
from triptych.core.batch import Batch
from triptych.core.rng import Rng
from triptych.gans.discriminators import Scores
from triptych.gans.init import InitConfig
from triptych.gans.layers import BlockOptions, ConvBlock
from triptych.gans.losses import feature_matching, l1
from triptych.gans.model import GAN, GENERATOR, Contest, GANConfig
from triptych.gans.norms import Norm, NormKind

STRONG = InitConfig(kind="kaiming", gain=1.0, bias="normal", bias_gain=0.2)


class Judge(nn.Module):
    """Scores at two scales."""

    def __init__(self, options: BlockOptions) -> None:
        super().__init__()
        self.first, self.last = ConvBlock(3, 4, 3, options=options), ConvBlock(4, 1, 3)

    def forward(self, images: Tensor) -> Scores:
        outputs, features = [], []
        for scale in (images, nn.functional.avg_pool2d(images, 2)):
            features.append((self.first(scale),))
            outputs.append(self.last(features[-1][0]))
        return Scores(tuple(outputs), tuple(features))


class Toy(GAN):
    """Images from noise; the real ones are the batch's. Its terms are the scores, the features, and the distance to the batch's."""

    validated = (GENERATOR,)

    def __init__(self, config: GANConfig, *, norm: NormKind = "none", spectral: bool = True, judge: nn.Module | None = None) -> None:
        options = BlockOptions(norm=Norm(norm), nonlinearity="leakyrelu", weight_norm="spectral" if spectral else "none")
        generator = nn.Sequential(ConvBlock(3, 4, 3, options=options), ConvBlock(4, 3, 3))
        super().__init__(config, generator, judge or Judge(options))

    @property
    def weights(self) -> Mapping[str, float]:
        return {"adversarial": self.config.adversarial_weight, "features": 0.5, "distance": 0.25}

    def made(self, batch: Batch, rng: Rng) -> Tensor:
        return self.generator(rng.normal("z", 3, SIZE, SIZE))

    def contest_of(self, batch: Batch, fake: Tensor, rng: Rng) -> Contest:
        return self.contest(batch.images, fake, rng, discriminate=lambda view: self.discriminator)

    def contests(self, made: Tensor, batch: Batch, rng: Rng) -> list[Contest]:
        return [self.contest_of(batch, made, rng)]

    def generator_terms(self, made: Tensor, batch: Batch, rng: Rng) -> dict[str, Tensor]:
        fake = made
        verdict = self.verdict(self.contest_of(batch, fake, rng), compare=True)
        features = feature_matching(verdict.fake.features, verdict.real.features)
        return {"adversarial": verdict.loss, "features": features, "distance": l1(fake, batch.images)}

    def distances(self, batch: Batch, rng: Rng) -> dict[str, Tensor]:
        distance = l1(self.made(batch, rng), batch.images)
        return {"distance": distance, "square": distance.square()}


def toy(*, norm: NormKind = "none", spectral: bool = True, judge: nn.Module | None = None, **settings: Any) -> Toy:
    """The model with fixed initial weights, large enough for every part to have a say."""
    torch.manual_seed(0)
    return Toy(GANConfig(**({"initial": STRONG} | settings)), norm=norm, spectral=spectral, judge=judge)


def images_of(count: int) -> Batch:
    """Samples 0 to count - 1."""
    images = torch.rand(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1)) * 2 - 1
    return Batch(images, None, torch.arange(count))
