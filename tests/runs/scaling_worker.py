"""What processes of one world do while what they send is counted: an iteration of shrunk recipes."""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from tests.contract.shrink import shrunk
from triptych.data.loader import Loader
from triptych.engine.distributed import open_world
from triptych.recipes.config import RunConfig
from triptych.runs.plan_probe import _loop


class Traffic(TorchDispatchMode):
    """Within it the bytes are counted that this process sends in rings, of tensors of weights and gradients.

    Votes (whole numbers) and norms (single numbers) are left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[str, float] = defaultdict(float)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        name = func._overloadpacket.__name__
        if name == "allreduce_":
            size = dist.ProcessGroup.unbox(args[1]).size()
            for tensor in args[0]:
                if tensor.dtype == torch.float32 and tensor.numel() > 1:
                    self.sent["all_reduce"] += 2 * tensor.nbytes * (size - 1) / size
        elif name == "_allgather_base_":
            self.sent["all_gather"] += args[0].nbytes - args[1].nbytes
        elif name == "_reduce_scatter_base_":
            self.sent["reduce_scatter"] += args[1].nbytes - args[0].nbytes
        return func(*args, **(kwargs or {}))


def configured(name: str, **train: Any) -> RunConfig:
    """The shrunk recipe with these settings."""
    given = {"batch_size": 4, "total_images": 8_000, "precision": "float32", "ema_rates": (0.9,), "ema_lengths": (), "averages": ()}
    return shrunk(name).updated({"train": {**given, "snapshot_every": None, "compile": "off", **train}, "data": {"workers": 0}})


def count(folder: Path, cases: dict[str, tuple[str, dict[str, Any]]]) -> None:
    """The first iteration of each case, in which all phases have a turn: what was sent, and what is kept, go to a file."""
    world = open_world("cpu")
    found = {}
    for case, (name, settings) in cases.items():
        config = configured(name, **settings)
        data = config.data.open()
        loop = _loop(config, data, world)
        loop.measurements.sum_over_processes = lambda values: values  # some numbers that are no gradients
        size = config.train.batch_size
        loader = Loader(data.train, batch_size=size, seed=0, rank=world.rank, world_size=world.size, workers=0)
        with closing(loader), Traffic() as traffic:
            next(loop.iterations(loader.batches(0)))
        kept = [parameter for updater in loop.updaters.values() for parameter in updater.parameters.values()]
        state = [value for updater in loop.updaters.values() for each in updater.optimizer.state.values() for value in each.values()]
        averages = [tensor for average in loop.averages for tensor in average.tensors.values()]
        found[case] = {
            "sent": dict(traffic.sent),
            "weights": sum(tensor.nbytes for tensor in kept),
            "optimizer": sum(value.nbytes for value in state if isinstance(value, torch.Tensor)),
            "averages": sum(tensor.nbytes for tensor in averages),
        }
    (folder / f"{world.rank}.json").write_text(json.dumps(found))
