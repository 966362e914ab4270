"""pix2pixHD: High-Resolution Image Synthesis and Semantic Manipulation with Conditional GANs (Wang et al. 2018, arXiv 1711.11585).

A global generator at a fraction of the size, and local enhancers (section 3.1), each of which doubles it. The label map has a
channel more, the boundaries of the instances (section 3.3). A feature encoder (section 3.4) gives each instance what it looks like,
from a photo or from what instances of its class looked like.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.core.config import Config, config
from triptych.gans.autoencoder import doubled, output_block
from triptych.gans.instance_features import FeatureEncoder, FeatureEncoderConfig
from triptych.gans.layers import BlockOptions, ConvBlock, ResBlock, Stack, Upsample
from triptych.gans.norms import Norm, NormKind
from triptych.gans.weight_norms import WeightNorm


@config
class Pix2PixHDGeneratorConfig(Config):
    """The global generator, its local enhancers and the feature encoder."""

    num_filters: int = 64
    "Channels of the global generator's first convolution; they double at each step down."
    num_downsamples: int = 4
    "Steps of the global generator that halve the size."
    num_res_blocks: int = 9
    "Residual blocks of the global generator."
    num_enhancers: int = 0
    "Local enhancers, each of which doubles the size."
    num_enhancer_res_blocks: int = 3
    "Residual blocks of each local enhancer."
    norm: NormKind = "instance"
    "Norm of all layers but the last."
    weight_norm: WeightNorm = "spectral"
    "Norm of the weights of all layers but the last."
    encoder: FeatureEncoderConfig | None = None
    "The feature encoder, where there is one."

    def validate(self) -> None:
        self.require(self.num_filters >= 1, "num_filters", "a positive whole number")
        for name in ("num_downsamples", "num_res_blocks", "num_enhancers", "num_enhancer_res_blocks"):
            self.require(getattr(self, name) >= 0, name, "0 or more")
        divisor = 2**self.num_enhancers
        self.require(self.num_filters % divisor == 0, "num_filters", f"a multiple of {divisor}, for {self.num_enhancers} enhancers")

    @property
    def stride(self) -> int:
        """The sides of the images are multiples of it."""
        own = 2 ** (self.num_downsamples + self.num_enhancers)
        return own if self.encoder is None else max(own, 2**self.encoder.num_downsamples)

    @property
    def least_size(self) -> int:
        """The fewest pixels along a side: a reflected border of 3 takes 4 pixels, and the smallest maps, of 2 pixels, have a variance."""
        own = 2**self.num_enhancers * max(4, 2 ** (self.num_downsamples + 1))
        return own if self.encoder is None else max(own, 2 ** (self.encoder.num_downsamples + 1))


class GlobalGenerator(nn.Module):
    """Convolutions down, residual blocks, and up again: keys model.{i}."""

    def __init__(self, in_channels: int, image_channels: int, *, config: Pix2PixHDGeneratorConfig, options: BlockOptions) -> None:
        super().__init__()
        layers = global_layers(in_channels, config=config, options=options)
        self.model = Stack([*layers, output_block(config.num_filters, image_channels, options=options, output="tanh")])

    def forward(self, x: Tensor) -> Tensor:
        """The images (b, image_channels, h, w) in [-1, 1] of x (b, in_channels, h, w)."""
        return self.model(x)


def global_layers(in_channels: int, *, config: Pix2PixHDGeneratorConfig, options: BlockOptions) -> list[nn.Module]:
    """All layers of the global generator but the last, which makes the image; they give num_filters channels."""
    widths = doubled(config.num_filters, steps=config.num_downsamples)
    layers: list[nn.Module] = [ConvBlock(in_channels, widths[0], 7, options=options)]
    layers += [ConvBlock(ins, outs, 3, stride=2, options=options) for ins, outs in pairwise(widths)]
    layers += [ResBlock(widths[-1], widths[-1], order="CNACN", options=options) for _ in range(config.num_res_blocks)]
    for ins, outs in pairwise(reversed(widths)):
        layers += [Upsample(), ConvBlock(ins, outs, 3, options=options)]
    return layers


class LocalEnhancer(nn.Module):
    """Twice the size of what the network before it gives: keys model_downsample.{i}, model_upsample.{i}."""

    def __init__(
        self, in_channels: int, num_filters: int, *, image_channels: int | None, num_res_blocks: int, options: BlockOptions
    ) -> None:
        super().__init__()
        nf = num_filters
        first, down = ConvBlock(in_channels, nf, 7, options=options), ConvBlock(nf, 2 * nf, 3, stride=2, options=options)
        self.model_downsample = Stack([first, down])
        layers: list[nn.Module] = [ResBlock(2 * nf, 2 * nf, order="CNACN", options=options) for _ in range(num_res_blocks)]
        layers += [Upsample(), ConvBlock(2 * nf, nf, 3, options=options)]
        if image_channels is not None:
            layers.append(output_block(nf, image_channels, options=options, output="tanh"))
        self.model_upsample = Stack(layers)

    def forward(self, x: Tensor, coarse: Tensor) -> Tensor:
        """Features (b, num_filters, h, w), or images of the last enhancer, of x (b, in_channels, h, w).

        `coarse`: the features (b, 2 num_filters, h / 2, w / 2) of the network before.
        """
        return self.model_upsample(self.model_downsample(x) + coarse)


class Pix2PixHDGenerator(nn.Module):
    """Keys global_model.model.{i}; with enhancers global_model.{i} and enhancer_{n}.*; encoder.* where there is a feature encoder."""

    def __init__(
        self, config: Pix2PixHDGeneratorConfig, *, label_channels: int, image_channels: int = 3, num_classes: int | None = None
    ) -> None:
        """`num_classes`: those whose looks a feature encoder keeps; None: all label channels but the last, which is that of the edges."""
        super().__init__()
        self.config = config
        options = BlockOptions(norm=Norm(config.norm), nonlinearity="relu", weight_norm=config.weight_norm, padding_mode="reflect")
        channels = label_channels + (config.encoder.num_features if config.encoder else 0)
        if config.num_enhancers:
            self.global_model = Stack(global_layers(channels, config=config, options=options))
        else:
            self.global_model = GlobalGenerator(channels, image_channels, config=config, options=options)
        for index in range(config.num_enhancers):
            enhancer = LocalEnhancer(
                channels,
                config.num_filters // 2 ** (index + 1),
                image_channels=image_channels if index == config.num_enhancers - 1 else None,
                num_res_blocks=config.num_enhancer_res_blocks,
                options=options,
            )
            self.add_module(f"enhancer_{index}", enhancer)
        if config.encoder:
            classes = label_channels - 1 if num_classes is None else num_classes
            self.encoder = FeatureEncoder(config.encoder, num_classes=classes, image_channels=image_channels, options=options)

    def forward(self, *, label: Tensor, features: Tensor | None = None) -> Tensor:
        """The images (b, c, h, w) in [-1, 1] of label maps (b, label_channels, h, w), sides multiples of `config.stride`.

        `label`: as `with_edges` makes it, where there are instances. `features`: (b, num_features, h, w) of the feature encoder,
        exactly when there is one.
        """
        if (features is None) != (self.config.encoder is None):
            raise ValueError("features are needed, exactly when the network has a feature encoder")
        x = label if features is None else torch.cat((label, features), dim=1)
        pyramid = [x]
        for _ in range(self.config.num_enhancers):
            pyramid.append(F.avg_pool2d(pyramid[-1], 3, stride=2, padding=1, count_include_pad=False))
        out = self.global_model(pyramid.pop())
        for index in range(self.config.num_enhancers):
            out = self.get_submodule(f"enhancer_{index}")(pyramid.pop(), out)
        return out


def instance_edges(instances: Tensor) -> Tensor:
    """1 where a pixel of (b, 1, h, w) differs from the one to its left or right, above or below, else 0 (section 3.3); as float32."""
    edges = torch.zeros_like(instances, dtype=torch.bool)
    across, down = instances[..., 1:] != instances[..., :-1], instances[..., 1:, :] != instances[..., :-1, :]
    edges[..., 1:] |= across
    edges[..., :-1] |= across
    edges[..., 1:, :] |= down
    edges[..., :-1, :] |= down
    return edges.float()


def with_edges(label: Tensor, instances: Tensor) -> Tensor:
    """The label maps (b, n, h, w) with a channel more: the edges of `instances` (b, 1, h, w)."""
    return torch.cat((label, instance_edges(instances).to(label.dtype)), dim=1)
