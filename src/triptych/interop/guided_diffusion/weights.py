"""Weights of guided-diffusion and improved-diffusion, in and out.

    model = from_state_dict(torch.load("256x256_diffusion.pt", weights_only=True), {"image_size": 256, "class_cond": True, ...})
    model.network(x, t, y)

The parameters of our networks have the originals' names and shapes, so weights are loaded as they are. The flags say the rest, and are
compared with the shapes. Some flags leave no trace in any shape and are believed: num_heads, num_heads_upsample, num_head_channels,
use_new_attention_order, dropout, all flags of the diffusion but learn_sigma, and, without attention pooling, the image size (if it has
as many levels).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError
from triptych.core.model import Model, ModelConfig
from triptych.core.outline import without_weights
from triptych.core.weight_files import check_fit, checked_weights
from triptych.diffusion.adm import ADM
from triptych.diffusion.blocks import SelfAttention, legacy_rows
from triptych.diffusion.unet import UNetEncoder
from triptych.interop.flags import Value, checked_flags, flag_text, listed, named_as_flags, numbers
from triptych.interop.guided_diffusion.configs import LEVELS, configuration, flags_of, reached
from triptych.interop.guided_diffusion.flags import Program, all_flags, flag_table
from triptych.interop.guided_diffusion.shapes import Shape, read_shape

_NOUNS = {"diffusion": "a diffusion model", "classifier": "a classifier", "super-resolution": "an upsampler"}

_MOST_PIXELS = 8192


@dataclass(frozen=True)
class DescribedNetwork:
    """A network that flags and weights agree upon: what builds it, and the images that it is for."""

    config: ModelConfig
    spec: DataSpec
    flags: dict[str, Value]
    "All flags of its kind, the defaults included."


def from_state_dict(weights: Mapping[str, Tensor], flags: Mapping[str, Any], *, program: Program = "guided-diffusion") -> Model:
    """The model of a file's weights, in evaluation mode, with float32 copies of them.

    Its `network(x, t, y)` takes original timesteps and gives the raw output; that of a classifier is `network(x, t)` and gives logits,
    that of an upsampler `network(x, t, low_res, y)`. `flags`: the original's, by name, with Python values; an absent one has its default.
    Raises ConfigError for flags that are unknown, wrong or missing as the shapes show, CheckpointError for weights of another network.
    """
    weights = checked_weights(weights, name="the dictionary")
    network = describe(weights, flags, program=program)
    return filled_model(network.config, network.spec, weights)


def filled_model(config: ModelConfig, spec: DataSpec, weights: Mapping[str, Tensor]) -> Model:
    """The model of a configuration and a file's weights, in evaluation mode; a CheckpointError names the first tensor that is wrong."""
    with without_weights():
        model = config.build(spec)
    model.to_empty(device="cpu")
    for buffer in model.buffers():
        buffer.zero_()  # the history of loss-aware timesteps, which is empty at first
    network = model.get_submodule("network")
    check_fit(network.state_dict(), weights)
    network.load_state_dict(dict(weights))
    return model.eval()


@torch.no_grad()
def to_state_dict(model: Model) -> dict[str, Tensor]:
    """The weights of the model's network under the original's names: float32 copies, contiguous, on the CPU.

    Those of classifiers and upsamplers have the rows of qkv in the legacy order, for the original has no flag for another one there.
    """
    network = cast(UNetEncoder, model.get_submodule("network"))
    state = {name: tensor.to("cpu", torch.float32, copy=True).contiguous() for name, tensor in network.state_dict().items()}
    if not isinstance(model, ADM):
        for layer, module in network.named_modules():
            if isinstance(module, SelfAttention):
                for name in (f"{layer}.qkv.weight", f"{layer}.qkv.bias"):
                    state[name] = legacy_rows(state[name], heads=module.heads, order=network.config.attention_order)
    return state


def describe(weights: Mapping[str, Tensor], flags: Mapping[str, Any], *, program: Program = "guided-diffusion") -> DescribedNetwork:
    """What the weights and the flags make together; raises as `from_state_dict` does, all wrong and missing flags in one line."""
    given = checked_flags(flags, all_flags(program))
    depth = given.get("classifier_depth", flag_table("classifier")["classifier_depth"].default)
    shape = read_shape(weights, depth=cast(int, depth))
    table = flag_table(shape.kind, program)
    own = own_flags(shape, given, program)
    full = {name: flag.default for name, flag in table.items()} | own
    wrong = disagreements(shape, own, program)
    if wrong:
        raise ConfigError("", "; ".join(wrong))
    with named_as_flags(flags_of(shape.kind), table), without_weights():
        config, size = configuration(full, shape.kind, program=program, levels=shape.channel_mult)
        spec = DataSpec(image_size=size, channels=shape.channels, num_classes=shape.num_classes)
        config.build(spec)
    return DescribedNetwork(config, spec, full)


