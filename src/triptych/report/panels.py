"""Which charts a run has: its curves put together by what they say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from triptych.report.best import BY_VALIDATION, Best
from triptych.report.chart import Chart, Line, drawing, in_words, legend, plain
from triptych.report.curves import Curve, Point
from triptych.report.measured import interval, is_share

VALIDATION, EVALUATION = "validation/", "evaluation/"
STANDARD_ERROR, ERROR = "_standard_error", "_error"
"""What the names of the standard errors of validations and of evaluations end with."""
_QUARTERS = tuple(f"_q{k}" for k in range(4))
_MOST_LINES = 8
_MOST_CHARTS = 24
_MOST_NEWEST = 10
"""Points of a line that are told in words too."""


@dataclass(frozen=True)
class Drawn:
    """A curve with the name that the legend gives it."""

    name: str
    curve: Curve
    errors: Curve | None = None
    "The standard error of each point."
    colour: int | None = None
    figure: str = ""
    "What is measured, where `name` does not say it."
    best: Best | None = None
    "The best checkpoint, where this curve decided it."


@dataclass(frozen=True)
class Panel:
    """A chart that is to be drawn."""

    title: str
    sentence: str
    curves: list[Drawn]
    unit: str = ""
    scale: float = 1.0
    "What values are divided by."
    from_zero: bool = False


@dataclass(frozen=True)
class Other:
    """How a number beside the losses is drawn."""

    title: str
    sentence: str
    unit: str = ""
    scale: float = 1.0
    "What values are divided by."
    from_zero: bool = False


def panels(curves: Mapping[str, Curve], best: Best | None = None) -> Iterator[Panel]:
    """The panels of a run's curves, the most telling first, with the best checkpoint on the curve that decided it."""
    decided = None if best is None else curves.get(deciding(curves, best))
    for panel in _panels(curves):
        yield replace(panel, curves=[replace(drawn, best=best) if drawn.curve is decided else drawn for drawn in panel.curves])


def deciding(curves: Mapping[str, Curve], best: Best) -> str:
    """The name of the curve by which the best checkpoint was chosen; "" where there is none."""
    if best.by == BY_VALIDATION:
        return next((name for name in curves if name.startswith(VALIDATION)), "")
    return f"{EVALUATION}{best.by.partition(' (')[0]}"


def _panels(curves: Mapping[str, Curve]) -> Iterator[Panel]:
    training = {name: curve for name, curve in curves.items() if not name.startswith((VALIDATION, EVALUATION)) and curve.drawn()}
    yield from _losses(training, curves)
    yield from _validations(curves)
    yield from _evaluations(curves)
    yield from _terms(training)
    yield from _quarters(training)
    for ending, other in OTHERS.items():
        found = [Drawn(_phase(name, ending) or other.title.lower(), curve) for name, curve in training.items() if _ends(name, ending)]
        yield Panel(other.title, other.sentence, found, other.unit, other.scale, other.from_zero)


OTHERS: Mapping[str, Other] = {
    "learning_rate": Other("Learning rate", "How large the optimizer's steps are; a schedule changes it over the run.", from_zero=True),
    "gradient_norm": Other("Gradient norm", "How steep the loss is at the weights; sudden peaks tell of an unstable training."),
    "log2_loss_scale": Other("Loss scale", "fp16 only: log2 of the factor on the loss; it falls by 1 at each overflow.", "log2"),
    "images_per_second": Other(
        "Speed", "Images that the training sees in a second, without grids and validations.", "images/s", from_zero=True
    ),
    "memory_bytes": Other(
        "Memory", "Of the GPU the largest amount so far, else the present memory of the main process.", "GB", 1e9, from_zero=True
    ),
}
"""By the end of its name."""


