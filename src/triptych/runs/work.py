"""Long work on many items: shared between processes, kept in pieces while it lasts, and written whole.

A verb says what its work is (`Work`) and gives it to `done`. Each process makes what is missing of its share of the items and saves every
batch as a piece beside the output; when all pieces are there, every process puts them together, and the main one writes the output and
removes them, and those that other calls left of the same output. The same call goes on where an interrupted one was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import nn

from triptych.core.batch import share
from triptych.core.model import Report
from triptych.engine.distributed import World
from triptych.engine.progress import Watch
from triptych.engine.signals import made_by_all
from triptych.runs.files import writing
from triptych.runs.pieces import Pieces

T = TypeVar("T")

Part = tuple[Sequence[int], Mapping[str, np.ndarray]]
"""Some items, and by name what was made of them: arrays with a row for each, or what is to be summed over all parts."""


Within = Callable[[float], None]
"""Told how many images of a batch are done, where a batch takes several steps."""


@dataclass(frozen=True)
class Work:
    """What is to be made of items 0 to count - 1. What is made of one depends on its number, never on its batch or process."""

    count: int
    identity: Any
    "All that the outcome depends on, for JSON: pieces of another identity are not taken up."
    make: Callable[[Sequence[int], Within], Iterator[Part]]
    "Makes some items, batch by batch."


class Store(Protocol):
    """Where parts are kept until all are there."""

    def missing(self, items: range) -> Iterable[Sequence[int]]:
        """Those of the items that are not there yet, in groups that are made one after the other."""
        ...

    def save(self, items: Sequence[int], arrays: Mapping[str, np.ndarray]) -> None:
        """Keeps a part."""
        ...


class _Memory(list[Part]):
    def missing(self, items: range) -> Iterable[Sequence[int]]:
        return [items]

    def save(self, items: Sequence[int], arrays: Mapping[str, np.ndarray]) -> None:
        self.append((items, arrays))


def done(
    work: Work,
    out: Path | None,
    *,
    world: World,
    progress: Watch,
    kept: str,
    conclude: Callable[[Iterable[Part]], T],
    write: Callable[[Path, T], object],
) -> T:
    """What `conclude` makes of all parts, in every process; the main one writes it by `write` to `out`, unless that is None.

    `progress` is told how many of this process's items are done, and how many there are. `kept` says in messages what of an interrupted
    call is kept ("drawn"). Raises DataError where `out` cannot be written, Stopped for an interruption.
    """
    if out is None:
        return conclude(in_memory(work, world, progress))
    with writing(out, world=world, kept=kept):
        pieces = Pieces.of(out, identity=work.identity)
        make_missing(work, pieces, world=world, progress=progress)
        world.barrier()
        result = conclude(pieces.read(work.count))
        world.barrier()
        if world.is_main:
            write(out, result)
            pieces.remove_all()
        return result


def make_missing(work: Work, store: Store, *, world: World, progress: Watch) -> None:
    """Makes and saves what a store lacks of this process's share of the items."""
    items_here = share(work.count, rank=world.rank, world_size=world.size)
    missing = [items for items in store.missing(items_here) if items]  # a process may have no share
    made = len(items_here) - sum(map(len, missing))

    def within(images: float) -> None:
        progress(made + images, len(items_here))

    within(0)
    for items in missing:
        for batch, arrays in work.make(items, within):
            store.save(batch, arrays)
            made += len(batch)
            within(0)


def in_memory(work: Work, world: World, progress: Watch) -> list[Part]:
    """All parts, in every process. Raises Stopped in all of them where `progress` does in one."""

    def made() -> list[Part]:
        memory = _Memory()
        make_missing(work, memory, world=world, progress=progress)
        return list(memory)

    return [part for parts in made_by_all(world, made) for part in parts]


def steps_within(within: Within, size: int) -> Report:
    """What tells `within` of the steps of a batch of `size` images; the whole batch is told of when it is kept."""

    def report(step: int, steps: int) -> None:
        if step < steps:
            within(size * step / steps)

    return report


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within it the model is in evaluation mode, and there are no gradients."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def ranges(items: Sequence[int], size: int) -> Iterator[range]:
    """Items that follow one another, in ranges of at most `size`."""
    for first in range(items[0], items[-1] + 1, size):
        yield range(first, min(first + size, items[-1] + 1))


def assembled(parts: Iterable[Part], count: int) -> dict[str, np.ndarray]:
    """The arrays of all parts, by name, with a row for each of `count` items; a part at a time, for they may fill half of the memory."""
    whole: dict[str, np.ndarray] = {}
    for items, arrays in parts:
        for name, rows in arrays.items():
            if name not in whole:
                whole[name] = np.empty((count, *rows.shape[1:]), dtype=rows.dtype)
            whole[name][np.asarray(items)] = rows
    return whole
