"""The page that sets runs beside one another, of any families: what is missing in one is said, not left out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from triptych.core.errors import ConfigError, DataError
from triptych.core.files import explain
from triptych.core.memory import in_bytes
from triptych.core.wording import counted
from triptych.engine.run_directory import RunDirectory
from triptych.report.chart import Chart, colour_class, plain
from triptych.report.grids import Picture, Series, picture
from triptych.report.intervals import IntervalChart, interval_chart
from triptych.report.measured import NOTHING, Evaluation, Figure, comparable, seen_by, sign_of
from triptych.report.page import render, write_page
from triptych.report.panels import ERROR, EVALUATION, OTHERS, STANDARD_ERROR, VALIDATION, Drawn, Other, Panel, charts, deciding
from triptych.report.run_report import RunReader, by_protocol, spelled_hours
from triptych.report.sweeps import sweeps

MOST_RUNS = 16
_COPIES = ("copies", "authenticity")
_NOT_THERE = "-"
_GRIDS = ("train.sample_count", "train.seed", "data.image_size")
_MEASURED_BY = ("train.evaluate_count", "train.evaluate_split", "train.evaluate_reference", "train.evaluate_features")
"""Settings that evaluations in training have to have alike."""
_TOLD_FIRST = ("count", "images", "clips", "network", "data.split", "reference.split", "reference_count", "reference_name")
"""Of what differs between protocols."""
_MOST_TOLD = 12


@dataclass(frozen=True)
class Compared:
    """A run on the page."""

    name: str
    place: int
    reader: RunReader

    @property
    def style(self) -> str:
        """The class of its colour."""
        return colour_class(self.place)


@dataclass(frozen=True)
class FigureRow:
    """A figure of all runs, by one protocol."""

    name: str
    figures: list[Figure | None]
    "Of each run; None: not measured so."
    evaluations: list[Evaluation | None]
    "Where each is from."

    @property
    def count(self) -> int:
        """How many runs have it."""
        return sum(figure is not None for figure in self.figures)

    @property
    def protocol(self) -> Mapping[str, str]:
        """What was alike in all of them."""
        return comparable(next(each.protocol for each in self.evaluations if each is not None))

    @property
    def how(self) -> str:
        """How it was measured, in few words: of how many images, against what, in which network."""
        way = {name: value for name, value in self.protocol.items() if value != NOTHING}
        count = next((way[name] for name in ("count", "images", "clips") if name in way), "")
        real = way.get("reference.split") or way.get("reference_name", "").rpartition("/")[2]
        against = " of ".join(filter(None, (way.get("reference_count"), real)))
        of = " of ".join(filter(None, (count, way.get("data.split"))))
        by = seen_by(next(each.protocol for each in self.evaluations if each is not None), self.name)
        return ", ".join(filter(None, (" against ".join(filter(None, (of, against))), by)))

    @property
    def best(self) -> frozenset[int]:
        """The places of the best figures; none where it is not known what is better, or nothing differs."""
        values = {place: figure.value for place, figure in enumerate(self.figures) if figure is not None and math.isfinite(figure.value)}
        sign = sign_of(self.name)
        if sign is None or len(set(values.values())) < 2:
            return frozenset()
        best = min(values.values(), key=lambda value: sign * value)
        return frozenset(place for place, value in values.items() if value == best)


@dataclass(frozen=True)
class TextRow:
    """A line of a table: what, and what each run has."""

    name: str
    values: list[str]


def write_comparison(roots: Sequence[str | Path], out: str | Path) -> Path:
    """Writes the page of several runs to `out`, and returns it.

    Raises ConfigError for less than two runs or too many, CheckpointError where one is none, DataError where the page cannot be written.
    """
    if not 2 <= len(roots) <= MOST_RUNS:
        raise ConfigError("", f"got {counted(len(roots), 'run')}, expected 2 to {MOST_RUNS}")
    for root in map(Path, roots):
        if not (root / "config.json").exists():
            RunDirectory(root).read_config()  # which says what there is instead
    out = Path(out)
    try:
        write_page(out, comparison_page([Path(root) for root in roots]))
    except OSError as error:
        raise DataError(f"cannot write {out}: {explain(error)}; choose another --out") from error
    return out


def comparison_page(roots: Sequence[Path]) -> str:
    """The page of these runs, in this order."""
    readers = [RunReader(root) for root in roots]
    for reader in readers:
        reader.update()
    runs = [Compared(name, place, reader) for place, (name, reader) in enumerate(zip(short_names(roots), readers, strict=True))]
    rows = figure_rows(runs)
    copies = [row for row in rows if row.name.startswith(_COPIES)]
    others = [row for row in rows if row not in copies]
    differing, partial = settings(runs)
    return render(
        "compare.html",
        runs=runs,
        overview=list(_overview(runs)),
        rows=others,
        protocols=protocols(runs, others),
        copies=copies,
        copy_protocols=protocols(runs, copies),
        copied=list(_copied(runs)),
        protocol_notes=list(_protocol_notes(rows)),
        intervals=list(_intervals(runs, rows)),
        sweeps=sweeps({run.name: run.reader.evaluations for run in runs}),
        repeated=any(_repeated(run.reader.evaluations) for run in runs),
        grids=[(run, _grids(run)) for run in runs],
        grid_notes=list(_grid_notes(runs)),
        charts=_charts(runs),
        cost=list(_cost(runs)),
        differing=differing,
        unread=[run.name for run in runs if any(_fault(run))],
        partial=partial,
        notes=[f"{run.name}: {note}" for run in runs for note in (*_fault(run), *run.reader.notes)],
    )


def _fault(run: Compared) -> Iterator[str]:
    """Why nothing is known of the run's settings."""
    if run.reader.facts is not None and run.reader.facts.fault is not None:
        yield run.reader.facts.fault


