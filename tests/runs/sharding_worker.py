"""What several processes do with divided models: train shrunk recipes of each family and keep their gradients, and go on with a run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from tests.contract.shrink import light
from tests.float64 import in_float64
from triptych.core.batch import Batch
from triptych.core.errors import ConfigError
from triptych.core.model import LossTerms, Model, Phase
from triptych.core.rng import Rng
from triptych.engine.config import AverageConfig, PhaseOptimConfig, TrainConfig
from triptych.engine.distributed import open_world
from triptych.engine.sharding import Sharding
from triptych.engine.updater import Updater
from triptych.recipes.config import RunConfig
from triptych.runs import train

BATCH = 8
RECIPES = ("adm-digits", "glow-digits", "stylegan2-digits")
CHANGING = "stylegan2-digits"


def settings(name: str, **changes: Any) -> RunConfig:
    """The shrunk recipe with clipping, an average of each kind, snapshots, a grid, and steps far above rounding."""
    config = light(name)
    optim = replace(config.optim, warmup_images=0, schedule="constant", clip_norm=0.5, phases=(PhaseOptimConfig(eps=1e-3),))
    given: dict[str, Any] = {"batch_size": BATCH, "total_images": 2 * BATCH, "ema_rates": (0.9,), "ema_lengths": ()}
    given |= {"averages": (AverageConfig(length=0.1),), "snapshot_every": BATCH, "validate_images": 3, "sample_count": 3, **changes}
    return replace(config, optim=optim, train=replace(config.train, **given))


def train_all(folder: Path, changes: dict[str, Any], recipes: tuple[str, ...] = RECIPES) -> None:
    """Trains the recipes; the gradients of each step before they are clipped go to a file of each process."""
    world = open_world("cpu")
    for name in recipes:
        gradients: list[dict[str, torch.Tensor]] = []

        def kept(updater: Updater, settings: Any, apply: Any = Updater._apply, gradients: Any = gradients) -> torch.Tensor:
            gradients.append({name: p.grad.clone() for name, p in updater.parameters.items() if p.grad is not None})
            return apply(updater, settings)

        with in_float64(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(Updater, "_apply", kept)
            train(settings(name, **changes), folder / name, device="cpu")
        torch.save(gradients, folder / f"{name}-{world.rank}.pt")


@in_float64()
def go_on(folder: Path, total_images: int) -> None:
    """Trains the divided run in the folder until then."""
    train(settings(CHANGING, shard="full", total_images=total_images, keep_last=9), folder, device="cpu")


class _Blocks(nn.Module):
    """A network with layers in blocks, and in none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(8, 8), nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


class _ByBlock(Model):
    phases, averaged, gathers = (Phase("fit", ("network",)),), ("network",), "blocks"

    def __init__(self) -> None:
        super().__init__()
        self.network = _Blocks()

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        return LossTerms(self.network(batch.images).sum(1))


def keep_what_is_in_no_block() -> None:
    """From the forward pass on to the backward pass all have the layers in no block, also when all weights were put together before."""
    model = _ByBlock()
    sharding = Sharding(model, TrainConfig(total_images=8, batch_size=4, shard="full"), open_world("cpu"))
    for _ in range(2):
        loss = model.network(torch.ones(2, 8)).sum()
        assert not isinstance(model.network.first.weight, DTensor) and isinstance(model.network.blocks[0].weight, DTensor)
        loss.backward()
        assert isinstance(model.network.first.weight, DTensor)
        with sharding.gathered(), torch.no_grad():
            model.network(torch.ones(2, 8))


def two(folder: Path) -> None:
    """What two processes do."""
    keep_what_is_in_no_block()
    train_all(folder / "full-2", {"shard": "full", "microbatch": 2})
    go_on(folder / "changing", 2 * BATCH)
    for name, changes, said in (
        ("spade-camvid", {}, "train.shard: got 'full', but"),
        ("edm2-digits", {}, "train.shard: got 'full', but EDM2 changes its weights"),
        ("adm-digits", {"batch_size": 7}, "train.batch_size: got 7, expected a multiple of the 2 processes"),
        ("adm-digits", {"microbatch": "auto"}, "train.microbatch: got 'auto'"),
        ("adm-digits", {"shard": "hybrid", "shard_size": 3}, "train.shard_size: got 3"),
    ):
        with pytest.raises(ConfigError, match=said):
            train(settings(name, **{"shard": "full", "snapshot_every": None, **changes}), folder / "refused", device="cpu")
    dist.barrier()  # else the store ends with the first process, while the other one still reports its error there


def four(folder: Path) -> None:
    """What four processes do: some of it on a mesh of two by two."""
    world = open_world("cpu")
    changes = {"shard": "hybrid", "shard_size": 2, "sample_count": 0, "validate_images": 0}
    train_all(folder / "hybrid", changes, ("adm-digits", CHANGING))
    go_on(folder / "changing", BATCH)
    go_on(folder / "unbroken", 2 * BATCH)
    go_on(folder / "broken", BATCH)
    go_on(folder / "broken", 2 * BATCH)
    world.barrier()
    if world.is_main:
        shutil.copytree(folder / "broken/checkpoints", folder / "kept")
