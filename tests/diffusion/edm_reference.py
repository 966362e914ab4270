"""EDM's networks as plain functions of a file's tensors, from the published formulas: nothing here knows of our networks.

Names are those of the files: map_*, enc.*, dec.*, out_* (without the "model." before them). Blocks are run in the order of the names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

State = Mapping[str, Tensor]


def layer(state: State, name: str, x: Tensor) -> Tensor:
    """A linear layer, or a convolution that keeps the size."""
    weight, bias = state[f"{name}.weight"], state.get(f"{name}.bias")
    return F.linear(x, weight, bias) if weight.ndim == 2 else F.conv2d(x, weight, bias, padding=weight.shape[2] // 2)


def norm(state: State, name: str, x: Tensor, eps: float) -> Tensor:
    """Group normalisation by its definition."""
    b, c, h, w = x.shape
    groups = x.reshape(b, min(32, c // 4), -1)
    deviation = groups - groups.mean(2, keepdim=True)
    normal = (deviation / (deviation.square().mean(2, keepdim=True) + eps).sqrt()).reshape(b, c, h, w)
    return normal * state[f"{name}.weight"][:, None, None] + state[f"{name}.bias"][:, None, None]


def resampled(x: Tensor, taps: Sequence[float], *, up: bool) -> Tensor:
    """Zeros between the pixels and the filter, four times as strong; or the filter and every second pixel. Beyond the border is 0."""
    line = torch.tensor(taps, dtype=x.dtype) / sum(taps)
    kernel = line.outer(line)
    b, c, h, w = x.shape
    pad = (len(taps) - 1) // 2
    if up:
        spread = x.new_zeros(b, c, 2 * h, 2 * w)
        spread[:, :, ::2, ::2] = x
        before = len(taps) - 1 - pad
        spread = F.pad(spread, (before, pad, before, pad))
        return F.conv2d(spread.flatten(0, 1)[:, None], 4 * kernel.flip(0, 1)[None, None]).view(b, c, 2 * h, 2 * w)
    padded = F.pad(x, (pad, pad, pad, pad))
    return F.conv2d(padded.flatten(0, 1)[:, None], kernel[None, None])[:, 0, ::2, ::2].reshape(b, c, h // 2, w // 2)


def attention(state: State, name: str, x: Tensor, normal: Tensor, heads: int) -> Tensor:
    """proj of softmax(q k / sqrt(d)) v; channels of qkv are (head, channel, q/k/v)."""
    b, c, h, w = x.shape
    qkv = layer(state, f"{name}.qkv", normal).reshape(b, heads, c // heads, 3, h * w)
    q, k, v = (qkv[:, :, :, part] for part in range(3))
    weights = torch.einsum("bhcq,bhck->bhqk", q, k / math.sqrt(c // heads)).softmax(3)
    return layer(state, f"{name}.proj", torch.einsum("bhqk,bhck->bhcq", weights, v).reshape(b, c, h, w))


def block(
    state: State,
    name: str,
    x: Tensor,
    embedding: Tensor,
    *,
    taps: Sequence[float],
    eps: float,
    scale: float,
    shifts: bool,
    width: int | None,
) -> Tensor:
    """A residual block. `shifts`: the embedding scales and shifts; `width`: channels of a head, None for one head."""
    way = True if name.endswith("_up") else False if name.endswith("_down") else None
    around, y = x, F.silu(norm(state, f"{name}.norm0", x, eps))
    if way is not None:
        around, y = resampled(around, taps, up=way), resampled(y, taps, up=way)
    y = layer(state, f"{name}.conv0", y)
    told = layer(state, f"{name}.affine", embedding)[:, :, None, None]
    if shifts:
        factor, shift = told.chunk(2, dim=1)
        y = norm(state, f"{name}.norm1", y, eps) * (1 + factor) + shift
    else:
        y = norm(state, f"{name}.norm1", y + told, eps)
    y = layer(state, f"{name}.conv1", F.silu(y))
    if f"{name}.skip.weight" in state:
        around = layer(state, f"{name}.skip", around)
    y = (y + around) * scale
    if f"{name}.qkv.weight" in state:
        heads = 1 if width is None else y.shape[1] // width
        y = (y + attention(state, name, y, norm(state, f"{name}.norm2", y, eps), heads)) * scale
    return y


def names(state: State, part: str) -> list[str]:
    """The layers of "enc" or "dec" in the order of the file."""
    return list(dict.fromkeys(".".join(key.split(".")[:2]) for key in state if key.startswith(f"{part}.")))


def told(state: State, name: str, values: Tensor | None) -> Tensor | float:
    return 0.0 if values is None or f"{name}.weight" not in state else layer(state, name, values)


def song_unet(
    state: State, x: Tensor, t: Tensor, *, one_hot: Tensor | None = None, augment: Tensor | None = None, taps: Sequence[float] = (1, 1)
) -> Tensor:
    """DDPM++, or NCSN++ where the file has frequencies of noise."""
    half = state["map_layer0.weight"].shape[1] // 2
    if "map_noise.freqs" in state:
        angles = 2 * math.pi * t.outer(state["map_noise.freqs"])
    else:
        angles = t.outer(torch.tensor([10_000 ** (-i / (half - 1)) for i in range(half)], dtype=t.dtype))
    waves = torch.cat([angles.sin(), angles.cos()], 1)
    if one_hot is not None:
        waves = waves + told(state, "map_label", one_hot * math.sqrt(one_hot.shape[1]))
    waves = waves + told(state, "map_augment", augment)
    embedding = F.silu(layer(state, "map_layer1", F.silu(layer(state, "map_layer0", waves))))

    def run(name: str, x: Tensor) -> Tensor:
        return block(state, name, x, embedding, taps=taps, eps=1e-6, scale=math.sqrt(0.5), shifts=False, width=None)

    skips, image = [], x
    for name in names(state, "enc"):
        if name.endswith("_conv"):
            x = layer(state, name, x)
        elif name.endswith("_aux_residual"):
            wide = F.conv2d(image, state[f"{name}.weight"], state[f"{name}.bias"], padding=1 + (len(taps) - 1) // 2)
            line = torch.tensor(taps, dtype=x.dtype) / sum(taps)
            kernel = line.outer(line).expand(wide.shape[1], 1, -1, -1)
            x = image = (x + F.conv2d(wide, kernel, stride=2, groups=wide.shape[1])) / math.sqrt(2)
            skips.pop()
        else:
            x = run(name, x)
        skips.append(x)
    *blocks, last, conv = names(state, "dec")
    for name in blocks:
        x = run(name, torch.cat([x, skips.pop()], 1) if "_block" in name else x)
    return layer(state, conv, F.silu(norm(state, last, x, 1e-6)))


def adm_unet(
    state: State, x: Tensor, t: Tensor, *, one_hot: Tensor | None = None, augment: Tensor | None = None, width: int = 64
) -> Tensor:
    """ADM's network as EDM has it."""
    half = state["map_layer0.weight"].shape[1] // 2
    angles = t.outer(torch.tensor([10_000 ** (-i / half) for i in range(half)], dtype=t.dtype))
    waves = torch.cat([angles.cos(), angles.sin()], 1) + told(state, "map_augment", augment)
    embedding = F.silu(layer(state, "map_layer1", F.silu(layer(state, "map_layer0", waves))) + told(state, "map_label", one_hot))
    skips = []
    for name in names(state, "enc"):
        x = (
            layer(state, name, x)
            if name.endswith("_conv")
            else block(state, name, x, embedding, taps=(1, 1), eps=1e-5, scale=1.0, shifts=True, width=width)
        )
        skips.append(x)
    for name in names(state, "dec"):
        x = torch.cat([x, skips.pop()], 1) if "_block" in name else x
        x = block(state, name, x, embedding, taps=(1, 1), eps=1e-5, scale=1.0, shifts=True, width=width)
    return layer(state, "out_conv", F.silu(norm(state, "out_norm", x, 1e-5)))


def denoised(network: Tensor, x: Tensor, sigma: Tensor, *, sigma_data: float = 0.5) -> Tensor:
    """D(x; sigma) from F(c_in x, c_noise)."""
    total = sigma**2 + sigma_data**2
    return sigma_data**2 / total * x + sigma * sigma_data / total.sqrt() * network
