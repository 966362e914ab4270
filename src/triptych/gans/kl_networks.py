"""The networks of a KL autoencoder: images to Gaussians over small latents, and back.

"High-Resolution Image Synthesis with Latent Diffusion Models", Rombach et al. 2022, https://arxiv.org/abs/2112.10752, with the layers of
its KL-f8, the autoencoder of Stable Diffusion. Tensors have the names of diffusers' AutoencoderKL.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple, Self

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.gans.norms import GroupNorm
from triptych.nn.convolution import FastConv2d
from triptych.nn.enlarging import convolved_enlarged
from triptych.nn.linear import Linear
from triptych.nn.precision import widened

_EPSILON = 1e-6  # of all norms
_LOG_VARIANCES = (-30.0, 20.0)  # what the logarithm of the variance is clipped to


@config
class KLNetworksConfig(Config):
    """The encoder and the decoder, its mirror."""

    widths: tuple[int, ...] = (128, 256, 512, 512)
    "Channels at each resolution, the images' first; each halves the one before it. Four are f8: latents have an eighth of the sides."
    num_blocks: int = 2
    "Residual blocks of the encoder at each resolution; the decoder has one more."
    latent_channels: int = 4
    "Channels of the latents."
    num_groups: int = 32
    "Groups of channels of the norms; they divide each of the widths."

    def validate(self) -> None:
        self.require(len(self.widths) > 0 and min(self.widths) >= 1, "widths", "positive whole numbers")
        for name in ("num_blocks", "latent_channels", "num_groups"):
            self.require(getattr(self, name) >= 1, name, "a positive whole number")
        wrong = next((width for width in self.widths if width % self.num_groups), None)
        if wrong is not None:
            raise ConfigError("num_groups", f"got {self.num_groups}, expected a divisor of {wrong}, one of the widths")

    @property
    def factor(self) -> int:
        """How many times as long the sides of images are as those of their latents: f."""
        return 2 ** (len(self.widths) - 1)

    def shrunk(self) -> Self:
        """Two narrow resolutions, for tests."""
        return replace(self, widths=(4, 8), num_blocks=1, latent_channels=min(self.latent_channels, 2), num_groups=2)


class Gaussian(NamedTuple):
    """Normal distributions, independent for each number of a latent."""

    mean: Tensor
    "(b, z, h, w), float32 at least, like the other."
    log_variance: Tensor
    "From -30 to 20."

    @property
    def std(self) -> Tensor:
        """The standard deviations."""
        return (0.5 * self.log_variance).exp()

    def at(self, noise: Float[Tensor, "b z h w"]) -> Float[Tensor, "b z h w"]:
        """mean + std noise."""
        return self.mean + self.std * noise.to(self.mean.dtype)


def _conv(ins: int, outs: int, kernel: int = 3, stride: int = 1) -> FastConv2d:
    return FastConv2d(ins, outs, kernel, stride=stride, padding=(kernel - 1) // 2 if stride == 1 else 0)


def _norm(channels: int, settings: KLNetworksConfig) -> GroupNorm:
    return GroupNorm(settings.num_groups, channels, eps=_EPSILON)


class ResidualBlock(nn.Module):
    """shortcut(x) + conv2(silu(norm2(conv1(silu(norm1(x)))))); the shortcut is a 1x1 convolution where the width changes."""

    def __init__(self, ins: int, outs: int, settings: KLNetworksConfig) -> None:
        super().__init__()
        self.norm1, self.conv1 = _norm(ins, settings), _conv(ins, outs)
        self.norm2, self.conv2 = _norm(outs, settings), _conv(outs, outs)
        self.conv_shortcut = None if ins == outs else _conv(ins, outs, 1)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h w"]:
        """The block's output."""
        y = self.conv1(F.silu(self.norm1(x)))
        y = self.conv2(F.silu(self.norm2(y)))
        return y + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class Attention(nn.Module):
    """x + to_out(softmax(q k^T / sqrt(c)) v) of norm(x), one head over all pixels."""

    def __init__(self, channels: int, settings: KLNetworksConfig) -> None:
        super().__init__()
        self.group_norm = _norm(channels, settings)
        self.to_q, self.to_k, self.to_v = (Linear(channels, channels) for _ in range(3))
        self.to_out = nn.ModuleList([Linear(channels, channels)])

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """The feature map, attended to."""
        tokens = self.group_norm(x).flatten(2).transpose(1, 2)
        q, k, v = (layer(tokens)[:, None] for layer in (self.to_q, self.to_k, self.to_v))
        mixed = self.to_out[0](F.scaled_dot_product_attention(q, k, v)[:, 0])
        return x + mixed.transpose(1, 2).reshape(x.shape)


class MidBlock(nn.Module):
    """A residual block, attention, a residual block: keys resnets.{0,1}, attentions.0."""

    def __init__(self, channels: int, settings: KLNetworksConfig) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(ResidualBlock(channels, channels, settings) for _ in range(2))
        self.attentions = nn.ModuleList([Attention(channels, settings)])

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """The block's output."""
        return self.resnets[1](self.attentions[0](self.resnets[0](x)))


