"""EDM2's networks: the configuration that the names and shapes of a file show. The names of tensors are ours.

A file has the average of a Precond, Fourier features and the uncertainty of the loss included. Networks of latents (4 channels) were
trained on those of another program's autoencoder, which is not in the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError
from triptych.core.model import ModelConfig
from triptych.core.wording import counted
from triptych.diffusion.edm2 import EDM2Config
from triptych.diffusion.edm2_network import EDM2NetworkConfig
from triptych.interop.nvidia.edm import levels_of_training
from triptych.interop.nvidia.family import Family, Part
from triptych.interop.nvidia.snapshots import Network, Snapshot
from triptych.interop.programs import LatentScale
from triptych.interop.shapes import Shapes

_ENCODER = "unet.enc."
_MOST_BLOCKS, _MOST_SIDE, _MOST_CHANNELS = 100, 4096, 64
_CONSTANTS = {
    "label_balance": 0.5,
    "concat_balance": 0.5,
    "res_balance": 0.3,
    "attn_balance": 0.3,
    "clip_act": 256,
    "logvar_channels": 128,
    "resample_filter": [1, 1],
}
"""Settings of the original that are no settings here."""


def _read(network: Network, discriminator: Network | None) -> tuple[EDM2Config, DataSpec]:
    shapes, settings = Shapes(network.tensors), network.settings
    for name, value in _CONSTANTS.items():
        if settings.get(name, value) != value:
            raise CheckpointError(f"has {name} {settings[name]!r:.40}, expected {value}, which is what every network here has")
    sides = sorted((int(match[1]) for match in map(_LEVEL.fullmatch, network.tensors) if match), reverse=True)
    if not sides or sides[0] > _MOST_SIDE:
        raise CheckpointError(f"the file is incomplete: it has no {_ENCODER}RxR_block0 of a size R up to {_MOST_SIDE}")
    size = sides[0]
    first, inputs, *_ = shapes.shape(f"{_ENCODER}{size}x{size}_conv.weight", axes=4)
    if not 2 <= inputs <= _MOST_CHANNELS + 1:
        raise CheckpointError(f"takes {counted(inputs, 'channel')}, expected 2 to {_MOST_CHANNELS + 1}, one of them of ones")
    classes = shapes.shape("unet.emb_label.weight", axes=2)[1] if shapes.has("unet.emb_label.") else None
    blocks = shapes.count(f"{_ENCODER}{size}x{size}_block", ".conv_res0.weight")
    if not 1 <= blocks <= _MOST_BLOCKS:
        raise CheckpointError(f"has {blocks} blocks {_ENCODER}{size}x{size}_blockN, expected 1 to {_MOST_BLOCKS}")
    widths = [shapes.shape(f"{_ENCODER}{side}x{side}_block0.conv_res1.weight", axes=4)[0] for side in sides]
    base = int(_number(settings, "model_channels", first))
    if base < 1 or any(width % base for width in widths):
        raise CheckpointError(f"has levels of {', '.join(map(str, widths))} channels, expected multiples of {base}")
    config = EDM2Config(
        network=EDM2NetworkConfig(
            num_channels=base,
            channel_mult=tuple(width // base for width in widths),
            num_blocks=blocks,
            attention_resolutions=tuple(side for side in sides if shapes.has(f"{_ENCODER}{side}x{side}_block0.attn_qkv.")),
            num_head_channels=int(_number(settings, "channels_per_head", 64)),
            dropout=_number(settings, "dropout", 0.0),
        ),
        sigma_data=_number(settings, "sigma_data", 0.5),
        class_conditional=classes is not None,
    )
    return config, DataSpec(image_size=size, channels=inputs - 1, num_classes=classes)


_LEVEL = re.compile(rf"{re.escape(_ENCODER)}(\d{{1,6}})x\1_block0\.conv_res0\.weight")


def _number(settings: Mapping[str, Any], name: str, default: float) -> float:
    value = settings.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
        raise CheckpointError(f"has {name} {value!r:.40}, expected a number")
    return value


def _training(config: ModelConfig, snapshot: Snapshot) -> EDM2Config:
    """With what loss_fn says."""
    assert isinstance(config, EDM2Config)
    return replace(config, **levels_of_training(snapshot))


def _original_name(name: str, part: Part, config: ModelConfig, spec: DataSpec) -> str:
    return name


def _built_with(config: ModelConfig, spec: DataSpec) -> dict[Part, dict[str, Any]]:
    """The arguments of Precond."""
    assert isinstance(config, EDM2Config)
    network = config.network
    return {
        "network": {
            "img_resolution": spec.image_size,
            "img_channels": spec.channels,
            "label_dim": (spec.num_classes or 0) if config.class_conditional else 0,
            "sigma_data": config.sigma_data,
            "model_channels": network.num_channels,
            "channel_mult": list(network.channel_mult),
            "num_blocks": network.num_blocks,
            "attn_resolutions": list(network.attention_resolutions),
            "channels_per_head": network.num_head_channels,
            "dropout": network.dropout,
        }
    }


EDM2 = Family(
    config=EDM2Config,
    architecture=("network", "class_conditional", "sigma_data"),
    read=_read,
    original_name=_original_name,
    constants=".resample_filter",
    built_with=_built_with,
    latents=LatentScale(mean=(5.81, 3.25, 0.12, -2.15), std=(4.17, 4.62, 3.71, 3.28), scaled_to=0.5, darkest=0.0),
    notes=("EDM2: Precond(**settings of the .json), then load_state_dict of the file",),
    parts=("network",),
    training=_training,
)
