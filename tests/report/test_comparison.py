"""The page of several runs: across families, with what is missing said."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.report.html_pages import read_page
from tests.report.made_runs import LINES, evaluated, made_run
from triptych.cli.compare import USAGE
from triptych.cli.main import main
from triptych.report.comparison import comparison_page, short_names
from triptych.report.intervals import interval_chart
from triptych.report.measured import Figure
from triptych.report.run_report import RunReader, report_page

FLOW = (
    {"images": 500, "time": 7_000.0, "likelihood/loss": 4.0, "learning_rate": 1e-3, "images_per_second": 400.0},
    {"images": 1_000, "time": 14_000.0, "likelihood/loss": 3.0, "learning_rate": 1e-3, "images_per_second": 600.0},
)


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """A diffusion model, the same with another batch, and a flow that drew nothing."""
    made = [
        made_run(tmp_path / "a", changes={"train": {"batch_size": 32}}),
        made_run(tmp_path / "b", changes={"train": {"batch_size": 16, "sample_count": 9}}, grids=(300,)),
        made_run(tmp_path / "flow", recipe="glow-digits", lines=FLOW, log="", grids=()),
    ]
    for k, run in enumerate(made):
        for steps in (10, 20):
            kid = {"value": 0.1 * (k + 1) / steps, "error": 0.0004}
            evaluated(
                run,
                f"kid{steps}",
                {"kid": kid},
                reference_count=100,
                sampler={"steps": steps},
                weights={"images": 100 * steps},
                seconds=steps,
            )
    evaluated(made[0], "fid", {"fid": {"value": 12.345678, "error": None}, "copies": {"value": 0.25, "error": 0.05}}, reference_count=100)
    evaluated(made[1], "fid", {"fid": {"value": 6.25, "error": None}}, reference_count=50)
    return made


def test_the_page_sets_all_side_by_side(runs: list[Path]) -> None:
    page = read_page(comparison_page(runs))
    rows = page.values
    assert rows[:6] == [pytest.approx(value) for value in (0.005, 0.0004, 0.01, 0.0004, 0.015, 0.0004)], "by the newest weights"
    assert rows[6:] == [12.345678, 6.25, 0.25, 0.05]
    text = re.sub(r"\s+", " ", page.text)
    assert "fid was measured in 2 ways, which cannot be compared: reference_count (100 / 50)" in text
    assert "kid was measured in" not in text
    assert text.count("not measured") == 2 + 2 + 2, "fid of two runs in each of its two ways, copies of two"
    assert "No grids of samples" in text and "train.sample_count: 64 / 9 / 64" in text
    for title in ("Loss (denoise)", "Loss (likelihood)", "Learning rate"):
        assert title in text, title
    assert "Lower is better. Not there in flow." in text and "Lower is better. Not there in a, b." in text
    assert re.search(r"time of training 5 s 5 s 3\.9 h", text) and re.search(r"images/s, the median 45 45 500", text)
    assert re.search(r"memory, the most noted 1\.07 GB 1\.07 GB unknown", text)
    assert re.search(r"starts 2 2 0 warnings 1 1 0 failures 0 0 0", text)
    assert re.search(r"train\.batch_size 32 16 64", text) and re.search(r"model\.levels - - \d", text)
    assert "train.seed" not in text, "that is the same in all"


def test_intervals_lie_where_the_figures_are() -> None:
    chart = interval_chart("x", "What it is.", [(0, "a", Figure("x", 1.0, 0.5)), (3, "b", Figure("x", 2.0, None))])
    assert (chart.title, chart.sentence) == ("x", "What it is.")
    (a, b), scale = chart.rows, (chart.rows[1].at - chart.rows[0].at)
    assert a.high - a.at == pytest.approx(1.96 * 0.5 * scale, abs=0.2) and a.at - a.low == pytest.approx(1.96 * 0.5 * scale, abs=0.2)
    assert a.low > 10 and a.high < 410 and all(10 < tick.at < 410 for tick in chart.ticks)
    assert b.low == b.at == b.high and (a.style, b.style) == ("c0", "c3") and (a.text, b.text) == ("1 ± 0.5", "2")


def test_runs_without_anything_are_compared_too(tmp_path: Path) -> None:
    roots = [made_run(tmp_path / name, lines=(), log="", grids=()) for name in ("a", "b")]
    (roots[1] / "config.json").write_text("{")
    text = read_page(comparison_page(roots)).text
    for said in (
        "No run has figures yet",
        "No figure was measured twice: ",
        "No run was looked at for copies",
        "No run has lines of metrics",
    ):
        assert said in text


def test_a_run_whose_settings_cannot_be_read_is_named(tmp_path: Path) -> None:
    roots = [made_run(tmp_path / name) for name in ("a", "b")]
    assert "None." in read_page(comparison_page(roots)).text
    (roots[1] / "config.json").write_text("{")
    text = read_page(comparison_page(roots)).text
    assert re.search(r"b: .*config\.json", text) and "Not known: the settings of b cannot be read." in text


def test_figures_of_a_sweep_without_settings_are_those_of_other_files(tmp_path: Path) -> None:
    roots = [made_run(tmp_path / name) for name in ("a", "b", "c")]
    figures, protocol = {"frechet": {"value": 1.0}}, {"count": 50}
    plain = {"figures": figures, "protocol": protocol, "settings": {"kid_subsets": 100}}
    other = {**plain, "settings": {"kid_subsets": 10}}
    for root, document in zip(roots, ({"sweep": [{"figures": figures, "protocol": protocol}]}, plain, other), strict=True):
        (root / "evaluations").mkdir()
        (root / "evaluations" / "x.json").write_text(json.dumps(document))
    assert "cannot be compared" not in read_page(comparison_page(roots[:2])).text
    assert "settings.kid_subsets (100 / 10)" in read_page(comparison_page(roots[1:])).text


def test_names_tell_runs_apart() -> None:
    assert short_names([Path("/x/1/run"), Path("/x/2/run"), Path("/x/2/other")]) == ["1/run", "2/run", "2/other"]
    assert short_names([Path("/x/run"), Path("/x/run")]) == ["run (1)", "run (2)"]


def test_what_comes_from_files_is_text(tmp_path: Path) -> None:
    evil = "</style><script>alert(1)</script>\x1b[2J"
    roots = [made_run(tmp_path / name, lines=[{"images": 1, f"{evil}/loss": 1.0}]) for name in ("<i>x", "b")]
    for root in roots:
        evaluated(root, "x", {evil: {"value": 1.0, "error": 0.5}}, **{evil: f"{evil}{root.name}"}, steps=len(root.name))
    page = comparison_page(roots)
    assert "\x1b" not in page and "<script>alert" not in page and "<i>x" not in page
    assert read_page(page).text.count("alert(1)</script>\\x1b[2J") > 6


DEEP: dict[str, Any] = {}
for _ in range(300):
    DEEP = {"x": DEEP}
STRANGE = (None, True, -1, 1e308, -1e308, 5e-324, 10**30, "", "nan", "-inf", [], [1, [2]], {}, DEEP, "x" * 5_000)


@pytest.mark.parametrize("value", STRANGE, ids=lambda value: str(value)[:12])
def test_no_value_is_too_strange_for_a_page(value: Any, tmp_path: Path) -> None:
    lines = [{"images": 100, "time": value, "a/loss": 1.0}, {"images": value, "a/loss": 2.0}, {"images": 150, "a/loss": value}]
    roots = [made_run(tmp_path / "a", lines=[*LINES, *lines, {"resumed_at": value}]), made_run(tmp_path / "b")]
    document = json.loads((roots[0] / "config.json").read_text())
    for k, section in enumerate(("recipe", "model", "data", "train", "spec")):
        other = dict.fromkeys(document[section], value) if isinstance(document[section], dict) else value
        (roots[0] / "config.json").write_text(json.dumps(document | {section: value if k % 2 else other}))
        evaluated(roots[0], "a", {"kid": {"value": value, "error": 1.0}, "fid": {"value": 1.0, "error": value}}, steps=value)
        evaluated(roots[0], "b", {"kid": {"value": 1.0, "details": value}}, seconds=value, weights={"images": value}, x=value)
        evaluated(roots[1], "c", {"kid": {"value": 2.0, "error": 0.5}}, steps=3)
        read_page(report_page(RunReader(roots[0])))
    read_page(comparison_page(roots))


def test_the_command(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(run) for run in runs]
    out = tmp_path / "deep/c.html"
    assert main(["compare", *names, "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"comparison: {out} (open it in a browser)\n" and read_page(out).values
    for given, said in (
        ([names[0], "--out", "c.html"], "got 1 run, expected at least 2; usage: triptych compare RUN RUN ... --out FILE.html"),
        ([], "got 0 runs, expected at least 2; usage: triptych compare RUN RUN ... --out FILE.html"),
        (names, "--out: missing: the page needs a name that ends with .html"),
        ([*names, "--out", "c.pdf"], "--out: got 'c.pdf', expected a name that ends with .html"),
        ([*names, str(tmp_path / "none"), "--out", "c.html"], f"no run in {tmp_path / 'none'}: there is no config.json"),
        ([*names * 6, "--out", "c.html"], "got 18 runs, expected 2 to 16"),
    ):
        assert main(["compare", *given]) == 2
        assert capsys.readouterr().err == f"triptych: error: {said}\n"


def test_the_place_of_the_page_may_come_first_and_other_files_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (str(made_run(tmp_path / name)) for name in ("a", "b"))
    out = tmp_path / "x.html"
    for k, words in enumerate((["--out", str(out), a, b], [a, f"--out={out}", b], [a, b, "--out", str(out)])):
        assert main(["compare", *words]) == 0, k
        assert "Settings that differ" in read_page(out.read_text()).text
    capsys.readouterr()
    mine = tmp_path / "mine.html"
    mine.write_text("<title>mine</title>")
    assert main(["compare", a, b, "--out", str(mine)]) == 2 and mine.read_text() == "<title>mine</title>"
    assert f"cannot write {mine}: it is there, and no such command made it" in capsys.readouterr().err


def cell(page: str, words: str) -> str:
    """The opening tag of the cell that begins with these words."""
    (found,) = re.findall(rf"(<td[^>]*>)\s*{re.escape(words)}", page)
    return found


def test_the_best_figure_of_a_row_is_bold(tmp_path: Path) -> None:
    roots = [made_run(tmp_path / name) for name in ("a", "b", "c")]
    for k, root in enumerate(roots):
        alone = {"sfid": {"value": 70.5}} if k == 0 else {}
        figures = {
            "fid": {"value": 10.5 + k},
            "recall": {"value": 0.25 + k / 8},
            "near-equal": {"value": 20.5 + k},
            "is": {"value": 30.5},
            **alone,
        }
        evaluated(root, "x", figures)
    page = comparison_page(roots)
    for value in (10.5, 0.5):
        assert cell(page, f'<data value="{value}">') == '<td class="best">'
    for value in (11.5, 12.5, 0.25, 0.375, 20.5, 22.5, 70.5):
        assert cell(page, f'<data value="{value}">') == "<td>", "not the best, alone, or of no known order"
    assert page.count('<td class="best">') == 2, "none of figures that are equal"


def test_a_row_says_how_it_was_measured(tmp_path: Path) -> None:
    roots = [made_run(tmp_path / name) for name in ("a", "b")]
    for root in roots:
        how = {"count": 2_048, "reference": {"split": "train"}, "reference_count": 10_000, "reference_name": "x", "network": "lenet"}
        evaluated(root, "x", {"fid": {"value": 1.0}}, **how)
        evaluated(root, "y", {"kid": {"value": 1.0}}, count=64, reference_count=128, reference_name="/data/photos")
        evaluated(root, "z", {"bits-per-dim": {"value": 1.0}}, images=90, data={"split": "validation"})
        evaluated(root, "w", {"ssim": {"value": 1.0}})
    text = re.sub(r"\s+", " ", read_page(comparison_page(roots)).text)
    for said in ("fid2,048 against 10,000 of train, lenet ", "kid64 against 128 of photos ", "bits-per-dim90 of validation ", "ssim "):
        assert f" {said}" in text, said


def test_a_row_of_class_accuracy_names_the_classifier_and_each_has_its_own(tmp_path: Path) -> None:
    """A run of a classifier is told by its weights, wherever it lies."""
    roots = [made_run(tmp_path / name) for name in ("a", "b", "c")]
    nothing = dict.fromkeys(("reference", "reference_name", "reference_count", "network"))
    for root, run, weights in zip(roots, ("runs/judge", "/moved/judge/", "runs/other"), ("1234", "1234", "5678"), strict=True):
        judge = {"run": run, "images": 64, "weights": "raw", "hash": weights}
        seen = {"class-accuracy": {"classifier": judge}, "lpips": {"network": "vgg16"}}
        evaluated(root, "x", {"class-accuracy": {"value": 0.5}, "lpips": {"value": 0.25}}, count=8, single_images=seen, **nothing)
    text = re.sub(r"\s+", " ", read_page(comparison_page(roots)).text)
    assert "class-accuracy8, judge 0.5 0.5 not measured" in text and "class-accuracy8, other not measured not measured 0.5" in text
    assert "lpips8, vgg16 " in text and "none of none" not in text


def test_evaluations_in_training_stand_on_one_chart_with_bands(tmp_path: Path) -> None:
    roots = []
    for k, name in enumerate(("a", "b", "c")):
        figures = [{"images": 100 * n, "time": n, "evaluation/kid": n / 8 + k, "evaluation/kid_error": 0.01} for n in (1, 2)] if k else []
        roots.append(made_run(tmp_path / name, lines=[*LINES, *figures], changes={"train": {"evaluate_count": 100 * max(k, 1)}}))
    place = roots[2] / "checkpoints/000000100"
    place.mkdir(parents=True)
    (place / "state.json").write_text(json.dumps({"best": {"score": 2.125, "images": 100, "by": "kid (x)"}}))
    page = comparison_page(roots)
    (card,) = [card for card in page.split("<article") if "<h3>Evaluation: kid" in card]
    assert card.count('class="band"') == 2 * 2 and card.count('class="ring"') == 2 and "kid_error" not in page
    assert re.findall(r'<li class="(c\d)">', card) == ["c1", "c2"], "each keeps its colour"
    said = "Not all were measured alike: train.evaluate_count (100 / 200). Not there in a."
    assert said in card and "ring: the best checkpoint, 2.125 at 100 images" in card
    assert page.index("Evaluation: kid") < page.index("Loss (denoise)")
    (held_out,) = [card for card in page.split("<article") if "<h3>Loss on held-out images" in card]
    assert "band" not in held_out or held_out.count('class="band"') == 6


def test_the_ninth_run_has_hollow_marks(tmp_path: Path) -> None:
    roots = [made_run(tmp_path / f"{k}", lines=(), log="", grids=()) for k in range(9)]
    for root in roots:
        evaluated(root, "x", {"fid": {"value": float(root.name)}})
    page = comparison_page(roots)
    head = page.split("</h1>")[0]
    assert head.count('<span class="c0"><i class="swatch">') == 1 == head.count('<span class="c0 dashed"><i class="swatch">')
    assert page.count('<g class="c0 dashed"><path class="bar wide"') == 1, "its interval"


def test_what_differs_between_protocols_is_counted_where_it_is_too_much(tmp_path: Path) -> None:
    roots = [made_run(tmp_path / name) for name in ("a", "b")]
    for root in roots:
        ways = {f"way{n}": root.name for n in range(20)}
        evaluated(root, "x", {"fid": {"value": 1.0}}, **ways, reference_count=100 + len(root.name) + ord(root.name))
    text = read_page(comparison_page(roots)).text
    assert "ways, which cannot be compared: reference_count (198 / 199), way0 (a / b)" in text and "way10 (a / b) and 9 more" in text


def test_figures_that_differ_in_two_things_are_said_to(tmp_path: Path) -> None:
    roots = [made_run(tmp_path / name) for name in ("a", "b")]
    for k in (1, 2):
        evaluated(roots[0], f"{k}", {"fid": {"value": 1.0}}, sampler={"steps": k}, weights={"images": k})
    text = read_page(comparison_page(roots)).text
    assert "No two measurements of a figure differ in one thing alone" in text and "No figure was measured twice" not in text


def test_the_page_and_its_help_promise_what_there_is(tmp_path: Path) -> None:
    page = re.sub(r"\s+", " ", read_page(comparison_page([made_run(tmp_path / name) for name in ("a", "b")])).text)
    how_to = re.sub(r"\s+", " ", (Path(__file__).parents[2] / "docs/how-to/report.md").read_text("utf-8"))
    wording = "It does not say whether two runs differ: they share the reference, and figures with the same seed the noise."
    assert wording in page and wording in how_to and "may be chance" not in page + how_to
    assert "calls and seconds" not in USAGE.replace("\n", " ") and "network calls" in USAGE and "network calls" in how_to


def test_each_run_has_its_line_where_its_figures_differ_by_one_thing(runs: list[Path]) -> None:
    for k, run in enumerate(runs[:2]):
        evaluated(
            run, "more", {"kid": {"value": 0.2 + k}}, reference_count=100, sampler={"steps": 20}, weights={"images": 1_000}, seconds=9
        )
    text = re.sub(r"\s+", " ", read_page(comparison_page(runs)).text)
    assert "kid by steps More cost more time" in text and "kid by images seen How the figure" in text
    assert "1.2k" in text and "1.4k" in text, "images seen, as ticks"
