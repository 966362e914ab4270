"""What several processes do: translate a folder of images."""

from __future__ import annotations

from pathlib import Path

from tests.runs import translators
from triptych.runs import open_run


def translate_together(run: Path, given: Path, out: Path) -> None:
    assert translators.Mirror
    made = open_run(run).translate(given, out=out, style_count=2, batch_size=2, device="cpu")
    gathered = open_run(run).translate(given, style_count=2, batch_size=2, device="cpu")
    assert len(gathered.images) == len(made.images) == 7
    assert all((one == other).all() for one, other in zip(made.images, gathered.images, strict=True))
