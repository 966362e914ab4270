"""The progress of a run on the terminal: a live display where there is one, plain lines elsewhere."""

from __future__ import annotations

import errno
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import torch

from triptych.core.errors import printable
from triptych.core.memory import in_bytes

Watch = Callable[[float, float], None]
"""Called with the images that are done and their number. It may raise, to end the work there."""


def unwatched(done: float, total: float) -> None:
    """A Watch that does nothing."""


HALFLIFE_SECONDS = 15.0  # of the running mean behind images/s
FIRST_LINE_SECONDS = 10.0  # of a task, before a line tells of it
_REFRESH_PER_SECOND = 2  # drawing shares the cores with the training
_SHORT = {"learning_rate": "lr", "gradient_norm": "grad norm"}


class Rate:
    """Images per second as a running mean over time; intervals lose half their weight in HALFLIFE_SECONDS."""

    def __init__(self, images: int, clock: Callable[[], float]) -> None:
        self._clock, self._images, self._last = clock, images, clock()
        self._counted = self._seconds = 0.0

    def update(self, images: int) -> None:
        """Counts what was seen since the last call."""
        now = self._clock()
        passed = now - self._last
        decay = 0.5 ** (passed / HALFLIFE_SECONDS)
        self._counted = self._counted * decay + images - self._images
        self._seconds = self._seconds * decay + passed
        self._images, self._last = images, now

    def pause(self) -> None:
        """Leaves out the time since the last call."""
        self._last = self._clock()

    @property
    def value(self) -> float:
        """Images per second; 0 before the first update."""
        return self._counted / self._seconds if self._seconds > 0 else 0.0


class Task:
    """Work beside the training, such as a validation. A line of text tells of it after 10 seconds, 20, 40 and so on, and at its end."""

    def __init__(self, name: str, *, say: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._name, self._say, self._clock = name, say, clock
        self._began = clock()
        self._next_seconds = FIRST_LINE_SECONDS
        self._done = self._total = 0.0

    def update(self, done: float, total: float) -> None:
        """Notes how much of it is done."""
        self._done, self._total = done, total
        if self._seconds >= self._next_seconds:
            self._next_seconds = 2 * self._seconds
            self._say(str(self))

    def end(self) -> None:
        """Says how long it took, where that was long."""
        if self._seconds >= FIRST_LINE_SECONDS:
            self._say(f"{self._name}: {spelled_seconds(self._seconds)}")

    @property
    def _seconds(self) -> float:
        return self._clock() - self._began

    def __str__(self) -> str:
        if not self._done:
            return self._name
        left = spelled_seconds(self._seconds * (self._total - self._done) / self._done)
        done = f"{self._done:.3g}" if self._done < 1000 else f"{self._done:.0f}"
        return f"{self._name}: {done} of {self._total:g} images, {left} left"


class Lasting:
    """A stream that may go away, as a terminal that is closed or the reader of a pipe: what is written then is lost, and no error."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes the text, if possible."""
        with self._lasting():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Hands over what was written, if possible."""
        with self._lasting():
            self._stream.flush()

    @contextmanager
    def _lasting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.EIO):  # for good: what is left in buffers would be an error again when Python ends
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)


class Progress:
    """Shows how far a run is: images seen, images/s, the given measurements, memory, time left. A context manager."""

    def __init__(
        self, total_images: int, *, images: int = 0, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`images`: seen before this start; `stream`: standard error unless given. It is live when the stream is a terminal.

        A stream that goes away ends nothing: what is shown there is in log.txt too.
        """
        self._total, self._images = total_images, images
        self._stream: Any = Lasting(stream if stream is not None else sys.stderr)
        self._clock, self._rate = clock, Rate(images, clock)
        self._task: Task | None = None
        self._values: dict[str, float] = {}
        self._live: Any = None

    @property
    def images_per_second(self) -> float:
        """The running mean of the speed."""
        return self._rate.value

    def __enter__(self) -> Progress:
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream, force_terminal=True)
            self._live = Live(get_renderable=self._picture, console=console, refresh_per_second=_REFRESH_PER_SECOND)
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, images: int) -> None:
        """Notes that `images` were seen; cheap enough for every step."""
        self._images = images
        self._rate.update(images)

    def measured(self, images: int, values: Mapping[str, float]) -> str:
        """The line of history for measurements ("loss", "learning_rate", "gradient_norm"), which are shown from now on."""
        self.update(images)
        self._values = dict(values)
        return "  ".join((self.place(images), *self._details()))

    def place(self, images: int) -> str:
        """How far the run is, as its lines begin."""
        return f"{images:,}/{self._total:,} images"

    @contextmanager
    def task(self, name: str, say: Callable[[str], None]) -> Iterator[Task]:
        """The context in which the terminal shows the progress of work beside the training; `say` takes its lines of text.

        Its time does not count for images/s.
        """
        self._task = task = Task(name, say=say, clock=self._clock)
        try:
            yield task
            task.end()
        finally:
            self._task = None
            self._rate.pause()

    def message(self, text: str) -> None:
        """Shows a line of text, above the live display where there is one."""
        text = printable(text)
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._stream.write(text + "\n")
            self._stream.flush()

    def _details(self) -> list[str]:
        speed = self._rate.value
        details = [f"{speed:.4g} images/s"]
        details += [f"{_SHORT.get(name, name)} {value:.4g}" for name, value in self._values.items()]
        details.append(f"memory {in_bytes(memory_bytes())}")
        if speed > 0:
            details.append(f"{spelled_seconds((self._total - self._images) / speed)} left")
        return details

    def _picture(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        row = Table.grid(padding=(0, 1))
        row.add_row(ProgressBar(self._total, self._images, width=30), Text(self.place(self._images)))
        tasks = () if self._task is None else (Text(str(self._task)),)
        return Group(row, Text("  ".join(self._details())), *tasks)


def memory_bytes() -> int:
    """The peak memory of tensors on the GPU; without a GPU in use, the present host memory of the process."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # where there is no /proc: the peak, in bytes on macOS
    return peak if sys.platform == "darwin" else peak * 1024


def spelled_seconds(seconds: float) -> str:
    """A duration as 0:59, 12:34, 1:23:45 or 2d 03:04:05."""
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"
