"""Several processes: a toy is stopped within a grid by a signal that one process hears, goes on, and ends."""

from __future__ import annotations

import time
from pathlib import Path

from tests.engine.toys import Denoiser, make_loop, resumed, run, seeded, stop_after
from triptych.engine.config import LogConfig
from triptych.engine.distributed import World, open_world
from triptych.engine.progress import Watch
from triptych.engine.signals import StopRequest, made_by_all

SETTINGS = {"log": LogConfig(every=24), "total_images": 64, "sample_every": 40}


def stop_one_of(world: World, folder: Path) -> None:
    run(make_loop(seeded(Denoiser), folder / "unbroken", world=world, grids={"": lambda path, watch: path.touch()}, **SETTINGS))
    stop = StopRequest()
    began = time.monotonic()

    def grid(path: Path, watch: Watch) -> None:
        def draw() -> None:
            for step in range(6000):
                if world.rank == 1 and step == 3:
                    stop.name = "SIGTERM"
                watch(step, 6000)
                time.sleep(0.01)

        made_by_all(world, draw)
        path.touch()

    loop = make_loop(seeded(Denoiser), folder / "broken", world=world, grids={"": grid}, **SETTINGS)
    assert not loop.run(stop) and loop.images_seen == 40
    assert time.monotonic() - began < 50, "the process that heard nothing went on"
    world.barrier()
    again = resumed(folder / "broken", Denoiser(), world=world, grids={"": lambda path, watch: path.touch()}, **SETTINGS)
    assert not again.run(stop_after(again, 48)) and again.images_seen in (48, 56)  # the vote is known a step later
    world.barrier()
    run(resumed(folder / "broken", Denoiser(), world=world, grids={"": lambda path, watch: path.touch()}, **SETTINGS))


def main(folder: Path) -> None:
    stop_one_of(open_world("cpu"), folder)
