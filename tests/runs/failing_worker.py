"""Run by torchrun: the command line, in which the process of rank 1 fails after three batches. Arguments: those of `triptych`."""

from __future__ import annotations

import sys

from triptych.cli.main import main
from triptych.core.errors import DataError
from triptych.data.loader import Loader

batches = Loader.batches


def failing(self: Loader, start: int):
    for count, batch in enumerate(batches(self, start)):
        if count == 3 and self._share.start > 0:
            raise DataError("photos/7.png cannot be decoded")
        yield batch


Loader.batches = failing
sys.exit(main(sys.argv[1:]))
