"""The vision transformers (Dosovitskiy et al. 2020, arXiv 2010.11929) of DINOv2 (Oquab et al. 2023, https://arxiv.org/abs/2304.07193).

Keys are those of the published files: cls_token, pos_embed, patch_embed.proj; blocks.N with norm1, attn.qkv, attn.proj, ls1.gamma, norm2,
mlp.fc1, mlp.fc2, ls2.gamma; norm.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from triptych.nn.frozen import Layers, Operations

_PATCH = 14  # pixels
_EPS = 1e-6


def dinov2(width: int, depth: int, heads: int, net: Operations, x: Tensor, *, trained: int = 37) -> Layers:
    """The class token after the last norm, (b, width). `trained`: patches along a side of the images that the network was trained on."""
    x = net.conv(x, "patch_embed.proj", width, _PATCH, stride=_PATCH)
    rows, columns = x.shape[2:]
    x = x.flatten(2).transpose(1, 2)
    x = torch.cat((net.take("cls_token", (1, 1, width)).expand(len(x), -1, -1), x), dim=1)
    x = x + _positions(net.take("pos_embed", (1, 1 + trained**2, width)), rows, columns)
    for index in range(depth):
        name = f"blocks.{index}"
        x = x + net.take(f"{name}.ls1.gamma", (width,)) * _attention(net, _normed(net, x, f"{name}.norm1"), f"{name}.attn", heads)
        hidden = F.gelu(net.linear(_normed(net, x, f"{name}.norm2"), f"{name}.mlp.fc1", 4 * width))
        x = x + net.take(f"{name}.ls2.gamma", (width,)) * net.linear(hidden, f"{name}.mlp.fc2", width)
    yield "features", _normed(net, x[:, 0], "norm")


def _attention(net: Operations, x: Tensor, name: str, heads: int) -> Tensor:
    width = x.shape[2]
    q, k, v = net.linear(x, f"{name}.qkv", 3 * width).unflatten(2, (3, heads, width // heads)).permute(2, 0, 3, 1, 4)
    return net.linear(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2), f"{name}.proj", width)


def _normed(net: Operations, x: Tensor, name: str) -> Tensor:
    """Layer norm of the last axis."""
    size = (x.shape[-1],)
    return F.layer_norm(x, size, net.take(f"{name}.weight", size), net.take(f"{name}.bias", size), _EPS)


def _positions(embedded: Float[Tensor, "1 n d"], rows: int, columns: int) -> Float[Tensor, "1 m d"]:
    """The embeddings of the class token and of rows · columns patches, interpolated from the square of those that were trained."""
    side = math.isqrt(embedded.shape[1] - 1)
    if rows == columns == side:
        return embedded
    grid = embedded[:, 1:].unflatten(1, (side, side)).permute(0, 3, 1, 2)
    # DINOv2 adds a tenth to the size, so that the product with the scale is not rounded down, and samples by that scale.
    scale = (rows + 0.1) / side, (columns + 0.1) / side
    grid = F.interpolate(grid, scale_factor=scale, mode="bicubic", align_corners=False)
    return torch.cat((embedded[:, :1], grid.flatten(2).transpose(1, 2)), dim=1)
