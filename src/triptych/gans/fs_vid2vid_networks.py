"""The networks of few-shot vid2vid: weights from references, and the generator of a frame that uses them.

"Few-shot Video-to-Video Synthesis", Wang et al. 2019, https://arxiv.org/abs/1910.12713. A few pictures of someone, with their label maps,
are made into weights of the networks that see the label maps of a clip: so the clip looks like them. The names of all parts are those of
published weights.

With a_i the features of a reference, l_i those of its label map and w(i) the channels where the size was halved i times:

    F_i = a_i softmax(l_i)^T        w(i) x w(i), summed over pixels; the softmax over channels (Section 3)

Each row of F_{i+1} goes through the same linear layers; what comes of all rows together is the weights of level i.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from triptych.core.config import config
from triptych.gans.flow import warped
from triptych.gans.layers import BlockOptions, ConvBlock, LinearBlock, ResBlock
from triptych.gans.norms import GeneratedMap, InstanceNorm2d, Norm, SpatialNorm
from triptych.gans.video_networks import FlowNetworkBase, FlowNetworkConfig, FrameGeneratorConfig, LabelEmbedder
from triptych.nn.precision import widened
from triptych.nn.resample import enlarged

ATTENTION_HALVINGS = 2
"""How often the size is halved where references are picked by attention."""


@config
class FewShotGeneratorConfig(FrameGeneratorConfig):
    """The generator of a frame from its label map, the frame before it and pictures of what it shall look like."""

    num_downsamples: int = 5
    "Halvings of a reference, and doublings from there to the image."
    spade_kernel_size: int = 1
    "Side of the kernels that see a warped image, an odd number."
    combined: int = 2
    "So many of the largest sizes are modulated by the warped images too."
    generated: int = 4
    "So many of the largest sizes have weights that are made of the references."
    linear_layers: int = 2
    "Linear layers of the stacks that make them, before the last one."
    reference_eps: float = 0.1
    "Added to the variances of the references' label maps. The averaged weights that were published have 1e-5."
    attention: bool = False
    "References are picked for each place by attention; without it the first gives the image, and all the weights."
    flow: FlowNetworkConfig = FlowNetworkConfig(num_downsamples=3, multiplier=20.0)
    "The flow network."

    def validate(self) -> None:
        self.require(self.num_downsamples >= 1, "num_downsamples", "a positive whole number")
        for name in ("num_downsamples", "num_filters"):
            value = getattr(self.embedding, name)
            self.require(getattr(self, name) == value, name, f"{value}, as embedding.{name} beside it: change both, or neither")
        self.require(
            not self.attention or self.num_downsamples >= ATTENTION_HALVINGS, "attention", "false with fewer than 2 num_downsamples"
        )
        self.require(self.spade_kernel_size >= 1 and self.spade_kernel_size % 2 == 1, "spade_kernel_size", "an odd number")
        self.require(0 <= self.combined <= self.num_downsamples + 1, "combined", "0 to num_downsamples + 1")
        self.require(1 <= self.generated < self.num_downsamples, "generated", "at least 1, and below num_downsamples")
        self.require(self.linear_layers >= 0, "linear_layers", "0 or more")
        self.require(self.reference_eps > 0, "reference_eps", "a positive number")

    def width(self, level: int) -> int:
        """Channels where the size was halved so often; as many as the smallest map beyond it."""
        return min(self.max_num_filters, self.num_filters * 2 ** min(level, self.num_downsamples))

    @property
    def stride(self) -> int:
        """The sides of frames are multiples of it."""
        return 2 ** max(self.num_downsamples, self.flow.num_downsamples)

    @property
    def least_size(self) -> int:
        """The fewest pixels along a side: one pixel of the smallest map has no variance of its own."""
        return 2 * self.stride

    def shrunk(self) -> Self:
        return replace(
            self,
            num_filters=4,
            max_num_filters=8,
            num_downsamples=2,
            combined=min(self.combined, 1),
            generated=1,
            linear_layers=min(self.linear_layers, 1),
            embedding=replace(self.embedding, num_filters=4, num_downsamples=2),
            flow=self.flow.shrunk(),
        )


class LevelWeights(NamedTuple):
    """The generated weights and biases of a level, of each sample."""

    first: tuple[Tensor, Tensor]
    "Of the norm of conv_block_0 of up_{i}: (b, 2 w(i+1), w(i), 1, 1) and (b, 2 w(i+1))."
    second: tuple[Tensor, Tensor]
    "Of that of conv_block_1: (b, 2 w(i), w(i), 1, 1) and (b, 2 w(i))."
    shortcut: tuple[Tensor, Tensor]
    "Of that of conv_block_s, as the first."
    embedding: tuple[Tensor, Tensor]
    "Of the label embedding's up_{i}: (b, w(i), w(i+1), 3, 3) and (b, w(i))."


class Appearance(NamedTuple):
    """What references say of the frames to make."""

    features: Float[Tensor, "b c h w"]
    "Of the image, at the smallest size: what the generator begins with."
    levels: tuple[LevelWeights, ...]
    "Of the `generated` largest sizes."
    picked: Int[Tensor, " b"]
    "The reference that counts most, which is warped."


class WeightGenerator(nn.Module):
    """From references to weights: keys ref_img_*, ref_label_*, fc_spade_{0, 1, s, e}_{i}, label_embedding, attention_module."""

    def __init__(self, config: FewShotGeneratorConfig, *, label_channels: int, image_channels: int) -> None:
        super().__init__()
        self.config, width = config, config.width
        options = BlockOptions(norm=Norm("instance"), nonlinearity="leakyrelu", weight_norm=config.weight_norm)
        self.ref_img_first = ConvBlock(image_channels, width(0), 1, options=options)
        self.ref_label_first = ConvBlock(label_channels, width(0), 1, options=options)
        for i in range(config.num_downsamples):
            for kind in ("img", "label"):
                self.add_module(f"ref_{kind}_down_{i}", ConvBlock(width(i), width(i + 1), 1, stride=2, options=options))
                self.add_module(f"ref_{kind}_up_{i}", ConvBlock(width(i + 1), width(i), 1, options=options))
        for name, module in self.named_modules():
            if name.startswith("ref_label_") and isinstance(module, InstanceNorm2d):
                module.eps = config.reference_eps
        for i in range(config.generated):
            ins, outs = width(i), width(i + 1)
            times = -(-2 * ins // outs)  # so often `outs` rows have numbers enough for 2 * ins
            for name, count in (("0", 2 * (ins + 1)), ("1", times * (ins + 1)), ("s", 2 * (ins + 1)), ("e", 9 * ins + 1)):
                self.add_module(f"fc_spade_{name}_{i}", self._stack(outs, count))
        self.label_embedding = LabelEmbedder(config, in_channels=label_channels, skips=False, generated=config.generated)
        self.attention_module = ReferenceAttention(config, label_channels=label_channels) if config.attention else None

    def _stack(self, channels: int, count: int) -> nn.Sequential:
        hidden = BlockOptions(nonlinearity="leakyrelu", weight_norm=self.config.weight_norm)
        layers = [LinearBlock(channels, channels, options=hidden) for _ in range(self.config.linear_layers)]
        return nn.Sequential(*layers, LinearBlock(channels, count, options=BlockOptions(weight_norm=self.config.weight_norm)))

    def forward(
        self,
        references: Float[Tensor, "b k c h w"],
        labels: Float[Tensor, "b k n h w"],
        label: Float[Tensor, "b n h w"],
    ) -> Appearance:
        """What k references with their label maps say of a frame with this label map, which attention alone looks at."""
        config, (b, k) = self.config, references.shape[:2]
        x, maps = self.ref_img_first(references.flatten(0, 1)), self.ref_label_first(labels.flatten(0, 1))
        picked = torch.zeros(b, dtype=torch.long, device=x.device)
        for i in range(config.num_downsamples):
            x, maps = self.get_submodule(f"ref_img_down_{i}")(x), self.get_submodule(f"ref_label_down_{i}")(maps)
            if self.attention_module is not None and i == ATTENTION_HALVINGS - 1 and k > 1:
                x, maps, picked = self.attention_module(x, maps, labels, label)
        features, found = x.unflatten(0, (b, -1))[:, 0], dict[int, Tensor]()
        for i in reversed(range(1, config.num_downsamples)):
            x, maps = self.get_submodule(f"ref_img_up_{i}")(x), self.get_submodule(f"ref_label_up_{i}")(maps)
            if i <= config.generated:
                each = x.flatten(2) @ maps.flatten(2).softmax(dim=1).transpose(1, 2)
                found[i] = each.unflatten(0, (b, -1)).mean(1)
        return Appearance(features, tuple(self._weights(found[i + 1], i) for i in range(config.generated)), picked)

    def _weights(self, rows: Float[Tensor, "b c c"], level: int) -> LevelWeights:
        ins, outs = self.config.width(level), self.config.width(level + 1)

        def vector(name: str) -> Tensor:
            return self.get_submodule(f"fc_spade_{name}_{level}")(rows.flatten(0, 1)).view(len(rows), -1)

        def cut(values: Tensor, *shape: int) -> tuple[Tensor, Tensor]:
            count = shape[0] * shape[1] * shape[2] ** 2
            return values[:, :count].reshape(-1, *shape), values[:, count : count + shape[0]]

        return LevelWeights(
            first=cut(vector("0"), 2 * outs, ins, 1, 1),
            second=cut(vector("1"), 2 * ins, ins, 1, 1),
            shortcut=cut(vector("s"), 2 * outs, ins, 1, 1),
            embedding=cut(vector("e"), ins, outs, 3, 3),
        )


class ReferenceAttention(nn.Module):
    """For each place of a frame the places of the references that fit its label map: keys atn_query_*, atn_key_*."""

    def __init__(self, config: FewShotGeneratorConfig, *, label_channels: int) -> None:
        super().__init__()
        options = BlockOptions(norm=Norm("instance"), nonlinearity="leakyrelu", weight_norm=config.weight_norm)
        widths = [label_channels, *(config.width(i) for i in range(ATTENTION_HALVINGS + 1))]
        for place, name in enumerate(("first", *range(ATTENTION_HALVINGS))):
            for kind in ("query", "key"):
                block = ConvBlock(widths[place], widths[place + 1], 1, stride=2 if place else 1, options=options)
                self.add_module(f"atn_{kind}_{name}", block)

    def forward(
        self,
        x: Float[Tensor, "bk c h w"],
        maps: Float[Tensor, "bk c h w"],
        labels: Float[Tensor, "b k n _ _"],
        label: Float[Tensor, "b n _ _"],
    ) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b c h w"], Int[Tensor, " b"]]:
        """Features of images and of label maps of one reference made of k, and the one of them that was looked at most."""
        b, k, *_ = labels.shape
        query, key = self._seen("query", label), self._seen("key", labels.flatten(0, 1))
        places = key.shape[1]
        which = torch.eye(k, device=x.device, dtype=x.dtype).repeat_interleave(places, 0).expand(b, -1, -1)
        values = torch.cat((x, maps), dim=1).flatten(2).transpose(1, 2).reshape(b, k * places, -1)
        found = F.scaled_dot_product_attention(query, key.reshape(b, k * places, -1), torch.cat((values, which), dim=2), scale=1.0)
        mixed, share = found.transpose(1, 2).split((values.shape[2], k), dim=1)
        x, maps = mixed.unflatten(2, x.shape[2:]).chunk(2, dim=1)
        return x, maps, share.sum(2).argmax(1)

    def _seen(self, kind: str, label: Tensor) -> Tensor:
        """(b, pixels, c)."""
        for name in ("first", *range(ATTENTION_HALVINGS)):
            label = self.get_submodule(f"atn_{kind}_{name}")(label)
        return label.flatten(2).transpose(1, 2)


class WarpNetwork(FlowNetworkBase):
    """Flow and mask from a label map to another picture, by that one's label map and pixels: keys down_flow, and those of the base."""

    down_flow: nn.Sequential

    def __init__(self, config: FrameGeneratorConfig, *, label_channels: int, image_channels: int) -> None:
        super().__init__(config, {"down_flow": 2 * label_channels + image_channels}, order="NACNAC")

    def forward(
        self, label: Float[Tensor, "b n h w"], other_label: Float[Tensor, "b n h w"], other: Float[Tensor, "b c h w"]
    ) -> tuple[Float[Tensor, "b 2 h w"], Float[Tensor, "b 1 h w"]]:
        """The flow in pixels, and the mask."""
        return self._found(self._down(self.down_flow, torch.cat((label, other_label, other), dim=1), label, other_label))


