"""The structure of a network, read from the names and shapes of its tensors, in the terms of guided-diffusion's flags.

The encoder has n (R + 1) blocks, n levels of R residual blocks and a change of resolution (or the first convolution); the decoder as
many, and an upsampling in the last block of each level but the last. Heads, the order of attention, the image size of a network
without attention pooling and everything about the diffusion leave no trace in the shapes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from triptych.core.errors import CheckpointError
from triptych.diffusion.unet import CHANNEL_MULT
from triptych.interop.flags import Value, flag_text
from triptych.interop.guided_diffusion.flags import Kind

_FEWEST_AXES = {"time_embed.0.weight": 2, "input_blocks.0.0.weight": 2, "out.2.positional_embedding": 2}
"""Of the tensors whose second axis is read; all others have at least one."""


@dataclass(frozen=True)
class Shape:
    """What the shapes of its weights show of a network."""

    kind: Kind
    channels: int
    "Of the images."
    num_channels: int
    num_res_blocks: int
    widths: tuple[int, ...]
    "Channels of each level."
    attention: tuple[bool, ...]
    "Whether each level has it."
    scale_shift_norm: bool
    resblock_updown: bool | None
    "None: there is one level, so nothing changes the resolution."
    num_classes: int | None
    learns_variance: bool
    pool: str | None
    "Of a classifier."
    pool_size: int | None
    "Pixels along the side of the map that attention pooling takes."

    @property
    def channel_mult(self) -> tuple[float, ...]:
        """Widths as multiples of num_channels."""
        return multiples(self.widths, self.num_channels)

    @property
    def table_sizes(self) -> tuple[int, ...]:
        """The image sizes for which these levels are the published ones."""
        same = tuple(size for size, mult in CHANNEL_MULT.items() if mult == self.channel_mult and size >= 32)
        return (256, 512) if self.kind == "super-resolution" and same == (256,) else same

    @property
    def image_size(self) -> int | None:
        """The image size, where it follows from the pooling or from the published table of levels."""
        if self.pool_size is not None:
            return self.pool_size * 2 ** (len(self.widths) - 1)
        return self.table_sizes[0] if len(self.table_sizes) == 1 else None

    @property
    def facts(self) -> dict[str, tuple[Value, str]]:
        """The values of flags that leave a trace whatever the image size, the width and the depth first, each with what shows it."""
        prefix = "classifier_" if self.kind == "classifier" else ""
        facts: dict[str, tuple[Value, str]] = {
            "classifier_width" if prefix else "num_channels": (self.num_channels, str(self.num_channels)),
            "classifier_depth" if prefix else "num_res_blocks": (self.num_res_blocks, str(self.num_res_blocks)),
        }
        how = "scale and shift" if self.scale_shift_norm else "are added"
        facts[f"{prefix}use_scale_shift_norm"] = (self.scale_shift_norm, f"embeddings that {how}")
        if self.resblock_updown is not None:
            what = "residual blocks" if self.resblock_updown else "convolutions"
            facts[f"{prefix}resblock_updown"] = (self.resblock_updown, f"{what} that change the resolution")
        if self.pool is not None:
            return facts | {"classifier_pool": (self.pool, f"{self.pool} pooling")}
        labels = "no label_emb.weight" if self.num_classes is None else f"label_emb.weight for {self.num_classes} classes"
        outputs = self.channels * (2 if self.learns_variance else 1)
        learned = (self.learns_variance, f"{outputs} output channels")
        return facts | {"class_cond": (self.num_classes is not None, labels), "learn_sigma": learned}

    def attention_resolutions(self, image_size: int) -> tuple[int, ...]:
        """Resolutions of the levels with attention, in pixels."""
        return tuple(image_size // 2**level for level, there in enumerate(self.attention) if there)


def multiples(widths: Sequence[int], base: int) -> tuple[float, ...]:
    """Widths as multiples of `base`, whole ones as integers."""
    return tuple(width // base if width % base == 0 else width / base for width in widths)


def shape_flags(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The flags that the shapes determine; image size and attention's resolutions only where they do. Raises as `read_shape` does."""
    shape = read_shape(state)
    size, prefix = shape.image_size, "classifier_" if shape.kind == "classifier" else ""
    (width, channels), (depth, blocks), *others = ((name, value) for name, (value, _) in shape.facts.items())
    flags: dict[str, Any] = {}
    if size is not None:
        flags["large_size" if shape.kind == "super-resolution" else "image_size"] = size
    flags |= {width: channels, depth: blocks}
    if shape.kind == "diffusion":
        flags["channel_mult"] = flag_text(shape.channel_mult)
    if size is not None and any(shape.attention):
        flags[f"{prefix}attention_resolutions"] = flag_text(shape.attention_resolutions(size))
    return flags | dict(others)


