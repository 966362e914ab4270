"""How often augmentation changes images over a training: always alike, by a ramp, or as often as the discriminator needs it.

"Training Generative Adversarial Networks with Limited Data", Karras et al. 2020, https://arxiv.org/abs/2006.06676, section 3.1: a
discriminator that overfits is sure of its training images, so r_t = E[sign D(real)] rises. p rises while r_t is above a target, and falls
while it is below.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from triptych.core.model import TrainingProgress
from triptych.core.ramp import value_at
from triptych.core.rng import Rng
from triptych.gans.ada import ADAConfig, adapted
from triptych.gans.losses import Outputs, score_mean


class Adaptation(nn.Module):
    """The augmentation of ADA and its p, which is part of a model's state where it is steered."""

    p: Tensor
    "How often changes happen now."
    signs: Tensor
    "(2,): the sum of the signs since p last moved, and how many there were."

    def __init__(self, settings: ADAConfig) -> None:
        super().__init__()
        self.settings = settings
        self.steered = settings.target is not None
        device = None if self.steered else "cpu"  # what is not saved is there from the beginning, also where weights are still to come
        self.register_buffer("p", torch.tensor(value_at(settings.p, 0), device=device), persistent=self.steered)
        self.register_buffer("signs", torch.zeros(2, device=device), persistent=self.steered)

    def forward(self, images: Float[Tensor, "b c h w"], rng: Rng, *, maps: bool) -> Float[Tensor, "b c h w"]:
        """The images, or label maps, changed at random."""
        return adapted(images, rng, p=self.p, settings=self.settings, maps=maps)

    @torch.no_grad()
    def prepare(self, progress: TrainingProgress) -> None:
        """Before the discriminator's first step of an iteration: p as the ramp has it, or moved by the signs where that is due."""
        settings = self.settings
        if settings.target is None:
            self.p.fill_(value_at(settings.p, progress.images_seen))
        elif progress.iteration % settings.every == 0:
            total, count = self.signs.unbind()
            self.p.add_((total - settings.target * count).sign() * count / settings.images).clamp_(min=0)
            self.signs.zero_()

    @torch.no_grad()
    def observe(self, signs: Float[Tensor, " b"]) -> None:
        """Adds the signs of a step's real images to those that move p."""
        if self.steered:
            self.signs += torch.stack((signs.sum(), signs.new_tensor(len(signs))))


def mean_signs(scores: Outputs) -> Float[Tensor, " b"]:
    """sign D of each image; of one with many scores, their mean inside a scale and then over the scales."""
    return score_mean([scale.detach().sign() for scale in ([scores] if isinstance(scores, Tensor) else scores)])
