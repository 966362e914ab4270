"""What a run will cost: measured in processes of their own before it begins, without touching its directory."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from triptych.core.errors import CheckpointError, ConfigError, DataError, RunError, UserError
from triptych.core.memory import available_memory
from triptych.core.model import Model
from triptych.core.wording import counted
from triptych.data.images import Data, usable_cores, workers_beside
from triptych.engine.checkpoint import OPTIMIZER
from triptych.engine.distributed import World, open_world
from triptych.engine.run_directory import RunDirectory, list_checkpoints
from triptych.engine.schedule import refuse_impossible, refuse_single_frames, refuse_unknown_phases
from triptych.recipes.config import RunConfig
from triptych.report.listing import checkpoints, snapshots
from triptych.runs.beginning import begin
from triptych.runs.disk import free_disk, seconds_to_write
from triptych.runs.latent_space import copy_bytes, require_decodable
from triptych.runs.plan_figures import Memory, Plan, Size, kept_bytes, line_through, step_seconds, times_due
from triptych.runs.plan_probe import Task, turns_of_phases
from triptych.runs.scaling import Machines, State, scaled, shard_size, share_of
from triptych.runs.stored import outline

SECONDS = 15.0
"""Of iterations that are measured at each size, where nobody says otherwise."""
ALONE = Machines(1, 1, within=math.inf, between=math.inf, latency=0.0)
"""One process."""
_SMALLEST = 2  # images of the first measurement
_MOST_SIZES = 4
_LONGEST = 3600.0  # seconds of one measurement, after which it is given up


def plan(
    config: RunConfig,
    *,
    directory: str | Path,
    device: str | None = None,
    seconds: float = SECONDS,
    machines: Machines = ALONE,
    say: Callable[[str], None] = lambda line: None,
) -> Plan:
    """What a training of `config` in `directory` would take from where it is; nothing stays on the disk.

    `seconds`: of iterations that are measured at each of two to four sizes. `machines`: what it would run on; one process is measured,
    with the share of the batch that each of them has. `say` is told what is measured. Raises UserError where the training could not
    begin either, RunError where not even the smallest size can be measured.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise ConfigError("", "a plan is measured by one process: run it without torchrun, with --processes")
    place = RunDirectory(Path(directory))
    place.check()
    world = open_world(device)
    count = machines.processes
    config = begin(config.rescaled(count), place, None, world.device, None).config
    machines.refuse_uneven(shard_size(config.train, machines))
    if config.train.shard == "hybrid" and count > 1:
        config = config.updated({"train": {"shard_size": shard_size(config.train, machines)}})
    data = config.data.open()
    model = outline(config, data.spec)
    refuse_impossible(model, config.train, dataclasses.replace(world, size=count))
    refuse_single_frames(data.spec.clip_length, config.train)
    refuse_unknown_phases(config.optim, model.phases, absent=model.absent_phases)
    require_decodable(data.spec, config.train, place)
    free = available_memory() if world.device.type == "cpu" else None
    free = None if free is None else free // machines.sharing
    alone = {"batch_size": share_of(config.train, count), "shard": "none", "shard_size": None}
    share = config if count == 1 else config.updated({"train": alone, "data": {"workers": _workers(config, data, machines)}})
    first, sizes = _measured(share, model, world, place, device=device, seconds=seconds, free=free, say=say)
    found = _planned(share, data, model, Path(directory), first, sizes, free, drawn=config.train.batch_size * model.slices)
    return found if count == 1 else together(found, config, model, machines, first)


def _workers(config: RunConfig, data: Data, machines: Machines) -> int:
    """The loader processes that each of the processes would have: it shares the cores of its machine with the others."""
    given = config.data.workers
    return min(data.train.default_workers(), workers_beside(machines.per_machine)) if given is None else given


