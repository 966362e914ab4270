"""Quality against what it costs: the same figure by network calls, by seconds, and by images seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from triptych.report.chart import Chart, Line, drawing, legend
from triptych.report.measured import NORMAL_95, Evaluation, Figure

_MOST_CHARTS = 18
Along = Callable[[Evaluation], float | None]


@dataclass(frozen=True)
class Against:
    """What a figure is drawn against."""

    title: str
    label: str
    sentence: str
    along: Along
    ticks: Literal["number", "count"] = "number"


_AGAINST = (
    Against("network calls", "network calls for a sample", "More calls cost more time.", lambda each: each.calls),
    Against("seconds", "seconds", "The time that the evaluation took.", lambda each: each.seconds),
    Against(
        "images seen", "images seen by the weights", "How the figure changed in training.", lambda each: each.images_seen, ticks="count"
    ),
)


def sweeps(runs: Mapping[str, Sequence[Evaluation]]) -> list[Chart]:
    """A chart for each figure and cost of which there are two places at least, with a line for each run; bars are 95 % intervals."""
    return list(_charts(runs))[:_MOST_CHARTS]


def _charts(runs: Mapping[str, Sequence[Evaluation]]) -> Iterator[Chart]:
    names = dict.fromkeys(figure.name for found in runs.values() for each in found for figure in each.figures)
    settings = dict.fromkeys(name for found in runs.values() for each in found for name in each.sampler if name != "steps")
    sampler = [Against(name, name, "A setting of the sampler.", partial(_setting, name=name)) for name in settings]
    for name in names:
        for against in (*_AGAINST, *sampler):
            lines = list(_lines(runs, name, against.along))
            if len({x for line in lines for x, _ in line.points}) < 2:
                continue
            drawn = drawing(lines, x_label=against.label, x_ticks=against.ticks)
            shown = legend(lines) if len(runs) > 1 else []
            yield Chart(f"{name} by {against.title}", against.sentence, "", {"always": drawn}, shown, _notes(runs, name, against.along))


def _setting(evaluation: Evaluation, *, name: str) -> float | None:
    return evaluation.sampler.get(name)


def _lines(runs: Mapping[str, Sequence[Evaluation]], name: str, along: Along) -> Iterator[Line]:
    for place, (run, found) in enumerate(runs.items()):
        known = [(along(each), figure) for each in found for figure in _named(each, name)]
        places = sorted(((x, figure) for x, figure in known if x is not None), key=lambda place: place[0])
        if places:
            points = [(x, figure.value) for x, figure in places]
            errors = [None if figure.error is None else NORMAL_95 * figure.error for _, figure in places]
            yield Line(run, points, errors, dots=True, colour=place)


def _named(evaluation: Evaluation, name: str) -> Iterator[Figure]:
    yield from (figure for figure in evaluation.figures if figure.name == name and math.isfinite(figure.value))


def _notes(runs: Mapping[str, Sequence[Evaluation]], name: str, along: Along) -> list[str]:
    measured = [each for found in runs.values() for each in found if along(each) is not None and any(_named(each, name))]
    alike = all(each.same_protocol(measured[0]) for each in measured)
    return [] if alike else ["not all were measured alike: see the protocols"]
