"""SIGTERM, SIGINT, SIGUSR1 and SIGHUP as a wish to save and stop."""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from triptych.core.errors import RunError, Stopped, UserError
from triptych.engine.distributed import World

T = TypeVar("T")

_ANNOUNCING = (signal.SIGUSR1, signal.SIGHUP)  # of a scheduler, of a terminal that goes away: the end comes later, with a signal of its own
_STOPPING = (signal.SIGTERM, signal.SIGINT, *_ANNOUNCING)
_SAME_WISH_SECONDS = 1.0  # a cluster tells torchrun and its processes, and torchrun tells them again
_WORD = "stop"  # that the processes leave for one another
_LISTEN_SECONDS = 1.0


class StopRequest:
    """A request to stop: which signal came, and whether work may be interrupted for it."""

    def __init__(self) -> None:
        self.name: str | None = None
        "The first signal; None: none came."
        self.at_once = False
        "Whether the first signal raises Stopped where it comes, else it is noted."
        self.say: Callable[[str], None] = lambda message: None
        "How a signal is answered, from a thread of its own."
        self._since = self._listened = 0.0

    def signalled(self, number: int) -> None:
        """Notes a signal. Raises Stopped for the first one where `at_once` is set, and KeyboardInterrupt for another one later.

        The first one after SIGUSR1 or SIGHUP is the end that was announced: torchrun passes a second SIGUSR1 on as SIGTERM.
        """
        now = time.monotonic()
        if self.name is None:
            self.name, self._since = signal.Signals(number).name, now
            if self.at_once:
                raise Stopped(self.name)
        elif signal.Signals[self.name] in _ANNOUNCING and number not in _ANNOUNCING:
            self.name, self._since = signal.Signals(number).name, now  # the end that was announced: the same wish
        elif _is_another(number, now - self._since):
            raise KeyboardInterrupt

    def look(self, world: World) -> None:
        """Raises Stopped where this process or another one was asked to stop; the others hear of it at their next look."""
        if self.name is not None:
            world.leave_word(_WORD)
            raise Stopped(self.name)
        if world.size > 1 and time.monotonic() - self._listened >= _LISTEN_SECONDS:
            self._listened = time.monotonic()
            if world.has_word(_WORD):
                raise Stopped("another process")

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """The context in which a signal raises Stopped at once: a wait that leaves nothing half done."""
        self.at_once = True
        try:
            if self.name is not None:
                raise Stopped(self.name)
            yield
        finally:
            self.at_once = False


def _is_another(number: int, seconds: float) -> bool:
    """Whether a signal, so long after the first one, asks to end at once. One that announces an end never hurries."""
    return seconds >= _SAME_WISH_SECONDS and number not in _ANNOUNCING


def made_by_all(world: World, make: Callable[[], T]) -> list[T]:
    """The results of `make` in all processes, in every process. Raises Stopped, RunError or UserError in all where it did in any."""
    try:
        outcome: T | Exception | Stopped = make()
    except (Stopped, RunError, UserError) as error:
        outcome = error  # said to the others, who wait for it
    outcomes = world.gather(outcome)
    if any(isinstance(each, Stopped) for each in outcomes):
        raise Stopped("another process")
    for each in outcomes:
        if isinstance(each, RunError | UserError):
            raise each
    return outcomes


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """The context in which signals are noted (see `StopRequest.signalled`). Handlers can be set in the main thread only.

    A terminal that goes away is none of the business of what was started to outlive it (nohup), which ignores SIGHUP.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, frame: FrameType | None) -> None:
        request.signalled(number)

    outlives = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    before = {number: signal.signal(number, note) for number in _STOPPING if number != signal.SIGHUP or not outlives}
    try:
        with _answered(request):
            yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _answered(request: StopRequest) -> Iterator[None]:
    """The context in which a thread answers signals at once: Python's handlers wait for the end of a long operation."""
    heard, told = socket.socketpair()
    told.setblocking(False)

    def answer() -> None:
        first: float | None = None
        announced = False
        while numbers := heard.recv(64):
            for number in (number for number in numbers if number in _STOPPING):
                now = time.monotonic()
                if first is None or (announced and number not in _ANNOUNCING):
                    first, announced = now, number in _ANNOUNCING
                    what = "stopping" if request.at_once else f"stopping after this step{'' if announced else '; again: now'}"
                    request.say(f"{signal.Signals(number).name}: {what}")
                elif _is_another(number, now - first):
                    request.say(f"{signal.Signals(number).name} again: ending now")

    thread = threading.Thread(target=answer, daemon=True)
    before = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        told.close()  # ends the thread
        thread.join()
        heard.close()


def to_standard_error(message: str) -> None:
    """Says something before there is a log."""
    sys.stderr.write(f"triptych: {message}\n")
