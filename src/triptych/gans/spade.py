"""SPADE: Semantic Image Synthesis with Spatially-Adaptive Normalization (Park et al. 2019, arXiv 1903.07291), with a style code.

A small label map becomes features; residual blocks whose norms the label map modulates enlarge them to an image. A style code of the
whole image, encoded from a photo or drawn from N(0, I), modulates the norms between them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.core.config import Config, config
from triptych.gans.layers import BlockOptions, ConvBlock, LinearBlock, ResBlock
from triptych.gans.norms import NO_NORM, AdaptiveNorm, Norm, NormKind, SpatialNorm, resized_to
from triptych.gans.weight_norms import WeightNorm
from triptych.nn.precision import widened
from triptych.nn.resample import enlarged

POSITION_GRID = 16
"""Side of the grid of positions that a head may take beside the labels."""


@config
class SPADEGeneratorConfig(Config):
    """The generator and its style encoder."""

    resolution: Literal[256, 512, 1024] = 256
    "Pixels of the short side that the network is made for: 16 times that of the first feature map for 256, 32 for 512, 64 for 1024."
    num_filters: int = 128
    "Width: the widest maps have 16 times as many channels."
    kernel_size: int = 3
    "Side of the kernels, an odd number."
    style_dims: int | None = 256
    "Numbers of the style code. None: there is none, and no style encoder."
    spade_filters: int = 128
    "Channels between a label map and the scale and shift that it gives; 0: none between."
    spade_kernel_size: int = 5
    "Side of the kernels that see the label map, an odd number."
    separate_projection: bool = True
    "Scale and shift come from two convolutions, not from halves of one."
    spade_norm: NormKind = "sync_batch"
    "The norm that label maps modulate."
    global_norm: NormKind = "sync_batch"
    "The norm that the style code modulates."
    norm_affine: bool = True
    "Whether these two have a gain and an offset of their own."
    weight_norm: WeightNorm = "spectral"
    "Norm of the weights."
    norm_weight_norm: WeightNorm | None = None
    "Norm of the weights of the layers in these two norms. None: weight_norm."
    positional_input: bool = False
    "Whether the first layer also sees where each pixel is."
    output_multiplier: float = 1.0
    "Factor of the image before its tanh."
    encoder_filters: int = 64
    "Width of the style encoder."
    encoder_size: int = 256
    "Pixels along the sides to which the style encoder's images are resized, a multiple of 64."

    def validate(self) -> None:
        for name in ("num_filters", "kernel_size", "spade_kernel_size", "encoder_filters"):
            self.require(getattr(self, name) >= 1, name, "a positive whole number")
        for name in ("kernel_size", "spade_kernel_size"):
            self.require(getattr(self, name) % 2 == 1, name, "an odd number, so that maps keep their size")
        self.require(self.spade_filters >= 0, "spade_filters", "0 or more")
        self.require(self.style_dims is None or self.style_dims >= 1, "style_dims", "a positive whole number, or nothing")
        self.require(self.num_filters % 2 == 0 or self.resolution < 1024, "num_filters", "an even number at a resolution of 1024")
        self.require(self.encoder_size >= 64 and self.encoder_size % 64 == 0, "encoder_size", "a multiple of 64")

    @property
    def inner_weight_norm(self) -> WeightNorm:
        """Of the layers in the norms."""
        return self.weight_norm if self.norm_weight_norm is None else self.norm_weight_norm

    @property
    def stride(self) -> int:
        """Output pixels for each pixel of the first feature map; the sides of what the network makes are multiples of it."""
        return self.resolution // 16

    @property
    def least_size(self) -> int:
        """The fewest pixels along a side: the one pixel of a smaller first feature map has no variance of its own."""
        return 2 * self.stride if "instance" in (self.spade_norm, self.global_norm) else self.stride


class SPADEOutput(NamedTuple):
    """The images (b, c, h, w) in [-1, 1]; mean and log variance (b, style_dims) of the encoded style, where one was encoded."""

    fake_images: Tensor
    mu: Tensor | None = None
    logvar: Tensor | None = None


class StyleEncoder(nn.Module):
    """Images to the mean and log variance of a style: keys layer1 to layer6, fc_mu, fc_var."""

    def __init__(self, config: SPADEGeneratorConfig, *, image_channels: int) -> None:
        super().__init__()
        assert config.style_dims is not None
        self.size = config.encoder_size
        options = BlockOptions(nonlinearity="leakyrelu", weight_norm=config.weight_norm)
        widths = [image_channels] + [config.encoder_filters * factor for factor in (1, 2, 4, 8, 8, 8)]
        for index in range(1, len(widths)):
            block = ConvBlock(widths[index - 1], widths[index], config.kernel_size, stride=2, options=options)
            self.add_module(f"layer{index}", block)
        features = widths[-1] * (self.size // 64) ** 2
        self.fc_mu = LinearBlock(features, config.style_dims)
        self.fc_var = LinearBlock(features, config.style_dims)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance, both (b, style_dims), of images (b, c, any size)."""
        x = images
        if tuple(x.shape[2:]) != (self.size, self.size):
            with torch.autocast(x.device.type, enabled=False):
                x = F.interpolate(x, size=(self.size, self.size), mode="bilinear", align_corners=False)
        for index in range(1, 7):
            x = self.get_submodule(f"layer{index}")(x)
        x = x.flatten(1)
        return self.fc_mu(x), self.fc_var(x)


