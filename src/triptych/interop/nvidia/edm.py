"""EDM's networks: the configuration that the names and shapes of a file show, and its names of tensors and ours.

A file has the average of EDMPrecond, whose network is `model`: SongUNet (DDPM++ or NCSN++) or DhariwalUNet (ADM), and, as their training
writes it, the numbers of loss_fn (P_mean, P_std) and of augment_pipe. The names of the first
are ours. Those of the second go by resolution, where ours, guided-diffusion's, count input and output blocks; its rows of qkv are counted
(head, channel, q/k/v).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.model import ModelConfig
from triptych.diffusion.blocks import split_rows
from triptych.diffusion.edm import EDMConfig
from triptych.diffusion.edm_augmentation import AUGMENT_DIMS, NonLeakingConfig
from triptych.diffusion.edm_networks import ADMUNetConfig, SongUNetConfig
from triptych.diffusion.unet import levels_of
from triptych.interop.nvidia.family import Family, Part, checked_spec
from triptych.interop.nvidia.snapshots import Network, Snapshot
from triptych.interop.shapes import Shapes
from triptych.nn.filters import BINOMIAL

_BOX = (1.0, 1.0)
_ENCODER, _DECODER = "model.enc.", "model.dec."
_MOST_BLOCKS, _MOST_SIDE = 100, 4096
_HEAD_CHANNELS = 64  # of ADM in EDM, whatever the file says
_LEAST_WIDTH = 128  # of ADM: below, EDM's norms have groups of four channels, and ours 32 groups
_P = {True: 0.12, False: 0.15}
"""How often the published networks saw a changed image: at 32 pixels and below, and above. A file of an average alone does not say."""
_CHANGES = {"yflip": "y_flip", "scale": "scaling", "rotate_frac": "rotation", "aniso": "anisotropy", "translate_frac": "translation"}
"""Multipliers of augment_pipe, and ours."""


# What a file shows ------------------------------------------------------------------------------------------------------------


def _read(network: Network, discriminator: Network | None) -> tuple[EDMConfig, DataSpec]:
    if network.class_name != "EDMPrecond":
        raise CheckpointError(
            f"is a network of the class {network.class_name:.40}, whose preconditioning is not EDM's; expected EDMPrecond"
        )
    shapes, settings = Shapes(network.tensors), network.settings
    sides = shapes.numbers(_ENCODER, "x")
    if not sides or max(sides) > _MOST_SIDE:
        raise CheckpointError(f"the file is incomplete: it has no {_ENCODER}RxR of a size R up to {_MOST_SIDE}")
    size = max(sides)
    width, channels, *_ = shapes.shape(f"{_ENCODER}{size}x{size}_conv.weight", axes=4)
    adm = shapes.has("model.out_conv.")
    if adm:  # whose first level may be wider than model_channels
        width = shapes.shape("model.map_layer0.weight", axes=2)[1]
    classes = shapes.shape("model.map_label.weight", axes=2)[1] if shapes.has("model.map_label.") else None
    spec = checked_spec(image_size=size, channels=channels, num_classes=classes)
    config = EDMConfig(
        network=(_adm if adm else _song)(shapes, settings, sorted(sides, reverse=True), width),
        class_conditional=classes is not None,
        sigma_data=_number(settings.get("sigma_data"), 0.5),
        augmentation=_augmentation(shapes, size),
    )
    return config, spec


def _augmentation(shapes: Shapes, size: int) -> NonLeakingConfig:
    if not shapes.has("model.map_augment."):
        return NonLeakingConfig()
    dims = shapes.shape("model.map_augment.weight", axes=2)[1]
    if dims != AUGMENT_DIMS:
        raise CheckpointError(f"is told {dims} numbers of augmentation, expected {AUGMENT_DIMS}")
    return NonLeakingConfig(p=_P[size <= 32])


def _training(config: ModelConfig, snapshot: Snapshot) -> EDMConfig:
    """With the label dropout that the network was built with, and what loss_fn and augment_pipe say."""
    assert isinstance(config, EDMConfig)
    dropout = _number(snapshot.maker.settings.get("label_dropout"), 0.0)
    if config.class_conditional and dropout < 1:
        config = replace(config, label_dropout=dropout)
    pipe, told = snapshot.training.get("augment_pipe", {}), config.augmentation.p > 0
    if told and 0 < pipe.get("p", math.nan) <= 1:
        changes = {ours: pipe[theirs] for theirs, ours in _CHANGES.items() if theirs in pipe}
        config = replace(config, augmentation=NonLeakingConfig(p=pipe["p"], x_flip=pipe.get("xflip", 1) > 0, **changes))
    return replace(config, **levels_of_training(snapshot))


def levels_of_training(snapshot: Snapshot) -> dict[str, float]:
    """The settings of a `PreconditionedConfig` that loss_fn says."""
    found = snapshot.training.get("loss_fn", {})
    return {ours: found[theirs] for theirs, ours in (("P_mean", "noise_mean"), ("P_std", "noise_std")) if theirs in found}


def _song(shapes: Shapes, settings: Mapping[str, Any], sides: list[int], width: int) -> SongUNetConfig:
    for part in ("aux_skip", "aux_up"):
        if any(part in name for name in shapes.state):
            raise CheckpointError(f"has layers {part}, which no network here has; expected DDPM++ or NCSN++ as EDM has them")
    waves = shapes.shape("model.map_layer0.weight", axes=2)[1]
    residual, fourier = any("aux_residual" in name for name in shapes.state), shapes.has("model.map_noise.")
    filters = [tensor for name, tensor in shapes.state.items() if name.endswith(".resample_filter")]
    return SongUNetConfig(
        num_channels=width,
        embedding="fourier" if fourier else "positional",
        embedding_mult=max(waves // width, 1),
        encoder="residual" if residual else "standard",
        resample_filter=BINOMIAL if filters and filters[0].numel() == len(BINOMIAL) ** 2 else _BOX,
        **_common(shapes, settings, sides, width, blocks="num_blocks"),
    )


def _adm(shapes: Shapes, settings: Mapping[str, Any], sides: list[int], width: int) -> ADMUNetConfig:
    if width < _LEAST_WIDTH:
        raise CheckpointError(
            f"is ADM's network of {width} channels, whose norms have fewer groups than here; expected {_LEAST_WIDTH} or more"
        )
    common = _common(shapes, settings, sides, width, blocks="num_res_blocks")
    return ADMUNetConfig(num_channels=width, num_head_channels=_HEAD_CHANNELS, **common)


def _common(shapes: Shapes, settings: Mapping[str, Any], sides: list[int], width: int, *, blocks: str) -> dict[str, Any]:
    """The settings that both networks have, of the encoder's blocks."""
    first = f"{_ENCODER}{sides[0]}x{sides[0]}_block"
    count = shapes.count(first, ".conv0.weight")
    if not 1 <= count <= _MOST_BLOCKS:
        raise CheckpointError(f"has {count} blocks {first}N, expected 1 to {_MOST_BLOCKS}")
    widths = [shapes.shape(f"{_ENCODER}{side}x{side}_block0.conv0.weight", axes=4)[0] for side in sides]
    attended = tuple(side for side in sides if shapes.has(f"{_ENCODER}{side}x{side}_block0.qkv."))
    mults = tuple(max(level // width, 1) for level in widths)
    dropout = _number(settings.get("dropout"), 0.1)
    own: dict[str, Any] = {"channel_mult": mults, blocks: count, "attention_resolutions": attended}
    return own | {"dropout": dropout if 0 <= dropout < 1 else 0.1}


def _number(value: Any, default: float) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e6 else default


# Names -----------------------------------------------------------------------------------------------------------------------


def _original_name(name: str, part: Part, config: ModelConfig, spec: DataSpec) -> str:
    assert isinstance(config, EDMConfig)
    network = config.network
    return f"model.{_adm_name(name, network, spec.image_size) if isinstance(network, ADMUNetConfig) else name}"


def _adm_name(name: str, network: ADMUNetConfig, image_size: int) -> str:
    """DhariwalUNet's name of a tensor of ADM's U-Net."""
    sizes, blocks = levels_of(network, image_size=image_size).sizes, network.num_res_blocks + 1
    match name.split("."):
        case ["time_embed", number, kind]:
            return f"map_layer{int(number) // 2}.{kind}"
        case ["label_emb", kind]:
            return f"map_label.{kind}"
        case ["out", number, kind]:
            return f"{'out_norm' if number == '0' else 'out_conv'}.{kind}"
        case ["input_blocks", "0", _, kind]:
            return f"enc.{sizes[0]}x{sizes[0]}_conv.{kind}"
        case ["input_blocks", number, _, *rest]:
            level, block = divmod(int(number) - 1, blocks)
            size = sizes[level + 1 if block == blocks - 1 else level]
            return f"enc.{size}x{size}_{'down' if block == blocks - 1 else f'block{block}'}.{_layer_name(rest)}"
        case ["middle_block", number, *rest]:
            return f"dec.{sizes[-1]}x{sizes[-1]}_in{int(number) // 2}.{_layer_name(rest)}"
        case ["output_blocks", number, layer, *rest]:
            from_lowest, block = divmod(int(number), blocks)
            level = len(sizes) - 1 - from_lowest
            up = layer != "0" and rest[0] not in _ATTENTION
            size = sizes[level - 1 if up else level]
            return f"dec.{size}x{size}_{'up' if up else f'block{block}'}.{_layer_name(rest)}"
    return name


_ATTENTION = {"norm": "norm2", "qkv": "qkv", "proj_out": "proj"}
_RESIDUAL = {
    "in_layers.0": "norm0",
    "in_layers.2": "conv0",
    "emb_layers.1": "affine",
    "out_layers.0": "norm1",
    "out_layers.3": "conv1",
    "skip_connection": "skip",
}


def _layer_name(rest: list[str]) -> str:
    """Of a layer of a block, and weight or bias."""
    *layer, kind = rest
    return f"{(_ATTENTION | _RESIDUAL)['.'.join(layer)]}.{kind}"


# Layouts: of ADM alone, which is told labels by a table here and by a matrix there, and counts the rows of qkv in another way -----------


def _to_original(name: str, tensor: Tensor, config: ModelConfig) -> Tensor:
    network = _adm_of(config)
    if network is None:
        return tensor
    if name.startswith("label_emb."):
        return tensor.T
    if ".qkv." in name:
        heads = len(tensor) // (3 * _HEAD_CHANNELS)
        rows = [part.unflatten(0, (heads, -1)) for part in split_rows(tensor, heads=heads, order=network.attention_order)]
        tensor = torch.stack(rows, dim=2).flatten(0, 2)
    return tensor[..., None] if tensor.ndim == 3 else tensor


def _to_ours(name: str, tensor: Tensor, config: ModelConfig) -> Tensor:
    if _adm_of(config) is None:
        return tensor
    if name.startswith("label_emb."):
        return tensor.T
    if ".qkv." in name:
        rows = tensor.unflatten(0, (-1, _HEAD_CHANNELS, 3))
        tensor = rows.movedim(2, 1).flatten(0, 2)  # the legacy order, which the networks that are read have
    return tensor.squeeze(3) if name.endswith(("qkv.weight", "proj_out.weight")) else tensor


def _adm_of(config: ModelConfig) -> ADMUNetConfig | None:
    assert isinstance(config, EDMConfig)
    return config.network if isinstance(config.network, ADMUNetConfig) else None


# Out -------------------------------------------------------------------------------------------------------------------------


def _built_with(config: ModelConfig, spec: DataSpec) -> dict[Part, dict[str, Any]]:
    """The arguments of EDMPrecond. Raises ConfigError for what it has no arguments for."""
    assert isinstance(config, EDMConfig)
    network = config.network
    images = {
        "img_resolution": spec.image_size,
        "img_channels": spec.channels,
        "label_dim": (spec.num_classes or 0) if config.class_conditional else 0,
        "sigma_data": config.sigma_data,
        "augment_dim": config.augmentation.dims,
    }
    assert isinstance(network, ADMUNetConfig | SongUNetConfig)
    if isinstance(network, SongUNetConfig):
        if network.num_heads != 1:
            raise ConfigError("to", f"EDM's DDPM++ and NCSN++ have one attention head, this run's network has {network.num_heads}")
        own = {
            "model_type": "SongUNet",
            "num_blocks": network.num_blocks,
            "channel_mult": list(network.channel_mult),
            "embedding_type": network.embedding,
            "channel_mult_noise": network.embedding_mult,
            "encoder_type": network.encoder,
            "decoder_type": "standard",
            "resample_filter": [int(tap) for tap in network.resample_filter],
        }
    else:
        levels = levels_of(network, image_size=spec.image_size)
        alike = network.num_head_channels == _HEAD_CHANNELS and network.resblock_updown and network.scale_shift_norm
        if not alike or min(levels.widths) < _LEAST_WIDTH or any(width % network.num_channels for width in levels.widths):
            wanted = f"heads of {_HEAD_CHANNELS} channels, {_LEAST_WIDTH} channels or more, scale and shift, and blocks that resample"
            raise ConfigError("to", f"EDM's ADM has {wanted}; this run's is another")
        own = {
            "model_type": "DhariwalUNet",
            "num_blocks": network.num_res_blocks,
            "channel_mult": [width // network.num_channels for width in levels.widths],
        }
    common = {
        "model_channels": network.num_channels,
        "attn_resolutions": list(network.attention_resolutions),
        "dropout": network.dropout,
        "label_dropout": config.label_dropout,
    }
    return {"network": images | own | common}


def _taps(config: ModelConfig) -> tuple[float, ...]:
    assert isinstance(config, EDMConfig)
    return config.network.resample_filter if isinstance(config.network, SongUNetConfig) else _BOX


EDM = Family(
    config=EDMConfig,
    architecture=("network", "class_conditional", "sigma_data", "augmentation"),
    read=_read,
    original_name=_original_name,
    constants=".resample_filter",
    built_with=_built_with,
    notes=(
        "EDM: EDMPrecond(**settings of the .json), then load_state_dict of the file with strict=False, for it makes resample_filter itself",
    ),
    parts=("network",),
    taps=_taps,
    training=_training,
    to_original=_to_original,
    to_ours=_to_ours,
)
