"""The order of training and the batches made of it, here or in loader processes.

Training sees samples by their position p = 0, 1, 2, ...: p is in epoch p // n, and its image is the (p % n)-th of that epoch's
permutation. Image and augmentation are functions of (seed, p), so one integer is enough to go on from, batches may be of any
size, and any number of processes and workers gives the same samples.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from triptych.core.batch import RawBatch, share
from triptych.core.errors import DataError, RunError
from triptych.core.files import explain
from triptych.core.memory import available_memory, in_bytes, kills_for_memory
from triptych.core.parent import end_with
from triptych.core.rng import permutation
from triptych.core.wording import counted
from triptych.data.images import ImageSet, usable_cores
from triptych.data.stored import BadImage

_PREFETCHED = 2  # batches ahead, of each worker
_EPOCHS_KEPT = 2  # a batch may lie across the border of two


class Loader:
    """Batches of a set of images in the order of training, without end."""

    def __init__(
        self,
        images: ImageSet,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        workers: int | None = None,
        bad: dict[str, str] | None = None,
    ) -> None:
        """`batch_size` counts the images of all processes; `workers`: processes that load, 0 for none, None for what suits the images.

        `bad` is told what is wrong with images in whose place others are given, by key.
        """
        self._samples = _Samples(images, seed=seed)
        self._batch_size = batch_size
        self._share = share(batch_size, rank=rank, world_size=world_size)
        self._workers = images.default_workers() if workers is None else workers
        self._stream: Generator[RawBatch, None, None] | None = None
        self._bad = {} if bad is None else bad
        if len(images) < batch_size and rank == 0:
            few = counted(len(images), "training image fills", "training images fill")
            warnings.warn(f"{few} no batch of {batch_size}: batches repeat images", stacklevel=2)
        if self._workers > (cores := usable_cores()) and rank == 0:
            said = f"data.workers is {self._workers}, for {counted(cores, 'CPU core')}: more take memory and are rarely faster"
            warnings.warn(said, stacklevel=2)

    def batches(self, start: int) -> Iterator[RawBatch]:
        """This process's share of each batch, from position `start` (images seen so far) on; `index` holds the positions.

        Ends the stream of an earlier call. Raises DataError naming a file that cannot be used, RunError when a worker is killed.
        """
        self.close()
        part = self._share
        positions = (np.arange(seen + part.start, seen + part.stop) for seen in itertools.count(start, self._batch_size))
        self._stream = _stream(self._samples, positions, self._workers, self._bad)
        return self._stream

    def close(self) -> None:
        """Ends the stream and its worker processes."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def evaluation_batches(
    images: ImageSet, *, batch_size: int, rank: int = 0, world_size: int = 1, limit: int | None = None, workers: int | None = 0
) -> Iterator[RawBatch]:
    """Every image once and in order, centre-cropped and as it is; `index` holds the numbers of the images.

    `limit`: the first so many only. All processes get the same number of batches; in the last one a share may be empty.
    """
    count = len(images) if limit is None else min(limit, len(images))

    def numbers() -> Iterator[np.ndarray]:
        for start in range(0, count, batch_size):
            part = share(min(batch_size, count - start), rank=rank, world_size=world_size)
            yield np.arange(start + part.start, start + part.stop)

    return batches_of(images, numbers(), workers=workers)


def batches_of(images: ImageSet, numbers: Iterable[np.ndarray], *, workers: int | None = 0) -> Iterator[RawBatch]:
    """The batches of images with these numbers, (b,) each, in order and as they are; `workers` as of a `Loader`."""
    return _stream(_Samples(images, seed=None), numbers, images.default_workers() if workers is None else workers, {})


def load(images: ImageSet, numbers: np.ndarray) -> RawBatch:
    """Some images by their numbers (b,), as `evaluation_batches` gives them."""
    return _Samples(images, seed=None).load(numbers).batch()


@dataclass(frozen=True)
class _Loaded:
    """A batch on its way from a worker. Arrays go through the pipe as they are: tensors would go through shared memory, which is
    slower for batches of this size and small in containers."""

    pixels: np.ndarray | torch.Tensor
    labels: np.ndarray | None
    inputs: Mapping[str, np.ndarray | torch.Tensor]
    index: np.ndarray
    bad: Mapping[str, str]

    def pin_memory(self) -> _Loaded:
        """The same in page-locked memory; DataLoader's thread calls it where there is a GPU."""
        inputs = {name: torch.as_tensor(values).pin_memory() for name, values in self.inputs.items()}
        return replace(self, pixels=torch.as_tensor(self.pixels).pin_memory(), inputs=inputs)

    def batch(self) -> RawBatch:
        labels = None if self.labels is None else torch.from_numpy(self.labels)
        inputs = {name: torch.as_tensor(values) for name, values in self.inputs.items()}
        return RawBatch(torch.as_tensor(self.pixels), labels, torch.from_numpy(self.index), inputs)


