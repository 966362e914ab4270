"""The process that a plan measures in: some iterations of a training, and nothing of it is kept.

It is told what to measure by a JSON document on its standard input, answers with one on its standard output, and ends with the process
that started it. A process of its own has a peak of memory of its own, and gives back all that it took.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych.core.errors import ConfigError, UserError
from triptych.core.memory import is_out_of_memory
from triptych.core.parent import end_with

if TYPE_CHECKING:
    from triptych.core.model import Model, TrainingProgress
    from triptych.data.images import Data
    from triptych.engine.distributed import World
    from triptych.engine.loop import Loop
    from triptych.engine.progress import Watch
    from triptych.engine.run_directory import RunDirectory
    from triptych.recipes.config import RunConfig

_LONGEST_CYCLE = 64
"""Iterations within which every phase is looked for; those of the recipes recur after 16 at most."""
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 100
_LOADER_SECONDS, _LOADER_BATCHES = 5.0, 200  # whichever comes first
_OTHER_SECONDS = 8.0  # for a grid or a validation, whose rest is extrapolated
_NOWHERE = Path(os.devnull) / "run.png"
"""A run directory, and a grid, where nothing can be written: a grid that is drawn to its end is dropped there."""


@dataclasses.dataclass(frozen=True)
class Task:
    """What to measure."""

    settings: dict[str, Any]
    "Of the run: `RunConfig.to_dict`."
    device: str | None
    "As `triptych train --device`."
    batches: tuple[int, ...]
    "Sizes of batches, ascending; the peak of memory is that of all of them together."
    microbatch: int | None
    "In the place of the run's."
    seconds: float
    "Of iterations at each size, at least; a round of all kinds of iterations is finished, and there are at least two."
    other: bool = False
    "Also what does not depend on the size: operations, the loader, a grid, a validation."
    run: str | None = None
    "The folder of the run, which may keep the autoencoder of its latents; nothing is written there. None: there is none."


def main() -> int:
    """Measures, and prints the findings, or the error where there is one."""
    end_with(int(sys.argv[1]))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # where memory ends, this is the process that the system should end
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed
    given = json.load(sys.stdin)
    task = Task(**{**given, "batches": tuple(given["batches"])})
    try:
        found = measure(task)
    except MemoryError:
        found = {"out_of_memory": True}
    except UserError as error:
        from triptych.engine.microbatch import DoesNotFit

        setting, reason = (error.setting, error.reason) if isinstance(error, ConfigError) else ("", str(error))
        found = {"error": type(error).__name__, "setting": setting, "reason": reason}
        found = {"out_of_memory": True} if isinstance(error, DoesNotFit) else found
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        found = {"out_of_memory": True}
    json.dump(found, answer)
    answer.flush()
    os._exit(0)  # what is held is large, and to free it piece by piece takes time


def measure(task: Task) -> dict[str, Any]:
    """What the iterations of the task take. Raises UserError where the run could not begin either."""
    began = time.monotonic()
    import torch

    from triptych.core.memory import resident_memory
    from triptych.data.loader import Loader
    from triptych.engine.allocator import keep_freed_memory
    from triptych.engine.distributed import open_world
    from triptych.engine.run_directory import RunDirectory
    from triptych.recipes.config import RunConfig
    from triptych.runs.beginning import with_precision

    keep_freed_memory()
    world = open_world(task.device)
    on_gpu = world.device.type == "cuda"
    config, _ = with_precision(RunConfig.from_dict(task.settings), world.device)
    free = torch.cuda.mem_get_info(world.device)[0] if on_gpu else None
    start = 0 if on_gpu else resident_memory()
    train = dataclasses.replace(config.train, batch_size=task.batches[0], microbatch=task.microbatch, out_of_memory="stop")
    data = config.data.open()
    place = RunDirectory(_NOWHERE if task.run is None else Path(task.run))
    loop = _loop(dataclasses.replace(config, train=train), data, world, place)
    found: dict[str, Any] = {"seconds": [], "rounds": [], "device": world.device.type, "precision": train.precision, "start_bytes": start}
    found |= {"free_bytes": free, "drawn": loop.drawn // task.batches[0], "begin_bytes": _peak(world)}
    found["begin_seconds"] = time.monotonic() - began
    for batch in task.batches:
        loop.train, loop.drawn = dataclasses.replace(loop.train, batch_size=batch), batch * loop.slices
        loader = Loader(data.train, batch_size=batch, seed=config.train.seed, workers=config.data.workers)
        with contextlib.closing(loader):
            timed = _timed(loop, loop.iterations(loader.batches(middle(loop))), task.seconds)
        found["seconds"].append(timed[0])
        found["rounds"].append(timed[1])
    found["peak_bytes"] = _peak(world)
    if task.other:
        found |= _others(loop, data, config, world, place)
        found["around_bytes"] = _peak(world)
    return found


def _peak(world: World) -> int:
    """The peak of memory since this was last asked: of the tensors on a GPU, of this process on a CPU, where it may be that of before."""
    import torch

    from triptych.core.memory import forget_peak, peak_memory
    from triptych.engine.allocator import return_freed_memory

    on_gpu = world.device.type == "cuda"
    peak = torch.cuda.max_memory_allocated(world.device) if on_gpu else peak_memory()
    return_freed_memory(world.device)  # what is kept for later would count again
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(world.device)
    else:
        forget_peak()
    return peak


def _loop(config: RunConfig, data: Data, world: World, place: RunDirectory | None = None) -> Loop:
    """The loop of such a run before its first step, as `train` makes it, but that it writes nothing.

    `place`: where the run is, if it is anywhere.
    """
    import torch

    from triptych.data.loader import Loader
    from triptych.engine.loop import Loop
    from triptych.engine.run_directory import RunDirectory
    from triptych.runs.callables import callables
    from triptych.runs.stored import build
    from triptych.runs.training import initialize_from_images, prepare_backend
    from triptych.runs.weights import load_frozen_networks

    model: Model = build(config, data.spec)
    load_frozen_networks(model)
    model.to(world.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    initialize_from_images(model, data, config, world)
    prepare_backend(model, config, world)
    loader, nowhere = Loader(data.train, batch_size=config.train.batch_size, seed=config.train.seed, workers=0), RunDirectory(_NOWHERE)
    return Loop(
        model,
        train=config.train,
        optim=config.optim.in_images(len(data.train)),
        log=config.log,
        world=world,
        directory=nowhere,
        callables=callables(model, data, config, place or nowhere, world, loader),
        reporting=None,
    )


def kinds_of_iterations(loop: Loop) -> list[tuple[int, float]]:
    """The images seen before an iteration of each kind, and the share of that kind in a run.

    Kinds differ in their turns: lazy phases come every so many iterations. It is the middle of the run that is looked at, where what joins
    late (a discriminator) has joined.
    """
    begins: dict[tuple[str, ...], int] = {}
    counts = Counter[tuple[str, ...]]()
    for progress in cycle(loop.model, drawn=loop.drawn, total=loop.train.total_images):
        kind = tuple(turn.phase.name for turn in loop.model.turns(progress))
        begins.setdefault(kind, progress.images_seen)
        counts[kind] += 1
    return [(begins[kind], count / counts.total()) for kind, count in counts.items()]


def cycle(model: Model, *, drawn: int, total: int) -> list[TrainingProgress]:
    """The iterations of `drawn` images in the middle of the run until all lazy phases come again."""
    from triptych.core.model import TrainingProgress

    length = min(_LONGEST_CYCLE, math.lcm(*(phase.every for phase in model.phases)))
    first = total // 2 // drawn // length * length
    return [TrainingProgress(number * drawn, drawn, total) for number in range(first, first + length)]


def turns_of_phases(model: Model, *, drawn: int, total: int) -> dict[str, float]:
    """How often each phase has a turn in an iteration, a mean."""
    iterations = cycle(model, drawn=drawn, total=total)
    counts = Counter(turn.phase.name for progress in iterations for turn in model.turns(progress))
    return {name: count / len(iterations) for name, count in counts.items()}


def middle(loop: Loop) -> int:
    """The images seen before the first of these iterations: clips are as long as they are there."""
    return min(images for images, _ in kinds_of_iterations(loop))


def _timed(loop: Loop, iterations: Iterator[int], seconds: float) -> tuple[float, int]:
    """Seconds of an iteration, a mean over the kinds of which each has its median, and the number of rounds of all kinds."""
    kinds = kinds_of_iterations(loop)
    began = time.monotonic()
    for warming in range(2):
        for images, _ in kinds:
            _one(loop, iterations, images)
        if warming == 0 and time.monotonic() - began > seconds / 2:
            break
    taken: list[list[float]] = [[] for _ in kinds]
    began, rounds = time.monotonic(), 0
    while rounds < _LEAST_ROUNDS or (time.monotonic() - began < seconds and rounds < _MOST_ROUNDS):
        for times, (images, _) in zip(taken, kinds, strict=True):
            times.append(_one(loop, iterations, images))
        rounds += 1
    return sum(share * statistics.median(times) for times, (_, share) in zip(taken, kinds, strict=True)), rounds


def _one(loop: Loop, iterations: Iterator[int], images_seen: int) -> float:
    """Seconds of one iteration at so many images seen."""
    import torch

    began = time.perf_counter()
    loop.images_seen = images_seen
    next(iterations)
    if loop.world.device.type == "cuda":
        torch.cuda.synchronize(loop.world.device)
    return time.perf_counter() - began


def _others(loop: Loop, data: Data, config: RunConfig, world: World, place: RunDirectory) -> dict[str, Any]:
    """What does not depend on the size of the batch, or is of the run's own."""
    model = loop.model
    train = dataclasses.replace(loop.train, batch_size=config.train.batch_size)
    from triptych.data.loader import Loader
    from triptych.runs.callables import callables

    loader = Loader(data.train, batch_size=loop.train.batch_size, seed=config.train.seed, workers=0)
    handed = callables(model, data, dataclasses.replace(config, train=train), place, world, loader)
    with contextlib.closing(loader):
        flops = _operations(loop, loop.iterations(loader.batches(middle(loop))))
    gradients = sum(p.nbytes for updater in loop.updaters.values() for p in updater.parameters.values())
    validate = handed.validate
    model.eval()
    scores = None
    if train.evaluate_every is not None:
        from triptych.runs.training_scores import TrainingScores

        scores = TrainingScores(model, data.spec, config, place, world)
    rate, loaders, loader_bytes = _loader_rate(data, config)
    grids = [_extrapolated(lambda watch, grid=grid: grid(_NOWHERE, watch)) for grid in handed.grids.values()]
    return {
        "flops": flops,
        "stored_bytes": loop.stored_bytes(),
        "power_bytes": sum(size for name, size in loop.stored_bytes().items() if name.startswith("ema-length-")),
        "gradient_bytes": gradients,
        "loader": rate,
        "loader_processes": loaders,
        "loader_bytes": loader_bytes,
        "evaluation_seconds": None if scores is None else _extrapolated(scores.look_at_samples),
        "reference_seconds": None if scores is None else _extrapolated(scores.look_at_reference),
        "grid_seconds": sum(grids) if grids else None,
        "validation_seconds": None if validate is None else _extrapolated(lambda watch: validate(watch)),
    }