def _losses(training: Mapping[str, Curve], curves: Mapping[str, Curve]) -> Iterator[Panel]:
    losses = [Drawn(f"{_phase(name, 'loss')}{_also(training, name)}", curve) for name, curve in training.items() if _ends(name, "loss")]
    held_out = [
        Drawn(f"{_phase(name.removeprefix(VALIDATION), 'loss')}, held-out images", curve)
        for name, curve in curves.items()
        if name.startswith(VALIDATION) and _ends(name, "loss")
    ]
    several = len(losses) > 1
    sentence = (
        "What the networks make smaller. They work against one another, so the losses need not fall: judge by the grids."
        if several
        else "What the training makes smaller; lower is better. Where held-out images get worse, the model learns its images by heart."
    )
    yield Panel("Loss", sentence, losses + held_out)


def _validations(curves: Mapping[str, Curve]) -> Iterator[Panel]:
    found = []
    for name, curve in curves.items():
        short = name.removeprefix(VALIDATION)
        if name.startswith(VALIDATION) and not short.endswith((STANDARD_ERROR, *_QUARTERS)) and not _repeats(curves, name, curve):
            found.append(Drawn(short, curve, curves.get(f"{name}{STANDARD_ERROR}")))
    yield Panel("Validation", "The terms of the loss on images that are not trained on; bands are 95 % intervals.", found)


def _evaluations(curves: Mapping[str, Curve]) -> Iterator[Panel]:
    """A panel for each figure that is measured while the run is trained."""
    for name, curve in curves.items():
        if name.startswith(EVALUATION) and not name.endswith(ERROR):
            figure = name.removeprefix(EVALUATION)
            drawn = Drawn(figure, curve, curves.get(f"{name}{ERROR}"))
            yield Panel(f"Evaluation: {figure}", "Measured on samples while the run was trained; the band is a 95 % interval.", [drawn])


def _terms(training: Mapping[str, Curve]) -> Iterator[Panel]:
    aside = ("loss", *OTHERS)
    phases: dict[str, list[Drawn]] = {}
    for name, curve in training.items():
        phase, _, term = name.rpartition("/")
        if term not in aside and not term.endswith(_QUARTERS) and not _repeats(training, name, curve):
            phases.setdefault(phase, []).append(Drawn(term, curve))
    for phase, terms in phases.items():
        yield Panel(
            f"Terms of {phase}" if phase else "Further numbers", "What is measured beside the loss; some of it the loss is made of.", terms
        )


def _quarters(training: Mapping[str, Curve]) -> Iterator[Panel]:
    found = [
        Drawn(name.rpartition("/")[2], curve) for name, curve in training.items() if name.endswith(tuple(f"loss{q}" for q in _QUARTERS))
    ]
    yield Panel("Loss by noise level", "The loss in each quarter of the noise levels; q0 has the least noise.", found)


def _repeats(curves: Mapping[str, Curve], name: str, curve: Curve) -> bool:
    """Whether the term is the loss itself under another name."""
    phase = name.rpartition("/")[0]
    loss = curves.get(f"{phase}/loss")
    if name.endswith("/loss") or loss is None or loss.points != curve.points:
        return False
    return loss.newest == curve.newest or (math.isnan(loss.newest) and math.isnan(curve.newest))


def _also(curves: Mapping[str, Curve], loss: str) -> str:
    """The other name of a loss that has one, such as (mse) or (bits_per_dim), which says its unit."""
    phase = loss.rpartition("/")[0]
    terms = (name for name, curve in curves.items() if name.rpartition("/")[0] == phase and _repeats(curves, name, curve))
    return next((f" ({name.rpartition('/')[2]})" for name in terms), "")


def _ends(name: str, ending: str) -> bool:
    return name == ending or name.endswith(f"/{ending}")


def _phase(name: str, ending: str) -> str:
    return name.removesuffix(ending).rstrip("/")


def charts(found: Iterable[Panel], *, marks: Sequence[tuple[Point, str]] = ()) -> list[Chart]:
    """The charts of the panels that have something to show, on images and on time."""
    return [
        _chart(part, marks=marks)
        for panel in found
        for part in _parts(panel)
    ][:_MOST_CHARTS]  # fmt: skip


