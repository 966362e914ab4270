"""Processes that look at images which may kill them: one that ends, or halts at an item, costs that item and nothing else."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from triptych.core.errors import RunError
from triptych.core.files import explain
from triptych.core.parent import end_with
from triptych.core.wording import counted

T = TypeVar("T")
Make = Callable[[range, Mapping[int, str], Callable[[int], None]], T]
"""From some items, those of them at which processes ended before, and why, and what is told of each item before it is looked at, to
what is made of them."""
MOST_SECONDS = 20.0
"""Of the processor, for one item: the time on the clock is also that of all else that the machine does."""
MOST_WAITING = 300.0
"""Seconds on the clock for one item: what waits takes no time of the processor."""
_TURNS = 2  # a process that ended at an item may have been killed for another's sake; the second time it counts
_LOOK_SECONDS = 0.5
_NO_ITEM = -1


def made_of(
    pieces: Iterable[range], make: Make[T], *, workers: int, seconds: float = MOST_SECONDS, waiting_seconds: float = MOST_WAITING
) -> Iterator[tuple[range, T]]:
    """What `make` makes of each piece, in the order in which they are ready, by so many processes; 0: by this one, unprotected.

    An item at which processes end, or take longer than `seconds` of the processor or `waiting_seconds` on the clock, twice is given to
    `make` with the reason. Raises what `make` raises as a RunError.
    """
    if workers == 0:
        for piece in pieces:
            yield piece, make(piece, {}, _told)
        return
    waiting = deque((piece, {}) for piece in pieces)
    crew: list[_Worker[T]] = []
    strikes: Counter[int] = Counter()
    try:
        while waiting or any(worker.piece is not None for worker in crew):
            while waiting and len(crew) < workers:
                try:
                    crew.append(_Worker(make, seconds))
                except OSError as error:  # of too many open files, too many processes
                    why = f"{explain(error)}; {counted(len(crew), 'was', 'were')}"
                    wanted = counted(workers, "process that looks at images", "processes that look at images")
                    raise RunError(f"{wanted} could not be started ({why}): lower --workers") from error
            for worker in crew:
                if worker.piece is None and waiting:
                    worker.give(*waiting.popleft())
            busy = [worker for worker in crew if worker.piece is not None]
            ready = wait([worker.connection for worker in busy], timeout=_LOOK_SECONDS)
            for worker in busy:
                if worker.connection in ready and (result := worker.taken()) is not None:
                    yield result
                elif worker.connection in ready or worker.seconds() > waiting_seconds:
                    why = worker.ended(waiting_seconds)
                    crew.remove(worker)
                    assert worker.piece is not None
                    strikes[worker.item] += 1
                    if worker.item == _NO_ITEM and strikes[_NO_ITEM] >= _TURNS:
                        raise RunError(f"a process that looks at images ended before it had looked at one ({why}); try --workers 0")
                    told = {worker.item: why} if strikes[worker.item] >= _TURNS else {}
                    waiting.appendleft((worker.piece, {**worker.fatal, **told}))
    finally:
        for worker in crew:
            worker.end()


def _told(item: int) -> None:
    """Nobody listens."""


class _Worker(Generic[T]):
    """A process, and what it is at."""

    def __init__(self, make: Make[T], limit: float) -> None:
        """`limit`: seconds of the processor for an item."""
        # They inherit open archives and arrays in memory, which other methods would copy.
        context = multiprocessing.get_context("fork")
        self._at = context.RawArray("d", [_NO_ITEM, 0.0])
        self._limit = limit
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, self.connection, make, self._at, limit, os.getpid()), daemon=True)
        self._process.start()
        theirs.close()
        self.piece: range | None = None
        self.fatal: Mapping[int, str] = {}

    @property
    def item(self) -> int:
        """The one that it began last."""
        return int(self._at[0])

    def seconds(self) -> float:
        """How long it has been at that."""
        return time.monotonic() - self._at[1]

    def give(self, piece: range, fatal: Mapping[int, str]) -> None:
        """Lets it make a piece."""
        self.piece, self.fatal = piece, fatal
        self._at[0], self._at[1] = _NO_ITEM, time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # it has ended, which shows when its result is waited for
            self.connection.send((piece, fatal))

    def taken(self) -> tuple[range, T] | None:
        """The piece and what was made of it; None where the process has ended. Raises RunError for an error in it."""
        assert self.piece is not None
        try:
            result, error = self.connection.recv()
        except (EOFError, ConnectionResetError):
            return None
        if error is not None:
            raise RunError(error)
        piece, self.piece = self.piece, None
        return piece, result

    def ended(self, waiting_seconds: float) -> str:
        """Why it has ended, or had to be: it is gone then."""
        late = self.seconds() > waiting_seconds and self._process.is_alive()
        self.end()
        code = self._process.exitcode or 0
        if late:
            return f"took longer than {waiting_seconds:g} s"
        if code == -signal.SIGPROF:
            return f"took longer than {self._limit:g} s of the processor"
        if code == -signal.SIGKILL:
            return "its process was killed, perhaps for want of memory"
        return f"its process ended by {signal.Signals(-code).name}" if code < 0 else f"its process ended with code {code}"

    def end(self) -> None:
        """Ends it."""
        if self.piece is None and self._process.is_alive():
            with contextlib.suppress(OSError):
                self.connection.send(None)
        elif self._process.is_alive() and not self.connection.poll():
            self._process.kill()
        self._process.join(1.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.connection.close()


def _work(connection: Connection, theirs: Connection, make: Make[Any], at: Any, limit: float, parent: int) -> None:
    """What a process does: makes pieces until it is told to stop, or its parent is gone. The system ends it at its limit."""
    end_with(parent)
    theirs.close()
    os.setpgid(0, 0)  # Ctrl-C is left to the parent
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)

    signal.signal(signal.SIGPROF, signal.SIG_DFL)

    def began(item: int) -> None:
        signal.setitimer(signal.ITIMER_PROF, limit)
        at[1] = time.monotonic()
        at[0] = item

    with contextlib.suppress(EOFError, OSError):
        while (given := connection.recv()) is not None:
            try:
                answer = make(given[0], given[1], began), None
            except Exception as error:
                answer = None, f"{type(error).__name__}: {error}"
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send(answer)
