from __future__ import annotations

import contextlib
import gc
import itertools
import multiprocessing
import os
import signal
import time
import warnings

import numpy as np
import pytest
import torch

from tests.data.limits import few_more_files
from tests.data.pictures import picture, write_folder
from triptych.core.batch import RawBatch
from triptych.core.errors import ConfigError, DataError, RunError
from triptych.core.rng import permutation
from triptych.data.config import DataConfig
from triptych.data.images import ImageSet, usable_cores
from triptych.data.loader import Loader, evaluation_batches
from triptych.data.skipping import Chosen

COUNT = 10


@pytest.fixture(scope="module", params=["files", "array"])
def images(request, tmp_path_factory) -> ImageSet:
    root = tmp_path_factory.mktemp("images")
    if request.param == "files":
        write_folder(root, [f"{k}/x.png" for k in range(COUNT)])
        path = root
    else:
        path = root / "x.npz"
        np.savez(path, np.stack([picture(20, 18, seed=k) for k in range(COUNT)]), np.arange(COUNT))
    return DataConfig(path=str(path), image_size=16, crop="random", validation_fraction=0).open().train


def take(images: ImageSet, count: int, *, start: int = 0, batch_size: int = 4, seed: int = 3, workers: int = 0, **ranks: int):
    with contextlib.closing(Loader(images, batch_size=batch_size, seed=seed, workers=workers, **ranks)) as loader:
        return list(itertools.islice(loader.batches(start), count))


def joined(batches: list[RawBatch]) -> RawBatch:
    return RawBatch(*(torch.cat([getattr(batch, name) for batch in batches]) for name in ("images", "labels", "index")))