def together(found: Plan, config: RunConfig, model: Model, machines: Machines, first: dict[str, Any]) -> Plan:
    """The plan of all processes out of that of one with its share, and the findings of the first measurement."""
    stored, train = first["stored_bytes"], config.train
    state = State(
        weights=first["gradient_bytes"],
        gradients=first["gradient_bytes"],
        optimizer=stored.get(OPTIMIZER, 0),
        averages=sum(size for name, size in stored.items() if name not in ("model", OPTIMIZER)),
    )
    drawn = train.batch_size * model.slices
    turns = turns_of_phases(model, drawn=drawn, total=train.total_images)
    of_all = scaled(model, train, machines, turns=turns, seconds=found.step_seconds, state=state)
    faster = machines.processes / machines.sharing  # in what they share between them, and exchange nothing of
    loaders = machines.per_machine * max(1, found.memory.loader_processes)
    loading = machines.processes * min(1.0, usable_cores() / loaders)
    beside = first["around_bytes"] - (1 - of_all.state_bytes / state.total) * (state.optimizer + state.averages)
    least = max(first["begin_bytes"], beside, found.memory.start_bytes + of_all.least_bytes)
    return dataclasses.replace(
        found,
        batch=train.batch_size,
        images_per_step=drawn,
        step_seconds=of_all.seconds,
        loader_rate=found.loader_rate * loading,
        grid_seconds=found.grid_seconds / faster,
        validation_seconds=found.validation_seconds / faster,
        evaluation_seconds=found.evaluation_seconds / faster,
        reference_seconds=found.reference_seconds / faster,
        memory=dataclasses.replace(found.memory, fixed=found.memory.fixed - of_all.saved_bytes, least=least),
        scaled=of_all,
    )


def _measured(
    config: RunConfig,
    model: Model,
    world: World,
    place: RunDirectory,
    *,
    device: str | None,
    seconds: float,
    free: int | None,
    say: Callable[[str], None],
) -> tuple[dict[str, Any], list[Size]]:
    """The findings of the first measurement, and the sizes that were measured."""
    cut, own, group = isinstance(config.train.microbatch, int), at_once(config), model.group_size
    smallest = min(own, max(group, _SMALLEST))
    settings = config.to_dict()

    def ask(size: int, *, other: bool = False) -> dict[str, Any]:
        batches = (size, 2 * size) if cut else (size,)
        say(f"measuring {counted(size, 'image')} at once")
        found = measured_apart(Task(settings, device, batches, size if cut else None, seconds, other, str(place.root)))
        return found | {"size": Size(size, tuple(found["seconds"]), batches, found["peak_bytes"])}

    first = ask(smallest, other=True)
    sizes, refused = [first["size"]], False
    memory = first["free_bytes"] if free is None else free
    while (size := next_size(sizes, own, group=group, seconds=seconds)) is not None:
        fixed, per_image = line_through(sizes)
        if memory is not None and fixed + per_image * size > memory:
            say(f"{counted(size, 'image')} at once would not fit into memory")
            break
        try:
            sizes.append(ask(size)["size"])
        except NoMemory:
            say(f"{counted(size, 'image at once does', 'images at once do')} not fit into memory")
            refused = True
            if len(sizes) > 1:
                break
            own = size // 2 // group * group  # there have to be two
    return first | {"most": sizes[-1].images if refused else None}, sizes


