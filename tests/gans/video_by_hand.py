"""Parts of networks of frames written out by the names of their weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


class Parts:
    """Convolutions, norms, blocks and embeddings of two halvings."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        self.state = state

    def conv(self, name: str, x: Tensor, *, stride: int = 1) -> Tensor:
        weight = self.state[f"{name}.layers.conv.weight"]
        return F.conv2d(x, weight, self.state[f"{name}.layers.conv.bias"], stride=stride, padding=weight.shape[2] // 2)

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.instance_norm(x, weight=self.state[f"{name}.layers.norm.weight"], bias=self.state[f"{name}.layers.norm.bias"])

    def spade(self, name: str, x: Tensor, maps: Sequence[Tensor | None]) -> Tensor:
        out = F.instance_norm(x)
        for n, seen in enumerate(maps):
            if seen is None:
                continue
            small, mlp = F.interpolate(seen, size=x.shape[2:], mode="nearest"), f"{name}.layers.norm.mlps.{n}"
            if f"{mlp}.1.layers.conv.bias" in self.state:
                gamma, beta = self.conv(f"{mlp}.1", F.relu(self.conv(f"{mlp}.0", small))).chunk(2, dim=1)
            else:
                gamma, beta = self.conv(f"{mlp}.0", small).chunk(2, dim=1)
            out = out * (1 + gamma) + beta
        return out

    def block(self, name: str, x: Tensor, maps: Sequence[Tensor | None]) -> Tensor:
        y = x
        for part in ("conv_block_0", "conv_block_1"):
            y = self.conv(f"{name}.{part}", F.leaky_relu(self.spade(f"{name}.{part}", y, maps), 0.2))
        if f"{name}.conv_block_s.layers.conv.bias" in self.state:
            x = self.conv(f"{name}.conv_block_s", self.spade(f"{name}.conv_block_s", x, maps))
        return x + y

    def embedded(self, name: str, x: Tensor, *, skips: bool) -> list[Tensor]:
        e = [F.leaky_relu(self.conv(f"{name}.conv_first", x), 0.2)]
        for i in (0, 1):
            e.append(F.leaky_relu(self.conv(f"{name}.down_{i}", e[-1], stride=2), 0.2))
        y2 = e[2]
        y1 = F.leaky_relu(self.conv(f"{name}.up_1", up(y2)), 0.2)
        y0 = F.leaky_relu(self.conv(f"{name}.up_0", up(torch.cat((y1, e[1]), 1) if skips else y1)), 0.2)
        return [y0, y1, y2]


def up(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, 2).repeat_interleave(2, 3)
