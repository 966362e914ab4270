"""The networks of vid2vid: label embeddings, the flow network, and the generator of a frame.

"Video-to-Video Synthesis", Wang et al. 2018, https://arxiv.org/abs/1808.06601, with the multi-SPADE generator of "World-Consistent
Video-to-Video Synthesis", Mallya et al. 2020, https://arxiv.org/abs/2007.08509. The names of all parts are those of published weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from triptych.core.config import Config, config
from triptych.gans.flow import cost_volume, warped
from triptych.gans.layers import SLOPE, BlockOptions, BlockOrder, ConvBlock, LinearBlock, ResBlock, doubling
from triptych.gans.norms import Norm, SpatialNorm, own_convolution
from triptych.gans.translation_base import GeneratorConfig
from triptych.gans.weight_norms import WeightNorm
from triptych.nn.precision import widened
from triptych.nn.resample import enlarged, resized


@config
class EmbeddingConfig(Config):
    """The networks that make maps of all sizes out of a label map, or out of a warped image."""

    num_filters: int = 32
    "Channels at full size; they double with each halving."
    num_downsamples: int = 5
    "Halvings."

    def validate(self) -> None:
        for name in ("num_filters", "num_downsamples"):
            self.require(getattr(self, name) >= 1, name, "a positive whole number")


@config
class FlowNetworkConfig(Config):
    """The network that says where the pixels of a frame were in the one before."""

    num_filters: int = 32
    "Channels at full size; they double with each halving."
    num_downsamples: int = 5
    "Halvings."
    num_res_blocks: int = 6
    "Residual blocks at the smallest size."
    multiplier: float = 40.0
    "Pixels of flow for an output of 1."
    norm: Literal["instance", "none"] = "instance"
    "Norm of its features. Instance norm takes the mean of a feature out, and so what a move of the whole frame would show."
    cost_radius: int = 0
    "Moves of label maps that the network sees compared, in each direction, in pixels of the halved maps (a cost volume); 0: none."
    cost_halvings: int = 1
    "Halvings of the maps that are compared."

    def validate(self) -> None:
        for name in ("num_filters", "num_downsamples"):
            self.require(getattr(self, name) >= 1, name, "a positive whole number")
        for name in ("num_res_blocks", "cost_radius"):
            self.require(getattr(self, name) >= 0, name, "0 or more")
        self.require(0 <= self.cost_halvings <= self.num_downsamples, "cost_halvings", "0 to num_downsamples")
        self.require(0 < self.multiplier < math.inf, "multiplier", "a positive number")

    @property
    def sides(self) -> dict[str, tuple[object, int, int]]:
        """What it asks of the sides of frames; see `ClipGANConfig.sides`."""
        least = (self.cost_radius + 1) << self.cost_halvings
        return {"generator.flow.cost_radius": (self.cost_radius, 1, least)} if self.cost_radius else {}

    def shrunk(self) -> Self:
        """A narrow network, for tests."""
        halvings, radius = min(self.cost_halvings, 1), min(self.cost_radius, 1)
        sizes = {"num_filters": 4, "num_downsamples": 1, "num_res_blocks": 1, "cost_halvings": halvings, "cost_radius": radius}
        return replace(self, multiplier=4.0, **sizes)


@config
class FrameGeneratorConfig(GeneratorConfig):
    """What generators of frames have in common."""

    num_filters: int = 32
    "Channels at full size; they double with each halving."
    max_num_filters: int = 1024
    "The most channels, of all parts."
    weight_norm: WeightNorm = "spectral"
    "Norm of the weights."
    embedding: EmbeddingConfig = EmbeddingConfig()
    "The embeddings of label maps and of warped images."
    flow: FlowNetworkConfig = FlowNetworkConfig()
    "The flow network."

    def validate(self) -> None:
        for name in ("num_filters", "max_num_filters"):
            self.require(getattr(self, name) >= 1, name, "a positive whole number")

    def width(self, level: int) -> int:
        """Channels where the size was halved so often."""
        return min(self.max_num_filters, self.num_filters * 2**level)

    def map_width(self, level: int) -> int:
        """Channels of an embedding where the size was halved so often."""
        return min(self.max_num_filters, self.embedding.num_filters * 2**level)


@config
class Vid2VidGeneratorConfig(FrameGeneratorConfig):
    """The generator of a frame from label maps and the frames before it."""

    narrow: ClassVar[Mapping[str, int]] = {}
    "What a subclass makes small in `shrunk`, beside the settings here."

    num_layers: int = 7
    "Doublings from the first map to the image."
    num_downsamples: int = 4
    "Halvings of the past image; the first so many doublings are for frames without one alone."
    spade_kernel_size: int = 1
    "Side of the kernels that see a map, an odd number."
    combined: int = 3
    "So many of the largest sizes are modulated by the warped image too."
    frames: int = 3
    "Frames that the generator sees, the one that it makes included: the flow network needs all of them."
    blend: bool = False
    "A frame is the warped one before it where the mask is 0, as in the paper; else the warped one only modulates the norms."
    flow_apart: bool = False
    "The flow learns from its teacher alone, and what is made with the warped image teaches it nothing; else both do, as published."
    label_input: bool = True
    "The first map is made of the label map; else it is a constant."
    style_dims: int = 256
    "Without label_input: numbers that the constant is made of, all of them 0 as in the published network."

    def validate(self) -> None:
        for name in ("num_layers", "num_downsamples", "style_dims"):
            self.require(getattr(self, name) >= 1, name, "a positive whole number")
        self.require(self.num_downsamples < self.num_layers, "num_downsamples", "below num_layers")
        self.require(self.spade_kernel_size >= 1 and self.spade_kernel_size % 2 == 1, "spade_kernel_size", "an odd number")
        self.require(0 <= self.combined <= self.num_downsamples + 1, "combined", "0 to num_downsamples + 1")
        self.require(self.frames >= 2, "frames", "at least 2")

    def guided(self, level: int) -> bool:
        """Whether guidance modulates the blocks where the size was halved so often (see wc_vid2vid)."""
        return False

    @property
    def stride(self) -> int:
        """Output pixels for each pixel of the smallest map; the sides of frames are multiples of it."""
        return 2 ** max(self.num_layers, self.embedding.num_downsamples, self.flow.num_downsamples)

    @property
    def least_size(self) -> int:
        """The fewest pixels along a side: one pixel of a smaller map has no variance of its own."""
        return 2 ** (1 + max(self.num_layers, self.flow.num_downsamples))

    def shrunk(self) -> Self:
        return replace(
            self,
            num_filters=4,
            max_num_filters=8,
            num_layers=2,
            num_downsamples=1,
            combined=min(self.combined, 1),
            style_dims=4,
            embedding=replace(self.embedding, num_filters=4, num_downsamples=2),
            flow=self.flow.shrunk(),
            **self.narrow,
        )


class LabelEmbedder(nn.Module):
    """Maps of all sizes, from full size (level 0) down: keys conv_first, down_{i}, up_{i}."""

    def __init__(self, config: FrameGeneratorConfig, *, in_channels: int, skips: bool, generated: int = 0) -> None:
        """`skips`: the way up also sees the maps of the way down (a U-Net). `generated`: so many last up_{i} come with each sample."""
        super().__init__()
        self.steps, self.skips = config.embedding.num_downsamples, skips
        options = BlockOptions(nonlinearity="leakyrelu", weight_norm=config.weight_norm)
        widths = [config.map_width(level) for level in range(self.steps + 1)]
        self.conv_first = ConvBlock(in_channels, widths[0], 3, options=options)
        for level in range(self.steps):
            self.add_module(f"down_{level}", ConvBlock(widths[level], widths[level + 1], 3, stride=2, options=options))
        for level in reversed(range(generated, self.steps)):
            ins = widths[level + 1] * (2 if skips and level < self.steps - 1 else 1)
            self.add_module(f"up_{level}", ConvBlock(ins, widths[level], 3, options=options, enlarges=True))

    def forward(self, x: Float[Tensor, "b c h w"], generated: Sequence[tuple[Tensor, Tensor]] = ()) -> list[Float[Tensor, "b _ _ _"]]:
        """Level i has sides of 1 / 2^i; the last one is what the way down made. `generated`: weights and biases of the up_{i} that come."""
        down = [self.conv_first(x)]
        for level in range(self.steps):
            down.append(self.get_submodule(f"down_{level}")(down[-1]))
        levels = [down[-1]]
        for level in reversed(range(self.steps)):
            seen = torch.cat((levels[0], down[level + 1]), dim=1) if self.skips and level < self.steps - 1 else levels[0]
            if level < len(generated):
                levels.insert(0, F.leaky_relu(own_convolution(enlarged(seen), *generated[level]), SLOPE))
            else:
                levels.insert(0, self.get_submodule(f"up_{level}")(seen))
        return levels


class FlowNetworkBase(nn.Module):
    """Flow and mask from what subclasses see: keys of theirs, res_flow, up_flow, conv_flow, conv_mask, and cost where maps are compared."""

    apart: bool = False
    """Whether what is learned of the mask changes its last layer alone: the flow is then learned from its teacher alone."""

    def __init__(self, config: FrameGeneratorConfig, inputs: Mapping[str, int], *, order: BlockOrder) -> None:
        """`inputs`: names and channels of the ways down. `order`: of the residual blocks."""
        super().__init__()
        flow = config.flow
        self.multiplier = flow.multiplier
        widths = [min(config.max_num_filters, flow.num_filters * 2**level) for level in range(flow.num_downsamples + 1)]
        options = BlockOptions(norm=Norm(flow.norm), nonlinearity="leakyrelu", weight_norm=config.weight_norm)

        def down(channels: int) -> nn.Sequential:
            sizes = zip([channels, *widths], widths, strict=False)
            return nn.Sequential(*(ConvBlock(ins, outs, 3, stride=2 if k else 1, options=options) for k, (ins, outs) in enumerate(sizes)))

        for name, channels in inputs.items():
            self.add_module(name, down(channels))
        blocks = (ResBlock(widths[-1], widths[-1], order=order, options=options) for _ in range(flow.num_res_blocks))
        self.res_flow = nn.Sequential(*blocks)
        up: list[nn.Module] = []
        for ins, outs in zip(widths[:0:-1], widths[-2::-1], strict=True):
            up += doubling(ins, outs, 3, options=options)
        self.up_flow = nn.Sequential(*up)
        self.conv_flow = nn.Sequential(ConvBlock(widths[0], 2, 3))
        self.conv_mask = nn.Sequential(ConvBlock(widths[0], 1, 3))
        self.radius, self.halvings = flow.cost_radius, flow.cost_halvings
        self.cost = ConvBlock((2 * self.radius + 1) ** 2, widths[self.halvings], 1) if self.radius else None

    def _down(self, layers: nn.Sequential, x: Tensor, now: Tensor, before: Tensor) -> Tensor:
        """The way down of what a network sees, x; on it the cost volume of the label maps `now` and `before` joins."""
        for halvings, layer in enumerate(layers):
            x = layer(x)
            if self.cost is not None and halvings == self.halvings:
                pair = (F.avg_pool2d(maps, 2**halvings) for maps in (now, before))
                x = x + self.cost(cost_volume(*pair, radius=self.radius))
        return x

    def _found(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The flow in pixels (b, 2, h, w), and a mask in 0..1 (b, 1, h, w) that is 1 where the warped image cannot be used; float32."""
        x = self.up_flow(self.res_flow(x))
        of_mask = x.detach() if self.apart else x
        return widened(self.conv_flow(x)) * self.multiplier, torch.sigmoid(widened(self.conv_mask(of_mask)))


