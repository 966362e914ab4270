"""What the main process of a training says: lines of metrics, and the figures of the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from triptych.core.model import NUM_GROUPS, Phase
from triptych.engine.callables import ERROR, Evaluated
from triptych.engine.metric_log import MetricLog
from triptych.engine.progress import Progress, memory_bytes
from triptych.engine.validation import STANDARD_ERROR


@dataclass
class Reporting:
    """The log of a run, the progress on the terminal, and the run's page."""

    log: MetricLog
    progress: Progress
    page: Callable[[], None] | None = None
    "Writes the page anew, unless that would be too soon. It raises nothing."

    def write(self, images_seen: int, values: Mapping[str, float], phases: Sequence[Phase]) -> None:
        """Writes a line of metrics, and the most telling ones as text."""
        self.progress.update(images_seen)
        speed = self.progress.images_per_second
        measured = {"images_per_second": speed} if speed > 0 else {}  # of a start that has seen no images it is not known
        self.log.write(images_seen, {**values, **measured, "memory_bytes": memory_bytes()})
        self.log.text(self.progress.measured(images_seen, headlines(values, phases)))

    def evaluated(self, images_seen: int, evaluated: Evaluated, *, prefix: str, seconds: float) -> None:
        """Writes an evaluation as a line of metrics, names after `prefix`, and as one of text, with the time that it took."""
        self.log.write(images_seen, {f"{prefix}{name}": value for name, value in evaluated.values.items()})
        named = {name: value for name, value in evaluated.values.items() if not name.endswith(ERROR)}
        errors = {name: evaluated.values.get(f"{name}{ERROR}") for name in named}
        figures = [f"{name} {value:.4g}" + ("" if errors[name] is None else f" ± {errors[name]:.2g}") for name, value in named.items()]
        took = f"{seconds:.1f}" if seconds < 10 else f"{seconds:.0f}"
        self.log.text(f"{self.progress.place(images_seen)}  evaluation {took} s, {evaluated.made}: {', '.join(figures)}")

    def refresh(self) -> None:
        """Writes the page anew. The time that it takes counts neither for images/s nor as time of training."""
        if self.page is not None:
            with self.progress.task("report.html", self.log.text), self.log.paused():
                self.page()


def headlines(values: Mapping[str, float], phases: Sequence[Phase]) -> dict[str, float]:
    """The measurements for the terminal: without groups and standard errors; of several phases the losses alone."""
    several = len(phases) > 1
    prefix = "" if several else f"{phases[0].name}/"
    left_out = (STANDARD_ERROR, *(f"_q{group}" for group in range(NUM_GROUPS)))
    left_out += ("gradient_norm", "learning_rate") if several else ()
    return {name.removeprefix(prefix): value for name, value in values.items() if not name.endswith(left_out)}
