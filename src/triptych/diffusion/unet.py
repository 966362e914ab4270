"""The U-Net of ADM: "Diffusion Models Beat GANs on Image Synthesis" (Dhariwal and Nichol 2021, arXiv 2105.05233, section 3).

Parameter names and shapes are those of guided-diffusion's files, and so of improved-diffusion's. What differs: activation
checkpointing covers residual and attention blocks alike and only on request, half precision is autocast's, and the dropout masks
are a function of the sample and the layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from triptych.core.config import Config, config, spelled
from triptych.core.errors import ConfigError
from triptych.core.rng import Rng
from triptych.diffusion.blocks import AttentionOrder, Resampling, ResBlock, SelfAttention, timestep_embedding, zeroed
from triptych.diffusion.dropout import mask_name, masks_ahead
from triptych.diffusion.norm import NUM_GROUPS, ModulatedGroupNorm, Modulation
from triptych.nn.convolution import FastConv2d
from triptych.nn.enlarging import convolved_enlarged
from triptych.nn.linear import Linear
from triptych.nn.recomputing import recomputed
from triptych.nn.resample import enlarged

# 64 to 512: guided-diffusion; 32: improved-diffusion; the smaller ones end at 4 or 7 pixels likewise.
CHANNEL_MULT: dict[int, tuple[float, ...]] = {
    8: (1, 2),
    16: (1, 2, 2),
    28: (1, 2, 2),
    32: (1, 2, 2, 2),
    64: (1, 2, 3, 4),
    128: (1, 1, 2, 3, 4),
    256: (1, 1, 2, 2, 4, 4),
    512: (0.5, 1, 1, 2, 2, 4, 4),
}

ANOTHER_SIZE = "another data.image_size"
"""What an error about a size advises in the end; `networks.of_latents` has other advice in its place."""
NO_LABEL = -1
"""In place of a label: the network is told none, and says what all classes have in common (Ho and Salimans 2022)."""


@config
class EncoderConfig(Config):
    """The network down to its middle; widths are multiples of 32, for its norms have 32 groups."""

    changeable: ClassVar = frozenset(("dropout", "checkpoint"))

    num_channels: int = 128
    "Base width."
    num_res_blocks: int = 2
    "Residual blocks of each level (one more in a decoder)."
    channel_mult: tuple[float, ...] | None = None
    "Width of each level as a multiple of num_channels; None: the published table, by image size."
    attention_resolutions: tuple[int, ...] = (16, 8)
    "Image sizes, in pixels, of the levels with attention (the middle always has it)."
    num_heads: int = 4
    "Attention heads, where num_head_channels is None."
    num_head_channels: int | None = None
    "Channels of an attention head; None: num_heads heads everywhere."
    attention_order: AttentionOrder = "legacy"
    "Order of the rows of qkv; the published 64x64 model uses the new one, all others the legacy one."
    dropout: float = 0.0
    "Probability that dropout removes a feature."
    scale_shift_norm: bool = True
    "The embedding scales and shifts the norm's output; false: it is added before the norm."
    resblock_updown: bool = False
    "Residual blocks change the resolution; false: plain convolutions (see conv_resample)."
    conv_resample: bool = True
    "A convolution goes with each change of resolution; false: plain pooling and repetition of pixels."
    checkpoint: bool = False
    "Recompute the blocks in the backward pass: less than half the activation memory for about a third more time."

    def validate(self) -> None:
        for name in ("num_channels", "num_res_blocks", "num_heads"):
            self.require(getattr(self, name) >= 1, name, "at least 1")
        mult = self.channel_mult
        self.require(mult is None or (len(mult) > 0 and min(mult) > 0), "channel_mult", "positive numbers, or nothing")
        self.require(all(size >= 1 for size in self.attention_resolutions), "attention_resolutions", "positive numbers")
        self.require(self.num_head_channels is None or self.num_head_channels >= 1, "num_head_channels", "at least 1, or nothing")
        self.require(0 <= self.dropout < 1, "dropout", "from 0 to below 1")

    def shrunk(self) -> Self:
        """A network of two levels for images of 8 pixels: groups of two channels, for a bias before a norm of one has no effect."""
        heads = {"num_head_channels": 16} if self.num_head_channels else {"num_heads": 2}
        return replace(self, num_channels=64, num_res_blocks=1, channel_mult=(1, 1), attention_resolutions=(4,), **heads)


@config
class UNetConfig(EncoderConfig):
    """The network; widths are multiples of 32, for its norms have 32 groups."""

    kind_name: ClassVar = "u-net"

    num_heads_upsample: int | None = None
    "Attention heads in the decoder; None: num_heads."

    def validate(self) -> None:
        self.require(self.num_heads_upsample is None or self.num_heads_upsample >= 1, "num_heads_upsample", "at least 1, or nothing")
        without = self.num_heads_upsample is None or self.num_head_channels is None
        self.require(without, "num_heads_upsample", "nothing where num_head_channels is given, which decides everywhere")


@dataclass(frozen=True)
class Levels:
    """The widths, resolutions and heads that a configuration gives at an image size."""

    widths: tuple[int, ...]
    sizes: tuple[int, ...]
    "Image size at each level."
    attention: tuple[bool, ...]
    "Whether each level has it."


def level_sizes(channel_mult: Sequence[float], attention_resolutions: Sequence[int], *, image_size: int) -> tuple[int, ...]:
    """The image size at each level; raises ConfigError when they do not exist at this size, or attention is wanted at another."""
    multiple = 2 ** (len(channel_mult) - 1)
    if image_size % multiple:
        wanted = f"a multiple of {multiple} pixels, as {len(channel_mult)} levels need; give fewer, or {ANOTHER_SIZE}"
        raise ConfigError("channel_mult", f"got {spelled(channel_mult)} for images of {image_size} pixels, expected {wanted}")
    sizes = tuple(image_size // 2**level for level in range(len(channel_mult)))
    for size in attention_resolutions:
        if size not in sizes:
            wanted = f"some of this network's resolutions ({', '.join(map(str, sizes))})"
            raise ConfigError("attention_resolutions", f"got {size}, expected {wanted}")
    return sizes


def levels_of(network: EncoderConfig, *, image_size: int) -> Levels:
    """The levels of the network; raises ConfigError when they do not exist at this size."""
    mult = network.channel_mult or CHANNEL_MULT.get(image_size)
    if mult is None:
        sizes_known = ", ".join(map(str, CHANNEL_MULT))
        raise ConfigError(
            "channel_mult", f"no default for images of {image_size} pixels (only for {sizes_known}); give one number for each level"
        )
    sizes = level_sizes(mult, network.attention_resolutions, image_size=image_size)
    widths = tuple(int(m * network.num_channels) for m in mult)
    for width in widths:
        if width == 0 or width % NUM_GROUPS:
            raise ConfigError(
                "num_channels", f"gives a level of {width} channels, expected multiples of {NUM_GROUPS}; change it or channel_mult"
            )
    attention = tuple(size in network.attention_resolutions for size in sizes)
    _check_heads(network, {width for width, there in zip(widths, attention, strict=True) if there} | {widths[-1]})
    return Levels(widths, sizes, attention)


def _check_heads(network: EncoderConfig, widths: set[int]) -> None:
    for width in sorted(widths):
        for setting in ("num_head_channels",) if network.num_head_channels else ("num_heads", "num_heads_upsample"):
            divisor = getattr(network, setting, None)
            if divisor is not None and width % divisor:
                raise ConfigError(setting, f"got {divisor}, expected a divisor of {width}, the width of a level with attention")


class Downsample(nn.Module):
    """Half the resolution: a convolution of stride 2 (key op), or the mean of four pixels."""

    def __init__(self, channels: int, *, convolution: bool) -> None:
        super().__init__()
        self.op = FastConv2d(channels, channels, 3, stride=2, padding=1) if convolution else nn.AvgPool2d(2)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c _ _"]:
        return self.op(x)


class Upsample(nn.Module):
    """Twice the resolution: every pixel repeated, then a convolution (key conv) or none."""

    def __init__(self, channels: int, *, convolution: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1) if convolution else None

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c 2*h 2*w"]:
        return enlarged(x) if self.conv is None else convolved_enlarged(x, self.conv.weight, self.conv.bias)


class Stage(nn.ModuleList):
    """What stands at one index of the encoder or decoder: residual blocks, attention and resampling, in order."""

    def forward(
        self, x: Float[Tensor, "b c h w"], skip: Float[Tensor, "b s h w"] | None, embedding: Float[Tensor, "b e"], rng: Rng | None
    ) -> Float[Tensor, "b o _ _"]:
        """The stage's output; `skip` is first joined to x along the channels."""
        if skip is not None:
            x = torch.cat((x, skip), dim=1)
        for layer in self:
            x = layer(x, embedding, rng) if isinstance(layer, ResBlock) else layer(x)
        return x


