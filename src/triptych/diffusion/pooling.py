"""The four ways from an encoder's feature maps to class logits.

Dhariwal and Nichol 2021, arXiv 2105.05233: attention pooling, which the published classifiers have, is that of CLIP (Radford et al.
2021, arXiv 2103.00020). A head takes the output (b, c, h, w) of every block, last the middle one, and gives the logits (b, classes);
it works in float32 and is called outside of autocast. Its parameters have the keys of guided-diffusion's `out`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from triptych.core.errors import ConfigError
from triptych.diffusion.blocks import attend, zeroed
from triptych.diffusion.norm import ModulatedGroupNorm, Modulation
from triptych.diffusion.unet import Levels
from triptych.nn.linear import Linear, linear
from triptych.nn.precision import widened

Pool = Literal["attention", "adaptive", "spatial", "spatial_v2"]

_HIDDEN = 2048
_SILU = Modulation(silu=True)


class AttentionPool(nn.Module):
    """The answer of attention to one question, asked by the mean of all pixels; keys positional_embedding, qkv_proj and c_proj.

    The rows of qkv_proj are counted (3, heads, channels).
    """

    def __init__(self, channels: int, *, size: int, head_channels: int, out_channels: int) -> None:
        super().__init__()
        self.heads = channels // head_channels
        self.positional_embedding = nn.Parameter(torch.randn(channels, size**2 + 1).div_(channels**0.5))
        self.qkv_proj = nn.Conv1d(channels, 3 * channels, 1)
        self.c_proj = nn.Conv1d(channels, out_channels, 1)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b out"]:
        b, c = x.shape[:2]
        pixels = x.flatten(2)
        tokens = torch.cat((pixels.mean(-1, keepdim=True), pixels), dim=-1) + self.positional_embedding
        weight, bias = self.qkv_proj.weight.squeeze(-1), self.qkv_proj.bias
        assert bias is not None
        tokens = tokens.transpose(1, 2)
        q = linear(tokens[:, :1], weight[:c], bias[:c])  # the first token's answer is all that is used
        # The bias of the keys adds the same to all scores, which the softmax takes away: without it, its gradient is 0 and no noise.
        k = linear(tokens, weight[c : 2 * c])
        v = linear(tokens, weight[2 * c :], bias[2 * c :])
        q, k, v = (part.view(b, -1, self.heads, c // self.heads).transpose(1, 2) for part in (q, k, v))
        return linear(attend(q, k, v).reshape(b, c), self.c_proj.weight.squeeze(-1), self.c_proj.bias)


class AttentionHead(nn.ModuleDict):
    """AttentionPool of the normed last map."""

    def __init__(self, channels: int, *, size: int, head_channels: int, num_classes: int) -> None:
        pool = AttentionPool(channels, size=size, head_channels=head_channels, out_channels=num_classes)
        super().__init__({"0": ModulatedGroupNorm(channels), "2": pool})

    def forward(self, outputs: Sequence[Tensor]) -> Float[Tensor, "b classes"]:
        return self["2"](self["0"](widened(outputs[-1]), _SILU))


class AdaptiveHead(nn.ModuleDict):
    """A 1x1 convolution, 0 at first, of the mean of the normed last map."""

    def __init__(self, channels: int, *, num_classes: int) -> None:
        super().__init__({"0": ModulatedGroupNorm(channels), "3": zeroed(nn.Conv2d(channels, num_classes, 1))})

    def forward(self, outputs: Sequence[Tensor]) -> Float[Tensor, "b classes"]:
        mean = self["0"](widened(outputs[-1]), _SILU).mean((2, 3), keepdim=True)
        return self["3"](mean).flatten(1)


class SpatialHead(nn.ModuleDict):
    """Two layers with a ReLU between them on the means of all maps."""

    def __init__(self, features: int, *, num_classes: int) -> None:
        super().__init__({"0": Linear(features, _HIDDEN), "2": Linear(_HIDDEN, num_classes)})

    def forward(self, outputs: Sequence[Tensor]) -> Float[Tensor, "b classes"]:
        return self["2"](F.relu(self["0"](_means(outputs))))


class SpatialV2Head(nn.ModuleDict):
    """Two layers with a norm and a SiLU between them on the means of all maps."""

    def __init__(self, features: int, *, num_classes: int) -> None:
        super().__init__({"0": Linear(features, _HIDDEN), "1": ModulatedGroupNorm(_HIDDEN), "3": Linear(_HIDDEN, num_classes)})

    def forward(self, outputs: Sequence[Tensor]) -> Float[Tensor, "b classes"]:
        hidden = self["0"](_means(outputs))[:, :, None, None]
        return self["3"](self["1"](hidden, _SILU).flatten(1))


def _means(outputs: Sequence[Tensor]) -> Tensor:
    """The mean of every channel of every map: (b, features)."""
    return torch.cat([widened(output).mean((2, 3)) for output in outputs], dim=1)


def make_head(pool: Pool, levels: Levels, *, widths: Sequence[int], head_channels: int | None, num_classes: int) -> nn.Module:
    """The head after an encoder of those levels whose blocks have `widths` channels, last the middle one.

    Raises ConfigError, of the network's settings, where attention pooling cannot divide its channels into heads.
    """
    match pool:
        case "attention":
            if head_channels is None:
                raise ConfigError(
                    "num_head_channels",
                    f"got None, expected a divisor of {widths[-1]}, the width of the last level: attention pooling goes by it; "
                    "or choose another pool",
                )
            return AttentionHead(widths[-1], size=levels.sizes[-1], head_channels=head_channels, num_classes=num_classes)
        case "adaptive":
            return AdaptiveHead(widths[-1], num_classes=num_classes)
        case "spatial":
            return SpatialHead(sum(widths), num_classes=num_classes)
        case "spatial_v2":
            return SpatialV2Head(sum(widths), num_classes=num_classes)
