"""The blocks of ADM's U-Net (Dhariwal and Nichol 2021, arXiv 2105.05233): embedding of time, residual block, self-attention."""

from __future__ import annotations

import math
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from triptych.core.rng import Rng
from triptych.diffusion.dropout import kept
from triptych.diffusion.norm import ModulatedGroupNorm, Modulation
from triptych.nn.convolution import FastConv2d, fast_convolution
from triptych.nn.enlarging import convolved_enlarged
from triptych.nn.linear import Linear
from triptych.nn.resample import enlarged, halved

AttentionOrder = Literal["legacy", "new"]
Resampling = Literal["none", "up", "down"]
M = TypeVar("M", bound=nn.Module)


def zeroed(module: M) -> M:
    """The module, all its parameters 0."""
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module


def timestep_embedding(t: Shaped[Tensor, " b"], channels: int) -> Float[Tensor, "b {channels}"]:
    """Of a scalar: cos(t f_i) and then sin(t f_i), f_i = 10000^(-i / half), i < half = channels // 2; a 0 more when `channels` is odd.

    In the type of `t`, PyTorch's default one for integers, and at least float32.
    """
    half = channels // 2
    dtype = torch.promote_types(t.dtype if t.is_floating_point() else torch.get_default_dtype(), torch.float32)
    frequencies = torch.exp(torch.arange(half, dtype=dtype, device=t.device) * (-math.log(10_000) / half))
    angles = t.to(dtype)[:, None] * frequencies
    return F.pad(torch.cat((angles.cos(), angles.sin()), dim=1), (0, channels % 2))


class ResBlock(nn.Module):
    """skip(x) + conv(dropout(silu(norm(conv(silu(norm(x)))) modulated by the embedding))); the last convolution is 0 at first.

    The embedding scales and shifts the second norm's output (`scale_shift`), or is added before that norm. Parameters are named
    in_layers.{0,2}, emb_layers.1, out_layers.{0,3} and skip_connection, as in guided-diffusion's files.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        embedding: int,
        scale_shift: bool,
        dropout: float = 0.0,
        resampling: Resampling = "none",
        name: str = "",
    ) -> None:
        super().__init__()
        self.dropout, self.scale_shift, self.resampling, self.name = dropout, scale_shift, resampling, name
        self.in_layers = nn.ModuleDict({"0": ModulatedGroupNorm(in_channels), "2": FastConv2d(in_channels, out_channels, 3, padding=1)})
        self.emb_layers = nn.ModuleDict({"1": Linear(embedding, (2 if scale_shift else 1) * out_channels)})
        last = zeroed(FastConv2d(out_channels, out_channels, 3, padding=1))
        self.out_layers = nn.ModuleDict({"0": ModulatedGroupNorm(out_channels), "3": last})
        self.skip_connection = nn.Identity() if in_channels == out_channels else FastConv2d(in_channels, out_channels, 1)

    def forward(self, x: Float[Tensor, "b c h w"], embedding: Float[Tensor, "b e"], rng: Rng | None = None) -> Float[Tensor, "b o _ _"]:
        """The block's output. `embedding`: after its SiLU, which all blocks share. `rng` draws the dropout masks, in training."""
        h, first = self.in_layers["0"](x, Modulation(silu=True)), self.in_layers["2"]
        match self.resampling:
            case "none":
                h = first(h)
            case "down":
                h, x = first(halved(h)), halved(x)
            case "up":
                assert isinstance(first, nn.Conv2d)
                h, x = convolved_enlarged(h, first.weight, first.bias), enlarged(x)
        with torch.autocast(x.device.type, enabled=False):
            modulation = self.emb_layers["1"](embedding)
        scale, shift = modulation.chunk(2, dim=1) if self.scale_shift else (None, None)
        if not self.scale_shift:
            h = h + modulation[:, :, None, None].to(h.dtype)
        keep = kept(self, h, rng)
        h = self.out_layers["0"](h, Modulation(scale=scale, shift=shift, silu=True, keep=keep, gain=1 / (1 - self.dropout)))
        return self.skip_connection(x) + self.out_layers["3"](h)


def attend(
    q: Float[Tensor, "b heads asked c"], k: Float[Tensor, "b heads tokens c"], v: Float[Tensor, "b heads tokens c"]
) -> Float[Tensor, "b heads asked c"]:
    """softmax(q k^T / sqrt(c)) v; the softmax is computed in float32.

    PyTorch's fused kernel, but for half precision on a CPU, where it is three times slower than matrix products.
    """
    if q.device.type != "cpu" or q.dtype not in (torch.bfloat16, torch.float16):
        return F.scaled_dot_product_attention(q, k, v)
    with torch.autocast("cpu", enabled=False):
        scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2))
        return torch.matmul(scores.softmax(-1), v)  # a CPU's half-precision softmax works in float32 and rounds at its end


class SelfAttention(nn.Module):
    """x + projection(attention(norm(x))); keys norm, qkv [3c, c, 1] and proj_out [c, c, 1], the latter 0 at first.

    `order` is how the rows of qkv are counted: (heads, 3, channels) in "legacy", (3, heads, channels) in "new".
    """

    def __init__(self, channels: int, *, heads: int, order: AttentionOrder) -> None:
        super().__init__()
        self.heads, self.order = heads, order
        self.norm = ModulatedGroupNorm(channels)
        self.qkv = nn.Conv1d(channels, 3 * channels, 1)
        self.proj_out = zeroed(nn.Conv1d(channels, channels, 1))

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """The feature map, attended to."""
        b, c, h, w = x.shape
        qkv = _pointwise(self.norm(x), self.qkv).permute(0, 2, 3, 1)
        if self.order == "legacy":
            q, k, v = qkv.reshape(b, h * w, self.heads, 3, c // self.heads).unbind(3)
        else:
            q, k, v = qkv.reshape(b, h * w, 3, self.heads, c // self.heads).unbind(2)
        mixed = attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2).reshape(b, h, w, c)
        return x + _pointwise(mixed.permute(0, 3, 1, 2), self.proj_out)


def _pointwise(x: Tensor, layer: nn.Conv1d) -> Tensor:
    """The layer at every pixel of (b, c, h, w). As a convolution: a CPU's matrix product may run at half its speed (MKL on AMD does)."""
    # Squeezed and not only unsqueezed, so that the gradient has the strides of the weight: DDP warns of others.
    return fast_convolution(x, layer.weight.squeeze(2)[..., None, None], layer.bias)


def split_rows(qkv: Tensor, *, heads: int, order: AttentionOrder) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of the queries, keys and values, each (channels, ...) and counted (heads, channels of a head)."""
    channels = len(qkv) // 3
    if order == "legacy":
        parts = qkv.reshape(heads, 3, channels // heads, *qkv.shape[1:]).transpose(0, 1)
    else:
        parts = qkv.reshape(3, heads, channels // heads, *qkv.shape[1:])
    q, k, v = parts.reshape(3, channels, *qkv.shape[1:]).unbind(0)
    return q, k, v


def legacy_rows(qkv: Tensor, *, heads: int, order: AttentionOrder) -> Tensor:
    """The rows (3 channels, ...) in the legacy order."""
    parts = torch.stack(split_rows(qkv, heads=heads, order=order))
    return parts.reshape(3, heads, -1, *qkv.shape[1:]).transpose(0, 1).reshape(qkv.shape)