def _repeated(found: Sequence[Evaluation]) -> bool:
    """Whether a figure was measured more than once."""
    names = [figure.name for each in found for figure in each.figures]
    return len(set(names)) < len(names)


def short_names(roots: Sequence[Path]) -> list[str]:
    """A name for each run: that of its folder, with as many folders above it as tell them apart; a run given twice has a number too."""
    paths = [root.resolve() for root in roots]
    depth = 1
    while depth < 8 and len({path.parts[-depth:] for path in paths}) < len(set(paths)):
        depth += 1
    names = ["/".join(path.parts[-depth:]) for path in paths]
    return [name if names.count(name) == 1 else f"{name} ({k + 1})" for k, name in enumerate(names)]


def figure_rows(runs: Sequence[Compared]) -> list[FigureRow]:
    """All figures, those of most runs first, a row for each protocol.

    Of several evaluations of a run by one protocol that of its newest weights counts.
    """
    groups = by_protocol([each for run in runs for each in run.reader.evaluations], steps=True)
    rows = []
    for group in groups:
        newest = [[each for each in run.reader.evaluations if each in group] for run in runs]
        for name in dict.fromkeys(figure.name for each in group for figure in each.figures):
            found = [_newest(own, name) for own in newest]
            rows.append(FigureRow(name, [figure for figure, _ in found], [each for _, each in found]))
    having = {row.name: max(each.count for each in rows if each.name == row.name) for row in rows}
    return sorted(rows, key=lambda row: (-having[row.name], list(having).index(row.name), -row.count))


def _newest(own: Sequence[Evaluation], name: str) -> tuple[Figure | None, Evaluation | None]:
    for evaluation in reversed(own):
        for figure in evaluation.figures:
            if figure.name == name:
                return figure, evaluation
    return None, None


