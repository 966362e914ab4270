"""RAFT: optical flow by a network that looks the same pair of images up again and again.

"RAFT: Recurrent All-Pairs Field Transforms for Optical Flow", Teed and Deng 2020, https://arxiv.org/abs/2003.12039. Its tensors have the
names of torchvision's raft_large and raft_small, and come from a file that the user has.

With features F_1, F_2 of both images at 1/8 of their size, C(p, q) = F_1(p) F_2(q) / sqrt(channels) says how alike all their places are.
Starting from no motion, a recurrent network is shown C around where each place of the first image seems to be in the second one, and says
how that is to change. A flow f(p) = (x, y) is in pixels and leads from a pixel p of the first image to its place in the second.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from triptych.core.config import Config, config
from triptych.nn.frozen import FrozenNetwork, Layers, Operations, traced
from triptych.nn.precision import widened

RaftName = Literal["raft_large", "raft_small"]
LEAST_SIDE = 128
"""Pixels: a smaller image has no place left at the coarsest of the levels."""
STRIDE = 8
"""The network sees whole squares of so many pixels."""
_LEVELS = 4
_UPDATES = 12


@config
class RaftConfig(Config):
    """RAFT's flow."""

    changeable: ClassVar = frozenset(("weights",))

    network: RaftName = "raft_large"
    "The network: raft_large, 5.3M parameters, or raft_small, 1.0M."
    weights: str | None = None
    "File of its weights (.pth or .safetensors), with the names of torchvision. None: RAFT is not used."


@dataclass(frozen=True)
class _Sizes:
    """What the two networks differ in."""

    widths: tuple[int, int, int, int, int]
    "Channels of the encoders: at the start, of their three layers, of what comes out of the first one's."
    bottleneck: bool
    "Whether a block narrows to a quarter and widens again, or is two convolutions."
    hidden: int
    context: int
    context_norm: bool
    radius: int
    "Places around the present one, each way, at which C is looked up."
    correlation: tuple[int, ...]
    flow: tuple[int, int]
    motion: int
    recurrent: tuple[tuple[int, int], ...]
    "Kernels of the gated units, one after the other."
    head: int
    mask: bool
    "Whether the network says how the flow is enlarged."


_SIZES: Mapping[RaftName, _Sizes] = {
    "raft_large": _Sizes(
        widths=(64, 64, 96, 128, 256),
        bottleneck=False,
        hidden=128,
        context=128,
        context_norm=True,
        radius=4,
        correlation=(256, 192),
        flow=(128, 64),
        motion=126,
        recurrent=((1, 5), (5, 1)),
        head=256,
        mask=True,
    ),
    "raft_small": _Sizes(
        widths=(32, 32, 64, 96, 128),
        bottleneck=True,
        hidden=96,
        context=64,
        context_norm=False,
        radius=3,
        correlation=(96,),
        flow=(64, 32),
        motion=80,
        recurrent=((3, 3),),
        head=128,
        mask=False,
    ),
}


