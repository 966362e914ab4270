"""A bar on a terminal, for the first process; nothing elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from triptych.cli.processes import is_first_process


@contextmanager
def progress_bar(doing: str, *, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Moves a bar of images: takes `advance=` by how many, or `completed=` and `total=`. `total`: None while it is not known."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TextColumn("images, time left"), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal or not is_first_process(), transient=True) as bar:
        yield functools.partial(bar.update, bar.add_task(doing, total=total))
