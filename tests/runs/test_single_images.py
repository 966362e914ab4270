"""Scores of one image after the other: beside its truth, the other answers to its input, its label map, its class."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.contract.shrink import light
from tests.data.pairs import SETTINGS, as_map, write, write_pairs
from tests.data.pictures import encoded
from tests.runs.translators import ONE_MAP, mirror_run
from triptych.core.errors import ConfigError, DataError
from triptych.data.config import DataConfig
from triptych.data.decode import number_map
from triptych.data.pairs import PairedDataConfig
from triptych.engine.distributed import World
from triptych.evaluation.feature_set import Figure
from triptych.evaluation.lpips import BACKBONES
from triptych.evaluation.pair_metric import PAIR_METRICS, PairMeasure, PairMetric
from triptych.evaluation.pairs import psnr, ssim
from triptych.evaluation.segmentation import class_counts, confusion, mean_iou, pixel_accuracy
from triptych.runs import Run, score, train
from triptych.runs.classifying import open_classifier
from triptych.runs.given.data_images import contents, reopened
from triptych.runs.loading import Loading
from triptych.runs.model_images import ImageRequest, ModelImages, maker_of
from triptych.runs.single_images import SingleRequest

pytestmark = pytest.mark.usefixtures("cache")

FAST = {"sampler": "ddim", "steps": 2}


def made(run: Run, count: int, **request: Any) -> ModelImages:
    return maker_of(run, ImageRequest(**request)).made(run.open(Loading(device="cpu")), count)


@pytest.mark.slow
def test_the_truth_of_translations(tiny: Any) -> None:
    run = tiny("spade-camvid")
    scores = run.score(metrics=["psnr", "ssim", "ms-ssim"], device="cpu")
    images, items = made(run, 8), range(8)
    assert images.truth is not None and images.maps is not None
    values = psnr(images.images(items), images.truth(items))
    assert scores.figures["psnr"].value == pytest.approx(values.mean(), rel=1e-12)
    assert scores.figures["psnr"].error == pytest.approx(values.std(ddof=1) / 8**0.5, rel=1e-9)
    assert scores.figures["ssim"].value == pytest.approx(ssim(images.images(items), images.truth(items)).mean(), rel=1e-12)
    assert scores.missing == {
        "ms-ssim": "MS-SSIM needs images of at least 176 pixels a side (an 11x11 window at a sixteenth of the size), got 32x32"
    }
    assert scores.protocol["count"] == 8 and scores.protocol["reference"] is None and scores.protocol["network"] is None


@pytest.mark.slow
def test_enlarged_images_and_two_sets_of_as_many(tiny: Any, tmp_path: Path) -> None:
    run = tiny("upsample-digits")
    settings = run.config.model.sampling.updated(FAST)
    scores = run.score(metrics=["psnr", "frechet"], features="random", count=40, request=ImageRequest(settings=settings), device="cpu")
    images = made(run, 40, settings=settings)
    assert images.truth is not None
    np.savez(tmp_path / "made.npz", arr_0=images.images(range(40)))
    np.savez(tmp_path / "truth.npz", arr_0=images.truth(range(40)))
    pairs = score(tmp_path / "made.npz", tmp_path / "truth.npz", metrics=["psnr"], device="cpu")
    assert pairs.figures["psnr"].value == scores.figures["psnr"].value
    assert set(scores.figures) == {"psnr", "fd-random"}
    np.savez(tmp_path / "fewer.npz", arr_0=images.truth(range(39)))
    with pytest.raises(ConfigError, match="^metrics: psnr cannot be measured: it compares image by image: give the true images as"):
        score(tmp_path / "made.npz", tmp_path / "fewer.npz", metrics=["psnr"], device="cpu")


@pytest.mark.slow
def test_diversity_compares_the_answers_to_one_input(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of LPIPS the mean squared difference of the answers: it would be zero if those of two inputs were mixed up."""
    monkeypatch.setitem(PAIR_METRICS, "diversity", _spread())  # type: ignore[arg-type]
    run = tiny("munit-mnist")
    for count in (33, 32, 4):
        scores = run.score(metrics=["diversity"], count=count, request=ImageRequest(style_count=3), device="cpu", weights="raw")
        images = made_raw(run, count).images(range(count // 3 * 3)).astype(float)
        expected = images.reshape(-1, 3, *images.shape[1:]).var(axis=1).mean((1, 2, 3))
        assert scores.figures["diversity"].value == pytest.approx(expected.mean(), rel=1e-12) and expected.min() > 0
        assert scores.figures["diversity"].arrays["each"].shape == (count // 3,)
    with pytest.raises(ConfigError, match="with --style-count 2 or more"):
        run.score(metrics=["diversity"], device="cpu")


def made_raw(run: Run, count: int) -> ModelImages:
    return maker_of(run, ImageRequest(style_count=3)).made(run.open(Loading(device="cpu", weights="raw")), count)


def _spread() -> PairMetric:
    def measure(answers: np.ndarray, _: np.ndarray | None) -> np.ndarray:
        return answers.astype(float).var(axis=1).mean((1, 2, 3))

    return PairMetric(
        "", "answers", lambda settings, device: PairMeasure(measure, lambda values: Figure(values.mean(), None, {}, {"each": values}))
    )


@pytest.mark.slow
def test_label_maps_of_a_segmenter(tiny: Any, tmp_path: Path) -> None:
    run, folder = tiny("spade-camvid"), tmp_path / "maps"
    folder.mkdir()
    maps = made(run, 8).maps
    assert maps is not None
    truth = maps(range(8))
    seen = truth.copy()
    seen[:, :, :9] = (seen[:, :, :9] + 1) % 4  # the segmenter is wrong there
    for k, each in enumerate(seen):
        Image.fromarray(each.astype(np.uint8)).save(folder / f"{k:06d}.png")
    single = SingleRequest(label_maps=folder)
    scores = run.score(metrics=["mean-iou", "pixel-accuracy"], single=single, device="cpu")
    counts = class_counts(confusion(seen, truth, num_classes=4)).sum(0)
    assert scores.figures["pixel-accuracy"].value == pytest.approx(23 / 32) == pytest.approx(float(pixel_accuracy(counts)))
    assert scores.figures["mean-iou"].value == pytest.approx(float(mean_iou(counts)))
    (folder / "000003.png").unlink()
    with pytest.raises(ConfigError, match=r"maps: has no 000003\.png; it should hold a label map for each of the 8 images"):
        run.score(metrics=["mean-iou"], single=single, device="cpu")
    Image.fromarray(seen[3, :, :16].astype(np.uint8)).save(folder / "000003.png")
    with pytest.raises(DataError, match=r"000003\.png: expected a class for each of 32x32 pixels .* got 32x16$"):
        run.score(metrics=["mean-iou"], single=single, device="cpu")
    with pytest.raises(ConfigError, match="mean-iou cannot be measured: it needs label maps of the images: keep the images by --keep"):
        run.score(metrics=["mean-iou"], device="cpu")


@pytest.mark.parametrize("fate", ["dont_care", "blank"])
def test_pixels_of_no_class_count_nowhere(tmp_path: Path, fate: str) -> None:
    """The upper half of the maps is of no class; a segmenter has to say something there. Of the lower half it misses the first column."""
    pairs, seen = write_pairs(tmp_path / "pairs"), tmp_path / "seen"
    for path in (pairs / "labels").rglob("*.png"):
        numbers = number_map(path.read_bytes())
        numbers[: len(numbers) // 2] = 9
        write(path, as_map(numbers))
    config = PairedDataConfig(path=str(pairs), **(SETTINGS | ONE_MAP | {"workers": 0, "validation_fraction": 0.5, fate: True}))
    run = mirror_run(tmp_path / "run", config)
    count = maker_of(run, ImageRequest()).most
    assert count is not None
    maps = made(run, count).maps
    assert maps is not None
    truth = maps(range(count))
    assert (truth[:, :4] == 2).all() and set(np.unique(truth[:, 4:])) == {0, 1}
    answers = np.where(truth == 2, 1, truth)
    answers[:, 4:, 0] = 1 - answers[:, 4:, 0]
    for k, each in enumerate(answers):
        write(seen / f"{k:06d}.png", as_map(each))
    single = SingleRequest(label_maps=seen)
    scores = run.score(metrics=["mean-iou", "pixel-accuracy"], single=single, device="cpu")
    known, found = truth[:, 4:], answers[:, 4:]
    ious = [((known == k) & (found == k)).sum() / ((known == k) | (found == k)).sum() for k in (0, 1)]
    assert scores.figures["pixel-accuracy"].value == pytest.approx(11 / 12)
    assert scores.figures["mean-iou"].value == pytest.approx(np.mean(ious))


@pytest.mark.slow
def test_the_classes_that_a_classifier_sees(tiny: Any, tmp_path: Path) -> None:
    run, judge = tiny("adm-digits"), tiny("classifier-digits")
    request = ImageRequest(settings=run.config.model.sampling.updated(FAST), labels=["3", 7])
    single = SingleRequest(classifier=judge.directory)
    scores = run.score(metrics=["class-accuracy"], count=40, request=request, single=single, device="cpu")
    model = judge.load(device="cpu")
    images = made(run, 40, settings=request.settings, labels=["3", 7])
    x = torch.from_numpy(images.images(range(40))).permute(0, 3, 1, 2) / 127.5 - 1
    with torch.no_grad():
        seen = model.classify(x, model.process.at_step(0)).argmax(1).numpy()  # type: ignore[operator, union-attr]
    assert images.labels is not None and set(images.labels) == {3, 7}
    each = scores.figures["class-accuracy"].arrays["each"]
    assert np.array_equal(each, seen == images.labels) and scores.figures["class-accuracy"].value == each.mean()
    real = run.config.data.open().train
    np.savez(tmp_path / "real.npz", arr_0=real.batch(np.arange(60)).images, arr_1=real.labels[:60])
    scores = score(tmp_path / "real.npz", metrics=["class-accuracy"], single=single, device="cpu")
    with torch.no_grad():
        x = torch.from_numpy(real.batch(np.arange(60)).images).permute(0, 3, 1, 2) / 127.5 - 1
        seen = model.classify(x, model.process.at_step(0)).argmax(1).numpy()  # type: ignore[operator, union-attr]
    assert scores.figures["class-accuracy"].value == (seen == real.labels[:60]).mean()
    chosen = np.flatnonzero(real.labels[:60] >= 5)  # of the classes of a folder the first is called "5"
    for k in chosen:
        folder = tmp_path / "real" / str(real.labels[k])
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(real.batch(np.array([k])).images[0, :, :, 0]).save(folder / f"{k:02}.png")
    scores = score(tmp_path / "real", metrics=["class-accuracy"], single=single, device="cpu")
    assert scores.figures["class-accuracy"].value == (seen == real.labels[:60])[chosen].mean()


def test_what_cannot_be_measured_says_why(tiny: Any, cache: Path) -> None:
    diffusion, classifier, flow = tiny("adm-digits"), tiny("classifier-digits"), tiny("glow-digits")
    cases: list[tuple[Run, str, SingleRequest, str]] = [
        (flow, "class-accuracy", SingleRequest(classifier=classifier.directory), f"{flow.directory} has images without classes"),
        (diffusion, "class-accuracy", SingleRequest(), "it needs to be told what the images show: name a run of a classifier"),
        (
            diffusion,
            "class-accuracy",
            SingleRequest(classifier=diffusion.directory),
            f"classifier: {diffusion.directory} is a run of ADM, which",
        ),
        (diffusion, "class-accuracy", SingleRequest(classifier="mnist-lenett"), "classifier: got 'mnist-lenett', expected a run of a"),
        (diffusion, "class-accuracy", SingleRequest(classifier="mnist-lenet"), "classifier: mnist-lenet needs the file mnist_lenet.pth"),
        (diffusion, "psnr", SingleRequest(), "nobody knows the true images: it needs a model of pairs, or one that enlarges"),
        (diffusion, "diversity", SingleRequest(), "it compares several answers to one input: of a model that translates, with"),
        (diffusion, "mean-iou", SingleRequest(label_maps="."), "it needs a model that makes images of label maps"),
        (tiny("upsample-digits"), "lpips", SingleRequest(), "LPIPS needs the weights of alexnet, and there is no file"),
    ]
    for run, name, single, line in cases:
        with pytest.raises(ConfigError) as error:
            run.score(metrics=[name], single=single, device="cpu")
        assert str(error.value).startswith(f"metrics: {name} cannot be measured: {line}"), str(error.value)
    assert BACKBONES["alexnet"].file


def test_a_classifier_of_other_images_is_refused(tiny: Any) -> None:
    with pytest.raises(ConfigError, match=r"recognises images of 8x8 with 1 channel, these have 32x16 with 3$"):
        open_classifier(tiny("classifier-digits").directory, size=(16, 32), channels=3, world=World(0, 1, torch.device("cpu")))


def test_another_truth_is_measured_anew(tmp_path: Path) -> None:
    """What was found at the images is kept; it depends on what is beside them too."""
    images = np.random.default_rng(0).integers(0, 256, (10, 8, 8, 1), dtype=np.uint8)
    np.savez(tmp_path / "made.npz", arr_0=images)
    for name, truth in (("near", images ^ 1), ("far", 255 - images)):
        np.savez(tmp_path / f"{name}.npz", arr_0=truth)
        found = score(tmp_path / "made.npz", tmp_path / f"{name}.npz", metrics=["psnr"], device="cpu")
        assert found.figures["psnr"].value == pytest.approx(psnr(images, truth).mean(), rel=1e-12)


def test_other_classes_are_measured_anew(tiny: Any, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (10, 8, 8, 1), dtype=np.uint8)
    single, right = SingleRequest(classifier=tiny("classifier-digits").directory), list[float]()
    for label in range(10):
        np.savez(tmp_path / "labelled.npz", arr_0=images, arr_1=np.full(10, label))
        out = tmp_path / "scores.json"
        scores = score(tmp_path / "labelled.npz", metrics=["class-accuracy"], single=single, out=out, device="cpu")
        assert not scores.already
        figure = scores.figures["class-accuracy"]
        right.append(figure.value)
        assert figure.error is not None and figure.error > 0, "a share of a few is not certain"
    assert sum(right) == pytest.approx(1)


def test_a_grey_truth_of_images_in_colour_stops_no_other_metric(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (10, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "made.npz", arr_0=images)
    np.savez(tmp_path / "grey.npz", arr_0=images[..., :1])
    scores = score(tmp_path / "made.npz", tmp_path / "grey.npz", metrics=["psnr", "frechet"], features="random", device="cpu")
    assert set(scores.figures) == {"fd-random"} and "one of the two sets is grey" in scores.missing["psnr"]


def test_names_that_put_two_sets_into_another_order_are_said(tmp_path: Path) -> None:
    """10 comes before 2, and 010 behind 002."""
    for folder, names in (("made", ("1", "2", "10")), ("truth", ("001", "002", "010")), ("alike", ("1", "2", "10"))):
        for k, name in enumerate(names):
            write(tmp_path / folder / "sub" / f"{name}.png", encoded(np.full((8, 8, 1), 90 * k + (folder == "alike"), np.uint8)))
    np.savez(tmp_path / "truth.npz", arr_0=np.zeros((3, 8, 8, 1), np.uint8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for truth in ("alike", "truth.npz"):
            score(tmp_path / "made", tmp_path / truth, metrics=["psnr"], device="cpu")
    order = r"^images are compared in the order of their names, which differ: .*made/sub/1\.png beside .*truth/sub/001\.png$"
    with pytest.warns(UserWarning, match=order):
        score(tmp_path / "made", tmp_path / "truth", metrics=["psnr"], device="cpu")


def test_what_is_equal_to_its_truth_is_written_as_json_knows_it(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", arr_0=np.zeros((4, 8, 8, 1), np.uint8))
    given = {"metrics": ["psnr"], "out": tmp_path / "scores.json", "device": "cpu"}
    assert score(tmp_path / "a.npz", tmp_path / "a.npz", **given).figures["psnr"].value == float("inf")
    json.loads((tmp_path / "scores.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    again = score(tmp_path / "a.npz", tmp_path / "a.npz", **given)
    assert again.already and again.figures["psnr"].value == float("inf")


def test_changed_held_out_images_are_other_images(tmp_path: Path) -> None:
    light_ = light("upsample-digits")
    side, images = light_.data.image_size, np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for k in range(12):
        Image.fromarray(images.integers(0, 256, (side, side), dtype=np.uint8)).save(tmp_path / f"data/{k}.png")
    data = DataConfig(path=str(tmp_path / "data"), image_size=side, channels=1, validation_fraction=0.5, workers=0)
    short = {"train": {"total_images": 6, "validate_images": 0}}
    config = replace(light_, data=data, model=replace(light_.model, class_conditional=False)).updated(short)
    run = train(config, tmp_path / "run", device="cpu")
    given = {"metrics": ["psnr"], "request": ImageRequest(settings=config.model.sampling.updated(FAST)), "device": "cpu"}
    before, again = run.score(**given), run.score(**given)
    assert again.already and again.figures["psnr"].value == before.figures["psnr"].value
    for path in (tmp_path / "data").iterdir():
        Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
    after = run.score(**given)
    count = after.protocol["count"]
    images_now = made(run, count, settings=given["request"].settings)
    assert not after.already and after.figures["psnr"].value != before.figures["psnr"].value
    assert images_now.truth is not None
    values = psnr(images_now.images(range(count)), images_now.truth(range(count)))
    assert after.figures["psnr"].value == pytest.approx(values.mean(), rel=1e-9)


def test_maps_are_part_of_what_is_held_out(mapped: Run, pairs: Path) -> None:
    held = reopened(mapped.config.data, mapped.spec).validation
    assert held is not None
    before = contents(held)
    files = sorted(pairs.rglob("*.png"))
    kept = {path: path.read_bytes() for path in files}
    seen = set()
    for path in files:
        image = Image.open(path)
        image.transpose(Image.Transpose.FLIP_TOP_BOTTOM).save(path)
        if contents(held) != before:
            seen.add(path.relative_to(pairs).parts[0])
        path.write_bytes(kept[path])
    assert contents(held) == before
    assert maker_of(mapped, ImageRequest()).identity(2, origin={}, precision="float32")["contents"] == before
    assert len(seen) >= 2, "maps and images"
