"""What a run of many processes takes, from what one was measured to take and what the machines can send each other.

Collective operations are taken to be rings, as NCCL and gloo have them for large messages: each of n processes sends 2 (n - 1) / n of
the bytes that are summed (all-reduce), and (n - 1) / n of those that are put together (all-gather) or summed and divided
(reduce-scatter), in as many messages as there are turns of the ring. Smaller exchanges (votes, norms, measurements: some kilobytes) are
left out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Literal

from torch import nn

from triptych.core.errors import ConfigError
from triptych.core.model import Model
from triptych.engine.config import TrainConfig
from triptych.engine.sharding import blocks

BUCKET_BYTES = 25 * 2**20
"""Of gradients in one message, as in the engine and in PyTorch's DistributedDataParallel."""
_BACKWARD = 2 / 3
"""The share of a step's computing that is its backward pass: two products of matrices for each of the forward pass."""


@dataclasses.dataclass(frozen=True)
class Machines:
    """Equal machines, their processes, and how fast these send. Ranks are counted machine by machine, as torchrun does it."""

    processes: int
    per_machine: int
    within: float
    "Bytes a second that a process sends to others of its machine."
    between: float
    "Bytes a second that a machine sends to others, all of its network cards together."
    latency: float
    "Seconds that a message takes besides its bytes."
    sharing: int = 1
    "Processes that share the device that one process was measured on, so that each computes as many times as slowly."

    @property
    def count(self) -> int:
        """Of machines."""
        return self.processes // self.per_machine

    def everyone(self) -> Group:
        """All processes, in one ring."""
        return Group(self.processes, self.rate(int(self.count > 1)), int(self.count > 1))

    def holders(self, size: int) -> Group:
        """The processes that hold one copy of the model between them: `size` of them, one after the other."""
        rings = int(size > self.per_machine)
        return Group(size, self.rate(rings), rings)

    def copies(self, size: int) -> Group:
        """The processes that hold the same part of a model that `size` processes hold; as many such rings share a machine's connection."""
        rings = min(size, self.per_machine) if self.count > 1 else 0
        return Group(self.processes // size, self.rate(rings), rings)

    def rate(self, rings: int) -> float:
        """Bytes a second of a process in a ring, where so many rings leave its machine."""
        return min(self.within, self.between / rings) if rings else self.within

    def refuse_uneven(self, shard_size: int) -> None:
        """Raises ConfigError where machines are not equal, or copies of a model lie across the border of a machine."""
        if self.processes % self.per_machine:
            reason = f"got {self.per_machine}, expected a divisor of the {self.processes} processes"
            raise ConfigError("machine_processes", reason)
        if self.per_machine % shard_size and shard_size % self.per_machine:
            reason = f"got {shard_size}, expected a divisor or a multiple of the {self.per_machine} processes of a machine"
            raise ConfigError("train.shard_size", reason)


@dataclasses.dataclass(frozen=True)
class Group:
    """Processes that exchange something in a ring."""

    size: int
    rate: float
    "Bytes a second that each of them sends."
    rings: int
    "Such rings that leave each machine; 0: it lies within one."


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective operation, and how often it comes in an iteration (a mean: phases may be lazy)."""

    kind: Literal["all_reduce", "all_gather", "reduce_scatter"]
    size: float
    "Bytes of the whole tensor."
    group: Group
    times: float

    @property
    def rounds(self) -> int:
        """How often each byte goes round: an all-reduce is a reduce-scatter and an all-gather."""
        return 2 if self.kind == "all_reduce" else 1

    @property
    def sent(self) -> float:
        """Bytes that each process sends in an iteration."""
        return self.times * self.rounds * (self.group.size - 1) / self.group.size * self.size

    def seconds(self, latency: float) -> float:
        """In an iteration."""
        return self.sent / self.group.rate + self.times * self.rounds * (self.group.size - 1) * latency


@dataclasses.dataclass(frozen=True)
class Unit:
    """Weights that FSDP puts together at once: shapes, and whether they are what is left of a network beside its blocks."""

    shapes: tuple[tuple[int, ...], ...]
    rest: bool

    def part(self, size: int) -> int:
        """Bytes (float32) of the largest part where `size` processes divide it by the first axis."""
        return sum(4 * -(-shape[0] // size) * math.prod(shape[1:]) for shape in self.shapes)

    def padded(self, size: int) -> int:
        """Bytes that are sent of it, where all parts are as large as the largest."""
        return size * self.part(size)

    @property
    def whole(self) -> int:
        """Bytes of it."""
        return self.part(1)


def units(network: nn.Module, *, by_block: bool) -> Iterator[Unit]:
    """The units of a network, its blocks first. Single numbers, which are not divided, are in none."""
    seen: set[int] = set()
    for block in blocks(network) if by_block else ():
        own = [parameter for parameter in block.parameters() if parameter.ndim and id(parameter) not in seen]
        seen.update(map(id, own))
        if own:
            yield Unit(tuple(tuple(parameter.shape) for parameter in own), rest=False)
    left = [tuple(parameter.shape) for parameter in network.parameters() if parameter.ndim and id(parameter) not in seen]
    if left:
        yield Unit(tuple(left), rest=True)


def shard_size(train: TrainConfig, machines: Machines) -> int:
    """How many processes hold a copy of the model between them."""
    if train.shard == "none":
        return 1
    return machines.processes if train.shard == "full" else train.shard_size or machines.per_machine


def share_of(train: TrainConfig, processes: int) -> int:
    """Images of a batch that each process has: the largest share, where they differ."""
    return -(-train.batch_size // processes)


def collectives(model: Model, train: TrainConfig, machines: Machines, turns: Mapping[str, float]) -> list[Collective]:
    """The collective operations of an iteration with so many turns of each phase, each of which has a gradient of all its weights."""
    size = shard_size(train, machines)
    images = share_of(train, machines.processes)
    passes = -(-images // min(images, train.at_once(machines.processes)))
    learned = dict.fromkeys(name for phase in model.phases for name in phase.networks)
    found = []
    for phase in model.phases:
        times = turns.get(phase.name, 0.0)
        networks = [getattr(model, name) for name in phase.networks]
        if size > 1 and model.gathers == "blocks":
            found += [
                each for network in networks for unit in units(network, by_block=True) for each in _of(unit, size, times * passes, machines)
            ]
            continue
        if size > 1:
            wholes = [unit for name in learned for unit in units(getattr(model, name), by_block=False)]
            found += [Collective("all_gather", unit.padded(size), machines.holders(size), times) for unit in wholes]
        gradients = sum(parameter.nbytes for network in networks for parameter in network.parameters() if parameter.requires_grad)
        messages = max(1, math.ceil(gradients / BUCKET_BYTES))
        found.append(Collective("all_reduce", gradients / messages, machines.everyone(), times * messages))
    return [each for each in found if each.times and each.group.size > 1]


def _of(unit: Unit, size: int, passes: float, machines: Machines) -> Iterator[Collective]:
    """Of a unit that is gathered for the forward pass, again for the backward pass (but for the rest, which stays), and reduced there."""
    holders = machines.holders(size)
    yield Collective("all_gather", unit.padded(size), holders, passes * (1 if unit.rest else 2))
    yield Collective("reduce_scatter", unit.padded(size), holders, passes)
    yield Collective("all_reduce", unit.part(size), machines.copies(size), passes)


@dataclasses.dataclass(frozen=True)
class State:
    """Bytes that one process keeps of a model that it holds alone."""

    weights: int
    "Those that are learned."
    gradients: int
    optimizer: int
    averages: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.averages


@dataclasses.dataclass(frozen=True)
class Scaled:
    """What an iteration takes in each of several processes."""

    machines: Machines
    shard: str
    shard_size: int
    images: int
    "Of a batch in each process."
    compute_seconds: float
    exchange_seconds: float
    "Where nothing of it goes on beside computing."
    hidden_seconds: float
    "What of it may go on beside computing at most."
    sent_bytes: float
    "By each process."
    left_bytes: float
    "By each machine to others."
    state_bytes: float
    "Of weights, gradients, optimizer and averages in the process that has most of them."
    state_of_one: int
    "The same of one process that holds them alone."
    gathered_bytes: float
    "The most that is there for a moment besides: weights that are put together, gradients that are not divided yet, messages."
    saved_bytes: float
    "What a process has less, at the peak of its passes, than one that holds all alone; below 0: more."
    least_bytes: float
    "What it takes beside the passes, where the gradients of all processes are summed, besides what the program itself takes."

    @property
    def seconds(self) -> float:
        """Of an iteration where nothing overlaps."""
        return self.compute_seconds + self.exchange_seconds

    @property
    def least_seconds(self) -> float:
        """Of an iteration where as much as can be goes on beside computing."""
        return self.seconds - self.hidden_seconds


def scaled(model: Model, train: TrainConfig, machines: Machines, *, turns: Mapping[str, float], seconds: float, state: State) -> Scaled:
    """What follows from one process whose iteration on its share takes `seconds`. `turns`: of each phase in an iteration, a mean."""
    size = shard_size(train, machines)
    found = collectives(model, train, machines, turns)
    compute = seconds * machines.sharing
    exchange = sum(each.seconds(machines.latency) for each in found)
    kept, gathered, saved, least = _memory(model, train, state, size)
    return Scaled(
        machines=machines,
        shard=train.shard,
        shard_size=size,
        images=share_of(train, machines.processes),
        compute_seconds=compute,
        exchange_seconds=exchange,
        hidden_seconds=_hidden(found, model, train, machines, compute=compute, exchange=exchange),
        sent_bytes=sum(each.sent for each in found),
        left_bytes=sum(each.sent * each.group.rings for each in found),
        state_bytes=kept,
        state_of_one=state.total,
        gathered_bytes=gathered,
        saved_bytes=saved,
        least_bytes=least,
    )


def overlaps(model: Model, train: TrainConfig) -> bool:
    """Whether gradients are summed over processes that hold all weights while the backward pass still runs (DDP), and not after it."""
    return train.out_of_memory == "stop" or model.couples_samples


def _hidden(found: list[Collective], model: Model, train: TrainConfig, machines: Machines, *, compute: float, exchange: float) -> float:
    """Seconds of the exchange that may go on beside computing, at most.

    Of DDP all but the last bucket, in the backward pass of the last microbatch. Of FSDP by block all but one unit's first gathering and
    last reduction. Of weights that are gathered whole nothing.
    """
    if not found:
        return 0.0
    if shard_size(train, machines) > 1:
        if model.gathers != "blocks":
            return 0.0
        ends = min(each.seconds(machines.latency) / each.times for each in found if each.kind == "all_gather")
        ends += min(each.seconds(machines.latency) / each.times for each in found if each.kind == "reduce_scatter")
        return min(max(0.0, exchange - ends), compute)
    if not overlaps(model, train):
        return 0.0
    images = share_of(train, machines.processes)
    passes = -(-images // min(images, train.at_once(machines.processes)))
    last = sum(each.seconds(machines.latency) * min(1.0, 1 / each.times) for each in found)
    return min(max(0.0, exchange - last), _BACKWARD * compute / passes)


def _memory(model: Model, train: TrainConfig, state: State, size: int) -> tuple[float, float, float, float]:
    """Bytes of the state, of what is there for a moment, of what the passes take less than in one process, and beside the passes."""
    if size == 1:  # messages are a copy of the gradients: DDP keeps them, else they are there when the passes are done
        kept = state.gradients if overlaps(model, train) else 0
        return state.total, state.gradients, -kept, state.total + state.gradients
    by_block = model.gathers == "blocks"
    networks = [getattr(model, name) for name in dict.fromkeys(name for phase in model.phases for name in phase.networks)]
    every = [unit for network in networks for unit in units(network, by_block=by_block)]
    share = sum(unit.part(size) for unit in every) / sum(unit.whole for unit in every)
    divided = share * state.total
    if not by_block:  # parts of weights beside the whole ones, and whole gradients, which are summed in a copy
        saved = (1 - share) * (state.optimizer + state.averages) - share * (state.weights + state.gradients)
        gathered = state.weights + 2 * state.gradients
        return divided, gathered, saved, divided + gathered
    largest = max((unit.padded(size) for unit in every if not unit.rest), default=0)
    rest = sum(unit.padded(size) for unit in every if unit.rest)
    # The rest with its gradients; the weights of a block, of the next one and its message, the block's gradients, and those that are sent.
    gathered = 2 * rest + 5 * largest
    return divided, gathered, (1 - share) * state.total - gathered, divided + gathered
