"""Self-attention over the pixels of a feature map."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from triptych.diffusion.init import zeroed
from triptych.diffusion.norm import GroupNorm

AttentionOrder = Literal["legacy", "new"]


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
        self.norm = GroupNorm(channels)
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
    return F.conv2d(x, layer.weight[..., None], layer.bias)
