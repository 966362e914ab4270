"""SPADE: Semantic Image Synthesis with Spatially-Adaptive Normalization (Park et al. 2019, arXiv 1903.07291), with a style code.

A small label map becomes features; residual blocks enlarge them to an image. The label map s modulates the norms of the blocks, pixel
by pixel (Eq. 1 and 2):

    SPADE(h, s) = norm(h) (1 + gamma(s)) + beta(s),    gamma and beta convolutions of relu(convolution(s))

A style code z of the whole image modulates the norms between the blocks, in the same way with gamma(z) and beta(z) for each channel. In
training z is drawn from q(z | x) = N(mu(x), exp(logvar(x))), where x is the real image; the generator's loss is that of `paired_base` and
w_kl KL(q(z | x) || N(0, I)). To translate, z is mu of a photo, or drawn from N(0, I).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from triptych.core.batch import Batch, DataSpec
from triptych.core.config import Config, config, settings_like
from triptych.core.rng import Rng
from triptych.gans.discriminators import FPSEDiscriminator, MultiResPatch, PatchDiscriminatorConfig, Scores, least_side
from triptych.gans.label_maps import LabelMaps
from triptych.gans.layers import BlockOptions, ConvBlock, LinearBlock, ResBlock
from triptych.gans.losses import gaussian_kl
from triptych.gans.norms import NO_NORM, AdaptiveNorm, Norm, NormKind, SharedMap, SpatialNorm
from triptych.gans.paired_base import Painted, PairedGAN, PairedGANConfig
from triptych.gans.translation_base import GeneratorConfig
from triptych.gans.weight_norms import WeightNorm
from triptych.nn.images import check_drawn
from triptych.nn.precision import widened
from triptych.nn.resample import enlarged, resized

POSITION_GRID = 16
"""Side of the grid of positions that a head may take beside the labels."""


@config
class SPADEGeneratorConfig(GeneratorConfig):
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

    def shrunk(self) -> Self:
        sizes = {"resolution": 256, "num_filters": 4, "style_dims": 8, "spade_filters": 4, "encoder_filters": 4, "encoder_size": 64}
        return replace(self, **sizes)

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


class SPADEStyleEncoder(nn.Module):
    """Images to the mean and log variance of a style: keys layer1 to layer6, fc_mu, fc_var."""

    def __init__(self, config: SPADEGeneratorConfig, *, image_channels: int) -> None:
        super().__init__()
        assert config.style_dims is not None
        self.size = config.encoder_size
        options = BlockOptions(nonlinearity="leakyrelu", weight_norm=config.weight_norm)
        widths = [image_channels] + [config.encoder_filters * factor for factor in (1, 2, 4, 8, 8, 8)]
        for index, (ins, outs) in enumerate(pairwise(widths), start=1):
            self.add_module(f"layer{index}", ConvBlock(ins, outs, config.kernel_size, stride=2, options=options))
        features = widths[-1] * (self.size // 64) ** 2
        self.fc_mu, self.fc_var = LinearBlock(features, config.style_dims), LinearBlock(features, config.style_dims)

    def forward(self, images: Float[Tensor, "b c h w"]) -> tuple[Float[Tensor, "b style_dims"], Float[Tensor, "b style_dims"]]:
        """Mean and log variance of the style of images of any size."""
        x = resized(images, (self.size, self.size), mode="bilinear")
        for index in range(1, 7):
            x = self.get_submodule(f"layer{index}")(x)
        x = x.flatten(1)
        return self.fc_mu(x), self.fc_var(x)


class SPADEDecoder(nn.Module):
    """A label map and a style code to images: keys fc_*, head_*, cbn_*, up_*, conv_img*."""

    def __init__(self, config: SPADEGeneratorConfig, *, label_channels: int, image_channels: int) -> None:
        super().__init__()
        self.config, nf, kernel = config, config.num_filters, config.kernel_size
        self.large = [(block, size) for block, size in (("up_3", 512), ("up_4", 1024)) if size <= config.resolution]
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

        if config.style_dims is not None:
            relu, dims = replace(plain, nonlinearity="relu"), config.style_dims
            self.fc_0, self.fc_1 = LinearBlock(dims, 2 * dims, options=relu), LinearBlock(2 * dims, 2 * dims, options=relu)
        head_channels = label_channels + (2 if config.positional_input else 0)
        self.head_0 = ConvBlock(head_channels, 8 * nf, kernel, options=plain)
        self._add_global("head_0", 8 * nf, 16 * nf)
        self.head_1, self.head_2 = block(16 * nf, 16 * nf), block(16 * nf, 16 * nf)
        for name, ins, mid, outs in (("up_0", 16, 8, 8), ("up_1", 8, 4, 4), ("up_2", 4, 4, 2)):
            self.add_module(f"{name}a", block(ins * nf, mid * nf))
            self._add_global(f"{name}a", mid * nf, mid * nf)
            self.add_module(f"{name}b", block(mid * nf, outs * nf))
        self.conv_img256 = ConvBlock(2 * nf, image_channels, 5, order="AC", options=plain)
        for (name, size), ins in zip(self.large, (2 * nf, nf), strict=False):
            self.add_module(f"{name}a", block(ins, ins // 2))
            self.add_module(f"{name}b", block(ins // 2, ins // 2))
            self.add_module(f"conv_img{size}", ConvBlock(ins // 2, image_channels, 5, order="AC", options=plain))

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

    def forward(
        self, label: Float[Tensor, "b n h w"] | SharedMap, style: Float[Tensor, "b style_dims"] | None = None
    ) -> Float[Tensor, "b c _ _"]:
        """The images in [-1, 1] of label maps, sides rounded down to multiples of the stride.

        `style`: exactly when the network has a style code.
        """
        if (style is None) != (self.config.style_dims is None):
            raise ValueError("a style code is needed, exactly when the network has one")
        z = () if style is None else (self.fc_1(self.fc_0(style)),)
        part, between = self.get_submodule, "cbn" if z else "conv"
        small = self._head_input(label.map if isinstance(label, SharedMap) else label)
        x = part(f"{between}_head_0")(self.head_0(small), *z)
        x = enlarged(self.head_2(self.head_1(x, label), label))
        for name in ("up_0", "up_1", "up_2"):
            x = part(f"{between}_{name}a")(part(f"{name}a")(x, label), *z)
            x = enlarged(part(f"{name}b")(x, label))
        image = self.conv_img256(x)
        for name, size in self.large:
            x = enlarged(part(f"{name}b")(part(f"{name}a")(x, label), label))
            image = enlarged(image) + part(f"conv_img{size}")(x)
        with torch.autocast(x.device.type, enabled=False):
            return torch.tanh(self.config.output_multiplier * widened(image))

    def _head_input(self, label: Tensor) -> Tensor:
        stride = self.config.stride
        height, width = label.shape[2] // stride, label.shape[3] // stride
        if height < 1 or width < 1:
            raise ValueError(f"got label maps of {label.shape[3]}x{label.shape[2]} pixels, expected sides of at least {stride}")
        small = resized(label, (height, width), mode="nearest")
        if not self.config.positional_input:
            return small
        line = torch.linspace(-1, 1, POSITION_GRID, device=label.device)
        grid = torch.stack(torch.meshgrid(line, line, indexing="xy"))[None]
        if (height, width) != (POSITION_GRID, POSITION_GRID):
            grid = F.interpolate(grid, size=(height, width), mode="bicubic", align_corners=False)
        return torch.cat((small, grid.to(small.dtype).expand(len(small), -1, -1, -1)), dim=1)


class SPADEGenerator(nn.Module):
    """The decoder and, where there is a style code, its encoder: keys spade_generator.*, style_encoder.*."""

    def __init__(self, config: SPADEGeneratorConfig, *, label_channels: int, image_channels: int = 3) -> None:
        super().__init__()
        self.config = config
        self.spade_generator = SPADEDecoder(config, label_channels=label_channels, image_channels=image_channels)
        if config.style_dims is not None:
            self.style_encoder = SPADEStyleEncoder(config, image_channels=image_channels)

    def forward(
        self,
        *,
        label: Float[Tensor, "b n h w"] | SharedMap,
        images: Float[Tensor, "b c _ _"] | None = None,
        noise: Float[Tensor, "b style_dims"] | None = None,
        z: Float[Tensor, "b style_dims"] | None = None,
        encoded: tuple[Float[Tensor, "b style_dims"], Float[Tensor, "b style_dims"]] | None = None,
    ) -> SPADEOutput:
        """Images of label maps, with the style z or that of `images`, which is mu + exp(logvar / 2) noise, `noise` from N(0, I).

        `encoded`: mu and logvar in place of the images, where they are known. A network without a style code takes the label maps alone.
        """
        if encoded is None and images is not None:
            encoded = self.encode(images)
        if encoded is None:
            return SPADEOutput(self.spade_generator(label, z))
        if noise is None:
            raise ValueError("the style of images is drawn: it needs noise")
        mu, logvar = encoded
        return SPADEOutput(self.spade_generator(label, mu + torch.exp(0.5 * logvar) * noise), mu, logvar)

    def encode(self, images: Float[Tensor, "b c h w"]) -> tuple[Float[Tensor, "b style_dims"], Float[Tensor, "b style_dims"]]:
        """Mean and log variance of the style of images of any size, in float32."""
        mu, logvar = self.style_encoder(images)
        return widened(mu), widened(logvar)


@config
class SPADEDiscriminatorConfig(Config):
    """Patch discriminators of label map and image, and a feature pyramid."""

    patch: PatchDiscriminatorConfig = PatchDiscriminatorConfig(kernel_size=4, num_filters=128, num_layers=5)
    "The patch discriminators."
    feature_pyramid: bool = True
    "Whether there is the feature pyramid, as wide as the patch discriminators."


class SPADEDiscriminator(MultiResPatch):
    """Keys discriminators.{i}.*, fpse_discriminator.*."""

    def __init__(self, config: SPADEDiscriminatorConfig, *, label_channels: int, image_channels: int = 3) -> None:
        super().__init__(config.patch, in_channels=label_channels + image_channels)
        self.fpse_discriminator = None
        if config.feature_pyramid:
            self.fpse_discriminator = FPSEDiscriminator(config.patch, label_channels=label_channels, image_channels=image_channels)

    def forward(self, images: Float[Tensor, "b c h w"], *, label: Float[Tensor, "b n h w"]) -> Scores:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The scores of images with label maps: three of the pyramid, one of each scale of patches.

        The features are those of the patch discriminators alone.
        """
        patches = super().forward(images, beside=label)
        pyramid = () if self.fpse_discriminator is None else self.fpse_discriminator(images, label)
        return Scores((*pyramid, *patches.outputs), patches.features)


