"""The networks of EDM: DDPM++ and NCSN++, and the U-Net of ADM.

"Score-Based Generative Modeling through Stochastic Differential Equations", Song et al. 2021, https://arxiv.org/abs/2011.13456, as
"Elucidating the Design Space of Diffusion-Based Generative Models", Karras et al. 2022, https://arxiv.org/abs/2206.00364, has them (its
Table 1 and appendix F.3). Names and shapes of the parameters are those of EDM's files. What differs: the dropout masks are a function of
the sample and the layer, half precision is autocast's, and activation checkpointing is there on request.

A network is called with x, the time t (c_noise of the noise level), the labels, an rng for the dropout masks, and the label of
augmentation (see edm_augmentation.py), without which a sample is one of the images that nothing happened to.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal, Self, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from triptych.core.batch import DataSpec
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.core.rng import Rng
from triptych.diffusion.blocks import Resampling, attend, zeroed
from triptych.diffusion.dropout import kept, mask_name, masks_ahead
from triptych.diffusion.norm import ModulatedGroupNorm, Modulation
from triptych.diffusion.unet import CHANNEL_MULT, NO_LABEL, UNet, UNetConfig, level_sizes
from triptych.nn.convolution import FastConv2d, fast_convolution
from triptych.nn.enlarging import convolved_enlarged
from triptych.nn.filters import BINOMIAL, convolved_downsampled, downsampled, kernel_of, upsampled
from triptych.nn.linear import Linear
from triptych.nn.recomputing import recomputed
from triptych.nn.resample import enlarged, halved

M = TypeVar("M", nn.Conv2d, nn.Linear)

_BOX = (1.0, 1.0)
_MOST_GROUPS, _GROUP_CHANNELS = 32, 4  # of a norm: 32 groups, fewer where they would have less than 4 channels
_NORM_EPS = 1e-6
_SKIP_SCALE = math.sqrt(0.5)  # of a sum of two, so that its variance is theirs
_ATTENTION_GAIN, _LAST_GAIN = math.sqrt(0.2), 1e-5  # of the initial weights of qkv, and of what ends a branch
_FOURIER_SCALE = 16.0
_MOST_POSITIONS = 10_000


# Settings -------------------------------------------------------------------------------------------------------------------


@config
class EDMNetworkConfig(Config):
    """A network of EDM."""

    @abstractmethod
    def build(self, spec: DataSpec, *, num_classes: int | None, augment_dims: int) -> nn.Module:
        """The network for images of `spec`, told classes and `augment_dims` numbers of augmentation (0: none); ConfigError if none fits."""

    @abstractmethod
    def halvings(self, image_size: int) -> int:
        """How often it halves images of that size; their sides are multiples of 2 to that power."""

    @abstractmethod
    def shrunk(self) -> Self:
        """A small one of the same kind, for images of 8 pixels."""


@config
class SongUNetConfig(EDMNetworkConfig):
    """DDPM++, or with a Fourier embedding, a residual encoder and the longer filter NCSN++; the defaults are DDPM++ at 64x64."""

    kind_name: ClassVar = "song-unet"
    changeable: ClassVar = frozenset(("dropout", "checkpoint"))

    num_channels: int = 128
    "Base width."
    channel_mult: tuple[int, ...] = (1, 2, 2, 2)
    "Width of each level as a multiple of num_channels."
    num_blocks: int = 4
    "Residual blocks of each level (one more in the decoder)."
    attention_resolutions: tuple[int, ...] = (16,)
    "Image sizes, in pixels, of levels with attention: all blocks of the encoder, the last of the decoder (whose first always has it)."
    num_heads: int = 1
    "Attention heads."
    dropout: float = 0.1
    "Probability that dropout removes a feature."
    embedding: Literal["positional", "fourier"] = "positional"
    "Of the noise level: sinusoids of fixed frequencies (DDPM++), or of random ones (NCSN++)."
    embedding_mult: int = 1
    "Numbers of that embedding, as a multiple of num_channels: 1 in DDPM++, 2 in NCSN++."
    encoder: Literal["standard", "residual"] = "standard"
    "residual: the noisy image, made smaller step by step, joins the encoder at each level (NCSN++)."
    resample_filter: tuple[float, ...] = _BOX
    "Of changes of resolution: 1,1 in DDPM++, 1,3,3,1 in NCSN++."
    checkpoint: bool = False
    "Recompute the blocks in the backward pass: less than half the activation memory for about a third more time."

    def validate(self) -> None:
        for name in ("num_channels", "num_blocks", "num_heads", "embedding_mult"):
            self.require(getattr(self, name) >= 1, name, "at least 1")
        self.require(len(self.channel_mult) > 0 and min(self.channel_mult) > 0, "channel_mult", "positive whole numbers")
        self.require(0 <= self.dropout < 1, "dropout", "from 0 to below 1")
        self.require(self.resample_filter in (_BOX, BINOMIAL), "resample_filter", "1,1 or 1,3,3,1")
        self.require(self.embedding_mult * self.num_channels % 2 == 0, "num_channels", "an even number")
        self.require(self.num_channels % self.num_heads == 0, "num_heads", f"a divisor of num_channels, {self.num_channels}")

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each level."""
        return tuple(mult * self.num_channels for mult in self.channel_mult)

    def halvings(self, image_size: int) -> int:
        return len(self.channel_mult) - 1

    def sizes(self, image_size: int) -> tuple[int, ...]:
        """The image size at each level. Raises ConfigError where there are none for images of this size."""
        return level_sizes(self.channel_mult, self.attention_resolutions, image_size=image_size)

    def build(self, spec: DataSpec, *, num_classes: int | None, augment_dims: int) -> SongUNet:
        return SongUNet(self, image_size=spec.image_size, channels=spec.channels, num_classes=num_classes, augment_dims=augment_dims)

    def shrunk(self) -> Self:
        return replace(self, num_channels=16, channel_mult=(1, 2), num_blocks=1, attention_resolutions=(4,))


