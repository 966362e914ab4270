"""`triptych evaluate`: what is handed to the Python API, what is printed, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contract.shrink import BATCH, shrunk
from tests.runs.glow import folder, moved_run, pixels
from triptych.cli.evaluate import table
from triptych.cli.main import main
from triptych.data.config import DataConfig
from triptych.evaluation.bits_per_dim import BitsPerDimConfig
from triptych.recipes.catalogue import load_recipe
from triptych.runs.evaluation import Evaluation

from .conftest import FakeRun, FakeRuns, toy_recipe

DOCUMENT = {
    "images": 20,
    "shape": [1, 16, 16],
    "seconds": 4.5,
    "data": {"split": "validation", "available": 90},
    "checkpoint": {"images": 50048, "weights": "ema-0.999", "hash": "0"},
}


@pytest.fixture
def fake(fake_runs: FakeRuns, monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    def evaluate(self: FakeRun, *given: Any, **named: Any) -> Evaluation:
        self.runs.calls.append(("evaluate", given, named))
        named["progress"](5, 20)
        figures: dict[str, dict[str, float | None]] = {"bits-per-dim": {"bits_per_dim": 2.83384, "standard_error": 0.04401, "prior": 0.0}}
        return Evaluation(figures, {}, DOCUMENT, Path("runs/toy/evaluations/a.json"))

    monkeypatch.setattr(FakeRun, "evaluate", evaluate, raising=False)
    monkeypatch.setattr("triptych.cli.evaluate.require_images", lambda given, **_: None)
    return fake_runs


def asked(fake: FakeRuns, *arguments: str) -> dict[str, Any]:
    assert main(["evaluate", "runs/toy", *arguments]) == 0
    (opened, (directory,), _), (name, (metrics,), named) = fake.calls
    assert (opened, directory, name) == ("open_run", "runs/toy", "evaluate")
    named.pop("progress")
    return {"metrics": metrics, **named}


def test_by_default_the_images_of_the_run(fake: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(fake) == {
        "metrics": ("bits-per-dim",),
        "settings": BitsPerDimConfig(),
        "data": toy_recipe().data,
        "split": None,
        "count": None,
        "seed": 0,
        "batch_size": None,
        "checkpoint": "latest",
        "weights": None,
        "ema_length": None,
        "device": None,
        "precision": "float32",
        "out": None,
    }
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "bits_per_dim    2.8338 ± 0.0440",
        "  prior         0.0000",
        "on 20 of 90 images (split validation) of 16x16x1 = 256 values, 4.5 s",
        "by ema-0.999 at 50048 images seen; written to runs/toy/evaluations/a.json",
    ]
    assert printed.err == ""


def test_a_single_image_is_called_so() -> None:
    for images, available, said in ((1, 1, "on 1 image (split"), (1, 2_000, "on 1 of 2,000 images (split"), (3, 3, "on 3 images (split")):
        document = DOCUMENT | {"images": images, "data": {"split": "validation", "available": available}}
        figures: dict[str, dict[str, float | None]] = {"bits-per-dim": {"bits_per_dim": 2.5, "standard_error": None}}
        assert table(Evaluation(figures, {}, document, Path("a.json"))).splitlines()[-2].startswith(said)


def test_every_option(fake: FakeRuns) -> None:
    options = "--metrics bits-per-dim --split all --count 10 --seed 3 --batch-size 5 --checkpoint 512000 --weights raw --device cpu"
    settings = "--precision bf16 --out a.json --likelihood ode --steps 20 --no-clip --probes None --data.path images --data.source auto"
    assert asked(fake, *options.split(), *settings.split()) == {
        "metrics": ("bits-per-dim",),
        "settings": BitsPerDimConfig(likelihood="ode", steps=20, clip=False, probes=None),
        "data": DataConfig(source="auto", path="images", image_size=16),
        "split": "all",
        "count": 10,
        "seed": 3,
        "batch_size": 5,
        "checkpoint": "512000",
        "weights": "raw",
        "ema_length": None,
        "device": "cpu",
        "precision": "bf16",
        "out": "a.json",
    }


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--metrics", "--metrics: the value is missing, expected one value or several (A,B or A B), each text"),
        ("--count 0", "--count: got 0, expected at least 1"),
        ("--split test", "--split: got 'test', expected one of validation, train, all"),
        ("--likelihood od", "--likelihood: got 'od', expected one of bound, ode; did you mean \"ode\"?"),
        ("--likelihood ode --steps ddim25", "--steps: got 'ddim25', expected a number, with likelihood ode"),
        ("--probes 0", "--probes: got 0, expected at least 1, or None for the exact divergence"),
        ("--out a.npz", "--out: got 'a.npz', expected a name that ends with .json"),
        ("--data.pth x", '--data.pth: unknown setting; did you mean "--data.path"?'),
        ("--checkpoint newest", "--checkpoint: got 'newest', expected latest, best or a number of images"),
        ("--batch-size 0", "--batch-size: got 0, expected at least 1"),
        ("--seed -1", "--seed: got -1, expected 0 or more"),
    ],
)
def test_mistakes(arguments: str, line: str, fake: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "runs/toy", *arguments.split()]) == 2
    assert capsys.readouterr().err == f"triptych: error: {line}\n"
    assert [name for name, _, _ in fake.calls] == ["open_run"]


USAGE = "usage: triptych evaluate RUN_OR_IMAGES [--reference IMAGES] [--metrics LIST] [--count N]"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "no run or images given"),
        (["--count"], "got '--count' where a run or images are expected"),
        ([""], "got '' where a run or images are expected"),
        (["", "--reference", "b"], "got '' where a run or images are expected"),
    ],
)
def test_without_a_run(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", *arguments]) == 2
    assert capsys.readouterr().err == f"triptych: error: {line}; {USAGE}\n"


@pytest.mark.parametrize("flags", ["", "--count 3", "--metrics kid"])
def test_a_reference_without_its_value_is_no_unknown_setting(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "runs/toy", *flags.split(), "--reference"]) == 2
    line = "--reference: the value is missing, expected images, a file of statistics, or a run"
    assert capsys.readouterr().err == f"triptych: error: {line}\n"


@pytest.mark.parametrize("flags", ["", "--reference a.mp4", "--metrics is", "--metrics sharpness --reference a.mp4"])
def test_a_video_is_told_of_what_is_measured(
    flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.mp4").write_bytes(b"")
    assert main(["evaluate", "a.mp4", *flags.split()]) == 2
    said = "a video, of which the frames are measured: give a folder with a sub-folder of them for each clip"
    assert capsys.readouterr().err == f"triptych: error: a.mp4: {said} (ffmpeg -i a.mp4 FOLDER/a/%06d.png)\n"


def test_likelihood_and_figures_of_images_are_not_mixed(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, line in (
        (
            "--metrics kid,bits-per-dim",
            "--metrics: got bits-per-dim beside kid; measure it by a command of its own: its flags are those of",
        ),
        (
            "--metrics bits-per-dim --reference x",
            "--reference: got 'x', but bits-per-dim is measured on the images of --data.path, without",
        ),
    ):
        assert main(["evaluate", "runs/toy", *arguments.split()]) == 2
        assert capsys.readouterr().err.startswith(f"triptych: error: {line}")


def test_help(fake: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--help"]) == 0
    assert "bits-per-dim" in capsys.readouterr().out
    assert main(["evaluate", "runs/toy", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(flag in shown for flag in ("--metrics", "--likelihood", "--steps", "--data.path", "--split"))


@pytest.mark.slow
def test_a_trained_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from triptych.runs import train

    run = tmp_path / "run"
    train(shrunk("adm-digits").updated({"train": {"total_images": BATCH}}), run, device="cpu")
    capsys.readouterr()
    flags = ["--count", "3", "--batch-size", "2", "--device", "cpu", "--out", str(tmp_path / "a.json")]
    assert main(["evaluate", str(run), *flags, "--likelihood", "ode", "--steps", "2"]) == 0
    printed = capsys.readouterr()
    value = json.loads((tmp_path / "a.json").read_text())["metrics"]["bits-per-dim"]
    assert printed.out.startswith(f"bits_per_dim    {value['bits_per_dim']:.4f} ± {value['standard_error']:.4f}\n  log_prob ")
    assert printed.err == ""
    assert main(["evaluate", str(run), *flags, "--likelihood", "ode", "--steps", "2", "--count", "1"]) == 0
    assert "±" not in capsys.readouterr().out  # one image has no standard error
    for more, line in (
        ((), "--draws: got 8, but the bound of ADM draws no dequantization noise; leave it out"),
        (("--likelihood", "ode"), "--draws: got 8, but the likelihood of ADM has no such setting; leave it out"),
    ):
        assert main(["evaluate", str(run), *flags, "--draws", "8", *more]) == 2
        assert capsys.readouterr().err == f"triptych: error: {line}\n"


def test_a_flow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bits of a folder's images, the same in every batch; more draws of the noise leave the error over the images as it is."""
    run = str(moved_run(tmp_path / "run").directory)
    images = str(folder(tmp_path / "images", pixels(12), [f"{k:02}.png" for k in range(12)]))
    capsys.readouterr()
    found = {}
    for name, flags in (
        ("one", ()),
        ("split", ("--batch-size", "5")),
        ("many", ("--draws", "100")),
        ("again", ("--draws", "100", "--seed", "1")),
    ):
        out = tmp_path / f"{name}.json"
        common = ("--data.path", images, "--split", "all", "--device", "cpu", "--out", str(out))
        assert main(["evaluate", run, *common, *flags]) == 0
        figures = json.loads(out.read_text())["metrics"]["bits-per-dim"]
        each = np.load(out.with_suffix(".npz"))["bits_per_dim"]
        assert len(each) == 12 and figures["bits_per_dim"] == pytest.approx(each.mean())
        assert figures["standard_error"] == pytest.approx(each.std(ddof=1) / 12**0.5)
        assert figures["settings"] == {"likelihood": "exact", "draws": 100 if "--draws" in flags else 1}
        assert f"bits_per_dim    {each.mean():.4f} ± {figures['standard_error']:.4f}" in capsys.readouterr().out
        found[name] = each
    np.testing.assert_allclose(found["split"], found["one"], atol=1e-6, rtol=0)
    noise = np.abs(found["one"] - found["many"]).max()
    assert 1e-3 < noise < 0.1 and np.abs(found["again"] - found["many"]).max() < noise / 4
    for flags, line in (
        (("--draws", "0"), "--draws: got 0, expected at least 1"),
        (("--steps", "5"), "--steps: got 5, but Glow knows the likelihood exactly, without steps; leave it out"),
        (("--likelihood", "ode"), "--likelihood: got ode, but Glow has no such likelihood; leave it out"),
    ):
        assert main(["evaluate", run, "--device", "cpu", *flags]) == 2
        assert capsys.readouterr().err == f"triptych: error: {line}\n"


@pytest.mark.parametrize(("recipe", "name"), [("stylegan2-digits", "StyleGAN2"), ("unit-mnist", "UNIT")])
def test_a_run_that_makes_images_and_has_no_likelihood_says_what_can_be_measured(
    recipe: str, name: str, fake: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.config = load_recipe(recipe)
    assert main(["evaluate", "runs/toy"]) == 2
    line = f"--metrics: {name} has no likelihood, of which bits-per-dim is; measure what it makes: --metrics frechet,kid,precision,recall"
    assert capsys.readouterr().err == f"triptych: error: {line}\n"
    assert [called for called, _, _ in fake.calls] == ["open_run"]


def test_a_run_without_a_likelihood(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from triptych.runs import train

    train(replace(shrunk("classifier-digits")).updated({"train": {"total_images": BATCH}}), tmp_path / "run", device="cpu")
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--device", "cpu"]) == 2
    line = "--metrics: bits-per-dim needs a model that knows how probable an image is; NoisyClassifier does not"
    assert capsys.readouterr().err == f"triptych: error: {line}\n"
