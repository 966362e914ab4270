"""R3GAN's networks: its names of tensors and ours, and the configuration that the shapes show.

A generator has MainLayers from the lowest resolution on: first what raises the resolution (Layers.0, in the lowest the learned basis),
then the blocks. A discriminator has them from the highest on: the blocks, then what lowers the resolution (in the lowest the weights of
the pixels).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError
from triptych.core.model import ModelConfig
from triptych.gans.r3gan import R3GANConfig, R3GANNetworkConfig
from triptych.interop.nvidia.family import Family, Part, checked_spec
from triptych.interop.nvidia.snapshots import Network
from triptych.interop.shapes import Shapes

_LAYERS, _EMBEDDING = "Model.MainLayers.", "Model.EmbeddingLayer.weight"
_MOST_STAGES = 12


def _original_name(name: str, part: Part, config: ModelConfig, spec: DataSpec) -> str:
    assert isinstance(config, R3GANConfig)
    network = config.generator if part == "generator" else config.discriminator
    between, first_block = (0, 1) if part == "generator" else (network.num_blocks, 0)
    end = f"{_LAYERS}{0 if part == 'generator' else len(network.widths) - 1}.Layers.{between}"
    match name.split("."):
        case ["basis"]:
            return f"{end}.Basis"
        case ["basis", "weight"]:
            return f"{end}.Basis.weight"
        case ["linear", "weight"]:
            return f"{end}.LinearLayer.weight"
        case ["embedding", "weight"]:
            return _EMBEDDING
        case ["to_image", "weight"]:
            return "Model.AggregationLayer.Layer.weight"
        case ["from_image", "weight"]:
            return "Model.ExtractionLayer.Layer.weight"
        case ["stages", stage, "transition", "weight"]:
            return f"{_LAYERS}{stage}.Layers.{between}.LinearLayer.Layer.weight"
        case ["stages", stage, "blocks", block, conv, "weight"]:
            return f"{_LAYERS}{stage}.Layers.{int(block) + first_block}.LinearLayer{conv.removeprefix('conv')}.Layer.weight"
        case ["stages", stage, "blocks", block, conv, "bias"]:
            return f"{_LAYERS}{stage}.Layers.{int(block) + first_block}.NonLinearity{conv.removeprefix('conv')}.Bias"
    raise AssertionError(f"{name} has no name in the original")


def _read(generator: Network, discriminator: Network | None) -> tuple[R3GANConfig, DataSpec]:
    shapes = Shapes(generator.tensors)
    network = _network(shapes, first_block=1, settings=generator.settings)
    class_dims, classes, *_ = shapes.shape(_EMBEDDING, axes=2) if shapes.has(_EMBEDDING) else (R3GANConfig().class_dims, None)
    _, inputs, *_ = shapes.shape(f"{_LAYERS}0.Layers.0.LinearLayer.weight", axes=2)
    _, lowest, *_ = shapes.shape(f"{_LAYERS}0.Layers.0.Basis", axes=3)
    channels, *_ = shapes.shape("Model.AggregationLayer.Layer.weight", axes=4)
    spec = checked_spec(image_size=lowest * 2 ** (len(network.widths) - 1), channels=channels, num_classes=classes)
    other = network
    if discriminator is not None:
        other = _network(Shapes(discriminator.tensors), first_block=0, settings=discriminator.settings)
        other = replace(other, widths=other.widths[::-1])
    config = R3GANConfig(
        generator=network,
        discriminator=other,
        latent_dims=inputs - (0 if classes is None else class_dims),
        class_dims=class_dims,
        class_conditional=classes is not None,
    )
    return config, spec


def _network(shapes: Shapes, *, first_block: int, settings: Mapping[str, Any]) -> R3GANNetworkConfig:
    """The network with such weights, its widths in the order of MainLayers."""
    stages = shapes.count(_LAYERS, f".Layers.{first_block}.LinearLayer1.Layer.weight")
    if not 1 <= stages <= _MOST_STAGES:
        raise CheckpointError(f"has {stages} MainLayers with blocks, expected 1 to {_MOST_STAGES}")
    firsts = [shapes.shape(f"{_LAYERS}{stage}.Layers.{first_block}.LinearLayer1.Layer.weight", axes=4) for stage in range(stages)]
    half = settings.get("FP16Stages")
    return R3GANNetworkConfig(
        widths=tuple(width for _, width, *_ in firsts),
        num_blocks=shapes.count(f"{_LAYERS}0.Layers.", ".LinearLayer1.Layer.weight"),
        expansion=max(firsts[0][0] // firsts[0][1], 1),
        group_channels=shapes.shape(f"{_LAYERS}0.Layers.{first_block}.LinearLayer2.Layer.weight", axes=4)[1],
        half_stages=min(len(half), stages) if isinstance(half, list | tuple) else min(stages - 1, 4),
    )


def _built_with(config: ModelConfig, spec: DataSpec) -> dict[Part, dict[str, Any]]:
    assert isinstance(config, R3GANConfig)

    def described(network: R3GANNetworkConfig) -> dict[str, Any]:
        return {
            "widths, the lowest resolution first": list(network.widths),
            "groups": [network.expansion * width // network.group_channels for width in network.widths],
            "blocks of a resolution": network.num_blocks,
            "expansion": network.expansion,
            "image channels": spec.channels,
            "classes": spec.num_classes if config.class_conditional else 0,
        }

    noise = {"numbers of z": config.latent_dims, "numbers of the class": config.class_dims}
    return {"generator": described(config.generator) | noise, "discriminator": described(config.discriminator)}


R3GAN = Family(
    config=R3GANConfig,
    architecture=("generator", "discriminator", "latent_dims", "class_dims", "class_conditional"),
    read=_read,
    original_name=_original_name,
    constants=".Resampler.Kernel",
    built_with=_built_with,
    notes=("load it with strict=False into R3GAN's own networks, which make Resampler.Kernel themselves",),
)
