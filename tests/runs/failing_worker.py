"""Run by torchrun: trains, and the process of rank 1 fails after three batches. Argument: the run directory."""

from __future__ import annotations

import sys

from tests.contract.shrink import BATCH, shrunk
from triptych.core.errors import RunError
from triptych.data.loader import Loader
from triptych.runs import train

batches = Loader.batches


def failing(self: Loader, start: int):
    for count, batch in enumerate(batches(self, start)):
        if count == 3 and self._share.start > 0:
            raise RunError("this process came to grief")
        yield batch


Loader.batches = failing
train(shrunk("adm-digits").updated({"train": {"total_images": 1000 * BATCH}}), sys.argv[1], device="cpu")
