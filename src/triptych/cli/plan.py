"""`triptych plan`: what a run would take, measured before it begins."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from triptych.cli.arguments import flag_value, named_as_flags, require_images
from triptych.cli.output import show, show_page
from triptych.cli.train import TrainOptions, base_and_settings, configure, place_of
from triptych.core.config import config
from triptych.core.errors import ConfigError
from triptych.core.memory import in_bytes
from triptych.core.wording import counted

if TYPE_CHECKING:
    from triptych.runs.plan_figures import Plan
    from triptych.runs.scaling import Scaled

_LINE = "triptych plan RECIPE [settings as for train] [--json]"
USAGE = """usage: triptych plan RECIPE [settings as for train] [--seconds N] [--json]
       triptych plan RUN [settings]
       triptych plan --config FILE [settings]
       triptych plan RECIPE --processes N [--machine-processes M] [--within GB/S] [--between GB/S] [settings]

Says what a run would take before it begins: parameters, operations, memory by microbatch, images a second, hours, disk. Some
iterations are measured, in processes of their own, and nothing stays on the disk. For a run that is there already it says what is left.

  triptych plan RECIPE --help    list every setting

example: triptych plan adm-digits --train.batch-size 32"""


_SMALL = "waiting for the slowest process, votes between them"
_PROCESSES = "the other processes of a run by torchrun (each takes this memory, and the time depends on what they share)"
NOT_COUNTED = {True: (_PROCESSES,), False: (_PROCESSES, "compilation")}
"""What a plan leaves out, on a CPU and on a GPU."""


@config
class PlanOptions(TrainOptions):
    """What is planned, and how long it is measured."""

    seconds: float = 15.0
    "Seconds of iterations that are measured at each of two to four sizes."
    processes: int = 1
    "Processes of the run, one for each GPU, on machines that are alike. One process is measured here, with its share of the batch."
    machine_processes: int | None = None
    "Those of each machine; None: all are on one."
    within: float = 300.0
    "GB (10^9 bytes) a second that a process can send to others of its machine."
    between: float = 25.0
    "GB a second that a machine can send to other machines, all of its network cards together."
    latency: float = 10.0
    "Microseconds that a message between processes takes besides its bytes."
    sharing: int = 1
    "Processes that share the device measured here: each computes as many times as slowly, and has a part of the memory that is free."
    json: bool = False
    "Print JSON."

    def validate(self) -> None:
        self.require(0 < self.seconds <= 3600, "seconds", "a positive number, at most 3600")
        self.require(1 <= self.processes <= 10**6, "processes", "1 to 1000000")
        per_machine = self.machine_processes
        divides = per_machine is None or (per_machine >= 1 and self.processes % per_machine == 0)
        wanted = f"a divisor of the {self.processes} processes, or nothing" if self.processes > 1 else "nothing without --processes"
        self.require(divides and (self.processes > 1 or per_machine is None), "machine_processes", wanted)
        for name in ("within", "between"):
            self.require(0 < getattr(self, name) < math.inf, name, "a positive number of GB a second")
        self.require(0 <= self.latency < math.inf, "latency", "0 or more microseconds")
        for field in dataclasses.fields(self):
            if field.name in ("within", "between", "latency"):
                used = self.processes > 1 or getattr(self, field.name) == field.default
                self.require(used, field.name, "nothing without --processes, for one process sends nothing")
        wanted = f"1 to {self.processes}, all of the processes" if self.processes > 1 else "1 without --processes"
        self.require(1 <= self.sharing <= self.processes, "sharing", wanted)


def main(arguments: Sequence[str]) -> int:
    """Measures, and prints the plan."""
    if not arguments:
        raise ConfigError("", f"no recipe given; usage: {_LINE} (triptych recipes lists them)")
    if arguments[0] in ("-h", "--help"):
        show_page(USAGE)
        return 0
    require_images(flag_value("--data.path", arguments), note=" (data.path)")
    base, settings = base_and_settings(arguments, usage=_LINE)
    options, run_config = configure(base, settings, options=PlanOptions(), verb="plan")

    from triptych.runs.planning import plan
    from triptych.runs.scaling import Machines

    machines = Machines(
        options.processes,
        options.machine_processes or options.processes,
        within=1e9 * options.within,
        between=1e9 * options.between,
        latency=1e-6 * options.latency,
        sharing=options.sharing,
    )
    with named_as_flags(options, run_config):
        found = plan(
            run_config,
            machines=machines,
            directory=place_of(base, options),
            device=options.device,
            seconds=options.seconds,
            say=lambda line: show(f"{line} ...", error=True),
        )
    if options.json:
        show_page(json.dumps(found.to_dict(), indent=2))
    else:
        for line in lines_of(found):
            show(line)
    return 0


def lines_of(plan: Plan) -> Iterator[str]:
    """The plan in words: a line for each thing that a run takes, then the warnings."""
    from triptych.runs.plan_figures import rounded

    networks = ", ".join(f"{name} {count:,}" for name, count in plan.parameters.items())
    yield f"parameters      {sum(plan.parameters.values()):,} ({networks})"
    yield f"operations      {rounded(plan.operations / 1e9)} GFLOP an image, forward and backward, all phases"
    if plan.scaled is not None:
        yield from _processes(plan.scaled)
    memory, cut = plan.memory, "microbatch" if plan.memory.divisible else "batch"
    for size in plan.sizes:
        yield f"memory          {in_bytes(size.peak_bytes)} with {counted(size.images, 'image')} at once (measured)"
    if memory.too_many(plan.at_once):
        yield f"memory          {counted(plan.at_once, 'image at once does', 'images at once do')} not fit (tried)"
    elif all(size.images != plan.at_once for size in plan.sizes):
        yield f"memory          {in_bytes(plan.memory_bytes)} with {counted(plan.at_once, 'image')} at once (by the line through these)"
    elif plan.scaled is not None:
        yield f"memory          {in_bytes(plan.memory_bytes)} with {counted(plan.at_once, 'image')} at once in each process"
    of_process = f", {in_bytes(memory.start_bytes)} of it the program itself" if memory.start_bytes else ""
    yield f"                {in_bytes(memory.per_image)} for each further image{of_process}"
    if memory.free_bytes is not None:
        largest = memory.largest
        says = "any microbatch fits" if largest is None else f"the largest {cut} that fits is {largest:,}" if largest else f"no {cut} fits"
        if largest and plan.scaled is not None:
            says += " in each process" if memory.divisible else f" in each process, {largest * plan.processes:,} in all of them"
        yield f"                {in_bytes(memory.free_bytes)} are free: {says}"
    note = ", from smaller sizes" if plan.extrapolated else ""
    step = counted(plan.images_per_step, "image")
    yield f"speed           {rounded(plan.rate)} images/s ({plan.step_seconds:.3g} s a step of {step}{note})"
    count = memory.loader_processes
    processes = "process, which takes" if count == 1 else "processes, which take"
    beside = f" by {count} {processes} {in_bytes(memory.loader_bytes)} more" if count else ""
    yield f"loader          {rounded(plan.loader_rate)} images/s{beside}"
    left = "" if not plan.images_seen else f" from {plan.images_seen:,}"
    yield f"time            {hours(plan.seconds_left)}{left} to {counted(plan.total_images, 'image')}; {_around(plan)}"
    yield f"                {hours(plan.seconds_to_checkpoint)} to the next checkpoint"
    disk = f"{in_bytes(plan.kept_bytes)} at most ({in_bytes(plan.checkpoint_bytes)} a checkpoint)"
    yield f"disk            {disk}; {in_bytes(plan.free_disk)} free"
    yield f"data            {counted(plan.training_images, plan.sample)}, {counted(rounded(plan.epochs), 'epoch')}"
    missing = NOT_COUNTED[plan.device == "cpu"] if plan.scaled is None else (_SMALL, *NOT_COUNTED[plan.device == "cpu"][1:])
    yield f"not counted     {', '.join(missing)}"
    for warning in plan.warnings():
        yield f"warning: {warning}"


def _processes(scaled: Scaled) -> Iterator[str]:
    machines = scaled.machines
    where = "1 machine" if machines.count == 1 else f"{machines.count:,} machines of {machines.per_machine}"
    held = "each holds all weights" if scaled.shard_size == 1 else f"{scaled.shard_size:,} hold one copy of the weights"
    yield f"processes       {machines.processes:,} on {where}, {counted(scaled.images, 'image')} of a batch each; {held}"
    yield (
        f"state           {in_bytes(scaled.state_bytes)} of weights, gradients, optimizer and averages in each "
        f"({in_bytes(scaled.state_of_one)} in one process), and {in_bytes(scaled.gathered_bytes)} for a moment"
    )
    left = f", each machine {in_bytes(scaled.left_bytes)} to others" if machines.count > 1 else ""
    yield f"traffic         each process sends {in_bytes(scaled.sent_bytes)} a step{left}"
    least, most = scaled.least_seconds, scaled.seconds
    says = f"{least:.3g} to {most:.3g} s" if least < most else f"{most:.3g} s"
    why = "if all or nothing of what can overlap does" if least < most else "nothing of it overlaps"
    yield f"step            {says}: {scaled.compute_seconds:.3g} s of computing, {scaled.exchange_seconds:.3g} s of sending; {why}"


def hours(seconds: float) -> str:
    """A time in the unit that suits it."""
    from triptych.runs.plan_figures import rounded

    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{rounded(seconds / length)} {unit}"
    return counted(rounded(seconds), "second")


def _around(plan: Plan) -> str:
    counts = plan.counts | {"checkpoints": plan.checkpoints}
    *some, last = [counted(count, what.removesuffix("s")) for what, count in counts.items()]
    return f"{hours(plan.seconds_around)} of it for {', '.join(some)} and {last}"
