"""Files that grow at their end, such as a run's log: what came since the last look, line by line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from triptych.core.reading import open_regular

MOST_BYTES = 2**28
"""Of the end of a file that are read at the first look: some 800,000 lines of metrics."""
_MOST_LINE = 2**20


class GrowingFile:
    """A text file, of which `lines` gives what is new; nothing of it is kept."""

    def __init__(self, path: Path, *, most: int = MOST_BYTES) -> None:
        self._path, self._most = path, most
        self._at = 0
        self.left_out = 0
        "Bytes at the beginning of a very long file that were passed over."

    def lines(self) -> Iterator[str]:
        """The whole lines since the last call, without their ends; a last one that is half written waits for the next call.

        Nothing where there is no file. Raises OSError for what cannot be read, or is no regular file.
        """
        try:
            descriptor = open_regular(self._path)
        except FileNotFoundError:
            return
        with open(descriptor, "rb") as file:
            size = os.fstat(descriptor).st_size
            if size - self._at > self._most:
                file.seek(size - self._most)
                file.readline(_MOST_LINE)  # the rest of the line in which that place lies
                self.left_out = self._at = file.tell()
            file.seek(self._at)
            while piece := file.readline(_MOST_LINE):
                if not piece.endswith(b"\n") and len(piece) < _MOST_LINE:
                    return
                self._at += len(piece)
                yield piece.rstrip(b"\r\n").decode(errors="replace")
