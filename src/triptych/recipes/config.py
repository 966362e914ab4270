"""RunConfig: everything that defines a training run."""

from __future__ import annotations

import dataclasses
from typing import Self

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

    def rescaled(self, processes: int) -> Self:
        """The same with plain counts of images, where they are given for one process at data.anchor_size s, as in openai/glow.

        A process takes b s^2 // size^2 images where b are given, at least 1; so do the microbatch and the model's init_images, at least 2,
        for one image has no variance to start from. The warm-up keeps its number of steps. train.total_images is left alone.
        """
        anchor, size = self.data.anchor_size, self.data.image_size
        if anchor is None:
            return self

        def scaled(count: int) -> int:
            return max(1, count * anchor**2 // size**2)

        batch, microbatch = self.train.batch_size, self.train.microbatch
        train = {"batch_size": scaled(batch) * processes, "microbatch": scaled(microbatch) if isinstance(microbatch, int) else microbatch}
        initial = getattr(self.model, "init_images", None)
        return self.updated(
            {
                "model": {} if initial is None else {"init_images": max(2, scaled(initial))},
                "data": {"anchor_size": None},
                "train": train,
                "optim": {"warmup_images": self.optim.warmup_images * scaled(batch) // batch},
            }
        )
