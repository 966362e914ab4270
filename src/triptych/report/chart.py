"""Charts as shapes for inline SVG: ticks at round numbers, lines, bands of intervals. What draws them is templates/parts.html.

Text stays text and colours are classes of the page's style, so that a chart is read in the dark and in the light.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 40
COLOURS = 8
"""Colours of the style, c0 to c7; further lines begin again, dashed."""
_LOGARITHMIC = 30.0
"""Positive values whose largest is so many times the smallest are drawn on a logarithmic axis."""
_NOTHING = 1e-100
"""Differences below are none."""
_SPIKE = 3.0
"""Values so many times as far out as 96 % of all are cut off, so that the rest can be seen."""


@dataclass(frozen=True)
class Line:
    """A line of a chart, or single points with their intervals."""

    name: str
    points: Sequence[tuple[float, float]]
    errors: Sequence[float | None] | None = None
    "Half of the interval of each point."
    newest: str = ""
    "The last value, for the legend."
    dots: bool = False
    "Whether each point gets a dot, and its interval a bar; else intervals are a band."
    colour: int | None = None
    "None: by its place in the chart."


@dataclass(frozen=True)
class Tick:
    """A place on an axis, in units of the picture, and what stands there."""

    at: float
    label: str


@dataclass(frozen=True)
class Shape:
    """A line as it is drawn."""

    style: str
    path: str
    band: str
    dots: list[tuple[float, float, str]]
    bars: list[tuple[float, float, float]]


@dataclass(frozen=True)
class Drawing:
    """A chart on one of its axes."""

    x_label: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    shapes: list[Shape]
    marks: list[Tick]
    "Vertical lines, such as resumes."
    cut: int
    "Points that lie outside."
    logarithmic: bool


@dataclass(frozen=True)
class Chart:
    """A chart with its words: a title, a sentence on what it shows, and a drawing for each way of counting along."""

    title: str
    sentence: str
    unit: str
    drawings: dict[str, Drawing]
    "By class of the style: by-images, by-time, or always."
    legend: list[tuple[str, str, str]]
    "Class of the style, name and newest value of each line."
    notes: list[str] = field(default_factory=list)


class Scale:
    """An axis: where a value lies between two ends of the picture."""

    def __init__(self, low: float, high: float, begin: float, end: float, *, logarithmic: bool = False) -> None:
        self.low, self.high, self.logarithmic = low, high, logarithmic
        self._begin, self._end = begin, end

    def __call__(self, value: float) -> float:
        """The place, in units of the picture to a tenth."""
        low, high, value = (math.log(v) for v in (self.low, self.high, value)) if self.logarithmic else (self.low, self.high, value)
        return round(self._begin + (value - low) / (high - low) * (self._end - self._begin), 1)

    def holds(self, value: float) -> bool:
        """Whether the value lies on the axis."""
        return self.low <= value <= self.high


def legend_class(line: Line, place: int) -> str:
    """The class of the style for a line: its colour, dashed from the ninth on."""
    number = place if line.colour is None else line.colour
    return f"c{number % COLOURS}" + (" dashed" if number >= COLOURS else "")


def legend(lines: Sequence[Line]) -> list[tuple[str, str, str]]:
    """What stands under a chart, for each of its lines."""
    return [(legend_class(line, place), line.name, line.newest) for place, line in enumerate(lines)]


def drawing(
    lines: Sequence[Line], *, x_label: str, x_ticks: str = "number", marks: Iterable[tuple[float, str]] = (), from_zero: bool = False
) -> Drawing:
    """The lines on axes that hold them. `x_ticks`: "number", "count" (12k, 3M); `marks`: x and what happened there."""
    xs = [x for line in lines for x, _ in line.points]
    x_scale = Scale(*widened(min(xs), max(xs)), LEFT, WIDTH - RIGHT)
    y_scale = _y_scale(lines, from_zero=from_zero)
    shapes = [_shape(line, place, x_scale, y_scale) for place, line in enumerate(lines)]
    return Drawing(
        x_label=x_label,
        x_ticks=ticks(x_scale, round_values(x_scale.low, x_scale.high), counted if x_ticks == "count" else plain),
        y_ticks=ticks(y_scale, _y_values(y_scale), plain),
        shapes=shapes,
        marks=[Tick(x_scale(x), text) for x, text in marks if x_scale.holds(x)],
        cut=sum(not y_scale.holds(y) for line in lines for _, y in line.points),
        logarithmic=y_scale.logarithmic,
    )


def ticks(scale: Scale, values: Sequence[float], label: Callable[[float], str]) -> list[Tick]:
    """The ticks at these values; with all their digits where they would read alike else."""
    labels = [label(value) for value in values]
    if len(set(labels)) < len(labels):
        labels = [f"{value:,.12g}" for value in values]
    return [Tick(scale(value), text) for value, text in zip(values, labels, strict=True)]


def widened(low: float, high: float) -> tuple[float, float]:
    """Two ends that differ by as much as an axis can show."""
    largest = max(abs(low), abs(high))
    if high - low > max(1e-9 * largest, _NOTHING):
        return low, high
    margin = 0.1 * largest if largest > _NOTHING else 1.0
    return low - margin, high + margin


def _y_scale(lines: Sequence[Line], *, from_zero: bool) -> Scale:
    values = sorted(y for line in lines for _, y in line.points)
    ends = [y + side * error for line in lines if line.errors for (_, y), error in zip(line.points, line.errors, strict=True)
            for side in (-1, 1) if error is not None]  # fmt: skip
    low, high = values[0], values[-1]
    if low > _NOTHING and high / low > _LOGARITHMIC and not from_zero:
        return Scale(low * 0.9, high * 1.1, HEIGHT - BOTTOM, TOP, logarithmic=True)
    inner = [_inner(line) for line in lines if line.points]
    inner_low, inner_high = min(low for low, _ in inner), max(high for _, high in inner)
    reach = _SPIKE * (inner_high - inner_low)
    if reach > 0:
        low, high = max(low, inner_low - reach), min(high, inner_high + reach)
    low, high = widened(min([low, *ends]), max([high, *ends]))
    if from_zero:
        low = min(low, 0.0)
    margin = 0.05 * (high - low)
    return Scale(low if from_zero and low == 0 else low - margin, high + margin, HEIGHT - BOTTOM, TOP)


def _inner(line: Line) -> tuple[float, float]:
    """Between which values 96 % of a line lie; all where it has few points, such as those of held-out images."""
    values = sorted(y for _, y in line.points)
    return values[int(0.02 * (len(values) - 1))], values[math.ceil(0.98 * (len(values) - 1))]


def _shape(line: Line, place: int, x_scale: Scale, y_scale: Scale) -> Shape:
    def at(x: float, y: float) -> tuple[float, float]:
        return x_scale(x), y_scale(min(max(y, y_scale.low), y_scale.high))

    errors = line.errors or [None] * len(line.points)
    inside = list(zip(line.points, errors, strict=True))
    path = _path([at(x, y) for (x, y), _ in inside])
    known = [((x, y), error) for (x, y), error in inside if error is not None]
    band = ""
    if known and not line.dots:
        around = [at(x, y + error) for (x, y), error in known] + [at(x, y - error) for (x, y), error in reversed(known)]
        band = _path(around) + "Z"
    dots = [(*at(x, y), f"{plain(x)}: {plain(y)}{_interval(y, error)}") for (x, y), error in inside]
    bars = [(x_scale(x), at(x, y - error)[1], at(x, y + error)[1]) for (x, y), error in known]
    shown = line.dots or len(line.points) == 1
    return Shape(legend_class(line, place), path, band, dots if shown else [], bars if line.dots else [])


def _interval(y: float, error: float | None) -> str:
    return "" if error is None else f", {plain(y - error)} to {plain(y + error)}"


def _path(places: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in places)


def _y_values(scale: Scale) -> list[float]:
    if not scale.logarithmic:
        return round_values(scale.low, scale.high)
    first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    decades = [10.0**k for k in range(first, last + 1)]
    steps = (1, 2, 5) if len(decades) <= 4 else (1,)
    values = [decade * step for decade in decades for step in steps if scale.holds(decade * step)]
    return values[:: -(-len(values) // 7)] if values else []


def round_values(low: float, high: float, most: int = 6) -> list[float]:
    """At most so many round numbers from low to high, at equal distances: 1, 2 or 5 times a power of ten apart."""
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if (high - low) / (power * factor) <= most - 1)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) + 0.0 if step >= 1e-9 else k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def plain(value: float) -> str:
    """A number in few letters: 0.031, 12,000, 2e-05."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6 or abs(value) < 1e-3:
        return f"{value:.3g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def counted(value: float) -> str:
    """A count in few letters: 500, 12k, 3.5M, 2B."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:g}"
