"""Weights of DiT.

    model = from_state_dict(torch.load("DiT-XL-2-256x256.pt", weights_only=True))
    model.network(x, t, y)

Shapes say the network (interop/transformers.py). The diffusion is that of all its files: 1,000 timesteps with linear betas, noise
predicted, and the variance between the two bounds learned, for which the network has twice as many outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from torch import Tensor

from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError
from triptych.core.weight_files import checked_weights
from triptych.diffusion.adm import ADM, ADMConfig
from triptych.diffusion.gaussian import GaussianConfig
from triptych.diffusion.model import SamplingConfig
from triptych.interop.flags import LATENT_FLAGS, NUM_HEADS, OriginalFlag, Value, checked_flags
from triptych.interop.transformers import LABEL_DROPOUT, filled, network_of

FLAGS: dict[str, OriginalFlag] = {
    flag.name: flag
    for flag in (
        OriginalFlag("model", "DiT-XL/2", "model"),
        OriginalFlag("image-size", 256, "model"),
        OriginalFlag("num-classes", 1000, "model"),
        NUM_HEADS,
        *LATENT_FLAGS,
    )
}
"""The flags of DiT's train.py and sample.py that describe a model, and ours."""


def from_state_dict(weights: Mapping[str, Tensor], flags: Mapping[str, Any] | None = None) -> ADM:
    """The model of a file's weights, in evaluation mode, with float32 copies of them.

    Its `network(x, t, y)` takes timesteps from 0 to 999. `flags`: the original's, by name; those left out are told by the shapes. Raises
    ConfigError for flags that the shapes contradict, CheckpointError for weights of another network.
    """
    weights = checked_weights(weights, name="the dictionary")
    config, spec = described(weights, checked_flags(flags or {}, FLAGS))
    return cast(ADM, filled(config, spec, weights))


def described(weights: Mapping[str, Tensor], given: Mapping[str, Value]) -> tuple[ADMConfig, DataSpec]:
    """The model that the shapes and the flags that were given describe together. Raises as `from_state_dict` does."""
    network, spec = network_of(weights, given, program="DiT")
    if not network.spare_outputs:
        reason = f"{spec.channels} output channels, where DiT has twice as many as latents have, the second half for the variance"
        raise CheckpointError(f"the file is of another network: {reason}")
    config = ADMConfig(
        network=replace(network, spare_outputs=False),
        diffusion=GaussianConfig(variance="learned_range"),
        class_conditional=True,
        label_dropout=LABEL_DROPOUT,
        sampling=SamplingConfig(steps=250, clip=False),
    )
    return config, spec
