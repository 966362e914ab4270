"""The discriminators that several models share, and the feature pyramid that SPADE has beside them.

All give scores, higher for images that look real to them; but for the pyramid also features to compare.
Patch discriminators: Isola et al. 2017 (arXiv 1611.07004), at several scales Wang et al. 2018 (arXiv 1711.11585).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from triptych.core.config import Config, config
from triptych.gans.autoencoder import doubled
from triptych.gans.layers import BlockOptions, ConvBlock, ResBlock, Stack
from triptych.gans.norms import Norm, NormKind
from triptych.gans.weight_norms import Beside, Linear, WeightNorm
from triptych.nn.derived import derived
from triptych.nn.resample import resized


class Scores(NamedTuple):
    """What a discriminator says of images."""

    outputs: tuple[Tensor, ...]
    "Scores of each scale or head, (b, 1, h, w) or (b, 1)."
    features: tuple[tuple[Tensor, ...], ...]
    "For each scale, the outputs of its layers but the last."


@config
class PatchDiscriminatorConfig(Config):
    """Patch discriminators at one or several scales."""

    kind_name: ClassVar = "patch"
    unwritten: ClassVar = frozenset(("last_kernel_size", "first_norm"))

    num_discriminators: int = 2
    "Scales; each halves the size."
    shared: bool = False
    "Whether one network judges all scales."
    kernel_size: int = 3
    "Side of the kernels."
    last_kernel_size: int = 3
    "Side of the last layer's."
    num_filters: int = 64
    "Channels of the first layer; they double from layer to layer."
    max_num_filters: int = 512
    "The most channels."
    num_layers: int = 4
    "Layers between the first and the last."
    norm: NormKind = "none"
    "Norm of all layers but the last."
    first_norm: bool = True
    "Whether the first layer has it too."
    weight_norm: WeightNorm = "spectral"
    "Norm of the weights."

    def validate(self) -> None:
        for name in ("num_discriminators", "kernel_size", "last_kernel_size", "num_filters", "max_num_filters", "num_layers"):
            self.require(getattr(self, name) >= 1, name, "a positive whole number")

    def shrunk(self) -> Self:
        """Two narrow discriminators of two layers, for tests."""
        return replace(self, num_discriminators=2, num_filters=4, max_num_filters=8, num_layers=2)


@config
class ResidualDiscriminatorConfig(Config):
    """A residual network that gives each image one score."""

    kind_name: ClassVar = "residual"

    num_filters: int = 32
    "Channels of the first layer; they double from block to block."
    max_num_filters: int = 512
    "The most channels."
    num_layers: int = 6
    "Residual blocks; each halves the size, down to 4x4 pixels."
    norm: NormKind = "none"
    "Norm of the residual blocks."
    weight_norm: WeightNorm = "spectral"
    "Norm of the weights of all convolutions but the last."

    def validate(self) -> None:
        for name in ("num_filters", "max_num_filters", "num_layers"):
            self.require(getattr(self, name) >= 1, name, "a positive whole number")

    def shrunk(self) -> Self:
        """A narrow network for images of 32 pixels, for tests."""
        return replace(self, num_filters=4, max_num_filters=8, num_layers=3)


def least_side(config: PatchDiscriminatorConfig) -> int:
    """The fewest pixels along a side that every scale of the discriminators has a score for."""
    padding = (config.kernel_size - 1) // 2
    side = max(2 if config.norm == "instance" else 1, config.last_kernel_size - 2 * padding)  # one pixel has no variance
    for stride in [1] + [2] * config.num_layers:
        side = max(1, (side - 1) * stride + config.kernel_size - 2 * padding)
    return side * 2 ** (config.num_discriminators - 1)


class NLayerPatch(nn.Module):
    """A score for each patch: keys layer{n}.0.layers.*."""

    def __init__(self, config: PatchDiscriminatorConfig, *, in_channels: int) -> None:
        super().__init__()
        options = BlockOptions(norm=Norm(config.norm), nonlinearity="leakyrelu", weight_norm=config.weight_norm)
        padding = (config.kernel_size - 1) // 2
        widths = [in_channels, *doubled(config.num_filters, steps=config.num_layers, most=config.max_num_filters)]
        self.num_layers = config.num_layers
        for index, (ins, outs) in enumerate(pairwise(widths)):
            stride = 1 if index == config.num_layers else 2
            seen = options if index or config.first_norm else replace(options, norm=Norm("none"))
            block = ConvBlock(ins, outs, config.kernel_size, stride=stride, padding=padding, options=seen)
            self.add_module(f"layer{index}", nn.Sequential(block))
        last = ConvBlock(widths[-1], 1, config.last_kernel_size, padding=padding, options=BlockOptions(weight_norm=config.weight_norm))
        self.add_module(f"layer{config.num_layers + 1}", nn.Sequential(last))

    def forward(self, x: Float[Tensor, "b c h w"] | Beside) -> tuple[Float[Tensor, "b 1 _ _"], tuple[Float[Tensor, "b _ _ _"], ...]]:
        """The scores, and the features of all layers but the last."""
        features = []
        for index in range(self.num_layers + 1):
            x = self.get_submodule(f"layer{index}")(x)
            features.append(x)
        return self.get_submodule(f"layer{self.num_layers + 1}")(x), tuple(features)


class MultiResPatch(nn.Module):
    """Patch discriminators of x, of x at half its size, and so on: keys discriminators.{i}.*, or discriminator.* where shared."""

    def __init__(self, config: PatchDiscriminatorConfig, *, in_channels: int = 3) -> None:
        super().__init__()
        self.scales, self.shared = config.num_discriminators, config.shared
        if self.shared:
            self.discriminator = NLayerPatch(config, in_channels=in_channels)
        else:
            self.discriminators = nn.ModuleList(NLayerPatch(config, in_channels=in_channels) for _ in range(self.scales))

    def forward(self, x: Float[Tensor, "b c h w"], *, beside: Float[Tensor, "b n h w"] | None = None) -> Scores:
        """The scores of each scale, of images with a map `beside` them, whose channels come first."""
        outputs, features = [], []
        for scale, seen in enumerate(at_scales(x, beside, count=self.scales)):
            scores, layers = (self.discriminator if self.shared else self.discriminators[scale])(seen)
            outputs.append(scores)
            features.append(layers)
        return Scores(tuple(outputs), tuple(features))


def at_scales(
    x: Float[Tensor, "b c h w"], beside: Float[Tensor, "b n h w"] | None, *, count: int
) -> Iterator[Float[Tensor, "b c _ _"] | Beside]:
    """What each of `count` scales sees: the images and the map, at their size, at half of it, and so on."""
    if beside is not None:
        x = x.to(torch.promote_types(x.dtype, beside.dtype))
    for scale in range(count):
        if scale:
            x, beside = shrunk(x), None if beside is None else derived(beside, "half", shrunk)
        yield x if beside is None else Beside(beside, x)


def shrunk(x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h//2 w//2"]:
    """x at half its size, rounded down: bilinear, corner pixels on corner pixels."""
    with torch.autocast(x.device.type, enabled=False):
        return F.interpolate(x, scale_factor=0.5, mode="bilinear", align_corners=True, recompute_scale_factor=True)


class FPSEDiscriminator(nn.Module):
    """A feature pyramid whose features are also compared with the label map: keys enc{i}, lat{i}, final{i}, output, seg, embedding.

    Liu et al. 2019 (Learning to Predict Layout-to-image Conditional Convolutions, arXiv 1910.06809).
    """

    def __init__(self, config: PatchDiscriminatorConfig, *, label_channels: int, image_channels: int) -> None:
        """As wide as the patch discriminators of `config`, and with their norm of the weights."""
        super().__init__()
        options, nf = BlockOptions(nonlinearity="leakyrelu", weight_norm=config.weight_norm), config.num_filters
        widths = [image_channels, nf, 2 * nf, 4 * nf, 8 * nf, 8 * nf]
        for index, (ins, outs) in enumerate(pairwise(widths), start=1):
            self.add_module(f"enc{index}", ConvBlock(ins, outs, 3, stride=2, options=options))
        for index in range(2, 6):
            self.add_module(f"lat{index}", ConvBlock(widths[index], 4 * nf, 1, options=options))
        for index in range(2, 5):
            self.add_module(f"final{index}", ConvBlock(4 * nf, 2 * nf, 3, options=options))
        self.output = ConvBlock(2 * nf, 1, 1)
        self.seg = ConvBlock(2 * nf, 2 * nf, 1)
        self.embedding = ConvBlock(label_channels, 2 * nf, 1)

    def forward(self, images: Float[Tensor, "b c h w"], label: Float[Tensor, "b n h w"]) -> tuple[Float[Tensor, "b 1 _ _"], ...]:
        """Scores (b, 1, h / s, w / s) at strides s of 4, 8 and 16 of images with label maps."""
        part, encoded, x = self.get_submodule, {}, images
        for index in range(1, 6):
            encoded[index] = x = part(f"enc{index}")(x)
        tops = {5: part("lat5")(encoded[5])}
        for index in (4, 3, 2):
            side = part(f"lat{index}")(encoded[index])
            tops[index] = resized(tops[index + 1], side.shape[2:], mode="bilinear") + side
        scores, means = [], label
        for index in (2, 3, 4):
            features = part(f"final{index}")(tops[index])
            # The embedding is linear, so that the label map may be averaged before it, which costs less.
            means = averaged_to((features.shape[2], features.shape[3]), finer=means, label=label)
            scores.append(self.output(features) + (self.seg(features) * self.embedding(means)).sum(dim=1, keepdim=True))
        return tuple(scores)


def averaged_to(size: tuple[int, int], *, finer: Float[Tensor, "b n _ _"], label: Float[Tensor, "b n h w"]) -> Float[Tensor, "b n _ _"]:
    """The label map averaged to a size (height, width), from the one of a finer size where equal squares of pixels are averaged."""
    sides = [label.shape[2:], finer.shape[2:], size]
    squares = all(many % few == 0 for before, after in pairwise(sides) for many, few in zip(before, after, strict=True))
    return derived(finer if squares else label, ("means", size), lambda x: F.adaptive_avg_pool2d(x, size))


class ResDiscriminator(nn.Module):
    """One score for each image: keys model.{i}.*, classifier."""

    def __init__(self, config: ResidualDiscriminatorConfig, *, in_channels: int = 3) -> None:
        super().__init__()
        self.side = 4 * 2**config.num_layers
        widths = doubled(config.num_filters, steps=config.num_layers, most=config.max_num_filters)
        plain = BlockOptions(nonlinearity="leakyrelu", weight_norm=config.weight_norm)
        options = BlockOptions(norm=Norm(config.norm), nonlinearity="leakyrelu", weight_norm=config.weight_norm)
        layers: list[nn.Module] = [ConvBlock(in_channels, widths[0], 1, options=plain)]
        for ins, outs in pairwise(widths):
            layers += [ResBlock(ins, outs, order="NACNAC", options=options), nn.AvgPool2d(2)]
        layers.append(ConvBlock(widths[-1], widths[-1], 4, padding=0, options=BlockOptions(nonlinearity="leakyrelu")))
        self.model = Stack(layers)
        self.classifier = Linear(widths[-1], 1)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Scores:
        """A score (b, 1) for each of the images, whose sides are 4 x 2^num_layers."""
        if tuple(images.shape[2:]) != (self.side, self.side):
            sides = f"{images.shape[3]}x{images.shape[2]}"
            raise ValueError(f"got images of {sides} pixels, but the residual discriminator takes {self.side}x{self.side}")
        features = self.model(images)
        return Scores((self.classifier(features.flatten(1)),), ((features,),))


class PairDiscriminator(nn.Module):
    """A discriminator of each domain: keys discriminator_a.*, discriminator_b.*."""

    def __init__(self, config: PatchDiscriminatorConfig | ResidualDiscriminatorConfig, *, image_channels: int = 3) -> None:
        super().__init__()

        def network() -> MultiResPatch | ResDiscriminator:
            if isinstance(config, PatchDiscriminatorConfig):
                return MultiResPatch(config, in_channels=image_channels)
            return ResDiscriminator(config, in_channels=image_channels)

        self.discriminator_a, self.discriminator_b = network(), network()

    def forward(self, images: Float[Tensor, "b c h w"], *, domain: Literal["a", "b"]) -> Scores:
        """The scores of images as images of a domain."""
        return (self.discriminator_a if domain == "a" else self.discriminator_b)(images)
