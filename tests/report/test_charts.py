"""Charts: that their labels can be read and say what is drawn, and that what is drawn is what was measured."""

from __future__ import annotations

import random
import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.report.html_pages import read_page
from tests.report.made_runs import evaluated, made_run
from triptych.evaluation.clip_metric import CLIP_METRICS
from triptych.evaluation.pair_metric import PAIR_METRICS
from triptych.evaluation.set_metric import SET_METRICS
from triptych.report.chart import LETTER, WIDTH, Line, Tick, colour_class, drawing
from triptych.report.curves import MOST_POINTS, Curve, Curves, Point
from triptych.report.intervals import interval_chart, shortened
from triptych.report.measured import Evaluation, Figure, evaluations, sign_of
from triptych.report.panels import charts, panels
from triptych.report.run_report import write_report
from triptych.report.sweeps import sweeps

SIZES = {"k": 1e3, "M": 1e6, "B": 1e9}


def read_label(label: str) -> float:
    """The number that a reader takes a label for."""
    factor = SIZES.get(label[-1], 1.0)
    return float(label.rstrip("kMB").replace(",", "")) * factor


def extent(tick: Tick, letter: float = 7.3) -> tuple[float, float]:
    """Where a label below an axis begins and ends, by the width of a digit in most fonts."""
    width = letter * len(tick.label)
    begin = tick.at - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[tick.anchor]
    return begin, begin + width


NARROW = [
    (-0.03121, -0.03119),
    (0.0, 790_000.0),
    (1_000_000.0, 1_000_059.0),
    (1.2345e12, 1.2345e12 + 6e7),
    (1_234.2, 1_236.4),
    (123_456.7, 123_456.76),
    (-4e-9, 3e-9),
    (999_000.0, 1_001_000.0),
]


@pytest.mark.parametrize(("low", "high"), NARROW)
def test_labels_fit_and_say_where_they_stand(low: float, high: float) -> None:
    drawn = drawing([Line("a", [(low, low), (high, high)])], x_label="x")
    counts = drawing([Line("a", [(low, 0.0), (high, 1.0)])], x_label="x", x_ticks="count")
    for ticks, least in ((drawn.y_ticks, 3), (drawn.x_ticks, 2), (counts.x_ticks, 2)):
        values = [read_label(tick.label) for tick in ticks]
        assert len(values) >= least and "e+" not in "".join(tick.label for tick in ticks)
        slopes = [(b - a) / (y.at - x.at) for (a, b), (x, y) in zip(pairwise(values), pairwise(ticks), strict=True)]
        assert slopes == pytest.approx([slopes[0]] * len(slopes), rel=0.02), [tick.label for tick in ticks]
    assert all(drawn.left - 6 - LETTER * len(tick.label) >= 0 for tick in drawn.y_ticks), "none begins left of the picture"
    for ticks in (drawn.x_ticks, counts.x_ticks):
        ends = [extent(tick) for tick in ticks]
        assert ends[0][0] >= 0 and ends[-1][1] <= WIDTH and all(a[1] < b[0] for a, b in pairwise(ends)), ends


def test_the_frame_begins_where_its_labels_end(tmp_path: Path) -> None:
    lines = [{"images": 100 * k, "time": k, "denoise/loss": 1e6 + k} for k in range(1, 60)]
    page = write_report(made_run(tmp_path / "a", lines=lines)).read_text("utf-8")
    left = re.search(r'class="frame" d="M(\d+) ', page)
    assert left is not None and int(left[1]) > 70 and f'x="{int(left[1]) - 6}"' in page


def test_counts_have_whole_ticks_and_none_below_zero() -> None:
    for x_ticks in ("count", "chosen"):
        for xs, labels in (((0,), ["0", "1"]), ((1, 2, 3), ["1", "2", "3"]), ((0, 4), ["0", "1", "2", "3", "4"])):
            drawn = drawing([Line("a", [(x, 0.5) for x in xs])], x_label="x", x_ticks=x_ticks)
            assert [tick.label for tick in drawn.x_ticks] == labels
    fractions = drawing([Line("a", [(1.0, 0.5), (2.5, 1.0)])], x_label="guidance")
    assert "1.5" in [tick.label for tick in fractions.x_ticks], "a setting need not be whole"


def test_steps_that_spread_far_stand_on_a_logarithmic_axis_at_what_was_measured() -> None:
    def drawn(*xs: float):
        return drawing([Line("a", [(x, 1.0 / x) for x in xs], dots=True)], x_label="steps", x_ticks="chosen")

    far, near = drawn(5, 10, 25, 50, 250), drawn(10, 20, 80)
    assert [tick.label for tick in far.x_ticks] == ["5", "10", "25", "50", "250"] and far.x_logarithmic
    at = [tick.at for tick in far.x_ticks]
    assert at[1] - at[0] == pytest.approx(at[3] - at[2], abs=0.2), "twice as many are as far apart anywhere"
    assert "steps on a logarithmic axis" in far.remarks
    assert not near.x_logarithmic and near.remarks == [] and [tick.label for tick in near.x_ticks] == ["20", "40", "60", "80"]
    crowded = drawn(*range(1, 300))
    ends = [extent(tick) for tick in crowded.x_ticks]
    assert len(ends) > 3 and all(a[1] < b[0] for a, b in pairwise(ends))


