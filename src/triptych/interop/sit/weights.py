"""Weights of SiT, in and out.

    model = from_state_dict(torch.load("SiT-XL-2-256x256.pt", weights_only=True))
    model.network(x, t, y)

Our transformer has the original's names and shapes but for `pos_embed`, which is a formula and is compared with it. Shapes say all but the
number of heads, which follows from a published width, the path and the prediction, which are flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.outline import without_weights
from triptych.core.weight_files import check_fit, checked_weights
from triptych.diffusion.continuous import LevelSamplingConfig
from triptych.diffusion.dit import DiT, DiTConfig, position_table
from triptych.diffusion.flow_matching import FlowMatching, FlowMatchingConfig
from triptych.interop.flags import Value, checked_flags
from triptych.interop.shapes import Shapes
from triptych.interop.sit.flags import FLAGS, LATENT_FACTOR, PATCHES, PATHS, PREDICTIONS, SIZES

POSITIONS = "pos_embed"
_TABLE_ERROR = 1e-5  # of sines and cosines in float32; measured: 1e-7
_LABEL_DROPOUT = 0.1  # of the original's training


def from_state_dict(weights: Mapping[str, Tensor], flags: Mapping[str, Any] | None = None) -> FlowMatching:
    """The model of a file's weights, in evaluation mode, with float32 copies of them.

    Its `network(x, t, y)` takes times from 0 to 1. `flags`: the original's, by name; those left out are told by the shapes, or have their
    defaults. Raises ConfigError for flags that the shapes contradict, CheckpointError for weights of another network.
    """
    weights = checked_weights(weights, name="the dictionary")
    config, spec = described(weights, checked_flags(flags or {}, FLAGS))
    return filled(config, spec, weights)


def described(weights: Mapping[str, Tensor], given: Mapping[str, Value]) -> tuple[FlowMatchingConfig, DataSpec]:
    """The model that the shapes and the flags that were given describe together. Raises as `from_state_dict` does."""
    shapes = Shapes(weights)
    width, channels, patch, _ = shapes.shape("x_embedder.proj.weight", axes=4)
    depth = shapes.count("blocks.", ".attn.qkv.weight")
    tokens = shapes.shape(POSITIONS, axes=3)[1]
    rows = round(tokens**0.5)
    outputs = shapes.shape("final_layer.linear.weight", axes=2)[0] // patch**2
    if rows**2 != tokens or outputs not in (channels, 2 * channels):
        raise CheckpointError(f"the file is of another network: {tokens} positions, {outputs} output channels for {channels} of the input")
    classes = shapes.shape("y_embedder.embedding_table.weight", axes=2)[0] - 1
    network = {
        "patch": patch,
        "width": width,
        "depth": depth,
        "heads": _heads(given, width=width, depth=depth, patch=patch),
        "spare_outputs": outputs == 2 * channels,
    }
    size = rows * patch
    for name, has in (("image-size", size * LATENT_FACTOR), ("num-classes", classes)):
        if given.get(name, has) != has:
            raise ConfigError(f"--{name}", f"the file has {has}, got {given[name]}")
    path, prediction = (str(given.get(name, FLAGS[name].default)) for name in ("path-type", "prediction"))
    for name, value, allowed in (("path-type", path, PATHS), ("prediction", prediction, PREDICTIONS)):
        if value not in allowed:
            raise ConfigError(f"--{name}", f"got {value!r}, expected one of {', '.join(allowed)}")
    config = FlowMatchingConfig(
        network=DiTConfig(**network),
        path=cast(Any, PATHS[path]),
        prediction=cast(Any, prediction),
        class_conditional=True,
        label_dropout=_LABEL_DROPOUT,
        sampling=LevelSamplingConfig(sampler="sde-euler", steps=250),
    )
    return config, DataSpec(image_size=size, channels=channels, num_classes=classes)


def _heads(given: Mapping[str, Value], *, width: int, depth: int, patch: int) -> int:
    """By the published size of this width, or by the name of the model that was given."""
    names = {f"SiT-{size}/{side}": (*numbers, side) for size, numbers in SIZES.items() for side in PATCHES}
    name = given.get("model")
    if name is not None:
        if name not in names:
            raise ConfigError("--model", f"got {name!r}, expected one of {', '.join(names)}")
        wide, deep, heads, side = names[str(name)]
        if (wide, deep, side) != (width, depth, patch):
            raise ConfigError("--model", f"the file has width {width}, depth {depth} and patches of {patch}, got {name}")
        return heads
    found = [heads for wide, _, heads in SIZES.values() if wide == width]
    if not found:
        widths = ", ".join(str(wide) for wide, _, _ in SIZES.values())
        raise CheckpointError(f"its width is {width}, and nothing in the file says how many heads that has (known are {widths})")
    return found[0]


def filled(config: FlowMatchingConfig, spec: DataSpec, weights: Mapping[str, Tensor]) -> FlowMatching:
    """The model with a file's weights, in evaluation mode; a CheckpointError names the first tensor that is wrong."""
    with without_weights():
        model = config.build(spec)
    model.to_empty(device="cpu")
    network = cast(DiT, model.network)
    expected, table = dict(network.state_dict()), positions(network)
    check_fit(expected | {POSITIONS: table}, weights)
    if (weights[POSITIONS].float() - table).abs().max() > _TABLE_ERROR:
        raise CheckpointError(f"{POSITIONS} is not the table of sines and cosines of its size, so this is another network")
    network.load_state_dict({name: weights[name] for name in expected})
    return model.eval()


def positions(network: DiT) -> Tensor:
    """The table of positions of the network's images, as files have it: float32 (1, patches, width)."""
    height, width = network.image_size
    side = network.config.patch
    return position_table(height // side, width // side, network.config.width).float()


@torch.no_grad()
def to_state_dict(model: FlowMatching) -> dict[str, Tensor]:
    """The weights under the original's names: float32 copies, contiguous, on the CPU."""
    network = cast(DiT, model.network)
    state = {name: tensor.detach().to("cpu", torch.float32, copy=True).contiguous() for name, tensor in network.state_dict().items()}
    return {POSITIONS: positions(network)} | state
