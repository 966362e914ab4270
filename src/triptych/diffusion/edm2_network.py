"""The network of EDM2: "Analyzing and Improving the Training Dynamics of Diffusion Models" (Karras et al. 2024, arXiv 2312.02696).

A U-Net of the layers of nn/magnitude.py (configuration G of the paper), and beside it the uncertainty that the loss is weighed by. Names
and shapes of parameters and buffers are those of the published files. What differs: half precision is autocast's, the dropout masks are a
function of the sample and the layer, and no forward pass changes a weight (see edm2.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.core.rng import Rng
from triptych.diffusion.blocks import Resampling, attend
from triptych.diffusion.dropout import kept, mask_name, masks_ahead
from triptych.diffusion.unet import NO_LABEL, level_sizes
from triptych.nn.magnitude import SILU_RMS, UnitConv2d, UnitFourier, UnitLinear, mp_cat, mp_silu, mp_sum, mp_sum_with, unit
from triptych.nn.recomputing import recomputed
from triptych.nn.resample import enlarged, halved

_LABEL_BALANCE, _RESIDUAL_BALANCE, _ATTENTION_BALANCE = 0.5, 0.3, 0.3
"""How much of a sum the embedding of the class, a residual branch and attention are."""
_LARGEST = 256.0
"""What leaves a block is clipped to it, for half precision."""
_UNCERTAINTY_FEATURES = 128


@config
class EDM2NetworkConfig(Config):
    """The U-Net. No layer has a bias, and every activation has a magnitude of about 1."""

    changeable: ClassVar = frozenset(("dropout", "checkpoint"))

    num_channels: int = 128
    "Base width: 64 (XXS), 128 (XS), 192 (S), 256 (M), 320 (L), 384 (XL), 448 (XXL)."
    channel_mult: tuple[int, ...] = (1, 2, 3, 4)
    "Width of each level as a multiple of num_channels."
    num_blocks: int = 3
    "Residual blocks of each level (one more in the decoder)."
    attention_resolutions: tuple[int, ...] = (16, 8)
    "Image sizes, in pixels, of the levels with attention (the first block of the decoder always has it)."
    num_head_channels: int = 64
    "Channels of an attention head."
    dropout: float = 0.0
    "Probability that dropout removes a feature."
    checkpoint: bool = False
    "Recompute the blocks in the backward pass: less than half the activation memory for about a third more time."

    def validate(self) -> None:
        for name in ("num_channels", "num_blocks", "num_head_channels"):
            self.require(getattr(self, name) >= 1, name, "at least 1")
        self.require(len(self.channel_mult) > 0 and min(self.channel_mult) >= 1, "channel_mult", "positive numbers")
        self.require(all(size >= 1 for size in self.attention_resolutions), "attention_resolutions", "positive numbers")
        self.require(0 <= self.dropout < 1, "dropout", "from 0 to below 1")

    def shrunk(self) -> Self:
        """Two levels for images of 8 pixels, for tests."""
        return replace(self, num_channels=16, channel_mult=(1, 2), num_blocks=1, attention_resolutions=(4,), num_head_channels=16)

    def check(self, image_size: int) -> None:
        """Raises ConfigError where the levels do not exist at this size."""
        sizes = level_sizes(self.channel_mult, self.attention_resolutions, image_size=image_size)
        for size, mult in zip(sizes, self.channel_mult, strict=True):
            width = mult * self.num_channels
            if (size in self.attention_resolutions or size == sizes[-1]) and width % self.num_head_channels:
                raise ConfigError(
                    "num_head_channels", f"got {self.num_head_channels}, expected a divisor of {width}, the width of a level with attention"
                )


class EDM2Block(nn.Module):
    """A residual block, and attention after it where there is any.

    Keys conv_res0, emb_gain (0 at first), emb_linear, conv_res1, conv_skip where the widths differ, attn_qkv and attn_proj. Where
    `normalizes`, as in the encoder, the features of each pixel are normalised first, and the residual branch begins from what comes out.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        embedding: int,
        normalizes: bool,
        heads: int = 0,
        dropout: float = 0.0,
        resampling: Resampling = "none",
        name: str = "",
    ) -> None:
        super().__init__()
        self.normalizes, self.heads, self.dropout, self.resampling, self.name = normalizes, heads, dropout, resampling, name
        self.emb_gain = nn.Parameter(torch.zeros([]))
        self.conv_res0 = UnitConv2d(out_channels if normalizes else in_channels, out_channels, 3)
        self.emb_linear = UnitLinear(embedding, out_channels)
        self.conv_res1 = UnitConv2d(out_channels, out_channels, 3)
        self.conv_skip = UnitConv2d(in_channels, out_channels, 1) if in_channels != out_channels else None
        self.attn_qkv = UnitConv2d(out_channels, 3 * out_channels, 1) if heads else None
        self.attn_proj = UnitConv2d(out_channels, out_channels, 1) if heads else None

    def forward(self, x: Float[Tensor, "b c h w"], embedding: Float[Tensor, "b e"], rng: Rng | None = None) -> Float[Tensor, "b o _ _"]:
        """The block's output, within +-256. `rng` draws the dropout masks, in training."""
        match self.resampling:
            case "none":
                pass
            case "down":
                x = halved(x)
            case "up":
                x = enlarged(x)
        if self.normalizes:
            x = unit(self._skip(x), dims=(1,))
        h = self.conv_res0(F.silu(x), 1 / SILU_RMS)  # its filters have the factor of mp_silu
        with torch.autocast(x.device.type, enabled=False):
            scale = self.emb_linear(embedding, self.emb_gain) + 1
        h = self._dropped(F.silu(h * scale[:, :, None, None].to(h.dtype)), rng)
        x = mp_sum_with(x if self.normalizes else self._skip(x), self.conv_res1, h, t=_RESIDUAL_BALANCE, gain=1 / SILU_RMS)
        return self._attended(x).clamp(-_LARGEST, _LARGEST)

    def _skip(self, x: Tensor) -> Tensor:
        return x if self.conv_skip is None else self.conv_skip(x)

    def _dropped(self, h: Tensor, rng: Rng | None) -> Tensor:
        keep = kept(self, h, rng)
        return h if keep is None else h * keep / (1 - self.dropout)

    def _attended(self, x: Tensor) -> Tensor:
        """With what each pixel takes from all others: softmax(q k / sqrt(d)) v of q, k and v that have the length sqrt(d)."""
        if self.attn_qkv is None or self.attn_proj is None:
            return x
        b, c, h, w = x.shape
        # The rows of attn_qkv are counted (head, channel, which of the three).
        rows = self.attn_qkv(x).permute(0, 2, 3, 1).reshape(b, h * w, self.heads, c // self.heads, 3)
        q, k, v = (unit(part, dims=(3,)).transpose(1, 2) for part in rows.unbind(4))
        mixed = attend(q, k, v).transpose(1, 2).reshape(b, h, w, c).permute(0, 3, 1, 2)
        return mp_sum_with(x, self.attn_proj, mixed, t=_ATTENTION_BALANCE)


class EDM2UNet(nn.Module):
    """F(x, t, y); an untrained one gives exactly 0, for `out_gain` is 0.

    Keys emb_fourier, emb_noise, emb_label, enc.{R}x{R}_{conv, down, block0, ...}, dec.{R}x{R}_{in0, in1, up, block0, ...}, out_conv and
    out_gain. The embedding is as wide as the widest level.
    """

    def __init__(self, network: EDM2NetworkConfig, *, image_size: int, channels: int, num_labels: int | None = None) -> None:
        super().__init__()
        network.check(image_size)
        self.config, self.image_size, self.channels, self.num_labels = network, image_size, channels, num_labels
        widths = [mult * network.num_channels for mult in network.channel_mult]
        self.embedding = max(widths)
        self.emb_fourier = UnitFourier(widths[0])
        self.emb_noise = UnitLinear(widths[0], self.embedding)
        self.emb_label = None if num_labels is None else UnitLinear(num_labels, self.embedding)
        skips: list[int] = []
        self.masks: list[str] = []
        self.enc = nn.ModuleDict(dict(self._encoder(widths, skips)))
        self.dec = nn.ModuleDict(dict(self._decoder(widths, skips)))
        self.out_conv = UnitConv2d(widths[0], channels, 3)
        self.out_gain = nn.Parameter(torch.zeros([]))
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] (missing in its overloads)

    def _encoder(self, widths: list[int], skips: list[int]) -> Iterator[tuple[str, nn.Module]]:
        """The parts with their names, pushing the width of each one's output on `skips`."""
        before = widths[0]
        for level, width in enumerate(widths):
            side = self.image_size // 2**level
            if level == 0:
                # One channel more is of ones, in place of a bias.
                yield f"{side}x{side}_conv", UnitConv2d(self.channels + 1, width, 3)
            else:
                yield self._block(f"{side}x{side}_down", before, before, normalizes=True, resampling="down")
            skips.append(before)
            for block in range(self.config.num_blocks):
                attends = side in self.config.attention_resolutions
                yield self._block(f"{side}x{side}_block{block}", before, width, normalizes=True, attends=attends)
                skips.append(width)
                before = width

    def _decoder(self, widths: list[int], skips: list[int]) -> Iterator[tuple[str, nn.Module]]:
        """The parts with their names, popping the widths of what joins them from `skips`."""
        before = widths[-1]
        for level, width in reversed(list(enumerate(widths))):
            side = self.image_size // 2**level
            if level == len(widths) - 1:
                yield self._block(f"{side}x{side}_in0", width, width, attends=True)
                yield self._block(f"{side}x{side}_in1", width, width)
            else:
                yield self._block(f"{side}x{side}_up", before, before, resampling="up")
            for block in range(self.config.num_blocks + 1):
                attends = side in self.config.attention_resolutions
                yield self._block(f"{side}x{side}_block{block}", before + skips.pop(), width, attends=attends)
                before = width

    def _block(
        self,
        name: str,
        in_channels: int,
        out_channels: int,
        *,
        normalizes: bool = False,
        attends: bool = False,
        resampling: Resampling = "none",
    ) -> tuple[str, EDM2Block]:
        heads = out_channels // self.config.num_head_channels if attends else 0
        full_name = f"{'enc' if normalizes else 'dec'}.{name}"
        self.masks += [mask_name(full_name)] if self.config.dropout else []
        return name, EDM2Block(
            in_channels,
            out_channels,
            embedding=self.embedding,
            normalizes=normalizes,
            heads=heads,
            dropout=self.config.dropout,
            resampling=resampling,
            name=full_name,
        )

    def forward(
        self, x: Float[Tensor, "b c h w"], t: Float[Tensor, " b"], labels: Int[Tensor, " b"] | None = None, rng: Rng | None = None
    ) -> Float[Tensor, "b c h w"]:
        """The output for images of variance 1 at the noise levels t = ln(sigma) / 4.

        `labels` are given exactly when the network has classes; a sample whose label is NO_LABEL has none. `rng` draws the dropout masks
        in training mode.
        """
        embedding, rng = self._embed(t, labels), masks_ahead(self, rng)
        h, skips = torch.cat((x, torch.ones_like(x[:, :1])), dim=1).contiguous(memory_format=torch.channels_last), []
        for part in self.enc.values():
            h = self._run(part, h, embedding, rng) if isinstance(part, EDM2Block) else part(h)
            skips.append(h)
        for name, part in self.dec.items():
            h = self._run(part, mp_cat(h, skips.pop()) if "_block" in name else h, embedding, rng)
        with torch.autocast(x.device.type, enabled=False):
            return self.out_conv(h.to(x.dtype), self.out_gain)

    def _embed(self, t: Tensor, labels: Tensor | None) -> Tensor:
        """The embedding of noise level and class, which all blocks share: (b, embedding), without autocast."""
        if (labels is not None) != (self.emb_label is not None):
            raise ValueError("labels must be given exactly when the network has classes")
        with torch.autocast(t.device.type, enabled=False):
            embedding = self.emb_noise(self.emb_fourier(t))
            if labels is not None:
                assert self.emb_label is not None and self.num_labels is not None
                hot = F.one_hot(labels.clamp(min=0), self.num_labels) * (labels != NO_LABEL)[:, None]
                told = self.emb_label(hot.to(embedding.dtype) * math.sqrt(self.num_labels))
                embedding = mp_sum(embedding, told, t=_LABEL_BALANCE)
            return mp_silu(embedding)

    def _run(self, block: nn.Module, x: Tensor, embedding: Tensor, rng: Rng | None) -> Tensor:
        # Nothing inside draws from a global generator: the masks are recomputed from rng.
        return recomputed(block, x, embedding, rng, when=self.config.checkpoint)


class EDM2Network(nn.Module):
    """The U-Net (key unet), and the uncertainty u of the loss at a noise level (keys logvar_fourier, logvar_linear)."""

    def __init__(self, network: EDM2NetworkConfig, *, image_size: int, channels: int, num_labels: int | None = None) -> None:
        super().__init__()
        self.unet = EDM2UNet(network, image_size=image_size, channels=channels, num_labels=num_labels)
        self.logvar_fourier = UnitFourier(_UNCERTAINTY_FEATURES)
        self.logvar_linear = UnitLinear(_UNCERTAINTY_FEATURES, 1)

    def forward(
        self, x: Float[Tensor, "b c h w"], t: Float[Tensor, " b"], labels: Int[Tensor, " b"] | None = None, rng: Rng | None = None
    ) -> Float[Tensor, "b c h w"]:
        """See `EDM2UNet.forward`."""
        return self.unet(x, t, labels, rng)

    def uncertainty(self, t: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
        """u at the noise levels t = ln(sigma) / 4: the logarithm of the weighted loss that is expected there."""
        with torch.autocast(t.device.type, enabled=False):
            return self.logvar_linear(self.logvar_fourier(t)).squeeze(1)