class Warp(NamedTuple):
    """Another picture, moved to where a frame has what it shows."""

    flow: Float[Tensor, "b 2 h w"]
    mask: Float[Tensor, "b 1 h w"]
    "1 where the warped picture cannot be used."
    image: Float[Tensor, "b c h w"]


class FewShotFrame(NamedTuple):
    """A generated frame."""

    image: Float[Tensor, "b c h w"]
    "In [-1, 1]."
    reference: Warp
    past: Warp | None
    "Of the frame before; None for the first."
    picked: Int[Tensor, " b"]
    "The reference that was moved."


class FewShotBlock(ResBlock):
    """A residual block whose norms may each have a convolution of their own for the label map."""

    def forward(self, x: Float[Tensor, "b c h w"], label: Tensor, *warps: Tensor | None, weights: LevelWeights | None) -> Tensor:
        """The block's output (b, d, h, w). `label`: the map of this level; `warps`: those of the warped pictures."""

        def condition(own: tuple[Tensor, Tensor] | None) -> Tensor | GeneratedMap:
            return label if own is None else GeneratedMap(label, *own)

        first, second, shortcut = (None, None, None) if weights is None else weights[:3]
        residual = self.conv_block_1(self.conv_block_0(x, condition(first), *warps), condition(second), *warps)
        return residual + (x if self.conv_block_s is None else self.conv_block_s(x, condition(shortcut), *warps))


