"""`triptych train`: recipe, then file, then flags; and what is handed to the Python API."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from triptych.cli.main import main
from triptych.core.errors import ConfigError
from triptych.recipes.catalogue import load_recipe
from triptych.runs import open_run

from .conftest import FakeRun, FakeRuns, toy_recipe


def test_hands_over_the_recipe(fake_runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "toy"]) == 0
    ((name, given, named),) = fake_runs.calls
    assert (name, given[0], Path(given[1])) == ("train", toy_recipe(), Path("runs/toy"))
    assert named == {"recipe": "toy", "init_from": None, "device": None}
    assert "triptych sample runs/toy" in capsys.readouterr().out


@pytest.mark.slow
def test_a_training_that_was_stopped_ends_with_the_code_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished one ends with 0."""
    monkeypatch.setenv("TRIPTYCH_STOPPED_CODE", "75")
    run, small = (
        tmp_path / "run",
        ["--train.batch-size", "8", "--train.sample-count", "0", "--train.validate-images", "0", "--log.no-report"],
    )

    def stop() -> None:
        while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    command = ["train", "glow-digits", "--run", str(run), "--log.every", "8", *small]
    assert main([*command, "--train.total-images", "8000"]) == 75
    seen = max(open_run(run).checkpoints())
    assert 0 < seen < 8000
    assert main([*command, "--train.total-images", str(seen + 8)]) == 0


@pytest.mark.parametrize(("stopped", "code"), [(True, 75), (False, 0)])
def test_a_finished_training_ends_with_0(stopped: bool, code: int, fake_runs: FakeRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeRun, "stopped", stopped)
    assert main(["train", "toy"]) == 0
    monkeypatch.setenv("TRIPTYCH_STOPPED_CODE", "75")
    assert main(["train", "toy"]) == code


@pytest.mark.parametrize("code", ["", "often", "-1", "256"])
def test_a_code_that_is_none_is_refused_before_the_training(
    code: str, fake_runs: FakeRuns, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIPTYCH_STOPPED_CODE", code)
    assert main(["train", "toy"]) == 2 and not fake_runs.calls
    assert f"TRIPTYCH_STOPPED_CODE: got {code!r}, expected an exit code from 0 to 255" in capsys.readouterr().err


def test_what_is_printed_can_be_pasted(fake_runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "toy", "--run", "runs/my toy; rm"]) == 0
    assert capsys.readouterr().out == "draw from it: triptych sample 'runs/my toy; rm'\n"