@config
class ADMUNetConfig(UNetConfig, EDMNetworkConfig):
    """ADM's U-Net, as EDM has it; the defaults are the published one."""

    kind_name: ClassVar = "adm-unet"

    num_channels: int = 192
    "Base width."
    num_res_blocks: int = 3
    "Residual blocks of each level (one more in a decoder)."
    channel_mult: tuple[float, ...] | None = (1, 2, 3, 4)
    "Width of each level as a multiple of num_channels; None: the table of ADM, by image size."
    attention_resolutions: tuple[int, ...] = (32, 16, 8)
    "Image sizes, in pixels, of the levels with attention (the middle always has it)."
    num_head_channels: int | None = 64
    "Channels of an attention head; None: num_heads heads everywhere."
    dropout: float = 0.1
    "Probability that dropout removes a feature."
    resblock_updown: bool = True
    "Residual blocks change the resolution; false: plain convolutions (see conv_resample)."

    def halvings(self, image_size: int) -> int:
        return len(self.channel_mult or CHANNEL_MULT.get(image_size, (1,))) - 1

    def build(self, spec: DataSpec, *, num_classes: int | None, augment_dims: int) -> ADMUNet:
        return ADMUNet(self, spec, num_classes=num_classes, augment_dims=augment_dims)


# Parts of DDPM++ and NCSN++ --------------------------------------------------------------------------------------------------