def own_flags(shape: Shape, given: Mapping[str, Value], program: Program) -> dict[str, Value]:
    """The given flags of this kind of network; a classifier's may stand beside its diffusion model's. ConfigError for other kinds."""
    own = {
        name: value
        for name, value in given.items()
        if name in flag_table(shape.kind, program) or _is_of_changed_program(name, given, shape)
    }
    others = [name for name in given if name not in own]
    table = all_flags(program)
    beside = {"classifier": "model", "diffusion": "classifier"}.get(shape.kind)
    groups = {table[name].group for name in own if name != "image_size"}
    together = any(group in groups for group in ("model", "classifier"))
    strange = [name for name in others if table[name].group != beside or not together]
    if shape.kind == "super-resolution" and given.get("image_size") == given.get("large_size"):
        strange = [name for name in strange if name != "image_size"]
    if strange:
        reason = {"classifier": "it has no output_blocks", "diffusion": "it has output_blocks and takes single images"}
        why = reason.get(shape.kind, "its first convolution takes two images")
        if shape.kind == "super-resolution" and strange == ["image_size"]:
            raise ConfigError("--image_size", "the file is an upsampler (its first convolution takes two images): give --large_size")
        verb = "are flags" if len(strange) > 1 else "is a flag"
        raise ConfigError("", f"{listed(strange)} {verb} of another kind of network: the file is {_NOUNS[shape.kind]} ({why})")
    return own


def _is_of_changed_program(name: str, given: Mapping[str, Value], shape: Shape) -> bool:
    """Whether a flag that such networks lack in the original describes a network of a changed program."""
    if shape.kind == "super-resolution":
        return name in ("channel_mult", "use_new_attention_order") and given[name] != ""
    fits = name == "channel_mult" and _widths(numbers(str(given[name])), shape) == shape.widths
    return shape.kind == "classifier" and fits  # else it is that of the model beside it


def _widths(mult: tuple[float, ...], shape: Shape) -> tuple[int, ...]:
    return tuple(int(part * shape.num_channels) for part in mult)


def disagreements(shape: Shape, given: Mapping[str, Value], program: Program = "guided-diffusion") -> list[str]:
    """A line for each flag that is not what the shapes say: given wrongly, or missing where its default is wrong."""
    table = flag_table(shape.kind, program)
    full = {name: flag.default for name, flag in table.items()} | dict(given)
    facts = [(name, value, evidence) for name, (value, evidence) in shape.facts.items() if full.get(name, False) != value]
    lines = [_line(*fact, given, table, program) for fact in facts]
    return lines + _wrong_levels(shape, full, given, program)


def _line(name: str, value: Value, evidence: str, given: Mapping[str, Value], table: Mapping[str, Any], program: Program) -> str:
    if name not in table:
        return f"the file has {evidence} (--{name} {value}), which {program} has no flag for"
    if name in given:
        return f"--{name}: the file has {evidence}, got {given[name]}"
    default = table[name].default
    ending = "" if isinstance(value, bool) else f", the default is {default}"
    return f"--{name} {value} is missing: the file has {evidence}{ending}"


def _wrong_levels(shape: Shape, full: Mapping[str, Value], given: Mapping[str, Value], program: Program) -> list[str]:
    """The lines about the image size, the widths of the levels, and those with attention."""
    name = "large_size" if shape.kind == "super-resolution" else "image_size"
    size, has, step = cast(int, full[name]), flag_text(shape.channel_mult), 2 ** (len(shape.widths) - 1)
    if not step <= size <= _MOST_PIXELS or size % step:
        return [f"--{name}: got {size}, expected a multiple of {step} up to {_MOST_PIXELS}: the file has {len(shape.widths)} levels"]
    chosen = numbers(str(full.get("channel_mult", "")))
    mult = chosen or LEVELS[program][shape.kind].get(size)
    fits = mult is not None and _widths(mult, shape) == shape.widths
    pooled = shape.pool_size is None or shape.image_size == size
    if not fits and chosen:
        return [f"--channel_mult: the file has {has}, got {full['channel_mult']}"]
    if (mult is not None and not fits) or not pooled:
        known = (shape.image_size,) if shape.pool_size is not None else shape.table_sizes
        sizes = [other for other in known if other != size]
        if not sizes and "channel_mult" not in flag_table(shape.kind, program) and program == "improved-diffusion":
            return [f"the file has levels of the widths {has}, for which improved-diffusion has no flag"]
        if not sizes:
            return [f"--channel_mult {has} is missing: the file has it, the default for {size} pixels is {flag_text(mult)}"]
        wanted = " or ".join(map(str, sizes))
        got = f"got {size}" if name in given else f"the default is {size}"
        evidence = f"its levels have the widths {has}" if pooled else f"its pooling takes {shape.pool_size}x{shape.pool_size}"
        return [f"--{name}: the file is of {wanted} pixels ({evidence}), {got}"]
    if mult is None and "channel_mult" in flag_table(shape.kind, program):
        return [f"--channel_mult {has} is missing: the file has it, and images of {size} pixels have no default"]
    return _wrong_attention(shape, full, given, size)


def _wrong_attention(shape: Shape, full: Mapping[str, Value], given: Mapping[str, Value], size: int) -> list[str]:
    name = "classifier_attention_resolutions" if shape.kind == "classifier" else "attention_resolutions"
    if set(reached(str(full[name]), size, len(shape.widths))) == set(shape.attention_resolutions(size)):
        return []
    has = flag_text(shape.attention_resolutions(size)) or "none but that of the middle"
    got = f"got {full[name]}" if name in given else f"the default is {full[name]}"
    return [f"--{name}: the file has {has} (of {size} pixels), {got}"]
