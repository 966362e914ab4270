"""`triptych evaluate` of images: what is printed and written, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contract.shrink import BATCH, light
from tests.data.pictures import write_folder
from triptych.cli import score
from triptych.cli.main import main
from triptych.cli.score import spelled, swept
from triptych.engine.run_directory import RunDirectory
from triptych.report.measured import differences, evaluations
from triptych.report.sweeps import sweeps
from triptych.runs import open_run, train
from triptych.runs.model_images import ImageRequest, SampleMaker
from triptych.runs.protocol import protocol_line


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    config = light("adm-digits").updated({"train": {"total_images": BATCH, "validate_images": 0}})
    path = tmp_path_factory.mktemp("runs") / "digits"
    train(config, path, device="cpu")
    return str(path)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIPTYCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def npz(path: Path, *, seed: int) -> str:
    np.savez(path, arr_0=np.random.default_rng(seed).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8))
    return str(path)


def test_two_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, out = npz(tmp_path / "a.npz", seed=0), npz(tmp_path / "b.npz", seed=1), tmp_path / "scores.json"
    command = ["evaluate", a, "--reference", b, "--features", "random", "--device", "cpu", "--out", str(out)]
    flags = ["--metrics", "frechet,kid", "fid", "--metric.kid-subset-size", "10"]
    assert main([*command, *flags]) == 0
    document = json.loads(out.read_text())
    first, second, third, protocol = capsys.readouterr().out.splitlines()
    figures = document["figures"]
    assert first.split() == ["fd-random", *spelled(figures["fd-random"]["value"], figures["fd-random"]["error"]).split()]
    assert second.split()[0] == "kid" and figures["kid"]["subset_size"] == 10
    assert third.startswith("fid          not measured: FID is the distance in the space inception alone")
    assert document["missing"].keys() == {"fid"}
    assert protocol.startswith(f"40 images (few: below 2048) of {a} (") and protocol.endswith(f"; written to {out}")
    assert main([*command, *flags]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"; was already in {out}")
    assert main(["evaluate", a, "--metrics", "is", "--features", "random"]) == 2
    line = '--metrics: is cannot be measured: random has no "logits"; inception, mnist-lenet, cifar10-resnet20 have it'
    assert capsys.readouterr().err == f"triptych: error: {line}\n"


@pytest.mark.slow
def test_a_run_with_flags_of_its_sampler(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["evaluate", run, "--metrics", "frechet", "--features", "random", "--device", "cpu", "--count", "5", "--labels", "3,7"]
    capsys.readouterr()
    assert main([*command, "--sampler", "ddim", "--steps", "2"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert ", sampler ddim, steps 2, " in line and "reference: 1707 training images of the built-in digits" in line
    (path,) = (Path(run) / "evaluations").glob("frechet-*.json")
    assert line.endswith(f"; written to {path}")
    assert json.loads(path.read_text())["protocol"]["made"]["labels"] == [3, 7]


def named(run: str, place: Path, names: list[str] | None) -> str:
    """A copy of the run whose classes have these names."""
    shutil.copytree(run, place)
    document = json.loads((place / "config.json").read_text())
    document["spec"]["class_names"] = names
    (place / "config.json").write_text(json.dumps(document))
    return str(place)


def test_labels_are_names_of_classes_with_commas_too(run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["tabby, tabby cat", "dog", *map(str, range(8))]
    own, guide, plain = (named(run, tmp_path / name, given) for name, given in (("own", names), ("guide", names), ("plain", None)))
    asked: list[Any] = []
    monkeypatch.setattr(score, "score", lambda *given, request, **others: asked.append(request.labels))
    monkeypatch.setattr(score, "table", lambda scores: [])
    words = ["--metrics", "kid", "--labels", "dog,tabby, tabby cat,7"]
    for command in ([own, *words], [plain, *words, "--guide", guide], [plain, *words]):
        assert main(["evaluate", *command]) == 0
    pieces = ["dog", "tabby", "tabby cat", "7"]
    assert asked == [["dog", names[0], "7"], ["dog", names[0], "7"], pieces]
    request = ImageRequest(labels=asked[0])
    assert SampleMaker(open_run(own), request).request.labels == asked[0]


def test_a_sweep_of_averages_goes_by_their_rates() -> None:
    assert swept("ema=0.99,0.999") == ("weights", ["ema-0.99", "ema-0.999"])


def test_a_sweep_is_one_evaluation_for_each_value(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["evaluate", run, "--metrics", "frechet,kid", "--features", "random", "--device", "cpu", "--count", "6", "--sampler", "ddim"]
    capsys.readouterr()
    assert main([*common, "--steps", "3"]) == 0
    alone = capsys.readouterr().out.splitlines()
    out = tmp_path / "sweep.json"
    before = set((Path(run) / "evaluations").glob("*.json"))
    assert main([*common, "--sweep", "steps=2,3", "--out", str(out)]) == 0
    head, first, second, protocol = capsys.readouterr().out.splitlines()
    assert head.split() == ["steps", "fd-random", "kid"] and (first.split()[0], second.split()[0]) == ("2", "3")
    assert second.split()[1] == alone[0].split()[1] != first.split()[1]
    assert protocol.startswith("steps = 2, 3, else 6 images") and protocol.endswith(f"; written to {out}")
    assert ", sampler ddim, guidance_scale 1.0, seed 0, " in protocol
    assert len(set((Path(run) / "evaluations").glob("*.json")) - before) == 1  # that of 3 steps was there
    parts = json.loads(out.read_text())["sweep"]
    assert [(part["setting"], part["value"], part["protocol"]["sampler"]["steps"]) for part in parts] == [
        ("steps", "2", 2),
        ("steps", "3", 3),
    ]
    assert all(part["settings"]["kid_subsets"] for part in parts), "what a file of one evaluation says too"
    found, notes = evaluations(tmp_path)
    assert notes == [] and differences(found) == ["steps 2", "steps 3"], "as the report finds the protocols that are written"
    assert [chart.title for chart in sweeps({"": found})] == ["fd-random by steps", "kid by steps"]
    assert main([*common[:-2], "--sampler", "heun", "--sweep", "steps=2,3"]) == 0
    head, first, second, protocol = capsys.readouterr().out.splitlines()
    assert head.split() == ["steps", "network", "calls", "fd-random", "kid"] and "network calls" not in protocol
    assert (first.split()[:2], second.split()[:2]) == (["2", "2"], ["3", "4"])  # the first step of all is Euler's, and so is the last
    assert main([*common[:-2], "--sampler", "heun", "--steps", "3"]) == 0
    assert ", steps 3, guidance_scale 1.0, 4 network calls, seed 0, " in capsys.readouterr().out
    assert main([*common, "--steps", "2", "--sweep=weights=raw,ema-0.999"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["weights", "fd-random", "kid"], "all have as many network calls"
    assert [line.split()[0] for line in lines[1:3]] == ["raw", "ema-0.999"] and "evaluations/sweep-weights-" in lines[-1]
    assert f"of {run} (sampler ddim, steps 2, guidance_scale 1.0, " in lines[-1]
    both = [word for word in common if word not in ("--count", "6")]
    assert main([*both, "--steps", "2", "--sweep", "count=6,7"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"count = 6, 7, else images of {run} (")
    assert main([*common, "--steps", "2", "--sweep", "split=train,validation"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert "; random (random weights)" in line and "reference" not in line, "each value has its own"


@pytest.mark.parametrize(
    ("swept", "left_out"),
    [
        ("steps", "steps 20, "),
        ("guidance-scale", "guidance_scale 1.5, "),
        ("seed", "seed 0, "),
        ("ema-length", "ema-0.1 at 144 images seen, abcdefgh, "),
    ],
)
def test_the_line_of_a_sweep_leaves_out_what_has_several_values(swept: str, left_out: str) -> None:
    images = {"weights": "ema-0.1", "images": 144, "hash": "abcdefghij"}
    sampler = {"sampler": "heun", "steps": 20, "guidance_scale": 1.5}
    one: dict[str, Any] = {"made": {"path": "runs/a"}, "weights": images, "sampler": sampler, "count": 5000, "seed": 0, "precision": "fp32"}
    one |= {"reference": None, "network": None, "triptych": "1.0"}
    other = {
        "steps": {"sampler": sampler | {"steps": 40}},
        "guidance-scale": {"sampler": sampler | {"guidance_scale": 2.0}},
        "seed": {"seed": 1},
        "ema-length": {"weights": images | {"weights": "ema-0.2", "hash": "x"}},
    }
    whole = "ema-0.1 at 144 images seen, abcdefgh, sampler heun, steps 20, guidance_scale 1.5, seed 0, fp32"
    assert protocol_line(one) == f"5000 images of runs/a ({whole}); Triptych 1.0"
    assert protocol_line(one, one | other[swept]) == "Triptych 1.0", "what is not shared is left out"
    found = protocol_line(one, one | other[swept], swept=swept)
    assert found == f"5000 images of runs/a ({whole.replace(left_out, '')}); Triptych 1.0" and left_out in whole


def test_the_line_says_which_classes_were_drawn_and_what_led_them() -> None:
    made = {"path": "runs/a", "labels": ["cats"], "guide": "abcdefghij", "guide_with": "klmnopqrst"}
    images = {"weights": "ema-0.1", "images": 144, "hash": "uvwxyzabcd"}
    one: dict[str, Any] = {"made": made, "weights": images, "sampler": {}, "count": 5000, "seed": 0, "precision": "fp32"}
    one |= {"reference": None, "network": None, "triptych": "1.0"}
    how = "ema-0.1 at 144 images seen, uvwxyzab, class cats, led by the classifier abcdefgh, led away from klmnopqr, seed 0, fp32"
    assert protocol_line(one) == f"5000 images of runs/a ({how}); Triptych 1.0"
    assert "144 images seen, uvwxyzab, 2 labels in turn, seed 0" in protocol_line(one | {"made": {"path": "a", "labels": ["b", "c"]}})
    assert "144 images seen, uvwxyzab, seed 0" in protocol_line(one | {"made": {"path": "a", "labels": None}})


def test_the_line_says_what_looked_at_single_images() -> None:
    judge = {"run": "runs/judge", "images": 2048, "weights": "raw", "hash": "abcdefghij"}
    seen = {"class-accuracy": {"classifier": judge}, "psnr": {}, "lpips": {"lpips": "0.1", "network": "vgg16", "sha256": "klmnopqrst"}}
    one: dict[str, Any] = {"made": {"path": "a"}, "weights": None, "sampler": None, "count": 40, "network": None, "triptych": "1.0"}
    line = protocol_line(one | {"reference": None, "single_images": seen})
    by = "class-accuracy by runs/judge (raw at 2048 images seen, abcdefgh); lpips by vgg16 (klmnopqr)"
    assert line == f"40 images of a (unknown); {by}; Triptych 1.0"
    numbers = {"class-accuracy": {"classifier": {"network": "mnist-lenet", "sha256": "abcdefghij"}}}
    assert "; class-accuracy by mnist-lenet (abcdefgh); " in protocol_line(one | {"reference": None, "single_images": numbers})


def test_few_images_are_marked_for_figures_of_sets_alone() -> None:
    """A mean over pairs of images has no bias that depends on their number."""
    reference = {"reference": {"sha256": "abcdefghij"}, "reference_name": "photos", "reference_count": 40}
    one: dict[str, Any] = {"made": {"path": "a"}, "weights": None, "sampler": None, "count": 40, "network": None, "triptych": "1.0"}
    assert protocol_line(one | reference) == "40 images of a (unknown); reference: 40 photos (abcdefgh); Triptych 1.0"
    seen = {"network": "random", "network_sha256": None, "side": 8, "resize": "as is", "comparable": True}
    few, enough = (protocol_line(one | reference | seen | {"count": count, "reference_count": count}) for count in (2047, 2048))
    assert few.startswith("2047 images (few: below 2048) of a (unknown); reference: 2047 photos (abcdefgh) (few: below 2048); random")
    assert enough.startswith("2048 images of a (unknown); reference: 2048 photos (abcdefgh); random")


@pytest.mark.slow
def test_the_page_of_the_run_is_made_anew_unless_it_is_trained(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    page, common = Path(run) / "report.html", ["evaluate", run, "--device", "cpu", "--steps", "2"]
    images = [*common, "--features", "random", "--count", "8", "--sampler", "ddim", "--metrics"]
    page.write_text("of the training")
    with RunDirectory(Path(run)).lock():
        assert main([*images, "density"]) == 0
    assert page.read_text() == "of the training"
    assert main([*images, "coverage"]) == 0
    assert "density" in page.read_text() and "coverage" in page.read_text()
    page.unlink()
    assert main([*images, "coverage"]) == 0 and not page.exists()
    page.write_text("old")
    bits = [*common, "--metrics", "bits-per-dim", "--count", "2"]
    assert main(bits) == 0 and "bits-per-dim" in page.read_text()
    page.unlink()
    capsys.readouterr()


def test_what_was_passed_over_and_looks_wrong_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As at the start of a training."""
    made, reference = (write_folder(tmp_path / name, [f"{k}.png" for k in range(12)]) for name in ("made", "reference"))
    (made / "notes.txt").write_text("x")
    (made / "0.png").write_bytes((made / "1.png").read_bytes())
    (reference / "dataset.json").write_text("{")
    assert main(["evaluate", str(made), "--reference", str(reference), "--features", "random", "--metrics", "recall"]) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"triptych: warning: {made}: passed over 1 file that is no image: 1 .txt"
    assert second.startswith(f"triptych: warning: {reference}/dataset.json: cannot be read as JSON (") and second.endswith("have no labels")


