"""`triptych sample`: what is handed to the Python API, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triptych.cli.main import main

from .conftest import FakeRuns, SilentConfig, ToySampling


def sampled(fake: FakeRuns, *arguments: str) -> dict[str, Any]:
    assert main(["sample", "runs/toy", *arguments]) == 0
    (opened, (directory,), _), (name, (count,), named) = fake.calls
    assert (opened, directory, name) == ("open_run", "runs/toy", "sample")
    named.pop("progress")
    return {"count": count, **named}


def test_by_default_the_settings_of_the_run(fake_runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    assert sampled(fake_runs) == {
        "count": 64,
        "seed": 0,
        "labels": None,
        "settings": ToySampling(),
        "batch_size": None,
        "checkpoint": "latest",
        "weights": None,
        "device": None,
        "precision": "float32",
        "guide": None,
        "guide_with": None,
        "out": Path("runs/toy/samples.png"),
    }
    assert capsys.readouterr().out == "64 images in runs/toy/samples.png\n"


def test_every_option(fake_runs: FakeRuns) -> None:
    options = "--count 10 --seed 3 --labels 3,7,cat --steps 50 --sampler ddim --eta 0.5 --batch-size 5 --checkpoint 512000"
    options += " --weights ema-0.999 --device cpu --precision bf16 --guide runs/judge --guide-with runs/weak --out a.npz"
    asked = sampled(fake_runs, *options.split())
    assert asked == {
        "count": 10,
        "seed": 3,
        "labels": [3, 7, "cat"],
        "settings": ToySampling(steps=50, sampler="ddim", eta=0.5),
        "batch_size": 5,
        "checkpoint": "512000",
        "weights": "ema-0.999",
        "device": "cpu",
        "precision": "bf16",
        "guide": "runs/judge",
        "guide_with": "runs/weak",
        "out": Path("a.npz"),
    }


@pytest.mark.parametrize(("given", "count"), [("", 7), ("--count 3", 3)])
def test_the_images_of_an_upsampler(given: str, count: int, fake_runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "runs/toy", "--base", "small.npz", "--labels", "3,cat", "--steps", "5", *given.split()]) == 0
    (_, _, _), (asked, (base,), _), (name, (inputs,), named) = fake_runs.calls
    assert (asked, base, name, inputs.count) == ("inputs", "small.npz", "translate", 7)
    named.pop("progress")
    assert named == {
        "count": count,
        "seed": 0,
        "labels": [3, "cat"],
        "settings": ToySampling(steps=5),
        "batch_size": None,
        "checkpoint": "latest",
        "weights": None,
        "device": None,
        "precision": "float32",
        "out": Path("runs/toy/samples.png"),
    }
    assert capsys.readouterr().out == f"{count} images in runs/toy/samples.png\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--count 0", "--count: got 0, expected at least 1"),
        ("--count many", "--count: got 'many', expected a whole number or None"),
        ("--eta -1", "--eta: got -1.0, expected 0 or more"),
        ("--sampler dim", "--sampler: got 'dim', expected one of ancestral, ddim; did you mean \"ddim\"?"),
        ("--sampels 3", '--sampels: unknown setting; did you mean "--sampler"?'),
        ("--out grid.jpg", "--out: got 'grid.jpg', expected a name that ends with .png or .npz, or a folder"),
        ("--labels 3,,7", "--labels: got '3,,7', expected numbers or names of classes, separated by commas"),
        ("--checkpoint newest", "--checkpoint: got 'newest', expected latest, best or a number of images"),
        (
            "--base runs/small --guide runs/judge",
            "--guide: got 'runs/judge', expected none beside --base: draw with it to an .npz first, and give that as --base",
        ),
    ],
)
def test_mistakes(arguments: str, line: str, fake_runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "runs/toy", *arguments.split()]) == 2
    assert capsys.readouterr().err == f"triptych: error: {line}\n"
    assert [name for name, _, _ in fake_runs.calls] == ["open_run"]


def test_a_model_without_a_sampler(fake_runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    fake_runs.config = dataclasses.replace(fake_runs.config, model=SilentConfig())
    assert main(["sample", "runs/toy"]) == 2
    assert capsys.readouterr().err == "triptych: error: runs/toy: a Silent draws no samples\n"


def test_an_upsampler_wants_images_and_a_sampler_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.contract.shrink import BATCH, shrunk
    from triptych.runs import train

    for recipe in ("upsample-digits", "adm-digits"):
        train(shrunk(recipe).updated({"train": {"total_images": BATCH}}), tmp_path / recipe, device="cpu")
    np.savez(tmp_path / "small.npz", arr_0=np.zeros((3, 4, 4, 1), dtype=np.uint8), arr_1=np.arange(3))
    capsys.readouterr()
    base = ["--base", str(tmp_path / "small.npz"), "--device", "cpu", "--out", str(tmp_path / "large.npz")]
    assert main(["sample", str(tmp_path / "adm-digits"), *base]) == 2
    assert capsys.readouterr().err == "triptych: error: model: ADM takes no images; leave out --base\n"
    assert main(["sample", str(tmp_path / "upsample-digits"), *base[2:]]) == 2
    line = "triptych: error: model: SuperResolution makes images from images of 4 pixels; give some by --base\n"
    assert capsys.readouterr().err == line
    assert main(["sample", str(tmp_path / "upsample-digits"), *base]) == 0
    assert capsys.readouterr().out == f"3 images in {tmp_path / 'large.npz'}\n"
    with np.load(tmp_path / "large.npz") as arrays:
        assert arrays["arr_0"].shape == (3, 8, 8, 1) and arrays["arr_1"].tolist() == [0, 1, 2]
