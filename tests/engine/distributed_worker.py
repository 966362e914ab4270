"""What one or several processes do: train toy models and write their gradients, weights and what each saw; keep one another waiting."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist

from tests.engine.toys import Clip, Denoiser, Hungry, Pair, make_loop, resumed, run, seeded
from tests.float64 import in_float64
from triptych.engine import distributed, peers
from triptych.engine.distributed import _PATIENCE, failing_together, open_world
from triptych.engine.peers import PeerError, Peers
from triptych.engine.run_directory import list_checkpoints
from triptych.engine.snapshots import save_snapshot


@in_float64()
def train_toys(folder: Path, microbatch: int | None, out_of_memory: Literal["halve", "stop"] = "halve") -> None:
    world = open_world("cpu")
    for kind in (Denoiser, Pair, Clip):
        settings: dict[str, Any] = {"batch_size": 7, "total_images": 7 * 4, "microbatch": microbatch, "out_of_memory": out_of_memory}
        loop = make_loop(seeded(kind), folder / kind.__name__, world=world, **settings)
        gradients, noise = [], []
        for updater in loop.updaters.values():

            def keep(set_to_none: bool, updater=updater, gradients=gradients) -> None:
                gradients.append({name: p.grad.clone() for name, p in updater.parameters.items()})
                for parameter in updater.parameters.values():
                    parameter.grad = None

            updater.optimizer.zero_grad = keep
        step = loop._step

        def watched(phase, batch, progress, step=step, noise=noise):
            noise.append((batch.index.clone(), batch.images.clone()))
            return step(phase, batch, progress)

        loop._step = watched
        run(loop)
        torch.save((gradients, noise, loop.model.state_dict()), folder / f"{kind.__name__}-{world.size}-{world.rank}.pt")


@in_float64()
def go_on(folder: Path, total_images: int) -> None:
    """Trains a toy with batches of 10 until then, from the newest checkpoint; each process writes which images it saw."""
    world, model = open_world("cpu"), seeded(Denoiser)
    begin = resumed if list_checkpoints(folder / "checkpoints") else lambda root, model, **settings: make_loop(model, root, **settings)
    world.barrier()
    loop = begin(folder, model, world=world, batch_size=10, total_images=total_images)
    seen, step = [], loop._step

    def watched(phase, batch, progress):
        seen.append(batch.index.tolist())
        return step(phase, batch, progress)

    loop._step = watched
    run(loop)
    (folder / f"{total_images}-{world.rank}.json").write_text(json.dumps(seen), encoding="utf-8")


@in_float64()
def train_with_little_memory(folder: Path, microbatch: int | Literal["auto"] | None) -> None:
    """A training in which the second process alone lacks memory."""
    world = open_world("cpu")
    model = seeded(Hungry)
    assert isinstance(model, Hungry)
    model.room, model.since = 2 if world.rank else 8, 0 if microbatch == "auto" else 16
    model.in_backward = True
    found: list[int] = []
    settings: dict[str, Any] = {"total_images": 32, "microbatch": microbatch, "found": found.append}
    run(make_loop(model, folder / "run", world=world, **settings))
    torch.save((model.network.state_dict(), found, model.sizes), folder / f"{microbatch}-{world.rank}.pt")


def train_without_warnings(folder: Path) -> None:
    """A training for which every warning is an error."""
    warnings.simplefilter("error")
    world = open_world("cpu")
    run(make_loop(seeded(Denoiser), folder / str(world.rank), world=world, batch_size=4, total_images=8))


@in_float64()
def write_snapshots(folder: Path) -> None:
    """A training with snapshots, all processes of which share the folder; each notes what it writes."""
    world, settings = open_world("cpu"), {"batch_size": 8, "total_images": 32, "ema_lengths": (0.05, 0.2), "snapshot_every": 16}
    loop = make_loop(seeded(Denoiser), folder, world=world, **settings)

    def noted(*given: Any, images_seen: int, **named: Any) -> None:
        (folder / f"{images_seen}-by-{world.rank}").touch()
        save_snapshot(*given, images_seen=images_seen, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("triptych.engine.checkpointer.save_snapshot", noted)
        run(loop)


def keep_waiting(folder: Path) -> None:
    """The second of two processes is late, where that is allowed and where it is not; what each is told is written to a file."""
    world = open_world("cpu")
    world.watch(limit_minutes=5, log_path=folder / "log.txt", records=folder / "records")
    group = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    assert group.options._timeout == _PATIENCE, "while nobody has set a limit"
    world.limit(1 / 60)
    assert group.options._timeout == timedelta(seconds=1)
    with world.patience("writing a checkpoint"):
        time.sleep(1.6 * world.rank)
    world.doing("loading images")
    time.sleep(1.6 * world.rank)
    world.doing("taking a step")
    try:
        with failing_together():
            world.sum(torch.ones(1))
    except PeerError as error:
        (folder / f"late-{world.rank}.txt").write_text(str(error), encoding="utf-8")
    # Here the first process keeps the store through which they speak; under torchrun that is torchrun itself.
    until = time.monotonic() + 60
    while world.rank == 0 and not (folder / "late-1.txt").exists() and time.monotonic() < until:
        time.sleep(0.05)


def lose_one_while_joining(moment: str) -> int:
    """Joins the others, which process 1 does not live to do; 1 where that is an error of this process."""

    def die(*given: object, **named: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    distributed._JOINING_SECONDS, peers._GRACE_SECONDS = 4.0, 1.0
    if os.environ["RANK"] == "1":
        distributed.Peers = die  # type: ignore[assignment, misc]
        if moment != "before its first sign":
            distributed.Peers = Peers
            dist.init_process_group = die
    try:
        open_world("cpu")
    except PeerError as error:
        sys.stderr.write(f"triptych: error: {error}\n")
        return 1
    return 0