@pytest.mark.parametrize(
    ("recipe", "line"),
    [
        ("munit-mnist", "translate with it: triptych translate r --held-out, or triptych translate r INPUT --out DIR"),
        ("spade-camvid", "translate with it: triptych translate r --held-out, or triptych translate r INPUT --out DIR"),
        ("upsample-digits", "draw from it: triptych sample r --base IMAGES"),
        ("classifier-digits", "lead a run by it: triptych sample RUN --guide r"),
        ("glow-digits", "draw from it: triptych sample r"),
    ],
)
def test_the_next_command_is_that_of_the_model(recipe: str, line: str, fake_runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    fake_runs.config = load_recipe(recipe)
    assert main(["train", "toy", "--run", "r"]) == 0
    assert capsys.readouterr().out == f"{line}\n"


def test_the_next_command_has_the_style_images_that_a_model_needs(fake_runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    fake_runs.config, fake_runs.styles = load_recipe("fs-vid2vid-maps64"), "required"
    assert main(["train", "toy", "--run", "r"]) == 0
    assert "triptych translate r INPUT --style IMAGES --out DIR" in capsys.readouterr().out


def test_flags_go_over_the_file_and_the_file_over_the_recipe(fake_runs: FakeRuns, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[train]\nbatch_size = 32\nseed = 5\n")
    for arguments in (["--config", str(file)], [f"--config={file}"]):
        command = ["train", "toy", "--run", "there", *arguments, "--train.seed", "6", "--init-from", "other", "--device", "cpu"]
        assert main(command) == 0
        _, (config, directory), named = fake_runs.calls.pop()
        assert (config.train.batch_size, config.train.seed, config.train.total_images) == (32, 6, 100)
        assert (str(directory), named) == ("there", {"recipe": "toy", "init_from": "other", "device": "cpu"})


def test_an_error_of_the_training_names_the_flags(fake_runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    for setting, flag in (("device", "--device"), ("data.image_size", "--data.image-size")):
        fake_runs.error = ConfigError(setting, "got 3")
        assert main(["train", "toy"]) == 2
        assert capsys.readouterr().err == f"triptych: error: {flag}: got 3\n"


def test_a_file_that_names_its_recipe_and_run_is_the_whole_command(fake_runs: FakeRuns, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('recipe = "adm-digits"\nrun = "runs/mine"\n\n[train]\nbatch_size = 32\n')
    for arguments, place in (([], "runs/mine"), (["--run", "runs/other"], "runs/other")):
        for recipe in (["adm-digits"], []):
            assert main(["train", *recipe, "--config", str(file), *arguments]) == 0
            _, (config, directory), named = fake_runs.calls.pop()
            assert (config.train.batch_size, str(directory), named["recipe"]) == (32, place, "adm-digits")


@pytest.mark.parametrize(
    ("text", "recipe", "line"),
    [
        ("[train]\nbatch_size = 32", [], "names no recipe: give one before it"),
        ('recipe = "adm-digit"', [], 'unknown recipe "adm-digit"; did you mean "adm-digits"?'),
        ("recipe = 3", [], "recipe: got 3, expected text"),
        ('recipe = ""', [], "recipe: got '', expected text"),
        ('run = ""', ["adm-digits"], "run: got '', expected text"),
        ('recipe = "glow-digits"', ["adm-digits"], "recipe: got 'glow-digits', but the command says 'adm-digits'; leave one of them out"),
    ],
)
def test_a_recipe_in_a_file_that_cannot_be_used(
    text: str, recipe: list[str], line: str, fake_runs: FakeRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    from triptych.cli import train
    from triptych.recipes.catalogue import find_recipe

    monkeypatch.setattr(train, "find_recipe", find_recipe)
    file = tmp_path / "settings.toml"
    file.write_text(text)
    assert main(["train", *recipe, "--config", str(file)]) == 2
    assert line in capsys.readouterr().err and not fake_runs.calls


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[train]\nbatch_sise = 32", 'train.batch_sise: unknown setting of TrainConfig; did you mean "batch_size"?'),
        ('[train]\nbatch_size = "many"', "train.batch_size: got 'many', expected a whole number"),
        ("[train]\nbatch_size = 0", "train.batch_size: got 0, expected at least 1"),
        ("[modle]\na = 1", 'modle: unknown setting of RunConfig; did you mean "model"?'),
    ],
)
def test_a_mistake_in_the_file_names_the_file(
    text: str, line: str, fake_runs: FakeRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    assert main(["train", "toy", "--config", str(file)]) == 2
    assert capsys.readouterr().err == f"triptych: error: {file}: {line}\n"
    assert not fake_runs.calls


def test_a_missing_file(fake_runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "toy", "--config", "none.toml"]) == 2
    assert capsys.readouterr().err == "triptych: error: --config: there is no file 'none.toml'\n"
    assert main(["train", "toy", "--config"]) == 2
    assert capsys.readouterr().err.startswith("triptych: error: --config: the value is missing")


def test_a_run_in_the_place_of_the_recipe_goes_on_with_its_own_settings(
    fake_runs: FakeRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "mine"
    run.mkdir()
    (run / "config.json").write_text("{}")
    fake_runs.config = dataclasses.replace(toy_recipe(), train=dataclasses.replace(toy_recipe().train, seed=77))
    assert main(["train", str(run), "--train.total-images", "200"]) == 0
    (opened, _, _), (name, (config, directory), named) = fake_runs.calls
    assert (opened, name, directory) == ("open_run", "train", run)
    assert (config.train.seed, config.train.total_images) == (77, 200)
    assert named == {"recipe": None, "init_from": None, "device": None}
    assert main(["train", str(run), "--run", "elsewhere"]) == 2
    assert f"--run: got 'elsewhere' beside the run '{run}'" in capsys.readouterr().err


def test_only_the_first_process_prints(fake_runs: FakeRuns, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert main(["train", "toy"]) == 0
    assert capsys.readouterr().out == ""


def test_a_folder_that_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"triptych: error: {tmp_path} is neither a recipe nor a run: the folder has no config.json")


def test_a_path_that_is_no_run_is_no_unknown_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/faces").mkdir(parents=True)
    Path("runs/faces/config.json").touch()
    for given, hint in (("runs/face", ': there is no config.json; did you mean "faces"?'), ("run/faces", "")):
        assert main(["train", given]) == 2
        assert capsys.readouterr().err.startswith(f"triptych: error: no run in {given}{hint}")
