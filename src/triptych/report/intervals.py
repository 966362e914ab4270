"""Figures of several runs beside one another: a dot for each, and a bar for its 95 % interval."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from triptych.core.errors import printable
from triptych.report.chart import LETTER, RIGHT, WIDTH, Scale, Tick, colour_class, plain, round_values, spaced, ticks, widened
from triptych.report.measured import Figure

_ROW = 44
_BEGIN = 8
"""Where names stand, as templates/parts.html has it."""


@dataclass(frozen=True)
class IntervalRow:
    """A run's figure as it is drawn."""

    style: str
    name: str
    short: str
    "The name, as much of it as there is room for beside the figure."
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
        room = int((WIDTH - RIGHT - _BEGIN) / LETTER) - len(text) - 2
        ends = scale(figure.value), scale(first), scale(last)
        rows.append(IntervalRow(colour_class(place), name, shortened(name, room), text, 30 + _ROW * row, *ends))
    places = spaced(ticks(scale, round_values(scale.low, scale.high), plain))
    return IntervalChart(title, sentence, 30 + _ROW * len(rows), places, rows)


def shortened(name: str, letters: int) -> str:
    """The name in so many letters, both of its ends: names of runs often differ in the last ones. A wide letter counts twice."""
    text = printable(name)
    if _width(text) <= letters:
        return text
    first = last = ""
    while _width(first) + _width(last) < letters - 2:
        first, last = text[: len(first) + 1], text[len(text) - len(last) - 1 :]
    return f"{first}…{last}"


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
