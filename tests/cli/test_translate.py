"""`triptych translate`: its flags, what it prints, and its errors in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.pairs import as_map, write
from tests.data.pictures import encoded, picture
from tests.runs.translators import ONE_MAP, MirrorTranslation, mirror_run, paired_run, plain_data
from triptych.cli import translate
from triptych.cli.main import main
from triptych.core.errors import ConfigError


@pytest.fixture(scope="module")
def styled(tmp_path_factory: pytest.TempPathFactory) -> str:
    run = mirror_run(tmp_path_factory.mktemp("runs") / "styled", plain_data(), styles="optional", random_styles=True)
    return str(run.directory)


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("runs")
    return str(paired_run(root / "mapped", root / "pairs", data=ONE_MAP | {"validation_fraction": 0.5}).directory)


def write_images(folder: Path, count: int = 2) -> str:
    for k in range(count):
        write(folder / f"{k}.png", encoded(picture(16, 16, seed=k, channels=1)))
    return str(folder)


def test_options_and_settings_of_the_model() -> None:
    given = ["--size", "480x640", "--style-count", "5", "--direction", "b-to-a", "--temperature", "0.5", "--held-out"]
    options, settings = translate.configure("runs/x", given, translation=MirrorTranslation())
    assert options.size == "480x640" and options.style_count == 5 and options.held_out
    assert settings == MirrorTranslation(direction="b-to-a", temperature=0.5)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["--size", "big"], "--size: got 'big', expected run, own, a short side (512), or height and width (480x640)"),
        (["--size", "12x"], "--size: got '12x', expected run, own"),
        (["--size", "1" * 9], "--size: got '111111111', expected run, own"),
        (["--style-count", "0"], "--style-count: got 0, expected at least 1"),
        (["--grid", "-1"], "--grid: got -1, expected 0 or more"),
        (["--seed", "-1"], "--seed: got -1, expected 0 or more"),
        (
            ["--out", "x.gif"],
            "--out: got 'x.gif', expected a name that ends with .png, .jpg, .webp, .npz or, for a clip, .mp4 or .webm, or a folder",
        ),
        (["--checkpoint", "newest"], "--checkpoint: got 'newest'"),
        (["--batch-size", "0"], "--batch-size: got 0"),
        (["--count", "0"], "--count: got 0"),
        (["--fps", "0.0001"], "--fps: got 0.0001, expected 0.001 to 1000"),
        (["--out", ""], "--out: got ''"),
        (["--style", ""], "--style: got ''"),
        (["--direction", "c"], "--direction: got 'c', expected one of a-to-b, b-to-a"),
        (["--truncation", "1"], "--truncation: a setting of StyleGAN2, not of this run's model, which has --direction, --temperature"),
        (["--stile", "x"], '--stile: unknown setting; did you mean "--style"?'),
    ],
)
def test_flags_that_cannot_be_used(given: list[str], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        translate.configure("runs/x", given, translation=MirrorTranslation())
    assert line in str(caught.value)


def test_a_folder_of_answers_and_their_grid(styled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_images(tmp_path / "in")
    out = tmp_path / "out"
    assert main(["translate", styled, folder, "--style-count", "3", "--seed", "5", "--device", "cpu", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"6 images in {out}\n"
    assert {path.name for path in out.glob("*.png")} == {f"{k}_{answer}.png" for k in range(2) for answer in range(3)} | {"grid.png"}
    assert main(["translate", styled, folder, "--size", "own", "--grid", "0", "--device", "cpu"]) == 0
    assert {path.name for path in (Path(styled) / "translated").glob("*.png")} == {"0.png", "1.png"}
    cold = ["--temperature", "0", "--direction", "b-to-a", "--size", "32x24", "--count", "1"]
    assert main(["translate", styled, folder, *cold, "--device", "cpu", "--out", str(tmp_path / "cold.png")]) == 0
    assert capsys.readouterr().out.endswith(f"1 image in {tmp_path / 'cold.png'}\n")
    with Image.open(tmp_path / "cold.png") as image:
        assert image.size == (24, 32)
    assert main(["translate", styled, folder, "--style", folder, "--style-each", "--device", "cpu", "--out", str(tmp_path / "x.npz")]) == 0
    with np.load(tmp_path / "x.npz") as arrays:
        assert arrays["arr_0"].shape == (2, 16, 16, 1)


def test_held_out_images(mapped: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", mapped, "--held-out", "--count", "2", "--device", "cpu", "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"2 images in {tmp_path / 'out'}\n"
    with Image.open(tmp_path / "out/grid.png") as image:
        assert image.size == ((2 + 3 * 14) * 6, (2 + 2 * 10) * 6)


def test_errors_are_one_line_and_code_2(styled: str, mapped: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_images(tmp_path / "in")
    write(tmp_path / "maps/a.png", as_map(np.full((16, 24), 9)))
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{")
    usage = "usage: triptych translate RUN INPUT [--out DIR], or triptych translate RUN --held-out"
    cases = [
        ([], f"no run given; {usage}"),
        (["--held-out"], "got '--held-out' where the run directory is expected"),
        ([styled], f"no input given; {usage}"),
        ([styled, "--seed", "3"], f"no input given; {usage}"),
        ([styled, folder, "--held-out"], f"--held-out: got an input, {folder!r}, too; give one of them"),
        ([styled, str(tmp_path / "none")], f"{tmp_path / 'none'}: does not exist"),
        ([str(tmp_path / "damaged"), str(tmp_path / "none")], f"{tmp_path / 'none'}: does not exist"),  # before the run is opened
        ([styled, folder, "--style-each"], "--style-each: got true, but there are no style images to take in turn; give them by --style\n"),
        (
            [styled, folder, "--style", folder, "--style-count", "2"],
            "all answers would have the one style that is given; take style images in turn by --style-each\n",
        ),
        ([mapped, folder, "--style", folder], "--style: Mirror takes no style from images"),
        ([mapped, folder, "--style-count", "2"], "--style-count: got 2, but Mirror draws no style at random"),
        ([styled, folder, "--size", "18"], "--size: got 18, expected multiples of 4 from 8 to 16384"),
        ([styled, folder, "--count", "3"], "--count: got 3, expected 1 to 2, the images that are there"),
        (
            [mapped, str(tmp_path / "maps")],
            f"{tmp_path / 'maps/a.png'}: holds class 9, expected 0 to 1: the model knows no others; change the map",
        ),
        ([styled, ""], "got an empty word as input, which would be the current folder; write . for that"),
        ([styled, folder, "--out", str(tmp_path / "in")], f"cannot write {tmp_path / 'in'}: it lies in {folder}, which is read"),
        ([str(tmp_path), folder], "there is no config.json"),
    ]
    for given, line in cases:
        given = [*given, "--device", "cpu"] if len(given) > 1 else given
        assert main(["translate", *given]) == 2, given
        error = capsys.readouterr().err
        assert line in error and error.startswith("triptych: error: ") and error.count("\n") == 1, (given, error)


def test_help_has_the_settings_of_the_model(styled: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", styled, "--help"]) == 0
    shown = capsys.readouterr().out
    assert main(["translate", styled, "none", "--help"]) == 0 and capsys.readouterr().out == shown
    assert "--style-each" in shown and "--temperature" in shown and "the negative" in shown
