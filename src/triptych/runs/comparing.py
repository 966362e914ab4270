"""The frozen networks by which a model compares images when it encodes them, and the files of their weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch

from triptych.core.cache import cache_folder
from triptych.core.config import Config
from triptych.core.errors import ConfigError
from triptych.core.model import ComparesFeatures
from triptych.core.reading import user_path
from triptych.core.weight_files import read_weights
from triptych.evaluation.feature_space import OR_NAMED, weights_file
from triptych.evaluation.lpips import BACKBONES, LpipsNetwork
from triptych.nn.feature_networks import NetworkName

_SPACES: Mapping[NetworkName, str] = {"efficientnet_lite0": "efficientnet-lite0", "mobilenet_v1": "mobilenet-v1"}
"""The feature spaces whose weights these networks take as they are."""


def load_networks(model: ComparesFeatures, settings: Config, *, device: torch.device) -> None:
    """Loads the networks that `encode` needs with these settings.

    Raises ConfigError where there is no file of weights, CheckpointError for one that cannot be used.
    """
    for name, path in model.encoding_networks(settings).items():
        network = getattr(model, name)
        file = user_path(path) if path is not None else usual_file(network.network.name)
        network.to(device).load(read_weights(file), source=str(file))


def usual_file(network: NetworkName) -> Path:
    """The file of a network's weights where none is named: the one that evaluations use. Raises ConfigError where it is not there."""
    if network in _SPACES:
        try:
            return weights_file(_SPACES[network])
        except ConfigError as error:
            reason = error.reason.removesuffix(OR_NAMED)
            raise ConfigError("perceptual.weights", f"{reason}, or name a file, or take another distance") from error
    backbone = BACKBONES.get(cast(LpipsNetwork, network))
    file = None if backbone is None else cache_folder() / "networks" / backbone.file
    if file is None or not file.is_file():
        place = "" if file is None else f"; there is no {file}"
        raise ConfigError("perceptual.weights", f"missing: give the file of weights of {network} (.pth or .safetensors){place}")
    return file
