"""`triptych sample`: what is handed to the Python API, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from triptych.cli.arguments import at_checkpoint
from triptych.cli.main import main
from triptych.core.batch import DataSpec

from .conftest import FakeRun, FakeRuns, SilentConfig, ToySampling, toy_recipe


def sampled(fake: FakeRuns, *arguments: str) -> dict[str, Any]:
    assert main(["sample", "runs/toy", *arguments]) == 0
    (opened, (directory,), _), *_, (name, (count,), named) = fake.calls
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
        "ema_length": None,
        "device": None,
        "precision": "float32",
        "guide": None,
        "guide_with": None,
        "guide_ema_length": None,
        "out": Path("runs/toy/samples.png"),
    }
    assert capsys.readouterr().out == "64 images in runs/toy/samples.png\n"


def test_every_option(fake_runs: FakeRuns) -> None:
    options = "--count 10 --seed 3 --labels 3,7,cat --steps 50 --sampler ddim --eta 0.5 --batch-size 5 --checkpoint 512000"
    options += " --weights ema-0.999 --device cpu --precision bf16 --guide runs/judge --guide-with runs/weak --guide-ema-length 0.2"
    options += " --out a.npz"
    asked = sampled(fake_runs, *options.split())
    assert asked == {
        "count": 10,
        "seed": 3,
        "labels": ["3", "7", "cat"],
        "settings": ToySampling(steps=50, sampler="ddim", eta=0.5),
        "batch_size": 5,
        "checkpoint": "512000",
        "weights": "ema-0.999",
        "ema_length": None,
        "device": "cpu",
        "precision": "bf16",
        "guide": "runs/judge",
        "guide_with": "runs/weak",
        "guide_ema_length": 0.2,
        "out": Path("a.npz"),
    }


@pytest.mark.parametrize("place", ["runs/toy/checkpoints/000512000", "runs/toy/checkpoints/000512000/"])
def test_the_folder_of_a_checkpoint_is_understood(place: str, fake_runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", place, "--count", "3"]) == 0
    (_, (directory,), _), (_, (count,), named) = fake_runs.calls
    assert (directory, count, named["checkpoint"], named["out"]) == ("runs/toy", 3, "512000", Path("runs/toy/samples.png"))
    assert main(["sample", place, "--checkpoint=best"]) == 2
    line = f"--checkpoint: got one beside {place!r}, which is a checkpoint already; leave one of them out"
    assert capsys.readouterr().err == f"triptych: error: {line}\n"


def test_the_folder_of_a_checkpoint_is_understood_by_every_verb() -> None:
    for arguments in (["r/checkpoints/7"], ["r/checkpoints/7", "images", "--count", "3"], ["r/checkpoints/7", "--labels", "1", "2"]):
        assert at_checkpoint(arguments) == ["r", *arguments[1:], "--checkpoint", "7"]
    for arguments in ([], ["--help"], ["r"], ["r/checkpoints"], ["checkpoints/x", "--checkpoint", "5"]):
        assert at_checkpoint(arguments) == arguments


@pytest.mark.parametrize(("given", "count"), [("", 7), ("--count 3", 3)])
def test_the_images_of_an_upsampler(given: str, count: int, fake_runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "runs/toy", "--base", "small.npz", "--labels", "3,cat", "--steps", "5", *given.split()]) == 0
    (_, _, _), (asked, (base,), _), (name, (inputs,), named) = fake_runs.calls
    assert (asked, base, name, inputs.count) == ("inputs", "small.npz", "upsample", 7)
    named.pop("progress")
    assert named == {
        "count": count,
        "seed": 0,
        "labels": ["3", "cat"],
        "settings": ToySampling(steps=5),
        "batch_size": None,
        "checkpoint": "latest",
        "weights": None,
        "ema_length": None,
        "device": None,
        "precision": "float32",
        "out": Path("runs/toy/samples.png"),
    }
    assert capsys.readouterr().out == f"{count} images in runs/toy/samples.png\n"


def test_a_class_whose_name_has_commas_is_named(fake_runs: FakeRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ImageNet's one name begins with another; those of a run without classes are its guide's."""
    names = ("tench, Tinca tinca", "maillot", "maillot, tank suit", "a,b", "a,b,c", "c")
    spec = DataSpec(image_size=16, channels=1, num_classes=6, class_names=names)
    bare = DataSpec(image_size=16, channels=1)
    monkeypatch.setattr(
        "triptych.runs.open_run", lambda place: FakeRun(fake_runs, Path(place), toy_recipe(), bare if "bare" in str(place) else spec)
    )
    for given, labels in (
        (["tench, Tinca tinca,3"], ["tench, Tinca tinca", "3"]),
        (["tench,Tinca tinca,maillot", "maillot, tank suit"], ["tench, Tinca tinca", "maillot", "maillot, tank suit"]),
        (["a,b,a,b,c,c"], ["a,b", "a,b,c", "c"]),
        (["tench,3"], ["tench", "3"]),
    ):
        for run in (["runs/toy"], ["runs/bare", "--guide", "runs/toy/checkpoints/512"]):
            assert main(["sample", *run, "--labels", *given]) == 0
            assert fake_runs.calls.pop()[2]["labels"] == labels


