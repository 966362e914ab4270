"""SIGTERM, SIGINT and SIGUSR1 as a wish to save and stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_STOPPING = (signal.SIGTERM, signal.SIGINT) + ((signal.SIGUSR1,) if hasattr(signal, "SIGUSR1") else ())


class StopRequest:
    """The name of the signal that asked to stop, or None."""

    name: str | None = None


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Within it the signals are noted; a second SIGINT interrupts at once. Handlers can be set in the main thread only."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, frame: FrameType | None) -> None:
        if request.name == "SIGINT" and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.name = signal.Signals(number).name

    before = {number: signal.signal(number, note) for number in _STOPPING}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
