"""The bar of a command on a terminal."""

from __future__ import annotations

import time

import pytest

from triptych.cli.progress_bar import progress_bar


def test_a_bar_is_drawn_where_errors_go_and_says_how_fast_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the stream for a terminal
    with progress_bar("drawing") as progress:
        for done in (1, 2, 3):
            progress(done, 10)
            time.sleep(0.01)
    out, err = capsys.readouterr()
    assert out == "" and "drawing" in err and "3/10" in err and "/s," in err


def test_no_bar_is_drawn_where_nobody_looks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for force, rank in (("", "0"), ("1", "1")):  # no terminal; another one than the first process
        monkeypatch.setenv("FORCE_COLOR", force)
        monkeypatch.setenv("RANK", rank)
        with progress_bar("drawing") as progress:
            progress(1, 10)
        assert capsys.readouterr() == ("", "")