def heights(path: str) -> list[float]:
    return [float(place.split(" ")[1]) for place in path.strip("MZ").split("L")]


def test_shares_lie_between_0_and_1_in_pictures_too(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    for steps in (10, 20):
        evaluated(
            run, f"{steps}", {"precision": {"value": 0.02, "error": 0.02}, "kid": {"value": 0.02, "error": 0.02}}, sampler={"steps": steps}
        )
    precision, kid = sweeps({"": evaluations(run / "evaluations")[0]})
    assert precision.drawings["always"].shapes[0].dots[0][2] == "10: 0.02, 0 to 0.0592"
    assert kid.drawings["always"].shapes[0].dots[0][2] == "10: 0.02, -0.0192 to 0.0592"
    assert read_label(precision.drawings["always"].y_ticks[0].label) == 0 > read_label(kid.drawings["always"].y_ticks[0].label)
    bottom = precision.drawings["always"].y_ticks[0].at
    assert precision.drawings["always"].shapes[0].bars[0][1] == bottom == 210.0, "the bar ends on the axis"
    curve, error = Curve(), Curve()
    for k in range(4):
        curve.add(Point(k, k, 0.0))
        error.add(Point(k, k, 0.1))
    (chart,) = charts(panels({"evaluation/recall": curve, "evaluation/recall_error": error}))
    drawn = chart.drawings["by-images"]
    assert drawn.y_ticks[0].label == "0" and max(heights(drawn.shapes[0].band)) == 210.0
    (constant,) = charts(panels({"evaluation/recall": curve}))
    labels = [tick.label for tick in constant.drawings["by-time"].y_ticks]
    assert (labels[0], labels[-1]) == ("0", "1")


def test_a_chart_by_calls_is_no_copy_of_that_by_steps(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    for steps in (10, 20):
        evaluated(run, f"{steps}", {"fid": {"value": steps}}, sampler={"steps": steps}, network_calls=steps)
    evaluated(run, "old", {"fid": {"value": 5.0}}, sampler={"steps": 40})
    evaluated(run, "bits", {"bits-per-dim": {"value": 5.0}}, settings={"steps": 4})
    assert [chart.title for chart in sweeps({"": evaluations(run / "evaluations")[0]})] == ["fid by steps"]


def test_charts_tell_of_protocols_that_differ_where_they_are_drawn(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    for steps in (10, 20):
        evaluated(run, f"{steps}", {"fid": {"value": steps}}, sampler={"steps": steps}, count=100)
    evaluated(run, "other", {"fid": {"value": 5.0}}, sampler={"steps": 10}, count=200)
    note = "not all were measured alike: see the protocols"
    (chart,) = sweeps({"": evaluations(run / "evaluations")[0]})
    assert chart.notes == [] and chart.legend == [], "the other one is on no line"
    evaluated(run, "more", {"fid": {"value": 5.0}}, sampler={"steps": 20}, count=200)
    (chart,) = sweeps({"": evaluations(run / "evaluations")[0]})
    assert chart.notes == [note] and len(chart.legend) == 2


def test_of_several_runs_a_single_line_says_whose_it_is(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    for steps, value in ((10, 100.0), (20, 1.0)):
        evaluated(run, f"{steps}", {"fid": {"value": value}}, sampler={"steps": steps})
    (chart,) = sweeps({"none": [], "mine": evaluations(run / "evaluations")[0]})
    assert [(style, name) for style, name, _ in chart.legend] == [("c1", "mine")] and chart.notes == ["logarithmic axis"]


def test_the_steps_of_a_reference_are_not_those_of_the_run(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    for name, steps in (("one", 25), ("two", 50)):
        evaluated(run, name, {"fid": {"value": steps}}, reference={"settings": {"steps": steps}, "network_calls": 7})
    found, _ = evaluations(run / "evaluations")
    assert [(each.steps, each.calls) for each in found] == [(None, None)] * 2
    assert sweeps({"": found}) == [] and not found[0].same_protocol(found[1])
    evaluated(run, "one", {"fid": {"value": 1.0}}, reference={"settings": {"steps": 25}}, sampler={"steps": 5})
    assert 5 in [each.steps for each in evaluations(run / "evaluations")[0]]


def test_long_names_leave_room_for_the_figures() -> None:
    name = "a-very-long-name-of-a-run-on-celeba-hq-256-with-seed-1"
    chart = interval_chart("fid", "", [(0, name, Figure("fid", 12.3456, 0.123456)), (9, "b", Figure("fid", 2.0, None))])
    row, other = chart.rows
    assert row.name == name and row.short.startswith("a-very") and row.short.endswith("seed-1") and "…" in row.short
    assert 8 + 7.3 * len(row.short) < WIDTH - 12 - 7.3 * len(row.text)
    assert (other.short, other.style) == ("b", "c1 dashed")
    assert shortened("漢" * 30, 20) != "漢" * 30 and len(shortened("漢" * 30, 20)) <= 11, "wide letters count twice"
    assert shortened("\x1b" * 20, 30).startswith("\\x1b"), "what is shown is what is counted"


def test_the_ninth_run_is_told_from_the_first() -> None:
    assert len({colour_class(number) for number in range(16)}) == 16
    style = (Path(__file__).parents[2] / "src/triptych/report/templates/style.css").read_text()
    assert re.search(r"\.dashed \.swatch \{ background: none", style) and re.search(r"\.dashed \.dot \{ fill: var\(--card\)", style)


def resumed_log(seed: int, count: int) -> tuple[Curve, list[Point]]:
    """A curve that went back again and again, and the lines that hold in the end."""
    draw, curve, images = random.Random(seed), Curve(), 0
    lines: list[Point] = []
    for _ in range(count):
        images += 10
        lines.append(Point(images, images / 10, draw.random()))
        curve.add(lines[-1])
        if draw.random() < 0.01:
            images = max(0, images - draw.randrange(600))
            lines = [line for line in lines if line.images <= images]
            curve.resumed(images)
    return curve, lines


@pytest.mark.parametrize("seed", range(6))
def test_lines_that_still_hold_after_a_resume_are_in_the_curve(seed: int) -> None:
    curve, lines = resumed_log(seed, 6_000)
    assert curve.lines_each > 1 and len(curve.points) < MOST_POINTS
    groups = [lines[k : k + curve.lines_each] for k in range(0, len(lines), curve.lines_each)]
    means = [(group[-1].images, sum(line.value for line in group) / len(group)) for group in groups]
    assert [(point.images, point.value) for point in curve.drawn()] == [(at, pytest.approx(mean)) for at, mean in means]


def test_the_report_of_lines_that_were_lost() -> None:
    curve = Curve()
    for k in range(1, 1_001):
        curve.add(Point(10 * k, k, float(k)))
    assert curve.lines_each == 4
    curve.resumed(9_985)
    assert curve.points[-1].images == 9_960 and curve.drawn()[-1] == Point(9_980, 998, 997.5) and curve.newest == 998.0
    for k in (999, 1_000):
        curve.add(Point(10 * k, k, 0.0))
    assert curve.points[-1] == Point(10_000, 1_000, (997 + 998) / 4)


def test_a_resume_far_back_keeps_the_mean_where_the_run_went_on() -> None:
    curve = Curve()
    for k in range(1, 10_001):
        curve.add(Point(10 * k, k, float(k)))
    assert curve.lines_each == 32
    curve.resumed(50_005)
    before, last = curve.points[-2:]
    assert before.images == 49_920 and last.images == 50_005 and 4_993 < last.value < 5_024
    assert before.seconds < last.seconds < 5_024, "time does not go back there"
    curve.add(Point(50_010, 5_001, 1.0))
    assert curve.drawn()[-1] == Point(50_010, 5_001, 1.0)


def test_speeds_of_nothing_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"images": 1, "images_per_second": 0.0, "a/loss": 0.0}\n{"images": 2, "images_per_second": 5.0}\n')
    curves = Curves(path)
    curves.update()
    assert [point.value for point in curves.by_name["images_per_second"].points] == [5.0], "earlier versions wrote 0 at each start"
    assert [point.value for point in curves.by_name["a/loss"].points] == [0.0]


def test_figures_have_a_better_end() -> None:
    for names, sign in (
        (("fid", "fd-efficientnet-lite0", "kid", "copies", "bits-per-dim", "lpips", "warping-error"), 1),
        (("precision", "prdc-recall", "is", "is-10", "density", "ms-ssim", "class-accuracy", "authenticity"), -1),
        (("diversity", "sharpness", "near-equal", "x"), None),
    ):
        assert [sign_of(name) for name in names] == [sign] * len(names)
    known = (*SET_METRICS, *PAIR_METRICS, *CLIP_METRICS)
    assert [name for name in known if sign_of(name) is None] == ["diversity", "sharpness"], "of no other metric it is open"


def test_a_number_that_a_sentence_tells_is_not_told_twice(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    evaluated(run, "a", {"fid": {"value": 1.0, "images": 24, "few": "24 images, fewer than 2048", "other": 24}})
    (evaluation,), _ = evaluations(run / "evaluations")
    assert evaluation.figures[0].details == {"few": "24 images, fewer than 2048", "other": "24"}
    assert isinstance(evaluation, Evaluation) and "images 24" not in read_page(write_report(run)).text