class Raft(FrozenNetwork):
    """RAFT with weights of a file, which is no part of a checkpoint. `load` comes before the first call."""

    def __init__(self, name: RaftName, *, updates: int = _UPDATES) -> None:
        """`updates`: how often the flow is improved."""
        super().__init__(partial(_run, _SIZES[name], updates), ("flow",))
        self.name: RaftName = name

    def load(self, weights: Mapping[str, Tensor], *, source: str = "the weights") -> None:
        """Takes the tensors of a file, which messages call `source`; raises CheckpointError where they are not this network's."""
        self.take_tensors(weights, required_tensors(self.name), source=f"{source}, as those of {self.name}")

    @torch.no_grad()
    def forward(self, target: Float[Tensor, "b c h w"], source: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 2 h w"]:
        """The flow from each pixel of images in [-1, 1], grey or RGB, to where it is in the source.

        Images are resized to sides of at least 128 that are multiples of 8, and the flow back.
        """
        size = target.shape[2:]
        sides = tuple(max(LEAST_SIDE, STRIDE * round(side / STRIDE)) for side in size)
        with torch.autocast(target.device.type, enabled=False):
            pair = torch.cat([widened(image).expand(-1, 3, -1, -1) for image in (target, source)], dim=1)
            if sides != size:
                pair = F.interpolate(pair, size=sides, mode="bilinear", align_corners=False)
            flow = self.found(pair)["flow"]
            if sides == size:
                return flow
            factors = flow.new_tensor([size[1] / sides[1], size[0] / sides[0]])[:, None, None]
            return F.interpolate(flow, size=tuple(size), mode="bilinear", align_corners=False) * factors


@functools.cache
def required_tensors(name: RaftName) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors, by name, that the network needs."""
    return traced(partial(_run, _SIZES[name], 1), None, (6, LEAST_SIDE, LEAST_SIDE))[0]


def _run(sizes: _Sizes, updates: int, net: Operations, pair: Tensor) -> Layers:
    """The flow of pairs (b, 6, h, w), six channels being the first image and the second one."""
    first, second = pair.split(3, dim=1)
    features = _encoded(sizes, net, torch.cat((first, second)), "feature_encoder", channels=sizes.widths[-1])
    levels = _similarities(*features.chunk(2))
    told = _encoded(sizes, net, first, "context_encoder", channels=sizes.hidden + sizes.context)
    hidden, context = told[:, : sizes.hidden].tanh(), F.relu(told[:, sizes.hidden :])
    height, width = hidden.shape[2:]
    columns, rows = (torch.arange(side, dtype=pair.dtype, device=pair.device) for side in (width, height))
    start = torch.stack((columns.expand(height, -1), rows[:, None].expand(-1, width))).expand(len(pair), -1, -1, -1)
    flow = torch.zeros_like(start)
    for _ in range(updates):
        seen = _looked_up(levels, start + flow, radius=sizes.radius)
        x = torch.cat((context, _motion(sizes, net, seen, flow)), dim=1)
        for number, kernel in enumerate(sizes.recurrent, start=1):
            hidden = _gated(net, hidden, x, f"update_block.recurrent_block.convgru{number}", kernel)
        change = F.relu(net.conv(hidden, "update_block.flow_head.conv1", sizes.head, 3, padding=1))
        flow = flow + net.conv(change, "update_block.flow_head.conv2", 2, 3, padding=1)
    yield "flow", _enlarged(net, flow, hidden) if sizes.mask else STRIDE * _resized(flow)


# Encoders -----------------------------------------------------------------------------------------------------------------


def _encoded(sizes: _Sizes, net: Operations, x: Tensor, name: str, *, channels: int) -> Tensor:
    """Features at 1/8 of the size: normed image by image, or those of the context by what training saw, or not at all."""
    kind = "instance" if name == "feature_encoder" else "batch" if sizes.context_norm else "none"

    def layer(x: Tensor, part: str, width: int, kernel: int, *, stride: int = 1) -> Tensor:
        x = net.conv(x, f"{name}.{part}.0", width, kernel, stride=stride, padding=kernel // 2)
        if kind == "batch":
            return net.norm(x, f"{name}.{part}.1")
        return _normed(x) if kind == "instance" else x

    def block(x: Tensor, part: str, width: int, *, stride: int) -> Tensor:
        plan = ((width // 4, 1, 1), (width // 4, 3, stride), (width, 1, 1)) if sizes.bottleneck else ((width, 3, stride), (width, 3, 1))
        y = x
        for number, (channels, kernel, step) in enumerate(plan, start=1):
            y = F.relu(layer(y, f"{part}.convnormrelu{number}", channels, kernel, stride=step))
        return F.relu(y + (x if stride == 1 else layer(x, f"{part}.downsample", width, 1, stride=stride)))

    x = F.relu(layer(x, "convnormrelu", sizes.widths[0], 7, stride=2))
    for number, (width, stride) in enumerate(zip(sizes.widths[1:4], (1, 2, 2), strict=True), start=1):
        x = block(x, f"layer{number}.0", width, stride=stride)
        x = block(x, f"layer{number}.1", width, stride=1)
    return net.conv(x, f"{name}.conv", channels, 1)


def _normed(x: Tensor) -> Tensor:
    """Each channel of each image, less its mean, by its deviation."""
    centred = x - x.mean((2, 3), keepdim=True)
    return centred * (centred.square().mean((2, 3), keepdim=True) + 1e-5).rsqrt()


# What is alike ------------------------------------------------------------------------------------------------------------


def _similarities(first: Tensor, second: Tensor) -> list[Tensor]:
    """C between all places of features (b, c, h, w), at the size of the second one's and at halves of it: (b, h, w, h', w') each."""
    count, channels, height, width = first.shape
    every = torch.einsum("bcij,bckl->bijkl", first, second) / math.sqrt(channels)
    levels = [every]
    for _ in range(_LEVELS - 1):
        halved = F.avg_pool2d(levels[-1].flatten(0, 2)[:, None], 2)
        levels.append(halved.view(count, height, width, *halved.shape[2:]))
    return levels


def _looked_up(levels: list[Tensor], places: Tensor, *, radius: int) -> Tensor:
    """C around the places (b, 2, h, w) of the second image that places of the first have come to, between four of them; 0 outside.

    Channels go through the levels, then through the steps to the right, then through those down.
    """
    steps = torch.arange(-radius, radius + 1, dtype=places.dtype, device=places.device)
    across, down = torch.meshgrid(steps, steps, indexing="ij")
    found = []
    for level, similar in enumerate(levels):
        height, width = similar.shape[3:]
        at = places.movedim(1, -1)[:, :, :, None, None] / 2**level + torch.stack((across, down), dim=-1)
        grid = 2 * at / at.new_tensor([width - 1, height - 1]) - 1
        values = F.grid_sample(similar.flatten(0, 2)[:, None], grid.flatten(0, 2), align_corners=True)
        found.append(values.view(*similar.shape[:3], len(steps) ** 2))
    return torch.cat(found, dim=-1).movedim(-1, 1)


# Updates ------------------------------------------------------------------------------------------------------------------


def _motion(sizes: _Sizes, net: Operations, seen: Tensor, flow: Tensor) -> Tensor:
    """What the flow and the places that it leads to are like, and the flow itself."""

    def layer(x: Tensor, part: str, channels: int, kernel: int) -> Tensor:
        return F.relu(net.conv(x, f"update_block.motion_encoder.{part}.0", channels, kernel, padding=kernel // 2))

    x = seen
    for number, (channels, kernel) in enumerate(zip(sizes.correlation, (1, 3), strict=False), start=1):
        x = layer(x, f"convcorr{number}", channels, kernel)
    y = layer(layer(flow, "convflow1", sizes.flow[0], 7), "convflow2", sizes.flow[1], 3)
    return torch.cat((layer(torch.cat((x, y), dim=1), "conv", sizes.motion, 3), flow), dim=1)


def _gated(net: Operations, hidden: Tensor, x: Tensor, name: str, kernel: tuple[int, int]) -> Tensor:
    """The next state of a gated recurrent unit whose maps are convolutions."""
    channels, padding = hidden.shape[1], (kernel[0] // 2, kernel[1] // 2)

    def gate(part: str, state: Tensor) -> Tensor:
        return net.conv(torch.cat((state, x), dim=1), f"{name}.{part}", channels, kernel, padding=padding)

    z, r = gate("convz", hidden).sigmoid(), gate("convr", hidden).sigmoid()
    return (1 - z) * hidden + z * gate("convq", r * hidden).tanh()


def _enlarged(net: Operations, flow: Tensor, hidden: Tensor) -> Tensor:
    """The flow (b, 2, h, w) at eight times the size: each pixel a mean of the nine places around, weighted as the network says."""
    count, _, height, width = flow.shape
    x = F.relu(net.conv(hidden, "mask_predictor.convrelu.0", 256, 3, padding=1))
    weights = 0.25 * net.conv(x, "mask_predictor.conv", 9 * STRIDE**2, 1)
    weights = weights.view(count, 1, 9, STRIDE, STRIDE, height, width).softmax(2)
    around = F.unfold(STRIDE * flow, 3, padding=1).view(count, 2, 9, 1, 1, height, width)
    fine = (weights * around).sum(2)  # (b, 2, down, across, h, w)
    return fine.permute(0, 1, 4, 2, 5, 3).reshape(count, 2, STRIDE * height, STRIDE * width)


def _resized(flow: Tensor) -> Tensor:
    return F.interpolate(flow, scale_factor=STRIDE, mode="bilinear", align_corners=True)