def read_shape(state: Mapping[str, Tensor], *, depth: int | None = None) -> Shape:
    """The network of a file's tensors, or CheckpointError. `depth`: blocks of a level to prefer where a classifier may have several."""
    for name, tensor in state.items():
        if tensor.numel() == 0 or tensor.ndim < _FEWEST_AXES.get(name, 1):
            raise CheckpointError(f"{name} has the shape {list(tensor.shape)}: the network is not one of guided-diffusion")
    width = _tensor(state, "time_embed.0.weight").shape[1]
    _tensor(state, "middle_block.1.qkv.weight")
    encoder, decoder = _blocks(state, "input_blocks"), _blocks(state, "output_blocks")
    in_channels = _tensor(state, "input_blocks.0.0.weight").shape[1]
    upsampler = bool(decoder) and in_channels in (2, 6)
    channels = in_channels // 2 if upsampler else in_channels
    if channels not in (1, 3):
        raise CheckpointError(f"input_blocks.0.0.weight takes {in_channels} channels, expected 3 (or 6, of an upsampler)")
    # The first block of the decoder that upsamples ends the first level.
    ends = (index for index, block in enumerate(decoder) if block.up)
    blocks = next(ends, len(decoder) - 1) if decoder else _encoder_depth(encoder, depth)
    if blocks < 1 or len(encoder) % (blocks + 1) or (decoder and len(decoder) != len(encoder)):
        raise CheckpointError(f"{len(encoder)} input_blocks and {len(decoder)} output_blocks do not make a network of guided-diffusion")
    levels = len(encoder) // (blocks + 1)
    starts = [encoder[level * (blocks + 1) + 1] for level in range(levels)]
    modulated, normed = (len(_tensor(state, f"input_blocks.1.0.{name}.weight")) for name in ("emb_layers.1", "out_layers.0"))
    pool, pool_size, answers = (None, None, 0) if decoder else _pool(state)
    labels = state["label_emb.weight"].shape[0] if "label_emb.weight" in state else None
    return Shape(
        kind="classifier" if not decoder else "super-resolution" if upsampler else "diffusion",
        channels=channels,
        num_channels=width,
        num_res_blocks=blocks,
        widths=tuple(block.width for block in starts),
        attention=tuple(block.attention for block in starts),
        scale_shift_norm=modulated == 2 * normed,
        resblock_updown=None if levels == 1 else not encoder[blocks + 1].convolution,
        num_classes=labels if decoder else answers,
        learns_variance=bool(decoder) and len(_tensor(state, "out.2.weight")) == 2 * channels,
        pool=pool,
        pool_size=pool_size,
    )


@dataclass(frozen=True)
class _Block:
    """What stands at one index of input_blocks or output_blocks."""

    width: int
    attention: bool
    convolution: bool
    "A change of resolution by a convolution, alone in the encoder."
    skip: bool
    up: bool
    "Something after the residual block and its attention."


def _blocks(state: Mapping[str, Tensor], prefix: str) -> list[_Block]:
    parts: dict[int, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        match = re.fullmatch(rf"{prefix}\.([0-9]{{1,4}})\.(.+)", name)
        if match:
            parts.setdefault(int(match[1]), {})[match[2]] = tensor
    for index in range(len(parts)):
        if index not in parts:
            raise CheckpointError(f"there is no {prefix}.{index}: the file is incomplete, or its network resamples by plain pooling")
    return [_block(parts[index], f"{prefix}.{index}") for index in range(len(parts))]


def _block(part: Mapping[str, Tensor], name: str) -> _Block:
    weights = [part[key] for key in ("0.in_layers.2.weight", "0.op.weight", "0.weight") if key in part]
    if not weights:
        raise CheckpointError(f"{name} is neither a residual block nor a convolution: the network is not one of guided-diffusion")
    return _Block(
        width=weights[0].shape[0],
        attention="1.qkv.weight" in part,
        convolution="0.op.weight" in part,
        skip="0.skip_connection.weight" in part,
        up=any(re.fullmatch(r"[12]\.(conv|in_layers\.2)\.weight", key) for key in part),
    )


def _encoder_depth(encoder: list[_Block], preferred: int | None) -> int:
    """Residual blocks a level without a decoder. Convolutions show it; residual blocks that resample look like others of their level."""
    convolutions = [index for index, block in enumerate(encoder) if block.convolution]
    if convolutions:
        return convolutions[0] - 1
    fitting = [depth for depth in range(1, len(encoder)) if len(encoder) % (depth + 1) == 0 and _may_have(depth, encoder)]
    if not fitting:
        raise CheckpointError(
            f"the {len(encoder)} input_blocks do not make levels of equal depth: the network is not one of guided-diffusion"
        )
    return preferred if preferred in fitting else fitting[0]


def _may_have(depth: int, encoder: list[_Block]) -> bool:
    """Whether levels of that depth explain where widths and attention change."""
    for start in range(1, len(encoder), depth + 1):
        level, down = encoder[start : start + depth], encoder[start + depth : start + depth + 1]
        if len({(block.width, block.attention) for block in level}) > 1 or any(block.skip for block in level[1:]):
            return False
        if any(block.skip or block.attention or block.width != level[0].width for block in down):
            return False
    return True


def _pool(state: Mapping[str, Tensor]) -> tuple[str, int | None, int]:
    """A classifier's pooling, the side of the map that attention pooling takes, and the number of classes."""
    if "out.2.positional_embedding" in state and "out.2.c_proj.weight" in state:
        return "attention", round((state["out.2.positional_embedding"].shape[1] - 1) ** 0.5), state["out.2.c_proj.weight"].shape[0]
    if "out.1.weight" in state and "out.3.weight" in state:
        return "spatial_v2", None, state["out.3.weight"].shape[0]
    if "out.3.weight" in state:
        return "adaptive", None, state["out.3.weight"].shape[0]
    if "out.2.weight" in state:
        return "spatial", None, state["out.2.weight"].shape[0]
    raise CheckpointError("there are neither output_blocks nor a classifier's out: the file is incomplete")


def _tensor(state: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in state:
        first = next(iter(state), "nothing")
        raise CheckpointError(f"these are not the weights of a network of guided-diffusion: there is no {name} (it begins with {first})")
    return state[name]
