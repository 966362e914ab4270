"""Charts as shapes for inline SVG: ticks at round numbers, lines, bands of intervals. What draws them is templates/parts.html.

Text stays text and colours are classes of the page's style, so that a chart is read in the dark and in the light.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from triptych.core.wording import counted

WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 40
"""Margins; that on the left is wider where the labels are."""
LETTER = 8.3
"""Width of a digit of the labels in the widest of the usual fonts, DejaVu Sans at 13 units; most have 7.3."""
COLOURS = 8
"""Colours of the style, c0 to c7; further lines begin again, dashed and with hollow dots."""
_LOGARITHMIC = 30.0
"""Positive values whose largest is so many times the smallest are drawn on a logarithmic axis."""
_SPREAD = 8.0
"""Values along the axis that were chosen, such as steps, stand on a logarithmic one where they spread so many times."""
_NOTHING = 1e-100
"""Differences below are none."""
_SPIKE = 3.0
"""Values so many times as far out as 96 % of all are cut off, so that the rest can be seen."""


@dataclass(frozen=True)
class Line:
    """A line of a chart, or single points with their intervals."""

    name: str
    points: Sequence[tuple[float, float]]
    intervals: Sequence[tuple[float, float] | None] | None = None
    "Between what each point lies; None: not known."
    newest: str = ""
    "The last value, for the legend."
    dots: bool = False
    "Whether each point gets a dot, and its interval a bar; else intervals are a band."
    colour: int | None = None
    "None: by its place in the chart."
    images: Sequence[int] | None = None
    "Images seen at each point, for the reader who points at it."
    ring: tuple[float, float, str] | None = None
    "A place that is marked, and what is there."


@dataclass(frozen=True)
class Tick:
    """A place on an axis, in units of the picture, and what stands there."""

    at: float
    label: str
    anchor: str = "middle"
    "Which part of the label stands there, as SVG calls it."


@dataclass(frozen=True)
class Shape:
    """A line as it is drawn."""

    style: str
    path: str
    band: str
    dots: list[tuple[float, float, str]]
    bars: list[tuple[float, float, float]]
    ring: tuple[float, float, str] | None
    images: str
    "Those of all points, for the script of the page; none where they are not told."
    values: str


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
    x_logarithmic: bool
    left: int
    "Where the axis begins."

    @property
    def remarks(self) -> list[str]:
        """What has to be known to read it."""
        said = [f"{counted(brief(self.cut), 'point')} beyond the edge"] if self.cut else []
        said += ["logarithmic axis"] if self.logarithmic else []
        return said + ([f"{self.x_label} on a logarithmic axis"] if self.x_logarithmic else [])


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
    newest: list[tuple[str, list[tuple[str, str]]]] = field(default_factory=list)
    "Of each line the last points in words: images seen, and the value."


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
    return colour_class(place if line.colour is None else line.colour)


def colour_class(number: int) -> str:
    """The class of the style for the run, or the line, of a number from 0 on."""
    return f"c{number % COLOURS}" + (" dashed" if number >= COLOURS else "")


def legend(lines: Sequence[Line]) -> list[tuple[str, str, str]]:
    """What stands under a chart, for each of its lines."""
    return [(legend_class(line, place), line.name, line.newest) for place, line in enumerate(lines)]


def drawing(
    lines: Sequence[Line],
    *,
    x_label: str,
    x_ticks: Literal["number", "count", "chosen"] = "number",
    marks: Iterable[tuple[float, str]] = (),
    from_zero: bool = False,
    share: bool = False,
) -> Drawing:
    """The lines on axes that hold them.

    `x_ticks`: "count" is 12k and 3M; "chosen" numbers, such as steps, stand on a logarithmic axis where they spread far. `marks`: x and
    what happened there. `share`: the axis ends at 0 and at 1, where the values do.
    """
    y_scale = _y_scale(lines, from_zero=from_zero, share=share)
    y_ticks = ticks(y_scale, _y_values(y_scale), plain)
    left = max(LEFT, math.ceil(LETTER * max((len(tick.label) for tick in y_ticks), default=0)) + 8)
    xs = sorted({x for line in lines for x, _ in line.points})
    x_scale = _x_scale(xs, left, chosen=x_ticks == "chosen")
    shapes = [_shape(line, place, x_scale, y_scale) for place, line in enumerate(lines)]
    values = xs if x_scale.logarithmic else _x_values(x_scale, xs, whole=x_ticks != "number")
    return Drawing(
        x_label=x_label,
        x_ticks=spaced(ticks(x_scale, values, brief if x_ticks == "count" else plain)),
        y_ticks=y_ticks,
        shapes=shapes,
        marks=[Tick(x_scale(x), text) for x, text in marks if x_scale.holds(x)],
        cut=sum(not y_scale.holds(y) for line in lines for _, y in line.points),
        logarithmic=y_scale.logarithmic,
        x_logarithmic=x_scale.logarithmic,
        left=left,
    )


def ticks(scale: Scale, values: Sequence[float], label: Callable[[float, int], str]) -> list[Tick]:
    """The ticks at these values, with as many digits as tell them apart."""
    digits = 0 if scale.logarithmic or len(values) < 2 else _digits(values)
    return [Tick(scale(value), label(value, digits)) for value in values]


def _digits(values: Sequence[float]) -> int:
    """Significant digits that the largest of values has down to the place in which neighbours differ, at equal distances."""
    return _exponent(max(map(abs, values))) - _exponent(values[1] - values[0]) + 1


def _exponent(value: float) -> int:
    return math.floor(math.log10(value) + 1e-9)


def spaced(along: Sequence[Tick]) -> list[Tick]:
    """The ticks whose labels find room beside one another on a horizontal axis, none beyond the edge of the picture."""
    width = LETTER * max((len(tick.label) for tick in along), default=0)
    kept, end = list[Tick](), -math.inf
    for tick in along:
        anchor, begin = "middle", tick.at - width / 2
        if begin < 0:
            anchor, begin = "start", tick.at
        elif begin + width > WIDTH:
            anchor, begin = "end", tick.at - width
        if begin >= end + LETTER:
            kept.append(replace(tick, anchor=anchor))
            end = begin + width
    return kept


def _x_scale(xs: Sequence[float], left: float, *, chosen: bool) -> Scale:
    """The axis for these values, in order; one without values below 0 does not reach there."""
    if chosen and xs[0] > 0 and xs[-1] / xs[0] > _SPREAD:
        return Scale(xs[0], xs[-1], left, WIDTH - RIGHT, logarithmic=True)
    low, high = widened(xs[0], xs[-1])
    return Scale(max(low, 0.0) if xs[0] >= 0 else low, high, left, WIDTH - RIGHT)


def _x_values(scale: Scale, xs: Sequence[float], *, whole: bool) -> list[float]:
    """Round numbers along an axis; of whole numbers whole ones."""
    if whole and all(float(x).is_integer() for x in xs) and scale.high - scale.low < 5:
        return [float(x) for x in range(math.ceil(scale.low), math.floor(scale.high) + 1)]
    return round_values(scale.low, scale.high)


def widened(low: float, high: float) -> tuple[float, float]:
    """Two ends that differ by as much as an axis can show."""
    largest = max(abs(low), abs(high))
    if high - low > max(1e-9 * largest, _NOTHING):
        return low, high
    margin = 0.1 * largest if largest > _NOTHING else 1.0
    return low - margin, high + margin


def _y_scale(lines: Sequence[Line], *, from_zero: bool, share: bool) -> Scale:
    values = sorted(y for line in lines for _, y in line.points)
    ends = [end for line in lines for interval in line.intervals or () if interval is not None for end in interval]
    low, high = values[0], values[-1]
    least, most = (0.0, 1.0) if share and low >= 0 and high <= 1 else (-math.inf, math.inf)
    if low > _NOTHING and high / low > _LOGARITHMIC and not from_zero:
        return Scale(low * 0.9, min(high * 1.1, most), HEIGHT - BOTTOM, TOP, logarithmic=True)
    inner = [_inner(line) for line in lines if line.points]
    inner_low, inner_high = min(low for low, _ in inner), max(high for _, high in inner)
    reach = _SPIKE * (inner_high - inner_low)
    if reach > 0:
        low, high = max(low, inner_low - reach), min(high, inner_high + reach)
    low, high = widened(min([low, *ends]), max([high, *ends]))
    if from_zero:
        low = min(low, 0.0)
    margin = 0.05 * (high - low)
    low = low if from_zero and low == 0 else max(low - margin, least)
    return Scale(low, min(high + margin, most), HEIGHT - BOTTOM, TOP)


def _inner(line: Line) -> tuple[float, float]:
    """Between which values 96 % of a line lie; all where it has few points, such as those of held-out images."""
    values = sorted(y for _, y in line.points)
    return values[int(0.02 * (len(values) - 1))], values[math.ceil(0.98 * (len(values) - 1))]


def _shape(line: Line, place: int, x_scale: Scale, y_scale: Scale) -> Shape:
    def at(x: float, y: float) -> tuple[float, float]:
        return x_scale(x), y_scale(min(max(y, y_scale.low), y_scale.high))

    intervals = line.intervals or [None] * len(line.points)
    inside = list(zip(line.points, intervals, strict=True))
    path = _path([at(x, y) for (x, y), _ in inside])
    known = [(x, interval) for (x, _), interval in inside if interval is not None]
    band = ""
    if known and not line.dots:
        band = _path([at(x, high) for x, (_, high) in known] + [at(x, low) for x, (low, _) in reversed(known)]) + "Z"
    dots = [(*at(x, y), f"{plain(x)}: {in_words(y, interval)}") for (x, y), interval in inside]
    bars = [(x_scale(x), at(x, low)[1], at(x, high)[1]) for x, (low, high) in known]
    shown = line.dots or len(line.points) == 1
    return Shape(
        style=legend_class(line, place),
        path=path,
        band=band,
        dots=dots if shown else [],
        bars=bars if line.dots else [],
        ring=None if line.ring is None else (*at(*line.ring[:2]), line.ring[2]),
        images=" ".join(map(str, line.images or ())),
        values=" ".join(plain(y) for _, y in line.points) if line.images else "",
    )


def in_words(value: float, interval: tuple[float, float] | None) -> str:
    """A value, and its interval where that is known."""
    return plain(value) + ("" if interval is None else f", {plain(interval[0])} to {plain(interval[1])}")


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


def plain(value: float, digits: int = 0) -> str:
    """A number in few letters: 0.031, 12,000, 2e-05. `digits`: significant ones that it has at least, but for zeros at its end."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6 or abs(value) < 1e-3:
        return f"{value:,.{max(3, digits)}g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    if abs(value) >= 1000:
        return f"{value:,.{max(0, digits - len(str(int(abs(value)))))}f}"
    return f"{value:.{max(4, digits)}g}"


def brief(value: float, digits: int = 0) -> str:
    """A count in few letters: 500, 12k, 3.5M, 2B. `digits`: as in `plain`."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.{max(4, digits)}g}{letter}"
    return f"{value:.{max(6, digits)}g}"
