"""The command line, in which the process of rank 1 fails after three batches."""

from __future__ import annotations

from collections.abc import Sequence

from triptych.cli import main as command_line
from triptych.core.errors import DataError
from triptych.data.loader import Loader


def main(words: Sequence[str]) -> int:
    batches = Loader.batches

    def failing(self: Loader, start: int):
        for count, batch in enumerate(batches(self, start)):
            if count == 3 and self._share.start > 0:
                raise DataError("photos/7.png cannot be decoded")
            yield batch

    Loader.batches = failing
    return command_line.main(words)