def _protocol_notes(rows: Sequence[FigureRow]) -> Iterator[str]:
    """What differs between the protocols of figures of one name."""
    for name in dict.fromkeys(row.name for row in rows):
        ways = [row.protocol for row in rows if row.name == name]
        if len(ways) < 2:
            continue
        differing = [
            f"{key} ({' / '.join(dict.fromkeys(way.get(key, _NOT_THERE) for way in ways))})"
            for key in dict.fromkeys((*_TOLD_FIRST, *(key for way in ways for key in way)))
            if len({way.get(key) for way in ways}) > 1
        ]
        more = f" and {len(differing) - _MOST_TOLD} more" if len(differing) > _MOST_TOLD else ""
        yield f"{name} was measured in {len(ways)} ways, which cannot be compared: {', '.join(differing[:_MOST_TOLD])}{more}"


def protocols(runs: Sequence[Compared], rows: Sequence[FigureRow]) -> list[tuple[str, Evaluation]]:
    """How the figures of the rows were measured, each file once, with what it is about."""
    found: dict[tuple[str, str, float | None], tuple[str, Evaluation]] = {}
    for row in rows:
        for run, evaluation in zip(runs, row.evaluations, strict=True):
            if evaluation is not None:
                key = (run.name, evaluation.file, evaluation.steps)
                title = f"{found[key][0]}, {row.name}" if key in found else f"{run.name}: how it was measured: {row.name}"
                found[key] = (title, evaluation)
    return list(found.values())


def _intervals(runs: Sequence[Compared], rows: Sequence[FigureRow]) -> Iterator[IntervalChart]:
    for row in rows:
        found = [(run.place, run.name, figure) for run, figure in zip(runs, row.figures, strict=True) if figure is not None]
        found = [each for each in found if math.isfinite(each[2].value)]
        if len(found) > 1:
            yield interval_chart(row.name, "The dot is what was measured, the bar its 95 % interval.", found)


def _overview(runs: Sequence[Compared]) -> Iterator[TextRow]:
    facts = [run.reader.facts for run in runs]
    for name in ("recipe", "family", "data", "images"):
        yield TextRow(name, [str(getattr(fact, name)) or "unknown" for fact in facts])
    yield TextRow("parameters", [run.reader.happenings.parameters or "unknown" for run in runs])
    yield TextRow("images seen", [_share(run) for run in runs])
    yield TextRow("state", [run.reader.happenings.state for run in runs])


def _share(run: Compared) -> str:
    facts = run.reader.facts
    total = facts.number("train", "total_images") if facts is not None else None
    return f"{run.reader.images_seen:,}" + (f" of {total:,}" if isinstance(total, int) else "")


def _cost(runs: Sequence[Compared]) -> Iterator[TextRow]:
    readers = [run.reader for run in runs]
    unknown = "unknown"
    yield TextRow("time of training", [spelled_hours(each.curves.seconds) if each.curves.seconds else unknown for each in readers])
    yield TextRow("images/s, the median", [unknown if (speed := each.images_per_second) is None else plain(speed) for each in readers])
    yield TextRow("memory, the most noted", [unknown if (most := each.memory_bytes) is None else in_bytes(most) for each in readers])
    yield TextRow("starts", [str(each.happenings.counts["start"] + each.happenings.counts["resume"]) for each in readers])
    yield TextRow("warnings", [str(each.happenings.counts["warning"]) for each in readers])
    yield TextRow("failures", [str(each.happenings.counts["failure"]) for each in readers])


def _grids(run: Compared) -> Series | None:
    """The grids of a run, those of further names aside."""
    series = run.reader.pictures.of_run(run.reader.root)
    return next((each for each in series if not each.name), series[0] if series else None)


def _grid_notes(runs: Sequence[Compared]) -> Iterator[str]:
    """Why the grids may not show the same noise."""
    names = [name for run in runs for name in _values(run) if name in _GRIDS or name.startswith("model.sampling.")]
    for name in dict.fromkeys(names):
        values = [_values(run).get(name, _NOT_THERE) for run in runs]
        if len(set(values)) > 1:
            yield f"{name}: {' / '.join(values)}"