class Halving(nn.Module):
    """A convolution of stride 2, with a row and a column of zeros at the bottom and on the right alone: key conv."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = _conv(channels, channels, stride=2)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h//2 w//2"]:
        """x at half its size."""
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Doubling(nn.Module):
    """Every pixel as a square of four, and a convolution: key conv."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = _conv(channels, channels)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c 2*h 2*w"]:
        """x at twice its size."""
        return convolved_enlarged(x, self.conv.weight, self.conv.bias)


class Level(nn.Module):
    """Residual blocks at a resolution, and the way to the next: keys resnets.{i}, downsamplers.0 or upsamplers.0."""

    def __init__(self, ins: int, outs: int, settings: KLNetworksConfig, *, blocks: int, down: bool = False, up: bool = False) -> None:
        super().__init__()
        widths = [ins, *[outs] * blocks]
        self.resnets = nn.ModuleList(ResidualBlock(first, second, settings) for first, second in pairwise(widths))
        self.downsamplers = nn.ModuleList([Halving(outs)]) if down else None
        self.upsamplers = nn.ModuleList([Doubling(outs)]) if up else None

    def forward(self, x: Float[Tensor, "b c _ _"]) -> Float[Tensor, "b d _ _"]:
        """The level's output."""
        for block in self.resnets:
            x = block(x)
        for change in (self.downsamplers, self.upsamplers):
            x = x if change is None else change[0](x)
        return x


class KLEncoder(nn.Module):
    """Images to the parameters of Gaussians: keys conv_in, down_blocks.{l}, mid_block, conv_norm_out, conv_out."""

    def __init__(self, settings: KLNetworksConfig, *, channels: int) -> None:
        super().__init__()
        widths, blocks = settings.widths, settings.num_blocks
        self.conv_in = _conv(channels, widths[0])
        pairs = list(pairwise((widths[0], *widths)))
        last = len(pairs) - 1
        self.down_blocks = nn.ModuleList(
            Level(ins, outs, settings, blocks=blocks, down=level < last) for level, (ins, outs) in enumerate(pairs)
        )
        self.mid_block = MidBlock(widths[-1], settings)
        self.conv_norm_out = _norm(widths[-1], settings)
        self.conv_out = _conv(widths[-1], 2 * settings.latent_channels)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b _ _ _"]:
        """Twice the channels of the latents, before quant_conv."""
        x = self.conv_in(images)
        for level in self.down_blocks:
            x = level(x)
        return self.conv_out(F.silu(self.conv_norm_out(self.mid_block(x))))


class KLDecoder(nn.Module):
    """Latents to images: keys conv_in, mid_block, up_blocks.{from the lowest}, conv_norm_out, conv_out."""

    def __init__(self, settings: KLNetworksConfig, *, channels: int) -> None:
        super().__init__()
        widths, blocks = settings.widths[::-1], settings.num_blocks + 1
        self.conv_in = _conv(settings.latent_channels, widths[0])
        self.mid_block = MidBlock(widths[0], settings)
        pairs = list(pairwise((widths[0], *widths)))
        last = len(pairs) - 1
        self.up_blocks = nn.ModuleList(
            Level(ins, outs, settings, blocks=blocks, up=level < last) for level, (ins, outs) in enumerate(pairs)
        )
        self.conv_norm_out = _norm(widths[-1], settings)
        self.conv_out = _conv(widths[-1], channels)

    def forward(self, x: Float[Tensor, "b z _ _"]) -> Float[Tensor, "b c h w"]:
        """The images, of what post_quant_conv gives."""
        x = self.mid_block(self.conv_in(x))
        for level in self.up_blocks:
            x = level(x)
        return self.conv_out(F.silu(self.conv_norm_out(x)))


class KLNetworks(nn.Module):
    """Both ways: keys encoder.*, quant_conv, post_quant_conv, decoder.*."""

    def __init__(self, settings: KLNetworksConfig, *, channels: int) -> None:
        super().__init__()
        latent = settings.latent_channels
        self.encoder = KLEncoder(settings, channels=channels)
        self.quant_conv = _conv(2 * latent, 2 * latent, 1)
        self.post_quant_conv = _conv(latent, latent, 1)
        self.decoder = KLDecoder(settings, channels=channels)

    def posterior(self, images: Float[Tensor, "b c h w"]) -> Gaussian:
        """The distributions of the latents of images in [-1, 1], whose sides are multiples of f."""
        mean, log_variance = widened(self.quant_conv(self.encoder(images))).chunk(2, dim=1)
        return Gaussian(mean, log_variance.clamp(*_LOG_VARIANCES))

    def decoded(self, latents: Float[Tensor, "b z _ _"]) -> Float[Tensor, "b c h w"]:
        """The images of latents, in [-1, 1] but for what overshoots."""
        return widened(self.decoder(self.post_quant_conv(latents)))

    def forward(
        self, images: Float[Tensor, "b c h w"], noise: Float[Tensor, "b z _ _"], *, posterior: Gaussian | None = None
    ) -> tuple[Tensor, Gaussian]:
        """The reconstructions by the latents that the noise draws, (b, c, h, w), and the distributions of these.

        `posterior`: these distributions, where they are known.
        """
        if posterior is None:
            posterior = self.posterior(images)
        return self.decoded(posterior.at(noise)), posterior

    @property
    def last_weight(self) -> Tensor:
        """The weight of the decoder's last convolution."""
        return self.decoder.conv_out.weight