def test_help_has_the_settings_of_the_sampler(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["evaluate", run, "--metrics", "kid", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(flag in shown for flag in ("--reference", "--features", "--steps", "--metric.kid-subsets", "--style-count"))


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--metrics fidd", '--metrics: unknown metric "fidd"; did you mean "fid"? (there is bits-per-dim, fid, frechet,'),
        ("--metrics KID", '--metrics: unknown metric "KID"; did you mean "kid"? (there is bits-per-dim, fid, frechet,'),
        ("--metrics bits-per-dims", '--metrics: unknown metric "bits-per-dims"; did you mean "bits-per-dim"?'),
        ("--metrics kid --count 1", "--count: got 1, expected at least 2"),
        (
            "--metrics kid --truncation 0.7",
            "--truncation: a setting of StyleGAN2, not of this run's sampler, which has --sampler, --steps,",
        ),
        ("--metrics kid --step 3", '--step: unknown setting; did you mean "--steps"?'),
        ("--metrics kid --image-size 8by8", "--image-size: got '8by8', expected a side (512), or height and width (480x640)"),
        ("--metrics kid --image-size 8", "--image-size: got 8, but a run's images have its size"),
        ("--metrics kid --labels ten", "--labels: unknown class 'ten' (expected 0 to 9"),
        ("--metrics kid --style-count 2", "--style-count: got 2, but this run's model takes no styles; leave it out"),
        ("--metrics kid --data.path x", "--data.path: unknown setting"),
        ("--metrics kid --reference ''", "--reference: got '', expected a path"),
        ("--metrics kid --out a.npz", "--out: got 'a.npz', expected a name that ends with .json"),
        ("--metrics kid --metric.kid-subsets 0", "--metric.kid-subsets: got 0, expected at least 1"),
        ("--metrics kid --weights ema-0.5", '--weights: got "ema-0.5", expected one of raw, ema-0.999'),
        ("--metrics kid --sweep steps=2", "--sweep: got 'steps=2', expected a setting with two or more values"),
        ("--metrics kid --sweep steps=2,2", "--sweep: got 'steps=2,2', expected"),
        ("--metrics kid --sweep out=a.json,b.json", "--sweep: got 'out=a.json,b.json', but --out is one for all values"),
        ("--metrics kid --sweep metrics=kid,is", "--sweep: got 'metrics=kid,is', but --metrics is one for all values"),
        ("--metrics kid --sweep keep_samples=a,b", "--sweep: got 'keep_samples=a,b', but --keep-samples is one for all values"),
        ("--metrics kid --sweep clip=True,False --no-clip", "--sweep: got 'clip=True,False' beside --clip; leave one of them out"),
        ("--metrics kid --sweep step=2,3", '--step: unknown setting; did you mean "--steps"?'),
        ("--metrics kid --sweep steps=2,x", "--steps: got 'x', expected"),
        ("--metrics kid --sweep steps=2,3 --sweep seed=1,2", "--sweep: got 2 of them, but one setting is swept at a time"),
        ("--metrics kid --sweep guidance_scale=2,3 --guidance-scale=1", "--sweep: got 'guidance_scale=2,3' beside --guidance-scale;"),
        ("--sweep steps=2,3", "--sweep: a sweep is of figures of images: name them by --metrics"),
        ("--metrics kid --weights=", "--weights: got '', expected"),
        ("--metrics kid --sweep steps=2,3 --keep-samples x", "--keep-samples: got 'x', but a sweep makes other images for each value"),
        ("--metrics kid --guide none", "no run in none: there is no config.json"),
    ],
)
def test_mistakes(arguments: str, line: str, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    given = ["" if word == "''" else word for word in arguments.split()]
    assert main(["evaluate", run, *given, "--features", "random"]) == 2
    assert capsys.readouterr().err.startswith(f"triptych: error: {line}")


def test_the_file_of_a_sweep_is_looked_at_before_anything_is_measured(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "mine.json"
    out.write_text('{"mine": 1}')
    monkeypatch.setattr("triptych.cli.score.measure", lambda *given: pytest.fail("it was measured"))
    capsys.readouterr()
    assert main(["evaluate", run, "--metrics", "kid", "--features", "random", "--sweep", "steps=2,3", "--out", str(out)]) == 2
    assert f"cannot write {out}: it is there, and no such command made it" in capsys.readouterr().err
    assert out.read_text() == '{"mine": 1}'


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (12.34567, 0.25, "12.3457 ± 0.2500"),
        (0.00123456, 0.0000321, "0.001235 ± 0.000032"),
        (0.5, None, "0.5000"),
        (1.0, 0.0, "1.0000 ± 0.0000"),
        (1.0, 2e-7, "1.00000000 ± 0.00000020"),
        (1.0, 2e-12, "1.000000000 ± 0.000000000"),
    ],
)
def test_a_figure_has_two_digits_of_its_error(value: float, error: float | None, text: str) -> None:
    assert spelled(value, error) == text