def _parts(panel: Panel) -> Iterator[Panel]:
    """The panel in pieces of no more lines than can be told apart; none where nothing was measured."""
    full = [drawn for drawn in panel.curves if drawn.curve.drawn()]
    for first in range(0, len(full), _MOST_LINES):
        title = panel.title if first == 0 else f"{panel.title} ({first // _MOST_LINES + 1})"
        yield replace(panel, title=title, curves=full[first : first + _MOST_LINES])


def _chart(panel: Panel, *, marks: Sequence[tuple[Point, str]]) -> Chart:
    seconds = max(point.seconds for drawn in panel.curves for point in drawn.curve.drawn())
    unit, size = time_unit(seconds)
    by_images = [_line(drawn, panel.scale, lambda point: point.images) for drawn in panel.curves]
    by_time = [_line(drawn, panel.scale, lambda point: point.seconds / size) for drawn in panel.curves]
    share = all(is_share(drawn.figure or drawn.name) for drawn in panel.curves)
    drawings = {
        "by-images": drawing(
            [
                replace(line, images=[point.images for point in drawn.curve.drawn()])
                for line, drawn in zip(by_images, panel.curves, strict=True)
            ],
            x_label="images seen",
            x_ticks="count",
            marks=[(point.images, text) for point, text in marks],
            from_zero=panel.from_zero,
            share=share,
        ),
        "by-time": drawing(
            by_time,
            x_label=f"{unit} of training",
            marks=[(point.seconds / size, text) for point, text in marks],
            from_zero=panel.from_zero,
            share=share,
        ),
    }
    rings = [(line.name, line.ring[2]) for line in by_images if line.ring is not None]
    notes = [f"ring: {f'{name}, ' if len(rings) > 1 else ''}{text}" for name, text in rings]
    newest = [(line.name, _newest(drawn, line)) for line, drawn in zip(by_images, panel.curves, strict=True)]
    return Chart(panel.title, panel.sentence, panel.unit, drawings, legend(by_images), notes + drawings["by-images"].remarks, newest)


def _line(drawn: Drawn, scale: float, along: Callable[[Point], float]) -> Line:
    points = drawn.curve.drawn()
    intervals = None
    if drawn.errors is not None:
        at = {point.images: point.value for point in drawn.errors.drawn()}
        found = [interval(drawn.figure or drawn.name, point.value, at.get(point.images)) for point in points]
        intervals = [None if ends is None else (ends[0] / scale, ends[1] / scale) for ends in found]
    newest = plain(drawn.curve.newest / scale)
    places = [(along(point), point.value / scale) for point in points]
    return Line(drawn.name, places, intervals, newest, colour=drawn.colour, ring=_ring(drawn, scale, along))


def _ring(drawn: Drawn, scale: float, along: Callable[[Point], float]) -> tuple[float, float, str] | None:
    """The place of the best checkpoint: at its own score, for a point of the curve may be a mean of several."""
    best, points = drawn.best, drawn.curve.drawn()
    if best is None or not points or best.images > points[-1].images:
        return None
    nearest = min(points, key=lambda point: abs(point.images - best.images))
    place = along(nearest._replace(images=best.images))
    return place, best.score / scale, f"the best checkpoint, {plain(best.score / scale)} at {best.images:,} images"


def _newest(drawn: Drawn, line: Line) -> list[tuple[str, str]]:
    """The last points in words: images seen, and the value with its interval."""
    intervals = line.intervals or [None] * len(line.points)
    rows = zip(drawn.curve.drawn(), line.points, intervals, strict=True)
    return [(f"{point.images:,}", in_words(value, ends)) for point, (_, value), ends in rows][-_MOST_NEWEST:]


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit in which so long a time is told, and its seconds."""
    if seconds < 300:
        return "seconds", 1.0
    return ("minutes", 60.0) if seconds < 3 * 3600 else ("hours", 3600.0)
