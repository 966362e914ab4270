"""What several processes do with divided models: train shrunk recipes of each family and write their gradients; go on with a run."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.contract.shrink import shrunk
from tests.float64 import in_float64
from triptych.core.errors import ConfigError
from triptych.engine.config import AverageConfig, PhaseOptimConfig
from triptych.engine.distributed import open_world
from triptych.engine.updater import Updater
from triptych.recipes.config import RunConfig
from triptych.runs import train

BATCH = 8
RECIPES = ("adm-digits", "glow-digits", "stylegan2-digits")


def settings(name: str, **changes: Any) -> RunConfig:
    """The shrunk recipe with clipping, an average of each kind and steps far above rounding."""
    config = shrunk(name)
    optim = replace(config.optim, warmup_images=0, schedule="constant", clip_norm=0.5, phases=(PhaseOptimConfig(eps=1e-3),))
    given: dict[str, Any] = {"batch_size": BATCH, "total_images": 3 * BATCH, "ema_rates": (0.9,), "ema_lengths": (), "averages": ()}
    given |= {"averages": (AverageConfig(length=0.1),), **changes}
    return replace(config, optim=optim, train=replace(config.train, **given))


def train_all(folder: Path, kinds: dict[str, dict[str, Any]]) -> None:
    """Trains each recipe with each kind of settings; the gradients of each step, as they are applied, go to a file of each process."""
    world = open_world("cpu")
    for kind, changes in kinds.items():
        for name in RECIPES:
            gradients: list[dict[str, torch.Tensor]] = []
            apply = Updater._apply

            def kept(updater, settings, apply=apply, gradients=gradients):
                gradients.append({name: p.grad.clone() for name, p in updater.parameters.items() if p.grad is not None})
                return apply(updater, settings)

            with in_float64(), pytest.MonkeyPatch.context() as patch:
                patch.setattr(Updater, "_apply", kept)
                train(settings(name, **changes), folder / kind / name, device="cpu")
            torch.save(gradients, folder / kind / f"{name}-{world.rank}.pt")


def go_on(folder: Path, total_images: int, shard: str) -> None:
    """Trains the divided runs in the folder until then."""
    with in_float64(), ExitStack() as stack:
        del stack
        for name in RECIPES[::2]:
            train(settings(name, shard=shard, total_images=total_images, keep_last=9), folder / name, device="cpu")


def refused(folder: Path) -> None:
    """Models and settings that cannot be divided."""
    for name, changes, said in (
        ("imaginaire-pix2pixhd", {}, "train.shard: got 'full', but"),
        ("adm-digits", {"batch_size": 7}, "train.batch_size: got 7, expected a multiple of the 2 processes"),
        ("adm-digits", {"microbatch": "auto"}, "train.microbatch"),
        ("adm-digits", {"shard": "hybrid", "shard_size": 3}, "train.shard_size: got 3"),
    ):
        with pytest.raises(ConfigError, match=said):
            train(settings(name, **{"shard": "full", **changes}), folder / "refused", device="cpu")