class FlowNetwork(FlowNetworkBase):
    """Flow and mask from label maps and past images: keys down_lbl, down_img, and those of the base."""

    down_lbl: nn.Sequential
    down_img: nn.Sequential

    def __init__(self, config: Vid2VidGeneratorConfig, *, label_channels: int, image_channels: int) -> None:
        """`label_channels`, `image_channels`: of all frames together."""
        super().__init__(config, {"down_lbl": label_channels, "down_img": image_channels}, order="CNACN")
        self.frames, self.apart = config.frames, config.flow_apart

    def forward(
        self, labels: Float[Tensor, "b n h w"], images: Float[Tensor, "b m h w"]
    ) -> tuple[Float[Tensor, "b 2 h w"], Float[Tensor, "b 1 h w"]]:
        """The flow and the mask; of both the oldest frame is first."""
        before, now = labels.chunk(self.frames, dim=1)[-2:]
        return self._found(self._down(self.down_lbl, labels, now, before) + self.down_img(images))


class Frame(NamedTuple):
    """A generated frame."""

    image: Float[Tensor, "b c h w"]
    "In [-1, 1]."
    flow: Float[Tensor, "b 2 h w"] | None = None
    "To the frame before; None where there were too few of them."
    mask: Float[Tensor, "b 1 h w"] | None = None
    warped: Float[Tensor, "b c h w"] | None = None
    "The frame before, warped by the flow."


