"""Projection: the styles w of a given image, by optimisation. "Analyzing and Improving the Image Quality of StyleGAN", Karras et al. 2020,
https://arxiv.org/abs/1912.04958, appendix D.

Of an image x, w begins at its mean and moves by Adam to where

    L = d(G(w + e), x) + alpha R(n),   e ~ N(0, (c sigma t^2)^2)

is small. d is a distance of images, sigma^2 = E |w - mean|^2, and t falls from 1 to 0 over the first three quarters of the steps, so that w
first looks around. Where the noise maps n are optimised too, R keeps the image out of them: it sums, over each map and its halves down to
8 pixels, the squares of the mean product of neighbours; after each step a map gets mean 0 and variance 1.

Every image is on its own: nothing is summed over a batch but losses, and its draws depend on its number alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from triptych.core.config import Config, config
from triptych.core.model import Report
from triptych.core.rng import Rng
from triptych.gans.perceptual import PerceptualConfig, PerceptualLoss
from triptych.gans.stylegan2_networks import SynthesisNetwork
from triptych.nn.precision import widened

_RISES, _FALLS = 0.05, 0.25  # shares of the steps in which the learning rate rises from 0 and falls to 0
_LOOKS_AROUND = 0.75  # the share of the steps in which there is noise on w
_LEAST_MAP = 8  # pixels of the smallest map that R looks at
_LARGEST = 256  # pixels of a side at which images are compared, at most
_FEATURES_FROM = 64  # pixels of a side from which the features of photos mean something

_NOISE_WEIGHT = 1e5

Distance = Callable[[Tensor], Tensor]
"""From images (b, c, h, w) to how far each is from its target: (b,)."""


@config
class ProjectionConfig(Config):
    """How the styles of an image are found."""

    space: Literal["w", "w+"] = "w"
    "w: one style for all layers, which stays editable; w+: one for each layer, which comes nearer to the image."
    steps: int = 500
    "Steps of Adam."
    learning_rate: float = 0.1
    "The largest learning rate; it rises over the first 5 % of the steps and falls over the last 25 %."
    noise: float = 0.05
    "Noise on w at the beginning, as a share of the deviation of w."
    noise_maps: bool = False
    "Find the noise of each layer too: nearer to the image, and stored with its styles."
    noise_weight: float = _NOISE_WEIGHT
    "How strongly noise maps are kept from holding the image."
    distance: Literal["pixels", "features"] | None = None
    "pixels: mean squared difference; features: those of a frozen network; None: pixels below 64 pixels a side, else features."
    perceptual: PerceptualConfig = PerceptualConfig(network="efficientnet_lite0", criterion="l2", layer_weights=(1.0,) * 5)
    "The frozen network of features; without a file those weights that evaluations use."

    def validate(self) -> None:
        self.require(self.steps >= 1, "steps", "at least 1")
        self.require(0 < self.learning_rate <= 1000, "learning_rate", "more than 0, to 1,000")
        self.require(0 <= self.noise <= 1000, "noise", "0 to 1,000")
        self.require(0 <= self.noise_weight <= 1e12, "noise_weight", "0 to 1e12")
        self.require(self.noise_maps or self.noise_weight == _NOISE_WEIGHT, "noise_weight", f"{_NOISE_WEIGHT:g} without noise_maps")

    def by_features(self, size: int) -> bool:
        """Whether images of that many pixels a side are compared by features."""
        return size >= _FEATURES_FROM if self.distance is None else self.distance == "features"


def projected(
    synthesis: SynthesisNetwork,
    distance: Distance,
    rng: Rng,
    *,
    mean: Float[Tensor, " w"],
    deviation: float,
    settings: ProjectionConfig,
    report: Report | None = None,
) -> tuple[Float[Tensor, "b n w"], list[Float[Tensor, "b 1 _ _"]]]:
    """The styles of the images that `distance` is about, one for each index of `rng`, and their noise maps where these are optimised.

    `mean` and `deviation` (sigma) are those of w. `report` is told of the steps.
    """
    count, styles = len(rng), 1 if settings.space == "w" else synthesis.num_ws
    w = mean.expand(count, styles, -1).clone()
    maps = [_standardised(noise.to(w)) for noise in synthesis.drawn_noise(rng.child("maps"))] if settings.noise_maps else []
    leaves = [w, *maps]
    adam = torch.optim.Adam(leaves, lr=settings.learning_rate)
    for step in range(settings.steps):
        done = step / settings.steps
        around = settings.noise * deviation * max(0.0, 1 - done / _LOOKS_AROUND) ** 2
        with torch.enable_grad():
            for leaf in leaves:
                leaf.requires_grad_()
            moved = w + around * rng.normal(f"w {step}", *w.shape[1:]).to(w) if around else w
            loss = distance(synthesis(moved.expand(-1, synthesis.num_ws, -1), maps or None))
            if maps:
                loss = loss + settings.noise_weight * structure(maps)
            gradients = torch.autograd.grad(loss.sum(), leaves)
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.requires_grad_(False).grad = gradient
        adam.param_groups[0]["lr"] = settings.learning_rate * rate(done)
        adam.step()
        for noise in maps:
            noise.copy_(_standardised(noise))
        if report is not None:
            report(step + 1, settings.steps)
    return w.expand(-1, synthesis.num_ws, -1), maps


def rate(done: float) -> float:
    """The learning rate, as a share of the largest, after a share of the steps: it rises linearly and falls as a cosine."""
    falling = min(1.0, (1 - done) / _FALLS)
    return min(1.0, done / _RISES) * (0.5 - 0.5 * math.cos(math.pi * falling))


def structure(maps: Sequence[Float[Tensor, "b 1 _ _"]]) -> Float[Tensor, " b"]:
    """R: how much neighbours in the noise maps, and in their halves, have to do with one another; 0 for ideal noise.

    A half has the sums of four pixels / 2, so that its variance is that of the map.
    """
    total = torch.zeros(len(maps[0]), dtype=maps[0].dtype, device=maps[0].device)
    for noise in maps:
        while True:
            for axis in (2, 3):
                total = total + (noise * noise.roll(1, axis)).mean(dim=(1, 2, 3)).square()
            if noise.shape[2] <= _LEAST_MAP:
                break
            noise = 2 * F.avg_pool2d(noise, 2)
    return total


def _standardised(noise: Float[Tensor, "b 1 h h"]) -> Float[Tensor, "b 1 h h"]:
    """Each map with mean 0 and variance 1."""
    centred = noise - noise.mean(dim=(1, 2, 3), keepdim=True)
    return centred * centred.square().mean(dim=(1, 2, 3), keepdim=True).rsqrt()


def distance_from(target: Float[Tensor, "b c h w"], features: PerceptualLoss | None) -> Distance:
    """How far images are from `target`, in features or, where there is no network, the mean squared difference of pixels.

    Images of more than 256 pixels a side are compared at a half, a quarter and so on.
    """
    target = reduced(target)
    if features is None:
        return lambda images: (widened(reduced(images)) - target).square().mean(dim=(1, 2, 3))
    seen = features.features(target)
    return lambda images: features.between(features.features(reduced(images)), seen)


def reduced(images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c _ _"]:
    """Images of at most 256 pixels a side, by means of 2x2 pixels."""
    while images.shape[3] > _LARGEST:
        images = F.avg_pool2d(images, 2)
    return images


def reduced_side(side: int) -> int:
    """Pixels of a side of `reduced` images, which are squares."""
    while side > _LARGEST:
        side //= 2
    return side