def _norm(channels: int) -> ModulatedGroupNorm:
    """Raises ConfigError where the groups would not be of one size."""
    groups = max(min(_MOST_GROUPS, channels // _GROUP_CHANNELS), 1)
    if channels % groups:
        always = "a multiple of 32 always can"
        raise ConfigError("num_channels", f"gives a layer of {channels} channels, which {groups} groups of a norm cannot share; {always}")
    return ModulatedGroupNorm(channels, groups=groups, eps=_NORM_EPS)


def _drawn(layer: M, *, gain: float = 1.0) -> M:
    """The layer, its weight U(-a, a) with a = gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010), its bias 0."""
    nn.init.xavier_uniform_(layer.weight, gain=gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def _convolution(ins: int, outs: int, size: int, *, gain: float = 1.0) -> nn.Conv2d:
    return _drawn(FastConv2d(ins, outs, size, padding=size // 2), gain=gain)


def swapped_embedding(t: Float[Tensor, " b"], channels: int) -> Float[Tensor, "b {channels}"]:
    """Of a scalar: sin(t f_i) and then cos(t f_i), f_i = 10000^(-i / (half - 1)), i < half = channels / 2: the last one is 1 / 10000."""
    half = channels // 2
    exponents = torch.arange(half, dtype=t.dtype, device=t.device) / max(half - 1, 1)
    angles = t[:, None] * torch.exp(-math.log(_MOST_POSITIONS) * exponents)
    return torch.cat((angles.sin(), angles.cos()), dim=1)


class FourierEmbedding(nn.Module):
    """sin(2 pi t f_i) and then cos(2 pi t f_i), with frequencies f_i ~ N(0, 16^2) that are drawn once and kept (key freqs)."""

    freqs: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("freqs", torch.randn(channels // 2).mul_(_FOURIER_SCALE))

    def forward(self, t: Float[Tensor, " b"]) -> Float[Tensor, "b c"]:
        angles = t[:, None] * (2 * math.pi * self.freqs)
        return torch.cat((angles.sin(), angles.cos()), dim=1)


class Resampler(nn.Module):
    """Feature maps halved and doubled by a filter; it has no weights, and saves nothing."""

    kernel: Tensor | None

    def __init__(self, taps: tuple[float, ...]) -> None:
        super().__init__()
        # Not saved with a run, so it is there before the weights are.
        kernel = None if taps == _BOX else kernel_of(taps, device=torch.device("cpu"))
        self.register_buffer("kernel", kernel, persistent=False)

    def halved(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h//2 w//2"]:
        return halved(x) if self.kernel is None else downsampled(x, self.kernel)

    def doubled(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c 2*h 2*w"]:
        return enlarged(x) if self.kernel is None else upsampled(x, self.kernel)

    def convolved_doubled(self, x: Float[Tensor, "b c h w"], conv: nn.Conv2d) -> Float[Tensor, "b o 2*h 2*w"]:
        """conv(doubled(x))."""
        return convolved_enlarged(x, conv.weight, conv.bias) if self.kernel is None else conv(upsampled(x, self.kernel))


class SongBlock(nn.Module):
    """y = sqrt(1/2) (skip(x) + conv1(dropout(silu(norm1(conv0(silu(norm0(x))) + affine(embedding)))))), then sqrt(1/2) (y + attention(y)).

    Attention is there where `heads` is not 0. Keys norm0, conv0, affine, norm1, conv1, skip, norm2, qkv [3c, c, 1, 1] with rows counted
    (head, channel, q/k/v), and proj. A resampling block resamples after the first SiLU, and on its way around before a convolution 1x1.
    """

    def __init__(
        self,
        ins: int,
        outs: int,
        *,
        embedding: int,
        dropout: float,
        heads: int = 0,
        resampling: Resampling = "none",
        taps: tuple[float, ...] = _BOX,
        name: str = "",
    ) -> None:
        super().__init__()
        self.dropout, self.heads, self.resampling, self.name = dropout, heads, resampling, name
        self.norm0, self.conv0 = _norm(ins), _convolution(ins, outs, 3)
        self.affine = _drawn(Linear(embedding, outs))
        self.norm1, self.conv1 = _norm(outs), _convolution(outs, outs, 3, gain=_LAST_GAIN)
        self.skip = _convolution(ins, outs, 1) if ins != outs or resampling != "none" else None
        self.resampler = None if resampling == "none" else Resampler(taps)
        if heads:
            self.norm2 = _norm(outs)
            self.qkv = _convolution(outs, 3 * outs, 1, gain=_ATTENTION_GAIN)
            self.proj = _convolution(outs, outs, 1, gain=_LAST_GAIN)

    def forward(self, x: Float[Tensor, "b c h w"], embedding: Float[Tensor, "b e"], rng: Rng | None = None) -> Float[Tensor, "b o _ _"]:
        """The block's output. `embedding`: after its SiLU. `rng` draws the dropout masks, in training."""
        h = self.norm0(x, Modulation(silu=True))
        match self.resampling:
            case "none":
                h, around = self.conv0(h), x if self.skip is None else self.skip(x)
            case "down":
                assert self.resampler is not None and self.skip is not None
                h, around = self.conv0(self.resampler.halved(h)), self.skip(self.resampler.halved(x))
            case "up":
                assert self.resampler is not None and self.skip is not None
                # The convolution 1x1 before the filter is a quarter of the work; only its bias would feel the filter's border.
                weight, bias = self.skip.weight, self.skip.bias
                assert bias is not None
                around = self.resampler.doubled(fast_convolution(x, weight))
                h, around = self.resampler.convolved_doubled(h, self.conv0), around + bias.to(around.dtype)[:, None, None]
        with torch.autocast(x.device.type, enabled=False):
            shift = self.affine(embedding)
        h = h + shift[:, :, None, None].to(h.dtype)
        h = self.conv1(self.norm1(h, Modulation(silu=True, keep=kept(self, h, rng), gain=1 / (1 - self.dropout))))
        y = (around + h) * _SKIP_SCALE
        return (y + self._attention(y)) * _SKIP_SCALE if self.heads else y

    def _attention(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        # The rows of the weight are put in order, (q/k/v, head, channel): that costs less than to do it to feature maps.
        parts = self.heads, c // self.heads, 3
        weight, bias = (p.unflatten(0, parts).movedim(2, 0).flatten(0, 2) for p in (self.qkv.weight, self.qkv.bias) if p is not None)
        qkv = fast_convolution(self.norm2(x), weight, bias).permute(0, 2, 3, 1)
        q, k, v = qkv.reshape(b, h * w, 3, self.heads, c // self.heads).transpose(1, 3).unbind(2)
        mixed = attend(q, k, v).transpose(1, 2).reshape(b, h, w, c)
        return self.proj(mixed.permute(0, 3, 1, 2))


class ResidualInput(nn.Module):
    """conv(x) halved by a filter, (b, o, h/2, w/2): how the noisy image joins a lower level of NCSN++'s encoder. Keys weight, bias.

    The convolution is also computed one pixel beyond the border, where the filter needs it.
    """

    kernel: Tensor

    def __init__(self, ins: int, outs: int, *, taps: tuple[float, ...]) -> None:
        super().__init__()
        conv = _convolution(ins, outs, 3)
        self.weight, self.bias = conv.weight, conv.bias
        self.register_buffer("kernel", kernel_of(taps, device=torch.device("cpu")), persistent=False)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b o h//2 w//2"]:
        assert self.bias is not None
        y = convolved_downsampled(x, self.weight, self.kernel)
        return y + self.bias.to(y.dtype)[:, None, None]


# The networks ---------------------------------------------------------------------------------------------------------------


class SongUNet(nn.Module):
    """DDPM++ or NCSN++. Keys map_noise, map_label, map_augment, map_layer0, map_layer1, enc.{R}x{R}_* and dec.{R}x{R}_*."""

    def __init__(
        self, network: SongUNetConfig, *, image_size: int, channels: int, num_classes: int | None = None, augment_dims: int = 0
    ) -> None:
        super().__init__()
        self.config, self.num_classes, self.augment_dims = network, num_classes, augment_dims
        self.embedding = 4 * network.num_channels
        self.masks: list[str] = []
        waves = network.embedding_mult * network.num_channels
        self.map_noise = FourierEmbedding(waves) if network.embedding == "fourier" else None
        self.map_label = None if num_classes is None else _drawn(Linear(num_classes, waves))
        self.map_augment = _drawn(Linear(augment_dims, waves, bias=False)) if augment_dims else None
        self.map_layer0 = _drawn(Linear(waves, self.embedding))
        self.map_layer1 = _drawn(Linear(self.embedding, self.embedding))
        sizes = network.sizes(image_size)
        skips: list[int] = []
        self.enc = nn.ModuleDict(dict(self._encoder(channels, sizes, skips)))
        self.dec = nn.ModuleDict(dict(self._decoder(channels, sizes, skips)))
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] (missing in its overloads)

    def _encoder(self, channels: int, sizes: tuple[int, ...], skips: list[int]) -> Iterator[tuple[str, nn.Module]]:
        """The layers by name, in order, pushing the widths of what joins the decoder on `skips`."""
        network, width, image_width = self.config, self.config.num_channels, channels
        for level, (size, level_width) in enumerate(zip(sizes, network.widths, strict=True)):
            start = f"{size}x{size}"
            if level == 0:
                yield f"{start}_conv", _convolution(channels, width, 3)
            else:
                yield f"{start}_down", self._block(width, width, f"enc.{start}_down", resampling="down")
                if network.encoder == "residual":
                    yield f"{start}_aux_residual", ResidualInput(image_width, width, taps=network.resample_filter)
                    image_width = width
            skips.append(width)
            heads = network.num_heads if size in network.attention_resolutions else 0
            for number in range(network.num_blocks):
                yield f"{start}_block{number}", self._block(width, level_width, f"enc.{start}_block{number}", heads=heads)
                width = level_width
                skips.append(width)

    def _decoder(self, channels: int, sizes: tuple[int, ...], skips: list[int]) -> Iterator[tuple[str, nn.Module]]:
        """The layers by name, in order, popping the widths of what joins them from `skips`."""
        network = self.config
        width = network.widths[-1]
        for level, (size, level_width) in reversed(list(enumerate(zip(sizes, network.widths, strict=True)))):
            start = f"{size}x{size}"
            if level == len(sizes) - 1:
                yield f"{start}_in0", self._block(width, width, f"dec.{start}_in0", heads=network.num_heads)
                yield f"{start}_in1", self._block(width, width, f"dec.{start}_in1")
            else:
                yield f"{start}_up", self._block(width, width, f"dec.{start}_up", resampling="up")
            for number in range(network.num_blocks + 1):
                last = number == network.num_blocks and size in network.attention_resolutions
                name = f"{start}_block{number}"
                yield name, self._block(width + skips.pop(), level_width, f"dec.{name}", heads=network.num_heads if last else 0)
                width = level_width
        yield f"{sizes[0]}x{sizes[0]}_aux_norm", _norm(width)
        yield f"{sizes[0]}x{sizes[0]}_aux_conv", _convolution(width, channels, 3, gain=_LAST_GAIN)

    def _block(self, ins: int, outs: int, name: str, *, heads: int = 0, resampling: Resampling = "none") -> SongBlock:
        dropout, taps = self.config.dropout, self.config.resample_filter
        self.masks += [mask_name(name)] if dropout else []
        return SongBlock(ins, outs, embedding=self.embedding, dropout=dropout, heads=heads, resampling=resampling, taps=taps, name=name)

    def _embed(self, t: Tensor, labels: Tensor | None, augment: Tensor | None) -> Tensor:
        """The embedding of noise level, label and augmentation, after two layers and their SiLUs: float32 (b, embedding)."""
        if (labels is not None) != (self.num_classes is not None):
            raise ValueError("labels must be given exactly when the network has classes")
        with torch.autocast(t.device.type, enabled=False):
            t = t.to(self.map_layer0.weight.dtype)
            waves = swapped_embedding(t, self.map_layer0.in_features) if self.map_noise is None else self.map_noise(t)
            if labels is not None and self.map_label is not None:
                # The linear map of a one-hot label, whose 1 is sqrt(classes); without a label all are 0.
                told = F.embedding(labels.clamp(min=0), self.map_label.weight.T) * (labels != NO_LABEL)[:, None]
                waves = waves + told * math.sqrt(self.map_label.in_features) + self.map_label.bias
            if self.map_augment is not None and augment is not None:
                waves = waves + self.map_augment(augment)
            return F.silu(self.map_layer1(F.silu(self.map_layer0(waves))))

    def forward(
        self,
        x: Float[Tensor, "b c h w"],
        t: Shaped[Tensor, " b"],
        labels: Int[Tensor, " b"] | None = None,
        rng: Rng | None = None,
        *,
        augment: Float[Tensor, "b a"] | None = None,
    ) -> Float[Tensor, "b c h w"]:
        """F of the noisy images. `labels`: exactly when the network has classes, NO_LABEL for a sample without one.

        `rng` draws the dropout masks in training mode; `augment` is the label of augmentation, None for zeros.
        """
        embedding, rng = self._embed(t, labels, augment), masks_ahead(self, rng)
        image = x.contiguous(memory_format=torch.channels_last)
        h, skips = image, []
        for layer in self.enc.values():
            if isinstance(layer, ResidualInput):
                h = image = (h + layer(image)) * _SKIP_SCALE
                skips[-1] = h
            else:
                h = self._run(layer, h, embedding, rng) if isinstance(layer, SongBlock) else layer(h)
                skips.append(h)
        *blocks, norm, conv = self.dec.values()
        for block in blocks:
            assert isinstance(block, SongBlock)
            if h.shape[1] != block.norm0.num_channels:
                h = torch.cat((h, skips.pop()), dim=1)
            h = self._run(block, h, embedding, rng)
        with torch.autocast(x.device.type, enabled=False):
            return conv(norm(h.to(x.dtype), Modulation(silu=True)))

    @property
    def shard_blocks(self) -> list[nn.Module]:
        """Its layers, whose weights may be gathered one after the other."""
        return [*self.enc.values(), *self.dec.values()]

    def _run(self, block: SongBlock, x: Tensor, embedding: Tensor, rng: Rng | None) -> Tensor:
        # Nothing inside draws from a global generator: the masks are recomputed from rng.
        return recomputed(block, x, embedding, rng, when=self.config.checkpoint)


class ADMUNet(UNet):
    """ADM's U-Net, told of augmentation where `augment_dims` is not 0: by a linear map (key map_augment) beside the sinusoids of t."""

    def __init__(self, network: UNetConfig, spec: DataSpec, *, num_classes: int | None = None, augment_dims: int = 0) -> None:
        channels = spec.channels
        super().__init__(network, image_size=spec.image_size, in_channels=channels, out_channels=channels, num_classes=num_classes)
        self.map_augment = zeroed(Linear(augment_dims, network.num_channels, bias=False)) if augment_dims else None

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride] (it is told more)
        self,
        x: Float[Tensor, "b c h w"],
        t: Shaped[Tensor, " b"],
        labels: Int[Tensor, " b"] | None = None,
        rng: Rng | None = None,
        *,
        augment: Float[Tensor, "b a"] | None = None,
    ) -> Float[Tensor, "b c h w"]:
        """F of the noisy images; see `SongUNet.forward`."""
        with torch.autocast(x.device.type, enabled=False):
            more = None if self.map_augment is None or augment is None else self.map_augment(augment)
        return self._through(x, self._embed(t, labels, more), rng)
