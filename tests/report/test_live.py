"""report.html while a run is trained: when it is written, what it costs, and that it stops nothing."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from tests.report.html_pages import read_page
from tests.report.made_runs import made_run
from triptych.cli.main import main
from triptych.engine.config import LogConfig
from triptych.engine.loop import Loop
from triptych.engine.metric_log import MetricLog
from triptych.engine.run_directory import RunDirectory
from triptych.report import run_report
from triptych.report.live import LEAST_PAUSE, SHARE, LivePage, refresh_page


def test_the_page_is_refreshed_where_there_is_one_and_no_training(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    page = run / "report.html"
    refresh_page(run, pytest.fail)
    assert not page.exists()
    page.write_text("old")
    lock = RunDirectory(run).lock()
    refresh_page(run, pytest.fail)
    assert page.read_text() == "old", "the training writes it"
    lock.release()
    refresh_page(run, pytest.fail)
    assert "adm-digits" in read_page(page.read_text()).text


def test_a_page_that_takes_long_is_made_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, took = 0.0, 3.0
    written = []

    def slow(reader: object) -> str:
        nonlocal now
        written.append(now)
        now += took
        return ""

    monkeypatch.setattr(run_report, "report_page", slow)
    (tmp_path / "config.json").touch()
    page = LivePage(tmp_path, pytest.fail, clock=lambda: now)
    for second in range(2_000):
        now = max(now, float(second))
        page.refresh()
    assert written == [0.0, 3.0 + 3.0 / SHARE, 2 * (3.0 + 3.0 / SHARE), 3 * (3.0 + 3.0 / SHARE), 4 * (3.0 + 3.0 / SHARE),
                       5 * (3.0 + 3.0 / SHARE), 6 * (3.0 + 3.0 / SHARE)]  # fmt: skip
    took, written[:] = 0.0, []
    now = 10_000.0
    for second in range(100):
        now = 10_000.0 + second
        page.refresh()
    assert written == [10_000.0 + LEAST_PAUSE * k for k in range(10)]
    page.write()
    assert len(written) == 11, "the last one is not held back"


def test_what_goes_wrong_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    run = made_run(tmp_path / "a")
    (run / "report.html").mkdir()
    (run / "report.html/x").touch()
    page = LivePage(run, said.append)
    page.write()
    page.write()
    assert said == ["report.html is not written: Is a directory"]


def test_the_folder_of_a_run_that_was_renamed_is_not_made_anew(tmp_path: Path) -> None:
    said: list[str] = []
    page = LivePage(made_run(tmp_path / "a"), said.append)
    page.write()
    (tmp_path / "a").rename(tmp_path / "b")
    page.write()
    assert not (tmp_path / "a").exists() and "was removed or renamed" in said[-1]


def test_nor_is_that_of_one_that_is_renamed_while_the_page_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    page = LivePage(made_run(tmp_path / "a"), said.append)
    monkeypatch.setattr(RunDirectory, "require", lambda directory: directory.root.rename(tmp_path / "b"))
    page.write()
    assert not (tmp_path / "a").exists() and said[-1].startswith("report.html is not written: ")


def test_a_fault_of_the_page_is_no_fault_of_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(reader: object) -> str:
        raise ZeroDivisionError("of\nthe page")

    monkeypatch.setattr(run_report, "report_page", faulty)
    said: list[str] = []
    LivePage(tmp_path, said.append).write()
    assert said == ["report.html is not written: of the page"]


def test_its_time_is_no_time_of_training(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "a")
    directory.create()
    log = MetricLog(directory, config=LogConfig(), settings={})
    with log.paused():
        time.sleep(0.3)
    log.write(1, {})
    log.close()
    assert json.loads(directory.metrics_path.read_text())["time"] < 0.2


@pytest.mark.slow
def test_a_training_writes_it_on_the_way_and_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    pages: list[str] = []
    write = LivePage.write

    def noted(page: LivePage) -> None:
        write(page)
        pages.append(page.path.read_text("utf-8"))

    monkeypatch.setattr(LivePage, "write", noted)
    run = tmp_path / "run"
    small = ["--train.batch-size", "4", "--train.sample-every", "8", "--train.sample-count", "1", "--train.validate-images", "4"]
    small += ["--log.every", "4", "--device", "cpu", "--optim.warmup-images", "400", "--model.depth", "2"]
    assert main(["train", "glow-digits", "--run", str(run), "--train.total-images", "16", *small]) == 0
    assert len(pages) == 2, "after the first grid, and at the end: the one between would be too soon"
    first, last = map(read_page, pages)
    assert first.tags.count("img") == 9 and "(50 %)" in first.text and "begun" in first.text
    assert last.tags.count("img") == 9 * 3 and "(100 %)" in last.text and "finished: 16 images seen" in last.text
    assert capsys.readouterr().out.endswith(f"report: {run}/report.html (open it in a browser)\n")
    pages.clear()
    assert main(["train", str(run), "--train.total-images", "20", "--device", "cpu"]) == 0
    assert "begun again" in read_page(pages[0]).text and "(80 %)" in read_page(pages[0]).text, "before its first step"
    monkeypatch.setattr(Loop, "run", lambda loop, stop: (_ for _ in ()).throw(KeyboardInterrupt))
    assert main(["train", str(run), "--train.total-images", "24", "--device", "cpu"]) == 130
    assert "interrupted at 20 images" in read_page(pages[-1]).text
    monkeypatch.undo()
    capsys.readouterr()
    (run / "report.html").unlink()
    assert main(["train", str(run), "--train.total-images", "24", "--log.no-report", "--device", "cpu"]) == 0
    assert not (run / "report.html").exists() and "report:" not in capsys.readouterr().out
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(line["memory_bytes"] > 2**20 for line in lines if "images" in line)


@pytest.mark.slow
def test_a_training_that_fails_has_a_page_that_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    wild = ["--optim.learning-rate", "1e38", "--optim.warmup-images", "0", "--train.precision", "float32", "--device", "cpu"]
    small = ["--train.total-images", "64", "--train.batch-size", "2", "--train.sample-count", "0", "--train.validate-images", "0"]
    assert main(["train", "glow-digits", "--run", str(run), *wild, *small]) == 1
    page = read_page(run / "report.html")
    assert "failed at" in page.text and "not finite" in page.text
    assert re.search(r"by its log, whose newest line is of [\d-]+ [\d:]+ failed", page.text)
