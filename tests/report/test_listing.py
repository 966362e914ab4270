"""The list of runs: what is shown of whole ones, and that none is too broken to be listed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from triptych.cli.main import main
from triptych.engine.run_directory import RunDirectory
from triptych.report.listing import checkpoints, find_runs, listed, pictures

DATE = 1_700_000_000


def write_run(root: Path, *, recipe: str | None = "adm-digits", numbers: tuple[int, ...] = (), lines: tuple[Any, ...] = ()) -> Path:
    directory = RunDirectory(root)
    directory.create()
    model = {"kind": "triptych.flows.glow:GlowConfig"}
    directory.write_config({"recipe": recipe, "model": model, "train": {"total_images": 1_000}})
    directory.metrics_path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for number in numbers:
        folder = directory.checkpoints / f"{number:09d}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"x" * 2_000)
        (folder / "state.json").write_text(json.dumps({"best": {"score": 0.5, "images": numbers[0]}}))
    return root


LINES = (
    {"images": 100, "denoise/loss": 0.5, "denoise/loss_q0": 0.1, "learning_rate": 1e-4, "images_per_second": 3.0},
    {"images": 100, "validation/denoise/loss": 0.6, "validation/denoise/loss_standard_error": 0.01},
    {"images": 300, "denoise/loss": 9.0},
    {"resumed_at": 100},
    {"images": 200, "denoise/loss": 0.4, "denoise/gradient_norm": 1.0},
)


def dated(root: Path) -> None:
    for path in root.rglob("*"):
        os.utime(path, (DATE, DATE))


def test_what_is_known_of_a_run(tmp_path: Path) -> None:
    run = listed(write_run(tmp_path / "a", numbers=(50, 150), lines=LINES))
    assert (run.recipe, run.images_seen, run.total_images, run.fault) == ("adm-digits", 200, 1_000, None)
    assert run.figures == {"denoise/loss": 0.4, "validation/denoise/loss": 0.6}
    sizes = [path.stat().st_size for path in run.root.rglob("*") if path.is_file()]
    assert run.size_bytes == sum(sizes) > 4_000
    assert run.written == max(path.stat().st_mtime for path in run.root.rglob("*") if path.is_file())
    assert [(one.images_seen, one.is_best) for one in checkpoints(run.root)] == [(50, True), (150, False)]
    assert all(2_000 < one.size_bytes < 2_100 for one in checkpoints(run.root))
    assert listed(write_run(tmp_path / "b", recipe=None)).recipe == "Glow"


def test_a_line_without_a_loss_says_none(tmp_path: Path) -> None:
    names = ("learning_rate", "network/log2_loss_scale", "denoise/gradient_norm", "denoise/loss_q1", "images_per_second", "memory_bytes")
    run = listed(write_run(tmp_path / "a", lines=(*LINES, *({"images": 300, "time": 9.0, name: 0.1} for name in names))))
    assert run.figures == {"denoise/loss": 0.4, "validation/denoise/loss": 0.6}


def test_an_evaluation_in_training_is_no_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluation = {"images": 200, "time": 9.0, "evaluation/kid_error": 0.01, "evaluation/kid": 0.25, "evaluation/recall": 0.5}
    run = listed(write_run(tmp_path / "a", lines=(*LINES, evaluation)))
    assert run.figures == {"denoise/loss": 0.4, "validation/denoise/loss": 0.6, "evaluation/kid": 0.25}
    assert main(["runs", str(tmp_path)]) == 0
    assert "loss 0.4, validation 0.6, kid 0.25 " in capsys.readouterr().out


def test_sizes_are_in_the_units_of_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a")
    before = listed(tmp_path / "a").size_bytes
    (tmp_path / "a/more").write_bytes(bytes(2_345_000 - before))
    for place, said in ((tmp_path, "2.35 MB"), (tmp_path / "a", ", 2.35 MB, last written")):
        assert main(["runs", str(place)]) == 0
        assert said in capsys.readouterr().out
    (tmp_path / "a/more").write_bytes(bytes(9_300 - before))
    assert main(["runs", str(tmp_path)]) == 0
    assert "9.3 KB" in capsys.readouterr().out, "as elsewhere, and not kB"


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    padding = {f"denoise/term_{k}": 0.5 for k in range(60)}
    lines = tuple({"images": k, "denoise/loss": float(k), **padding} for k in range(1, 600))
    run = listed(write_run(tmp_path / "a", lines=({"images": 1, "validation/denoise/loss": 0.5}, *lines)))
    assert run.images_seen == 599 and run.figures == {"denoise/loss": 599.0}


def test_runs_are_found_below_but_not_inside_one_another(tmp_path: Path) -> None:
    for name in ("b", "a", "group/c", "group/deeper/d", "1/2/3/too-deep", ".hidden/e", "a/inside"):
        write_run(tmp_path / name)
    (tmp_path / "no run").mkdir()
    assert [path.relative_to(tmp_path).as_posix() for path in find_runs(tmp_path)] == ["a", "b", "group/c", "group/deeper/d"]


def test_pictures_are_those_of_the_run_by_date(tmp_path: Path) -> None:
    root = write_run(tmp_path / "a")
    for k, name in enumerate(
        ["samples/000000200.png", "mine.jpg", "samples/000000100.png", "samples/.000000300.png.tmp", "notes.txt", ".x.png"]
    ):
        (root / name).write_bytes(b"x")
        os.utime(root / name, (DATE + k, DATE + k))
    assert [path.relative_to(root).as_posix() for path in pictures(root)] == ["samples/000000200.png", "mine.jpg", "samples/000000100.png"]


@pytest.mark.parametrize(
    ("file", "content", "shown"),
    [
        ("config.json", b"{", "is damaged"),
        ("config.json", b"[1]", "is damaged: it has no format number"),
        ("config.json", b"[" * 200_000, ""),
        ("config.json", b'{"format": 999}', "has format 999"),
        ("config.json", b'{"format": 1, "model": 3, "train": "x", "recipe": [1]}', None),
        ("metrics.jsonl", b"\xff\xfe\n[1]\n{\n", None),
        ("metrics.jsonl", b'{"images": "many", "denoise/loss": 1}\n{"resumed_at": "x"}\n', None),
        ("metrics.jsonl", b'{"images": 5, "denoise/loss": "nan"}\n', None),
        ("checkpoints/000000050/state.json", b"{", None),
        ("checkpoints/000000050/state.json", b"[" * 200_000, None),
    ],
)
def test_a_broken_run_is_listed(file: str, content: bytes, shown: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_run(tmp_path / "a", numbers=(50,), lines=LINES)
    (root / file).write_bytes(content)
    (root / "dangling").symlink_to(root / "nowhere")
    run = listed(root)
    assert run.images_seen >= 50
    assert run.fault is None if shown is None else shown in str(run.fault)
    for place in (tmp_path, root):
        assert main(["runs", str(place)]) == 0
        printed = capsys.readouterr()
        assert str(root) in printed.out and printed.err == ""
    assert ("goes on with it" in printed.out) == (shown is None), "what train would refuse"
    assert not shown or f"{root / 'config.json'} {shown}" in printed.out


def test_the_table_and_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")
    write_run(Path("runs/my digits"), numbers=(50, 200), lines=LINES)
    write_run(Path("runs/new"), recipe=None)
    Path("runs/my digits/samples/000000200.png").write_bytes(b"x")
    dated(Path("runs"))
    assert main(["runs"]) == 0
    heads, first, second, *_ = capsys.readouterr().out.splitlines()
    assert heads.split() == ["run", "recipe", "images", "seen", "newest", "figures", "disk", "last", "written"]
    assert " ".join(first.split()).startswith("runs/my digits adm-digits 200 of 1,000 (20 %) loss 0.4, validation 0.6 4.")
    assert " ".join(second.split()).startswith("runs/new Glow 0 of 1,000 (0 %) none yet") and "2023-11-" in second
    assert main(["runs", "runs/new"]) == 0
    assert capsys.readouterr().out.endswith("triptych train runs/new   begins it, at 0 images\n")
    assert main(["runs", "runs/my digits"]) == 0
    page = capsys.readouterr().out
    assert "denoise/loss  0.4" in page and "50 images" in page and "best" in page and "samples/000000200.png" in page
    assert page.endswith("triptych train 'runs/my digits'   goes on with it\n")


def test_the_page_of_a_run_ends_with_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = ({"images": 1_000, "denoise/loss": 0.5},)
    train = f"triptych train {tmp_path}"
    for name, numbers, further in (
        ("finished", (500, 1_000), "/finished --train.total-images 2000   trains it on, twice as long"),
        ("lost", (), "/lost   begins it, at 0 images"),
    ):
        write_run(tmp_path / name, numbers=numbers, lines=seen)
        assert main(["runs", str(tmp_path / name)]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == train + further


def test_the_page_of_a_run_names_the_newest_twelve_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_run(tmp_path / "a")
    for k in range(14):
        path = root / f"samples/{k:09d}.{'PNG' if k == 13 else 'png'}"
        path.write_bytes(b"x")
        os.utime(path, (DATE + k, DATE + k))
    assert main(["runs", str(root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("pictures")
    assert [line.rpartition("/")[2] for line in lines[at + 1 : at + 14]] == [
        "  2 older ones",
        *(f"{k:09d}.png" for k in range(2, 13)),
        "000000013.PNG",
    ]


def test_a_name_that_would_command_the_terminal_is_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "evil\x1b[31m\nline")
    write_run(tmp_path / "plain")
    assert main(["runs", str(tmp_path)]) == 0
    heads, first, second, *_ = capsys.readouterr().out.splitlines()
    assert "evil\\x1b[31m\\nline" in first
    assert heads.index("recipe") == first.index("adm-digits") == second.index("adm-digits")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere"], "there is no folder nowhere"),
        ([], "there is no folder runs: name the folder of your runs"),
        (["a", "b"], "got 'a b', expected one folder of runs, one run, or nothing"),
        ([""], "got '', expected one folder of runs, one run, or nothing"),
        (["--all"], "got '--all', expected one folder of runs, one run, or nothing"),
    ],
)
def test_mistakes(
    arguments: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["runs", *arguments]) == 2
    assert capsys.readouterr().err == f"triptych: error: {line}\n"


def test_a_folder_without_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith(f"no runs in {tmp_path}: ")


def test_a_folder_that_cannot_be_looked_into_is_not_said_to_have_no_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    modes: list[int] = []
    monkeypatch.setattr("os.access", lambda path, mode: modes.append(mode))  # as chmod 000 is to all but root
    assert main(["runs", str(tmp_path)]) == 2
    assert capsys.readouterr() == ("", f"triptych: error: {tmp_path}: cannot be looked into (no permission)\n")
    assert modes == [os.R_OK | os.X_OK]
