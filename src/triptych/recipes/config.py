"""RunConfig: everything that defines a training run."""

from __future__ import annotations

import dataclasses

from triptych.core.config import Config, config
from triptych.core.model import ModelConfig
from triptych.data.config import DataConfig
from triptych.engine.config import LogConfig, OptimConfig, TrainConfig


@config
class RunConfig(Config):
    """A model, the data it learns, and how."""

    model: ModelConfig
    "The generator."
    data: DataConfig
    "The images."
    train: TrainConfig
    "Length, batch, precision, checkpoints."
    optim: OptimConfig = dataclasses.field(default_factory=OptimConfig)
    "The optimizer."
    log: LogConfig = dataclasses.field(default_factory=LogConfig)
    "The log."
