"""What one or several processes do that write checkpoints in the background: train a toy, and be killed while they write."""

from __future__ import annotations

import math
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.engine.toys import Denoiser, make_loop, resumed, run, seeded
from triptych.core.errors import CheckpointError, RunError
from triptych.core.files import sync
from triptych.engine.checkpoint import sweep
from triptych.engine.checkpointer import Checkpointer
from triptych.engine.config import LogConfig
from triptych.engine.distributed import World, failing_together, open_world
from triptych.engine.loop import Loop
from triptych.engine.run_directory import list_checkpoints
from triptych.engine.sharding import own_part

EVERY = 8


def widened(width: int) -> Denoiser:
    """The toy, with weights that take a while to write."""
    model = seeded(Denoiser)
    model.network = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))
    return model


def opened(folder: Path, world: World, *, width: int = 8, **changes: Any) -> Loop:
    """A loop that goes on where the checkpoints end, and keeps them all."""
    settings: dict[str, Any] = {"world": world, "batch_size": EVERY, "checkpoint_every": EVERY, "total_images": 4 * EVERY, "keep_last": 99}
    settings |= {"checkpoint_writing": "background", **changes}
    there = world.on_main(lambda: (sweep(folder / "checkpoints"), list_checkpoints(folder / "checkpoints"))[1])
    model = widened(width)
    return resumed(folder, model, **settings) if there else make_loop(model, folder, **settings)


def train(folder: Path, changes: dict[str, Any]) -> None:
    """Trains until the end."""
    torch.set_num_threads(1)
    with failing_together():
        run(opened(folder, open_world("cpu"), **changes))


def train_killed(folder: Path, changes: dict[str, Any], ranks: tuple[int, ...], which: int, seed: int, longest: float) -> None:
    """Kills the processes of these ranks within `longest` seconds after their save of that number has begun."""
    rank, write, saves = int(os.environ["RANK"]), Checkpointer.write, [0]

    def kill() -> None:
        time.sleep(random.Random(f"{seed} {rank if len(ranks) == 1 else 'all'}").uniform(0, longest))
        os.kill(os.getpid(), signal.SIGKILL)

    def begun(checkpointer: Checkpointer, images_seen: int, **given: Any) -> None:
        saves[0] += 1
        if saves[0] == which and rank in ranks:
            threading.Thread(target=kill, daemon=True).start()
        write(checkpointer, images_seen, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpointer, "write", begun)
        train(folder, changes)


def fail_together(folder: Path) -> None:
    """The disk of the last process refuses its parts, then that of the first one a whole checkpoint: all are told alike.

    So are they of weights that are not finite, in the part of the last process or, whole, in that of all.
    """
    world = open_world("cpu")
    look_elsewhere(folder, world)
    for shard in ("full", "none"):
        overflow_together(folder, world, shard=shard)
    for shard in ("full", "none"):
        loop = opened(folder / shard, world, shard=shard, total_images=100 * EVERY)
        refusing = world.size - 1 if shard == "full" else 0

        def refused(path: Path, refusing: int = refusing) -> None:
            if f"{2 * EVERY:09d}" in str(path) and world.rank == refusing:
                raise OSError(28, "No space left on device")
            sync(path)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("triptych.engine.parts.sync" if shard == "full" else "triptych.engine.checkpoint.sync", refused)
            with pytest.raises(CheckpointError, match=r"cannot write checkpoint .*000000016: No space left .*the last good one is .*08$"):
                run(loop)
        assert 2 * EVERY <= loop.images_seen <= 3 * EVERY
        assert list_checkpoints(folder / shard / "checkpoints") == [EVERY]
        assert world.on_main(lambda shard=shard: len(list((folder / shard / "checkpoints").iterdir()))) == 1


def look_elsewhere(folder: Path, world: World) -> None:
    """Each process has a run directory of its own: a divided model is not trained there, and of others the log warns."""
    said = "apart-0 is another folder for rank 1 on "
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("triptych.engine.checkpointer._SEEN_SECONDS", 0.1)
        divided = opened(folder / f"apart-{world.rank}", world, shard="full")
        with pytest.raises(CheckpointError, match=f"{said}.*train.shard"):
            run(divided)
        assert divided.images_seen == 0 and not list(divided.directory.root.glob(".*"))
        whole = opened(folder / f"apart-{world.rank}", world, log=LogConfig())
        assert run(whole)
        told = whole.directory.log_path.read_text() if world.is_main else ""
        assert (f"warning: {folder}/{said}" in told) == world.is_main


def overflow_together(folder: Path, world: World, *, shard: str) -> None:
    loop = opened(folder / f"overflow-{shard}", world, shard=shard, total_images=2 * EVERY)
    step = loop._iteration

    def last_step(batches: Any) -> None:
        step(batches)
        if loop.images_seen == 2 * EVERY and (shard == "none" or world.rank == world.size - 1):
            with torch.no_grad():
                for parameter in loop.model.parameters():
                    own_part(parameter).fill_(math.nan)

    loop._iteration = last_step
    with pytest.raises(RunError, match=r"model.safetensors has values that are not finite.* at 16 images seen"):
        run(loop)
    assert list_checkpoints(folder / f"overflow-{shard}" / "checkpoints") == [EVERY]