def _embedder(channels: int, width: int) -> nn.ModuleDict:
    """An MLP of the sinusoids of a number; keys 0 and 2."""
    return nn.ModuleDict({"0": Linear(channels, width), "2": Linear(width, width)})


class UNetEncoder(nn.Module):
    """The way down: embeddings, input_blocks and middle_block. What becomes of it is for the subclass."""

    def __init__(self, network: EncoderConfig, *, image_size: int, in_channels: int, num_labels: int | None = None) -> None:
        super().__init__()
        self.config, self.levels = network, levels_of(network, image_size=image_size)
        self.image_size, self.in_channels, self.num_labels = image_size, in_channels, num_labels
        self.embedding = 4 * network.num_channels
        self.masks: list[str] = []
        self.time_embed = _embedder(network.num_channels, self.embedding)
        if num_labels is not None:
            self.label_emb = nn.Embedding(num_labels, self.embedding)
        self.skips: list[int] = []
        self.input_blocks = nn.ModuleList(self._encoder(self.skips))
        last, name = self.levels.widths[-1], "middle_block"
        self.middle_block = Stage(
            [self._residual(last, last, f"{name}.0"), self._attention(last, network.num_heads), self._residual(last, last, f"{name}.2")]
        )

    def _encoder(self, skips: list[int]) -> Iterator[Stage]:
        """The stages, pushing the width of each one's output on `skips`."""
        width = self.levels.widths[0]
        yield Stage([nn.Conv2d(self.in_channels, width, 3, padding=1)])
        skips.append(width)
        for level, level_width in enumerate(self.levels.widths):
            for _ in range(self.config.num_res_blocks):
                layers: list[nn.Module] = [self._residual(width, level_width, f"input_blocks.{len(skips)}.0")]
                width = level_width
                if self.levels.attention[level]:
                    layers.append(self._attention(width, self.config.num_heads))
                yield Stage(layers)
                skips.append(width)
            if level < len(self.levels.widths) - 1:
                yield Stage([self._resample(width, f"input_blocks.{len(skips)}.0", up=False)])
                skips.append(width)

    def _residual(self, width: int, out_width: int, name: str, resampling: Resampling = "none") -> ResBlock:
        scale_shift, dropout = self.config.scale_shift_norm, self.config.dropout
        self.masks += [mask_name(name)] if dropout else []
        return ResBlock(
            width, out_width, embedding=self.embedding, scale_shift=scale_shift, dropout=dropout, resampling=resampling, name=name
        )

    def _resample(self, width: int, name: str, *, up: bool) -> nn.Module:
        if self.config.resblock_updown:
            return self._residual(width, width, name, "up" if up else "down")
        return (Upsample if up else Downsample)(width, convolution=self.config.conv_resample)

    def _attention(self, width: int, heads: int) -> SelfAttention:
        c = self.config
        return SelfAttention(width, heads=width // c.num_head_channels if c.num_head_channels else heads, order=c.attention_order)

    def _embed(self, t: Tensor, y: Tensor | None, more: Tensor | None = None, span: Tensor | None = None) -> Tensor:
        """The embedding of timestep, label and span after the SiLU with which every block begins: float32 (b, embedding).

        `more` (b, num_channels) is added to the sinusoids of t.
        """
        if (y is not None) != (self.num_labels is not None):
            raise ValueError("labels must be given exactly when the network has classes")
        with torch.autocast(t.device.type, enabled=False):
            embedding = self._sinusoidal("time_embed", t, more)
            if y is not None:
                embedding = embedding + self.label_emb(y.clamp(min=0)) * (y != NO_LABEL)[:, None]
            if span is not None:
                embedding = embedding + self._sinusoidal("span_embed", span)
            return F.silu(embedding)

    def _sinusoidal(self, name: str, number: Tensor, more: Tensor | None = None) -> Tensor:
        """The MLP of that name, of the sinusoids of a number (b,), to which `more` is added."""
        layers, waves = self.get_submodule(name), timestep_embedding(number, self.config.num_channels)
        return layers["2"](F.silu(layers["0"](waves if more is None else waves + more)))  # type: ignore[index]

    def _down(self, x: Tensor, embedding: Tensor, rng: Rng | None) -> tuple[list[Tensor], Tensor]:
        """The output of every input block, first to last, and that of the middle block."""
        h, outputs = x.contiguous(memory_format=torch.channels_last), []
        for stage in self.input_blocks:
            h = self._run(stage, h, None, embedding, rng)
            outputs.append(h)
        return outputs, self._run(self.middle_block, h, None, embedding, rng)

    def _run(self, stage: nn.Module, x: Tensor, skip: Tensor | None, embedding: Tensor, rng: Rng | None) -> Tensor:
        # Nothing inside draws from a global generator: the masks are recomputed from rng.
        return recomputed(stage, x, skip, embedding, rng, when=self.config.checkpoint)


class UNet(UNetEncoder):
    """The network eps(x_t, t, y), or whatever its 3 or 6 output channels stand for; an untrained one gives exactly 0."""

    config: UNetConfig

    def __init__(
        self,
        network: UNetConfig,
        *,
        image_size: int,
        in_channels: int,
        out_channels: int,
        num_classes: int | None = None,
        spans: bool = False,
    ) -> None:
        super().__init__(network, image_size=image_size, in_channels=in_channels, num_labels=num_classes)
        self.out_channels, self.spans = out_channels, spans
        if spans:
            self.span_embed = _embedder(network.num_channels, self.embedding)
        self.output_blocks = nn.ModuleList(self._decoder(list(self.skips)))
        first = self.levels.widths[0]
        self.out = nn.ModuleDict({"0": ModulatedGroupNorm(first), "2": zeroed(nn.Conv2d(first, out_channels, 3, padding=1))})
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] (missing in its overloads)

    def _decoder(self, skips: list[int]) -> Iterator[Stage]:
        """The stages, popping the widths of what joins them from `skips`."""
        width, index = self.levels.widths[-1], 0
        heads = self.config.num_heads_upsample or self.config.num_heads
        for level, level_width in reversed(list(enumerate(self.levels.widths))):
            for block in range(self.config.num_res_blocks + 1):
                name = f"output_blocks.{index}"
                layers: list[nn.Module] = [self._residual(width + skips.pop(), level_width, f"{name}.0")]
                width = level_width
                if self.levels.attention[level]:
                    layers.append(self._attention(width, heads))
                if level > 0 and block == self.config.num_res_blocks:
                    layers.append(self._resample(width, f"{name}.{len(layers)}", up=True))
                yield Stage(layers)
                index += 1

    def forward(
        self,
        x: Float[Tensor, "b c h w"],
        t: Shaped[Tensor, " b"],
        y: Int[Tensor, " b"] | None = None,
        rng: Rng | None = None,
        span: Shaped[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b o h w"]:
        """The output of `out_channels` channels for images of `in_channels`.

        `t`: original timesteps, integer, between two or rescaled. `y`: labels, exactly when the network has classes; for a sample whose
        label is NO_LABEL it has none. `rng` draws the dropout masks in training mode. `span`: another time, exactly for a network of
        `spans`.
        """
        if (span is not None) != self.spans:
            raise ValueError("spans must be given exactly when the network takes them")
        return self._through(x, self._embed(t, y, span=span), rng)

    def _through(self, x: Tensor, embedding: Tensor, rng: Rng | None) -> Tensor:
        """The output for noisy images and the embedding of what is told of them."""
        rng = masks_ahead(self, rng)
        skips, h = self._down(x, embedding, rng)
        for stage in self.output_blocks:
            h = self._run(stage, h, skips.pop(), embedding, rng)
        with torch.autocast(x.device.type, enabled=False):
            return self.out["2"](self.out["0"](h.to(x.dtype), Modulation(silu=True)))
