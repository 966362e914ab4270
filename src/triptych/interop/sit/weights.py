"""Weights of SiT, in and out.

    model = from_state_dict(torch.load("SiT-XL-2-256x256.pt", weights_only=True))
    model.network(x, t, y)

Shapes say the network (interop/transformers.py); the path and the prediction are flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError
from triptych.core.weight_files import checked_weights
from triptych.diffusion.continuous import LevelSamplingConfig
from triptych.diffusion.dit import DiT
from triptych.diffusion.flow_matching import FlowMatching, FlowMatchingConfig
from triptych.interop.flags import Value, checked_flags
from triptych.interop.sit.flags import FLAGS, PATHS, PREDICTIONS
from triptych.interop.transformers import LABEL_DROPOUT, POSITIONS, filled, network_of, positions


def from_state_dict(weights: Mapping[str, Tensor], flags: Mapping[str, Any] | None = None) -> FlowMatching:
    """The model of a file's weights, in evaluation mode, with float32 copies of them.

    Its `network(x, t, y)` takes times from 0 to 1. `flags`: the original's, by name; those left out are told by the shapes, or have their
    defaults. Raises ConfigError for flags that the shapes contradict, CheckpointError for weights of another network.
    """
    weights = checked_weights(weights, name="the dictionary")
    config, spec = described(weights, checked_flags(flags or {}, FLAGS))
    return cast(FlowMatching, filled(config, spec, weights))


def described(weights: Mapping[str, Tensor], given: Mapping[str, Value]) -> tuple[FlowMatchingConfig, DataSpec]:
    """The model that the shapes and the flags that were given describe together. Raises as `from_state_dict` does."""
    network, spec = network_of(weights, given, program="SiT")
    path, prediction = (str(given.get(name, FLAGS[name].default)) for name in ("path-type", "prediction"))
    for name, value, allowed in (("path-type", path, PATHS), ("prediction", prediction, PREDICTIONS)):
        if value not in allowed:
            raise ConfigError(f"--{name}", f"got {value!r}, expected one of {', '.join(allowed)}")
    config = FlowMatchingConfig(
        network=network,
        path=cast(Any, PATHS[path]),
        prediction=cast(Any, prediction),
        class_conditional=True,
        label_dropout=LABEL_DROPOUT,
        sampling=LevelSamplingConfig(sampler="sde-euler", steps=250),
    )
    return config, spec


@torch.no_grad()
def to_state_dict(model: FlowMatching) -> dict[str, Tensor]:
    """The weights under the original's names: float32 copies, contiguous, on the CPU."""
    network = cast(DiT, model.network)
    state = {name: tensor.to("cpu", torch.float32, copy=True).contiguous() for name, tensor in network.state_dict().items()}
    return {POSITIONS: positions(network)} | state
