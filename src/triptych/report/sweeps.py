"""Quality against what it costs: the same figure by steps, by images seen, and by the settings of the sampler."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from triptych.report.chart import Chart, Line, drawing, legend
from triptych.report.measured import Evaluation, Figure, choices, differences, is_share, of_images, of_steps

_MOST_CHARTS = 18
_CALLS = "network calls"
Along = Callable[[Evaluation], float | None]


@dataclass(frozen=True)
class Against:
    """What a figure is drawn against."""

    title: str
    label: str
    sentence: str
    along: Along
    own: Callable[[str], bool]
    "Whether a name in a protocol is that of this axis; all else is alike on a line."
    ticks: Literal["number", "count", "chosen"] = "number"


_AGAINST = (
    Against(
        "steps",
        "steps",
        "More cost more time; a step of some samplers is several network calls.",
        lambda each: each.steps,
        of_steps,
        ticks="chosen",
    ),
    Against(
        _CALLS,
        "network calls for an image",
        "What an image costs: solvers with several calls a step, and guidance, are held against others at equal cost.",
        lambda each: each.calls,
        of_steps,
        ticks="chosen",
    ),
    Against(
        "images seen",
        "images seen by the weights",
        "How the figure changed in training.",
        lambda each: each.images_seen,
        of_images,
        ticks="count",
    ),
)


def sweeps(runs: Mapping[str, Sequence[Evaluation]]) -> list[Chart]:
    """A chart for each figure and cost of which a run has two places at least that differ in nothing else; bars are 95 % intervals.

    Such places are a line. Of several runs each has a colour.
    """
    return list(_charts(runs))[:_MOST_CHARTS]


def _charts(runs: Mapping[str, Sequence[Evaluation]]) -> Iterator[Chart]:
    names = dict.fromkeys(figure.name for found in runs.values() for each in found for figure in each.figures)
    numbers = dict.fromkeys(name for found in runs.values() for each in found for name in each.sampler if name != "steps")
    sampler = [_setting(name) for name in numbers]
    for name in names:
        for against in (*_AGAINST, *sampler):
            found = list(_lines(runs, name, against))
            measured = [each for _, group in found for each in group]
            if not found or (against.title == _CALLS and all(each.calls == each.steps for each in measured)):
                continue
            lines = [line for line, _ in found]
            drawn = drawing(lines, x_label=against.label, x_ticks=against.ticks, share=is_share(name))
            shown = legend(lines) if len(lines) > 1 or len(runs) > 1 else []
            alike = all(each.same_protocol(measured[0]) for each in measured)
            notes = drawn.remarks + ([] if alike else ["not all were measured alike: see the protocols"])
            yield Chart(f"{name} by {against.title}", against.sentence, "", {"always": drawn}, shown, notes)


def _setting(name: str) -> Against:
    return Against(name, name, "A setting of the sampler.", lambda each: each.sampler.get(name), lambda told: told == f"sampler.{name}")


def _lines(runs: Mapping[str, Sequence[Evaluation]], name: str, against: Against) -> Iterator[tuple[Line, Sequence[Evaluation]]]:
    """The lines of a figure, each with the evaluations that are its points."""
    found: list[tuple[str, int, list[Evaluation], list[tuple[float, Figure]]]] = []
    for place, (run, measured) in enumerate(runs.items()):
        alike: dict[tuple[tuple[str, str], ...], list[Evaluation]] = {}
        for each in measured:
            if against.along(each) is not None and any(_named(each, name)):
                alike.setdefault(tuple(sorted(choices(each, against.own).items())), []).append(each)
        for group in alike.values():
            known = [(x, figure) for each in group if (x := against.along(each)) is not None for figure in _named(each, name)]
            if len({x for x, _ in known}) > 1:
                found.append((run, place, group, sorted(known, key=lambda place: place[0])))
    words = differences([group[0] for _, _, group, _ in found], against.own)
    for (run, place, group, places), how in zip(found, words, strict=True):
        line = Line(
            name=": ".join(filter(None, (run, how))),
            points=[(x, figure.value) for x, figure in places],
            intervals=[figure.interval for _, figure in places],
            dots=True,
            colour=place if len(runs) > 1 else None,
        )
        yield line, group


def _named(evaluation: Evaluation, name: str) -> Iterator[Figure]:
    yield from (figure for figure in evaluation.figures if figure.name == name and math.isfinite(figure.value))
