"""EfficientNet-Lite0: the smallest EfficientNet without squeeze-and-excitation, with ReLU6. Tan and Le 2019, https://arxiv.org/abs/1905.11946.

Keys: _conv_stem, _bn0; _blocks.N with _expand_conv, _bn0, _depthwise_conv, _bn1, _project_conv, _bn2; _conv_head, _bn1.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from triptych.nn.frozen import Layers, Operations, bordered

_STAGES = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192), (1, 3, 1, 6, 320))
"""Table 1 of the paper: blocks, kernel, stride of the first, expansion, channels."""


def efficientnet_lite0(net: Operations, x: Tensor) -> Layers:
    """What the seven stages give, "stage_1" to "stage_7", and the features, (b, 1280)."""
    x = F.relu6(_normed(net, net.conv(bordered(x, 3, stride=2), "_conv_stem", 32, 3, stride=2, bias=False), "_bn0"))
    index = 0
    for stage, (blocks, kernel, stride, expansion, channels) in enumerate(_STAGES, start=1):
        for block in range(blocks):
            x = _block(net, x, f"_blocks.{index}", channels, kernel, stride=stride if block == 0 else 1, expansion=expansion)
            index += 1
        yield f"stage_{stage}", x
    x = F.relu6(_normed(net, net.conv(x, "_conv_head", 1280, 1, bias=False), "_bn1"))
    yield "features", x.mean((2, 3))


def _block(net: Operations, x: Tensor, name: str, channels: int, kernel: int, *, stride: int, expansion: int) -> Tensor:
    """An inverted residual: wider, a convolution of each channel alone, narrower."""
    before, wide = x, expansion * x.shape[1]
    if expansion > 1:
        x = F.relu6(_normed(net, net.conv(x, f"{name}._expand_conv", wide, 1, bias=False), f"{name}._bn0"))
    x = net.conv(bordered(x, kernel, stride=stride), f"{name}._depthwise_conv", wide, kernel, stride=stride, groups=wide, bias=False)
    x = F.relu6(_normed(net, x, f"{name}._bn1"))
    x = _normed(net, net.conv(x, f"{name}._project_conv", channels, 1, bias=False), f"{name}._bn2")
    return x + before if x.shape == before.shape else x


def _normed(net: Operations, x: Tensor, name: str) -> Tensor:
    return net.norm(x, name, eps=1e-3)
