"""Figures of several runs beside one another: a dot for each, and a bar for its 95 % interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triptych.report.chart import COLOURS, RIGHT, WIDTH, Scale, Tick, plain, round_values, ticks, widened
from triptych.report.measured import Figure

_ROW = 44


@dataclass(frozen=True)
class IntervalRow:
    """A run's figure as it is drawn."""

    style: str
    name: str
    text: str
    y: float
    at: float
    low: float
    high: float


@dataclass(frozen=True)
class IntervalChart:
    """A figure of several runs."""

    title: str
    sentence: str
    height: int
    ticks: list[Tick]
    rows: list[IntervalRow]


def interval_chart(title: str, sentence: str, figures: Sequence[tuple[int, str, Figure]]) -> IntervalChart:
    """The chart of (number of the run, its name, its figure), one row each, on one axis; the values are finite."""
    ends = [end for _, _, figure in figures for end in (figure.interval or (figure.value, figure.value))]
    low, high = min(ends), max(ends)
    low, high = widened(low, high)
    margin = 0.08 * (high - low)
    scale = Scale(low - margin, high + margin, 14, WIDTH - RIGHT - 2)
    rows = []
    for row, (place, name, figure) in enumerate(figures):
        first, last = figure.interval or (figure.value, figure.value)
        text = plain(figure.value) + ("" if figure.error is None else f" ± {plain(figure.error)}")
        rows.append(IntervalRow(f"c{place % COLOURS}", name, text, 30 + _ROW * row, scale(figure.value), scale(first), scale(last)))
    places = ticks(scale, round_values(scale.low, scale.high), plain)
    return IntervalChart(title, sentence, 30 + _ROW * len(rows), places, rows)