def assert_same(one: RawBatch, other: RawBatch) -> None:
    for name in ("images", "labels", "index"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name


def test_types(images):
    (batch,) = take(images, 1)
    assert (batch.images.dtype, batch.images.shape) == (torch.uint8, (4, 16, 16, 3))
    assert (batch.labels.dtype, batch.index.tolist()) == (torch.int64, [0, 1, 2, 3])


def test_every_epoch_is_its_permutation(images):
    seen = joined(take(images, 15)).labels.numpy()  # every image has a class of its own
    for epoch in range(6):
        np.testing.assert_array_equal(seen[epoch * COUNT : (epoch + 1) * COUNT], permutation(COUNT, seed=3, epoch=epoch))
    assert not np.array_equal(seen[:COUNT], seen[COUNT : 2 * COUNT])
    assert not np.array_equal(seen[:COUNT], permutation(COUNT, seed=4, epoch=0))


def test_pixels_are_those_of_image_and_draws(images):
    (batch,) = take(images, 1, start=17)
    items = np.array([permutation(COUNT, seed=3, epoch=p // COUNT)[p % COUNT] for p in range(17, 21)])
    np.testing.assert_array_equal(batch.images.numpy(), images.batch(items, np.arange(17, 21), seed=3).images)
    assert not np.array_equal(batch.images.numpy(), images.batch(items).images)


@pytest.mark.parametrize("start", [4, 12, 36])
def test_resumed_is_uninterrupted(images, start):
    assert_same(joined(take(images, 4, start=start)), joined(take(images, 4 + start // 4)[start // 4 :]))


def test_batch_size_changes_no_sample(images):
    assert_same(joined(take(images, 7, batch_size=4)), joined(take(images, 4, batch_size=7)))


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_the_samples_of_one_process(images, world_size):
    ranks = [take(images, 3, batch_size=5, rank=rank, world_size=world_size) for rank in range(world_size)]
    for batches, whole in zip(zip(*ranks, strict=True), take(images, 3, batch_size=5), strict=True):
        assert_same(joined(list(batches)), whole)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(images, workers):
    assert_same(joined(take(images, 9, start=8, workers=workers)), joined(take(images, 9, start=8)))


def test_a_set_smaller_than_the_batch_repeats_with_one_warning(images):
    with pytest.warns(UserWarning, match="^10 training images fill no batch of 25: batches repeat images"):
        (batch,) = take(images, 1, batch_size=25)
    with pytest.warns(UserWarning, match="^1 training image fills no batch of 2: batches repeat images"):
        take(Chosen(images, np.arange(1)), 1, batch_size=2)
    assert len(batch) == 25
    assert np.bincount(batch.labels[:20]).tolist() == [2] * COUNT
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        take(images, 1, batch_size=25, rank=1, world_size=2)
        take(images, 1, batch_size=COUNT)


@pytest.mark.parametrize("workers", [0, 1])
def test_evaluation_shows_every_image_once_as_it_is(images, workers):
    batches = list(evaluation_batches(images, batch_size=4, workers=workers))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    whole = joined(batches)
    assert whole.index.tolist() == list(range(COUNT))
    np.testing.assert_array_equal(whole.images.numpy(), images.batch(np.arange(COUNT)).images)
    np.testing.assert_array_equal(whole.labels.numpy(), images.labels)


def test_evaluation_is_shared_and_limited(images):
    ranks = [list(evaluation_batches(images, batch_size=4, limit=9, rank=rank, world_size=2)) for rank in range(2)]
    assert [len(batch) for batch in ranks[0]] == [2, 2, 0] and [len(batch) for batch in ranks[1]] == [2, 2, 1]
    assert sorted(torch.cat([batch.index for rank in ranks for batch in rank]).tolist()) == list(range(9))
    assert len(list(evaluation_batches(images, batch_size=4, limit=100))) == 3


# Worker processes


def children() -> set[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return set(map(int, file.read().split()))


def alive(pids: set[int]) -> set[int]:
    return pids & children()


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="looks for processes in /proc")
def test_workers_end_with_their_stream(images):
    before = children()
    loader = Loader(images, batch_size=4, seed=0, workers=2)
    stream = loader.batches(0)
    next(stream)
    started = children() - before
    assert len(started) == 2
    loader.close()
    assert not alive(started)
    assert next(stream, None) is None
    stream = loader.batches(0)
    next(stream)
    restarted = children() - before
    del loader, stream
    assert not alive(restarted)


def shared_memory_maps() -> int:
    """How many pieces of shared memory this process has; the folder of them is every process's."""
    with open("/proc/self/maps") as file:
        return sum("/dev/shm" in line for line in file)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts what /proc lists")
def test_streams_leave_no_open_files_shared_memory_or_threads(images):
    def taken() -> tuple[int, int, int]:
        return len(os.listdir("/proc/self/fd")), shared_memory_maps(), len(os.listdir("/proc/self/task"))

    def more() -> bool:
        return any(now > then for now, then in zip(taken(), before, strict=True))

    take(images, 3, workers=1)  # what the first one makes for good
    gc.collect()
    before = taken()
    for _ in range(5):
        take(images, 3, workers=1)
    until = time.monotonic() + 10
    while more() and time.monotonic() < until:  # the thread of the last one's queue may take a moment
        time.sleep(0.02)
    assert not more(), (before, taken())


def test_signals_of_the_group_do_not_reach_workers(images):
    before = children()
    with contextlib.ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_DFL))  # nohup has it passed over
        loader = stack.enter_context(contextlib.closing(Loader(images, batch_size=4, seed=0, workers=1)))
        stream = loader.batches(0)
        next(stream)
        (worker,) = children() - before
        assert os.getpgid(worker) != os.getpgid(0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            os.kill(worker, number)
        for _ in range(20):
            next(stream)


def test_a_killed_worker_ends_the_run_with_a_message(images):
    before = children()
    with contextlib.closing(Loader(images, batch_size=4, seed=0, workers=1)) as loader:
        stream = loader.batches(0)
        next(stream)
        (worker,) = children() - before
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(RunError, match=r"a loader process was killed.*data.workers"):
            for _ in range(20):
                next(stream)


def test_workers_that_cannot_all_be_started_end_with_a_message(images):
    """Those that were started are gone: they hear no request to end, and Python would wait for them at its own end for ever."""
    before, listening = children(), signal.getsignal(signal.SIGCHLD)
    with few_more_files(40), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        message = r"^40 loader processes could not be started \(Too many open files; [1-9][0-9]* were\): lower data.workers$"
        with pytest.raises(RunError, match=message):
            take(images, 1, workers=40)
        gc.collect()  # what is left of them ends without a word, or pytest says so
    assert children() == before and signal.getsignal(signal.SIGCHLD) == listening
    cores = usable_cores()
    if cores < 40:
        plural = "" if cores == 1 else "s"
        assert [str(each.message) for each in said] == [
            f"data.workers is 40, for {cores} CPU core{plural}: more take memory and are rarely faster"
        ]
    assert len(take(images, 1, workers=1)) == 1


@pytest.mark.parametrize("workers", [-1, 1025])
def test_a_number_of_workers_that_no_machine_has(workers):
    with pytest.raises(ConfigError, match=rf"^workers: got {workers}, expected 0 to 1024, or nothing$"):
        DataConfig(workers=workers)
    assert DataConfig(workers=1024).workers == 1024


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_breaks_during_training_is_named(tmp_path, workers):
    write_folder(tmp_path, [f"{k}.png" for k in range(6)])
    images = DataConfig(path=str(tmp_path), image_size=16, validation_fraction=0).open().train
    whole = (tmp_path / "3.png").read_bytes()
    for content in (whole[: len(whole) // 2], None):
        if content is None:
            (tmp_path / "3.png").unlink()
        else:
            (tmp_path / "3.png").write_bytes(content)
        with pytest.raises(DataError, match=r"3\.png: .*; repair or remove the file") as caught:
            take(images, 3, batch_size=2, workers=workers)
        assert "\n" not in str(caught.value)


class _Interrupted(Exception):
    pass


def test_workers_end_with_a_wait_that_is_interrupted(images, monkeypatch):
    """The exception holds the iterator that waited. What is ended later than the rest would be taken for a failure."""

    def interrupt(number, frame) -> None:
        raise _Interrupted

    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    before = signal.signal(signal.SIGALRM, interrupt)
    monkeypatch.setattr(type(images), "batch", lambda *_, **__: time.sleep(60))  # longer than anybody waits
    loader = Loader(images, batch_size=4, seed=0, workers=1)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(_Interrupted) as caught:
            next(loader.batches(0))
        assert not multiprocessing.active_children(), "the exception is still held here"
        time.sleep(0.1)  # for the signal that says how it ended
        assert caught.value is not None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        loader.close()
