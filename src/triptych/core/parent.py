"""A process that ends with the one that started it, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LOOK_SECONDS = 1.0


def end_with(parent: int) -> None:
    """From now on this process is killed when its parent, process `parent`, ends; at once where that has happened already.

    A parent that is killed can end nobody, so its children would wait for it, and keep memory, locks and devices, for ever.
    """
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0:
        _end_without(parent)  # it may have ended before the system knew
    else:
        threading.Thread(target=_watch, args=(parent,), name="parent", daemon=True).start()


def _watch(parent: int) -> None:
    while True:
        _end_without(parent)
        time.sleep(_LOOK_SECONDS)


def _end_without(parent: int) -> None:
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
