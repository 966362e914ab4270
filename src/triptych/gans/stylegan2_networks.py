"""The generator and the discriminator of StyleGAN2 (equations in docs/methods/stylegan2.md).

Names of parts and tensors are those of published weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from triptych.core.rng import Rng
from triptych.gans.discriminators import Scores
from triptych.gans.layers import SLOPE
from triptych.gans.stylegan2_layers import (
    EPS,
    RECTIFIER_GAIN,
    FullyConnected,
    MappingNetwork,
    Modulation,
    StyleGAN2DiscriminatorConfig,
    StyleGAN2GeneratorConfig,
    clipped,
    modulated_convolution,
)
from triptych.nn.convolution import convolution
from triptych.nn.filters import BINOMIAL, downsampled_convolution, kernel_of, upsampled
from triptych.nn.precision import stage_precision, widened
from triptych.nn.recomputing import recomputed, recomputed_twice
from triptych.nn.rectifier import leaky_rectifier

# The generator ----------------------------------------------------------------------------------------------------------


class SynthesisLayer(nn.Module):
    """A modulated 3x3 convolution with noise, bias and rectifier: keys affine, weight, bias, noise_const, noise_strength."""

    noise_const: Tensor
    resample_filter: Tensor

    def __init__(self, settings: StyleGAN2GeneratorConfig, ins: int, outs: int, *, resolution: int, up: bool) -> None:
        super().__init__()
        self.affine = FullyConnected(settings.style_dims, ins, bias=1.0)
        self.weight = nn.Parameter(torch.randn(outs, ins, 3, 3))
        self.bias = nn.Parameter(torch.zeros(outs))
        self.noise_strength = nn.Parameter(torch.zeros([]))
        self.register_buffer("noise_const", torch.randn(resolution, resolution))
        self.register_buffer("resample_filter", kernel_of(BINOMIAL, device=torch.device("cpu")))
        self.up, self.limit = up, settings.conv_clamp

    def forward(
        self, x: Float[Tensor, "b i _ _"], w: Float[Tensor, "b s"], noise: Float[Tensor, "_ 1 h h"] | None, *, by_weights: bool
    ) -> Float[Tensor, "b o h h"]:
        """The features. `noise`: None: the fixed one."""
        with torch.autocast(x.device.type, enabled=False):
            styles = self.affine(w)
            added = (self.noise_const if noise is None else noise) * (RECTIFIER_GAIN * self.noise_strength)
        kernel = self.resample_filter if self.up else None
        x = modulated_convolution(x, self.weight, styles, kernel=kernel, by_weights=by_weights, gain=RECTIFIER_GAIN)
        x = x + added.to(x.dtype) + (RECTIFIER_GAIN * self.bias).to(x.dtype)[:, None, None]
        return leaky_rectifier(x, SLOPE, self.limit)


class ToRGB(nn.Module):
    """The image of features, by a 1x1 convolution that is modulated and not demodulated: keys affine, weight, bias."""

    def __init__(self, settings: StyleGAN2GeneratorConfig, ins: int, *, image_channels: int) -> None:
        super().__init__()
        self.affine = FullyConnected(settings.style_dims, ins, bias=1.0)
        self.weight = nn.Parameter(torch.randn(image_channels, ins, 1, 1))
        self.bias = nn.Parameter(torch.zeros(image_channels))
        self.limit = settings.conv_clamp

    def forward(self, x: Float[Tensor, "b i h h"], w: Float[Tensor, "b s"], *, by_weights: bool) -> Float[Tensor, "b c h h"]:
        """The image, in float32."""
        with torch.autocast(x.device.type, enabled=False):
            styles = self.affine(w)
        gain = 1 / math.sqrt(self.weight.shape[1])
        image = modulated_convolution(x, self.weight, styles, demodulate=False, by_weights=by_weights, gain=gain)
        return clipped(widened(image) + self.bias[:, None, None], self.limit)


class SynthesisBlock(nn.Module):
    """One resolution: keys const (of the first), conv0 (of the others), conv1, torgb."""

    resample_filter: Tensor

    def __init__(self, settings: StyleGAN2GeneratorConfig, *, resolution: int, size: int, image_channels: int) -> None:
        super().__init__()
        outs, first = settings.channels(resolution), resolution == 4
        self.register_buffer("resample_filter", kernel_of(BINOMIAL, device=torch.device("cpu")))
        self.may_be_half, self.num_layers = settings.is_half(resolution, size=size), 1 if first else 2
        if first:
            self.const = nn.Parameter(torch.randn(outs, 4, 4))
        else:
            self.conv0 = SynthesisLayer(settings, settings.channels(resolution // 2), outs, resolution=resolution, up=True)
        self.conv1 = SynthesisLayer(settings, outs, outs, resolution=resolution, up=False)
        self.torgb = ToRGB(settings, outs, image_channels=image_channels)

    def forward(
        self,
        x: Float[Tensor, "b _ _ _"] | None,
        image: Float[Tensor, "b c _ _"] | None,
        ws: Float[Tensor, "b n s"],
        noise: Sequence[Tensor] | None,
        by_weights: bool,
    ) -> tuple[Float[Tensor, "b _ h h"], Float[Tensor, "b c h h"]]:
        """The features, and the image so far. `ws`: of each of its convolutions and of torgb; `noise`: of the convolutions."""
        if x is None:
            x = self.const.expand(len(ws), -1, -1, -1)
        layers = [self.conv1] if self.num_layers == 1 else [self.conv0, self.conv1]
        with stage_precision(x, half=self.may_be_half) as features:
            for index, layer in enumerate(layers):
                features = layer(features, ws[:, index], None if noise is None else noise[index], by_weights=by_weights)
            added = self.torgb(features, ws[:, len(layers)], by_weights=by_weights)
        return features, added if image is None else upsampled(image, self.resample_filter) + added


class SynthesisNetwork(nn.Module):
    """Images of ws: keys b{resolution}."""

    def __init__(self, settings: StyleGAN2GeneratorConfig, *, size: int, image_channels: int) -> None:
        super().__init__()
        self.modulation: Modulation = settings.modulation
        self.checkpoint = settings.checkpoint
        self.resolutions = [2**power for power in range(2, size.bit_length())]
        for resolution in self.resolutions:
            block = SynthesisBlock(settings, resolution=resolution, size=size, image_channels=image_channels)
            self.add_module(f"b{resolution}", block)
        self.sides = [side for side in self.resolutions for _ in range(1 if side == 4 else 2)]
        "Of the features of each convolution."
        self.num_ws = len(self.sides) + 1

    def forward(self, ws: Float[Tensor, "b n s"], noise: Sequence[Tensor] | None = None) -> Float[Tensor, "b c h h"]:
        """Images of `num_ws` w each: one for each convolution, and one for the last image. They are about in [-1, 1].

        A resolution's image takes the w of the next resolution's first convolution. `noise`: (b, 1, h, h) for each convolution; None: the
        one that was drawn with the weights.
        """
        by_weights = self.modulation == "weights"
        x, image, first = None, None, 0
        ws = widened(ws)
        for resolution in self.resolutions:
            block = self.get_submodule(f"b{resolution}")
            assert isinstance(block, SynthesisBlock)
            behind = first + block.num_layers
            drawn = None if noise is None else noise[first:behind]
            x, image = recomputed(block, x, image, ws[:, first : behind + 1], drawn, by_weights, when=self.checkpoint)
            first = behind
        assert image is not None, "there is at least one resolution"
        return image

    def drawn_noise(self, rng: Rng) -> list[Tensor]:
        """Noise for each convolution, (b, 1, h, h)."""
        return [rng.normal(f"noise {layer}", 1, side, side) for layer, side in enumerate(self.sides)]


class StyleGAN2Generator(nn.Module):
    """Images of z: keys mapping, synthesis."""

    def __init__(self, settings: StyleGAN2GeneratorConfig, *, z_dims: int, num_classes: int | None, size: int, image_channels: int) -> None:
        super().__init__()
        self.synthesis = SynthesisNetwork(settings, size=size, image_channels=image_channels)
        self.mapping = MappingNetwork(settings, z_dims=z_dims, num_classes=num_classes, w_dims=settings.style_dims)

    def styles(
        self,
        z: Float[Tensor, "b z"],
        labels: Int[Tensor, " b"] | None = None,
        *,
        other: Float[Tensor, "b z"] | None = None,
        crossover: Int[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b n s"]:
        """w for each layer of the synthesis. Style mixing: those from number `crossover` on are of `other`, a second z."""
        ws = self.mapping(z, labels)[:, None].expand(-1, self.synthesis.num_ws, -1)
        if other is None or crossover is None:
            return ws
        layer = torch.arange(self.synthesis.num_ws, device=ws.device)
        return torch.where((layer < crossover[:, None])[:, :, None], ws, self.mapping(other, labels)[:, None])

    def forward(
        self,
        z: Float[Tensor, "b z"],
        labels: Int[Tensor, " b"] | None = None,
        *,
        other: Float[Tensor, "b z"] | None = None,
        crossover: Int[Tensor, " b"] | None = None,
        noise: Sequence[Tensor] | None = None,
    ) -> Float[Tensor, "b c h h"]:
        """The images, as `styles` and the synthesis make them."""
        return self.synthesis(self.styles(z, labels, other=other, crossover=crossover), noise)


# The discriminator ------------------------------------------------------------------------------------------------------


class DiscriminatorLayer(nn.Module):
    """A convolution, with `active` bias and rectifier behind it: keys weight, bias. `gain`: a factor of the result."""

    resample_filter: Tensor

    def __init__(
        self, ins: int, outs: int, side: int, *, active: bool = True, down: bool = False, gain: float = 1.0, limit: float | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outs, ins, side, side))
        self.bias = nn.Parameter(torch.zeros(outs)) if active else None
        self.register_buffer("resample_filter", kernel_of(BINOMIAL, device=torch.device("cpu")))
        self.down, self.gain, self.limit = down, gain * (RECTIFIER_GAIN if active else 1.0), None if limit is None else limit * gain

    def forward(self, x: Float[Tensor, "b i _ _"]) -> Float[Tensor, "b o h w"]:
        """The features."""
        weight = self.weight * (self.gain / math.sqrt(self.weight[0].numel()))
        if self.down:
            x = downsampled_convolution(x, weight, self.resample_filter)
        else:
            x = convolution(x, weight, padding=weight.shape[2] // 2)
        if self.bias is None:
            return x
        return leaky_rectifier(x + (self.bias * self.gain).to(x.dtype)[:, None, None], SLOPE, self.limit)


class DiscriminatorBlock(nn.Module):
    """One resolution, which it halves: keys fromrgb (of the first), conv0, conv1, skip (of a residual one)."""

    resample_filter: Tensor

    def __init__(self, settings: StyleGAN2DiscriminatorConfig, *, resolution: int, size: int, image_channels: int) -> None:
        super().__init__()
        ins, outs, limit = settings.channels(resolution), settings.channels(resolution // 2), settings.conv_clamp
        residual = settings.architecture == "residual"
        gain = math.sqrt(0.5) if residual else 1.0  # the sum of two has the variance of one
        self.may_be_half = settings.is_half(resolution, size=size)
        self.register_buffer("resample_filter", kernel_of(BINOMIAL, device=torch.device("cpu")))
        self.fromrgb = DiscriminatorLayer(image_channels, ins, 1, limit=limit) if resolution == size else None
        self.conv0 = DiscriminatorLayer(ins, ins, 3, limit=limit)
        self.conv1 = DiscriminatorLayer(ins, outs, 3, down=True, gain=gain, limit=limit)
        self.skip = DiscriminatorLayer(ins, outs, 1, active=False, down=True, gain=gain) if residual else None

    def forward(self, x: Float[Tensor, "b _ h w"]) -> Float[Tensor, "b _ h//2 w//2"]:
        """The features of images, or of the resolution before."""
        with stage_precision(x, half=self.may_be_half) as x:
            x = x if self.fromrgb is None else self.fromrgb(x)
            y = self.conv1(self.conv0(x))
            return y if self.skip is None else self.skip(x) + y


class DiscriminatorEpilogue(nn.Module):
    """The score of features of 4x4 pixels, or what is to be compared with the label: keys conv, fc, out."""

    def __init__(self, settings: StyleGAN2DiscriminatorConfig, *, num_classes: int | None) -> None:
        super().__init__()
        width = settings.channels(4)
        self.group_size = settings.group_size
        self.conv = DiscriminatorLayer(width + (self.group_size > 1), width, 3, limit=settings.conv_clamp)
        self.fc = FullyConnected(16 * width, width, active=True)
        self.out = FullyConnected(width, 1 if num_classes is None else width)

    def forward(self, x: Float[Tensor, "b _ 4 4"]) -> Float[Tensor, "b _"]:
        """The score, or as many numbers as there are channels."""
        if self.group_size > 1:
            x = torch.cat((x, group_deviation(x, self.group_size)), dim=1)
        return self.out(self.fc(self.conv(x).flatten(1)))


def group_deviation(x: Float[Tensor, "b c h w"], size: int) -> Float[Tensor, "b 1 h w"]:
    """The standard deviation over each group of consecutive images, its mean over all features, as a feature of each of its images.

    Karras et al. 2018, section 3. Raises ValueError unless the images are so many groups.
    """
    if len(x) % size:
        raise ValueError(f"got {len(x)} images, expected a multiple of {size}: groups of so many are compared with each other")
    groups = x.unflatten(0, (-1, size))
    deviation = (groups.var(dim=1, correction=0) + EPS).sqrt().mean(dim=(1, 2, 3))
    return deviation.repeat_interleave(size, output_size=len(x))[:, None, None, None].expand(-1, 1, *x.shape[2:])


class StyleGAN2Discriminator(nn.Module):
    """Scores of images: keys b{resolution}, b4, mapping (of a conditional one)."""

    def __init__(self, settings: StyleGAN2DiscriminatorConfig, *, num_classes: int | None, size: int, image_channels: int) -> None:
        super().__init__()
        self.checkpoint = settings.checkpoint
        self.resolutions = [2**power for power in range(size.bit_length() - 1, 2, -1)]
        for resolution in self.resolutions:
            block = DiscriminatorBlock(settings, resolution=resolution, size=size, image_channels=image_channels)
            self.add_module(f"b{resolution}", block)
        self.mapping = None
        if num_classes is not None:
            width = settings.channels(4)
            self.mapping = MappingNetwork(settings, z_dims=0, num_classes=num_classes, w_dims=width, keeps_average=False)
        self.b4 = DiscriminatorEpilogue(settings, num_classes=num_classes)

    def forward(self, images: Float[Tensor, "b c h h"], labels: Int[Tensor, " b"] | None = None) -> Scores:
        """A score (b, 1) for each image; with classes the product of its features with those of its label, / sqrt(their number)."""
        x = images
        for resolution in self.resolutions:
            x = recomputed_twice(self.get_submodule(f"b{resolution}"), x, when=self.checkpoint)
        with stage_precision(x, half=False) as x:
            x = self.b4(x)
            if self.mapping is not None:
                x = (x * self.mapping(None, labels)).sum(dim=1, keepdim=True) / math.sqrt(x.shape[1])
        return Scores((x,), ())
