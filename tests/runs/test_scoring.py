"""Scores: what is measured of a run's images and of sets, what is refused, and that nothing else changes the figures."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.processes import run_together
from tests.runs.test_references import Spatial
from triptych.core.errors import CheckpointError, ConfigError, DataError, Stopped
from triptych.evaluation.feature_set import FeatureSet, SetMetricConfig
from triptych.evaluation.feature_space import open_space
from triptych.evaluation.pair_metric import PAIR_METRICS
from triptych.evaluation.set_metric import SET_METRICS
from triptych.runs import Run, open_run, score
from triptych.runs.given.data_images import model_reference
from triptych.runs.given.pictures import open_pictures
from triptych.runs.loading import Loading
from triptych.runs.metric_names import FID, figure_name, needs_reference
from triptych.runs.model_images import ImageRequest, maker_of
from triptych.runs.protocol import protocol_line
from triptych.runs.sides import PictureSide, RunSide, reference_side
from triptych.runs.statistics import write_statistics

pytestmark = pytest.mark.usefixtures("cache")

FAST = {"sampler": "ddim", "steps": 2}
SETTINGS = SetMetricConfig(kid_subsets=3, kid_subset_size=20)


def images(count: int, *, seed: int = 0, size: tuple[int, int] = (8, 8), channels: int = 1, mean: float = 128) -> np.ndarray:
    """uint8 (n, h, w, c), smooth enough that a network tells sets with different means apart."""
    rng = np.random.default_rng(seed)
    return np.clip(rng.normal(mean, 40, (count, *size, channels)), 0, 255).astype(np.uint8)


def npz(path: Path, *args: Any, **named: Any) -> Path:
    np.savez(path, arr_0=images(*args, **named))
    return path


def asked(run: Run, **request: Any) -> dict[str, Any]:
    return {"request": ImageRequest(settings=run.config.model.sampling.updated(FAST), **request), "device": "cpu"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"features": "inceptoin"}, 'features: unknown feature space "inceptoin"; did you mean "inception"'),
        ({"features_resize": "claen"}, "features_resize: got claen, expected one of tensorflow, clean, bicubic; did you mean"),
    ],
)
def test_a_space_that_is_not_known_is_named_before_images_are_opened(tmp_path: Path, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        score(tmp_path / "absent.npz", tmp_path / "absent.npz", device="cpu", **asked)


def test_two_sets_by_the_formulas(tmp_path: Path) -> None:
    a, b = npz(tmp_path / "a.npz", 70), npz(tmp_path / "b.npz", 90, seed=1, mean=140)
    out = tmp_path / "scores.json"
    names = ["frechet", "kid", "precision", "recall", "coverage"]
    scores = score(a, b, metrics=names, features="random", settings=SETTINGS, out=out, device="cpu")
    embedder = open_space("random")
    made, reference = (FeatureSet({"features": _embedded(embedder, np.load(path)["arr_0"])}) for path in (a, b))
    for name in names:
        figure = SET_METRICS[name].measure(made, reference, SETTINGS)
        found = scores.figures["fd-random" if name == "frechet" else name]
        assert found.value == pytest.approx(figure.value, rel=1e-5, abs=1e-6), name
    document = json.loads(out.read_text())
    assert list(document["figures"]) == ["fd-random", *names[1:]]
    assert document["figures"]["kid"]["value"] == scores.figures["kid"].value
    assert document["figures"]["kid"]["error"] == scores.figures["kid"].error
    protocol = document["protocol"]
    assert (protocol["count"], protocol["reference_count"], protocol["few"]) == (70, 90, True)
    assert protocol["network"] == "random" and protocol["comparable"] is False and protocol["quantization"] == "uint8"
    assert protocol["made"]["sha256"] != protocol["reference"]["sha256"]


def _embedded(embedder: Any, pixels: np.ndarray) -> np.ndarray:
    return np.concatenate([embedder(torch.from_numpy(part))["features"].numpy() for part in np.array_split(pixels, 3)])


@pytest.mark.slow
def test_a_run_against_its_training_images_is_measured_once(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny("adm-digits")
    given = {"metrics": ["frechet", "precision"], "features": "random", "count": 40, **asked(run)}
    scores = run.score(**given)
    assert not scores.already and scores.out is not None and scores.out.parent == run.directory / "evaluations"
    weights = scores.protocol["weights"]
    assert (weights["weights"], scores.protocol["sampler"]["steps"]) == ("ema-0.999", 2)
    line = protocol_line(scores.protocol)
    assert line.startswith(f"40 images (few: below 2048) of {run.directory} (ema-0.999 at {weights['images']} images seen, ")
    assert f"reference: 1707 training images of the built-in digits ({scores.protocol['reference']['sha256'][:8]})" in line
    assert "random (random weights)" in line and "not comparable" in line and "\n" not in line
    monkeypatch.setattr(Run, "open_together", lambda *_: pytest.fail("the weights are read"))
    again = run.score(**given)
    assert again.already and again.figures["fd-random"].value == scores.figures["fd-random"].value
    assert again.protocol == scores.protocol
    with pytest.raises(pytest.fail.Exception):
        run.score(**given | {"count": 41})


@pytest.mark.slow
def test_other_metrics_of_the_same_images_do_not_draw_them_again(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny("adm-digits")
    given = {"features": "random", "count": 33, "settings": SETTINGS, **asked(run)}
    run.score(metrics=["frechet"], **given)
    monkeypatch.setattr("triptych.runs.model_images.draw", lambda *_: pytest.fail("images are drawn again"))
    scores = run.score(metrics=["kid", "recall"], **given)
    assert set(scores.figures) == {"kid", "recall"} and not scores.already


def test_what_the_network_says_of_samples_serves_all_metrics_of_sets(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a network with two outputs, of which the first metric needs one."""
    network = Spatial()
    network.identity, network.comparable = open_space("random").identity | {"network": "two"}, False
    monkeypatch.setattr("triptych.runs.scoring.open_space", lambda *_, **__: network)
    run = tiny("adm-digits")
    given = {"features": "random", "count": 33, "settings": SETTINGS, **asked(run)}
    run.score(metrics=["frechet"], **given)
    monkeypatch.setattr("triptych.runs.model_images.draw", lambda *_: pytest.fail("images are drawn again"))
    assert set(run.score(metrics=["sfid", "kid"], **given).figures) == {"sfid", "kid"}


