"""The page of a run: what it says, and that no file of the run is too strange for it."""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import triptych.report
from tests.report.html_pages import read_page
from tests.report.made_runs import LINES, LOG, evaluated, made_run
from triptych.cli.main import main
from triptych.core.errors import CheckpointError
from triptych.recipes.catalogue import load_recipe
from triptych.report.chart import Line, drawing
from triptych.report.comparison import comparison_page
from triptych.report.curves import MOST_POINTS, Curves
from triptych.report.facts import commands, facts_of
from triptych.report.grids import Pictures, _embedded, evenly, picture
from triptych.report.growing import GrowingFile
from triptych.report.measured import Evaluation, Figure, evaluations
from triptych.report.panels import charts, panels
from triptych.report.run_report import RunReader, report_page, write_report
from triptych.report.sweeps import sweeps

OLD_FORM = {
    "format": 1,
    "checkpoint": {"images": 250, "weights": "ema-0.999", "hash": "ab"},
    "metrics": {"bits-per-dim": {"settings": {"steps": 25}, "bits_per_dim": 2.476912, "standard_error": 0.0268, "log_prob": -439.5148}},
    "images": 90,
    "seconds": 1.5,
}


def test_the_page_of_a_run_says_what_its_files_say(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", changes={"train": {"batch_size": 48}})
    evaluated(run, "one", {"kid": {"value": 0.01234567, "error": 0.002, "details": {"kid_subset_size": 1000}}}, network="inception", seed=3)
    (run / "evaluations/old.json").write_text(json.dumps(OLD_FORM))
    page = read_page(write_report(run))
    assert page.values == [0.01234567, 0.002, 2.476912, 0.0268]
    for said in ("1,371,233", "adm-digits", "250", "of 40,000 images seen (1 %)", "begun again", "1.07 GB", "went on at 200 images"):
        assert said in page.text, said
    for said in ("0.008426 to 0.01627", "2.424 to 2.529", "log_prob -439.5", "kid_subset_size 1,000", "inception"):
        assert said in page.text, said
    assert re.search(r"train\.batch_size\s*48\s*64", page.text), "a setting, its value, and the recipe's"
    assert 'd="M52 10V210H408"' in (run / "report.html").read_text("utf-8"), "the frame of a chart"
    assert "stopped by SIGTERM" in page.text and "warning: few images" in page.text
    shown = re.search(r"(?<!\d)0:1[02]\b(?!:)", page.text)  # it is a time of day too, where the page says when it was written
    assert not shown, "lines of losses and of progress are no events"
    assert page.text.count("data:image") == 0 and page.tags.count("img") == 3, "the newest grid, and both to choose from"
    assert f"triptych train {run} --train.total-images 80000" in page.text


def test_numbers_that_are_spelled_in_another_way_are_the_same(tmp_path: Path) -> None:
    mults = load_recipe("adm-digits").model.network.channel_mult  # type: ignore[attr-defined]
    run = made_run(tmp_path / "a", changes={"model": {"network": {"channel_mult": [float(mult) for mult in mults]}}})
    facts = facts_of(run)
    assert "model.network.channel_mult" in {setting.name for setting in facts.settings}
    assert "model.network.channel_mult" not in {setting.name for setting in facts.differing}


@pytest.mark.parametrize(("name", "interval"), [("precision", (0.0, 0.206)), ("kid", (-0.186, 0.206)), ("class_accuracy", (0.0, 0.206))])
def test_the_interval_of_a_share_ends_where_shares_do(name: str, interval: tuple[float, float]) -> None:
    assert Figure(name, 0.01, 0.1).interval == pytest.approx(interval)
    assert Figure("recall", 0.99, 0.1).interval == pytest.approx((0.794, 1.0))
    assert Figure("precision", 5.0, 1.0).interval == pytest.approx((3.04, 6.96)), "of another program, in per cent"


def test_the_page_says_what_chose_the_best_checkpoint(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    chosen: tuple[tuple[int, object], ...] = (
        (100, {"best": {"score": 0.0625, "images": 100}}),
        (200, {"best": {"score": 0.5, "images": 200, "by": "kid (40 samples, seen by x)"}}),
    )
    for number, state in chosen:
        place = run / "checkpoints" / f"{number:09d}"
        place.mkdir(parents=True)
        (place / "state.json").write_text(json.dumps(state))
        page = read_page(write_report(run))
        by = "loss on held-out images" if number == 100 else "kid (40 samples, seen by x)"
        assert re.search(rf"{re.escape(by)}: the best checkpoint, at {number}\s*{'0.0625' if number == 100 else '0.5'}", page.text)
    huge = f'{{"best": {{"score": 1{"0" * 400}, "images": 200}}}}'
    for strange in ('{"best": null}', "[]", '{"best": {"score": NaN, "images": 200}}', '{"best": {"score": "0.5", "images": 200}}', huge):
        (place / "state.json").write_text(strange)
        assert "the best checkpoint" not in read_page(write_report(run)).text
    (place / "state.json").write_text("{")
    assert "loss on held-out images: the best checkpoint, at 100" in read_page(write_report(run)).text, "that before the damaged one"


def test_a_run_without_anything_has_a_page_too(tmp_path: Path) -> None:
    page = read_page(write_report(made_run(tmp_path / "a", lines=(), log="", grids=())))
    for said in ("no grids of samples", "metrics.jsonl has no lines", "Nothing was measured yet", "has no log"):
        assert said in page.text
    assert "Begin, for nothing is saved yet." in page.text and "Go on where it stopped" not in page.text
    (tmp_path / "a/config.json").write_text("{")
    page = read_page(write_report(tmp_path / "a", tmp_path / "deep/other.html"))
    assert "config.json is damaged" in page.text
    assert "triptych report " in page.text and "triptych train " not in page.text, "which would refuse it"
    (tmp_path / "a/config.json").write_text(
        '{"format": 1, "model": {"kind": ["x"]}, "data": 3, "spec": [], "train": {"total_images": "x"}}'
    )
    read_page(write_report(tmp_path / "a"))


def test_what_comes_from_files_is_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\x1b[2J\u202e\"'><img src=http://x onerror=y>"
    lines = [*LINES, {"images": 300, f"{evil}/loss": 1.0, f"{evil}/{evil}": 2.0, f"validation/{evil}": 3.0}]
    log = f"2026-01-02 03:04:05 warning: {evil}\n2026-01-02 03:04:05 {evil} goes on at 2 images: run {evil}, 5 parameters, \n"
    run = made_run(tmp_path / "<b>&'\"run", lines=lines, log=log, class_names=(evil, "b"))
    evaluated(run, "<i>", {evil: {"value": 1.0, "error": None, "details": {evil: evil}}}, **{evil: evil})
    text = write_report(run).read_text("utf-8").replace("https://", "").replace("http://", "")
    page = read_page(text)
    assert "\x1b" not in text and "\u202e" not in text and "<script>alert" not in text and "<img src=" not in text
    assert page.text.count("<script>alert(1)</script>\\x1b[2J\\u202e") >= 6
    assert "<b>&'\"run" in page.text


def test_damaged_files_are_a_line_each(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", grids=(100, 200, 300))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('garbage\n{"images": 260, "denoise/loss": "nan", "time": 5.5}\n[1]\n{"images": 270, "denoise/lo')
    samples = run / "samples"
    (samples / "000000300.png").write_bytes((samples / "000000200.png").read_bytes()[:300])
    os.truncate(samples / "000000200.png", 101_000_000)
    os.mkfifo(samples / "000000400.png")
    folder = run / "evaluations"
    folder.mkdir()
    for name, text in {
        "a": "{",
        "b": "[]",
        "c": '{"figures": {"kid": {"value": "much"}}}',
        "d": "{}",
        "e": '{"figures": {"x": {}}}',
    }.items():
        (folder / f"{name}.json").write_text(text)
    (folder / "f.json").mkdir()
    page = read_page(write_report(run))
    assert "metrics.jsonl has 2 damaged lines, left out" in page.text
    assert "metrics.jsonl has 1 value not finite" in page.text
    assert "000000300.png cannot be shown: it is damaged" in page.text
    assert "000000200.png cannot be shown: it has 101 MB, more than 67" in page.text
    assert "000000400.png cannot be shown: not a regular file" in page.text
    assert all(f"evaluations/{name}.json cannot be read" in page.text for name in "abcdef")


def test_a_long_log_becomes_a_short_curve(tmp_path: Path) -> None:
    lines = [{"images": k, "time": k / 10, "denoise/loss": float(k % 10)} for k in range(1, 3_001)]
    run = made_run(tmp_path / "a", lines=lines)
    whole = RunReader(run)
    whole.update()
    (curve,) = whole.curves.by_name.values()
    assert MOST_POINTS / 2 <= len(curve.points) < MOST_POINTS and curve.lines_each == 8
    values = np.array([line["denoise/loss"] for line in lines])
    assert [point.value for point in curve.points] == pytest.approx(values.reshape(-1, 8).mean(1))
    assert [point.images for point in curve.points] == list(range(8, 3_001, 8)) and whole.images_seen == 3_000
    # read piece by piece, as in training, it is the same
    path = tmp_path / "piecewise.jsonl"
    pieces, text = Curves(path), (run / "metrics.jsonl").read_text()
    for first in range(0, len(text), 7_001):
        with path.open("a") as file:
            file.write(text[first : first + 7_001])
        pieces.update()
    assert pieces.by_name == whole.curves.by_name and pieces.notes == []


def test_a_line_without_end_does_not_hold_up_the_others(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * (2**20 + 10) + b"\ny\nhalf")
    file = GrowingFile(path)
    assert [len(line) for line in file.lines()] == [2**20, 10, 1] and list(file.lines()) == []
    path.write_bytes(path.read_bytes() + b" and half\r\n")
    assert list(file.lines()) == ["half and half"]
    short = GrowingFile(path, most=20)
    assert list(short.lines()) == ["y", "half and half"], "what is left of a line is none"
    assert short.left_out == path.stat().st_size - len(b"y\nhalf and half\r\n")
    path.write_bytes(path.read_bytes() + b"012345678\n987654321\n")
    assert list(short.lines()) == ["012345678", "987654321"], "of what is new 20 bytes are not too many"


def test_the_middle_of_a_long_log_is_left_out_and_counted(tmp_path: Path) -> None:
    warnings = [f"2026-01-02 04:{k // 60:02}:{k % 60:02} warning: number <{k}>" for k in range(250)]
    passed_over = "2026-01-02 05:00:00 300/1,000 images  50 images/s  loss 0.5"
    reader = RunReader(made_run(tmp_path / "a", log="\n".join((LOG.splitlines()[0], *warnings, passed_over, ""))))
    reader.update()
    found = reader.happenings
    assert found.counts == {"start": 1, "warning": 250} and (len(found.shown), found.left_out) == (200, 51)
    text = read_page(report_page(reader)).text
    numbers = [int(number) for number in re.findall(r"warning: number <(\d+)>", text)]
    assert numbers == [*range(29), *range(80, 250)], "beside the start, which is the first of all"
    before, after = text.split("51 lines are left out here")
    assert "<28>" in before and "<80>" not in before and "<80>" in after and "<28>" not in after


def test_what_came_after_a_resume_counts(tmp_path: Path) -> None:
    reader = RunReader(made_run(tmp_path / "a"))
    reader.update()
    assert [point[:] for point in reader.curves.by_name["denoise/loss"].drawn()] == [(100, 2.0, 0.5), (250, 5.0, 0.25)]
    assert reader.images_per_second == 45.0 and reader.memory_bytes == 2**30 and reader.images_seen == 250
    assert reader.best is None, "there is no checkpoint"


def test_names_without_end_are_bounded(tmp_path: Path) -> None:
    lines = [{"images": k, f"name{k}": 1.0} for k in range(1, 1_000)]
    page = read_page(report_page(RunReader(made_run(tmp_path / "a", lines=lines))))
    assert "more than 300 names" in page.text and page.text.count("Further numbers") == 24


def test_grids_are_chosen_evenly_and_stay_chosen() -> None:
    numbers = [(k, Path(str(k))) for k in range(100)]
    assert [k for k, _ in evenly(numbers, 5)] == [0, 32, 64, 96, 99]
    assert [k for k, _ in evenly(numbers[:97], 5)] == [0, 32, 64, 96]
    assert [k for k, _ in evenly(numbers[:3], 5)] == [0, 1, 2] and evenly([], 5) == []


def test_how_many_grids_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    for k in range(13):
        Image.new("L", (4, 4)).save(tmp_path / "samples" / f"{k:09}.png")
    (series,) = Pictures().of_run(tmp_path)
    assert (len(series.frames), series.left_out) == (7, 6) and series.frames[-1].images_seen == 12


def test_large_pictures_are_made_smaller(tmp_path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (150, 210, 3), dtype=np.uint8).repeat(10, 0).repeat(10, 1)).save(
        tmp_path / "a.png"
    )
    shown = picture(tmp_path / "a.png")
    assert (shown.width, shown.height) == (1024, 731) and shown.uri.startswith("data:image/jpeg;base64,") and not shown.sharp
    assert (shown.shown_width, shown.shown_height) == (560, 400)
    Image.new("L", (16, 160)).save(tmp_path / "tall.png")
    tall = picture(tmp_path / "tall.png")
    assert tall.sharp and (tall.shown_width, tall.shown_height) == (64, 640)
    Image.new("1", (8_200, 8_200)).save(tmp_path / "b.png")
    assert "8200 x 8200 pixels, more than 67,108,864" in (picture(tmp_path / "b.png").fault or "")


def test_axes_hold_the_lines_at_round_numbers() -> None:
    drawn = drawing([Line("a", [(0, 0.0), (50, 1.0), (100, 2.0)])], x_label="images")
    assert [tick.label for tick in drawn.x_ticks] == ["0", "20", "40", "60", "80", "100"]
    assert drawn.shapes[0].path == "M52 200.9L230 110L408 19.1" and not drawn.logarithmic, "from corner to corner, with a margin of 5 %"
    logarithmic = drawing([Line("a", [(0, 1.0), (1, 10.0), (2, 100.0)])], x_label="images")
    heights = [float(place.split(" ")[1]) for place in logarithmic.shapes[0].path[1:].split("L")]
    assert logarithmic.logarithmic and heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.2)
    spiked = drawing([Line("a", [(k, 1e6 if k == 50 else 0.1 * (k % 7) - 0.2) for k in range(100)])], x_label="images")
    assert spiked.cut == 1 and len({place.split(" ")[1] for place in spiked.shapes[0].path.split("L")}) == 8


def test_evaluations_that_can_be_compared_share_a_table(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    for name, count, steps in (("a", 100, 10), ("b", 100, 50), ("c", 200, 50)):
        evaluated(
            run, name, {"kid": {"value": 1 / steps, "error": 0.001}}, counts={"reference": count}, sampling={"steps": steps}, seconds=steps
        )
    found, notes = evaluations(run / "evaluations")
    assert notes == [] and [each.steps for each in found] == [10, 50, 50]
    a, b, c = found
    assert a.same_protocol(b) and not a.same_protocol(c)
    for steps in (25, 50):
        metric = OLD_FORM["metrics"]["bits-per-dim"] | {"settings": {"steps": steps, "likelihood": "bound"}}
        (tmp_path / f"{steps}.json").write_text(json.dumps(OLD_FORM | {"metrics": {"bits-per-dim": metric}}))
    (few, many), _ = evaluations(tmp_path)
    assert few.same_protocol(many) and (few.steps, many.steps, few.images_seen) == (25, 50, 250)
    page = read_page(write_report(run))
    assert page.tags.count("data") == 6 and page.text.count("how it was measured") == 3
    assert "kid by steps" in page.text and "kid by seconds" not in page.text


def test_what_makes_figures_comparable() -> None:
    def of(**protocol: str) -> Evaluation:
        return Evaluation("one.json", (), {name.replace("__", "."): value for name, value in protocol.items()}, None, None)

    run = of(reference__weights__hash="a", reference__seed="0", reference__settings__steps="5", reference__precision="float32")
    for name, other in (("weights__hash", "b"), ("seed", "7"), ("settings__steps", "25"), ("precision", "bf16")):
        assert not run.same_protocol(Evaluation("", (), {**run.protocol, f"reference.{name.replace('__', '.')}": other}, None, None)), name
    here, there = (of(reference__sha256="a", reference__path=path, reference_name=path) for path in ("photos", "/abs/photos"))
    assert here.same_protocol(there)
    assert not of(reference__path="a").same_protocol(of(reference__path="b")), "nothing else says what it is"
    assert not of(made__labels="3").same_protocol(of()) and not of(made__inputs="held-out images").same_protocol(of())
    assert of(made__weights="3").same_protocol(of())
    few, many = of(bits__steps="250"), of(bits__steps="1000")
    assert few.same_protocol(many) and not few.same_protocol(many, steps=True)


@pytest.mark.parametrize("name", ["copies", "authenticity", "mean-iou", "recall"])
def test_the_interval_of_a_share_ends_at_0_and_1(name: str) -> None:
    assert Figure(name, 0.004, 0.0028).interval == (0.0, pytest.approx(0.0095, abs=1e-4))
    assert Figure("kid", 0.004, 0.0028).interval == (pytest.approx(-0.0015, abs=1e-4), pytest.approx(0.0095, abs=1e-4))


def test_a_sweep_is_shown_once(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    parts = []
    for scale in (1.0, 2.0, 4.0):
        figures = {"kid": {"value": scale / 100, "error": 0.001, "pairs": [1, 2], "details": {"count": 5}}}
        protocol = {"sampler": {"steps": 10, "guidance_scale": scale}, "weights": {"images": 100}, "seed": 0}
        parts.append(
            {"setting": "guidance-scale", "value": scale, "figures": figures, "missing": {"fid": "no network"}, "protocol": protocol}
        )
    for k, part in enumerate(parts[:2]):
        evaluated(run, f"one{k}", part["figures"], **part["protocol"])
    (run / "evaluations/sweep.json").write_text(json.dumps({"format": 1, "sweep": parts}))
    page = read_page(write_report(run))
    assert sorted(page.values) == [0.001, 0.001, 0.001, 0.01, 0.02, 0.04], "of two there are files of their own"
    assert "kid by guidance_scale" in page.text and "kid by steps" not in page.text
    assert page.text.count("fid is missing: no network") == 1 and "count 5" in page.text and "pairs" not in page.text


def test_rows_of_a_table_say_what_they_have_otherwise(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    for weights, scale in (("raw", 1.0), ("ema-0.999", 1.0), ("raw", 4.0)):
        made_by = {"weights": {"weights": weights, "hash": f"{weights}{scale}"}, "sampler": {"steps": 10, "guidance_scale": scale}}
        evaluated(run, f"{weights}{scale}", {"kid": {"value": 0.01, "error": 0.001}}, **made_by, seconds=scale)
    text = re.sub(r"\s+", " ", read_page(write_report(run)).text)
    for said in ("weights raw, guidance_scale 1.0", "weights ema-0.999, guidance_scale 1.0", "weights raw, guidance_scale 4.0"):
        assert text.count(f"how it was measured: {said}") == 1 and text.count(said) >= 2, said
    assert "hash" not in text.split("how it was measured")[0], "what nobody chose tells no rows apart"


def test_what_is_told_of_each_evaluation_of_a_table_says_which_it_is(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    for k, (name, steps) in enumerate((("kid", 10), ("recall", 10), ("kid", 25))):
        evaluated(run, str(k), {name: {"value": 0.01, "error": 0.001}}, sampler={"steps": steps}, weights={"images": 2_000})
    text = re.sub(r"\s+", " ", read_page(write_report(run)).text)
    for said in ("kid, 2,000 images seen, 10 steps", "recall, 2,000 images seen, 10 steps", "kid, 2,000 images seen, 25 steps"):
        assert text.count(f"how it was measured: {said}") == 1, said


def test_a_line_joins_what_differs_by_its_axis_alone(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")

    def measure(images: int, steps: int) -> None:
        """A run's own protocol says it twice, and where the run was."""
        weights, sampler = {"weights": "raw", "images": images, "hash": f"{images}"}, {"steps": steps}
        made = {"kind": "run", "path": f"runs/{steps}", "weights": weights, "settings": sampler}
        evaluated(run, f"{images}-{steps}", {"fid": {"value": 1.0 + steps, "error": 0.1}}, made=made, weights=weights, sampler=sampler)

    for images, steps in ((10_000, 50), (100_000, 10), (100_000, 20)):
        measure(images, steps)
    (chart,) = sweeps({"": evaluations(run / "evaluations")[0]})
    (shape,) = chart.drawings["always"].shapes
    assert chart.title == "fid by steps" and [text.partition(":")[0] for *_, text in shape.dots] == ["10", "20"]
    assert shape.dots[0][2] == "10: 11, 10.8 to 11.2", "the interval of 95 %, as the table has it"
    measure(10_000, 10)
    charts = {chart.title: chart for chart in sweeps({"": evaluations(run / "evaluations")[0]})}
    assert charts.keys() == {"fid by steps", "fid by images seen"}
    assert [name for _, name, _ in charts["fid by steps"].legend] == ["images 10,000", "images 100,000"]
    assert charts["fid by images seen"].legend == []


def test_figures_are_drawn_by_network_calls_where_these_are_not_the_steps(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")

    def measure(sampler: str, steps: int, calls: int) -> None:
        settings = {"sampler": sampler, "steps": steps}
        figures = {"fid": {"value": 1.0 + steps, "error": 0.1}}
        evaluated(run, f"{sampler}-{steps}", figures, sampler=settings, network_calls=calls)

    for steps in (10, 20):
        measure("ddim", steps, steps)
    assert [chart.title for chart in sweeps({"": evaluations(run / "evaluations")[0]})] == ["fid by steps"]
    for steps in (10, 20):
        measure("heun", steps, 2 * steps - 1)
    charts = {chart.title: chart for chart in sweeps({"": evaluations(run / "evaluations")[0]})}
    drawn = charts["fid by network calls"].drawings["always"].shapes
    assert sorted(text.partition(":")[0] for shape in drawn for *_, text in shape.dots) == ["10", "19", "20", "39"]
    assert [name for _, name, _ in charts["fid by network calls"].legend] == ["sampler ddim", "sampler heun"]


def test_held_out_images_that_get_worse_stay_on_the_chart() -> None:
    training = Line("training", [(k, 0.1 + 0.004 * (k % 2)) for k in range(400)])
    held_out = Line("held out", [(80 * k, 0.1 + 0.07 * k) for k in range(5)])
    drawn = drawing([training, held_out], x_label="images")
    assert drawn.cut == 0 and len({place.split(" ")[1] for place in drawn.shapes[1].path.split("L")}) == 5


def test_ticks_of_a_narrow_range_can_be_told_apart() -> None:
    for low, high in ((1_000.0, 1_000.9), (3.4512, 3.4519), (1e8, 1.0005e8)):
        for ticks in ("number", "count"):
            labels = [tick.label for tick in drawing([Line("a", [(low, 0.0), (high, 1.0)])], x_label="x", x_ticks=ticks).x_ticks]
            assert len(labels) > 2 and len(set(labels)) == len(labels), labels


def test_the_most_memory_is_that_of_a_line_and_not_of_a_mean(tmp_path: Path) -> None:
    lines = [{"images": k, "time": float(k), "memory_bytes": 2**33 if k == 700 else 2**30} for k in range(1, 2_000)]
    reader = RunReader(made_run(tmp_path / "a", lines=lines))
    reader.update()
    assert reader.memory_bytes == 2**33


def test_a_past_that_was_given_up_leaves_neither_marks_nor_time(tmp_path: Path) -> None:
    lines = [{"images": 100 * k, "time": 3_600.0 * k, "denoise/loss": 1.0} for k in range(1, 6)]
    reader = RunReader(made_run(tmp_path / "a", lines=[*lines, {"resumed_at": 500}, {"resumed_at": 200}]))
    reader.update()
    assert reader.curves.resumed_at == [200] and (reader.curves.images_seen, reader.curves.seconds) == (200, 7_200.0)


def test_two_resumes_at_one_place_are_one_mark(tmp_path: Path) -> None:
    reader = RunReader(made_run(tmp_path / "a", lines=[*LINES, {"resumed_at": 250}, {"resumed_at": 250}]))
    reader.update()
    assert reader.curves.resumed_at == [200, 250]


def test_the_newest_value_after_a_resume_is_that_of_a_line_and_not_of_a_mean(tmp_path: Path) -> None:
    """A curve of 500 lines has points of two each; the run goes on where a point ends, and where one has begun."""
    lines = [{"images": k, "time": float(k), "denoise/loss": k / 1000} for k in range(1, 501)]
    for kept in (400, 399):
        reader = RunReader(made_run(tmp_path / f"{kept}", lines=[*lines, {"resumed_at": kept}]))
        reader.update()
        curve = reader.curves.by_name["denoise/loss"]
        assert curve.lines_each == 2 and curve.newest == kept / 1000


def test_of_thousands_of_resumes_the_newest_hundred_are_marked(tmp_path: Path) -> None:
    lines = [line for k in range(1, 500) for line in ({"images": 10 * k, "time": float(k), "denoise/loss": 1.0}, {"resumed_at": 10 * k})]
    page = read_page(write_report(made_run(tmp_path / "a", lines=lines)))
    marks = re.findall(r"went on at ([\d,]+) images", page.text)
    assert len(set(marks)) == 100 and {"4,000", "4,990"} <= set(marks) and "3,990" not in marks


def test_a_loss_that_is_not_finite_is_no_term_beside_itself(tmp_path: Path) -> None:
    lines = [{"images": k, "time": 1.0, "denoise/loss": value, "denoise/mse": value} for k, value in ((1, 1.0), (2, "nan"))]
    page = read_page(write_report(made_run(tmp_path / "a", lines=lines)))
    assert "Loss (denoise)" not in page.text and "Terms of denoise" not in page.text and "(mse)" in page.text


def test_checkpoints_that_may_not_be_read_do_not_stop_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(folder: Path) -> list[int]:
        raise CheckpointError(f"{folder}: Permission denied")

    for name in ("list_checkpoints", "best_checkpoint"):
        monkeypatch.setattr(f"triptych.report.run_report.{name}", refused)
    page = read_page(write_report(made_run(tmp_path / "a")))
    assert "triptych train" in page.text and "triptych sample" not in page.text


def test_the_page_is_begun_with_few_pictures_and_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made_run(tmp_path / "a", grids=())
    for k in range(12):
        evaluated(run, f"e{k:02}", {"kid": {"value": 0.1}})
        Image.new("L", (8, 8), k).save(run / f"evaluations/e{k:02}.png")
    made: list[str] = []
    monkeypatch.setattr("triptych.report.grids._embedded", lambda path, embedded=_embedded: made.append(path.name) or embedded(path))
    reader = RunReader(run)
    pages = [report_page(reader) for _ in range(2)]
    assert made == [f"e{k:02}.png" for k in range(4, 12)] and pages[0].count("<img") == pages[1].count("<img") == 8


@pytest.mark.parametrize(
    ("recipe", "there", "absent"),
    [
        ("stylegan2-digits", ["evaluate {run} --metrics frechet"], []),
        ("glow-digits", ["evaluate {run}"], ["--metrics frechet"]),
        ("funit-omniglot", ["translate {run} INPUT --style IMAGES --out made"], []),
        ("fs-vid2vid-faceforensics", ["translate {run} INPUT --style IMAGES --out made"], []),
        ("spade-camvid", ["translate {run} INPUT --out made", "evaluate {run} --metrics frechet"], ["--style"]),
        ("classifier-digits", ["sample OTHER --guide {run} --out grid.png"], ["evaluate", "--count"]),
        ("upsample-digits", ["sample {run} --base IMAGES --out large.png", "evaluate {run}"], ["--count"]),
    ],
)
def test_the_commands_are_those_that_work(tmp_path: Path, recipe: str, there: list[str], absent: list[str]) -> None:
    run = made_run(tmp_path / "a", recipe=recipe)
    lines = [command.line for command in commands(facts_of(run), trained=True)]
    for wanted in there:
        assert f"triptych {wanted.format(run=run)}" in lines, lines
    assert not [line for line in lines for word in absent if word in line]
    document = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(document | {"spec": document["spec"] | {"latents": {"image_size": 256}}}))
    assert f"triptych evaluate {run}" not in [command.line for command in commands(facts_of(run), trained=True)]


def test_a_page_that_is_made_from_within_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made_run(tmp_path / "a")
    monkeypatch.chdir(run)
    page = read_page(write_report("."))
    assert f"triptych train {run}" in page.text and re.search(rf"folder\s*{run}", page.text)


def test_a_run_of_an_earlier_version_is_known(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    document = json.loads((run / "config.json").read_text())
    document["model"]["kind"] = "triptych.diffusion.adm:ADMConfig"
    for name in ("background", "profiles", "order"):
        del document["data"][name]
    (run / "config.json").write_text(json.dumps(document))
    facts = facts_of(run)
    assert "sample" in facts.verbs and {each.name for each in facts.differing} <= {"data.background", "data.profiles", "data.order"}


def test_latents_and_clips_are_called_so(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    document = json.loads((run / "config.json").read_text())
    for spec, said in (
        (
            {"image_size": 32, "channels": 4, "latents": {"image_size": 256}},
            "latents of 32 x 32 and 4 channels, of images of 256 x 256 pixels",
        ),
        (
            {"image_size": 4, "width": 8, "channels": 1, "num_classes": 1, "latents": {"image_size": 32, "width": 64}},
            "latents of 4 x 8 and 1 channel, of images of 32 x 64 pixels, 1 class",
        ),
        ({"image_size": 64, "channels": 3, "clip_length": {"first": 4, "most": 16}}, "64 x 64 pixels, RGB, clips of up to 16 frames"),
        ({"image_size": 8, "channels": 5, "clip_length": {"most": 1}}, "8 x 8 pixels, 5 channels, clips of up to 1 frame, no"),
    ):
        (run / "config.json").write_text(json.dumps(document | {"spec": spec}))
        assert facts_of(run).images.startswith(said)


def test_the_percentage_is_whole_at_the_end_alone(tmp_path: Path) -> None:
    for seen, percent in ((399, 1), (39_900, 99), (40_000, 100), (50_000, 100)):
        page = read_page(write_report(made_run(tmp_path / f"{seen}", lines=[{"images": seen, "time": 1.0, "denoise/loss": 1.0}])))
        assert f"images seen ({percent} %)" in page.text


def test_figures_measured_in_training_have_curves(tmp_path: Path) -> None:
    lines = [*LINES, {"images": 260, "time": 6.0, "evaluation/kid": 0.1, "evaluation/kid_error": 0.01, "evaluation/near-equal": 0.0}]
    page = read_page(write_report(made_run(tmp_path / "a", lines=lines)))
    assert "Evaluation: kid" in page.text and "Evaluation: near-equal" in page.text and "kid_error" not in page.text
    assert "What was measured in training stands under" in page.text and "Nothing was measured yet" not in page.text


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "a")
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"report: {run}/report.html (open it in a browser)\n"
    assert main(["report", str(run), "--out", str(tmp_path / "x.html")]) == 0
    assert (tmp_path / "x.html").exists()
    capsys.readouterr()
    for given, said in {
        (str(tmp_path / "none"),): f"no run in {tmp_path / 'none'}: there is no config.json",
        (str(tmp_path),): f"no run in {tmp_path}: there is no config.json; it holds the runs a (triptych runs {tmp_path} shows them)",
        (str(run), "--out", "x.pdf"): "--out: got 'x.pdf', expected a name that ends with .html",
        (
            str(run),
            "--out",
            str(run / "log.txt/x.html"),
        ): f"cannot write {run}/log.txt/x.html: {run}/log.txt is a file; choose another --out",
        (): "no run given; usage: triptych report RUN [--out FILE.html]",
    }.items():
        assert main(["report", *given]) == 2
        assert capsys.readouterr().err == f"triptych: error: {said}\n"


def test_a_page_that_cannot_be_written_in_the_run_may_lie_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "a")
    (run / "report.html").mkdir()  # as a disk that is read only: tests may run as root, who may write everywhere
    assert main(["report", str(run)]) == 2
    assert capsys.readouterr().err == f"triptych: error: cannot write {run}/report.html: Is a directory; choose another --out\n"
    assert main(["report", str(run), "--out", str(tmp_path / "x.html")]) == 0


def test_another_page_is_written_over_and_other_files_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, mine, other = made_run(tmp_path / "a"), tmp_path / "mine.html", tmp_path / "other.html"
    mine.write_text("<title>mine</title>")
    assert main(["report", str(run), "--out", str(mine)]) == 2 and mine.read_text() == "<title>mine</title>"
    assert f"cannot write {mine}: it is there, and no such command made it" in capsys.readouterr().err
    for _ in range(2):
        assert main(["report", str(run), "--out", str(other)]) == 0
    monkeypatch.chdir(tmp_path)
    for given, out in (("a", run / "report.html"), (str(run), Path("a/report.html")), ("a", Path("a/../a/report.html"))):
        assert main(["report", given, "--out", str(out)]) == 0, "that is where it goes by itself"
        read_page(run / "report.html")
    made_run(tmp_path / "b")
    assert main(["report", "a", "--out", "b/report.html"]) == 2
    assert "keeps its own files there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("by", "titles", "value"),
    [
        ("validation", ["Loss", "Validation"], 0.55),
        ("kid (40 samples, seen by x)", ["Evaluation: kid"], 0.1),
        ("fid (x)", [], 0.0),
    ],
)
def test_the_best_checkpoint_is_marked_on_the_curve_that_decided_it(tmp_path: Path, by: str, titles: list[str], value: float) -> None:
    lines = [*LINES, {"images": 250, "time": 6.0, "evaluation/kid": 0.1, "evaluation/kid_error": 0.01}]
    run = made_run(tmp_path / "a", lines=[*lines, {"images": 300, "time": 8.0, "evaluation/kid": 0.2, "evaluation/kid_error": 0.01}])
    place = run / "checkpoints/000000100"
    place.mkdir(parents=True)
    images = 250 if "kid" in by else 100
    (place / "state.json").write_text(json.dumps({"best": {"score": value, "images": images, "by": by}}))
    reader = RunReader(run)
    reader.update()
    found = [chart for chart in charts(panels(reader.curves.by_name, reader.best)) if chart.notes]
    assert [chart.title for chart in found] == titles
    for chart in found:
        assert chart.notes == [f"ring: the best checkpoint, {value} at {images} images"]
        for name, drawn in chart.drawings.items():
            ((ring, path),) = [(shape.ring, shape.path) for shape in drawn.shapes if shape.ring is not None]
            assert ring[2] in chart.notes[0]
            x, y = path[1:].split("L")[0].split(" ")
            assert f"{ring[0]:g}" == x and (f"{ring[1]:g}" == y) == ("kid" in by), f"at its own score, {name}"
    said = re.findall(r"the best checkpoint, [\d.]+ at", read_page(write_report(run)).text)
    assert len(said) == 3 * len(found), "a note, and for who points at it"


def test_values_are_there_for_who_points_at_a_curve_and_for_who_cannot(tmp_path: Path) -> None:
    lines = [{"images": 64 * k, "time": k, "denoise/loss": k / 8, "memory_bytes": 2 * 10**9} for k in range(1, 21)]
    lines.append({"images": 1_280, "time": 21.0, "evaluation/kid": 0.5, "evaluation/kid_error": 0.1})
    text = write_report(made_run(tmp_path / "a", lines=lines)).read_text("utf-8")
    told = re.findall(r'data-images="([^"]*)" data-values="([^"]*)"', text)
    assert told[0][0].split(" ") == [str(64 * k) for k in range(1, 21)] and told[0][1].split(" ")[:3] == ["0.125", "0.25", "0.375"]
    assert len(told) == 3 and set(told[2][1].split(" ")) == {"2"}, "once for each line, memory in GB"
    assert "dataset.images" in text and "dataset.values" in text
    page = read_page(text)
    words = re.sub(r"\s+", " ", page.text)
    assert "the last values denoise images seen value 704 1.375 768 1.5 " in words and "1,280 2.5" in words and "640 1.25" not in words
    assert "1,280 0.5, 0.304 to 0.696" in words and "images seen value in GB" in words


def test_tables_say_what_their_heads_are_of(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", changes={"train": {"batch_size": 48}})
    evaluated(run, "a", {"kid": {"value": 1.0}})
    for text in (write_report(run).read_text("utf-8"), comparison_page([run, run])):
        heads = re.findall(r"<th\b[^>]*>", text)
        assert len(heads) > 9 and set(heads) == {'<th scope="col">', '<th scope="row">'}
        assert not re.search(r"<tr><td>(?!</td><th)", text), "the first cell of a row is its head"


def test_what_a_recipe_leaves_to_the_training_is_no_other_setting(tmp_path: Path) -> None:
    for name, precision, listed in (("a", "bf16", False), ("b", "auto", False)):
        facts = facts_of(made_run(tmp_path / name, changes={"train": {"precision": precision}}))
        (setting,) = [each for each in facts.settings if each.name == "train.precision"]
        assert setting.recipe == "auto" and (setting in facts.differing) == listed
    facts = facts_of(made_run(tmp_path / "c", recipe="glow-digits", changes={"train": {"precision": "bf16"}}))
    assert "train.precision" in {setting.name for setting in facts.differing}, "where the recipe says which"
    (setting,) = facts_of(made_run(tmp_path / "d", changes={"train": {"compile": "off"}})).differing
    assert (setting.name, setting.value, setting.recipe) == ("train.compile", "off", "auto"), "in its place nothing is written"


def test_so_many_classes_are_named(tmp_path: Path) -> None:
    names = [f"n{k:02}" for k in range(13)]
    for count, more in ((12, ""), (13, ", ...")):
        facts = facts_of(made_run(tmp_path / str(count), class_names=names[:count]))
        assert facts.images == f"16 x 16 pixels, grey, {count} classes ({', '.join(names[:12])}{more})"


def test_the_templates_library_is_imported_when_a_page_is_due() -> None:
    """A training begins without it, and the list of runs never has it."""
    for path in Path(triptych.report.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None) or ""]
            assert not any(name.startswith(("jinja2", "matplotlib")) for name in names), path
    source = (Path(triptych.report.__file__).parent / "live.py").read_text("utf-8")
    assert all("triptych.report" not in (getattr(node, "module", None) or "") for node in ast.parse(source).body)