class Vid2VidGenerator(nn.Module):
    """One frame of label maps and past frames.

    Keys label_embedding, up_*, conv_img, fc, down_*, res_*, flow_network_temp, img_prev_embedding.
    """

    def __init__(
        self, config: Vid2VidGeneratorConfig, *, label_channels: int, image_channels: int = 3, image_size: tuple[int, int] = (512, 512)
    ) -> None:
        """`image_size`: height and width; they count where the first map is a constant, which is of one size."""
        super().__init__()
        self.config, width = config, config.width
        self.label_embedding = LabelEmbedder(config, in_channels=label_channels, skips=False)
        for level in reversed(range(config.num_layers + 1)):
            self.add_module(f"up_{level}", self._block(width(level + 1), width(level), level))
        self.conv_img = ConvBlock(width(0), image_channels, 3, order="AC", options=BlockOptions(nonlinearity="leakyrelu"))
        first = width(config.num_layers + 1)
        self.first_size = (image_size[0] >> config.num_layers, image_size[1] >> config.num_layers)
        if config.label_input:
            self.fc: ConvBlock | LinearBlock = ConvBlock(label_channels, first, 3)
        else:
            self.fc = LinearBlock(config.style_dims, first * math.prod(self.first_size))
        self.down_first = ConvBlock(image_channels, width(0), 3)
        for level in range(config.num_downsamples + 1):
            self.add_module(f"down_{level}", self._block(width(level), width(level + 1), level))
        deepest = config.num_downsamples + 1
        self.num_res_blocks = 2 * -(-(config.num_layers - config.num_downsamples) // 2)
        for index in range(self.num_res_blocks):
            self.add_module(f"res_{index}", self._block(width(deepest), width(deepest), deepest))
        past = config.frames - 1
        self.flow_network_temp = FlowNetwork(config, label_channels=label_channels * config.frames, image_channels=image_channels * past)
        self.img_prev_embedding = LabelEmbedder(config, in_channels=image_channels + 1, skips=True)

    def _block(self, ins: int, outs: int, level: int) -> ResBlock:
        """A residual block that the label map modulates, and the warped image too where the size was halved fewer than `combined` times."""
        config = self.config
        channels = config.map_width(min(level, config.embedding.num_downsamples))
        maps, filters = self._further_maps(level)
        maps = (channels,) * (2 if level < config.combined else 1) + maps
        norm = SpatialNorm(
            Norm("instance", affine=False),
            cond_channels=maps,
            num_filters=(0,) * (len(maps) - len(filters)) + filters,
            kernel_size=config.spade_kernel_size,
            separate=False,
        )
        return ResBlock(
            ins, outs, order="NACNAC", options=BlockOptions(norm=norm, nonlinearity="leakyrelu", weight_norm=config.weight_norm)
        )

    def _further_maps(self, level: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Channels, and filters of the hidden layer, of the maps beside those of labels and of the warped image."""
        return (), ()

    def forward(
        self,
        label: Float[Tensor, "b n h w"],
        past_labels: Float[Tensor, "b p n h w"] | None = None,
        past_images: Float[Tensor, "b p c h w"] | None = None,
        guidance: Float[Tensor, "b g h w"] | None = None,
    ) -> Frame:
        """The frame of a label map, after the p frames before it (oldest first, at most frames - 1); without such the first of a clip.

        `guidance`: a further map, for a generator whose configuration has guided sizes.
        """
        config, block = self.config, self.get_submodule
        past = 0 if past_images is None else past_images.shape[1]
        if past > config.frames - 1 or past != (0 if past_labels is None else past_labels.shape[1]):
            raise ValueError(f"got {past} past images, expected at most {config.frames - 1}, and as many label maps")
        now = self.label_embedding(label)
        shared = config.num_downsamples + 1
        if past_labels is None or past_images is None or not past:
            x = self._first(label)
            for level in range(config.num_layers, config.num_downsamples, -1):
                x = enlarged(block(f"up_{level}")(x, _at(now, level)))
        else:
            before = self.label_embedding(past_labels[:, -1])
            x = self.down_first(past_images[:, -1])
            for level in range(shared):
                x = block(f"down_{level}")(x, _at(before, level))
                if level < config.num_downsamples:
                    x = F.avg_pool2d(x, 3, stride=2, padding=1)
            for index in range(self.num_res_blocks):
                maps = before if index < self.num_res_blocks // 2 else now
                x = block(f"res_{index}")(x, _at(maps, shared))
        found, combined = (None, None, None), None
        if past == config.frames - 1 and past_labels is not None and past_images is not None:
            labels = torch.cat((*past_labels.unbind(1), label), dim=1)
            flow, mask = self.flow_network_temp(labels, past_images.flatten(1, 2))
            moved = warped(past_images[:, -1], flow.detach() if config.flow_apart else flow)
            found, combined = (flow, mask, moved), self.img_prev_embedding(torch.cat((moved, mask), dim=1))
        for level in reversed(range(shared)):
            seen: list[Tensor | None] = [_at(now, level)]
            if level < config.combined:
                seen.append(None if combined is None else _at(combined, level))
            if config.guided(level):
                seen.append(guidance)
            x = block(f"up_{level}")(x, *seen)
            x = enlarged(x) if level else x
        image = self.conv_img(x)
        with torch.autocast(x.device.type, enabled=False):
            image = torch.tanh(widened(image))
            flow, mask, moved = found
            if config.blend and mask is not None and moved is not None:
                image = mask * image + (1 - mask) * moved
            return Frame(image, flow, mask, moved)

    def _first(self, label: Tensor) -> Tensor:
        """The first map of a frame without a past."""
        size = tuple(side >> self.config.num_layers for side in label.shape[2:])
        if isinstance(self.fc, ConvBlock):
            return self.fc(resized(label, size, mode="nearest"))
        constant = self.fc(label.new_zeros(1, self.config.style_dims)).view(1, -1, *self.first_size)
        return resized(constant, size, mode="nearest").expand(len(label), -1, -1, -1)


@config
class WCVid2VidGeneratorConfig(Vid2VidGeneratorConfig):
    """The generator of a frame from label maps, the frames before it, and guidance: the colours of points that were seen before."""

    narrow: ClassVar = {"guidance_filters": 4}

    spade_kernel_size: int = 3
    "Side of the kernels that see a map, an odd number."
    guidance_filters: int = 128
    "Channels between the guidance and the scale and shift that it gives; 0: none between. It modulates the `combined` largest sizes."

    def validate(self) -> None:
        self.require(self.guidance_filters >= 0, "guidance_filters", "0 or more")
        self.require(self.combined >= 1, "combined", "at least 1: these sizes have the guidance")

    def guided(self, level: int) -> bool:
        return level < self.combined


class WCVid2VidGenerator(Vid2VidGenerator):
    """One frame of label maps, past frames and guidance: the colours of points, and where they are known.

    Keys as those of Vid2VidGenerator; the guidance is the last map of the norms that have it.
    """

    config: WCVid2VidGeneratorConfig

    def __init__(
        self,
        config: WCVid2VidGeneratorConfig,
        *,
        label_channels: int,
        image_channels: int = 3,
        image_size: tuple[int, int] = (512, 512),
    ) -> None:
        self._guidance_channels = image_channels + 1
        super().__init__(config, label_channels=label_channels, image_channels=image_channels, image_size=image_size)

    def _further_maps(self, level: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return ((self._guidance_channels,), (self.config.guidance_filters,)) if self.config.guided(level) else ((), ())


def _at(maps: Sequence[Tensor], level: int) -> Tensor:
    """The map of a level, or the smallest."""
    return maps[min(level, len(maps) - 1)]
