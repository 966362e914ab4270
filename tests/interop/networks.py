"""Small networks of every kind: the originals' flags, weights of their names and shapes, and the originals where they are installed."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

import torch
from torch import Tensor

from tests.diffusion import recorded
from triptych.core.outline import without_weights
from triptych.diffusion.classifier import ClassifierNetwork
from triptych.diffusion.unet import EncoderConfig, UNet, UNetConfig

DIFFUSION: dict[str, Any] = {
    "image_size": 16,
    "num_channels": 32,
    "num_res_blocks": 1,
    "channel_mult": "1,2",
    "attention_resolutions": "8",
    "num_heads": 2,
    "resblock_updown": True,
    "learn_sigma": True,
    "class_cond": True,
}
CLASSIFIER: dict[str, Any] = {
    "image_size": 16,
    "classifier_width": 64,
    "classifier_depth": 1,
    "classifier_attention_resolutions": "8",
}
UPSAMPLER: dict[str, Any] = {
    "large_size": 64,
    "small_size": 16,
    "num_channels": 32,
    "num_res_blocks": 1,
    "attention_resolutions": "16",
    "class_cond": True,
    "learn_sigma": True,
}


def weights_of(network: torch.nn.Module) -> dict[str, Tensor]:
    """Deterministic weights of the network's names and shapes."""
    return recorded.weights({name: tensor.shape for name, tensor in network.state_dict().items()})


def diffusion_weights(
    *, channels: int = 3, outputs: int = 6, classes: int | None = 1000, size: int = 16, **settings: Any
) -> dict[str, Tensor]:
    """Weights for DIFFUSION, with other settings of the network where they are given."""
    base: dict[str, Any] = {"num_channels": 32, "num_res_blocks": 1, "channel_mult": (1, 2), "attention_resolutions": (8,)}
    config = UNetConfig(**(base | {"num_heads": 2, "resblock_updown": True} | settings))
    with without_weights():
        return weights_of(UNet(config, image_size=size, in_channels=channels, out_channels=outputs, num_classes=classes))


def upsampler_weights() -> dict[str, Tensor]:
    """Weights for UPSAMPLER."""
    mult = {"channel_mult": (1, 2, 3, 4), "attention_resolutions": (16,), "resblock_updown": False}
    return diffusion_weights(channels=6, size=64, **mult)


def classifier_weights(*, pool: Any = "attention", classes: int = 1000, size: int = 16, **settings: Any) -> dict[str, Tensor]:
    """Weights for CLASSIFIER, with other settings where they are given."""
    base: dict[str, Any] = {"num_channels": 64, "num_res_blocks": 1, "channel_mult": (1, 2), "attention_resolutions": (8,)}
    config = EncoderConfig(**(base | {"num_head_channels": 64, "resblock_updown": True} | settings))
    with without_weights():
        return weights_of(ClassifierNetwork(config, image_size=size, in_channels=3, num_classes=classes, pool=pool))


def originals() -> Any:
    """guided_diffusion.script_util, for tests with the marker peer."""
    for name in ("mpi4py", "blobfile"):  # which it imports, and which networks do not need
        if name not in sys.modules:
            module = types.ModuleType(name)
            module.MPI = types.SimpleNamespace()  # type: ignore[attr-defined]
            sys.modules[name] = module
    return importlib.import_module("guided_diffusion.script_util")