def test_of_a_run_that_may_only_be_read_the_features_lie_in_the_cache(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, cache = tiny("adm-digits"), tmp_path / "cache"
    before = {path for path in run.directory.rglob("*") if path.is_file()}
    monkeypatch.setenv("TRIPTYCH_CACHE", str(cache))
    monkeypatch.setattr(os, "access", lambda path, mode: path != run.directory)
    given = {
        "features": "random",
        "count": 34,
        "settings": SETTINGS,
        "device": "cpu",
        "reference": npz(tmp_path / "r.npz", 40, size=(16, 16)),
    }
    run.score(metrics=["frechet"], out=tmp_path / "a.json", **given)
    assert {path for path in run.directory.rglob("*") if path.is_file()} == before
    monkeypatch.setattr("triptych.runs.model_images.draw", lambda *_: pytest.fail("images are drawn again"))
    run.score(metrics=["kid"], out=tmp_path / "b.json", **given)


def test_figures_that_are_read_again_have_their_arrays(tiny: Any) -> None:
    run = tiny("upsample-digits")
    first, again = (run.score(metrics=["psnr"], count=4, device="cpu") for _ in range(2))
    assert again.already and not first.already
    np.testing.assert_array_equal(again.figures["psnr"].arrays["each"], first.figures["psnr"].arrays["each"])


def test_a_reference_run_draws_noise_of_its_own(tiny: Any) -> None:
    run = tiny("adm-digits")
    side = reference_side(
        run.directory, RunSide(run, ImageRequest(), Loading()), split=None, image_size=None, request=ImageRequest(seed=3), loading=Loading()
    )
    assert isinstance(side, RunSide) and side.maker.request.seed == 4


def test_which_metrics_ask_for_a_reference(tiny: Any, tmp_path: Path) -> None:
    sets = PictureSide(open_pictures(npz(tmp_path / "a.npz", 3)), "a.npz")
    made = RunSide(tiny("upsample-digits"), ImageRequest(), Loading())
    names = [FID, *SET_METRICS, *PAIR_METRICS]
    of_sets, of_a_run = ([name for name in names if needs_reference(name, subject)] for subject in (sets, made))
    assert set(names) - set(of_sets) == {"is", "is-10", "diversity", "mean-iou", "pixel-accuracy", "class-accuracy"}
    assert set(of_sets) - set(of_a_run) == {"psnr", "ssim", "ms-ssim", "lpips"}, "its own truth"


def test_statistics_of_another_size_are_refused(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "s.npz"
    write_statistics(npz(tmp_path / "a.npz", 40, size=(16, 16)), out, features="random")
    with pytest.raises(ConfigError, match=r"^reference: .* has images of 8x8, .*s\.npz of 16x16: give images of the run's size"):
        score(tiny("adm-digits"), out, metrics=["frechet"], features="random", device="cpu")


def test_images_made_of_those_of_the_training_are_said_to_be(tiny: Any, tmp_path: Path) -> None:
    run = tiny("upsample-digits")
    copy = open_run(shutil.copytree(run.directory, tmp_path / "run"))
    settings = json.loads((copy.directory / "config.json").read_text())
    assert copy.config.data.source == "digits"
    folder = tmp_path / "images"
    folder.mkdir()
    size = copy.config.data.image_size
    for k, pixels in enumerate(images(10, size=(size, size))):
        Image.fromarray(pixels[..., 0]).save(folder / f"{k}_.png")
    settings["data"] |= {"path": str(folder), "source": "auto", "validation_fraction": 0.0, "labels": "prefix"}
    (copy.directory / "config.json").write_text(json.dumps(settings))
    with pytest.warns(UserWarning, match="the run has no held-out images: its images are made of those of the training"):
        scores = open_run(copy.directory).score(metrics=["psnr"], count=4, device="cpu")
    line = protocol_line(scores.protocol)
    assert line.startswith(f"4 images of training images of {copy.directory} ("), "few are marked for distances of sets alone"


@pytest.mark.slow
def test_an_interrupted_score_goes_on_and_a_guide_or_labels_make_another(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny("adm-digits")
    given = {"metrics": ["frechet"], "features": "random", "count": 100, "reference": None, **asked(run, seed=5)}
    drawn: list[int] = []
    stopped: list[bool] = []
    from triptych.runs import model_images

    draw = model_images.draw

    def counted(model: Any, request: Any, part: range, *more: Any) -> np.ndarray:
        drawn.append(part.start)
        if len(drawn) == 3 and not stopped:
            stopped.append(True)
            raise Stopped("SIGTERM")
        return draw(model, request, part, *more)

    monkeypatch.setattr(model_images, "draw", counted)
    with pytest.raises(Stopped):
        run.score(**given)
    found = run.score(**given)
    assert drawn == [0, 32, 64, 64, 96]
    assert not list((run.directory / "evaluations" / "features").glob(".*"))
    drawn.clear()
    other = run.score(**given | asked(run, seed=5, labels=[1]))
    assert len(drawn) > 2 and other.out != found.out


def test_a_metric_whose_network_is_missing_does_not_stop_the_others(tmp_path: Path, cache: Path) -> None:
    a, b = npz(tmp_path / "a.npz", 40), npz(tmp_path / "b.npz", 40, seed=1)
    scores = score(a, b, metrics=["frechet", "fid", "is", "sfid"], features="random", device="cpu")
    assert set(scores.figures) == {"fd-random"} and set(scores.missing) == {"fid", "is", "sfid"}
    assert scores.missing["fid"].startswith("FID is the distance in the space inception alone")
    assert scores.missing["sfid"] == 'random has no "spatial"; inception has it'
    assert scores.missing["is"] == 'random has no "logits"; inception, mnist-lenet, cifar10-resnet20 have it'
    with pytest.raises(
        ConfigError, match=r"^metrics: fid, kid cannot be measured: .*inception.*pt_inception-2015-12-05-6726825d.*" + str(cache)
    ):
        score(a, b, metrics=["fid", "kid"], device="cpu")


def test_statistics_alone_serve_those_that_need_no_more(tmp_path: Path) -> None:
    a = npz(tmp_path / "a.npz", 40)
    features = _embedded(open_space("random"), images(90, seed=1)).astype(np.float64)
    np.savez(tmp_path / "statistics.npz", mu=features.mean(0), sigma=np.cov(features, rowvar=False))
    scores = score(a, tmp_path / "statistics.npz", features="random", device="cpu")
    assert set(scores.figures) == {"fd-random"} and not scores.missing
    scores = score(a, tmp_path / "statistics.npz", metrics=["frechet", "kid"], features="random", device="cpu")
    assert scores.missing == {"kid": f"{tmp_path / 'statistics.npz'} holds statistics alone; give its images"}
    np.savez(tmp_path / "b.npz", arr_0=images(90, seed=1))
    whole = score(a, tmp_path / "b.npz", metrics=["frechet"], features="random", device="cpu")
    assert scores.figures["fd-random"].value == pytest.approx(whole.figures["fd-random"].value, rel=1e-4)


def test_a_reference_may_be_a_run_or_a_folder_cut_as_the_run(tiny: Any, tmp_path: Path) -> None:
    from PIL import Image

    run, other = tiny("adm-digits"), tiny("glow-digits")
    scores = run.score(other.directory, metrics=["frechet"], features="random", count=34, **asked(run))
    assert scores.protocol["reference"]["weights"]["hash"] != scores.protocol["weights"]["hash"]
    assert scores.protocol["reference_count"] == 34
    scores = score(npz(tmp_path / "a.npz", 40), other.directory, metrics=["frechet"], features="random", count=33, device="cpu")
    assert (scores.protocol["count"], scores.protocol["reference_count"]) == (40, 33)
    folder = tmp_path / "photos"
    folder.mkdir()
    for k, image in enumerate(images(40, size=(12, 10), channels=3)):
        Image.fromarray(image).save(folder / f"{k}.png")
    scores = run.score(folder, metrics=["frechet"], features="random", **asked(run))
    assert scores.protocol["count"] == 40  # as many as the reference has
    assert scores.protocol["reference"]["size"] == [8, 8] and scores.protocol["reference"]["channels"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["upsample-digits", "spade-camvid", "munit-mnist", "funit-omniglot", "glow-digits"])
def test_models_of_every_kind(tiny: Any, recipe: str) -> None:
    run = tiny(recipe)
    request = asked(run)["request"] if recipe == "upsample-digits" else ImageRequest()
    scores = run.score(metrics=["frechet", "coverage"], features="random", count=7, request=request, device="cpu")
    assert np.isfinite(scores.figures["fd-random"].value) and scores.protocol["count"] == 7
    expected = model_reference(run, settings=request.settings)
    assert scores.protocol["reference"]["split"] == expected.identity["split"] and scores.protocol["reference_count"] == len(expected)


def test_a_set_against_itself_is_at_no_distance(tmp_path: Path) -> None:
    a = npz(tmp_path / "a.npz", 40)
    with pytest.warns(UserWarning, match="hold the same images"):
        scores = score(a, a, metrics=["frechet", "precision", "prdc-precision", "copies"], features="random", device="cpu")
    values = {name: figure.value for name, figure in scores.figures.items()}
    assert values.pop("fd-random") == pytest.approx(0, abs=1e-6)  # 64 roots of roundings of zero, 1e-8 each
    assert values == {"precision": 1, "prdc-precision": 1, "copies": 1}


@pytest.mark.parametrize(
    ("network", "resize", "name"),
    [("inception", "tensorflow", "fid"), ("inception", "clean", "fd-inception"), ("random", "tensorflow", "fd-random")],
)
def test_the_published_name_is_that_of_inception_with_its_usual_resize(network: str, resize: str, name: str) -> None:
    embedder: Any = SimpleNamespace(name=network, identity={"resize": resize})
    assert [figure_name(metric, embedder) for metric in ("frechet", "fid", "kid")] == [name, name, "kid"]


def test_refusals(tiny: Any, tmp_path: Path) -> None:
    run, a, b = tiny("adm-digits"), npz(tmp_path / "a.npz", 40), npz(tmp_path / "b.npz", 40, seed=1, size=(8, 12))
    low = npz(tmp_path / "low.npz", 40, size=(4, 30))
    cases: list[tuple[Any, Any, dict[str, Any], str]] = [
        (a, b, {}, f"image_size: {a} has images of 8x8, {b} of 12x8: make them alike with --image-size 8"),
        (b, run, {}, f"image_size: {b} has images of 12x8, {run.directory} of 8x8: make them alike with --image-size 8"),
        (low, run, {}, f"reference: {low} has images of 30x4, {run.directory} of 8x8: give images of the run's size, or larger ones"),
        (a, None, {"metrics": ["kid"]}, "metrics: kid cannot be measured: it compares with a reference; give one"),
        (a, b, {"count": 10}, f"count: got 10, but {a} is a set, of which all images count; leave it out"),
        (a, run, {"count": 1}, "count: got 1, expected at least 2"),
        (a, tiny("upsample-digits"), {"count": 91}, "count: got 91, expected 2 to 90, as many as the run can make of its held-out images"),
        (a, b, {"checkpoint": "best"}, f"checkpoint: got 'best', but {a} is a set of images, and no run makes images here"),
        (a, b, {"weights": "raw"}, f"weights: got 'raw', but {a} is a set of images, and no run makes images here; leave it out"),
        (a, b, {"precision": "bf16"}, "precision: got 'bf16', but "),
        (a, b, {"request": ImageRequest(seed=1)}, "seed: got 1, but "),
        (a, run, {"ema_length": 0.1}, "ema_length: got 0.1, but "),
        (a, b, {"request": ImageRequest(labels=[1])}, f"labels: got [1], but {a} is no run, which makes its images so; leave it out"),
        (a, b, {"metrics": ["kidd"]}, 'metrics: unknown metric "kidd"; did you mean "kid"?'),
        (a, b, {"metrics": [3]}, "metrics: got [3], expected a list of names"),
        (
            a,
            b,
            {"metrics": ["bits-per-dim"]},
            "metrics: got bits-per-dim, which is measured by triptych evaluate RUN --metrics bits-per-dim; ",
        ),
        (a, b, {"features": "inceptoin"}, 'features: unknown feature space "inceptoin"; did you mean "inception"?'),
        (a, b, {"features_resize": "claen"}, "features_resize: got claen, expected one of tensorflow, clean, bicubic; did you mean"),
        (a, b, {"metrics": ["is"]}, f"reference: got {b}, but nothing that is measured (is) needs a reference; leave it out"),
        (a, b, {"split": "train"}, "split: got train, which is of a run's own images"),
        (a, b, {"out": "a.npz"}, "out: got 'a.npz', expected a name that ends with .json"),
        (run, b, {"image_size": 8}, "image_size: got 8, but a run's images have its size, and the reference is cut to it; leave it out"),
        (run, None, {"count": 1}, "count: got 1, expected at least 2"),
        (
            tiny("upsample-digits"),
            None,
            {"count": 91},
            "count: got 91, expected 2 to 90, as many as the run can make of its held-out images",
        ),
        (tiny("classifier-digits"), None, {}, "model: NoisyClassifier makes no images, so there is nothing to measure"),
        (run, None, {"weights": "ema-0.5"}, 'weights: got "ema-0.5", expected one of raw, ema-0.999'),
    ]
    for subject, reference, given, line in cases:
        with pytest.raises((ConfigError, DataError, CheckpointError)) as error:
            score(subject, reference, **{"features": "random", "device": "cpu"} | given)
        assert str(error.value).startswith(line), str(error.value)
    with pytest.raises(ConfigError, match="its reference is taken with the newest weights and its first average; leave it out$"):
        score(npz(tmp_path / "c.npz", 40, size=(16, 16)), run, weights="raw", features="random", device="cpu")
    fine = score(a, b, metrics=["frechet"], features="random", image_size=(8, 6), device="cpu")
    assert fine.protocol["reference"]["size"] == [8, 6]
    line = protocol_line(fine.protocol)
    assert line.count(", cut to 6x8)") == 2, "both sets"
    assert "cut to" not in protocol_line(score(a, a, metrics=["frechet"], features="random", device="cpu").protocol)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["samples", "samples.npz"])
def test_kept_samples_are_those_that_are_measured(tiny: Any, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, place = tiny("adm-digits"), tmp_path / name
    drawn: list[range] = []
    from triptych.runs import model_images

    draw = model_images.draw
    monkeypatch.setattr(model_images, "draw", lambda model, request, part, *more: drawn.append(part) or draw(model, request, part, *more))
    given = {"metrics": ["frechet", "copies"], "features": "random", "count": 35, **asked(run, seed=7)}
    scores = run.score(**given, keep_samples=place, out=tmp_path / "a.json")
    assert drawn == [range(32), range(32, 64)]  # not once more to be measured
    images = maker_of(run, given["request"]).made(run.open(Loading(device="cpu")), 35).images(range(35))
    if place.suffix:
        kept = np.load(place)
        assert np.array_equal(kept["arr_0"], images) and kept["arr_1"].tolist() == [k % 10 for k in range(35)]
    else:
        paths = sorted(place.glob("*.png"))
        assert [path.name for path in paths] == [f"{k:06d}.png" for k in range(35)]
        assert np.array_equal(np.stack([np.asarray(Image.open(path)) for path in paths])[..., None], images)
        (place / "000004.png").unlink()
    shown = np.asarray(Image.open(tmp_path / "a-copies.png"))
    first = scores.figures["copies"].details["pairs"][0]
    factor, gap = 12, 2  # cells of 96 pixels
    made, real = (shown[gap * factor :, left * factor :][: 8 * factor, : 8 * factor][::factor, ::factor] for left in (2 * gap + 8, gap))
    assert np.abs(made.astype(int) - images[first["made"], :, :, 0]).max() <= 1
    assert np.array_equal(real, model_reference(run).images([first["reference"]])[0, :, :, 0])
    drawn.clear()
    again = run.score(**given, keep_samples=place, out=tmp_path / "a.json")
    assert again.already and again.figures["fd-random"].value == scores.figures["fd-random"].value
    assert drawn == ([] if place.suffix else [range(32)])  # the one that was missing
    assert not place.is_dir() or (place / "000004.png").is_file()
    without = run.score(**given | {"count": 36}, out=tmp_path / "a.json")  # another request of that name
    assert not without.already and without.figures["fd-random"].value != scores.figures["fd-random"].value


def test_where_samples_cannot_be_kept(tiny: Any, tmp_path: Path) -> None:
    run, a = tiny("adm-digits"), npz(tmp_path / "a.npz", 40)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "000001.png").write_bytes(b"mine")
    for subject, reference, place, line in (
        (run, a, a, f"cannot write {a}: it is the file that is read"),
        (run, None, tmp_path / "a.png", "a.png: images are kept in a folder, as PNGs, or in an .npz, not as .png"),
        (run, None, tmp_path / "photos", "000001.png is there already, and no such command made it"),
        (a, a, tmp_path / "b", "is a set already; leave it out"),
    ):
        with pytest.raises((ConfigError, DataError)) as error:
            given = asked(run) | {"count": 35} if subject is run else {"device": "cpu"}
            score(subject, reference, metrics=["frechet"], features="random", keep_samples=place, **given)
        assert line in str(error.value)
    assert (tmp_path / "photos" / "000001.png").read_bytes() == b"mine"


def score_together(run: Path, out: Path, cache: Path, ends_after: int | None) -> int:
    os.environ["TRIPTYCH_CACHE"] = str(cache)
    torch.set_num_threads(1)
    from triptych.runs import model_images

    draw, drawn = model_images.draw, list[range]()

    def dying(model: Any, request: Any, part: range, *more: Any) -> np.ndarray:
        drawn.append(part)
        if ends_after is not None and len(drawn) > ends_after:
            os._exit(0)  # as by kill -9
        return draw(model, request, part, *more)

    model_images.draw = dying
    opened = open_run(run)
    score(opened, metrics=NAMES, features="random", count=80, batch_size=7, out=out, settings=SETTINGS, **asked(opened, seed=3))
    return 0


NAMES = ["frechet", "psnr"]


@pytest.mark.slow
def test_processes_batches_and_a_kill_change_no_figure(tiny: Any, tmp_path: Path) -> None:
    """To the last bit: every image is made, and seen, in the same batches."""
    runs = [tmp_path / name for name in ("alone", "together", "killed")]
    for copy in runs:
        shutil.copytree(tiny("upsample-digits").directory, copy, ignore=shutil.ignore_patterns("evaluations"))
    first = open_run(runs[0])
    alone = score(first, metrics=NAMES, features="random", settings=SETTINGS, count=80, **asked(first, seed=3))
    for path, processes, ends_after in ((runs[1], 2, None), (runs[2], 1, 2)):
        out = tmp_path / f"{path.name}.json"
        run_together(processes, score_together, path, out, tmp_path / "cache", ends_after)
        if ends_after is not None:
            assert not out.exists() and list((path / "evaluations" / "features").glob(".*.partial-*"))
            run_together(1, score_together, path, out, tmp_path / "cache", 1)  # one group was missing
        figures = json.loads(out.read_text())["figures"]
        assert figures["fd-random"]["value"] == pytest.approx(alone.figures["fd-random"].value, rel=1e-12)
        assert figures["psnr"]["value"] == alone.figures["psnr"].value


def test_files_of_others_are_not_replaced_by_figures(tmp_path: Path) -> None:
    a, b = npz(tmp_path / "a.npz", 40), npz(tmp_path / "b.npz", 40, seed=1)
    before = a.read_bytes()
    with pytest.raises(DataError, match=r"cannot write .*a\.npz, which goes with .*a\.json: it is there, and no such command made it"):
        score(a, b, metrics=["kid"], features="random", out=tmp_path / "a.json", device="cpu")
    (tmp_path / "dataset.json").write_text('{"labels": []}')
    with pytest.raises(DataError, match=r"dataset\.json: it is there, and no such command made it; choose another --out"):
        score(a, b, metrics=["kid"], features="random", out=tmp_path / "dataset.json", device="cpu")
    assert a.read_bytes() == before and (tmp_path / "dataset.json").read_text() == '{"labels": []}'
    for count in (1, 2):
        found = score(a, b, metrics=["kid"], features="random", out=tmp_path / "new.json", device="cpu")
        assert found.figures["kid"].value is not None and count, "figures are read, or replaced"
