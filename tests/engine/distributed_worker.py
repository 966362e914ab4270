"""Run by torchrun: trains the toy model and writes its gradients, weights and what each process saw. Arguments: folder, microbatch."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from tests.engine.toys import Denoiser, Pair, make_loop, run, seeded
from triptych.engine.distributed import close_world, open_world


def train_toys(folder: Path, microbatch: int | None) -> None:
    world = open_world("cpu")
    for kind in (Denoiser, Pair):
        loop = make_loop(seeded(kind), folder / kind.__name__, world=world, batch_size=7, total_images=7 * 4, microbatch=microbatch)
        gradients, noise = [], []
        for updater in loop.updaters.values():

            def keep(set_to_none: bool, updater=updater, gradients=gradients) -> None:
                gradients.append({name: p.grad.clone() for name, p in updater.parameters.items()})
                for parameter in updater.parameters.values():
                    parameter.grad = None

            updater.optimizer.zero_grad = keep
        step = loop._step

        def watched(phase, repeat, batch, rate, step=step, noise=noise):
            noise.append((batch.index.clone(), batch.images.clone()))
            step(phase, repeat, batch, rate)

        loop._step = watched
        run(loop)
        torch.save((gradients, noise, loop.model.state_dict()), folder / f"{kind.__name__}-{world.size}-{world.rank}.pt")


if __name__ == "__main__":
    train_toys(Path(sys.argv[1]), int(sys.argv[2]) or None)
    close_world()
