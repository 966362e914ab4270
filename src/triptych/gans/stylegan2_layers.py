"""What the networks of StyleGAN2 are made of (equations in docs/methods/stylegan2.md), and their settings.

"Analyzing and Improving the Image Quality of StyleGAN", Karras et al. 2020, https://arxiv.org/abs/1912.04958, and "Training Generative
Adversarial Networks with Limited Data", Karras et al. 2020, https://arxiv.org/abs/2006.06676.

Weights are drawn from N(0, 1) and divided by the root of the number of inputs where they are used, so that Adam moves all of them at one
speed ("Progressive Growing of GANs", Karras et al. 2018, https://arxiv.org/abs/1710.10196, section 4.1). Leaky rectifiers are made stronger
by sqrt(2), which is done to the weights and the biases before them: it costs nothing there.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from triptych.core.config import Config, config
from triptych.gans.layers import SLOPE
from triptych.nn.convolution import convolution
from triptych.nn.filters import upsampled_convolution
from triptych.nn.precision import widened
from triptych.nn.rectifier import leaky_rectifier

Modulation = Literal["features", "weights"]
RECTIFIER_GAIN = math.sqrt(2.0)  # of a leaky rectifier
EPS = 1e-8
_LEAST_HALF = 8  # the resolution below which all is float32


@config
class StyleGAN2NetworkConfig(Config):
    """What both networks have."""

    changeable: ClassVar = frozenset(("checkpoint",))

    base_channels: int = 32_768
    "Channels at a resolution are this divided by it, at most `max_channels`."
    max_channels: int = 512
    "The most channels."
    mapping_layers: int = 8
    "Layers of the mapping network; of a discriminator, which has one where there are classes, it may be 0."
    mapping_rate: float = 0.01
    "Learning rate of the mapping network, as a factor of that of the rest."
    half_stages: int = 4
    "How many of the highest resolutions follow `train.precision`; the others stay float32."
    conv_clamp: float | None = None
    "Features are clipped to plus and minus this (256 in StyleGAN2-ADA, for half precision); None: they are not."
    checkpoint: bool = False
    "Recompute each resolution in the backward pass: a sixth to a fifth less memory for features, for about half more time."

    def validate(self) -> None:
        for name in ("base_channels", "max_channels"):
            self.require(getattr(self, name) >= 1, name, "at least 1")
        self.require(0 < self.mapping_rate < math.inf, "mapping_rate", "a positive number")
        self.require(0 <= self.half_stages <= 32, "half_stages", "from 0 to 32")
        self.require(self.conv_clamp is None or 0 < self.conv_clamp < math.inf, "conv_clamp", "a positive number, or nothing")

    def channels(self, resolution: int) -> int:
        """At that resolution."""
        return max(1, min(self.base_channels // resolution, self.max_channels))

    def is_half(self, resolution: int, *, size: int) -> bool:
        """Whether a resolution of networks for images of that size follows the precision of the training."""
        return resolution * 2**self.half_stages > size and resolution >= _LEAST_HALF


@config
class StyleGAN2GeneratorConfig(StyleGAN2NetworkConfig):
    """The generator: from z by the mapping network to w, and from w to the image."""

    changeable: ClassVar = frozenset(("checkpoint", "modulation"))

    style_dims: int = 512
    "Numbers of w, and width of the mapping network."
    modulation: Modulation = "features"
    "What styles multiply: the features, or as in the paper the weights, which gives the same and is slower."

    def validate(self) -> None:
        for name in ("style_dims", "mapping_layers"):
            self.require(getattr(self, name) >= 1, name, "at least 1")

    def shrunk(self) -> Self:
        """A narrow network, for tests."""
        return replace(self, base_channels=32, max_channels=4, mapping_layers=2, style_dims=6)


@config
class StyleGAN2DiscriminatorConfig(StyleGAN2NetworkConfig):
    """The discriminator."""

    architecture: Literal["residual", "plain"] = "residual"
    "residual: a 1x1 convolution goes past the two convolutions of each resolution; plain: none does."
    group_size: int = 4
    "Consecutive images whose deviation from one another is a feature of each of them; 1: no such feature."

    def validate(self) -> None:
        self.require(self.group_size >= 1, "group_size", "at least 1")
        self.require(self.mapping_layers >= 0, "mapping_layers", "0 or more")

    def shrunk(self) -> Self:
        """A narrow network with groups of two, for tests."""
        narrow = replace(self, base_channels=32, max_channels=4, mapping_layers=min(self.mapping_layers, 2))
        return replace(narrow, group_size=min(self.group_size, 2))


# Layers -----------------------------------------------------------------------------------------------------------------


class FullyConnected(nn.Module):
    """W x + b, with `active` followed by the rectifier: keys weight, bias. `rate`: its learning rate, as a factor of that of others."""

    def __init__(self, ins: int, outs: int, *, active: bool = False, rate: float = 1.0, bias: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outs, ins).div_(rate))
        self.bias = nn.Parameter(torch.full((outs,), bias))
        self.active, self.rate = active, rate

    def forward(self, x: Float[Tensor, "b i"]) -> Float[Tensor, "b o"]:
        """The output."""
        gain = self.rate * (RECTIFIER_GAIN if self.active else 1.0)
        x = F.linear(x, self.weight * (gain / math.sqrt(self.weight.shape[1])), self.bias * gain)
        return leaky_rectifier(x, SLOPE) if self.active else x


class MappingNetwork(nn.Module):
    """z, the label or both, as w: keys embed, fc{i}, and in the generator w_avg."""

    w_avg: Tensor

    def __init__(
        self, settings: StyleGAN2NetworkConfig, *, z_dims: int, num_classes: int | None, w_dims: int, keeps_average: bool = True
    ) -> None:
        super().__init__()
        self.z_dims, self.num_classes, self.num_layers = z_dims, num_classes, settings.mapping_layers
        if num_classes is not None:
            self.embed = FullyConnected(num_classes, w_dims)
        ins = z_dims + (0 if num_classes is None else w_dims)
        for index in range(self.num_layers):
            layer = FullyConnected(w_dims if index else ins, w_dims, active=True, rate=settings.mapping_rate)
            self.add_module(f"fc{index}", layer)
        if keeps_average:
            self.register_buffer("w_avg", torch.zeros(w_dims))

    def forward(self, z: Float[Tensor, "b z"] | None, labels: Int[Tensor, " b"] | None = None) -> Float[Tensor, "b s"]:
        """w, always in float32. `z`: None where the network has labels alone; `labels`: exactly where there are classes."""
        device = next(self.parameters()).device
        with torch.autocast(device.type, enabled=False):
            parts = [] if z is None else [normalized(widened(z))]
            if self.num_classes is not None:
                assert labels is not None, "a network with classes is told the labels"
                one_hot = F.one_hot(labels, self.num_classes).to(self.embed.weight.dtype)
                parts.append(normalized(self.embed(one_hot)))
            x = torch.cat(parts, dim=1)
            for index in range(self.num_layers):
                x = self.get_submodule(f"fc{index}")(x)
            return x

    def truncated(self, w: Float[Tensor, "b s"], psi: float) -> Float[Tensor, "b s"]:
        """w_avg + psi (w - w_avg): nearer to the mean of all w, so that images are better and more alike."""
        return torch.lerp(self.w_avg, w, psi)


def normalized(x: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
    """x divided by the root of its mean square."""
    return x * (x.square().mean(dim=1, keepdim=True) + EPS).rsqrt()


def modulated_convolution(
    x: Float[Tensor, "b i h w"],
    weight: Float[Tensor, "o i k k"],
    styles: Float[Tensor, "b i"],
    *,
    demodulate: bool = True,
    kernel: Tensor | None = None,
    by_weights: bool = False,
    gain: float = 1.0,
) -> Float[Tensor, "b o _ _"]:
    """x convolved with the weights w' = s_i w_oik, demodulated w' / sqrt(sum over i and k of w'^2): Karras et al. 2020, Eq. 1 and 3.

    `by_weights`: each image has weights of its own, all of them one convolution by groups. Else styles multiply the features before the
    convolution, and the demodulation those behind it: the same, since convolutions are linear. `kernel`: of the filter, of a convolution
    that doubles the size. `gain`: a factor of the result.
    """
    with torch.autocast(x.device.type, enabled=False):
        factor = None
        if demodulate:
            factor = gain * (styles.square() @ weight.square().sum(dim=(2, 3)).T + EPS).rsqrt()
        elif gain != 1:
            styles = styles * gain
    if not by_weights:
        y = _convolved(x * styles.to(x.dtype)[:, :, None, None], weight, kernel)
        return y if factor is None else y * factor.to(y.dtype)[:, :, None, None]
    each = weight * styles[:, None, :, None, None]
    each = each if factor is None else each * factor[:, :, None, None, None]
    y = _convolved(x.reshape(1, -1, *x.shape[2:]), each.flatten(0, 1), kernel, groups=len(x))
    return y.view(len(x), -1, *y.shape[2:])


def _convolved(x: Tensor, weight: Tensor, kernel: Tensor | None, *, groups: int = 1) -> Tensor:
    if kernel is not None:
        return upsampled_convolution(x, weight, kernel, groups=groups)
    return convolution(x, weight, padding=weight.shape[2] // 2, groups=groups)


def clipped(x: Float[Tensor, " b *d"], limit: float | None) -> Float[Tensor, " b *d"]:
    """x between -limit and limit; None: as it is."""
    return x if limit is None else x.clamp(-limit, limit)