@config
class SPADETranslationConfig(Config):
    """How label maps become images."""

    temperature: float = 1.0
    "Factor of random style codes; 0: always the mean of all styles. Styles that images give are taken as they are."

    def validate(self) -> None:
        self.require(0 <= self.temperature < math.inf, "temperature", "0 or more")


@config
class SPADEConfig(PairedGANConfig):
    """SPADE."""

    kind_name: ClassVar = "spade"
    terms: ClassVar = PairedGANConfig.terms | {"kl": "kl_weight"}
    changeable: ClassVar = frozenset(("translation",))

    generator: SPADEGeneratorConfig = SPADEGeneratorConfig()
    "The generator and its style encoder."
    discriminator: SPADEDiscriminatorConfig = SPADEDiscriminatorConfig()
    "The discriminator."
    kl_weight: float = 0.2
    "Weight of the divergence of the encoded styles from N(0, 1), where there is a style code."
    translation: SPADETranslationConfig = SPADETranslationConfig()
    "Settings of `triptych translate`, and of the grids during training."

    def shrunk(self) -> Self:
        discriminator = replace(self.discriminator, patch=self.discriminator.patch.shrunk())
        return replace(self, generator=self.generator.shrunk(), discriminator=discriminator)

    def build(self, spec: DataSpec) -> SPADE:
        """The model with fresh weights; raises ConfigError for data that is not in pairs, and for sizes that do not fit."""
        labels = self.label_maps(spec.inputs)
        generator, patch = self.generator, self.discriminator.patch
        sides = {
            "generator.resolution": (generator.resolution, generator.stride, generator.least_size),
            "discriminator.patch.num_layers": (patch.num_layers, 1, least_side(patch)),
        }
        self.check_sides(spec, sides=sides)
        return SPADE(self, spec, labels)