def _values(run: Compared) -> Mapping[str, str]:
    facts = run.reader.facts
    return {} if facts is None else {setting.name: setting.value for setting in facts.settings}


def settings(runs: Sequence[Compared]) -> tuple[list[TextRow], list[TextRow]]:
    """The settings that differ: those that all runs have, and those that only some have."""
    each = [_values(run) for run in runs]
    names = dict.fromkeys(name for values in each for name in values)
    rows = [TextRow(name, [values.get(name, _NOT_THERE) for values in each]) for name in names]
    rows = [row for row in rows if len(set(row.values)) > 1]
    whole = {row.name for row in rows if all(row.name in values for values in each)}
    return [row for row in rows if row.name in whole], [row for row in rows if row.name not in whole]


def _charts(runs: Sequence[Compared]) -> list[Chart]:
    """A chart for each figure, loss and other number that the log of some run has; of each kind those that more runs have come first."""
    names = dict.fromkeys(name for run in runs for name in run.reader.curves.by_name)
    having = {name: [run for run in runs if name in run.reader.curves.by_name] for name in names}
    figures = [name for name in names if name.startswith(EVALUATION) and not name.endswith(ERROR)]
    trained = [name for name in names if not name.startswith(EVALUATION)]
    losses = [name for name in trained if name.rpartition("/")[2] == "loss"]
    others = [name for name in trained if name.rpartition("/")[2] in OTHERS and not name.startswith(VALIDATION)]
    return charts(
        _panel(name, runs, having[name])
        for kind in (figures, losses, others)
        for name in sorted(kind, key=lambda name: -len(having[name]))
    )  # fmt: skip


def _panel(name: str, runs: Sequence[Compared], having: Sequence[Compared]) -> Panel:
    panel = _evaluation(name, having) if name.startswith(EVALUATION) else _loss_or_other(name)
    without = [run.name for run in runs if run not in having]
    sentence = f"{panel.sentence} Not there in {', '.join(without)}." if without else panel.sentence
    error = ERROR if name.startswith(EVALUATION) else STANDARD_ERROR
    curves = []
    for run in having:
        own, best = run.reader.curves.by_name, run.reader.best
        decided = best is not None and deciding(own, best) == name
        curves.append(
            Drawn(run.name, own[name], own.get(f"{name}{error}"), run.place, figure=name, best=best if decided else None),
        )
    return replace(panel, sentence=sentence, curves=curves)


def _evaluation(name: str, having: Sequence[Compared]) -> Panel:
    ways = {setting: " / ".join(dict.fromkeys(_values(run).get(setting, _NOT_THERE) for run in having)) for setting in _MEASURED_BY}
    unlike = [f"{setting} ({values})" for setting, values in ways.items() if " / " in values]
    sentence = "Measured on samples while the run was trained; bands are 95 % intervals."
    return Panel(
        f"Evaluation: {name.removeprefix(EVALUATION)}",
        f"{sentence} Not all were measured alike: {', '.join(unlike)}." if unlike else sentence,
        [],
    )


def _loss_or_other(name: str) -> Panel:
    phase, _, ending = name.rpartition("/")
    validated = phase.startswith(VALIDATION)
    loss = Other(f"Loss on held-out images ({phase.removeprefix(VALIDATION)})" if validated else f"Loss ({phase})", "Lower is better.")
    other = OTHERS.get(ending, loss)
    title = f"{other.title} ({phase})" if phase and ending in OTHERS else other.title
    return Panel(title, other.sentence, [], other.unit, other.scale, other.from_zero)


def _copied(runs: Sequence[Compared]) -> Iterator[tuple[Compared, Picture]]:
    """The picture of the nearest pairs of each run: of the newest evaluation that looked for copies."""
    for run in runs:
        looked = [each for each in run.reader.evaluations if any(figure.name.startswith(_COPIES) for figure in each.figures)]
        paths = [path for each in looked for path in each.pictures]
        if paths:
            yield run, picture(paths[-1])