def _operations(loop: Loop, iterations: Iterator[int]) -> float:
    """Floating-point operations of an image, forward and backward, a mean over the kinds of iterations."""
    from triptych.runs.operations import Operations

    total = 0.0
    for images, share in kinds_of_iterations(loop):
        with Operations() as counter:
            _one(loop, iterations, images)
        total += share * counter.count
    return total / loop.drawn


def _loader_rate(data: Data, config: RunConfig) -> tuple[float, int, int]:
    """Images a second that the loader alone gives, with the run's own batch and workers; how many processes it has, and their bytes."""
    from triptych.core.memory import memory_of_children
    from triptych.data.loader import Loader

    size = config.train.batch_size
    with contextlib.closing(Loader(data.train, batch_size=size, seed=config.train.seed, workers=config.data.workers)) as loader:
        batches = loader.batches(config.train.total_images // 2)
        next(batches)
        began, count = time.monotonic(), 0
        while count == 0 or (count < _LOADER_BATCHES and time.monotonic() - began < _LOADER_SECONDS):
            next(batches)
            count += 1
        return count * size / (time.monotonic() - began), *memory_of_children()


class _Enough(Exception):
    """Enough of some work was done to tell how long it takes."""


def _extrapolated(work: Callable[[Watch], Any]) -> float:
    """Seconds that some work takes to its end; where that is long, from its first part."""
    began = time.monotonic()
    marks: list[tuple[float, float]] = []

    def watch(done: float, total: float) -> None:
        marks.append((time.monotonic() - began, done / total if total else 1.0))
        if marks[-1][0] > _OTHER_SECONDS and marks[-1][1] > marks[0][1]:
            raise _Enough

    try:
        work(watch)
    except _Enough:
        (first, done), (last, more) = marks[0], marks[-1]
        return first + (1 - done) * (last - first) / (more - done)
    except OSError:  # a grid that is finished
        pass
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
