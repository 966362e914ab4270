"""The numbers of metrics.jsonl as curves over images and hours, of a few hundred points each however long the run is."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from triptych.core.reading import parsed_json
from triptych.core.wording import counted
from triptych.engine.metric_log import measured
from triptych.report.growing import GrowingFile

MOST_POINTS = 400
"""Of a curve; one that reaches it is thinned to half as many."""
_MOST_CURVES = 300
_RECENT = 1_024
"""Lines at the end of each curve that stay known one by one, for a resume among them."""
_MOST_COUNTED = 10**15  # images, and seconds
SPEED = "images_per_second"
"""Earlier versions wrote 0 where it was not known yet."""
LARGEST = 1e100
"""A number from here on counts as infinite: axes could not hold it."""


class Point(NamedTuple):
    """A place on a curve: what was measured since the point before."""

    images: int
    seconds: float
    "Of training."
    value: float


@dataclass
class Curve:
    """A number over the run. Its points are means over as many lines of the log each; the newest one may be of fewer."""

    points: list[Point] = field(default_factory=list)
    lines_each: int = 1
    not_finite: int = 0
    "Values that are not finite; they are in no point."
    newest: float = math.nan
    largest: float | None = None
    "Of all lines, also of those that points are means of."
    _waiting: list[Point] = field(default_factory=list)
    _recent: deque[Point] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def add(self, point: Point) -> None:
        """Takes the value of one more line."""
        self.newest = point.value
        if not abs(point.value) < LARGEST:
            self.not_finite += 1
            return
        self.largest = point.value if self.largest is None else max(self.largest, point.value)
        self._waiting.append(point)
        self._recent.append(point)
        if len(self._waiting) == self.lines_each:
            self.points.append(_mean(self._waiting))
            self._waiting = []
        if len(self.points) >= MOST_POINTS:
            self.points = [_mean(self.points[k : k + 2]) for k in range(0, len(self.points), 2)]
            self.lines_each *= 2

    def resumed(self, images: int) -> None:
        """Forgets what came after so many images: the run went on from there. Lines of a mean that still hold wait for new ones.

        Where they lie too far back to be known one by one, their mean stands where the run went on.
        """
        lines, mean = len(self.points) * self.lines_each + len(self._waiting), None
        while self.points and self.points[-1].images > images:
            mean = self.points.pop()
        open_lines = lines - len(self.points) * self.lines_each
        known = open_lines <= len(self._recent)
        newest = [self._recent.pop() for _ in range(open_lines if known else len(self._recent))][::-1]
        if known or mean is None:
            self._waiting = [point for point in (newest if known else self._waiting)[: self.lines_each] if point.images <= images]
        else:
            self._waiting = []
            before = self.points[-1] if self.points else Point(0, 0.0, 0.0)
            self.points += [_moved(mean, before, images)] if before.images < images else []
        self._recent.extend(self._waiting)
        self.newest = next((point.value for point in reversed([*self.points, *self._recent])), math.nan)

    def drawn(self) -> list[Point]:
        """All points, the lines that wait for their fellows as a last one."""
        return [*self.points, *([_mean(self._waiting)] if self._waiting else [])]


def _mean(points: list[Point]) -> Point:
    """One point for several that follow one another: it stands where the last of them does."""
    return points[-1]._replace(value=math.fsum(point.value for point in points) / len(points))


def _moved(mean: Point, before: Point, images: int) -> Point:
    """The mean where only so many images were seen, with the time between those of its neighbours."""
    share = (images - before.images) / (mean.images - before.images)
    return Point(images, before.seconds + share * (mean.seconds - before.seconds), mean.value)


class Curves:
    """The curves of a run, by the names in metrics.jsonl; `update` reads what is new there."""

    def __init__(self, path: Path) -> None:
        self._file = GrowingFile(path)
        self.by_name: dict[str, Curve] = {}
        self.images_seen = 0
        self.seconds = 0.0
        "Of training."
        self.resumed_at: list[int] = []
        "Images seen where the run went on after an interruption, in order."
        self.notes: list[str] = []
        "What is to be said about the file, a line each."
        self._damaged = self._nameless = 0

    def update(self) -> None:
        """Reads the new lines. What is damaged or too much is left out, and noted."""
        try:
            for line in self._file.lines():
                self._take(line)
        except OSError as error:
            self.notes = [f"metrics.jsonl cannot be read: {error.strerror or error}"]
            return
        self.notes = [line for line in self._noted() if line]

    def _take(self, line: str) -> None:
        try:
            values = measured(parsed_json(line))
            images, seconds = values.get("images", 0), float(values.get("time", self.seconds))
            if not (0 <= images < _MOST_COUNTED and 0 <= seconds < _MOST_COUNTED):
                raise ValueError
        except ValueError:
            self._damaged += bool(line.strip("\0 "))
            return
        if "resumed_at" in values:
            self._resumed(values["resumed_at"])
            return
        self.images_seen, self.seconds = images, seconds
        for name, value in values.items():
            if name in ("images", "time") or (name == SPEED and not value):
                continue
            curve = self.by_name.get(name)
            if curve is None:
                if len(self.by_name) >= _MOST_CURVES:
                    self._nameless += 1
                    continue
                curve = self.by_name[name] = Curve()
            curve.add(Point(images, seconds, float(value)))

    def _resumed(self, images: int) -> None:
        self.resumed_at = [*(place for place in self.resumed_at if place < images), images]  # others are of a past that was given up
        for curve in self.by_name.values():
            curve.resumed(images)
        if images < self.images_seen:
            self.images_seen = images
            kept = (point.seconds for curve in self.by_name.values() for point in curve.drawn()[-1:])
            self.seconds = max(kept, default=0.0)

    def _noted(self) -> Iterator[str]:
        if self._damaged:
            yield f"metrics.jsonl has {counted(self._damaged, 'damaged line')}, left out"
        if self._nameless:
            yield f"metrics.jsonl has more than {_MOST_CURVES} names: the others are left out"
        if self._file.left_out:
            yield f"metrics.jsonl is very long: its first {self._file.left_out:,} bytes are left out"
        wrong = sum(curve.not_finite for curve in self.by_name.values())
        if wrong:
            yield f"metrics.jsonl has {counted(wrong, 'value')} not finite (NaN or infinite), left out of the curves"


def values_of(curve: Curve | None) -> list[Any]:
    """The values of a curve, none where there is no such curve."""
    return [] if curve is None else [point.value for point in curve.drawn()]