class SPADEDecoder(nn.Module):
    """A label map and a style code to images: keys fc_*, head_*, cbn_*, up_*, conv_img*."""

    def __init__(self, config: SPADEGeneratorConfig, *, label_channels: int, image_channels: int) -> None:
        super().__init__()
        self.config, nf, kernel = config, config.num_filters, config.kernel_size
        plain = BlockOptions(nonlinearity="leakyrelu", weight_norm=config.weight_norm)
        spade = SpatialNorm(
            Norm(config.spade_norm, affine=config.norm_affine),
            cond_channels=(label_channels,),
            num_filters=config.spade_filters,
            kernel_size=config.spade_kernel_size,
            separate=config.separate_projection,
            weight_norm=config.inner_weight_norm,
        )
        modulated = replace(plain, norm=spade)

        def block(ins: int, outs: int) -> ResBlock:
            return ResBlock(ins, outs, kernel, order="NACNAC", bias=(True, True, False), options=modulated)

        self._add_style_layers(config)
        head_channels = label_channels + (2 if config.positional_input else 0)
        self.head_0 = ConvBlock(head_channels, 8 * nf, kernel, options=plain)
        self._add_global("head_0", 8 * nf, 16 * nf)
        self.head_1, self.head_2 = block(16 * nf, 16 * nf), block(16 * nf, 16 * nf)
        for name, ins, mid, outs in (("up_0", 16, 8, 8), ("up_1", 8, 4, 4), ("up_2", 4, 4, 2)):
            self.add_module(f"{name}a", block(ins * nf, mid * nf))
            self._add_global(f"{name}a", mid * nf, mid * nf)
            self.add_module(f"{name}b", block(mid * nf, outs * nf))
        to_image = replace(plain, norm=NO_NORM)
        self.conv_img256 = ConvBlock(2 * nf, image_channels, 5, order="AC", options=to_image)
        for name, size, ins, outs in (("up_3", 512, 2 * nf, nf), ("up_4", 1024, nf, nf // 2)):
            if config.resolution >= size:
                self.add_module(f"{name}a", block(ins, outs))
                self.add_module(f"{name}b", block(outs, outs))
                self.add_module(f"conv_img{size}", ConvBlock(outs, image_channels, 5, order="AC", options=to_image))

    def _add_style_layers(self, config: SPADEGeneratorConfig) -> None:
        if config.style_dims is None:
            return
        relu = BlockOptions(nonlinearity="relu", weight_norm=config.weight_norm)
        self.fc_0 = LinearBlock(config.style_dims, 2 * config.style_dims, options=relu)
        self.fc_1 = LinearBlock(2 * config.style_dims, 2 * config.style_dims, options=relu)

    def _add_global(self, name: str, ins: int, outs: int) -> None:
        """The block that the style code modulates, cbn_NAME; without a style code a leaky ReLU and a convolution, conv_NAME."""
        config, norm = self.config, NO_NORM
        if config.style_dims is not None:
            norm = AdaptiveNorm(
                Norm(config.global_norm, affine=config.norm_affine),
                cond_channels=2 * config.style_dims,
                separate=config.separate_projection,
                weight_norm=config.inner_weight_norm,
            )
        options = BlockOptions(norm=norm, nonlinearity="leakyrelu", weight_norm=config.weight_norm)
        name = f"{'conv' if config.style_dims is None else 'cbn'}_{name}"
        self.add_module(name, ConvBlock(ins, outs, config.kernel_size, order="NAC", options=options))

    def forward(self, label: Tensor, style: Tensor | None = None) -> Tensor:
        """The images (b, c, h, w) in [-1, 1] of label maps (b, label_channels, h, w), sides rounded down to multiples of the stride.

        `style`: (b, style_dims), exactly when the network has a style code.
        """
        if (style is None) != (self.config.style_dims is None):
            raise ValueError("a style code is needed, exactly when the network has one")
        z = () if style is None else (self.fc_1(self.fc_0(style)),)
        x = self._global("head_0", self.head_0(self._head_input(label)), z)
        x = enlarged(self.head_2(self.head_1(x, label), label))
        for name in ("up_0", "up_1", "up_2"):
            x = self._global(f"{name}a", self._block(f"{name}a", x, label), z)
            x = enlarged(self._block(f"{name}b", x, label))
        image = self.conv_img256(x)
        for name, size in (("up_3", 512), ("up_4", 1024)):
            if self.config.resolution >= size:
                x = enlarged(self._block(f"{name}b", self._block(f"{name}a", x, label), label))
                image = enlarged(image) + self.get_submodule(f"conv_img{size}")(x)
        with torch.autocast(x.device.type, enabled=False):
            return torch.tanh(self.config.output_multiplier * widened(image))

    def _head_input(self, label: Tensor) -> Tensor:
        stride = self.config.stride
        height, width = label.shape[2] // stride, label.shape[3] // stride
        if height < 1 or width < 1:
            raise ValueError(f"got label maps of {label.shape[3]}x{label.shape[2]} pixels, expected sides of at least {stride}")
        small = resized_to(label, (height, width))
        if not self.config.positional_input:
            return small
        line = torch.linspace(-1, 1, POSITION_GRID, device=label.device)
        grid = torch.stack(torch.meshgrid(line, line, indexing="xy"))[None]
        if (height, width) != (POSITION_GRID, POSITION_GRID):
            grid = F.interpolate(grid, size=(height, width), mode="bicubic", align_corners=False)
        return torch.cat((small, grid.to(small.dtype).expand(len(small), -1, -1, -1)), dim=1)

    def _block(self, name: str, x: Tensor, label: Tensor) -> Tensor:
        return self.get_submodule(name)(x, label)

    def _global(self, name: str, x: Tensor, z: tuple[Tensor, ...]) -> Tensor:
        return self.get_submodule(f"{'cbn' if z else 'conv'}_{name}")(x, *z)


class SPADEGenerator(nn.Module):
    """The decoder and, where there is a style code, its encoder: keys spade_generator.*, style_encoder.*."""

    def __init__(self, config: SPADEGeneratorConfig, *, label_channels: int, image_channels: int = 3) -> None:
        super().__init__()
        self.config = config
        self.spade_generator = SPADEDecoder(config, label_channels=label_channels, image_channels=image_channels)
        if config.style_dims is not None:
            self.style_encoder = StyleEncoder(config, image_channels=image_channels)

    def forward(self, *, label: Tensor, images: Tensor | None = None, noise: Tensor | None = None, z: Tensor | None = None) -> SPADEOutput:
        """Images of label maps (b, label_channels, h, w), with the style z (b, style_dims) or that of `images`.

        The style of images (b, c, any size) is mu + exp(logvar / 2) noise, `noise` (b, style_dims) from N(0, I). A network without
        a style code takes the label maps alone.
        """
        if images is None:
            return SPADEOutput(self.spade_generator(label, z))
        if noise is None:
            raise ValueError("the style of images is drawn: it needs noise")
        mu, logvar = self.encode(images)
        return SPADEOutput(self.spade_generator(label, mu + torch.exp(0.5 * logvar) * noise), mu, logvar)

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance (b, style_dims) of the style of images (b, c, any size), in float32."""
        mu, logvar = self.style_encoder(images)
        return widened(mu), widened(logvar)
