"""The processes of one run: ranks, collectives, and the main process, which writes files.

Under torchrun the processes form a group (NCCL on CUDA, gloo on CPU); without it there is one process and nothing to do.
"""

from __future__ import annotations

import atexit
import functools
import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, _set_pg_timeout  # the one way to change it; torchtitan uses it too
from torch.distributed.rendezvous import rendezvous

from triptych.core.errors import ConfigError, UserError
from triptych.core.parent import end_with
from triptych.engine.peers import Peers, meet

T = TypeVar("T")

_MEETING = timedelta(minutes=30)  # until all processes have started
_JOINING_SECONDS = 60.0  # of silence of a process that has met the others, until all are connected
_BUCKET_BYTES = 25 * 2**20  # as in PyTorch's DistributedDataParallel
_NCCL_LIMITS = 3  # the limit of a wait on a GPU, as so many of one on the host; more than those of peers.py
_PATIENCE = timedelta(hours=12)  # a process that is silent for long ends the others earlier


@dataclass(frozen=True)
class World:
    """The processes of a run. `control`: the group for host values; None: the default group, which can carry them."""

    rank: int
    size: int
    device: torch.device
    control: Any = None
    peers: Peers | None = None
    further_groups: list[Any] = field(default_factory=list, compare=False)
    "Groups of some of the processes, whose waits have the same limit."

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum of a tensor of any shape over all processes, in place where there are several."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def sum_all(self, tensors: Iterable[Tensor]) -> None:
        """Makes each tensor its sum over all processes; they have the same tensors in the same order."""
        if self.size > 1:
            _in_buckets(tensors, lambda flat: dist.all_reduce(flat, async_op=True))

    def take_from_main(self, tensors: Iterable[Tensor]) -> None:
        """Gives the tensors the main process's values; they have the same tensors in the same order."""
        if self.size > 1:
            _in_buckets(tensors, lambda flat: dist.broadcast(flat, src=0, async_op=True))

    def largest(self, values: Sequence[int]) -> list[int]:
        """The largest of each value over all processes."""
        if self.size == 1:
            return [int(value) for value in values]
        largest = torch.tensor([int(value) for value in values])
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self.control)
        return largest.tolist()

    def gather_samples(self, values: Tensor) -> Tensor:
        """The samples (b, ...) of all processes in rank order; their number may differ between processes."""
        if self.size == 1:
            return values
        return torch.cat([part.to(values.device) for part in self.gather(values.cpu())])

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in every process."""
        if self.size == 1:
            return [value]
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, value, group=self.control)
        return parts

    def from_main(self, value: Any) -> Any:
        """The main process's value, in every process."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def on_main(self, act: Callable[[], T]) -> T:
        """The result of `act` in the main process, in every process.

        A UserError of it is raised in every process too; its attribute `first` says whether this is the process that tells the user.
        """
        outcome: T | UserError | None = None
        if self.is_main:
            try:
                outcome = act()
            except UserError as error:
                outcome = error
        outcome = self.from_main(outcome)
        if isinstance(outcome, UserError):
            outcome.first = self.is_main  # type: ignore[attr-defined]
            raise outcome
        return outcome  # type: ignore[return-value]

    def leave_word(self, word: str) -> None:
        """Leaves a word for all processes and does not wait for them; they read it by `has_word`."""
        if self.size > 1:
            _store().set(word, "1")

    def has_word(self, word: str) -> bool:
        """Whether a process left that word."""
        return self.size > 1 and _store().check([word])

    def barrier(self) -> None:
        """Waits until all processes are here."""
        if self.size > 1:
            dist.barrier(group=self.control)

    # Waiting ---------------------------------------------------------------------------------------------------------

    def doing(self, what: str) -> None:
        """Notes the work that this process begins. Others name it when they wait in vain. All begin the same works in the same order."""
        if self.peers is not None:
            self.peers.doing(what)

    def limit(self, minutes: float | None) -> None:
        """Sets how long the processes wait for one another from now on; None: as long as all of them live."""
        if self.peers is None or self.peers.minutes == minutes:
            return
        self.peers.minutes = minutes
        limit = _PATIENCE if minutes is None else timedelta(minutes=minutes)
        for group in {None, self.control, *self.further_groups}:
            # NCCL ends a process without a word: the others, which can name the late one, are to be first.
            words = self.control is None or group is self.control
            _set_pg_timeout(limit if words else _NCCL_LIMITS * limit, group)

    @contextmanager
    def patience(self, doing: str) -> Iterator[None]:
        """The context without a limit, for work that takes some processes longer than others, such as writing a file."""
        self.doing(doing)
        if self.peers is None:
            yield
            return
        minutes = self.peers.minutes
        self.limit(None)
        yield
        self.barrier()
        self.limit(minutes)

    def watch(self, *, limit_minutes: float, log_path: Path, records: Path) -> None:
        """Sets how long a process may be silent, the log that others write to when process 0 cannot, and the folder of records of waits."""
        if self.peers is not None:
            self.peers.limit_seconds, self.peers.log_path, self.peers.records = 60 * limit_minutes, log_path, records


@torch.no_grad()
def _in_buckets(tensors: Iterable[Tensor], send: Callable[[Tensor], Any]) -> None:
    """Sends tensors of one type many at a time, as each message costs time, and gives them what came of it."""
    buckets: list[list[Tensor]] = [[]]
    filled = 0  # bytes of the last one
    for tensor in tensors:
        if filled >= _BUCKET_BYTES:
            buckets.append([])
            filled = 0
        buckets[-1].append(tensor)
        filled += tensor.nbytes
    sent = []
    for bucket in filter(None, buckets):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        sent.append((bucket, flat, send(flat)))
    for bucket, flat, work in sent:
        work.wait()
        for tensor, values in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
            tensor.copy_(values.view(tensor.shape))


