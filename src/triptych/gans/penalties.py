"""Zero-centred gradient penalties of the discriminator, one value for each sample.

"Which Training Methods for GANs do actually Converge?", Mescheder, Geiger and Nowozin 2018, https://arxiv.org/abs/1801.04406, Eq. 9
(R1, on real images) and Eq. 10 (R2, on generated ones). Evaluated only every few steps ("lazy") as in "Analyzing and Improving the
Image Quality of StyleGAN", Karras et al. 2020, https://arxiv.org/abs/1912.04958, appendix B.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from triptych.core.config import Config, config
from triptych.gans.losses import Outputs, score_mean
from triptych.nn.precision import widened


@config
class PenaltyConfig(Config):
    """Penalties on the gradient of the discriminator."""

    r1_gamma: float = 0.0
    "Weight of the penalty on real images, gamma / 2 |gradient|^2; 0: none."
    r2_gamma: float = 0.0
    "Weight of the penalty on generated images, gamma / 2 |gradient|^2; 0: none."
    every: int = 1
    "Penalise in every so many iterations only, so many times as strongly."
    at: Literal["augmented", "original"] = "augmented"
    "The images at which the gradient is taken: as the discriminator sees them, or before `augment`."

    def validate(self) -> None:
        for setting in ("r1_gamma", "r2_gamma"):
            self.require(0 <= getattr(self, setting) < float("inf"), setting, "0 or a positive number")
        self.require(self.every >= 1, "every", "at least 1")


def gradient_penalty(
    discriminate: Callable[[Tensor], Outputs], images: Float[Tensor, "b c h w"], *, gamma: float, every: int = 1
) -> Float[Tensor, " b"]:
    """every * gamma / 2 * |d D / d image|^2 of each image. R1 for real images, R2 for generated ones.

    D is the mean score of an image, inside each scale and then over the scales, as in the adversarial losses. `discriminate` gives the
    scores of images alone: one that is told more (labels, maps) is handed over as a function that holds them, and they have no part
    in the gradient. `every`: the `Phase.every` of a lazy penalty, whose mean strength it keeps.

    Computed without autocast, and as if the discriminator were not compiled, for torch.compile has no second derivatives. The result has
    gradients for the discriminator's parameters and none for the images. The discriminator needs second derivatives (no fused attention on
    a CPU), and no batch norm: its samples' gradients would be mixed.
    """
    with torch.autocast(images.device.type, enabled=False), torch.enable_grad(), torch.compiler.set_stance("force_eager"):
        x = widened(images.detach()).requires_grad_()
        (gradient,) = torch.autograd.grad(score_mean(discriminate(x)).sum(), x, create_graph=True)
        return (every * gamma / 2) * gradient.flatten(1).square().sum(1)
