"""R3GAN: "The GAN is dead; long live the GAN! A Modern GAN Baseline", Huang et al. 2024, https://arxiv.org/abs/2501.05441.

With real and generated images x and G(z) paired at random, of one class where there are classes, and d = D(x) - D(G(z)),

    L_D = softplus(-d) + gamma / 2 |grad D(x)|^2 + gamma / 2 |grad D(G(z))|^2        (Eq. 2 with Eqs. 3 and 4)
    L_G = softplus(d)

The gradients are those by the images before augmentation, in every step. Both networks are residual, without normalisation:

    block(x) = x + conv1( lrelu( conv3( lrelu( conv1(x) + b ) ) + b ) )        (Section 3.2; conv3 in groups)

Generator: a learned basis times a linear map of z; for each resolution a 1x1 convolution where the width changes, enlargement and blocks;
a 1x1 convolution to the image. The discriminator is its mirror. What is called conv1 and conv3 above are `conv1`, `conv2`, `conv3` below.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from triptych.core.batch import DataSpec
from triptych.core.config import Config, config, settings_like, spelled
from triptych.core.errors import ConfigError
from triptych.core.model import Report
from triptych.core.rng import Rng
from triptych.gans.discriminators import Scores
from triptych.gans.from_noise import NoiseGAN, NoiseGANConfig
from triptych.gans.groups import in_groups
from triptych.gans.losses import AdversarialConfig
from triptych.gans.penalties import PenaltyConfig
from triptych.nn.convolution import Conv2d
from triptych.nn.filters import BINOMIAL, downsampled, kernel_of, upsampled
from triptych.nn.precision import stage_precision, widened
from triptych.nn.recomputing import recomputed_twice
from triptych.nn.rectifier import leaky_rectifier

_SLOPE = 0.2  # of leaky ReLU below 0
_BLOCK_GAIN = math.sqrt(2 / (1 + _SLOPE**2))  # keeps the variance through a leaky ReLU


@config
class R3GANNetworkConfig(Config):
    """The generator or the discriminator."""

    changeable: ClassVar = frozenset(("checkpoint",))

    widths: tuple[int, ...] = (768, 768, 768, 768)
    "Channels at each resolution, the lowest first; each is twice the one before it. The published networks begin at 4x4 pixels."
    num_blocks: int = 2
    "Residual blocks at each resolution."
    expansion: int = 2
    "Channels inside a block, as a multiple of the width."
    group_channels: int = 16
    "Channels of each group of the 3x3 convolutions."
    half_stages: int = 3
    "So many of the highest resolutions may be computed in half precision, where train.precision says so; the others are in float32."
    checkpoint: bool = False
    "Recompute the blocks in the backward pass: half the memory for features, for a third more time, with penalties for twice the time."

    def validate(self) -> None:
        self.require(len(self.widths) > 0 and min(self.widths) >= 1, "widths", "positive whole numbers")
        for name in ("num_blocks", "expansion", "group_channels"):
            self.require(getattr(self, name) >= 1, name, "a positive whole number")
        for width in self.widths:
            if self.expansion * width % self.group_channels:
                inside = f"{self.expansion} x {width}, the channels inside a block"
                raise ConfigError("group_channels", f"got {self.group_channels}, expected a divisor of {inside}")
        self.require(0 <= self.half_stages <= 32, "half_stages", "from 0 to 32")

    def shrunk(self) -> Self:
        """Two resolutions, for tests: of two widths where there are several, as many of them half as leave a float32 one."""
        widths = (8, 8) if len(set(self.widths)) == 1 else (8, 4)
        return replace(self, widths=widths, group_channels=min(self.group_channels, 4), half_stages=min(self.half_stages, 1))

    def lowest(self, spec: DataSpec, network: str) -> tuple[int, int]:
        """Height and width of the lowest resolution. Raises ConfigError where the images cannot be halved so often."""
        halved = 2 ** (len(self.widths) - 1)
        sides = spec.height_and_width
        if any(side % halved for side in sides):
            given = f"got {spelled(self.widths)} for images of {sides[1]}x{sides[0]} pixels"
            wanted = f"sides of multiples of {halved}, as {len(self.widths)} resolutions need"
            raise ConfigError(f"{network}.widths", f"{given}, expected {wanted}; give fewer, or another data.image_size")
        return sides[0] // halved, sides[1] // halved


def _drawn(weight: Tensor, gain: float = 1.0) -> None:
    """Draws a weight from N(0, gain^2 / number of inputs)."""
    nn.init.normal_(weight, std=gain / math.sqrt(weight[0].numel()))


def _pointwise(ins: int, outs: int, *, bias: bool = False, gain: float = 1.0) -> Conv2d:
    conv = Conv2d(ins, outs, 1, bias=bias)
    _drawn(conv.weight, gain)
    return conv


def _linear(ins: int, outs: int, gain: float = 1.0) -> nn.Linear:
    linear = nn.Linear(ins, outs, bias=False)
    _drawn(linear.weight, gain)
    return linear


def _embedded(table: nn.Linear, labels: Int[Tensor, " b"]) -> Float[Tensor, "b e"]:
    """The linear map of one-hot labels."""
    return F.embedding(labels, table.weight.T)


class ResidualBlock(nn.Module):
    """x + conv3(lrelu(conv2(lrelu(conv1(x))))): 1x1, 3x3 in groups and 1x1; x at first, for conv3 is 0.

    conv1 and conv2 are drawn smaller by S^(-1/4), S the number of blocks of the network (Fixup: Zhang et al. 2019, arXiv 1901.09321).
    """

    def __init__(self, width: int, settings: R3GANNetworkConfig) -> None:
        super().__init__()
        inner = settings.expansion * width
        gain = _BLOCK_GAIN * (len(settings.widths) * settings.num_blocks) ** -0.25
        self.conv1 = _pointwise(width, inner, bias=True, gain=gain)
        self.conv2 = Conv2d(inner, inner, 3, padding=1, groups=inner // settings.group_channels)
        _drawn(self.conv2.weight, gain)
        self.conv3 = _pointwise(inner, width)
        for zero in (self.conv1.bias, self.conv2.bias, self.conv3.weight):
            assert zero is not None
            nn.init.zeros_(zero)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        y = leaky_rectifier(self.conv1(x), _SLOPE)
        return x + self.conv3(leaky_rectifier(self.conv2(y), _SLOPE))


class UpStage(nn.Module):
    """A resolution of the generator: from the next lower one (`lower` channels; None: it is the lowest itself), then blocks."""

    kernel: Tensor

    def __init__(self, width: int, settings: R3GANNetworkConfig, *, lower: int | None, half: bool) -> None:
        super().__init__()
        self.may_be_half, self.raised = half, lower is not None
        self.register_buffer("kernel", _kernel(), persistent=False)
        self.transition = None if lower in (None, width) else _pointwise(lower, width)
        self.blocks = ResidualBlocks(width, settings)

    def forward(self, features: Float[Tensor, "b l _ _"]) -> Float[Tensor, "b c h w"]:
        with stage_precision(features, half=self.may_be_half) as x:
            if self.transition is not None:
                x = self.transition(x)
            return self.blocks(upsampled(x, self.kernel) if self.raised else x)


class DownStage(nn.Module):
    """A resolution of the discriminator: blocks, then to the next lower one (`lower` channels; None: it is the lowest itself)."""

    kernel: Tensor

    def __init__(self, width: int, settings: R3GANNetworkConfig, *, lower: int | None, half: bool) -> None:
        super().__init__()
        self.may_be_half, self.lowered = half, lower is not None
        self.register_buffer("kernel", _kernel(), persistent=False)
        self.blocks = ResidualBlocks(width, settings)
        self.transition = None if lower in (None, width) else _pointwise(width, lower)

    def forward(self, features: Float[Tensor, "b c h w"]) -> Float[Tensor, "b l _ _"]:
        with stage_precision(features, half=self.may_be_half) as x:
            x = self.blocks(x)
            if self.lowered:
                x = downsampled(x, self.kernel)
            return x if self.transition is None else self.transition(x)


def _kernel() -> Tensor:
    return kernel_of(BINOMIAL, device=torch.device("cpu"))  # it is not saved with a run, so it is there before the weights are


class ResidualBlocks(nn.Sequential):
    """One after the other, with checkpoints between them where the settings say so."""

    def __init__(self, width: int, settings: R3GANNetworkConfig) -> None:
        super().__init__(*(ResidualBlock(width, settings) for _ in range(settings.num_blocks)))
        self.checkpoint = settings.checkpoint

    def forward(self, input: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        x = input
        for block in self:
            x = recomputed_twice(block, x, when=self.checkpoint)
        return x


def _stages(kind: Callable[..., nn.Module], settings: R3GANNetworkConfig) -> list[nn.Module]:
    """The stages from the lowest resolution on."""
    first_half = len(settings.widths) - settings.half_stages
    lowers = (None, *settings.widths)
    pairs = zip(settings.widths, lowers, strict=False)
    return [kind(width, settings, lower=lower, half=level >= first_half) for level, (width, lower) in enumerate(pairs)]


class R3GANGenerator(nn.Module):
    """Images of noise: keys basis, linear, embedding, stages.{from the lowest}.*, to_image."""

    def __init__(
        self,
        settings: R3GANNetworkConfig,
        *,
        lowest: tuple[int, int],
        image_channels: int,
        latent_dims: int,
        num_classes: int | None = None,
        class_dims: int = 64,
    ) -> None:
        super().__init__()
        width = settings.widths[0]
        self.may_be_half = settings.half_stages > 0
        self.embedding = None if num_classes is None else _linear(num_classes, class_dims)
        self.linear = _linear(latent_dims + (0 if num_classes is None else class_dims), width)
        self.basis = nn.Parameter(torch.randn(width, *lowest))
        self.stages = nn.Sequential(*_stages(UpStage, settings))
        self.to_image = _pointwise(settings.widths[-1], image_channels)

    def forward(self, z: Float[Tensor, "b d"], labels: Int[Tensor, " b"] | None = None) -> Float[Tensor, "b c h w"]:
        """The images of z ~ N(0, I), in [-1, 1] but for what overshoots, in float32. `labels`: exactly when there are classes."""
        with stage_precision(z, half=False) as code:
            if self.embedding is not None:
                assert labels is not None, "a conditional generator needs labels"
                code = torch.cat((code, _embedded(self.embedding, labels)), dim=1)
            x = self.basis * self.linear(code)[:, :, None, None]
        with stage_precision(self.stages(x), half=self.may_be_half) as x:
            return widened(self.to_image(x))


class R3GANDiscriminator(nn.Module):
    """One score for each image: keys from_image, stages.{from the highest}.*, basis, linear, embedding.

    At the lowest resolution each channel is weighed over all pixels by `basis`. What `linear` makes of that is the score, or with classes
    its product with the class's embedding is.
    """

    def __init__(
        self, settings: R3GANNetworkConfig, *, lowest: tuple[int, int], image_channels: int, num_classes: int | None = None
    ) -> None:
        super().__init__()
        width = settings.widths[0]
        self.may_be_half = settings.half_stages > 0
        self.from_image = _pointwise(image_channels, settings.widths[-1])
        self.stages = nn.Sequential(*reversed(_stages(DownStage, settings)))
        self.basis = Conv2d(width, width, lowest, groups=width, bias=False)
        _drawn(self.basis.weight)
        self.linear = _linear(width, 1 if num_classes is None else width)
        self.embedding = None if num_classes is None else _linear(num_classes, width, gain=1 / math.sqrt(width))

    def forward(self, images: Float[Tensor, "b c h w"], labels: Int[Tensor, " b"] | None = None) -> Scores:
        """The scores, (b, 1) in float32, without features. `labels`: exactly when there are classes."""
        with stage_precision(images, half=self.may_be_half) as x:
            x = self.from_image(x)
        with stage_precision(self.stages(x), half=False) as x:
            scores = self.linear(self.basis(x).flatten(1))
            if self.embedding is not None:
                assert labels is not None, "a conditional discriminator needs labels"
                scores = (scores * _embedded(self.embedding, labels)).sum(1, keepdim=True)
        return Scores((scores,), ())


@config
class R3GANSamplingConfig(Config):
    """The sampler has no settings: an image is a function of its noise and its class."""


@config
class R3GANConfig(NoiseGANConfig):
    """R3GAN."""

    kind_name: ClassVar = "r3gan"
    changeable: ClassVar = frozenset(("sampling",))

    latent_dims: int = 64
    "Numbers of z, the noise that an image is made of."
    class_dims: int = 64
    "Numbers that the generator is told of the class, beside z."
    generator: R3GANNetworkConfig = R3GANNetworkConfig()
    "The generator."
    discriminator: R3GANNetworkConfig = R3GANNetworkConfig()
    "The discriminator."
    fresh_images: bool = True
    "Whether the generator's steps have real images of their own, which count as images seen; else those of the discriminator's first step."
    adversarial: AdversarialConfig = AdversarialConfig(kind="non_saturated", relativistic=True)
    "The loss on the discriminator's scores."
    penalty: PenaltyConfig = PenaltyConfig(r1_gamma=0.05, r2_gamma=0.05, at="original", precision="training")
    "Gradient penalties of the discriminator."
    sampling: R3GANSamplingConfig = R3GANSamplingConfig()
    "The sampler."

    def validate(self) -> None:
        self.require(self.class_dims >= 1, "class_dims", "a positive whole number")

    def shrunk(self) -> Self:
        """Two narrow networks for images of 8 pixels, for tests."""
        return replace(self, latent_dims=8, class_dims=4, generator=self.generator.shrunk(), discriminator=self.discriminator.shrunk())

    def build(self, spec: DataSpec) -> R3GAN:
        return R3GAN(self, spec)


class R3GAN(NoiseGAN):
    """Phases "discriminator" and "generator", each with real images of its own. Its latents are z."""

    encoding = R3GANSamplingConfig()
    interpolation = "sphere"
    latents_hold_class = False
    config: R3GANConfig
    generator: R3GANGenerator
    discriminator: R3GANDiscriminator

    def __init__(self, config: R3GANConfig, spec: DataSpec) -> None:
        classes = spec.num_labels(class_conditional=config.class_conditional)
        shape = {"image_channels": spec.channels, "num_classes": classes}
        generator = R3GANGenerator(
            config.generator,
            lowest=config.generator.lowest(spec, "generator"),
            latent_dims=config.latent_dims,
            class_dims=config.class_dims,
            **shape,
        )
        discriminator = R3GANDiscriminator(config.discriminator, lowest=config.discriminator.lowest(spec, "discriminator"), **shape)
        super().__init__(config, spec, generator, discriminator)
        self.sampling = config.sampling

    def generated(self, labels: Int[Tensor, " b"] | None, rng: Rng) -> Float[Tensor, "b c h w"]:
        """G(z) of one z for each index of `rng`."""
        return self.generator(self._noise(rng), labels)

    @torch.no_grad()
    def sample(
        self, rng: Rng, *, labels: Int[Tensor, " b"] | None, settings: Config | None = None, report: Report | None = None
    ) -> Float[Tensor, "b c h w"]:
        """Images in [-1, 1], one for each index of `rng`, on one device the same to the last bit in every batch.

        Raises ConfigError for settings or labels that do not fit.
        """
        settings_like(self.sampling, settings)
        return self._images_of(self._noise(rng), labels, index=rng.index)

    @torch.no_grad()
    def sampled_latents(self, rng: Rng, *, labels: Int[Tensor, " b"] | None, settings: Config | None = None) -> list[Tensor]:
        """z of the samples, (b, latent_dims), whatever their labels."""
        settings_like(self.sampling, settings)
        return [self._noise(rng)]

    @torch.no_grad()
    def decode(
        self, latents: list[Tensor], *, labels: Int[Tensor, " b"] | None = None, settings: Config | None = None
    ) -> Float[Tensor, "b c h w"]:
        """The images in [-1, 1] of z. Raises ConfigError for latents of another shape, and for labels that do not fit."""
        shapes, wanted = [tuple(latent.shape[1:]) for latent in latents], (self.config.latent_dims,)
        if shapes != [wanted]:
            raise ConfigError("latents", f"got the shapes {shapes}, expected {wanted} alone, which is z")
        return self._images_of(latents[0].to(self.generator.basis.dtype), labels)

    def _images_of(self, z: Tensor, labels: Tensor | None, *, index: Int[Tensor, " b"] | None = None) -> Float[Tensor, "b c h w"]:
        labels = self.checked_labels(labels, len(z))

        def make(z: Tensor, labels: Tensor | None = None) -> list[Tensor]:
            return [self.generator(z, labels).clamp(-1, 1)]

        return in_groups(make, *([z] if labels is None else [z, labels]), side=self.image_shape[2], index=index)[0]

    def _noise(self, rng: Rng) -> Float[Tensor, "b d"]:
        return rng.normal("z", self.config.latent_dims).to(self.generator.basis.dtype)
