"""RUN/report.html: what a run is, how far it is, what it made and what happened, from its files alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from triptych.core.errors import CheckpointError, DataError
from triptych.core.files import explain
from triptych.core.memory import in_bytes
from triptych.core.wording import counted
from triptych.engine.run_directory import RunDirectory, list_checkpoints
from triptych.report.best import BY_VALIDATION, Best, best_checkpoint
from triptych.report.chart import Chart, plain
from triptych.report.curves import SPEED, Curve, Curves, Point, values_of
from triptych.report.facts import Facts, commands, facts_of
from triptych.report.grids import Pictures
from triptych.report.happenings import Happenings
from triptych.report.measured import Evaluation, differences, evaluations, of_images, of_steps
from triptych.report.page import render, write_page
from triptych.report.panels import EVALUATION, charts, panels
from triptych.report.sweeps import sweeps

_MOST_PICTURES = 8


@dataclass(frozen=True)
class Tile:
    """A number that stands large at the top of the page, and what it is."""

    value: str
    what: str


class RunReader:
    """What the files of a run say. `update` reads what is new; what it knows stays, so that to look again and again is cheap."""

    def __init__(self, root: Path) -> None:
        self.root = root
        directory = RunDirectory(root)
        self.curves = Curves(directory.metrics_path)
        self.happenings = Happenings(directory.log_path)
        self.pictures = Pictures()
        self.facts: Facts | None = None
        self.evaluations: list[Evaluation] = []
        self.best: Best | None = None
        "The best checkpoint, and what chose it."
        self.notes: list[str] = []
        "What could not be read, a line each."

    def update(self) -> Facts:
        """Reads the files; what the run is, is read once. None of what is in them is an error."""
        if self.facts is None or self.facts.fault is not None:
            self.facts = facts_of(self.root)
        self.curves.update()
        self.happenings.update()
        self.evaluations, notes = evaluations(self.root / "evaluations")
        self.best = self._best()
        self.notes = [*self.curves.notes, *self.happenings.notes, *notes]
        return self.facts

    @property
    def checkpoints(self) -> list[int]:
        """Images seen by each checkpoint."""
        try:
            return list_checkpoints(self.root / "checkpoints")
        except CheckpointError:  # not to be looked at
            return []

    @property
    def images_seen(self) -> int:
        """By the newest line of metrics or checkpoint."""
        return max([self.curves.images_seen, *self.checkpoints])

    @property
    def images_per_second(self) -> float | None:
        """The median over the run."""
        values = values_of(self.curves.by_name.get(SPEED))
        return statistics.median(values) if values else None

    @property
    def memory_bytes(self) -> float | None:
        """The largest that was noted."""
        curve = self.curves.by_name.get("memory_bytes")
        return None if curve is None else curve.largest

    def _best(self) -> Best | None:
        try:
            return best_checkpoint(self.root / "checkpoints")
        except (OSError, CheckpointError):  # not to be looked at
            return None


def write_report(root: str | Path, out: str | Path | None = None) -> Path:
    """Makes the report of a run anew and returns where it is: `out`, or report.html in the run.

    Raises CheckpointError where there is no run, DataError where the page cannot be written.
    """
    root = Path(root)
    if not (root / "config.json").exists():
        RunDirectory(root).read_config()  # which says what there is instead
    path = root / "report.html" if out is None else Path(out)
    page = report_page(RunReader(root))
    try:
        write_page(path, page)
    except OSError as error:
        raise DataError(f"cannot write {path}: {explain(error)}; choose another --out") from error
    return path


def report_page(reader: RunReader) -> str:
    """The page of a run, of what its files have now."""
    facts = reader.update()
    series = reader.pictures.of_run(reader.root)
    shown = [path for evaluation in reader.evaluations for path in evaluation.pictures]
    return render(
        "report.html",
        facts=facts,
        reader=reader,
        tiles=list(_tiles(reader, facts)),
        charts=_charts(reader),
        series=series,
        tables=[_table(group) for group in by_protocol(reader.evaluations)],
        sweeps=sweeps({"": reader.evaluations}),
        pictures=reader.pictures.beside(list(dict.fromkeys(shown))[-_MOST_PICTURES:]),
        speed=_charts(reader, cost=True),
        commands=list(commands(facts, trained=bool(reader.checkpoints))),
        measured_in_training=any(name.startswith(EVALUATION) for name in reader.curves.by_name),
    )


@dataclass(frozen=True)
class Table:
    """Evaluations that can be compared with one another."""

    rows: list[tuple[Evaluation, str]]
    "Each with what it has otherwise than others, in words."
    missing: dict[str, str]
    "Why figures that were asked for are not there."

    @property
    def differs(self) -> bool:
        """Whether there is anything to tell the rows apart by."""
        return any(how for _, how in self.rows)

    @property
    def titles(self) -> list[tuple[Evaluation, str]]:
        """Each with what tells it from the others: what it has otherwise, its figures, images seen and steps. "" for a single one."""
        return [(each, _title(each, how) if len(self.rows) > 1 else "") for each, how in self.rows]


def _title(evaluation: Evaluation, how: str) -> str:
    names = ", ".join(figure.name for figure in evaluation.figures)
    seen = "" if evaluation.images_seen is None else counted(evaluation.images_seen, "image seen", "images seen")
    steps = "" if evaluation.steps is None else counted(plain(evaluation.steps), "step")
    return ", ".join(filter(None, (how, names, seen, steps)))


def _table(group: list[Evaluation]) -> Table:
    words = differences(group, lambda name: of_images(name) or of_steps(name))
    return Table(list(zip(group, words, strict=True)), {name: why for each in group for name, why in each.missing.items()})


def by_protocol(found: list[Evaluation], *, steps: bool = False) -> list[list[Evaluation]]:
    """The evaluations in groups that can be compared with one another. `steps`: those of a likelihood have to be alike too."""
    groups: list[list[Evaluation]] = []
    for evaluation in found:
        group = next((group for group in groups if group[0].same_protocol(evaluation, steps=steps)), None)
        groups.append([evaluation]) if group is None else group.append(evaluation)
    return groups


_COST = (SPEED, "memory_bytes")
_MARKS = 100
"""Of resumes, in a chart: the newest. A run that is stopped every few minutes has thousands."""


def _charts(reader: RunReader, *, cost: bool = False) -> list[Chart]:
    """The charts of what was learned, or those of what it cost."""
    curves = {name: curve for name, curve in reader.curves.by_name.items() if (name in _COST) == cost}
    return charts(panels(curves, reader.best), marks=_resumes(reader.curves))


def _resumes(curves: Curves) -> list[tuple[Point, str]]:
    """Where the run went on after an interruption, and at what time of training that was."""
    longest: Curve = max(curves.by_name.values(), key=lambda curve: len(curve.points), default=Curve())
    marks = []
    for images in curves.resumed_at[-_MARKS:]:
        seconds = max((point.seconds for point in longest.drawn() if point.images <= images), default=0.0)
        marks.append((Point(images, seconds, 0.0), f"went on at {images:,} images"))
    return marks


def _tiles(reader: RunReader, facts: Facts) -> Iterator[Tile]:
    total = facts.number("train", "total_images")
    seen = reader.images_seen
    of = f"of {total:,} images seen ({_percent(seen, total)} %)" if isinstance(total, int) and total > 0 else "images seen"
    yield Tile(f"{seen:,}", of)
    newest = reader.happenings.newest
    yield Tile(reader.happenings.state, f"by its log, whose newest line is of {newest}" if newest else "by its log")
    if reader.curves.seconds:
        yield Tile(spelled_hours(reader.curves.seconds), "of training")
    if reader.images_per_second is not None:
        yield Tile(plain(reader.images_per_second), "images/s, the median")
    if reader.memory_bytes is not None:
        yield Tile(in_bytes(reader.memory_bytes), "memory, the most noted")
    if reader.happenings.parameters:
        yield Tile(reader.happenings.parameters, "parameters")
    if (best := reader.best) is not None:
        by = "loss on held-out images" if best.by == BY_VALIDATION else best.by
        yield Tile(plain(best.score), f"{by}: the best checkpoint, at {best.images:,}")


def _percent(seen: int, total: int) -> int:
    """To the nearest; 100 at the end alone."""
    return 100 if seen >= total else min(99, round(100 * seen / total))


def spelled_hours(seconds: float) -> str:
    """A length of time in few letters: 45 s, 12.5 min, 3.2 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"
