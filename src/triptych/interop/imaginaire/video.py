"""Networks of vid2vid as the names and shapes of imaginaire's weights describe them; the rest is as the file's section `gen` says."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from triptych.core.errors import CheckpointError
from triptych.gans.discriminators import PatchDiscriminatorConfig
from triptych.gans.video_networks import (
    EmbeddingConfig,
    FlowNetworkConfig,
    Vid2VidGenerator,
    Vid2VidGeneratorConfig,
    VideoDiscriminator,
    VideoDiscriminatorConfig,
)
from triptych.interop.imaginaire.networks import MOST_STEPS
from triptych.interop.imaginaire.reading import Settings
from triptych.interop.imaginaire.shapes import Network, Weights

_MULTIPLIER = 20.0
"""Of the flow, where the file says nothing."""


def is_vid2vid(config: Any) -> bool:
    """Whether the sections of a YAML file are those of vid2vid."""
    gen = config.get("gen") if isinstance(config, Mapping) else None
    return isinstance(gen, Mapping) and str(gen.get("type")).rpartition(".")[2] == "vid2vid"


def vid2vid_generator(weights: Weights, gen: Settings) -> Network:
    """The generator with such weights. Raises CheckpointError for another network, ConfigError for a wrong setting."""
    flow, embedding = "flow_network_temp", "label_embedding"
    filters, image_channels = weights.weight("down_first.layers.conv")[:2]
    label_filters, label_channels = weights.weight(f"{embedding}.conv_first.layers.conv")[:2]
    layers = min(max(weights.numbers("up_", "."), default=0), MOST_STEPS)
    combined = sum(weights.has(f"up_{level}.conv_block_0.layers.norm.mlps.1.") for level in range(layers + 1))
    first = weights.weight(f"up_{layers}.conv_block_0.layers.conv")[1]
    seen = weights.weight(f"{flow}.down_lbl.0.layers.conv")
    label_input = len(weights.shape("fc.layers.conv.weight", axes=2)) == 4
    config = Vid2VidGeneratorConfig(
        num_filters=filters,
        max_num_filters=first,
        num_layers=max(1, layers),
        num_downsamples=max(1, weights.count("down_", ".conv_block_0.") - 1),
        spade_kernel_size=weights.weight("up_0.conv_block_0.layers.norm.mlps.0.0.layers.conv")[2],
        combined=combined,
        frames=max(2, seen[1] // label_channels),
        label_input=label_input,
        style_dims=Vid2VidGeneratorConfig().style_dims if label_input else weights.shape("fc.layers.conv.weight", axes=2)[1],
        weight_norm=weights.weight_norm,
        embedding=EmbeddingConfig(num_filters=label_filters, num_downsamples=_steps(weights, f"{embedding}.down_", ".")),
        flow=FlowNetworkConfig(
            num_filters=seen[0],
            num_downsamples=_steps(weights, f"{flow}.down_lbl.", ".") - 1 or 1,
            num_res_blocks=weights.count(f"{flow}.res_flow.", ".conv_block_0."),
            multiplier=gen.inside("flow").positive("flow_output_multiplier", _MULTIPLIER),
        ),
    )
    if label_input:
        return Network(Vid2VidGenerator, config, image_channels, label_channels=label_channels)
    pixels = weights.shape("fc.layers.conv.weight", axes=2)[0] // first
    side = math.isqrt(pixels)
    if side**2 != pixels:
        raise CheckpointError(f"fc.layers.conv.weight makes a first map of {pixels} pixels, expected a square")
    make = functools.partial(Vid2VidGenerator, image_size=(side << layers, side << layers))
    return Network(make, config, image_channels, label_channels=label_channels)


def vid2vid_discriminator(weights: Weights, dis: Settings) -> Network:
    """The discriminators of single frames, and of several, with such weights. Raises CheckpointError for other networks."""
    images = dis.number("image_channels", 3)
    patch, channels = _patches(weights, "net_D")
    scales = weights.count("net_DT", ".")
    several = {}
    if scales:
        temporal, seen = _patches(weights, "net_DT0")
        several = {"temporal": temporal, "temporal_scales": scales, "temporal_frames": max(2, seen // images)}
    return Network(VideoDiscriminator, VideoDiscriminatorConfig(patch=patch, **several), images, label_channels=max(1, channels - images))


def _steps(weights: Weights, start: str, end: str) -> int:
    return max(1, min(weights.count(start, end), MOST_STEPS))


def _patches(weights: Weights, root: str) -> tuple[PatchDiscriminatorConfig, int]:
    """Discriminators of patches, and the channels that they take."""
    first = f"{root}.discriminator_0"
    layers = weights.count(f"{first}.layer", ".")
    filters, channels, kernel_size = weights.weight(f"{first}.layer0.0.layers.conv")[:3]
    config = PatchDiscriminatorConfig(
        num_discriminators=max(1, weights.count(f"{root}.discriminator_", ".")),
        kernel_size=kernel_size,
        num_filters=filters,
        max_num_filters=weights.weight(f"{first}.layer{layers - 2}.0.layers.conv")[0],
        num_layers=max(1, layers - 2),
        norm="instance" if weights.has(f"{first}.layer0.0.layers.norm.") else "none",
        weight_norm=weights.norm_of(f"{first}.layer0.0.layers.conv"),
    )
    return config, channels
