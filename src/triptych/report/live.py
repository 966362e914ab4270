"""report.html while a run is trained: now and then, in the main process, and never in the way of the training."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from triptych.core.errors import CheckpointError, one_line
from triptych.core.files import explain, write_text
from triptych.engine.run_directory import RunDirectory

LEAST_PAUSE = 10.0
"""Seconds between two pages."""
SHARE = 0.01
"""Of the time that the pages may take."""


def refresh_page(root: Path, say: Callable[[str], None]) -> None:
    """Writes the page of a run anew after a command that is no training. Not where there is none, or a training writes it itself."""
    page = LivePage(root, say)
    if not page.path.is_file():
        return
    try:
        RunDirectory(root).lock().release()
    except CheckpointError:
        return
    page.write()


class LivePage:
    """The page of a run in training. Whatever goes wrong with it is one line of the log."""

    def __init__(self, root: Path, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.path = root / "report.html"
        self._root, self._say, self._clock = root, say, clock
        self._reader: object = None
        self._next = -float("inf")
        self._said: str | None = None

    def refresh(self) -> None:
        """Writes the page anew, unless the last one is too young: a page that takes long, of a long run, is made less often."""
        if self._clock() >= self._next:
            self.write()

    def write(self) -> None:
        """Writes the page anew."""
        began = self._clock()
        try:
            self._write()
        except Exception as error:  # a page is never worth a training
            line = f"report.html is not written: {explain(error) if isinstance(error, OSError) else one_line(error)}"
            if line != self._said:
                self._say(line)
            self._said = line
        took = self._clock() - began
        self._next = self._clock() + max(LEAST_PAUSE, took / SHARE)

    def _write(self) -> None:
        from triptych.report.run_report import RunReader, report_page  # the templates' library is loaded when the first page is due

        if not isinstance(self._reader, RunReader):
            self._reader = RunReader(self._root)
        page = report_page(self._reader)
        RunDirectory(self._root).require()
        write_text(self.path, page)  # a folder that was renamed is not made anew