@pytest.fixture
def edited(fake_runs: FakeRuns, monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    """The fakes with `Run.edit`, which makes nine images."""

    def edit(self: FakeRun, *given: Any, **named: Any) -> SimpleNamespace:
        self.runs.calls.append(("edit", given, named))
        named.pop("progress")(9, 9)
        return SimpleNamespace(images=range(9))

    monkeypatch.setattr(FakeRun, "edit", edit, raising=False)
    return fake_runs


NOTHING = {
    "strengths": None,
    "pick": None,
    "between": None,
    "path": None,
    "count": None,
    "mix": None,
    "mix_at": None,
    "labels": None,
    "seed": 0,
    "settings": None,
    "directions": None,
    "batch_size": None,
    "checkpoint": "latest",
    "weights": None,
    "ema_length": None,
    "device": None,
    "precision": "float32",
    "out": Path("runs/toy/samples.png"),
}


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ("--from a.npz", {}),
        ("--from=a.npz --pick 0,5 --count 3", {"pick": [0, 5], "count": 3}),
        ("--latents a.npz --pick 5", {"pick": [5]}),
        (
            "--direction smiling=0.8,young=-.5 --from a.npz --directions d.npz",
            {"strengths": {"smiling": 0.8, "young": -0.5}, "directions": "d.npz"},
        ),
        ("--from a.npz --direction a=b=-1:1e0 --labels 3,cat", {"strengths": {"a=b": (-1.0, 1.0)}, "labels": ["3", "cat"]}),
        ("--from a.npz --direction a,b=1,c,d=-1:1,e=0", {"strengths": {"a,b": 1.0, "c,d": (-1.0, 1.0), "e": 0.0}}),
        ("--from a.npz --pick 0 5 --labels 3 cat", {"pick": [0, 5], "labels": ["3", "cat"]}),
        ("--from a.npz --direction smiling=0.8 young=-.5", {"strengths": {"smiling": 0.8, "young": -0.5}}),
        ("--from a.npz --between 3 7", {"between": (3, 7)}),
        ("--from a.npz --between 3,7 --path sphere --count 5", {"between": (3, 7), "path": "sphere", "count": 5}),
        (
            "--from a.npz --batch-size 4 --checkpoint best --weights raw --device cpu --precision bf16 --out b.npz",
            {"batch_size": 4, "checkpoint": "best", "weights": "raw", "device": "cpu", "precision": "bf16", "out": Path("b.npz")},
        ),
    ],
)
def test_images_of_latents(arguments: str, asked: dict[str, Any], edited: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "runs/toy", *arguments.split()]) == 0
    _, (name, (latents,), named) = edited.calls
    assert (name, latents) == ("edit", "a.npz") and named == NOTHING | asked
    assert capsys.readouterr().out == f"9 images in {named['out']}\n"


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ("--pick 0", {"pick": [0]}),
        ("--direction a=1 --count 3 --directions d.npz", {"strengths": {"a": 1.0}, "count": 3, "directions": "d.npz"}),
        ("--between 0,1 --seed 3 --labels 3,7", {"between": (0, 1), "seed": 3, "labels": ["3", "7"]}),
        ("--mix 2,3 --mix-at 16 --steps 5", {"mix": (2, 3), "mix_at": 16, "settings": ToySampling(steps=5)}),
    ],
)
def test_images_of_the_latents_of_samples(arguments: str, asked: dict[str, Any], edited: FakeRuns) -> None:
    assert main(["sample", "runs/toy", *arguments.split()]) == 0
    _, (name, (latents,), named) = edited.calls
    assert (name, latents) == ("edit", None) and named == NOTHING | {"settings": ToySampling()} | asked


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--seed 3", "--seed: got 3, expected 0 with --from, which draws nothing; leave it out"),
        ("--steps 5", "--steps: got it with --from, which draws nothing: latents are decoded as they were encoded; leave it out"),
        ("--eta=0.0", "--eta: got it with --from, which draws nothing: latents are decoded as they were encoded; leave it out"),
        ("--base b", "--base: got 'b', expected nothing with --from, which draws nothing; leave it out"),
        ("--guide b", "--guide: got 'b', expected nothing with --from, which draws nothing; leave it out"),
        ("--guide-with b", "--guide-with: got 'b', expected nothing with --from, which draws nothing; leave it out"),
        ("--from=", "--from: got '', expected an .npz of latents (triptych encode makes it); leave it out to draw samples"),
        ("--pick 0,x", "--pick: got '0,x', expected one value or several (A,B or A B), each a whole number"),
        ("--pick -1", "--pick: got -1, expected numbers of latents, from 0 on"),
        ("--between 3", "--between: got '3', expected 2 values, each a whole number"),
        ("--direction smiling", "--direction: got 'smiling', expected NAME=STRENGTH or NAME=FROM:TO (smiling=0.8,young=-1:1)"),
        ("--direction a=1,b=x", "--direction: got 'b=x', expected NAME=STRENGTH or NAME=FROM:TO (smiling=0.8,young=-1:1)"),
        ("--direction a=1,b", "--direction: got 'b', expected NAME=STRENGTH or NAME=FROM:TO (smiling=0.8,young=-1:1)"),
        ("--direction a=nan", "--direction: got 'a=nan', expected NAME=STRENGTH or NAME=FROM:TO (smiling=0.8,young=-1:1)"),
        ("--direction a=0:1:2", "--direction: got 'a=0:1:2', expected NAME=STRENGTH or NAME=FROM:TO (smiling=0.8,young=-1:1)"),
        ("--direction a=1,a=2", "--direction: got a twice"),
        ("--directions d.npz", "--directions: got 'd.npz', expected nothing without --direction"),
        ("--path sphere", "--path: got 'sphere', expected nothing without --between"),
    ],
)
def test_what_does_not_go_with_latents(arguments: str, line: str, edited: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "runs/toy", "--from", "a.npz", *arguments.split()]) == 2
    assert capsys.readouterr().err == f"triptych: error: {line}\n"
    assert [name for name, _, _ in edited.calls] == ["open_run"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--pick 0 --guide a", "--guide: got 'a' beside --pick; leave one of them out"),
        ("--between 0,1 --base a", "--base: got 'a' beside --between; leave one of them out"),
        ("--mix-at 8", "--mix-at: got 8, expected nothing without --mix"),
        ("--from", "--from: the value is missing, expected text"),
        ("--count 0", "--count: got 0, expected at least 1"),
        ("--count many", "--count: got 'many', expected a whole number"),
        ("--eta -1", "--eta: got -1.0, expected 0 or more"),
        ("--sampler dim", "--sampler: got 'dim', expected one of ancestral, ddim; did you mean \"ddim\"?"),
        ("--truncation 0.7", "--truncation: a setting of StyleGAN2, not of this run's sampler, which has --steps, --sampler, --eta"),
        (
            "--truncation_layers 4",
            "--truncation_layers: a setting of StyleGAN2, not of this run's sampler, which has --steps, --sampler, --eta",
        ),
        (
            "--guidance-scale 2",
            "--guidance-scale: a setting of ADM, FlowMatching, EDM and others, not of this run's sampler, which has "
            "--steps, --sampler, --eta",
        ),
        ("--sampels 3", '--sampels: unknown setting; did you mean "--sampler"?'),
        ("--out grid.gif", "--out: got 'grid.gif', expected a name that ends with .png, .jpg, .webp or .npz, or a folder"),
        ("--labels 3,,7", "--labels: got '3,,7', expected one value or several (A,B or A B), each text"),
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


def test_help(fake_runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "--help"]) == 0
    assert "--from LATENTS.npz --between 3,7" in capsys.readouterr().out
    assert main(["sample", "runs/toy", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(flag in shown for flag in ("--from", "--pick", "--direction", "--between", "--steps"))


def test_a_model_without_a_sampler(fake_runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    fake_runs.config = dataclasses.replace(fake_runs.config, model=SilentConfig())
    assert main(["sample", "runs/toy"]) == 2
    assert capsys.readouterr().err == "triptych: error: runs/toy: a Silent draws no samples\n"


@pytest.mark.slow
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