class FewShotGenerator(nn.Module):
    """One frame of a label map, references and the frame before it.

    Keys weight_generator, up_*, conv_img, flow_network_ref, ref_image_embedding, prev_image_embedding. Published files have the flow
    network a second time, as flow_network_temp.
    """

    def __init__(self, config: FewShotGeneratorConfig, *, label_channels: int, image_channels: int = 3) -> None:
        super().__init__()
        self.config, width = config, config.width
        self.weight_generator = WeightGenerator(config, label_channels=label_channels, image_channels=image_channels)
        for level in reversed(range(config.num_downsamples + 1)):
            norm = SpatialNorm(
                Norm("instance", affine=False),
                cond_channels=(config.map_width(level),) * (3 if level < config.combined else 1),
                num_filters=0,
                kernel_size=config.spade_kernel_size,
                separate=False,
                generated=level < config.generated,
            )
            options = BlockOptions(norm=norm, nonlinearity="leakyrelu", weight_norm=config.weight_norm)
            self.add_module(f"up_{level}", FewShotBlock(width(level + 1), width(level), order="NACNAC", options=options))
        self.conv_img = ConvBlock(width(0), image_channels, 3, order="AC", options=BlockOptions(nonlinearity="leakyrelu"))
        self.flow_network_ref = WarpNetwork(config, label_channels=label_channels, image_channels=image_channels)
        self.ref_image_embedding = LabelEmbedder(config, in_channels=image_channels + 1, skips=True)
        self.prev_image_embedding = LabelEmbedder(config, in_channels=image_channels + 1, skips=True)

    def forward(
        self,
        label: Float[Tensor, "b n h w"],
        references: Float[Tensor, "b k c h w"],
        reference_labels: Float[Tensor, "b k n h w"],
        past_label: Float[Tensor, "b n h w"] | None = None,
        past_image: Float[Tensor, "b c h w"] | None = None,
    ) -> FewShotFrame:
        """The frame of a label map, in [-1, 1], that looks like its k references, after the frame before it where there is one."""
        config = self.config
        if (past_label is None) != (past_image is None):
            raise ValueError("the frame before comes with its label map")
        # In training anew for each frame of a clip: the generator has taken a step since the one before.
        seen: Appearance = self.weight_generator(references, reference_labels, label)
        of_each = torch.arange(len(label), device=label.device)
        reference = self._warp(label, reference_labels[of_each, seen.picked], references[of_each, seen.picked])
        warps: list[list[Tensor] | None] = [self.ref_image_embedding(torch.cat((reference.image, reference.mask), dim=1)), None]
        past = None
        if past_label is not None and past_image is not None:
            past = self._warp(label, past_label, past_image)
            warps[1] = self.prev_image_embedding(torch.cat((past.image, past.mask), dim=1))
        now = self.weight_generator.label_embedding(label, [weights.embedding for weights in seen.levels])
        x = seen.features
        for level in reversed(range(config.num_downsamples + 1)):
            maps = [None if each is None else each[level] for each in warps] if level < config.combined else []
            weights = seen.levels[level] if level < config.generated else None
            x = self.get_submodule(f"up_{level}")(x, now[level], *maps, weights=weights)
            x = enlarged(x) if level else x
        image = self.conv_img(x)
        with torch.autocast(x.device.type, enabled=False):
            return FewShotFrame(torch.tanh(widened(image)), reference, past, seen.picked)

    def _warp(self, label: Tensor, other_label: Tensor, other: Tensor) -> Warp:
        flow, mask = self.flow_network_ref(label, other_label, other)
        return Warp(flow, mask, warped(other, flow))