def next_size(sizes: Sequence[Size], own: int, *, group: int, seconds: float) -> int | None:
    """The size to measure after those: half of the run's `own`, then that, or as many as can be waited for; None: there are enough.

    A measurement is four iterations or more, so one of them may take as long as the iterations of a measurement should, `seconds`.
    """
    last, smallest = sizes[-1], sizes[0].images
    if last.images >= own or len(sizes) == _MOST_SIZES:
        return None

    def affordable(size: int) -> bool:
        return size > last.images and last.seconds[-1] * size / last.images <= seconds

    half = max(group, own // 2 // group * group)
    if len(sizes) == 1:
        return half if affordable(half) else min(own, 4 * smallest)
    return next((size for size in (own, half, 2 * last.images) if size <= own and affordable(size)), None)


def at_once(config: RunConfig) -> int:
    """Images of a run of one process that go through the networks at once."""
    batch = config.train.batch_size
    return min(batch, config.train.at_once(1))


def _planned(
    config: RunConfig, data: Data, model: Model, directory: Path, first: dict[str, Any], sizes: list[Size], free: int | None, *, drawn: int
) -> Plan:
    """`drawn`: images of an iteration of the whole run; the rest is of one process."""
    train, place = config.train, RunDirectory(directory)
    own = at_once(config)
    taken, extrapolated = step_seconds(sizes, at_once=own, batch=train.batch_size)
    fixed, per_image = line_through(sizes)
    seen = (list_checkpoints(place.checkpoints) or [0])[-1]

    def due(every: int | None) -> int:
        return times_due(every, seen, train.total_images, step=drawn)

    stored = sum(first["stored_bytes"].values())
    copied = 0 if data.spec.latents is None else copy_bytes(data.spec.latents, place)
    return Plan(
        device=first["device"],
        precision=first["precision"],
        parameters={
            name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children() if any(True for _ in part.parameters())
        },
        operations=first["flops"],
        training_images=len(data.train),
        batch=train.batch_size,
        at_once=own,
        images_per_step=train.batch_size * model.slices,
        sizes=tuple(sizes),
        memory=Memory(
            fixed=fixed,
            per_image=per_image,
            start_bytes=first["start_bytes"],
            free_bytes=first["free_bytes"] if free is None else free,
            gradient_bytes=first["gradient_bytes"],
            divisible=not model.couples_samples,
            group=model.group_size,
            whole=not isinstance(train.microbatch, int),
            least=max(first["begin_bytes"], first["around_bytes"]),
            loader_processes=first["loader_processes"],
            loader_bytes=first["loader_bytes"],
            most=first["most"],
        ),
        step_seconds=taken,
        extrapolated=extrapolated,
        loader_rate=first["loader"],
        images_seen=seen,
        total_images=train.total_images,
        begin_seconds=first["begin_seconds"],
        grid_seconds=first["grid_seconds"] or 0.0,
        validation_seconds=first["validation_seconds"] or 0.0,
        evaluation_seconds=first["evaluation_seconds"] or 0.0,
        reference_seconds=first["reference_seconds"] or 0.0,
        counts={
            "grids": 0 if first["grid_seconds"] is None else due(train.sample_every),
            "validations": 0 if first["validation_seconds"] is None else due(train.validate_every),
            "evaluations": 0 if train.evaluate_every is None else due(train.evaluate_every),
        },
        checkpoints_by_images=times_due(train.checkpoint_every, seen, train.total_images, step=drawn, also=train.keep_every),
        checkpoint_seconds=seconds_to_write(directory, stored),
        training_waits=train.checkpoint_writing != "background",
        images_to_checkpoint=min((every - seen % every for every in (train.checkpoint_every, train.keep_every) if every), default=None),
        checkpoint_minutes=train.checkpoint_minutes,
        checkpoint_bytes=stored,
        kept_bytes=kept_bytes(config, stored, first["power_bytes"], step=drawn) + copied,
        free_disk=free_disk(directory),
        lying_bytes=sum(each.size_bytes for each in (*checkpoints(directory), *filter(None, [snapshots(directory)]))),
        sample="image" if data.spec.frames is None else "clip",
    )


# The process that measures


class NoMemory(RunError):
    """The memory was not enough for what was measured."""

    def __init__(self) -> None:
        super().__init__("not enough memory to measure even this: take a smaller recipe or --data.image-size")


def measured_apart(task: Task, *, limit_seconds: float = _LONGEST) -> dict[str, Any]:
    """What `plan_probe.measure` finds in a process of its own, which is gone when this returns, however it does.

    Raises UserError as it did there, `NoMemory` where memory ended, RunError where it failed otherwise.
    """
    sources = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (sources, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-P", "-m", "triptych.runs.plan_probe", str(os.getpid())]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, env=os.environ | {"PYTHONPATH": paths}, stdin=pipe, stdout=pipe, stderr=pipe) as child:
        try:
            answer, errors = child.communicate(json.dumps(dataclasses.asdict(task)), timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            raise RunError(f"measuring took longer than {limit_seconds / 60:.3g} minutes: give a smaller --train.microbatch") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
    if child.returncode == -9:
        raise NoMemory
    if child.returncode != 0 or not answer:
        said = (errors.strip().splitlines() or ["nothing was said"])[-1]
        raise RunError(f"the process that measures ended with {child.returncode}: {said}")
    return found_in(json.loads(answer))


def found_in(found: dict[str, Any]) -> dict[str, Any]:
    """The findings in the answer of the process that measured; raises what it says."""
    if "out_of_memory" in found:
        raise NoMemory
    if "error" in found:
        kind = {error.__name__: error for error in (DataError, CheckpointError)}.get(found["error"])
        if kind is not None:
            raise kind(found["reason"])
        raise ConfigError(found["setting"], found["reason"]) if found["error"] == "ConfigError" else UserError(found["reason"])
    return found