class _Samples(Dataset):
    """Samples by position of the training order, or by number when there is no seed."""

    def __init__(self, images: ImageSet, *, seed: int | None) -> None:
        self._images = images
        self._seed = seed
        self._order = functools.lru_cache(_EPOCHS_KEPT)(lambda epoch: permutation(len(images), seed=seed or 0, epoch=epoch))

    def load(self, index: np.ndarray) -> _Loaded:
        try:
            samples = self._images.batch(index) if self._seed is None else self._images.batch(self._items(index), index, seed=self._seed)
        except BadImage as error:
            raise error.stopping(skips=self._images.config.skips) from error
        return _Loaded(samples.images, samples.labels, samples.inputs, index, samples.bad)

    def __getitems__(self, index: np.ndarray) -> Any:
        # An exception that torch carries out of a worker has its traceback in its message: the message alone travels instead.
        try:
            return self.load(index)
        except DataError as error:
            return str(error)

    def _items(self, positions: np.ndarray) -> np.ndarray:
        epochs, places = np.divmod(positions, len(self._images))
        items = np.empty_like(positions)
        for epoch in np.unique(epochs):
            items[epochs == epoch] = self._order(int(epoch))[places[epochs == epoch]]
        return items


def _stream(samples: _Samples, indices: Iterable[np.ndarray], workers: int, bad: dict[str, str]) -> Generator[RawBatch, None, None]:
    """`bad` is told of the bad images of each batch when that is taken, not when it was loaded."""
    if workers == 0:
        for index in indices:
            loaded = samples.load(index)
            bad.update(loaded.bad)
            yield loaded.batch()
        return
    kills, heard = kills_for_memory(), signal.getsignal(signal.SIGCHLD)
    iterator = _started(samples, indices, workers)
    if threading.current_thread() is threading.main_thread():
        # PyTorch's handler would raise that a worker is gone wherever this thread is, as in a step. The next wait for images tells.
        signal.signal(signal.SIGCHLD, heard or signal.SIG_DFL)
    try:
        for loaded in iterator:
            if isinstance(loaded, str):
                raise DataError(loaded)
            bad.update(loaded.bad)
            yield loaded.batch()
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        killed = any(process.exitcode == -signal.SIGKILL for process in getattr(iterator, "_workers", ()))
        raise RunError(_lost(str(error), killed=killed, for_memory=kills_for_memory() > kills)) from error
    except MemoryError as error:
        raise RunError("a loader process ran out of memory: lower data.workers") from error
    finally:
        processes = list(getattr(iterator, "_workers", ()))
        # Not left to the end of the iterator, which an exception that was raised within it still holds.
        getattr(iterator, "_shutdown_workers")()  # noqa: B009
        for process in processes:
            if process.is_alive():  # it did not end when asked, and no signal but this one is heard
                process.kill()
                process.join()


def _started(samples: _Samples, indices: Iterable[np.ndarray], workers: int) -> Iterator[Any]:
    """What the loader processes make. Raises RunError where the system does not give so many."""
    others = set(multiprocessing.active_children())
    loader = _Quiet(
        samples,
        batch_sampler=indices,  # pyright: ignore[reportArgumentType]  (arrays of numbers instead of lists)
        num_workers=workers,
        collate_fn=lambda loaded: loaded,
        worker_init_fn=functools.partial(_start_worker, parent=os.getpid()),
        prefetch_factor=_PREFETCHED,
        pin_memory=torch.cuda.is_available() and torch.cuda.is_initialized(),  # not for a run on the CPU
        # Workers inherit open archives and arrays in memory, which other methods would copy.
        multiprocessing_context="fork",
    )
    try:
        return iter(loader)
    except OSError as error:
        begun = set(multiprocessing.active_children()) - others
        for process in begun:  # Python would wait for them at its end, and they hear no signal but this one
            process.kill()
            process.join()
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if hasattr(made := frame.f_locals.get("self"), "_shutdown_workers"):
                setattr(made, "_shutdown", True)  # noqa: B010  (what is half made fails as it ends, and Python prints that)
        reason = f"{explain(error)}; {counted(len(begun), 'was', 'were')}"
        wanted = counted(workers, "loader process", "loader processes")
        raise RunError(f"{wanted} could not be started ({reason}): lower data.workers") from error


class _Quiet(DataLoader):
    """PyTorch's loader, which says at each start, twice, that there are more workers than cores; `Loader` says it once."""

    def check_worker_number_rationality(self) -> None:
        """Nothing."""


def _lost(said: str, *, killed: bool, for_memory: bool) -> str:
    """Why a loader process is gone, of which PyTorch `said` that.

    `killed`: whether one was killed; `for_memory`: whether the system has killed a process for want of memory since there are loaders.
    """
    if not killed and "signal: Killed" not in said:
        return f"a loader process ended: {said.partition('. ')[0]}"
    room = available_memory()
    free = "" if room is None else f" ({in_bytes(room)} are free now)"
    return f"a loader process was killed, {'' if for_memory else 'most likely '}by the system for want of memory{free}: lower data.workers"


def _start_worker(_: int, *, parent: int) -> None:
    """Ends with the training process, even one that is killed, and not before it.

    Ctrl-C, and what a cluster sends to every process of a job, must not end workers first: signals are left to the training process.
    """
    end_with(parent)
    os.setpgid(0, 0)
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