def patiently(doing: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Decorates a method of a class with a `world`: the call runs within `World.patience`."""

    def decorate(method: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(method)
        def patient(self: Any, *arguments: Any) -> T:
            with self.world.patience(doing):
                return method(self, *arguments)

        return patient

    return decorate


def told_elsewhere(error: BaseException) -> bool:
    """Whether another process tells the user of this error: the main one, which has passed it on, or the first to miss another one.

    Also of one that has been renamed on its way, as a setting by its flag.
    """
    while not hasattr(error, "first"):
        renamed = error.__context__ if error.__suppress_context__ else None
        if not isinstance(renamed, type(error)):
            return False
        error = renamed
    return not error.first  # type: ignore[attr-defined]


@contextmanager
def failing_together() -> Iterator[None]:
    """The context in which an error of one process ends all: the others raise PeerError, which names it."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        peers = _join(dist.get_backend())[1] if dist.is_initialized() and dist.is_torchelastic_launched() else None
        explained = error if peers is None or told_elsewhere(error) else peers.explained(error)
        if explained is error:
            raise
        raise explained from None


def open_world(device: str | None = None) -> World:
    """This process's place in the run; joins the group that torchrun prepared. `device`: None for CUDA where there is one.

    Raises ConfigError for a device that this machine lacks.
    """
    launched = dist.is_torchelastic_launched()
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    local_rank = dist.get_node_local_rank(0) if launched else 0  # pyright: ignore[reportPrivateImportUsage]
    chosen = _device(name, local_rank)
    if chosen.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else its products may add in another order each time
        torch.cuda.set_device(chosen)  # whose memory is told, where nothing names a device
    if not launched:
        return World(0, 1, chosen)
    control, peers = _join("nccl" if chosen.type == "cuda" else "gloo")
    return World(dist.get_rank(), dist.get_world_size(), chosen, control, peers)


@functools.cache
def _join(backend: str) -> tuple[Any, Peers | None]:
    """The group for host values (see `World`) and the other processes; this process has joined them when this returns."""
    if dist.is_initialized():  # by the program that uses this library
        return dist.new_group(backend="gloo") if backend == "nccl" else None, None
    end_with(os.getppid())
    meeting, rank, size = next(rendezvous("env://", timeout=_MEETING))
    store = PrefixStore(meet(meeting, rank=rank, size=size), meeting)
    # A connection of its own: whoever waits on one keeps the others from it.
    apart = PrefixStore("peers", store.clone())  # pyright: ignore[reportAttributeAccessIssue]
    peers = Peers(apart, rank=rank, size=size)
    usual, peers.limit_seconds = peers.limit_seconds, _JOINING_SECONDS
    peers.wait_for_all()
    peers.watch()
    atexit.register(peers.leave)
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_MEETING)
        control: Any = dist.new_group(backend="gloo", timeout=_MEETING) if backend == "nccl" else None  # NCCL carries no host values
        for group in {None, control}:
            _set_pg_timeout(_PATIENCE, group)
        dist.barrier(group=control)
    except RuntimeError as error:
        explained = peers.explained(error)
        if explained is error:
            raise
        raise explained from None
    peers.limit_seconds = usual
    return control, peers


def _store() -> Any:
    """The store of the processes; it lives as long as they do."""
    return dist.distributed_c10d._get_default_store()


def close_world() -> None:
    """Leaves the group of processes, where this is one of several; call it once, at the normal end of the program."""
    if dist.is_initialized():
        peers = _join(dist.get_backend())[1]
        if peers is not None:
            peers.leave()
        _join.cache_clear()
        dist.destroy_process_group()
        # The threads of a gloo group end with its last reference. One that still lets go of a tensor while Python shuts down aborts it.
        gc.collect()


def _device(name: str, local_rank: int) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError("device", f'got "{name}", expected "cpu", "cuda" or "cuda:N"') from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError("device", f'got "{name}", expected "cpu", "cuda" or "cuda:N"')
    if device.type == "cpu":
        return torch.device("cpu")
    if device.index is not None and int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > 1:
        raise ConfigError("device", f'got "{name}" for several processes, each of which has a device of its own; give "cuda"')
    index = device.index if device.index is not None else local_rank
    if index >= torch.cuda.device_count():
        raise ConfigError(
            "device", f'got "{name}", but this machine has {torch.cuda.device_count()} CUDA device(s) for process {local_rank}'
        )
    return torch.device("cuda", index)


class Agreement:
    """A vote without waiting: `vote` gives the wishes that all processes had at the call before."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._pending: tuple[Any, Tensor] | None = None
        self.lags = world.size > 1
        "Whether a vote gives the wishes of the call before."

    def vote(self, wishes: Mapping[str, bool]) -> dict[str, bool]:
        """For each name, whether any process wished for it; with several processes, as of the call before."""
        if self._world.size == 1:
            return dict(wishes)
        agreed = dict.fromkeys(wishes, False)
        if self._pending is not None:
            work, counts = self._pending
            work.wait()
            agreed = {name: bool(count) for name, count in zip(wishes, counts.tolist(), strict=True)}
        counts = torch.tensor([int(wish) for wish in wishes.values()])
        self._pending = (dist.all_reduce(counts, group=self._world.control, async_op=True), counts)
        return agreed

    def close(self) -> None:
        """Finishes the vote under way."""
        if self._pending is not None:
            self._pending[0].wait()
            self._pending = None
