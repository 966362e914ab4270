"""One of several processes that translate a folder: RUN INPUT OUT."""

from __future__ import annotations

import sys

from tests.runs import translators
from triptych.runs import close_world, open_run

run, given, out = sys.argv[1:]
assert translators.Mirror
made = open_run(run).translate(given, out=out, style_count=2, batch_size=2, device="cpu")
gathered = open_run(run).translate(given, style_count=2, batch_size=2, device="cpu")
assert len(gathered.images) == len(made.images) == 7
assert all((one == other).all() for one, other in zip(made.images, gathered.images, strict=True))
close_world()
