"""What the log of a run says of it: lines that are long, and which of them counts."""

from __future__ import annotations

from pathlib import Path

from triptych.report.happenings import Happenings


def happenings(path: Path, *lines: str) -> Happenings:
    """Of a log with these lines."""
    path.write_text("".join(f"2026-01-02 03:04:05 {line}\n" for line in lines))
    found = Happenings(path)
    found.update()
    return found


def test_a_long_line_is_cut(tmp_path: Path) -> None:
    found = happenings(tmp_path / "log.txt", "a" * 400, "b" * 401)
    assert [each.text for each in found.shown] == ["a" * 400, "b" * 400 + "..."]


def test_the_parameters_are_those_of_the_newest_start(tmp_path: Path) -> None:
    start, resume = "digits starts: run a, 1,000 parameters, seed 0", "digits goes on at 8 images: run a, 2,000 parameters, seed 0"
    for lines, parameters in (((start,), "1,000"), ((start, resume), "2,000"), ((resume,), "2,000"), (("a note of 5 parameters, ",), None)):
        assert happenings(tmp_path / "log.txt", *lines).parameters == parameters


def test_the_first_and_the_newest_lines_are_shown(tmp_path: Path) -> None:
    found = happenings(tmp_path / "log.txt", "stopped by SIGTERM", *(f"note {k}" for k in range(250)), "finished: 8 images seen")
    assert [each.text for each in found.shown[1:32]] == [f"note {k}" for k in (*range(29), 81, 82)]
    assert (len(found.shown), found.left_out, found.state) == (200, 52, "finished")


def test_a_line_of_losses_is_the_newest_too(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("2026-01-02 03:04:05 warning: few images\n2026-01-02 03:05:06 8/16 images  loss 0.5\n")
    found = Happenings(tmp_path / "log.txt")
    found.update()
    assert found.newest == "2026-01-02 03:05:06" and [each.kind for each in found.shown] == ["warning"]


def test_what_could_not_be_read_before_is_said_no_more_when_it_can(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.mkdir()
    found = Happenings(path)
    found.update()
    assert len(found.notes) == 1 and "log.txt cannot be read" in found.notes[0]
    path.rmdir()
    path.write_text("2026-01-02 03:04:05 warning: few images\n")
    found.update()
    assert found.notes == [] and len(found.shown) == 1
