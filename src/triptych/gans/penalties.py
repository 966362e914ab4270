"""Zero-centred gradient penalties of the discriminator, one value for each sample.

"Which Training Methods for GANs do actually Converge?", Mescheder, Geiger and Nowozin 2018, https://arxiv.org/abs/1801.04406, Eq. 9
(R1, on real images) and Eq. 10 (R2, on generated ones). Evaluated only every few steps ("lazy") as in "Analyzing and Improving the
Image Quality of StyleGAN", Karras et al. 2020, https://arxiv.org/abs/1912.04958, appendix B.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from triptych.core.config import Config, config
from triptych.core.ramp import Ramp, ends
from triptych.gans.losses import Outputs, score_mean
from triptych.nn.precision import widened


@config
class PenaltyConfig(Config):
    """Penalties on the gradient of the discriminator."""

    r1_gamma: float | Ramp = 0.0
    "Weight of the penalty on real images, gamma / 2 |gradient|^2; 0: none."
    r2_gamma: float | Ramp = 0.0
    "Weight of the penalty on generated images, gamma / 2 |gradient|^2; 0: none."
    every: int = 1
    "Penalise in every so many iterations only, so many times as strongly."
    at: Literal["augmented", "original"] = "augmented"
    "The images at which the gradient is taken: as the discriminator sees them, or before `ada` and `augment`."
    precision: Literal["float32", "training"] = "float32"
    "Arithmetic: float32 always, or that of the training, where the discriminator then runs once for its loss and its penalties."

    def validate(self) -> None:
        for setting in ("r1_gamma", "r2_gamma"):
            self.require(all(0 <= gamma < math.inf for gamma in ends(getattr(self, setting))), setting, "0 or a positive number")
        self.require(self.every >= 1, "every", "at least 1")
        shared = self.precision == "float32" or self.every == 1
        self.require(shared, "precision", "float32 where every is above 1: a lazy penalty has a pass of its own")

    @property
    def wanted(self) -> bool:
        """Whether there is a penalty at any time."""
        return max(*ends(self.r1_gamma), *ends(self.r2_gamma)) > 0


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
    with torch.autocast(images.device.type, enabled=False), differentiable():
        x = as_leaf(images)
        return squared_gradient(discriminate(x), x, factor=every * gamma / 2)


def as_leaf(images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
    """The images, in float32 where their precision is lower, as where a gradient ends."""
    return widened(images.detach()).requires_grad_()


@contextmanager
def differentiable() -> Iterator[None]:
    """Within it a network can be differentiated twice: it runs as if it were not compiled."""
    with torch.enable_grad(), torch.compiler.set_stance("force_eager"):
        yield


def squared_gradient(scores: Outputs, x: Float[Tensor, "b c h w"], *, factor: float) -> Float[Tensor, " b"]:
    """factor * |d D / d x|^2 of each image of x, an `as_leaf` from which the scores were computed within `differentiable`."""
    with torch.autocast(x.device.type, enabled=False), torch.enable_grad():
        (gradient,) = torch.autograd.grad(score_mean(scores).sum(), x, create_graph=True)
        return factor * gradient.flatten(1).square().sum(1)
