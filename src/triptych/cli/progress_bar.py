"""A bar on a terminal, for the first process; nothing elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from triptych.cli.processes import is_first_process

if TYPE_CHECKING:
    from triptych.engine.progress import Watch


@contextmanager
def progress_bar(doing: str) -> Iterator[Watch]:
    """Moves a bar of images, with how many are made in a second."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Speed(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text("" if task.speed is None else f"{task.speed:.3g}/s,")

    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TextColumn("images,"), Speed(), TextColumn("time left"))
    columns = (*columns, TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal or not is_first_process(), transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