class SPADE(PairedGAN):
    """The model of a SPADEConfig."""

    config: SPADEConfig
    generator: SPADEGenerator
    discriminator: SPADEDiscriminator
    begins = True

    def __init__(self, config: SPADEConfig, spec: DataSpec, labels: LabelMaps) -> None:
        channels = {"label_channels": labels.channels, "image_channels": spec.channels}
        generator, discriminator = SPADEGenerator(config.generator, **channels), SPADEDiscriminator(config.discriminator, **channels)
        super().__init__(config, spec, generator, discriminator, labels=labels, sizes=config.generator, translation=config.translation)
        self.style_dims = config.generator.style_dims
        if self.style_dims is not None:
            self.styles, self.random_styles = "optional", True

    @property
    def draws(self) -> bool:
        """Whether there is a style code."""
        return self.config.generator.style_dims is not None

    def made(self, batch: Batch, rng: Rng) -> Painted:
        """The images in the style of the real ones, drawn from what their encoder says; kl, of that and N(0, I)."""
        label = self.labels(batch.inputs)
        if self.style_dims is None:
            return Painted(label, self.generator(label=label).fake_images)
        return self._painted(label, self.generator(label=label, images=batch.images, noise=rng.normal("style", self.style_dims)))

    def begun(self, batch: Batch) -> tuple[SharedMap, Tensor, Tensor]:
        """The label map, for what the norms make of it depends on nothing else; mean and log variance of the style."""
        return (SharedMap(self.labels(batch.inputs)), *self.generator.encode(batch.images))

    def completed(self, begun: tuple[SharedMap, Tensor, Tensor], batch: Batch, rng: Rng) -> Painted:
        """As `made`."""
        assert self.style_dims is not None
        shared, mu, logvar = begun
        noise = rng.normal("style", self.style_dims)
        return self._painted(shared.map, self.generator(label=shared, noise=noise, encoded=(mu, logvar)))

    def _painted(self, label: Tensor, out: SPADEOutput) -> Painted:
        assert out.mu is not None
        return Painted(label, out.fake_images, {"kl": gaussian_kl(out.mu, out.logvar)} if self.config.kl_weight > 0 else {})

    def distances(self, batch: Batch, rng: Rng) -> dict[str, Float[Tensor, " b"]]:
        """Those of images in the style z = 0, the mean of N(0, I): the encoder would be shown the answer."""
        label = self.labels(batch.inputs)
        z = None if self.style_dims is None else label.new_zeros(len(label), self.style_dims)
        return self.compared(self.generator(label=label, z=z).fake_images, batch.images)

    @torch.no_grad()
    def translate(self, inputs: Mapping[str, Tensor], rng: Rng, *, settings: Config) -> Float[Tensor, "b c h w"]:
        """An image in [-1, 1] of each label map, in the mean of the styles that k images have, or in a random one.

        `settings` is a SPADETranslationConfig. Raises ConfigError for what is missing or does not fit.
        """
        settings = settings_like(self.config.translation, settings)
        label = self._label(inputs)
        images, z = self._style(inputs, count=len(label)), None
        if images is not None:
            z = self.generator.encode(images.flatten(0, 1))[0].unflatten(0, images.shape[:2]).mean(1)
        elif self.style_dims is not None:
            check_drawn(rng, len(label))
            z = settings.temperature * rng.normal("style", self.style_dims)
        return self.generator(label=label, z=z).fake_images
